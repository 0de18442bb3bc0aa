//! Archiving: new or changed files on the SSD get a clean copy below once writers leave them alone.
//!
//! The file stays where it is. What must hold: a copy is recorded only if the file did not change while it was made,
//! and only after both are durable ([`super::copy_records`]). The copy is at the path of the file's name, where it can
//! be found if the SSD is lost. A changed file keeps its earlier copy until the next one takes that place by one
//! rename.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::active_moves::ActiveMoves;
use super::archive_queue::ArchiveQueue;
use super::catalog::Catalog;
use super::clean_copies::CleanCopies;
use super::copy::Expected;
use super::copy_records::{CopyRecord, CopyRecords};
use super::cutover::differs;
use super::foundation::Foundation;
use super::inode::Inode;
use super::inodes::Inodes;
use super::is_private_path;
use super::leftover_intents::{LeftoverIntent, LeftoverIntents, Removal};
use super::leftovers::Leftovers;
use super::mirror;
use super::mmap;
use super::not_moved::{COPY_SLACK, NotMoved};
use super::options::TierOptions;
use super::parallel::{PARALLEL_MAX, in_parallel, parallel_count};
use super::permissions::Permissions;
use super::residents::{Resident, Residents};
use super::staged_copy::{Source, StagedCopy};
use super::staging::Staging;
use super::stamp::Stamp;
use super::tiers::{Entry, Tiers};
use halocline_api::file_tier::Counters;
use halocline_os::clock::Clock;
use halocline_os::error::Error;
use halocline_vfs::Stat;
use halocline_vfs::namespace::stat_descriptor;

/// A file that is not archived for a reason other than being written is examined again after this time.
const AGAIN: Duration = Duration::from_mins(1);
/// One part in this many of a tier's file system stays free of archived copies, so that those that were removed to make
/// room do not come back immediately.
const SPARE_PART: u64 = 50;

/// The result of an attempt.
enum Outcome {
    Done,
    /// There is nothing to archive.
    Needless,
    /// Not before this time has passed.
    Later(Duration),
    Failed(NotMoved),
}

/// Makes clean copies, and keeps them at the paths of their files.
#[derive(Debug)]
pub(super) struct Archiver {
    tiers: Arc<Tiers>,
    residents: Arc<Residents>,
    catalog: Arc<Catalog>,
    intents: Arc<LeftoverIntents>,
    copy_records: Arc<CopyRecords>,
    leftovers: Arc<Leftovers>,
    counters: Arc<Counters>,
    active_moves: Arc<ActiveMoves>,
    options: Arc<TierOptions>,
    clock: Clock,
    archive_queue: Arc<ArchiveQueue>,
    clean: Arc<CleanCopies>,
    permissions: Arc<Permissions>,
    inodes: Arc<Inodes>,
    staging: Arc<Staging>,
}

impl Archiver {
    /// Built over the components that it uses.
    pub(super) fn new(
        base: &Foundation,
        archive_queue: &Arc<ArchiveQueue>,
        clean: &Arc<CleanCopies>,
        permissions: &Arc<Permissions>,
        inodes: &Arc<Inodes>,
        staging: &Arc<Staging>,
    ) -> Self {
        Self {
            tiers: base.tiers.clone(),
            residents: base.residents.clone(),
            catalog: base.catalog.clone(),
            intents: base.intents.clone(),
            copy_records: base.copy_records.clone(),
            leftovers: base.leftovers.clone(),
            counters: base.counters.clone(),
            active_moves: base.active_moves.clone(),
            options: base.options.clone(),
            clock: base.clock.clone(),
            archive_queue: archive_queue.clone(),
            clean: clean.clone(),
            permissions: permissions.clone(),
            inodes: inodes.clone(),
            staging: staging.clone(),
        }
    }

    /// Archives what is due until `stops` returns `true`.
    pub(super) fn archive_due(&self, stops: &(dyn Fn() -> bool + Sync)) {
        self.straighten(stops);
        let due = self.archive_queue.due();
        let mut left = &due[..];
        while !left.is_empty() && !stops() {
            let sizes = left.iter().map(|(_, resident)| resident.bytes());
            let (some, later) = left.split_at(parallel_count(sizes, u64::MAX, PARALLEL_MAX));
            let outcomes = in_parallel(some, self.tiers.one_by_one(), |(entry, resident)| {
                let outcome = self.archive_one(*entry, resident, &mut |_| !stops());
                outcome.unwrap_or_else(Outcome::Failed)
            });
            for ((entry, resident), outcome) in some.iter().zip(outcomes) {
                self.note_outcome((*entry, resident), outcome);
            }
            left = later;
        }
    }

