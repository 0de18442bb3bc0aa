//! Clean copies: copies below of files on the SSD, identical byte for byte until the file is changed.
//!
//! A promotion keeps the lower tier's file as a clean copy, and a demotion of a file that has one cuts the name over to
//! it. What must hold (I10): a copy never becomes the file unless both are proven equal; if there is doubt, the copy is
//! removed and the bytes are copied. Copies make way: nothing lacks room because of them. See [`super::copy_records`]
//! for what is durable when.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use parking_lot::RwLock;

use super::archive_queue::ArchiveQueue;
use super::copy;
use super::copy_records::{CopyRecord, CopyRecords};
use super::foundation::Foundation;
use super::inode::{Inode, Place};
use super::inode_numbers::{keep_number, kept_number};
use super::leftover_intents::{LeftoverIntent, LeftoverIntents, Removal};
use super::leftovers;
use super::leftovers::Leftovers;
use super::options::TierOptions;
use super::residents::{Resident, Residents};
use super::staged_copy::{Source, StagedCopy};
use super::stamp::Stamp;
use super::statfs;
use super::tiers::{Entry, Tiers};
use super::wakeups::Wakeups;
use halocline_api::config::Copies;
use halocline_os::error::Result;
use halocline_vfs::Stat;
use halocline_vfs::namespace::{reopen, stat_descriptor};

/// When the end of a clean copy becomes durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Until {
    /// Now.
    Durable,
    /// With the next change on the SSD.
    Next,
}

/// Bytes that are compared at a time.
const COMPARED: usize = 256 << 10;

/// Keeps, ends and gives up clean copies.
#[derive(Debug)]
pub(super) struct CleanCopies {
    tiers: Arc<Tiers>,
    residents: Arc<Residents>,
    intents: Arc<LeftoverIntents>,
    copy_records: Arc<CopyRecords>,
    leftovers: Arc<Leftovers>,
    wakeups: Arc<Wakeups>,
    options: Arc<TierOptions>,
    archive_queue: Arc<ArchiveQueue>,
    names: Arc<RwLock<()>>,
}

impl CleanCopies {
    /// Built over the components that it uses.
    pub(super) fn new(base: &Foundation, archive_queue: &Arc<ArchiveQueue>) -> Self {
        Self {
            tiers: base.tiers.clone(),
            residents: base.residents.clone(),
            intents: base.intents.clone(),
            copy_records: base.copy_records.clone(),
            leftovers: base.leftovers.clone(),
            wakeups: base.wakeups.clone(),
            options: base.options.clone(),
            archive_queue: archive_queue.clone(),
            names: base.names.clone(),
        }
    }

    /// Called before the bytes of a file at `place` change: its copy stops being clean, durably, before any part of the
    /// change can be durable. The caller holds `place`.
    pub(super) fn will_change(&self, place: &Place) -> Result<()> {
        let Some(resident) = &place.resident else { return Ok(()) };
        if resident.clean.is_clean() {
            resident.clean.with(|slot| self.end(resident, slot, Until::Durable))?;
        }
        self.archive_queue.add(place.entry.key(), resident);
        Ok(())
    }

    /// Called when a file on the SSD loses a name or gets a second one: from now on it has no copy. That is durable no
    /// later than the caller's next change there.
    pub(super) fn give_up(&self, entry: Entry) -> Result<()> {
        let Some(resident) = self.residents.get(entry) else { return Ok(()) };
        if !resident.clean.has_copy() {
            return Ok(());
        }
        resident.clean.with(|slot| self.end(&resident, slot, Until::Next))
    }

    /// Marks a copy as no longer clean. If the file is to be archived again, the copy keeps its earlier bytes.
    fn end(&self, resident: &Resident, slot: &mut Option<CopyRecord>, until: Until) -> Result<()> {
        let Some(record) = slot else { return Ok(()) };
        let retired = self.retire(record).and_then(|intent| match until {
            Until::Durable => self.intents.sync_retired().map(|()| intent),
            Until::Next => Ok(intent),
        });
        match retired {
            Ok(_) if until == Until::Durable && self.options.copies == Copies::Archive => {
                (record.stale, record.unrecorded) = (true, None);
            }
            Ok(intent) => {
                self.copy_records.discount(record);
                self.remove_later(resident, intent, record.copy);
                *slot = None;
            }
            // A record that names nothing is not believed.
            Err(error) => self.remove_recorded(slot).map_err(|_| error)?,
        }
        Ok(())
    }

