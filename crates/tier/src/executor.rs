//! The executor: carries out what the policy plans.
//!
//! [`Planner`] determines which files leave the SSD, and in which order. The executor demotes them until there is
//! room, several at a time or in batches, and brings files to the SSD.

use std::collections::HashSet;
use std::sync::Arc;

use super::batch::{Batches, OnFileProgress, Outcomes, batch_of};
use super::catalog::Catalog;
use super::foundation::Foundation;
use super::inode::Inode;
use super::inodes::Inodes;
use super::leftovers::Leftovers;
use super::migrate::{Manner, Migrator};
use super::not_moved::{COPY_SLACK, NotMoved, ROOM_FOR_NAMES};
use super::parallel::{PARALLEL_MAX, in_parallel, parallel_count};
use super::passthrough::Passthrough;
use super::planner::{Except, Leaving, Plan, Planner};
use super::residents::{Resident, Residents};
use super::tiers::{Entry, Tiers};
use super::wakeups::Wakeups;
use super::watermarks::Watermarks;
use halocline_api::file_tier::History;
use halocline_api::jobs::Ahead;
use halocline_os::error::Result;
use halocline_vfs::namespace::stat_descriptor;

/// After this many consecutive failed copies, the tiers below are left alone for now.
const FAILURES_MAX: usize = 8;
/// How often room is made for a requested file if others take that room.
const BRING_ATTEMPTS: usize = 16;

/// The result of making room.
struct Room {
    /// As much is free as was requested.
    enough: bool,
    /// Files left the SSD, because of us or of others: there may be enough room now, or after another attempt.
    moved: bool,
}

/// Makes room on the SSD, and brings files there.
#[derive(Debug)]
pub(super) struct Executor {
    tiers: Arc<Tiers>,
    residents: Arc<Residents>,
    catalog: Arc<Catalog>,
    leftovers: Arc<Leftovers>,
    planner: Arc<Planner>,
    watermarks: Watermarks,
    passthrough: Arc<Passthrough>,
    history: Arc<History>,
    wakeups: Arc<Wakeups>,
    inodes: Arc<Inodes>,
    migrator: Arc<Migrator>,
    batches: Arc<Batches>,
}

impl Executor {
    /// Built over the components that it uses.
    pub(super) fn new(
        base: &Foundation,
        inodes: &Arc<Inodes>,
        migrator: &Arc<Migrator>,
        batches: &Arc<Batches>,
    ) -> Self {
        Self {
            tiers: base.tiers.clone(),
            residents: base.residents.clone(),
            catalog: base.catalog.clone(),
            leftovers: base.leftovers.clone(),
            planner: base.planner.clone(),
            watermarks: base.watermarks,
            passthrough: base.passthrough.clone(),
            history: base.history.clone(),
            wakeups: base.wakeups.clone(),
            inodes: inodes.clone(),
            migrator: migrator.clone(),
            batches: batches.clone(),
        }
    }

    /// Demotes files if the SSD is fuller than it should be. Returns whether that was fruitless.
    pub(super) fn keep_below_watermarks(&self) -> bool {
        self.passthrough.count(&self.tiers);
        let wanted = self.watermarks.wanted_room(&self.tiers, &self.residents);
        wanted.is_some_and(|bytes| !self.wakeups.is_stopping() && !self.free_up(bytes, u64::MAX))
    }

    /// Demotes files until `bytes` are free on the SSD, in the policy's order. `false` if that is not possible.
    pub(super) fn free_up(&self, bytes: u64, except: u64) -> bool {
        self.make_room(bytes, &|number| number == except).enough
    }

    /// The same, with a more detailed result.
    fn make_room(&self, bytes: u64, except: Except<'_>) -> Room {
        let mut room = Room { enough: self.is_free(bytes), moved: false };
        if !room.enough {
            let missing = self.residents.missing(bytes);
            let first = self.planner.plan_room(missing, except, self.catalog.view());
            let gave_up = self.carry_out(&first, bytes, &mut room);
            // Some of them may have been in use.
            if !room.enough && !gave_up {
                self.carry_out(
                    &self.planner.plan_all(except, self.catalog.view()),
                    bytes,
                    &mut room,
                );
            }
        }
        room
    }

    /// Demotes files as planned until `bytes` are free. Returns whether it gave up because copies keep failing.
    fn carry_out(&self, plan: &Plan, bytes: u64, room: &mut Room) -> bool {
        let (mut left, mut failures) = (&plan.demote[..], 0);
        while !left.is_empty() && failures < FAILURES_MAX && !self.is_free(bytes) {
            let sizes = left.iter().map(|(_, resident)| resident.bytes());
            let missing = self.residents.missing(bytes).max(1);
            // Tiers that fail are not given many files at a time.
            let goes_well = room.moved && failures == 0;
            if goes_well {
                let (batch, later) = left.split_at(batch_of(sizes.clone(), missing));
                if self.push_out_batch(batch) {
                    left = later;
                    continue;
                }
            }
            let most = if goes_well { PARALLEL_MAX } else { FAILURES_MAX - failures };
            let (now, later) = left.split_at(parallel_count(sizes, missing, most));
            let one_by_one = self.tiers.one_by_one();
            let pushed =
                in_parallel(now, one_by_one, |(entry, resident)| self.push_out(*entry, resident));
            for pushed in pushed {
                if matches!(pushed, Err(NotMoved::Failed(_))) {
                    failures += 1;
                    continue;
                }
                failures = 0;
                // Somebody else may have been faster.
                room.moved |= matches!(pushed, Ok(_) | Err(NotMoved::There | NotMoved::Gone));
            }
            left = later;
        }
        room.enough = self.is_free(bytes);
        failures >= FAILURES_MAX
    }

