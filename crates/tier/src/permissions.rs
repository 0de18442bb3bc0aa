//! Permissions of clean copies: they are those of their files.
//!
//! What must hold: before a call that changes the permissions of a file returns, nobody who may not use the file may
//! use its copy. So a copy is closed to everybody before its file changes, and made like the file afterwards. A copy
//! that cannot be closed is removed; if that fails, too, the file stays as it is, and the program gets an error.
//!
//! A copy whose permissions change has a different stamp than its record says ([`super::copy_records`]). So the record
//! becomes an intent, durably, before the first of these changes. The intent becomes a record with the new stamps once
//! the permissions are durable on the copy's tier; that waits for the background, for an fsync of the file or for the
//! end of the mount. After a kill or a power loss in between, the next mount removes the copy, like everything that
//! intents name.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;

use super::archive_queue::ArchiveQueue;
use super::catalog::Catalog;
use super::clean_copies::CleanCopies;
use super::copy_records::{CopyRecord, CopyRecords};
use super::foundation::Foundation;
use super::inode::{Inode, Place};
use super::leftover_intents::LeftoverIntents;
use super::mirror::{ACL, make_like};
use super::residents::{Resident, Residents};
use super::stamp::{Stamp, is_closed};
use super::tiers::{Entry, Tiers};
use halocline_os::error::{Error, Result};
use halocline_vfs::namespace::statx::set_attr_on;
use halocline_vfs::namespace::{reopen, stat_descriptor, xattr};
use halocline_vfs::{SetAttr, Stat};

/// Copies that are open at the same time while their permissions are made durable.
const TOGETHER: usize = 256;
/// If there are more copies than this, they are made durable together with everything else that their file system has
/// to write.
const ALONE_MAX: usize = 16;

/// Files whose copies are to be recorded again.
#[derive(Debug, Default)]
struct Unrecorded(Mutex<HashSet<Entry>>);

impl Unrecorded {
    fn take(&self, count: usize) -> Vec<Entry> {
        let mut all = self.0.lock();
        let some: Vec<_> = all.iter().take(count).copied().collect();
        for entry in &some {
            all.remove(entry);
        }
        some
    }
}

/// Whether an extended attribute determines what may be done with a file, and by whom.
pub(super) fn guards(name: &OsStr) -> bool {
    let is_of = |class: &[u8]| name.as_bytes().starts_with(class);
    name == ACL || is_of(b"security.") || is_of(b"trusted.")
}

/// Changes permissions of files and of their copies.
#[derive(Debug)]
pub(super) struct Permissions {
    tiers: Arc<Tiers>,
    residents: Arc<Residents>,
    catalog: Arc<Catalog>,
    intents: Arc<LeftoverIntents>,
    copy_records: Arc<CopyRecords>,
    archive_queue: Arc<ArchiveQueue>,
    clean: Arc<CleanCopies>,
    unrecorded: Unrecorded,
}

impl Permissions {
    /// Built over the components that it uses.
    pub(super) fn new(
        base: &Foundation,
        archive_queue: &Arc<ArchiveQueue>,
        clean: &Arc<CleanCopies>,
    ) -> Self {
        Self {
            tiers: base.tiers.clone(),
            residents: base.residents.clone(),
            catalog: base.catalog.clone(),
            intents: base.intents.clone(),
            copy_records: base.copy_records.clone(),
            archive_queue: archive_queue.clone(),
            clean: clean.clone(),
            unrecorded: Unrecorded::default(),
        }
    }

    /// Makes a change of the permissions of the file at `place`, open as `fd`, or of its extended
    /// attribute of this name, which [`guards`] it. The caller holds `place`.
    ///
    /// # Errors
    /// The change's own error; or the lower tier's if a copy can be neither closed nor removed, in which case nothing
    /// was changed.
    pub(super) fn changing_permissions<T>(
        &self,
        place: &Place,
        (fd, attribute): (&impl AsFd, Option<&OsStr>),
        change: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let Some(resident) = &place.resident else { return change() };
        self.remove_ended(resident)?;
        // A copy is only recorded while nobody else holds `place`.
        if !resident.clean.has_copy() {
            return change();
        }
        let done = resident.clean.with(|slot| {
            let copy = self.close_copy(slot)?;
            let before = stat_descriptor(fd);
            let done = change();
            if let (Some(copy), Some(record)) = (&copy, slot.as_mut())
                && let Err(error) = self.open_copy(record, (fd, attribute, before), copy)
            {
                tracing::debug!(%error, "a copy that cannot be made like its file goes");
                self.clean.drop_slot(resident, slot);
            }
            Ok::<_, Error>(done)
        })?;
        if resident.clean.is_unrecorded() {
            self.unrecorded.0.lock().insert(place.entry.key());
        }
        done
    }

