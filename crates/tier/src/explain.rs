//! Why a file is where it is, and what would change that: `halocline explain FILE`.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::catalog::Catalog;
use super::foundation::Foundation;
use super::hard_links::HardLinks;
use super::inodes::Inodes;
use super::not_moved::{COPY_SLACK, NotMoved};
use super::options::TierOptions;
use super::planner::Planner;
use super::reporter::Reporter;
use super::residents::Residents;
use super::tree_walk::{Named, TreeWalk};
use halocline_api::control::FileExplanation;
use halocline_api::file_tier::{History, no_file, not_found, why_jobs_and_moves};
use halocline_os::counted::counted;
use halocline_os::error::Result;

/// Says why files are where they are.
#[derive(Debug)]
pub(super) struct Explainer {
    residents: Arc<Residents>,
    catalog: Arc<Catalog>,
    planner: Arc<Planner>,
    history: Arc<History>,
    options: Arc<TierOptions>,
    inodes: Arc<Inodes>,
    hard_links: Arc<HardLinks>,
    tree_walk: Arc<TreeWalk>,
    reporter: Arc<Reporter>,
}

impl Explainer {
    /// Built over the components that it uses.
    pub(super) fn new(
        base: &Foundation,
        inodes: &Arc<Inodes>,
        hard_links: &Arc<HardLinks>,
        tree_walk: &Arc<TreeWalk>,
        reporter: &Arc<Reporter>,
    ) -> Self {
        Self {
            residents: base.residents.clone(),
            catalog: base.catalog.clone(),
            planner: base.planner.clone(),
            history: base.history.clone(),
            options: base.options.clone(),
            inodes: inodes.clone(),
            hard_links: hard_links.clone(),
            tree_walk: tree_walk.clone(),
            reporter: reporter.clone(),
        }
    }

    /// Explains where the one file at `path` is. Changes nothing.
    pub(super) fn explain_file(&self, path: &Path) -> Result<FileExplanation> {
        let vnode = self.tree_walk.node_at(path).map_err(|error| not_found(path, &error))?;
        let is_file = self.inodes.stat(&vnode.0)?.kind() == libc::S_IFREG;
        let file = if is_file { self.tree_walk.named(path, 1)?.pop() } else { None };
        let file = file.ok_or_else(|| no_file(path))?;
        let mut told = self.facts(file)?;
        (told.reasons, told.remedies) = match (told.file.lost, told.file.tier) {
            (true, _) => (
                vec!["it is gone from its tier, only its name is left".to_owned()],
                vec!["restore it there (see `place`), or remove the name".to_owned()],
            ),
            (false, 0) => (why_on_ssd(&told), how_off(&told)),
            (false, _) => (why_below(&told), how_up(&told)),
        };
        Ok(told)
    }

    /// What is known of a file.
    fn facts(&self, file: Named) -> Result<FileExplanation> {
        let inode = file.inode.clone();
        let need = file.disk_bytes + COPY_SLACK;
        let hard_links =
            if file.has_other_names { self.inodes.stat(&inode)?.raw.st_nlink } else { 1 };
        let known_names = match self.hard_links.why_linked(&inode) {
            Some(NotMoved::HardLinked { known, .. }) => known,
            _ => hard_links,
        };
        let opened = self.history.of(inode.number);
        let stayed = self.history.last_not_moved(inode.number);
        let passed = inode.passed.load(Ordering::Relaxed);
        let limit = self.residents.account.limit;
        let file = self.reporter.describe(file)?;
        let rank = if file.tier == 0 {
            self.planner.rank(inode.number, self.catalog.view())
        } else {
            None
        };
        Ok(FileExplanation {
            policy: self.options.policy.clone(),
            ssd_limit_bytes: limit,
            // Other users may fill its file system, too.
            ssd_free_bytes: self.residents.free().min(self.reporter.ssd_room()?),
            opens: opened.opens,
            last_open_ms: (opened.opens > 0).then_some(opened.last_ms),
            leaves_after: rank.map(|(before, _)| before),
            may_leave: rank.map(|(_, all)| all),
            jobs: self.planner.jobs().that_want(&file.path),
            handles: inode.handles().len() as u64,
            passed_handles: passed.into(),
            hard_links,
            known_names,
            too_large: need > limit,
            stayed_ms: stayed.as_ref().map(|(when, _)| *when),
            stayed: stayed.map(|(_, why)| why.to_string()),
            reasons: Vec::new(),
            remedies: Vec::new(),
            file,
        })
    }
}

