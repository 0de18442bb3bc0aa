//! What one look at the disks and the store finds, so that it can be compared with what another look finds.

use std::collections::BTreeSet;

use super::report::Report;
use super::scan::{Item, tell};

/// The most findings of each kind that are compared. Of more, those of the last look are told as they are.
const FOUND_MAX: usize = 1 << 17;

/// What a finding is about, and when that was last changed: the same line says the same in two looks only if both are the
/// same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum About {
    /// Something with a number, which is never given again; and when the store had it changed, 0 if it does not have it.
    Numbered(u64, i64),
    /// Something on a disk: device and inode number there, and when its inode was changed.
    OnDisk((u64, u64), i64),
    /// What its line says.
    Line,
}

impl About {
    pub(crate) const fn item(item: &Item) -> Self {
        Self::OnDisk(item.key, item.attributes.ctime_ns)
    }
}

/// Something that does not fit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    about: About,
    line: String,
    /// Whether the store may be older than the disks.
    suggests_older: bool,
}

impl Finding {
    pub(crate) const fn new(about: About, line: String) -> Self {
        Self { about, line, suggests_older: false }
    }

    pub(crate) const fn of_older_store(about: About, line: String) -> Self {
        Self { about, line, suggests_older: true }
    }

    /// Says more.
    pub(crate) fn add(&mut self, what: &str) {
        self.line.push_str(what);
    }
}

/// Keeps a finding, unless there are too many.
pub(crate) fn note(findings: &mut Vec<Finding>, finding: Finding) {
    if findings.len() < FOUND_MAX {
        findings.push(finding);
    }
}

/// What a look finds; the parts are those of a [`Report`].
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) is_rebuilt: bool,
    /// How many get names in a store that is rebuilt; in a sound one, which.
    pub(super) named: [u64; 3],
    pub(super) newly_named: [Vec<About>; 3],
    pub(super) missing: Vec<(String, String)>,
    pub(super) read: Vec<String>,
    pub(super) unreached_files: u64,
    pub(super) lost: Vec<Finding>,
    pub(super) remade: Vec<Finding>,
    pub(super) left_copies: Vec<Finding>,
    pub(super) left_directories: Vec<Finding>,
    pub(super) relisted: Vec<Finding>,
    pub(super) attributes: Vec<Finding>,
    pub(super) older: Vec<Finding>,
    pub(super) set_aside: Vec<Finding>,
    pub(super) conflicts: Vec<Finding>,
    pub(super) told: Vec<Finding>,
    /// Whether an earlier state of a disk was put back, as the sessions that are counted there say: what differs then does not
    /// mean that the store is older.
    pub(super) is_disk_older: bool,
    /// No difference, but what a rebuild loses.
    pub(super) not_rebuilt: Vec<String>,
    /// What nodes that live are about to put right.
    pub(super) under_way: u64,
}

impl Findings {
    fn lists(&mut self) -> [&mut Vec<Finding>; 10] {
        [
            &mut self.lost,
            &mut self.remade,
            &mut self.left_copies,
            &mut self.left_directories,
            &mut self.relisted,
            &mut self.attributes,
            &mut self.older,
            &mut self.set_aside,
            &mut self.conflicts,
            &mut self.told,
        ]
    }

    /// Whether anything differs.
    pub(super) fn are_none(&mut self) -> bool {
        self.newly_named.iter().all(Vec::is_empty)
            && self.lists().into_iter().all(|list| list.is_empty())
    }

    /// Keeps what a later look has found, too, and returns how many findings were dropped. The rest is as the later look
    /// saw it.
    pub(super) fn keep_those_in(&mut self, later: &mut Self) -> u64 {
        let mut dropped = 0;
        self.missing.clone_from(&later.missing);
        self.not_rebuilt.clone_from(&later.not_rebuilt);
        self.is_disk_older &= later.is_disk_older;
        (self.unreached_files, self.under_way) = (later.unreached_files, later.under_way);
        for (before, now) in self.newly_named.iter_mut().zip(&later.newly_named) {
            let all = before.len();
            before.retain(|one| now.contains(one));
            dropped += all - before.len();
        }
        for (before, now) in self.lists().into_iter().zip(later.lists()) {
            if before.len() == FOUND_MAX || now.len() == FOUND_MAX {
                *before = std::mem::take(now);
                continue;
            }
            let (all, now) = (before.len(), now.drain(..).collect::<BTreeSet<_>>());
            before.retain(|one| now.contains(one));
            dropped += all - before.len();
        }
        dropped as u64
    }

    /// What is told.
    pub(super) fn report(mut self) -> Report {
        let is_disk_older = self.is_disk_older || !self.older.is_empty();
        let suggests_older = self.lists().into_iter().flatten().any(|one| one.suggests_older);
        let may_be_older = suggests_older && !is_disk_older;
        let lines = |findings: Vec<Finding>| {
            let mut lines = Vec::new();
            for one in findings {
                tell(&mut lines, one.line);
            }
            lines
        };
        let newly_named = self.newly_named.each_ref().map(|named| named.len() as u64);
        Report {
            is_rebuilt: self.is_rebuilt,
            named: if self.is_rebuilt { self.named } else { newly_named },
            missing: self.missing,
            read: self.read,
            unreached_files: self.unreached_files,
            lost: lines(self.lost),
            remade: lines(self.remade),
            left_copies: lines(self.left_copies),
            left_directories: lines(self.left_directories),
            relisted: lines(self.relisted),
            attributes: lines(self.attributes),
            older: lines(self.older),
            set_aside: lines(self.set_aside),
            conflicts: lines(self.conflicts),
            not_rebuilt: self.not_rebuilt,
            told: lines(self.told),
            may_be_older,
            under_way: self.under_way,
            changed_meanwhile: 0,
        }
    }
}
