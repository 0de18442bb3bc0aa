//! Moving a file between tiers.
//!
//! The steps are copy, fsync, place, and then the [`cutover`](super::cutover): see `docs/decisions/0001-file-tier.md`.
//! What must hold (I10): a copy is durable, and is durably at its place, before it can become the file; one that does
//! not become it is taken back.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::RwLockWriteGuard;

use super::active_moves::ActiveMoves;
use super::clean_copies::CleanCopies;
use super::copy::{Expected, OnProgress};
use super::cutover::Cutover;
use super::foundation::Foundation;
use super::inode::{Inode, Place};
use super::leftover_intents::LeftoverIntents;
use super::leftovers::{Leftovers, OldCopy};
use super::mmap;
use super::not_moved::{NotMoved, ROOM_FOR_NAMES};
use super::place_repair::PlaceRepair;
use super::staged_copy::{Source, StagedCopy};
use super::staging::Staging;
use super::tiers::Tiers;
use halocline_api::file_tier::{Counters, History};

/// How a migration treats programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
    /// It gives up if the file changes.
    Yielding,
    /// Programs that use the file wait: it must move, or they fail.
    Forcing,
}

/// The result of a move.
struct Moved {
    /// Bytes copied: 0 if the name was cut over to a clean copy.
    bytes: u64,
    /// Whether the file may not be at the place of its name.
    strayed: bool,
}

/// Moves files between tiers.
#[derive(Debug)]
pub(super) struct Migrator {
    tiers: Arc<Tiers>,
    intents: Arc<LeftoverIntents>,
    leftovers: Arc<Leftovers>,
    counters: Arc<Counters>,
    active_moves: Arc<ActiveMoves>,
    history: Arc<History>,
    clean: Arc<CleanCopies>,
    repair: Arc<PlaceRepair>,
    staging: Arc<Staging>,
    cutover: Arc<Cutover>,
}

impl Migrator {
    /// Built over the components that it uses.
    pub(super) fn new(
        base: &Foundation,
        clean: &Arc<CleanCopies>,
        repair: &Arc<PlaceRepair>,
        staging: &Arc<Staging>,
        cutover: &Arc<Cutover>,
    ) -> Self {
        Self {
            tiers: base.tiers.clone(),
            intents: base.intents.clone(),
            leftovers: base.leftovers.clone(),
            counters: base.counters.clone(),
            active_moves: base.active_moves.clone(),
            history: base.history.clone(),
            clean: clean.clone(),
            repair: repair.clone(),
            staging: staging.clone(),
            cutover: cutover.clone(),
        }
    }

    /// Moves a file to `tier`, or down to the tier that has a clean copy of it, reporting copied bytes to
    /// `on_progress`. Returns how many there were.
    pub(super) fn migrate(
        &self,
        inode: &Arc<Inode>,
        tier: usize,
        manner: Manner,
        on_progress: OnProgress<'_>,
    ) -> Result<u64, NotMoved> {
        let moved = self.try_migrate(inode, tier, manner, on_progress);
        match &moved {
            Ok(moved) => {
                self.history.moved(inode.number);
                if moved.strayed {
                    self.repair.repair(inode);
                }
            }
            Err(NotMoved::There | NotMoved::Gone) => {}
            Err(why) => self.history.not_moved(inode.number, &why.to_string()),
        }
        moved.map(|moved| moved.bytes)
    }

    fn try_migrate(
        &self,
        inode: &Arc<Inode>,
        tier: usize,
        manner: Manner,
        on_progress: OnProgress<'_>,
    ) -> Result<Moved, NotMoved> {
        let _moving = inode.moving.lock();
        let early = (manner == Manner::Forcing).then(|| inode.place.write());
        let source = match &early {
            Some(place) => self.staging.source(inode, place)?,
            None => self.staging.source(inode, &inode.place.read())?,
        };
        if source.from == tier {
            return Err(NotMoved::There);
        }
        if inode.was_passed.load(Ordering::Acquire) {
            let _place = early.is_none().then(|| inode.place.write());
            if inode.passed.load(Ordering::Acquire) > 0 {
                return Err(NotMoved::PassedThrough);
            }
            if mmap::is_mapped(inode, &source.file) {
                return Err(NotMoved::Mapped);
            }
        }
        // A program that waits continues with its file, wherever the file is then.
        let expected = match (tier, manner) {
            (0, _) | (_, Manner::Forcing) => Expected::Soon,
            (_, Manner::Yielding) => Expected::NotSoon,
        };
        let bytes = source.stat.raw.st_size.unsigned_abs().min(source.stat.disk_bytes());
        if let Some(copied) = self.clean.clean_copy(inode, &source) {
            self.finish_move(inode, source, &copied, early)?;
            self.counters.cut_over(bytes);
            return Ok(Moved { bytes: 0, strayed: true });
        }
        let active_move = self.active_moves.begin(source.entry.clone(), (source.from, tier), bytes);
        let on_progress: OnProgress<'_> = &mut |more| {
            active_move.copied(more);
            on_progress(more)
        };
        let mut copied = self.staging.copy(inode, &source, (tier, expected), on_progress)?;
        copied.keep = self.clean.keeps(&source, tier);
        if let Err(why) = self.staging.settle(&source, &mut copied) {
            copied.undo(&self.tiers, &self.intents);
            return Err(why);
        }
        self.finish_move(inode, source, &copied, early)?;
        self.counters.moved(tier == 0, bytes);
        Ok(Moved { bytes, strayed: false })
    }

    /// Cuts over to a copy that has its place, or takes it back.
    fn finish_move<'i>(
        &self,
        inode: &'i Arc<Inode>,
        source: Source,
        copied: &StagedCopy,
        early: Option<RwLockWriteGuard<'i, Place>>,
    ) -> Result<(), NotMoved> {
        match self.cutover.cut_over(inode, &source, copied, early) {
            Ok(resident) => {
                self.leftovers.free_later(OldCopy { file: source.file, resident });
                Ok(())
            }
            // To the next mount, the copy is the file.
            Err(why) if inode.is_torn() => Err(why),
            Err(why) => {
                copied.undo(&self.tiers, &self.intents);
                Err(why)
            }
        }
    }

    /// Moves a file for which the SSD has no room to the first lower tier that has room. Its blocks on the SSD are then
    /// free.
    pub(super) fn demote(
        &self,
        inode: &Arc<Inode>,
        manner: Manner,
        on_progress: OnProgress<'_>,
    ) -> Result<u64, NotMoved> {
        let demoted = self.move_down(inode, manner, on_progress)?;
        self.leftovers.free_old_copies();
        Ok(demoted)
    }

    /// The same, but the blocks on the SSD are freed later.
    pub(super) fn move_down(
        &self,
        inode: &Arc<Inode>,
        manner: Manner,
        on_progress: OnProgress<'_>,
    ) -> Result<u64, NotMoved> {
        let mut last = NotMoved::NoRoom;
        for tier in 1..self.tiers.dirs().len() {
            match self.migrate(inode, tier, manner, on_progress) {
                // It needs more than expected, because metadata needs room, too.
                Err(NotMoved::NoRoom) if self.clean.give_way(tier, ROOM_FOR_NAMES) => {
                    match self.migrate(inode, tier, manner, on_progress) {
                        Err(NotMoved::NoRoom) => last = NotMoved::NoRoom,
                        other => return other,
                    }
                }
                Err(NotMoved::NoRoom) => last = NotMoved::NoRoom,
                Err(NotMoved::Failed(error)) => last = NotMoved::Failed(error),
                other => return other,
            }
        }
        Err(last)
    }
}