fn why_on_ssd(told: &FileExplanation) -> Vec<String> {
    let mut why = Vec::new();
    if told.file.pinned {
        why.push("a pin glob keeps it on the SSD".to_owned());
    }
    if told.file.passed_through {
        why.push("the kernel serves it by itself: it does not move until it is closed".to_owned());
    }
    if told.hard_links > 1 {
        let (names, known) = (told.hard_links, told.known_names);
        why.push(if known == names {
            format!("it has {names} names (hard links), which move together")
        } else {
            NotMoved::HardLinked { names, known }.to_string()
        });
    }
    if let (Some(before), Some(all)) = (told.leaves_after, told.may_leave) {
        why.push(format!(
            "policy {}: {before} of {} would leave before it",
            told.policy,
            counted(all, "file")
        ));
    }
    if let Some(tier) = &told.file.clean_copy {
        why.push(format!("{tier} has a clean copy of it: a demote moves no bytes"));
    }
    if told.file.excluded {
        why.push("an exclude glob should keep it off: it has not moved yet".to_owned());
    }
    if told.file.disk_bytes == 0 {
        why.push("it has no data to move".to_owned());
    }
    why.extend(why_jobs_and_moves(told));
    why
}

fn why_below(told: &FileExplanation) -> Vec<String> {
    let mut why = Vec::new();
    if told.file.excluded {
        why.push("an exclude glob keeps it off the SSD".to_owned());
    }
    if told.too_large {
        why.push("it is larger than the SSD's limit".to_owned());
    }
    match told.opens {
        0 => why.push("no program was seen to open it since the mount began".to_owned()),
        1 => why.push("it was opened once only since the mount began".to_owned()),
        _ => {}
    }
    if !told.too_large && told.file.disk_bytes + COPY_SLACK > told.ssd_free_bytes {
        why.push("the SSD has no room for it: others would have to leave".to_owned());
    }
    why.extend(why_jobs_and_moves(told));
    why
}

fn how_off(told: &FileExplanation) -> Vec<String> {
    let mut how = Vec::new();
    if told.file.pinned {
        how.push("`halocline unpin GLOB --on MOUNT` lets it leave".to_owned());
    } else {
        how.push("`halocline pin GLOB --on MOUNT` keeps it on the SSD".to_owned());
    }
    if told.file.passed_through {
        how.push("close it, then `halocline demote FILE` moves it down".to_owned());
    } else if told.hard_links > told.known_names {
        how.push("remove other names, then `halocline demote FILE` moves it down".to_owned());
    } else if !told.file.pinned {
        how.push("`halocline demote FILE` moves it down now".to_owned());
    }
    how
}

fn how_up(told: &FileExplanation) -> Vec<String> {
    if told.file.excluded {
        return vec![
            "`halocline exclude --remove GLOB --on MOUNT`, then `halocline warm FILE`, brings it"
                .to_owned(),
        ];
    }
    if told.too_large {
        return vec![
            "a larger `--ssd-limit` at the next mount, then `halocline warm FILE`".to_owned(),
        ];
    }
    vec![
        "`halocline warm FILE` brings it now, and others leave for it where there is no room"
            .to_owned(),
        "opening it again may bring it; a job that names it tells the policy that it is wanted"
            .to_owned(),
    ]
}