    /// Removes a copy that its record, or an intent, still names durably.
    pub(super) fn remove_recorded(&self, slot: &mut Option<CopyRecord>) -> Result<()> {
        let Some(record) = slot else { return Ok(()) };
        let named = record.as_intent(String::new());
        let tier_dir = &self.tiers.dirs()[record.tier];
        leftovers::remove_copy(&self.tiers, &named, &record.copy)?;
        tier_dir.sync_parent("syncing what is removed", &record.place)?;
        self.copy_records.discount(record);
        match &record.retired {
            Some(intent) => self.intents.clear(intent),
            None => drop(self.copy_records.forget(record)),
        }
        *slot = None;
        Ok(())
    }

    /// Leaves the removal of a copy to the background.
    fn remove_later(&self, resident: &Resident, intent: LeftoverIntent, copy: Stamp) {
        *resident.clean.ended.lock() = Some(Box::new((intent.clone(), copy)));
        self.intents.later(Removal::Copy(intent, copy));
        self.wakeups.wake_reaper();
    }

    /// Removes a file's copy now, to make room or because the copy is not believed. Returns the bytes on disk that this
    /// frees.
    pub(super) fn drop_copy(&self, resident: &Resident) -> u64 {
        if !resident.clean.has_copy() {
            return 0;
        }
        let taken = resident.clean.with(|slot| self.take_retired(slot));
        taken.map_or(0, |taken| self.drop_taken(resident, taken))
    }

    /// The same for the copy in a slot.
    pub(super) fn drop_slot(&self, resident: &Resident, slot: &mut Option<CopyRecord>) {
        if let Some(taken) = self.take_retired(slot) {
            self.drop_taken(resident, taken);
        }
    }

    fn take_retired(&self, slot: &mut Option<CopyRecord>) -> Option<(CopyRecord, LeftoverIntent)> {
        let intent = self.retire(slot.as_mut()?);
        let intent = intent.inspect_err(|error| tracing::warn!(%error, "a clean copy stays"));
        intent.ok().and_then(|intent| Some((slot.take()?, intent)))
    }

    fn drop_taken(
        &self,
        resident: &Resident,
        (record, intent): (CopyRecord, LeftoverIntent),
    ) -> u64 {
        self.copy_records.discount(&record);
        match leftovers::remove_copy(&self.tiers, &intent, &record.copy) {
            // If a power loss brings the record back, it names nothing.
            Ok(()) => self.intents.later(Removal::Done(intent)),
            Err(error) => {
                tracing::warn!(%error, "a clean copy is removed later");
                self.remove_later(resident, intent, record.copy);
                return 0;
            }
        }
        record.disk_bytes
    }

    /// Turns the record into an intent, not durably yet.
    pub(super) fn retire(&self, record: &mut CopyRecord) -> Result<LeftoverIntent> {
        if record.retired.is_none() {
            let id = format!("{}-clean", self.tiers.fresh_name());
            record.retired = Some(self.copy_records.retire(record, &self.intents, id)?);
        }
        Ok(record.retired.clone().expect("it is retired"))
    }

    /// Makes a change of a file's attributes or names that leaves its copy clean. The caller holds
    /// `place`; `fd` is the file.
    pub(super) fn restamping<T>(
        &self,
        place: &Place,
        fd: &impl AsFd,
        change: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let resident = place.resident.as_ref().filter(|resident| resident.clean.is_clean());
        let Some(resident) = resident else { return change() };
        resident.clean.with(|slot| {
            let before = stat_descriptor(fd);
            let done = change();
            if let (Ok(before), Ok(now)) = (before, stat_descriptor(fd)) {
                self.restamp(slot, &before, &now);
            }
            done
        })
    }

    /// Called when a file whose attributes were `before` has got another name.
    pub(super) fn restamp_renamed(&self, resident: &Resident, before: &Stat, now: &Stat) {
        let same = (before.raw.st_mtime, before.raw.st_mtime_nsec)
            == (now.raw.st_mtime, now.raw.st_mtime_nsec);
        if same && resident.clean.is_clean() {
            resident.clean.with(|slot| self.restamp(slot, before, now));
        }
    }

    /// Updates the record after the attributes of a file changed from `before` to `now`, but not its bytes.
    fn restamp(&self, slot: &mut Option<CopyRecord>, before: &Stat, now: &Stat) {
        let live = slot.as_ref().filter(|record| record.is_live() && record.file.is(before));
        let Some(record) = live else { return };
        let next = CopyRecord { file: Stamp::of(now), ..record.clone() };
        if next == *record || next.file.size != record.file.size {
            return;
        }
        if record.unrecorded.is_some() {
            *slot = Some(next);
            return;
        }
        match self.copy_records.restamp(record, &next) {
            Ok(()) => *slot = Some(next),
            // The record is no longer believed; the copy is removed when the file next moves.
            Err(error) => tracing::debug!(%error, "a clean copy is lost"),
        }
    }

