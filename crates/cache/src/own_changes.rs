//! Distinguishes our own changes of the origin's files from those of others (I9).
//!
//! What must hold:
//! - before our first change of a file known to the cache, its record says that we are changing it
//!   ([`Stamp::Writing`]), and the lease covers the time of every change;
//! - before our first change since the file was last examined, the file is unchanged since then, or it is marked as
//!   changed by others and its dirty bytes are not flushed until that is resolved (`external_changes`);
//! - when we have not changed a file for a while, it is examined and its stamp recorded.
//!
//! Thus many changes in a row cost one examination and two records, and most requests that change the origin cost
//! neither.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bon::Builder;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, StatxFlags, statx};

use super::changes_under_way::ChangesUnderWay;
use super::mappings::Mappings;
use super::name_change_count::{NameChange, NameChangeCount};
use crate::coherence::Coherence;
use crate::extent::file::CachedFile;
use crate::extent::last_seen::LastSeen;
use crate::extent::store::ExtentStore;
use crate::extent::table::FileTable;
use halocline_meta::lease::{Evidence, Lease};
use halocline_meta::{FileId, Stamp};
use halocline_os::clock::Clock;
use halocline_os::error::Result;
use halocline_storage::volume::origin::OriginFile;
use halocline_vfs::namespace::{Namespace, stat_of};

/// Distinguishes our own changes from those of others.
#[derive(Debug, Builder)]
pub(crate) struct OwnChanges {
    namespace: Arc<Namespace>,
    store: Arc<ExtentStore>,
    files: Arc<FileTable>,
    mappings: Arc<Mappings>,
    clock: Clock,
    /// Until when we may be making changes.
    pub(crate) lease: Lease,
    /// Changes in progress, for which the lease is renewed.
    #[builder(skip)]
    pub(crate) under_way: ChangesUnderWay,
    /// What the last session left for recognising its own changes, until all its files are judged.
    evidence: Mutex<Evidence>,
    /// Files whose stamps are to be recorded as soon as they are at rest.
    #[builder(skip)]
    unrecorded: Mutex<Vec<FileId>>,
    /// Our changes of names and attributes.
    #[builder(skip)]
    pub(crate) name_changes: NameChangeCount,
    #[builder(required)]
    coherence: Option<Arc<dyn Coherence>>,
    /// Number of changes that did not begin because the node had no lease.
    #[builder(skip)]
    refused: AtomicU64,
    /// Whether other nodes use the origin.
    shared: bool,
}

/// A change of an origin's file in progress.
#[derive(Debug)]
#[must_use = "the change is over when it is dropped"]
pub(crate) struct Changing<'a> {
    own: &'a OwnChanges,
    file: &'a CachedFile,
    /// Others changed the file: its dirty bytes must not go to the origin.
    pub(crate) external: bool,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        let mut last_seen = self.file.last_seen.lock();
        last_seen.end_change(self.own.clock.now_ms());
        drop(last_seen);
        // A long change may have ended after the lease expired.
        self.own.lease.extend();
        self.own.under_way.end();
    }
}