    fn note_outcome(&self, (entry, resident): (Entry, &Resident), outcome: Outcome) {
        let after = match outcome {
            Outcome::Done => return,
            Outcome::Needless => return self.archive_queue.needless(entry, resident),
            Outcome::Later(after) => after,
            Outcome::Failed(why) => {
                let path = self.catalog.view().path_of(resident);
                let trouble = format!("{}: {why}", path.display());
                tracing::debug!("not archived: {trouble}");
                self.archive_queue.failed(trouble);
                AGAIN.max(self.options.archive_after)
            }
        };
        self.archive_queue.put_off(entry, after);
    }

    fn archive_one(
        &self,
        entry: Entry,
        resident: &Arc<Resident>,
        on_progress: super::copy::OnProgress<'_>,
    ) -> Result<Outcome, NotMoved> {
        ArchiveQueue::begin(resident);
        let Some(inode) = self.inodes.inode_of(entry, resident) else {
            return Ok(Outcome::Needless);
        };
        let _moving = inode.moving.lock();
        let source = match self.archivable(&inode, resident) {
            Ok(source) => source,
            Err(outcome) => return outcome,
        };
        let own = self.tiers.tree().path_of(&source.entry);
        let tier = self.tier_for(&source, &own)?;
        if let Some(stale) = resident.clean.with(|slot| slot.clone())
            && (stale.tier, &stale.place) != (tier, &own)
        {
            self.clean.drop_copy(resident);
        }
        let bytes = source.stat.raw.st_size.unsigned_abs().min(source.stat.disk_bytes());
        let active_move = self.active_moves.begin(source.entry.clone(), (0, tier), bytes);
        let on_progress: super::copy::OnProgress<'_> = &mut |more| {
            active_move.copied(more);
            // A program that writes may need the file to be moved.
            on_progress(more) && inode.changes.load(Ordering::Acquire) == source.changes
        };
        let copied = self.staging.copy(&inode, &source, (tier, Expected::NotSoon), on_progress);
        let mut copied = match copied {
            Err(NotMoved::Failed(error)) if error.errno() == libc::ECANCELED => {
                return Ok(Outcome::Later(self.options.archive_after));
            }
            other => other?,
        };
        let recorded = is_as_it_was(&inode, &source)
            .and_then(|()| self.place_archived(resident, &mut copied, own))
            .and_then(|()| self.record_archived(&inode, resident, &source, &copied));
        match recorded {
            Ok(()) => {
                if let Some((_, intent)) = &copied.placed {
                    self.intents.clear(intent);
                }
                Ok(Outcome::Done)
            }
            Err(why) => {
                copied.undo(&self.tiers, &self.intents);
                match why {
                    NotMoved::Changed => Ok(Outcome::Later(self.options.archive_after)),
                    other => Err(other),
                }
            }
        }
    }

    /// The file, durable, if it can be archived now.
    fn archivable(
        &self,
        inode: &Arc<Inode>,
        resident: &Resident,
    ) -> Result<Source, Result<Outcome, NotMoved>> {
        if resident.clean.is_clean() {
            return Err(Ok(Outcome::Needless));
        }
        if inode.wrote_past.load(Ordering::Acquire) {
            // Writes by the kernel or through a mapping are not visible to us.
            let place = inode.place.write();
            let source = self.staging.source_in_place(inode, &place).map_err(Err)?;
            if inode.passed.load(Ordering::Acquire) > 0 || mmap::is_mapped(inode, &source.file) {
                return Err(Ok(Outcome::Later(self.options.archive_after)));
            }
        }
        let mut source = {
            let place = inode.place.read();
            if place.resident.is_none() || place.entry.known_as().is_none() {
                return Err(Ok(Outcome::Needless));
            }
            self.staging.source_in_place(inode, &place)
        }
        .map_err(|why| match why {
            NotMoved::HardLinked { .. } | NotMoved::NotAFile | NotMoved::Gone => {
                Ok(Outcome::Needless)
            }
            other => Err(other),
        })?;
        if source.names != 1 {
            return Err(Ok(Outcome::Needless));
        }
        if let Some(left) = self.still_fresh(&source.stat) {
            return Err(Ok(Outcome::Later(left)));
        }
        let synced = self.tiers.ssd().steps.sync("syncing what is archived", &*source.file);
        synced.map_err(|error| Err(error.into()))?;
        source.stat = stat_descriptor(&*source.file).map_err(|error| Err(error.into()))?;
        Ok(source)
    }

    /// How much longer the file must be left alone.
    fn still_fresh(&self, stat: &Stat) -> Option<Duration> {
        let now = Duration::from_nanos(self.clock.now_ns().unsigned_abs());
        let changed = Duration::from_secs(stat.raw.st_ctime.unsigned_abs());
        // After the clock was set back, the age is unknown.
        let age = now.checked_sub(changed)?;
        self.options.archive_after.checked_sub(age).filter(|left| !left.is_zero())
    }

    /// The first lower tier that has ample room.
    fn tier_for(&self, source: &Source, own: &Path) -> Result<usize, NotMoved> {
        let need = source.stat.disk_bytes() + COPY_SLACK;
        for tier in 1..self.tiers.dirs().len() {
            if is_private_path(own) || !self.tiers.can_be_named(tier, own) {
                continue;
            }
            let totals = self.tiers.dirs()[tier].totals()?;
            let spare = totals.f_blocks.saturating_mul(totals.f_frsize) / SPARE_PART;
            if self.tiers.dirs()[tier].room()? >= need.saturating_add(spare) {
                return Ok(tier);
            }
        }
        Err(NotMoved::NoRoom)
    }

    /// Gives a copy the path of its file's name below, durably; a copy from before a change makes way.
    fn place_archived(
        &self,
        resident: &Resident,
        copied: &mut StagedCopy,
        own: PathBuf,
    ) -> Result<(), NotMoved> {
        let tier_dir = &self.tiers.dirs()[copied.tier];
        tier_dir.make_parents(&own, &mut |dir, made| mirror::directory(&self.tiers, dir, made))?;
        let stale = resident.clean.with(Option::take);
        let intent = if let Some(stale) = stale {
            self.copy_records.discount(&stale);
            self.replace_stale(copied, &stale)?
        } else {
            let name = format!("{}-{}", copied.temporary, copied.tier);
            let intent = self.intents.note_durably(name, copied.tier, &own)?;
            if let Err(error) = tier_dir.settle(&copied.temporary, &own) {
                self.intents.clear(&intent);
                return Err(error.into());
            }
            intent
        };
        copied.placed = Some((own, intent));
        let (own, _) = copied.placed.as_ref().expect("it is placed");
        Ok(tier_dir.sync_parent("syncing a place", own)?)
    }

    /// Puts a copy in the place of an older one, which an intent names durably.
    fn replace_stale(
        &self,
        copied: &StagedCopy,
        stale: &CopyRecord,
    ) -> Result<LeftoverIntent, NotMoved> {
        let tier_dir = &self.tiers.dirs()[copied.tier];
        let intent = stale.retired.clone().ok_or(NotMoved::Changed)?;
        let is_ours = match tier_dir.look(&stale.place) {
            Ok(fd) => stale.copy.is(&stat_descriptor(&fd)?),
            Err(_) => false,
        };
        let replaced = if is_ours {
            tier_dir.replace(&copied.temporary, &stale.place)
        } else {
            tier_dir.settle(&copied.temporary, &stale.place)
        };
        match replaced {
            Ok(()) => Ok(intent),
            Err(error) => {
                self.intents.later(Removal::Copy(intent, stale.copy));
                Err(error.into())
            }
        }
    }

    /// Records an archived copy if its file is still what was copied.
    fn record_archived(
        &self,
        inode: &Inode,
        resident: &Resident,
        source: &Source,
        copied: &StagedCopy,
    ) -> Result<(), NotMoved> {
        let Some((own, _)) = &copied.placed else { return Err(NotMoved::Gone) };
        let place = inode.place.write();
        is_as_it_was(inode, source)?;
        if place.entry.key() != source.entry.key() {
            return Err(NotMoved::Changed);
        }
        let (file, copy) = (stat_descriptor(&*source.file)?, stat_descriptor(&copied.file)?);
        let record = CopyRecord {
            file: Stamp::of(&file),
            copy: Stamp::of(&copy),
            era: self.copy_records.era(),
            tier: copied.tier,
            place: own.clone(),
            disk_bytes: copy.disk_bytes(),
            retired: None,
            stale: false,
            unrecorded: None,
        };
        if !self.clean.record_clean(resident, record, (&source.file, &copied.file)) {
            return Err(NotMoved::Changed);
        }
        self.archive_queue.done(place.entry.key(), resident);
        self.counters.archived(file.disk_bytes());
        Ok(())
    }
}