    /// Whether the file that a promotion leaves behind is kept as a clean copy; if so, that copy is then durable.
    pub(super) fn keeps(&self, source: &Source, tier: usize) -> bool {
        if self.options.copies == Copies::None || tier > 0 || source.names != 1 {
            return false;
        }
        let synced =
            self.tiers.dirs()[source.from].steps.sync("syncing what is kept", &*source.file);
        if let Err(error) = &synced {
            tracing::warn!(%error, "no copy is kept");
        }
        synced.is_ok()
    }

    /// Records the file that a promotion left behind, which `old` names, as a clean copy. The caller holds `place`
    /// exclusively, and the cutover is durable.
    pub(super) fn keep_old(
        &self,
        place: &Place,
        source: &Source,
        (old, now): (Option<&LeftoverIntent>, &File),
    ) -> bool {
        let (Some(resident), Some(old)) = (&place.resident, old) else { return false };
        let stats = stat_descriptor(now).and_then(|now| Ok((now, stat_descriptor(&*source.file)?)));
        let Ok((file, copy)) = stats else { return false };
        let record = CopyRecord {
            file: Stamp::of(&file),
            copy: Stamp::of(&copy),
            era: self.copy_records.era(),
            tier: old.tier,
            place: old.place.clone(),
            disk_bytes: copy.disk_bytes(),
            retired: None,
            stale: false,
            unrecorded: None,
        };
        self.record_clean(resident, record, (now, &source.file))
    }

    /// Records a copy if file and copy still match the record, and the file still has its one name. The caller holds
    /// `place` exclusively.
    pub(super) fn record_clean(
        &self,
        resident: &Resident,
        record: CopyRecord,
        (file, copy): (&File, &File),
    ) -> bool {
        // Whoever changes names ends the copy that there is: a copy of a removed file, recorded meanwhile, would be adopted as
        // a file by the next mount.
        let _names = self.names.write();
        let (Ok(file), Ok(copy)) = (stat_descriptor(file), stat_descriptor(copy)) else {
            return false;
        };
        let is_as_recorded = record.file.is(&file) && record.copy.is(&copy);
        if !is_as_recorded || record.file.size != record.copy.size || file.raw.st_nlink != 1 {
            return false;
        }
        match self.copy_records.note(&record) {
            Ok(()) => {
                resident.clean.with(|slot| *slot = Some(record));
                true
            }
            Err(error) => {
                tracing::debug!(%error, "no copy is kept");
                false
            }
        }
    }

    /// A file's clean copy, ready to become the file; `None` if no copy is believed, in which case the file has none
    /// afterwards.
    pub(super) fn clean_copy(&self, inode: &Inode, source: &Source) -> Option<StagedCopy> {
        if source.from > 0 {
            return None;
        }
        let resident = self.residents.get(source.entry.key())?;
        let found = self.take_clean(&resident, source);
        self.drop_copy(&resident);
        let (file, record, intent) = found?;
        let copied = StagedCopy {
            tier: record.tier,
            temporary: self.tiers.fresh_name(),
            file,
            placed: Some((record.place, intent)),
            keep: false,
            _reserved: None,
        };
        match self.dress(inode, source, &copied) {
            Ok(()) => Some(copied),
            Err(error) => {
                tracing::debug!(%error, "a clean copy is not used");
                copied.undo(&self.tiers, &self.intents);
                None
            }
        }
    }

    /// Takes the record of a copy that is believed. From now on an intent names the copy durably, because it may
    /// change.
    fn take_clean(
        &self,
        resident: &Resident,
        source: &Source,
    ) -> Option<(File, CopyRecord, LeftoverIntent)> {
        source.name.as_ref()?;
        let record = resident.clean.with(|slot| slot.clone())?;
        let file = self.believed(&record, source)?;
        resident.clean.with(|slot| {
            // Somebody may have changed the file meanwhile.
            let record = slot.as_mut().filter(|now| **now == record)?;
            let intent = self.retire(record).ok()?;
            self.intents.sync_retired().ok()?;
            self.copy_records.discount(record);
            Some((file, slot.take()?, intent))
        })
    }

