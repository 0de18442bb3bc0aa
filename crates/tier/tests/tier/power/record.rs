//! Noting what is done to the two tiers, and what was made durable.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io::Read;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;

use halocline_os::error::Result;
use halocline_tier::Watcher;
use halocline_vfs::namespace::reopen;
use halocline_vfs::namespace::stat_descriptor;

use super::Trouble;
use super::image::{Body, Image, Inode, Tier};
use crate::fixture::Fixture;
use crate::scenarios::kill;

/// A change that is made wholly or not at all.
#[derive(Debug)]
struct Change {
    what: &'static str,
    /// Inodes as they are afterwards, directories but for their names and files without bytes.
    inodes: Vec<(u64, Inode)>,
    /// In which directory what name stands for what.
    names: Vec<(u64, String, Option<u64>)>,
    /// A sync of one of these covers the change.
    touched: BTreeSet<u64>,
}

/// What was done to one tier.
#[derive(Debug)]
struct Log {
    root: PathBuf,
    begin: Tier,
    now: Tier,
    changes: Vec<Change>,
    /// So many changes are durable.
    durable: usize,
    /// Bytes of files as they were last synced, where they have changed since.
    old: BTreeMap<u64, Arc<Vec<u8>>>,
    /// Descriptors of all inodes, so that no number is given away twice.
    held: BTreeMap<u64, OwnedFd>,
}

/// What becomes of bytes that were not synced.
const FATES: [&str; 4] = ["new", "old", "zero", "missing"];

impl Log {
    fn new(root: PathBuf) -> Self {
        let begin = Tier::read(&root);
        let mut log = Self {
            root,
            now: begin.clone(),
            begin,
            changes: Vec::new(),
            durable: 0,
            old: BTreeMap::new(),
            held: BTreeMap::new(),
        };
        log.hold();
        log
    }

    /// Opens inodes that were not there before.
    fn hold(&mut self) {
        for (path, number) in self.now.paths() {
            self.held.entry(number).or_insert_with(|| {
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                openat(CWD, self.root.join(path), flags, Mode::empty()).expect("it is there")
            });
        }
    }

    /// Notes what has changed since the last look.
    fn look(&mut self, what: &'static str) {
        let now = Tier::read(&self.root);
        if now == self.now {
            return;
        }
        let mut change =
            Change { what, inodes: Vec::new(), names: Vec::new(), touched: BTreeSet::new() };
        for (number, inode) in &now.inodes {
            let before = self.now.inodes.get(number);
            let (mut kept, mut former) = (inode.clone(), before.cloned());
            if let Body::File(bytes) = &inode.body {
                let was = before.map_or_else(Arc::default, |before| match &before.body {
                    Body::File(bytes) => bytes.clone(),
                    _ => unreachable!("inodes keep their kind"),
                });
                if was != *bytes {
                    self.old.entry(*number).or_insert(was);
                }
            }
            without_content(&mut kept.body);
            if let Some(former) = &mut former {
                without_content(&mut former.body);
            }
            if former.as_ref() != Some(&kept) {
                change.touched.insert(*number);
                change.inodes.push((*number, kept));
            }
            if let Body::Directory(names) = &inode.body {
                let none = BTreeMap::new();
                let former = match before.map(|before| &before.body) {
                    Some(Body::Directory(names)) => names,
                    _ => &none,
                };
                let all: BTreeSet<&String> = names.keys().chain(former.keys()).collect();
                for name in all.into_iter().filter(|name| names.get(*name) != former.get(*name)) {
                    let (is, was) = (names.get(name).copied(), former.get(name).copied());
                    change.touched.insert(*number);
                    change.touched.extend(is.into_iter().chain(was));
                    change.names.push((*number, name.clone(), is));
                }
            }
        }
        assert!(change.names.len() <= 2, "{what}: several calls in one step: {change:?}");
        if !(change.inodes.is_empty() && change.names.is_empty()) {
            self.changes.push(change);
        }
        self.now = now;
        self.hold();
    }