    /// Called when a file is in another directory: until its copy is there, too, nobody may use the copy, because the
    /// directory in which it is may admit others.
    pub(super) fn close_astray(&self, entry: Entry, resident: &Resident) {
        let closed = self.remove_ended(resident).and_then(|()| {
            let has_copy = resident.clean.has_copy();
            let close = || resident.clean.with(|slot| self.close_copy(slot).map(drop));
            if has_copy { close() } else { Ok(()) }
        });
        if let Err(error) = closed {
            tracing::warn!(%error, "the copy of a renamed file stays as open as it was");
        }
        // It may have been moved there and opened before it was closed here.
        self.archive_queue.strayed(entry);
        if resident.clean.is_unrecorded() {
            self.unrecorded.0.lock().insert(entry);
        }
    }

    /// Reopens the copy of a file once it is at the path of its file.
    pub(super) fn open_astray(&self, inode: &Inode, resident: &Resident) -> Result<()> {
        let place = inode.place.read();
        let own = self.catalog.view().path_of(resident);
        let record = resident.clean.with(|slot| slot.clone());
        let Some(record) = record.filter(|record| !record.stale && record.place == own) else {
            return Ok(());
        };
        let file = inode.physical(&self.tiers, &place)?;
        let copy = self.tiers.dirs()[record.tier].look(&record.place)?;
        if is_closed(&stat_descriptor(&copy)?) && !is_closed(&stat_descriptor(&*file)?) {
            self.changing_permissions(&place, (&*file, None), || Ok(()))?;
        }
        Ok(())
    }

    /// Removes a copy that is no longer valid, if the background has not removed it yet.
    fn remove_ended(&self, resident: &Resident) -> Result<()> {
        let mut ended = resident.clean.ended.lock();
        let Some((intent, stamp)) = ended.as_deref() else { return Ok(()) };
        let tier_dir = &self.tiers.dirs()[intent.tier];
        match tier_dir.look(&intent.place) {
            Ok(fd) if stamp.is(&stat_descriptor(&fd)?) => {
                // A copy that is closed is removed later.
                tier_dir
                    .remove(&intent.place)
                    .or_else(|_| self.shut(intent.tier, &fd).map(drop))?;
            }
            Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
            Err(errno) => return Err(errno.into()),
        }
        *ended = None;
        Ok(())
    }

    /// Closes a copy to everybody; `None` if there is no copy afterwards.
    fn close_copy(&self, slot: &mut Option<CopyRecord>) -> Result<Option<OwnedFd>> {
        let Some(record) = slot else { return Ok(None) };
        match self.try_close(record) {
            Ok(copy) => Ok(Some(copy)),
            Err(error) => {
                tracing::debug!(%error, "a copy that cannot be closed goes");
                let path = self.tiers.dirs()[record.tier].path.join(&record.place);
                self.clean.remove_recorded(slot).map_err(|error| {
                    let source = std::io::Error::from_raw_os_error(error.errno());
                    Error::at(path, "close or remove the file's copy")(source)
                })?;
                Ok(None)
            }
        }
    }

    fn try_close(&self, record: &mut CopyRecord) -> Result<OwnedFd> {
        if !(record.stale || record.unrecorded.is_some()) {
            self.clean.retire(record)?;
            self.intents.sync_retired()?;
        }
        if !record.stale {
            record.unrecorded =
                Some(record.unrecorded.map_or(0, |changes| changes.wrapping_add(1)));
        }
        let tier_dir = &self.tiers.dirs()[record.tier];
        let copy = tier_dir.look(&record.place)?;
        if !record.copy.is(&stat_descriptor(&copy)?) {
            // It belongs to somebody else now.
            return Err(Errno::STALE.into());
        }
        record.copy = Stamp::of(&self.shut(record.tier, &copy)?);
        Ok(copy)
    }

    /// Removes all permissions from a copy; returns its attributes afterwards.
    fn shut(&self, tier: usize, copy: &OwnedFd) -> Result<Stat> {
        let none = SetAttr { mode: Some(0), ..SetAttr::default() };
        self.tiers.dirs()[tier].steps.step("closing a copy", || set_attr_on(copy, &none))
    }