impl Archiver {
    /// Moves the copies of renamed files to the paths of their names.
    fn straighten(&self, stops: &(dyn Fn() -> bool + Sync)) {
        for entry in self.archive_queue.take_strayed() {
            if stops() {
                return;
            }
            if let Err(error) = self.straighten_one(entry) {
                tracing::debug!(%error, "a clean copy keeps its old place");
            }
        }
    }

    pub(super) fn straighten_one(&self, entry: Entry) -> Result<(), Error> {
        let Some(resident) = self.residents.get(entry) else { return Ok(()) };
        let Some(inode) = self.inodes.inode_of(entry, &resident) else { return Ok(()) };
        let _moving = inode.moving.lock();
        self.permissions.record_one_again(&resident);
        resident.clean.with(|slot| self.straighten_slot(&resident, slot))?;
        self.permissions.open_astray(&inode, &resident)
    }

    /// The same for the copy in a slot, whose permissions nobody changes meanwhile.
    fn straighten_slot(
        &self,
        resident: &Resident,
        slot: &mut Option<CopyRecord>,
    ) -> Result<(), Error> {
        let Some(record) = slot.clone().filter(|record| record.retired.is_none()) else {
            return Ok(());
        };
        let own = self.catalog.view().path_of(resident);
        if own == record.place || is_private_path(&own) {
            return Ok(());
        }
        let tier_dir = &self.tiers.dirs()[record.tier];
        if !self.tiers.can_be_named(record.tier, &own)
            || !record.copy.is(&stat_descriptor(tier_dir.look(&record.place)?)?)
        {
            return Ok(());
        }
        tier_dir.make_parents(&own, &mut |dir, made| mirror::directory(&self.tiers, dir, made))?;
        let id = format!("{}-straight", self.tiers.fresh_name());
        let intent = self.intents.note_durably(id, record.tier, &own)?;
        if let Err(error) = tier_dir.shift(&record.place, &own) {
            self.intents.clear(&intent);
            return Err(error);
        }
        let moved = || -> Result<CopyRecord, Error> {
            tier_dir.sync_parent("syncing a place", &own)?;
            tier_dir.sync_parent("syncing what is removed", &record.place)?;
            let copy = Stamp::of(&stat_descriptor(tier_dir.look(&own)?)?);
            let next = CopyRecord { copy, place: own.clone(), ..record.clone() };
            self.copy_records.note(&next)?;
            Ok(next)
        };
        match moved() {
            Ok(next) => {
                // The place that the old record names is empty now.
                let _ = self.copy_records.forget(&record);
                self.copy_records.discount(&record);
                *slot = Some(next);
                self.intents.clear(&intent);
                if let Some(dir) = record.place.parent() {
                    self.tiers.drop_empty_directories(record.tier, dir);
                }
            }
            // The copy is removed, whichever place it has after a power loss.
            Err(error) => {
                tracing::debug!(%error, "a clean copy is lost");
                let _ = tier_dir.remove(&own);
                self.intents.later(Removal::Nameless(intent));
            }
        }
        Ok(())
    }

    /// Removes the remaining copies of files that are durably gone.
    pub(super) fn remove_given_up(&self) {
        if self.intents.has_copies()
            && let Err(error) = self.leftovers.finish()
        {
            tracing::warn!(%error, "copies of removed files stay for now");
        }
    }
}

/// Whether a file cannot have changed since it was examined.
fn is_as_it_was(inode: &Inode, source: &Source) -> Result<(), NotMoved> {
    let changed = inode.changes.load(Ordering::Acquire) != source.changes
        || inode.wrote_past.load(Ordering::Acquire)
        || differs(&source.stat, &stat_descriptor(&*source.file)?);
    if changed { Err(NotMoved::Changed) } else { Ok(()) }
}
