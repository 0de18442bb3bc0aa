//! What a person or a script may ask of a file tier: the control interface.

use std::cell::Cell;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use halocline_model::request::ByteRange;

use super::FileTier;
use super::batch::OnFileProgress;
use super::bulk::{MoveBy, move_all};
use super::components::Components;
use super::inode::Inode;
use super::migrate::Manner;
use super::not_moved::{COPY_SLACK, NotMoved};
use super::tree_walk::{LISTED_MAX, Named};
use halocline_api::config::Mode;
use halocline_api::control::{
    Controlled, Explanation, ExtentInfo, FileExplanation, FileInfo, JobChange, JobInfo, MoveReport,
    ProcessHint, ProgressSink, Question, Rebuilder, Report, RuleChange, Rules, Side, Status,
    TierStatus,
};
use halocline_api::file_tier::not_found;
use halocline_os::error::{Error, Result};

impl Controlled for FileTier {
    fn status(&self) -> Status {
        let components = &self.components;
        let summary = components.reporter.summary();
        // Read after the summary, which frees old copies: otherwise these would count.
        let used = components.base.residents.used();
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            origin: components.base.tiers.dirs().last().expect("two tiers").path.clone(),
            cache: components.base.tiers.ssd().path.clone(),
            // Filled in by the mount.
            transport: String::new(),
            mode: Mode::WriteBack,
            policy: components.base.options.policy.clone(),
            eviction: components.base.options.policy.clone(),
            limit_bytes: components.base.residents.account.limit,
            used_bytes: used,
            records_bytes: 0,
            mapped_bytes: used,
            dirty_bytes: 0,
            oldest_dirty_age_ms: None,
            extents: summary.files,
            dirty_extents: 0,
            wanted_ranges: 0,
            damaged_bytes: 0,
            repaired_bytes: 0,
            warm_opens: 0,
            detached: None,
            health: summary.health,
            rebuilder: Rebuilder::Idle,
            servers: Vec::new(),
            rules: summary.rules,
            report: self.report(),
            notes: summary.notes,
        }
    }

    fn tier_status(&self) -> Option<TierStatus> {
        Some(self.components.reporter.tiers())
    }

    fn report(&self) -> Report {
        Report {
            policy: self.components.base.options.policy.clone(),
            elapsed_s: self.components.base.clock.elapsed(self.components.base.begun).as_secs_f64(),
            ..Report::default()
        }
    }

    fn locate(&self, path: &Path, range: Option<ByteRange>) -> Result<Vec<ExtentInfo>> {
        let path = path.to_owned();
        let components = Arc::clone(&self.components);
        let (size, away) = self.components.liveness.while_alive(move || {
            let vnode = components.tree_walk.node_at(&path);
            let vnode = vnode.map_err(|error| not_found(&path, &error))?;
            let size = components.inodes.stat(&vnode.0)?.raw.st_size.unsigned_abs();
            let away = vnode.0.place.read().away.is_some();
            Ok((size, away))
        })?;
        let whole = range.unwrap_or(ByteRange::new(0, size));
        let (start, end) = (whole.start.min(size), whole.end.min(size));
        Ok(vec![ExtentInfo {
            offset: start,
            length: end - start,
            side: if away { Side::Origin } else { Side::Cache },
            layout: None,
            group: 0,
            dirty: false,
            last_use_ms: None,
            dirty_since_ms: None,
        }])
    }

    fn explain(&self, _question: &Question) -> Result<Explanation> {
        Err(Error::invalid(
            "a file tier decides about whole files when they are opened",
            "`halocline explain FILE`, without a range, tells why a file is where it is",
        ))
    }

    fn flush(&self, _: Option<&Path>, _: bool, _: ProgressSink<'_>) -> Result<MoveReport> {
        Ok(self.components.base.leftovers.finish_what_goes())
    }

    fn warm(&self, paths: &[PathBuf], dry_run: bool, sink: ProgressSink<'_>) -> Result<MoveReport> {
        let components = &self.components;
        let mut files = Vec::new();
        for path in paths {
            files.extend(components.tree_walk.named(path, usize::MAX)?);
        }
        let asked = once_each(&mut files);
        // Requested files do not displace each other.
        let here = files.iter().filter(|file| file.tier == 0).map(|file| file.disk_bytes).sum();
        let kept = components.base.watermarks.kept_free();
        let room = Cell::new((components.base.residents.account.limit - kept).saturating_sub(here));
        let stays = |file: &Named| {
            if components.base.planner.is_excluded(&file.inode, components.base.catalog.view()) {
                return Some(NotMoved::Excluded);
            }
            if file.disk_bytes + COPY_SLACK > room.get() {
                return Some(NotMoved::NoRoom);
            }
            room.set(room.get() - file.disk_bytes);
            None
        };
        let asked = &|other| asked.contains(&other);
        let by = MoveBy {
            one_by_one: components.base.tiers.one_by_one(),
            one: |file: &Named, on_progress: &mut dyn FnMut(u64) -> bool| {
                components.executor.bring(&file.inode, kept, asked, on_progress)
            },
            many: |files: &[&Named], on_progress: OnFileProgress<'_>| {
                let need = files.iter().map(|file| file.disk_bytes + COPY_SLACK).sum();
                components.executor.bring_batch((&inodes_of(files), need), kept, asked, on_progress)
            },
        };
        Ok(timed(components, || move_all(&files, dry_run, |file| file.tier > 0, stays, &by, sink)))
    }

    fn evict(&self, path: &Path, dry_run: bool, sink: ProgressSink<'_>) -> Result<MoveReport> {
        let components = &self.components;
        let mut files = components.tree_walk.named(path, usize::MAX)?;
        once_each(&mut files);
        let stays = |file: &Named| {
            let pinned =
                components.base.planner.is_pinned(&file.inode, components.base.catalog.view());
            pinned.then_some(NotMoved::Pinned).or_else(|| {
                components.hard_links.why_linked(&file.inode).filter(|_| file.has_other_names)
            })
        };
        let by = MoveBy {
            one_by_one: components.base.tiers.one_by_one(),
            one: |file: &Named, on_progress: &mut dyn FnMut(u64) -> bool| {
                components.migrator.move_down(&file.inode, Manner::Yielding, on_progress)
            },
            many: |files: &[&Named], on_progress: OnFileProgress<'_>| {
                components.batches.migrate_batch(&inodes_of(files), 1, on_progress)
            },
        };
        Ok(timed(components, || move_all(&files, dry_run, |file| file.tier == 0, stays, &by, sink)))
    }

    fn change_rules(&self, change: &RuleChange) -> Result<Rules> {
        if let RuleChange::Pin(glob) = change {
            check_pin(&self.components, glob)?;
        }
        let mut globs = self.components.base.planner.change_rules();
        match change {
            RuleChange::Pin(glob) => globs.add_pin(glob)?,
            RuleChange::Unpin(glob) => globs.remove_pin(glob)?,
            RuleChange::Exclude(glob) => globs.add_exclude(glob)?,
            RuleChange::Include(glob) => globs.remove_exclude(glob)?,
        }
        globs.save(&self.components.base.tiers.private_dir())?;
        drop(globs);
        if matches!(change, RuleChange::Pin(_) | RuleChange::Unpin(_)) {
            self.components.base.planner.changed_for_many();
        }
        if let RuleChange::Exclude(glob) = change {
            let mut files = self.components.tree_walk.matching(glob)?;
            once_each(&mut files);
            files.retain(|file| {
                file.tier == 0
                    && self
                        .components
                        .base
                        .planner
                        .is_excluded(&file.inode, self.components.base.catalog.view())
            });
            for file in files {
                let _ =
                    self.components.migrator.demote(&file.inode, Manner::Yielding, &mut |_| true);
            }
        }
        Ok(self.components.reporter.rules())
    }

    fn hint(&self, _hint: &ProcessHint) -> Result<()> {
        Ok(())
    }

    fn files(&self, path: &Path) -> Result<Vec<FileInfo>> {
        let path = path.to_owned();
        let components = Arc::clone(&self.components);
        self.components.liveness.while_alive(move || {
            components
                .tree_walk
                .named(&path, LISTED_MAX)?
                .into_iter()
                .map(|file| components.reporter.describe(file))
                .collect()
        })
    }

    fn explain_file(&self, path: &Path) -> Result<FileExplanation> {
        let path = path.to_owned();
        let explainer = Arc::clone(&self.components.explainer);
        self.components.liveness.while_alive(move || explainer.explain_file(&path))
    }

    fn change_jobs(&self, change: &JobChange) -> Result<Vec<JobInfo>> {
        let mut jobs = self.components.base.planner.jobs();
        match change {
            JobChange::Add(text) => jobs.add(text)?,
            JobChange::Remove(name) => jobs.remove(name)?,
            JobChange::Begin(name) => jobs.begin(name)?,
            JobChange::List => {}
        }
        let listed = jobs.list();
        drop(jobs);
        if !matches!(change, JobChange::List) {
            self.components.base.planner.changed_for_many();
        }
        Ok(listed)
    }
}

