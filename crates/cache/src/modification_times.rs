//! The modification times of the origin's files: the writes of a flush must not show as later changes.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bon::Builder;

use crate::extent::file::{CachedFile, WHOLE};
use crate::extent::store::ExtentStore;
use crate::own_changes::OwnChanges;
use halocline_meta::FileId;
use halocline_os::error::Result;
use halocline_vfs::namespace::Namespace;
use halocline_vfs::namespace::Vnode;
use halocline_vfs::namespace::statx::set_attr_on;
use halocline_vfs::{SetAttr, SetTime, Stat};

/// Holds modification times back while dirty bytes are flushed, and sets them on the origin.
#[derive(Debug, Builder)]
pub(crate) struct ModificationTimes {
    namespace: Arc<Namespace>,
    store: Arc<ExtentStore>,
    own: Arc<OwnChanges>,
}

impl ModificationTimes {
    /// Releases what a file without dirty bytes no longer needs. The caller holds no lock of the file's bytes.
    pub(crate) fn settle(&self, file: &Arc<CachedFile>, id: FileId) -> Result<()> {
        let is_dirty = || !self.store.dmt.index().dirty(id, WHOLE, 1).is_empty();
        if is_dirty() {
            return Ok(());
        }
        // Excludes writers. If the file is open, its close does this.
        let _still = match file.range.try_shared(WHOLE) {
            None if file.is_open() => return Ok(()),
            None => file.range.shared(WHOLE),
            Some(still) => still,
        };
        // The file was removed or written meanwhile.
        if self.store.dmt.files().record(id).is_none() || is_dirty() {
            return Ok(());
        }
        self.give_time_at_rest(file)?;
        self.own.rest(file)?;
        if !file.is_open() {
            *file.flush_handle.lock() = None;
        }
        Ok(())
    }

    /// Before the first flush write: saves the origin's time, which programs must keep seeing.
    pub(crate) fn hold_origin_time(&self, file: &CachedFile) -> Result<()> {
        while file.held_mtime_ns().is_none() {
            // By the descriptor that the flush uses: others may have renamed the file.
            let before = mtime_ns(&self.own.origin_stat(file, None)?);
            file.hold_mtime(before);
            // A write that went to the origin meanwhile found no held time, and may be newer.
            let now = mtime_ns(&self.own.origin_stat(file, None)?);
            if now != before {
                file.let_mtime_go(Some(before));
            }
        }
        Ok(())
    }

    /// Sets on the origin's file the modification time that was held back. The caller holds no lock of the file's
    /// bytes.
    pub(crate) fn give_time(&self, file: &CachedFile) -> Result<()> {
        // A write in progress notes its time last.
        let _still = file.range.shared(WHOLE);
        self.give_time_at_rest(file)
    }

    /// The same unless a write is in progress, whose close does this. Returns whether it was done.
    pub(crate) fn try_give_time(&self, file: &CachedFile) -> Result<bool> {
        let Some(_still) = file.range.try_shared(WHOLE) else { return Ok(false) };
        self.give_time_at_rest(file).map(|()| true)
    }

    fn give_time_at_rest(&self, file: &CachedFile) -> Result<()> {
        let _times = file.times.lock();
        if let Some(held) = file.held_mtime_ns() {
            let changing = self.own.changing(file, None)?;
            if changing.external {
                return Ok(());
            }
            let time = Some(SetTime::At(system_time_ns(held)));
            let given = self.set(file, &SetAttr { mtime: time, ..SetAttr::default() });
            match given {
                // Another user's file that we may write: we may set the time that a write would set, and no other.
                Err(error) if error.errno() == libc::EPERM => {
                    let now = Some(SetTime::Now);
                    let now = SetAttr { atime: now, mtime: now, ..SetAttr::default() };
                    self.set(file, &now)?;
                }
                given => drop(given?),
            }
            file.let_mtime_go(Some(held));
        }
        Ok(())
    }

    /// Sets attributes of the origin's file: by the descriptor for flushing, if there is one, because others may have
    /// renamed the file.
    fn set(&self, file: &CachedFile, change: &SetAttr) -> Result<Stat> {
        let open = file.flush_handle.lock().as_ref().map(|open| Arc::clone(&open.origin));
        if let Some(open) = open {
            return set_attr_on(open.namespace_file(), change);
        }
        let vnode = file.vnode.read().clone();
        self.namespace.set_attr(&vnode, change)
    }

    /// Sets the modification time as a program requests. It is the file's time from then on: later flush writes must
    /// not show as a change, so it is held like any other until they are done.
    pub(crate) fn take_time(
        &self,
        file: &CachedFile,
        vnode: &Vnode,
        change: &SetAttr,
    ) -> Result<Stat> {
        let _times = file.times.lock();
        let changing = self.own.changing(file, None)?;
        let stat = self.namespace.set_attr(vnode, change)?;
        drop(changing);
        if file.flush_handle.lock().is_some() {
            file.choose_mtime(mtime_ns(&stat.raw));
        } else {
            file.let_mtime_go(None);
        }
        Ok(stat)
    }
}

/// The system time `ns` nanoseconds after (or, if negative, before) the epoch.
fn system_time_ns(ns: i64) -> SystemTime {
    let distance = Duration::from_nanos(ns.unsigned_abs());
    if ns < 0 { SystemTime::UNIX_EPOCH - distance } else { SystemTime::UNIX_EPOCH + distance }
}

/// Nanoseconds in a second.
pub(crate) const NS: i64 = 1_000_000_000;

/// Modification time in nanoseconds since the epoch.
pub(crate) const fn mtime_ns(raw: &libc::stat64) -> i64 {
    halocline_meta::in_nanoseconds(raw.st_mtime, raw.st_mtime_nsec)
}
