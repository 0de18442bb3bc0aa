//! An open regular file as a front end holds it: how it is opened and closed.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bon::Builder;

use crate::hints::Hints;
use crate::known_files::KnownFiles;
use crate::lifecycle::Lifecycle;
use crate::open_file::OpenFile;
use crate::origin_access::OriginAccess;
use crate::page_cache_passthrough::PageCachePassthrough;
use crate::settings::Settings;
use halocline_os::error::Result;
use halocline_storage::volume::origin::OriginFile;
use halocline_vfs::namespace::Namespace;
use halocline_vfs::namespace::Vnode;
use halocline_vfs::{Caller, OpenMode};

/// An open regular file; dropping it closes it.
#[derive(Debug)]
pub struct Handle {
    open: OpenFile,
    lifecycle: Arc<Lifecycle>,
}

impl Deref for Handle {
    type Target = OpenFile;

    fn deref(&self) -> &OpenFile {
        &self.open
    }
}

/// Opens files for front ends.
#[derive(Debug, Builder)]
pub(crate) struct Opener {
    namespace: Arc<Namespace>,
    origin: Arc<OriginAccess>,
    settings: Arc<Settings>,
    known: Arc<KnownFiles>,
    page_cache_passthrough: Arc<PageCachePassthrough>,
    lifecycle: Arc<Lifecycle>,
    /// Whether other nodes use the origin.
    shared: bool,
    /// Hints that programs gave for files before they opened them.
    #[builder(skip)]
    pub(crate) hints: Hints,
}

impl Opener {
    /// Opens `vnode` with the `flags` of `open(2)`; `O_TRUNC` must already have been handled.
    pub(crate) fn open(&self, vnode: &Vnode, flags: i32, caller: Caller) -> Result<Handle> {
        // The engine writes at offsets; O_APPEND on the origin would redirect those writes. The vnode is reopened
        // through /proc, a link that O_NOFOLLOW would refuse.
        let never = libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_TRUNC;
        let below = flags & !(never | libc::O_APPEND | libc::O_DIRECT);
        let origin = self.origin.open(vnode, below)?;
        self.over(vnode, origin, flags, caller)
    }

    /// A handle on a file that was just created and opened as `made`.
    pub(crate) fn created(
        &self,
        vnode: &Vnode,
        made: std::fs::File,
        flags: i32,
        caller: Caller,
    ) -> Result<Handle> {
        // The mode of a new file may forbid its owner to open it again; the kernel opened it once with the requested
        // access, which decides.
        let origin = self.origin.data.adopt_data(made)?;
        self.over(vnode, origin, flags, caller)
    }

    fn over(
        &self,
        vnode: &Vnode,
        origin: OriginFile,
        flags: i32,
        caller: Caller,
    ) -> Result<Handle> {
        let (file, raw) = self.known.file_and_stat(vnode)?;
        // The kernel's pages may show an earlier state of the file. During our own changes its stamp reveals nothing.
        let keep_cache = file.last_seen.lock().is_hidden() || vnode.note_seen(&raw);
        let pin = self.namespace.pin(vnode)?;
        let writable = flags & libc::O_ACCMODE != libc::O_RDONLY;
        file.opens.fetch_add(1, Ordering::AcqRel);
        file.writers.fetch_add(u32::from(writable), Ordering::AcqRel);
        let hinted = self.hints.on_open(&self.namespace.path_of(vnode), caller, &file);
        // The kernel's pages would hide changes by other nodes.
        let shared = self.shared;
        let direct = self.settings.config.direct || flags & libc::O_DIRECT != 0 || hinted || shared;
        let append = flags & libc::O_APPEND != 0;
        let mode = OpenMode { direct, keep_cache };
        let open = OpenFile::new(file, origin, pin, (append, writable), mode);
        let handle = Handle { open, lifecycle: Arc::clone(&self.lifecycle) };
        self.page_cache_passthrough.opened(&handle)?;
        Ok(handle)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.file.writers.fetch_sub(u32::from(self.writable), Ordering::AcqRel);
        // Both this and the removal of the last name are sequentially consistent: one of the two sees the other.
        if self.file.opens.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.lifecycle.closed(&self.file, &self.origin);
        }
    }
}