    fn synced(&mut self, number: u64) {
        let last = self.changes.iter().rposition(|change| change.touched.contains(&number));
        self.durable = self.durable.max(last.map_or(0, |last| last + 1));
        self.old.remove(&number);
    }

    fn synced_all(&mut self) {
        self.durable = self.changes.len();
        self.old.clear();
    }

    /// The tier with its first `count` changes, and the bytes of files that were not synced.
    fn after(&self, count: usize, fate: &str) -> Tier {
        let mut tier = self.begin.clone();
        for change in &self.changes[..count] {
            for (number, inode) in &change.inodes {
                let body = tier.inodes.remove(number).map(|former| former.body);
                let mut inode = inode.clone();
                if let Some(body) = body {
                    inode.body = body;
                }
                tier.inodes.insert(*number, inode);
            }
            for (dir, name, is) in &change.names {
                let Some(Body::Directory(names)) =
                    tier.inodes.get_mut(dir).map(|inode| &mut inode.body)
                else {
                    unreachable!("names are in directories");
                };
                match is {
                    Some(number) => drop(names.insert(name.clone(), *number)),
                    None => drop(names.remove(name)),
                }
            }
        }
        for (number, inode) in &mut tier.inodes {
            if let Body::File(bytes) = &mut inode.body {
                let now = self.bytes(*number);
                *bytes = match (self.old.get(number), fate) {
                    (Some(old), "old") => old.clone(),
                    (Some(_), "zero") => Arc::new(vec![0; now.len()]),
                    (Some(_), "missing") => Arc::default(),
                    _ => now,
                };
            }
        }
        tier
    }

    /// A file's bytes; those of one that has no name any more too.
    fn bytes(&self, number: u64) -> Arc<Vec<u8>> {
        if let Some(Body::File(bytes)) = self.now.inodes.get(&number).map(|inode| &inode.body) {
            return bytes.clone();
        }
        let mut file = reopen(&self.held[&number], libc::O_RDONLY).expect("still open");
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).expect("readable");
        Arc::new(bytes)
    }
}

fn without_content(body: &mut Body) {
    match body {
        Body::Directory(names) => names.clear(),
        Body::File(bytes) => *bytes = Arc::default(),
        Body::Link(_) => {}
    }
}

/// What a recording knows.
#[derive(Debug)]
struct State {
    logs: [Log; 2],
    engine: Arc<Vec<(PathBuf, Vec<u8>)>>,
    images: Vec<Image>,
    seen: HashSet<u64>,
    between: (usize, usize),
    when: String,
    trouble: Trouble,
    failed: bool,
    /// No images are made: the mount is killed first.
    waits: bool,
    /// It was: what its end does is not of interest.
    killed: bool,
    step: &'static str,
}

/// A recording of what is done to a fixture's tiers.
#[derive(Debug, Clone)]
pub(super) struct Recording(Arc<Mutex<State>>);

impl Recording {
    /// What is there now is durable.
    pub(super) fn of(fixture: &Fixture, trouble: Trouble) -> Self {
        let logs = ["ssd", "hdd"].map(|name| Log::new(fixture.dir.path().join(name)));
        Self(Arc::new(Mutex::new(State {
            logs,
            engine: Arc::new(Image::engine_files(fixture.dir.path())),
            images: Vec::new(),
            seen: HashSet::new(),
            between: (0, 0),
            when: String::new(),
            trouble,
            failed: false,
            waits: trouble.kill_at.is_some(),
            killed: false,
            step: "",
        })))
    }

    /// Whether a sync was made to fail.
    pub(super) fn has_failed(&self) -> bool {
        self.0.lock().failed
    }

    /// Records the steps of a fixture.
    pub(super) fn start(&self, fixture: &Fixture) {
        fixture.watch(Arc::new(self.clone()));
    }