    /// The copy, opened, if it has the bytes of its file.
    fn believed(&self, record: &CopyRecord, source: &Source) -> Option<File> {
        if !record.is_live() || !record.file.is(&source.stat) {
            return None;
        }
        let fd = self.tiers.dirs()[record.tier].look(&record.place).ok()?;
        if !record.copy.is(&stat_descriptor(&fd).ok()?) {
            return None;
        }
        let copy = reopen(&fd, libc::O_RDWR).ok()?;
        if record.era != self.copy_records.era() {
            match is_equal(&source.file, &copy, record.file.size) {
                Ok(true) => {}
                Ok(false) => {
                    let path = self.tiers.tree().path_of(&source.entry);
                    tracing::warn!("{}: its copy was not what it was said to be", path.display());
                    return None;
                }
                Err(_) => return None,
            }
        }
        Some(copy)
    }

    /// Gives a clean copy the attributes of its file, durably.
    fn dress(&self, inode: &Inode, source: &Source, copied: &StagedCopy) -> Result<()> {
        let steps = &self.tiers.dirs()[copied.tier].steps;
        let changed = steps.step("giving a copy its attributes", || {
            let changed = copy::match_attributes(&source.file, &source.stat, &copied.file)?;
            let numbered = kept_number(&copied.file) == Some(inode.number);
            if !numbered {
                keep_number(&copied.file, inode.number)?;
            }
            copy::mode_and_times(&source.stat, &copied.file)?;
            Ok(changed || !numbered)
        })?;
        if changed { steps.sync("syncing a copy", &copied.file) } else { Ok(()) }
    }

    /// Gives up copies on a tier until `bytes` can be written there or no copies are left. Returns
    /// whether any were removed.
    pub(super) fn give_way(&self, tier: usize, bytes: u64) -> bool {
        let device = self.tiers.dirs()[tier].device;
        let on = |tier: usize| self.tiers.dirs()[tier].device == device;
        if !(1..self.tiers.dirs().len())
            .any(|tier| on(tier) && self.copy_records.bytes_on(tier) > 0)
        {
            return false;
        }
        // Files that became clean copies are held open by the old copies until these are freed.
        self.leftovers.free_old_copies();
        let has_room = || self.tiers.dirs()[tier].room().is_ok_and(|room| room >= bytes);
        let mut copies: BTreeMap<(u64, Entry), Arc<Resident>> = BTreeMap::new();
        for (entry, resident) in self.residents.all() {
            let found = resident.clean.with(|slot| {
                slot.as_ref().filter(|record| on(record.tier)).map(|record| record.disk_bytes)
            });
            if let Some(bytes) = found.filter(|bytes| *bytes > 0) {
                copies.insert((bytes, entry), resident);
            }
        }
        let mut freed = 0;
        // The largest first, so that few are removed.
        while let Some((_, resident)) = copies.pop_last() {
            if has_room() {
                break;
            }
            freed += self.drop_copy(&resident);
        }
        if freed > 0 {
            tracing::info!(bytes = freed, "clean copies gave way");
        }
        freed > 0
    }

    /// Whether `bytes` can be written on a tier; copies make way for that.
    pub(super) fn has_room_on(&self, tier: usize, bytes: u64) -> Result<bool> {
        let room = self.tiers.dirs()[tier].room()?;
        let copies = statfs::bytes_of_copies(
            &self.tiers,
            &self.copy_records,
            self.tiers.dirs()[tier].device,
        );
        if room >= bytes || room.saturating_add(copies) < bytes {
            return Ok(room >= bytes);
        }
        Ok(self.give_way(tier, bytes) && self.tiers.dirs()[tier].room()? >= bytes)
    }
}

/// Whether two files have the same first `size` bytes and no more bytes than that.
pub(super) fn is_equal(one: &File, other: &File, size: u64) -> Result<bool> {
    let mut buffers = [vec![0; COMPARED], vec![0; COMPARED]];
    let mut at = 0;
    loop {
        let [first, second] = &mut buffers;
        let len = usize::try_from(size - at).map_or(COMPARED, |left| left.min(COMPARED));
        if len == 0 {
            let ends = |file: &File| Ok::<_, std::io::Error>(file.metadata()?.len() == size);
            return Ok(ends(one)? && ends(other)?);
        }
        let (first, second) = (&mut first[..len], &mut second[..len]);
        let read = |file: &File, into: &mut [u8]| match file.read_exact_at(into, at) {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
            other => other.map(|()| true),
        };
        if !read(one, first)? || !read(other, second)? || first != second {
            return Ok(false);
        }
        at += len as u64;
    }
}
