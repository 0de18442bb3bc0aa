//! The control interface: what a person or a script may ask of the mount of a shared tier.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use halocline_api::config::Mode;
use halocline_api::control::tier::TierState;
use halocline_api::control::{
    Controlled, Drain, Explanation, ExtentInfo, FileExplanation, FileInfo, Health, JobChange,
    JobInfo, JobPlaces, MoveReport, ProcessHint, ProgressSink, Question, Rebuilder, Report,
    RuleChange, Rules, Side, Status, TierStatus,
};
use halocline_api::file_tier::no_file;
use halocline_model::request::ByteRange;
use halocline_os::error::{Error, Result};

use crate::SharedTier;
use crate::errors::of_names;
use crate::explain::Explainer;
use crate::file_infos::FileInfos;
use crate::inodes::Inode;
use crate::job_places;
use crate::lookup::FoundInode;
use crate::move_commands::MoveCommands;
use crate::places::{SHARED, SSD};
use crate::store_memory;
use crate::tree_walk::{shortened, walk_named};

/// The most files that are listed.
const LISTED_MAX: usize = 100_000;

fn infos(tier: &SharedTier) -> FileInfos<'_> {
    let (base, lookup) = (&*tier.tree.base, &*tier.tree.lookup);
    FileInfos { base, lookup, executor: &tier.ssd.executor }
}

/// # Errors
/// If a disk can be read only.
fn check_writable(tier: &SharedTier) -> Result<()> {
    let (ssd, hdd) = (tier.root.join("ssd"), tier.root.join("hdd"));
    for (at, disk, what) in [
        (SHARED, hdd, "no directories can be made or renamed, and no links or devices"),
        (SSD, ssd, "new files are made on the shared disk, and those on the SSD cannot be written"),
    ] {
        if tier.tree.base.places.is_read_only(at) {
            return Err(Error::Unreached {
                what: format!("{} can be read only: {what}", disk.display()),
                remedy: "see the kernel's log (dmesg), and mount it for writing".to_owned(),
            });
        }
    }
    Ok(())
}

/// The commands that move files to a tier.
fn commands(on: &SharedTier, tier: u8) -> MoveCommands<'_> {
    MoveCommands { base: &on.tree.base, executor: &on.ssd.executor, tier }
}