    /// Gives a closed copy the permissions of its file, whose attributes were `before` while both were equal.
    fn open_copy(
        &self,
        record: &mut CopyRecord,
        (fd, attribute, before): (&impl AsFd, Option<&OsStr>, Result<Stat>),
        copy: &OwnedFd,
    ) -> Result<()> {
        let given =
            self.tiers.dirs()[record.tier].steps.step("giving a copy its permissions", || {
                if let Some(name) = attribute.filter(|name| *name != ACL) {
                    give_attribute(fd, copy, name)?;
                }
                make_like(fd, copy)
            });
        record.copy = Stamp::of(&stat_descriptor(copy)?);
        given?;
        let (before, now) = (before?, Stamp::of(&stat_descriptor(fd)?));
        if !record.stale && record.file.is(&before) && now.size == record.file.size {
            record.file = now;
        }
        Ok(())
    }

    /// Records the copies whose permissions changed, once these are durable, until `stops` returns `true`.
    pub(super) fn record_again(&self, stops: &dyn Fn() -> bool) {
        loop {
            let mut some = Vec::new();
            for entry in self.unrecorded.take(TOGETHER) {
                let Some(resident) = self.residents.get(entry) else { continue };
                let record = resident
                    .clean
                    .with(|slot| slot.clone())
                    .filter(|record| record.unrecorded.is_some());
                some.extend(record.map(|record| (resident, record)));
            }
            if some.is_empty() {
                return;
            }
            let synced = self.sync_copies(&some);
            for (resident, record) in &some {
                let durable = synced.contains(&record.tier) || self.sync_copy(record);
                self.record_synced(resident, record, durable);
            }
            if stops() {
                return;
            }
        }
    }

    /// The same for one copy, before anything of its file is reported durable.
    pub(super) fn record_one_again(&self, resident: &Resident) {
        if !resident.clean.is_unrecorded() {
            return;
        }
        let record =
            resident.clean.with(|slot| slot.clone()).filter(|record| record.unrecorded.is_some());
        if let Some(record) = record {
            let durable = self.sync_copy(&record);
            self.record_synced(resident, &record, durable);
        }
    }

    /// Syncs entire tiers that have many of the copies; returns which.
    fn sync_copies(&self, copies: &[(Arc<Resident>, CopyRecord)]) -> BTreeSet<usize> {
        let on = |tier: usize| copies.iter().filter(|(_, record)| record.tier == tier).count();
        let whole = |tier: &usize| {
            let tier_dir = &self.tiers.dirs()[*tier];
            on(*tier) > ALONE_MAX && tier_dir.syncs_whole() && tier_dir.sync_all().is_ok()
        };
        (1..self.tiers.dirs().len()).filter(whole).collect()
    }

    /// Makes a copy's permissions durable; returns whether that succeeded.
    fn sync_copy(&self, record: &CopyRecord) -> bool {
        let tier_dir = &self.tiers.dirs()[record.tier];
        let synced = tier_dir.look(&record.place).map_err(Error::from).and_then(|fd| {
            // The daemon of an ordinary user may be unable to open it.
            match reopen(&fd, libc::O_RDONLY | libc::O_NONBLOCK) {
                Ok(copy) => tier_dir.steps.sync("syncing a copy's permissions", &copy),
                Err(_) => tier_dir.sync_all(),
            }
        });
        synced.inspect_err(|error| tracing::debug!(%error, "a copy's permissions")).is_ok()
    }

    /// Records a copy again if it is unchanged since it was synced. One that may not be durable is
    /// given up: a later sync that succeeds says nothing about writes that failed before.
    fn record_synced(&self, resident: &Resident, was: &CopyRecord, durable: bool) {
        resident.clean.with(|slot| {
            let is_same = |now: &&mut CopyRecord| {
                now.unrecorded.is_some()
                    && (now.unrecorded, &now.retired) == (was.unrecorded, &was.retired)
            };
            let Some(now) = slot.as_mut().filter(is_same) else { return };
            let next = CopyRecord { retired: None, unrecorded: None, ..now.clone() };
            let intent = now.retired.as_ref().filter(|_| durable);
            let recorded =
                intent.map(|intent| self.copy_records.revive(intent, &self.intents, &next));
            match recorded {
                Some(Ok(())) => *now = next,
                other => {
                    tracing::debug!(?other, "a clean copy is lost");
                    self.clean.drop_slot(resident, slot);
                }
            }
        });
    }
}

/// Gives a copy an extended attribute of its file, or removes one that its file does not have.
fn give_attribute(from: &impl AsFd, to: &impl AsFd, name: &OsStr) -> Result<()> {
    match xattr::get_on(from, name) {
        Ok(value) => xattr::set_on(to, name, &value, 0),
        Err(error) if error.errno() == libc::ENODATA => match xattr::remove_on(to, name) {
            Err(error) if error.errno() != libc::ENODATA => Err(error),
            _ => Ok(()),
        },
        Err(error) if error.errno() == libc::EOPNOTSUPP => Ok(()),
        Err(error) => Err(error),
    }
}
