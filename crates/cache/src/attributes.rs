//! Attributes as programs see and change them; some of a file's bytes may so far be only on the cache.

use std::sync::Arc;

use bon::Builder;

use crate::block_count::blocks;
use crate::degraded_mode::DegradedMode;
use crate::extent::file::CachedFile;
use crate::extent::store::ExtentStore;
use crate::extent::table::FileTable;
use crate::known_files::KnownFiles;
use crate::lifecycle::Lifecycle;
use crate::modification_times::{ModificationTimes, NS};
use crate::open_file::OpenFile;
use crate::origin_access::OriginAccess;
use crate::own_changes::OwnChanges;
use crate::path_lookup::origin_key;
use crate::permits::Permits;
use crate::resize::Resizer;
use halocline_os::error::Result;
use halocline_vfs::namespace::{Namespace, Vnode};
use halocline_vfs::{SetAttr, Stat};

/// Shows and changes attributes.
#[derive(Debug, Builder)]
pub(crate) struct Attributes {
    namespace: Arc<Namespace>,
    origin: Arc<OriginAccess>,
    store: Arc<ExtentStore>,
    files: Arc<FileTable>,
    own: Arc<OwnChanges>,
    permits: Arc<Permits>,
    known: Arc<KnownFiles>,
    times: Arc<ModificationTimes>,
    degraded_mode: Arc<DegradedMode>,
    resizer: Arc<Resizer>,
    lifecycle: Arc<Lifecycle>,
}

impl Attributes {
    /// Attributes as programs see them: with a modification time that the origin does not have yet, and with blocks for
    /// bytes that only the cache has, so that the file is not taken for a hole.
    pub(crate) fn shown(&self, mut stat: Stat) -> Stat {
        if stat.kind() != libc::S_IFREG {
            return stat;
        }
        self.origin.data.complete_stat(&mut stat);
        let Some(file) = self.files.by_key(origin_key(&stat)) else { return stat };
        if let Some(held_ns) = file.held_mtime_ns() {
            let (seconds, rest) = (held_ns.div_euclid(NS), held_ns.rem_euclid(NS));
            (stat.raw.st_mtime, stat.raw.st_mtime_nsec) = (seconds, rest);
            if (stat.raw.st_ctime, stat.raw.st_ctime_nsec) < (seconds, rest) {
                (stat.raw.st_ctime, stat.raw.st_ctime_nsec) = (seconds, rest);
            }
        }
        let (size, below) = (stat.raw.st_size.unsigned_abs(), stat.raw.st_blocks.unsigned_abs());
        stat.raw.st_blocks = blocks(&self.store, &file, size, below).cast_signed();
        stat
    }

    /// Changes attributes of a vnode; `handle` is its open file, if there is one.
    pub(crate) fn set(
        &self,
        vnode: &Vnode,
        handle: Option<&OpenFile>,
        change: &SetAttr,
    ) -> Result<Stat> {
        let mut change = *change;
        if let Some(size) = change.size.take() {
            self.truncate(vnode, handle, size)?;
        }
        let timed = if change.mtime.is_some() { self.timed(vnode)? } else { None };
        let held = timed.as_ref().map(|file| self.permits.to_set_time(file)).transpose()?;
        let _naming = self.own.name_change();
        let stat = match &timed {
            Some(file) => self.times.take_time(file, vnode, &change)?,
            None => self.namespace.set_attr(vnode, &change)?,
        };
        drop(held);
        if let Some(file) = timed {
            self.known.forget_idle(&file);
        }
        self.lifecycle.restamp(vnode)?;
        Ok(self.shown(stat))
    }

    /// The file whose modification time is to be set, if this node or others may hold back a different one for it.
    fn timed(&self, vnode: &Vnode) -> Result<Option<Arc<CachedFile>>> {
        if !self.permits.are_needed() {
            return self.known.file_of_known(vnode);
        }
        let (_, raw) = self.origin.key_of(vnode)?;
        let is_regular = raw.st_mode & libc::S_IFMT == libc::S_IFREG;
        is_regular.then(|| self.known.file_of(vnode)).transpose()
    }

    /// Sets the size of a file; `handle` is its open file, if there is one.
    pub(crate) fn truncate(
        &self,
        vnode: &Vnode,
        handle: Option<&OpenFile>,
        size: u64,
    ) -> Result<()> {
        let opened;
        // O_TRUNC is allowed with O_RDONLY, whose descriptor on the origin cannot truncate.
        let writable = handle.filter(|handle| handle.writable);
        let (file, origin) = if let Some(handle) = writable {
            (Arc::clone(&handle.file), &handle.origin)
        } else {
            opened = self.origin.open(vnode, libc::O_WRONLY)?;
            (self.known.file_of(vnode)?, &opened)
        };
        let _held = self.permits.to_resize(&file, size)?;
        self.degraded_mode.retry_after_giving_up(|| self.resizer.truncate(&file, origin, size))
    }
}