/// A pin that is larger than the SSD could never be kept (USERS 8).
fn check_pin(components: &Components, glob: &str) -> Result<()> {
    let mut files = components.tree_walk.matching(glob)?;
    once_each(&mut files);
    let bytes: u64 = files.iter().map(|file| file.size).sum();
    let limit = components.base.residents.account.limit;
    if bytes > limit {
        return Err(Error::invalid(
            format!("the files that {glob:?} pins have {bytes} bytes, the SSD's limit is {limit}"),
            "pin fewer files or mount with a larger --ssd-limit",
        ));
    }
    Ok(())
}

/// A move with the time that it took.
fn timed(components: &Components, act: impl FnOnce() -> MoveReport) -> MoveReport {
    let begun = components.base.clock.instant();
    let report = act();
    MoveReport { seconds: components.base.clock.elapsed(begun).as_secs_f64(), ..report }
}

fn inodes_of<'a>(files: &[&'a Named]) -> Vec<&'a Arc<Inode>> {
    files.iter().map(|file| &file.inode).collect()
}

/// Keeps each file once, by its first name; returns their numbers.
fn once_each(files: &mut Vec<Named>) -> HashSet<u64> {
    let mut numbers = HashSet::new();
    files.retain(|file| numbers.insert(file.inode.number));
    numbers
}