    /// The next of the scenario's acts begins, `done` were done.
    pub(super) fn begins(&self, done: usize) {
        let mut state = self.0.lock();
        state.between.1 = done + 1;
        state.when = format!("in act {done}");
    }

    /// Whatever `done` acts did is durable.
    pub(super) fn durable(&self, done: usize) {
        let mut state = self.0.lock();
        state.between = (done, done);
        if !state.waits {
            "in the end".clone_into(&mut state.when);
            state.take_images("an act");
        }
    }

    /// The mount was killed after `step`: the next one's recovery is recorded.
    pub(super) fn recovers(&self, step: &'static str) {
        let mut state = self.0.lock();
        (state.waits, state.killed) = (false, false);
        state.when = format!("in the recovery after a kill after {step}");
    }

    /// What power losses would have left.
    pub(super) fn images(self) -> Vec<Image> {
        std::mem::take(&mut self.0.lock().images)
    }
}

impl Watcher for Recording {
    fn before(&self, _tier: usize, what: &'static str) -> Result<()> {
        let mut state = self.0.lock();
        state.step = what;
        // Nothing changes between steps; to see that takes long.
        if state.trouble.kill_at.is_none() {
            for log in &mut state.logs {
                let count = log.changes.len();
                log.look(what);
                assert_eq!(count, log.changes.len(), "before {what}: a change without a step");
            }
        }
        if let Some(left) = state.trouble.fail_at
            && what.starts_with("syncing")
            && !state.failed
        {
            state.failed = left == 0;
            state.trouble.fail_at = Some(left.saturating_sub(1));
            return if state.failed { Err(Errno::IO.into()) } else { Ok(()) };
        }
        Ok(())
    }

    fn after(&self, tier: usize, what: &'static str) {
        let mut state = self.0.lock();
        if state.killed {
            return;
        }
        for (other, log) in state.logs.iter_mut().enumerate() {
            let count = log.changes.len();
            log.look(what);
            assert!(other == tier || count == log.changes.len(), "{what} changed tier {other}");
        }
        if !state.waits {
            state.take_images(what);
            return;
        }
        let left = state.trouble.kill_at.expect("what is waited for");
        state.trouble.kill_at = Some(left.saturating_sub(1));
        state.killed = left == 0;
        if state.killed {
            drop(state);
            kill(what);
        }
    }

    fn synced(&self, _tier: usize, file: BorrowedFd<'_>) {
        let inode = stat_descriptor(file).expect("an open file").raw.st_ino;
        let mut state = self.0.lock();
        if state.trouble.lie != Some(state.step) {
            state.logs.iter_mut().for_each(|log| log.synced(inode));
        }
    }

    fn synced_all(&self, tier: usize) {
        let mut state = self.0.lock();
        if state.trouble.lie != Some(state.step) {
            state.logs[tier].synced_all();
        }
    }

    fn one_by_one(&self) -> bool {
        true
    }
}

impl State {
    fn take_images(&mut self, what: &str) {
        let [ssd, hdd] = &self.logs;
        let fates = if ssd.old.is_empty() && hdd.old.is_empty() { &FATES[..1] } else { &FATES };
        for fate in fates {
            for one in ssd.durable..=ssd.changes.len() {
                for other in hdd.durable..=hdd.changes.len() {
                    let tiers = [ssd.after(one, fate), hdd.after(other, fate)];
                    let lost = |log: &Log, from: usize| {
                        log.changes[from..].iter().map(|change| change.what).collect::<Vec<_>>()
                    };
                    let when = format!(
                        "{} after {what}: without {:?} on the SSD and {:?} below, bytes {fate}",
                        self.when,
                        lost(ssd, one),
                        lost(hdd, other)
                    );
                    let image = Image::new(tiers, &self.engine, self.between, when);
                    if self.seen.insert(image.digest()) {
                        self.images.push(image);
                    }
                }
            }
        }
    }
}
