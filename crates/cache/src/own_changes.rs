//! Our own changes of the origin's files, told from those of others (I9).
//!
//! What must hold:
//! - before our first change of a file that the cache knows, its record says that we change it
//!   ([`Stamp::Writing`]), and the lease covers the time of every change;
//! - before our first change since we last looked, the file is as it was then, or it is marked as changed
//!   by others, and its dirty bytes go nowhere until that was dealt with (`external_changes`);
//! - when we leave it alone for a while, it is looked at, and its record says how it looks.
//!
//! So many changes in a row cost one look and two records, and a request that changes the origin
//! neither.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bon::Builder;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, StatxFlags, statx};

use super::changes_under_way::ChangesUnderWay;
use super::mappings::Mappings;
use crate::extent::file::CachedFile;
use crate::extent::last_seen::{LastSeen, Since};
use crate::extent::store::ExtentStore;
use crate::extent::table::FileTable;
use halocline_meta::lease::{Evidence, Lease};
use halocline_meta::{FileId, Stamp};
use halocline_os::clock::{Clock, age_ms};
use halocline_os::error::Result;
use halocline_storage::volume::origin::OriginFile;
use halocline_vfs::namespace::{Namespace, stat_of};

/// A file that we left alone for this long is at rest.
const REST_MS: u64 = 100;

/// What tells our own changes from those of others.
#[derive(Debug, Builder)]
pub(crate) struct OwnChanges {
    namespace: Arc<Namespace>,
    store: Arc<ExtentStore>,
    files: Arc<FileTable>,
    mappings: Arc<Mappings>,
    clock: Clock,
    /// Until when we may be making some.
    pub(crate) lease: Lease,
    /// What is being changed now, for which the lease is renewed.
    #[builder(skip)]
    pub(crate) under_way: ChangesUnderWay,
    /// What the last session left to tell its own by, until all that it left is judged.
    pub(crate) evidence: Mutex<Evidence>,
    /// Files whose records are to say how they look as soon as they rest.
    #[builder(skip)]
    restless: Mutex<Vec<FileId>>,
    /// Changes of names and attributes that were begun, and those of them that have ended.
    #[builder(skip)]
    pub(crate) names_changing: AtomicU64,
    #[builder(skip)]
    names_changed: AtomicU64,
    /// Whether other nodes use the origin.
    shared: bool,
}

/// A change of an origin's file while it is under way.
#[derive(Debug)]
#[must_use = "the change is over when it is dropped"]
pub(crate) struct Changing<'a> {
    own: &'a OwnChanges,
    file: &'a CachedFile,
    /// Others changed the file: what is dirty must not go to the origin.
    pub(crate) external: bool,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        let mut look = self.file.last_seen.lock();
        look.under_way -= 1;
        look.ours_ms = self.own.clock.now_ms();
        drop(look);
        // One that took long may have ended behind the lease.
        self.own.lease.extend();
        self.own.under_way.end();
    }
}

/// A change of names or attributes while it is under way: it moves the times of change of files.
#[derive(Debug)]
#[must_use = "the change is over when it is dropped"]
pub(crate) struct Naming<'a>(&'a OwnChanges);

impl Drop for Naming<'_> {
    fn drop(&mut self) {
        self.0.names_changed.fetch_add(1, Ordering::SeqCst);
    }
}