    /// Demotes files that must make room as a batch, and those that the batch leaves one by one. Returns whether any
    /// were demoted as a batch.
    fn push_out_batch(&self, files: &[Leaving]) -> bool {
        let inodes = files.iter().map(|(entry, resident)| self.inodes.inode_of(*entry, resident));
        let inodes: Vec<_> = inodes.collect();
        let known: Vec<_> = inodes.iter().flatten().collect();
        let outcomes = self.batches.migrate_batch(&known, 1, &|_, _| true);
        let any = outcomes.iter().any(Option::is_some);
        if any {
            let left = known.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_none());
            let left: Vec<_> = left.map(|(inode, _)| inode).collect();
            for some in left.chunks(PARALLEL_MAX) {
                in_parallel(some, self.tiers.one_by_one(), |inode| {
                    self.migrator.demote(inode, Manner::Yielding, &mut |_| true)
                });
            }
        }
        any
    }

    /// Whether `bytes` are free on the SSD; first frees the old copies of files that have left it.
    fn is_free(&self, bytes: u64) -> bool {
        self.leftovers.free_old_copies();
        self.residents.free() >= bytes
    }

    /// Demotes one file that must make room.
    fn push_out(&self, entry: Entry, resident: &Resident) -> Result<u64, NotMoved> {
        let inode = self.inodes.inode_of(entry, resident).ok_or(NotMoved::Gone)?;
        self.migrator.demote(&inode, Manner::Yielding, &mut |_| true).inspect_err(|why| {
            tracing::debug!(
                "{}: not demoted: {why}",
                self.catalog.view().path_of(resident).display()
            );
        })
    }

    /// Brings a file to the SSD because it was requested, reporting progress. Demotes others, except those that `stays`
    /// keeps, until `kept` bytes are left free in addition.
    pub(super) fn bring(
        &self,
        inode: &Arc<Inode>,
        kept: u64,
        stays: Except<'_>,
        on_progress: super::copy::OnProgress<'_>,
    ) -> Result<u64, NotMoved> {
        for _ in 0..BRING_ATTEMPTS {
            let need = self.room_needed(inode)?.saturating_add(kept);
            let room = self.make_room(need, &|number| number == inode.number || stays(number));
            if room.enough {
                match self.migrator.migrate(inode, 0, Manner::Yielding, on_progress) {
                    // Somebody else took the room that was made.
                    Err(NotMoved::NoRoom) => {}
                    other => return other,
                }
            } else if !room.moved {
                break;
            }
        }
        Err(NotMoved::NoRoom)
    }

    /// The same for many small files, which together need `need` bytes; `None` for those that must be brought
    /// individually.
    pub(super) fn bring_batch(
        &self,
        (inodes, need): (&[&Arc<Inode>], u64),
        kept: u64,
        stays: Except<'_>,
        on_progress: OnFileProgress<'_>,
    ) -> Outcomes {
        let numbers: HashSet<u64> = inodes.iter().map(|inode| inode.number).collect();
        let except = |number| numbers.contains(&number) || stays(number);
        if self.make_room(need.saturating_add(kept), &except).enough {
            self.batches.migrate_batch(inodes, 0, on_progress)
        } else {
            inodes.iter().map(|_| None).collect()
        }
    }

    /// Bytes that must be free on the SSD for a file to come there; [`NotMoved::NoRoom`] if so many can never be free.
    fn room_needed(&self, inode: &Inode) -> Result<u64, NotMoved> {
        let place = inode.place.read();
        let stat = stat_descriptor(&*inode.physical(&self.tiers, &place)?)?;
        let need = stat.disk_bytes() + COPY_SLACK;
        if need > self.residents.account.limit { Err(NotMoved::NoRoom) } else { Ok(need) }
    }

    /// Brings an opened file to the SSD if the policy wants it there and it fits.
    pub(super) fn promote(&self, inode: &Arc<Inode>, ahead: Option<Ahead>) -> bool {
        let Ok(need) = self.room_needed(inode) else { return false };
        if self.planner.is_excluded(inode, self.catalog.view()) {
            return false;
        }
        self.leftovers.free_old_copies();
        let plan = self.planner.plan_promotion(inode.number, need, ahead, self.catalog.view());
        let Some(plan) = plan else {
            self.history.not_moved(inode.number, "the policy kept what is on the SSD instead");
            return false;
        };
        for (entry, resident) in plan.demote {
            // Without its room the file itself stays where it is.
            let _ = self.push_out(entry, &resident);
        }
        match self.migrator.migrate(inode, 0, Manner::Yielding, &mut |_| true) {
            Ok(_) => true,
            Err(why) => {
                tracing::debug!("served in place: {why}");
                false
            }
        }
    }

    /// Creates something on the SSD; if the SSD is full, makes room by moving files down.
    pub(super) fn with_room<T>(&self, mut make: impl FnMut() -> Result<T>) -> Result<T> {
        for _ in 0..3 {
            match make() {
                Err(error) if error.is_full() => {
                    // Removed files first, because nobody has to wait for a copy.
                    if let Err(error) = self.leftovers.finish() {
                        tracing::debug!(%error, "data of removed files stays for now");
                    }
                    self.free_up(self.residents.free() + ROOM_FOR_NAMES, u64::MAX);
                }
                other => return other,
            }
        }
        make()
    }
}