impl OwnChanges {
    /// Number of changes that did not begin because the node had no lease.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Acquire)
    }

    /// As [`Self::changing`], for a change of bytes or of the size. Must be called after everything that the change
    /// waits for: without a lease other nodes may have taken the bytes meanwhile (I12).
    pub(crate) fn changing_bytes<'a>(
        &'a self,
        file: &'a CachedFile,
        via: &OriginFile,
    ) -> Result<Changing<'a>> {
        if let Some(coherence) = &self.coherence {
            coherence.check_lease().inspect_err(|_| {
                self.refused.fetch_add(1, Ordering::AcqRel);
            })?;
        }
        self.changing(file, Some(via))
    }

    /// Must be called before we change the origin's file, which may be open as `via`. On an error the change could not
    /// be recorded, and the file must not be changed.
    pub(crate) fn changing<'a>(
        &'a self,
        file: &'a CachedFile,
        via: Option<&OriginFile>,
    ) -> Result<Changing<'a>> {
        let mut last_seen = file.last_seen.lock();
        if let Some(id) = file.id().filter(|_| !file.forgotten.load(Ordering::Acquire)) {
            self.find_external(file, &mut last_seen, via);
            // The record of a file that others changed is left as it is, so that the next mount finds the change,
            // too.
            if last_seen.is_recorded() && !last_seen.is_external() {
                self.record(id, Stamp::Writing)?;
                last_seen.set_recorded(false);
                self.note_unrecorded(&mut last_seen, id);
            }
        }
        self.under_way.begin(&self.lease);
        self.lease.extend();
        last_seen.begin_change();
        Ok(Changing { own: self, file, external: last_seen.is_external() })
    }

    /// Whether others changed the origin's file since we last examined it; also `false` if our own changes hide that.
    pub(crate) fn is_external(&self, file: &CachedFile) -> bool {
        let mut last_seen = file.last_seen.lock();
        self.find_external(file, &mut last_seen, None);
        last_seen.is_external()
    }

    fn find_external(&self, file: &CachedFile, last_seen: &mut LastSeen, via: Option<&OriginFile>) {
        // Other nodes change what they hold tokens for, so the file's stamp does not reveal changes by anyone else.
        if self.shared || last_seen.is_external() || last_seen.is_hidden() {
            return;
        }
        // A file that cannot be examined cannot be changed either.
        let Ok(raw) = self.origin_stat(file, via) else { return };
        if self.is_gone(file, &raw) || !last_seen.stamp().same_bytes(Stamp::of_stat(&raw)) {
            last_seen.note_external();
        }
    }

    /// Whether others removed its last name.
    pub(crate) fn is_gone(&self, file: &CachedFile, raw: &libc::stat64) -> bool {
        raw.st_nlink == 0 && !file.unlinked.load(Ordering::SeqCst) && !self.changes_names()
    }

    /// The current attributes of the origin's file, bypassing a network file system's attribute cache.
    pub(crate) fn origin_stat(
        &self,
        file: &CachedFile,
        via: Option<&OriginFile>,
    ) -> Result<libc::stat64> {
        let flush_handle =
            file.flush_handle.lock().as_ref().map(|flush_handle| flush_handle.origin.clone());
        let Some(open) = via.or(flush_handle.as_deref()) else {
            let vnode = file.vnode.read().clone();
            return Ok(self.namespace.stat(&vnode)?.raw);
        };
        let how = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
        Ok(stat_of(&statx(open.namespace_file(), "", how, StatxFlags::BASIC_STATS)?).raw)
    }

    /// Examines a file that we changed, unless changes of ours are in progress.
    pub(crate) fn refresh_last_seen(
        &self,
        file: &CachedFile,
        via: Option<&OriginFile>,
    ) -> Result<()> {
        self.refresh_locked(file, &mut file.last_seen.lock(), via)
    }

    fn refresh_locked(
        &self,
        file: &CachedFile,
        last_seen: &mut LastSeen,
        via: Option<&OriginFile>,
    ) -> Result<()> {
        if !last_seen.is_changed_and_still() {
            return Ok(());
        }
        let raw = self.origin_stat(file, via)?;
        file.vnode.read().note_seen(&raw);
        last_seen.see(Stamp::of_stat(&raw));
        self.lease.observe(last_seen.stamp());
        Ok(())
    }

    /// Records the stamp of the origin's file, unless changes of ours are in progress.
    pub(crate) fn rest(&self, file: &CachedFile) -> Result<()> {
        let mut last_seen = file.last_seen.lock();
        self.refresh_locked(file, &mut last_seen, None)?;
        if last_seen.is_hidden() || last_seen.is_recorded() || last_seen.is_external() {
            return Ok(());
        }
        if let Some(id) = file.id().filter(|_| !file.forgotten.load(Ordering::Acquire)) {
            // Not a newer stamp: others may have changed the file since.
            self.record(id, last_seen.stamp())?;
            last_seen.set_recorded(true);
        }
        Ok(())
    }

    /// Records the stamp of the origin's file; if the store refuses, the lease notes that records are stale.
    pub(crate) fn record(&self, id: FileId, stamp: Stamp) -> Result<()> {
        let recorded = self.store.dmt.files().stamp(id, stamp);
        if recorded.is_err() {
            self.lease.note_stale_records();
        }
        self.mappings.advisory(recorded)
    }

    /// Makes the rebuilder record the file's stamp as soon as the file is at rest.
    pub(crate) fn note_unrecorded(&self, last_seen: &mut LastSeen, id: FileId) {
        if last_seen.queue() {
            self.unrecorded.lock().push(id);
        }
    }

    /// Records the stamps of all files at rest; the others are examined again next time.
    pub(crate) fn record_resting(&self, all: bool) {
        let noted = std::mem::take(&mut *self.unrecorded.lock());
        let now_ms = self.clock.now_ms();
        for id in noted {
            let Some(file) = self.files.by_id(id) else { continue };
            let rests = {
                let last_seen = file.last_seen.lock();
                if all { last_seen.is_still() } else { last_seen.rests(now_ms) }
            };
            let rested = if rests { self.rest(&file) } else { Ok(()) };
            if let Err(error) = rested {
                tracing::debug!(
                    "{}: {error}",
                    self.namespace.path_of(&file.vnode.read()).display()
                );
            }
            let mut last_seen = file.last_seen.lock();
            last_seen.unqueue();
            if !last_seen.is_recorded()
                && !last_seen.is_external()
                && !file.forgotten.load(Ordering::Acquire)
            {
                self.note_unrecorded(&mut last_seen, id);
            }
        }
    }

    /// Must be called before we change names or attributes.
    pub(crate) fn name_change(&self) -> NameChange<'_> {
        self.name_changes.begin()
    }

    /// Whether a new ctime may be ours because a change of names or attributes is in progress.
    pub(crate) fn changes_names(&self) -> bool {
        self.name_changes.is_under_way()
    }

    /// What the last session left for recognising its own changes.
    pub(crate) fn evidence(&self) -> Evidence {
        *self.evidence.lock()
    }

    /// Everything that the last session left is judged: whatever is found from now on belongs to this session.
    pub(crate) fn forget_evidence(&self) {
        *self.evidence.lock() = Evidence::Nothing;
    }
}

#[cfg(test)]
mod tests;