impl OwnChanges {
    /// We are about to change the origin's file, which is open as `via`, if it is. An error says that
    /// this could not be recorded, and the file must be left alone.
    pub(crate) fn changing<'a>(
        &'a self,
        file: &'a CachedFile,
        via: Option<&OriginFile>,
    ) -> Result<Changing<'a>> {
        let mut look = file.last_seen.lock();
        if let Some(id) = file.id().filter(|_| !file.forgotten.load(Ordering::Acquire)) {
            self.find_external(file, &mut look, via);
            // Of a file that others changed the record stays as it is: the next mount shall find that, too.
            if look.recorded && !look.is_external() {
                self.record(id, Stamp::Writing)?;
                look.recorded = false;
                self.note_restless(&mut look, id);
            }
        }
        self.under_way.begin(&self.lease);
        self.lease.extend();
        if !look.is_external() {
            look.since = Since::Ours;
        }
        look.under_way += 1;
        Ok(Changing { own: self, file, external: look.is_external() })
    }

    /// Whether others changed the origin's file since we last left it alone; `false` also where our own
    /// changes hide that.
    pub(crate) fn is_external(&self, file: &CachedFile) -> bool {
        let mut look = file.last_seen.lock();
        self.find_external(file, &mut look, None);
        look.is_external()
    }

    fn find_external(&self, file: &CachedFile, look: &mut LastSeen, via: Option<&OriginFile>) {
        // Other nodes change what they hold tokens for: how the file looks says nothing of others than those.
        if self.shared || look.is_external() || look.is_hidden() {
            return;
        }
        // One that cannot be looked at cannot be changed either.
        let Ok(raw) = self.origin_stat(file, via) else { return };
        if self.is_gone(file, &raw) || !look.seen.same_bytes(Stamp::of_stat(&raw)) {
            look.since = Since::Theirs;
        }
    }

    /// Whether others removed its last name.
    pub(crate) fn is_gone(&self, file: &CachedFile, raw: &libc::stat64) -> bool {
        raw.st_nlink == 0 && !file.unlinked.load(Ordering::SeqCst) && !self.is_naming()
    }

    /// How the origin's file looks now, past what a network file system remembers of it.
    pub(crate) fn origin_stat(
        &self,
        file: &CachedFile,
        via: Option<&OriginFile>,
    ) -> Result<libc::stat64> {
        let flush_handle =
            file.flush_handle.lock().as_ref().map(|flush_handle| flush_handle.origin.clone());
        let Some(open) = via.or(flush_handle.as_deref()) else {
            let node = file.node.read().clone();
            return Ok(self.namespace.stat(&node)?.raw);
        };
        let how = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
        Ok(stat_of(&statx(open.node(), "", how, StatxFlags::BASIC_STATS)?).raw)
    }

    /// Looks at a file that we changed, if nothing of ours is under way.
    pub(crate) fn look_again(&self, file: &CachedFile, via: Option<&OriginFile>) -> Result<()> {
        self.look_at(file, &mut file.last_seen.lock(), via)
    }

    fn look_at(
        &self,
        file: &CachedFile,
        look: &mut LastSeen,
        via: Option<&OriginFile>,
    ) -> Result<()> {
        if look.under_way > 0 || look.since != Since::Ours {
            return Ok(());
        }
        let raw = self.origin_stat(file, via)?;
        file.node.read().note_look(&raw);
        look.see(Stamp::of_stat(&raw));
        self.lease.observe(look.seen);
        Ok(())
    }

    /// Records how the origin's file looks, if nothing of ours is under way.
    pub(crate) fn rest(&self, file: &CachedFile) -> Result<()> {
        let mut look = file.last_seen.lock();
        self.look_at(file, &mut look, None)?;
        if look.is_hidden() || look.recorded || look.is_external() {
            return Ok(());
        }
        if let Some(id) = file.id().filter(|_| !file.forgotten.load(Ordering::Acquire)) {
            // Not a later look: others may have changed it since.
            self.record(id, look.seen)?;
            look.recorded = true;
        }
        Ok(())
    }

    /// Records how the origin's file looks; where the store refuses that, the lease says so.
    pub(crate) fn record(&self, id: FileId, stamp: Stamp) -> Result<()> {
        let recorded = self.store.dmt.stamp(id, stamp);
        if recorded.is_err() {
            self.lease.fall_behind();
        }
        self.mappings.advisory(recorded)
    }

    /// The rebuilder is to record how the file looks as soon as it rests.
    pub(crate) fn note_restless(&self, look: &mut LastSeen, id: FileId) {
        if !std::mem::replace(&mut look.restless, true) {
            self.restless.lock().push(id);
        }
    }

    /// Records all files that rest; those that do not are looked at again the next time.
    pub(crate) fn record_resting(&self, all: bool) {
        let noted = std::mem::take(&mut *self.restless.lock());
        let now_ms = self.clock.now_ms();
        for id in noted {
            let Some(file) = self.files.by_id(id) else { continue };
            let rests = {
                let look = file.last_seen.lock();
                look.under_way == 0 && (all || age_ms(now_ms, look.ours_ms) >= REST_MS)
            };
            let rested = if rests { self.rest(&file) } else { Ok(()) };
            if let Err(error) = rested {
                tracing::debug!("{}: {error}", self.namespace.path_of(&file.node.read()).display());
            }
            let mut look = file.last_seen.lock();
            look.restless = false;
            if !look.recorded && !look.is_external() && !file.forgotten.load(Ordering::Acquire) {
                self.note_restless(&mut look, id);
            }
        }
    }

    /// We are about to change names or attributes.
    pub(crate) fn name_change(&self) -> Naming<'_> {
        self.names_changing.fetch_add(1, Ordering::SeqCst);
        Naming(self)
    }

    /// Whether a time of change may be ours although no look has followed it yet.
    pub(crate) fn is_naming(&self) -> bool {
        let ended = self.names_changed.load(Ordering::SeqCst);
        self.names_changing.load(Ordering::SeqCst) != ended
    }
}
