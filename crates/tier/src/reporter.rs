//! The contents of a status and of a list of files.

use std::sync::Arc;
use std::thread;

use super::active_moves::ActiveMoves;
use super::archive_queue::ArchiveQueue;
use super::catalog::Catalog;
use super::copy_records::CopyRecords;
use super::foundation::Foundation;
use super::leftovers::Leftovers;
use super::liveness::Liveness;
use super::lost_files;
use super::lost_files::LostFiles;
use super::notes::Notes;
use super::options::TierOptions;
use super::passthrough::Passthrough;
use super::planner::Planner;
use super::residents::Residents;
use super::tier_dir::TierDir;
use super::tiers::Tiers;
use super::tree_walk::Named;
use super::watermarks::Watermarks;
use halocline_api::control::tier::{CopiesStatus, Moved, TierState};
use halocline_api::control::{FileInfo, Health, Rules, TierStatus};
use halocline_api::file_tier::Counters;
use halocline_os::error::Result;
use halocline_vfs::namespace::stat_descriptor;

/// The parts of a status that may require a look at the tiers.
#[derive(Debug)]
pub(super) struct Summary {
    pub(super) health: Health,
    pub(super) rules: Rules,
    pub(super) files: u64,
    pub(super) notes: Vec<String>,
}

/// Reports on the tiers and their files.
#[derive(Debug)]
pub(super) struct Reporter {
    tiers: Arc<Tiers>,
    residents: Arc<Residents>,
    catalog: Arc<Catalog>,
    copy_records: Arc<CopyRecords>,
    leftovers: Arc<Leftovers>,
    lost_files: Arc<LostFiles>,
    planner: Arc<Planner>,
    watermarks: Watermarks,
    passthrough: Arc<Passthrough>,
    counters: Arc<Counters>,
    active_moves: Arc<ActiveMoves>,
    notes: Arc<Notes>,
    options: Arc<TierOptions>,
    archive_queue: Arc<ArchiveQueue>,
    liveness: Arc<Liveness>,
}

impl Reporter {
    /// Built over the components that it uses.
    pub(super) fn new(
        base: &Foundation,
        archive_queue: &Arc<ArchiveQueue>,
        liveness: &Arc<Liveness>,
    ) -> Self {
        Self {
            tiers: base.tiers.clone(),
            residents: base.residents.clone(),
            catalog: base.catalog.clone(),
            copy_records: base.copy_records.clone(),
            leftovers: base.leftovers.clone(),
            lost_files: base.lost_files.clone(),
            planner: base.planner.clone(),
            watermarks: base.watermarks,
            passthrough: base.passthrough.clone(),
            counters: base.counters.clone(),
            active_moves: base.active_moves.clone(),
            notes: base.notes.clone(),
            options: base.options.clone(),
            archive_queue: archive_queue.clone(),
            liveness: liveness.clone(),
        }
    }

    /// What a status reports; if a tier does not answer, only that, and nothing that might wait for it.
    pub(super) fn summary(self: &Arc<Self>) -> Summary {
        let reporter = Arc::clone(self);
        let answer = self.liveness.while_alive(move || {
            reporter.leftovers.free_old_copies();
            Ok(Summary {
                health: reporter.health(),
                rules: reporter.rules(),
                files: reporter.residents.len() as u64,
                notes: reporter.notes(),
            })
        });
        answer.unwrap_or_else(|error| Summary {
            health: Health::Silent { reason: error.to_string() },
            rules: Rules { pin: Vec::new(), exclude: Vec::new() },
            files: 0,
            notes: Vec::new(),
        })
    }

    /// What a person should know.
    fn notes(&self) -> Vec<String> {
        let full = self.tiers.dirs().iter().filter_map(note_of_full);
        self.notes.all().into_iter().chain(self.lost_files.note()).chain(full).collect()
    }

    /// The state of the tiers, without the free space of those that do not answer.
    pub(super) fn tiers(self: &Arc<Self>) -> TierStatus {
        let reporter = Arc::clone(self);
        let answer = self.liveness.while_alive(move || Ok(reporter.tier_status(reporter.states())));
        if let Ok(told) = answer {
            return told;
        }
        let states = self.states();
        let (reporter, told) = (Arc::clone(self), states.clone());
        let known = self.liveness.remembered(move || reporter.tier_status(told));
        known.unwrap_or_else(|| TierStatus {
            tiers: states,
            high_bytes: self.watermarks.high(),
            low_bytes: self.watermarks.low(),
            ..TierStatus::default()
        })
    }