impl Controlled for SharedTier {
    fn status(&self) -> Status {
        let base = &self.tree.base;
        let counts = base.names.counts();
        let mut notes = vec![format!(
            "node {}; {} to the store of names, {} for others",
            base.places.node(),
            halocline_os::counted::counted(counts.round_trips, "request"),
            halocline_os::counted::counted(counts.waits, "pause"),
        )];
        notes.extend(self.note_of_older_disk());
        let executor = &self.ssd.executor;
        let used = executor.residents.used();
        if let Some(trouble) = &*executor.trouble.lock() {
            notes.push(format!("not demoted: {trouble}"));
        }
        // A store that has lost its names may know this node's session all the same.
        let lost = || base.names.check().map_err(of_names);
        let checked = base.sessions.check().and_then(|()| lost());
        let checked = checked.and_then(|()| store_memory::room(base.names.memory(), &mut notes));
        let health = match checked.and_then(|()| check_writable(self)) {
            Ok(()) => Health::Ok,
            Err(error) => {
                notes.push(error.to_string());
                Health::Degraded { reason: error.to_string() }
            }
        };
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            origin: self.root.join("hdd"),
            cache: self.root.join("ssd"),
            // Filled in by the mount.
            transport: String::new(),
            mode: Mode::WriteBack,
            policy: self.ssd.policy().to_owned(),
            eviction: self.ssd.policy().to_owned(),
            limit_bytes: executor.watermarks.limit(),
            used_bytes: used,
            records_bytes: 0,
            mapped_bytes: used,
            dirty_bytes: 0,
            oldest_dirty_age_ms: None,
            extents: executor.residents.len() as u64,
            dirty_extents: 0,
            wanted_ranges: 0,
            damaged_bytes: 0,
            repaired_bytes: 0,
            warm_opens: 0,
            detached: None,
            health,
            rebuilder: Rebuilder::Idle,
            servers: Vec::new(),
            rules: executor.planner.rules.told(),
            report: self.report(),
            notes,
        }
    }

    fn tier_status(&self) -> Option<TierStatus> {
        let places = &self.tree.base.places;
        let state = |tier, name: &str| TierState {
            path: self.root.join(name),
            name: name.to_owned(),
            free_bytes: places.free_bytes(tier).ok(),
        };
        let tiers = vec![state(SSD, "ssd"), state(SHARED, "hdd")];
        let base = &self.tree.base;
        let shown = |inode: &Inode| base.paths.shown(inode).display().to_string();
        let executor = &self.ssd.executor;
        // In a statement of its own: an expression's lock lasts as long as the expression, and each open takes this one.
        let jobs = executor.planner.jobs().list();
        Some(TierStatus {
            tiers,
            ssd_files: executor.residents.len() as u64,
            high_bytes: executor.watermarks.high(),
            low_bytes: executor.watermarks.low(),
            waiting_bytes: executor.waiting_bytes(),
            promoted: executor.counters.promoted(),
            demoted: executor.counters.demoted(),
            opens: executor.counters.opens(),
            moving: executor.active.now(PathBuf::clone),
            moving_rate: executor.active.rate(),
            requests: executor.counters.requests(),
            jobs,
            passthrough: base.passthrough.status(shown),
            copies: self.ssd.archive.status(),
        })
    }

    fn report(&self) -> Report {
        let clock = &self.tree.base.clock;
        Report {
            policy: self.ssd.policy().to_owned(),
            elapsed_s: clock.elapsed(self.begun).as_secs_f64(),
            ..Report::default()
        }
    }

    fn locate(&self, path: &Path, range: Option<ByteRange>) -> Result<Vec<ExtentInfo>> {
        let infos = infos(self);
        let found = infos.find(path)?;
        let info = infos.of(path, &found).ok_or_else(|| no_file(path))?;
        let whole = range.unwrap_or(ByteRange::new(0, info.size_bytes));
        let (start, end) = (whole.start.min(info.size_bytes), whole.end.min(info.size_bytes));
        Ok(vec![ExtentInfo {
            offset: start,
            length: end - start,
            side: if info.tier > 0 { Side::Origin } else { Side::Cache },
            layout: None,
            group: 0,
            dirty: false,
            last_use_ms: None,
            dirty_since_ms: None,
        }])
    }

    fn explain(&self, _question: &Question) -> Result<Explanation> {
        Err(Error::invalid(
            "a file tier decides about whole files",
            "`halocline explain FILE`, without a range, tells why a file is where it is",
        ))
    }

    fn explain_file(&self, path: &Path) -> Result<FileExplanation> {
        let infos = infos(self);
        let found = infos.find(path)?;
        let file = infos.of(path, &found).zip(found.stored.attributes.location.clone());
        let (file, place) = file.ok_or_else(|| no_file(path))?;
        let (base, executor) = (&*self.tree.base, &self.ssd.executor);
        let explainer = Explainer { base, executor, policy: self.ssd.policy() };
        Ok(explainer.explain(file, &found, &place))
    }

    fn flush(&self, _: Option<&Path>, _: bool, _: ProgressSink<'_>) -> Result<MoveReport> {
        Ok(MoveReport::default())
    }

    fn warm(
        &self,
        paths: &[PathBuf],
        dry_run: bool,
        progress: ProgressSink<'_>,
    ) -> Result<MoveReport> {
        commands(self, SSD).execute(paths, dry_run, progress)
    }

    fn evict(&self, path: &Path, dry_run: bool, progress: ProgressSink<'_>) -> Result<MoveReport> {
        commands(self, SHARED).execute(&[path.to_owned()], dry_run, progress)
    }

    fn drain(&self, what: &Drain, progress: ProgressSink<'_>) -> Result<MoveReport> {
        commands(self, SHARED).drain(&what.node, &what.path, what.dry_run, progress)
    }

    fn change_rules(&self, change: &RuleChange) -> Result<Rules> {
        let rules = self.ssd.executor.planner.rules.change(change)?;
        if matches!(change, RuleChange::Exclude(_)) {
            self.ssd.push_out_excluded();
        }
        Ok(rules)
    }

    fn change_jobs(&self, change: &JobChange) -> Result<Vec<JobInfo>> {
        self.ssd.change_jobs(change)
    }

    fn job_places(&self, job: &str) -> Result<JobPlaces> {
        job_places::of(&self.tree.base, job)
    }

    fn hint(&self, _hint: &ProcessHint) -> Result<()> {
        Ok(())
    }

    fn files(&self, path: &Path) -> Result<Vec<FileInfo>> {
        let mut files = Vec::new();
        walk_named(
            &self.tree.base,
            path,
            &mut |_| ControlFlow::Continue(()),
            &mut |path, name, stored| {
                if files.len() >= LISTED_MAX {
                    return Err(Error::invalid(
                        format!("there are more than {LISTED_MAX} files"),
                        "name a directory with fewer",
                    ));
                }
                let found = FoundInode { name: Some(name), stored };
                files.extend(infos(self).of(&shortened(path), &found));
                Ok(())
            },
        )?;
        files.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(files)
    }
}