    /// Each tier, with its free space. All are asked at the same time: a tier that hangs does not affect the answers of
    /// others.
    fn states(&self) -> Vec<TierState> {
        thread::scope(|scope| {
            let ask = |tier_dir: &'_ TierDir| TierState {
                path: tier_dir.path.clone(),
                name: tier_dir.name(),
                free_bytes: tier_dir.room_in_time(),
            };
            let dirs = self.tiers.dirs().iter();
            let asked: Vec<_> = dirs.map(|tier_dir| scope.spawn(move || ask(tier_dir))).collect();
            // Asking a tier does not panic by itself.
            asked.into_iter().filter_map(|asked| asked.join().ok()).collect()
        })
    }

    /// Bytes that the SSD's file system has left, whoever uses it.
    pub(super) fn ssd_room(&self) -> Result<u64> {
        self.tiers.ssd().room()
    }

    pub(super) fn describe(&self, file: Named) -> Result<FileInfo> {
        let pinned = self.planner.is_pinned(&file.inode, self.catalog.view());
        let excluded = self.planner.is_excluded(&file.inode, self.catalog.view());
        let place = file.inode.place.read();
        let lost = place.away.as_ref().is_some_and(|away| lost_files::is_lost(&self.tiers, away));
        let stat = if lost {
            lost_files::stat_lost(&self.tiers, &file.inode, &place)?
        } else {
            stat_descriptor(&*file.inode.physical(&self.tiers, &place)?)?
        };
        let (tier, inside) = match &place.away {
            None => (0, file.path.clone()),
            Some(away) => (away.tier, away.path.clone()),
        };
        Ok(FileInfo {
            tier,
            tier_name: self.tiers.dirs()[tier].name(),
            place: self.tiers.dirs()[tier].path.join(inside),
            size_bytes: stat.raw.st_size.unsigned_abs(),
            disk_bytes: stat.disk_bytes(),
            pinned,
            excluded,
            passed_through: file.inode.passed.load(std::sync::atomic::Ordering::Relaxed) > 0,
            lost,
            clean_copy: place.resident.as_ref().and_then(|resident| {
                let tier = resident.clean.with(|slot| {
                    slot.as_ref().filter(|record| record.is_live()).map(|record| record.tier)
                });
                tier.map(|tier| self.tiers.dirs()[tier].name())
            }),
            path: file.path,
        })
    }

    pub(super) fn rules(&self) -> Rules {
        let globs = self.planner.rules();
        Rules { pin: globs.pin_sources().to_vec(), exclude: globs.exclude_sources().to_vec() }
    }

    /// The state of the tiers.
    fn tier_status(&self, tiers: Vec<TierState>) -> TierStatus {
        TierStatus {
            tiers,
            ssd_files: self.residents.len() as u64,
            high_bytes: self.watermarks.high(),
            low_bytes: self.watermarks.low(),
            waiting_bytes: self.watermarks.waiting(&self.residents),
            promoted: self.counters.promoted(),
            demoted: self.counters.demoted(),
            copies: self.copies_status(),
            opens: self.counters.opens(),
            moving: self.active_moves.now(|entry| self.tiers.tree().path_of(entry)),
            moving_rate: self.active_moves.rate(),
            requests: self.counters.requests(),
            passthrough: self.passthrough.status(&self.tiers),
            jobs: self.planner.jobs().list(),
        }
    }

    fn copies_status(&self) -> CopiesStatus {
        let mut clean = Moved::default();
        let disk_bytes =
            (1..self.tiers.dirs().len()).map(|tier| self.copy_records.bytes_on(tier)).sum();
        let residents = self.residents.all();
        for (_, resident) in residents.iter().filter(|(_, resident)| resident.clean.is_clean()) {
            clean.files += 1;
            clean.bytes += resident.bytes();
        }
        let waiting = self.archive_queue.unarchived();
        let millis = |age: std::time::Duration| u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        CopiesStatus {
            kept: self.options.copies,
            clean,
            disk_bytes,
            demoted: self.counters.demoted_to_copies(),
            archived: self.counters.all_archived(),
            waiting: waiting.files,
            waiting_ms: waiting.oldest.map(millis),
            trouble: waiting.trouble,
        }
    }

    /// Whether all tiers answer, and have done so since the mount.
    pub(super) fn health(&self) -> Health {
        for tier_dir in self.tiers.dirs() {
            if let Err(error) = tier_dir.is_there() {
                return Health::Degraded { reason: error.to_string() };
            }
            if let Some(failure) = tier_dir.steps.failure() {
                let path = tier_dir.path.display();
                let remedy =
                    "look at the kernel's log, save the tier's files, and replace the device";
                return Health::Degraded { reason: format!("{path}: {failure}; {remedy}") };
            }
        }
        if let Some(what) = self.notes.first_panic() {
            let reason = format!(
                "{what}; files stay where they are for now; unmount and mount again, and report it with the log"
            );
            return Health::Degraded { reason };
        }
        let ssd = &self.tiers.ssd();
        if ssd.totals().is_ok_and(|totals| totals.f_files > 0 && totals.f_favail == 0) {
            let reason = format!(
                "{} is on a file system without free inodes (df -i), and each name needs one there: \
                 nothing can be made; remove files",
                ssd.path.display()
            );
            return Health::Full { reason };
        }
        Health::Ok
    }
}

/// A note if no file can come to a tier. That is not a failure of its device, and nothing else says why files stay.
fn note_of_full(tier_dir: &TierDir) -> Option<String> {
    let totals = tier_dir.totals().ok()?;
    let missing = if totals.f_files > 0 && totals.f_favail == 0 {
        "free inodes (df -i)"
    } else if totals.f_bavail == 0 {
        "free space (df)"
    } else {
        return None;
    };
    Some(format!(
        "{}: its file system has no {missing}: no file can come here",
        tier_dir.path.display()
    ))
}
