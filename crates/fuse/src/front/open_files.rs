//! The files that programs have open, and which of them the kernel serves by itself (FUSE passthrough, Linux 6.9).
//!
//! What must hold, because Linux does not ensure it: while the kernel serves a file, it caches no pages of the mount's
//! file (I1). Mappings then store into the pages of the file below, and nothing keeps the two consistent. Two kinds of
//! calls request such pages all the same: `splice`, and with it `sendfile` and `copy_file_range`, on a handle whose
//! reads come to us while the kernel serves its mappings (`FOPEN_DIRECT_IO` is not `O_DIRECT` to it), and
//! `posix_fadvise` or `readahead` on any handle. Such pages would be found again, stale, even by a program that opens
//! the file after all handles were closed. So such reads are refused with EINVAL, which tells programs to `read`
//! instead; advice has no effect.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use fuser::{Errno, FileHandle, FopenFlags};
use halocline_vfs::{Engine, OpenMode};

use super::backing::{Backing, Connection};
use super::handles::{Handles, OpenFile};
use super::inode_table::Inode;
use super::recording::Recording;
use super::share::Share;
use super::stale_pages::StalePages;
use super::user_limits::CountedOpen;
use super::{Answer, Refused, timeouts};

/// What the kernel is told about a file that was opened.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) handle: FileHandle,
    pub(crate) mode: FopenFlags,
    /// What the kernel is to read and write by itself instead of asking us.
    pub(crate) backing: Option<Arc<Backing>>,
}

/// The engine's flags that are compatible with passthrough: a direct handle reads and writes through us, and the kernel
/// serves only its mappings. Without `FOPEN_KEEP_CACHE`: pages read through us must not outlive writes that bypass us.
fn beside_passthrough(mode: FopenFlags) -> FopenFlags {
    mode & (FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES)
}

/// The files that programs have open, by the kernel's handles.
#[derive(Debug)]
pub(crate) struct OpenFiles<E: Engine> {
    engine: Arc<E>,
    /// Whether every file bypasses the kernel's page cache, whatever the engine says.
    direct: bool,
    connection: Arc<Connection>,
    stale_pages: Arc<StalePages>,
    recording: Arc<Recording<E>>,
    files: Handles<OpenFile<E>>,
}

impl<E: Engine> OpenFiles<E> {
    /// Starts with no file open. With `direct`, every file bypasses the kernel's page cache.
    pub(super) fn new(
        (engine, direct): (&Arc<E>, bool),
        connection: &Arc<Connection>,
        stale_pages: &Arc<StalePages>,
        recording: &Arc<Recording<E>>,
    ) -> Self {
        Self {
            engine: engine.clone(),
            direct,
            connection: connection.clone(),
            stale_pages: stale_pages.clone(),
            recording: recording.clone(),
            files: Handles::default(),
        }
    }

    /// # Errors
    /// `EBADF` for a handle that was closed.
    pub(super) fn get(&self, handle: FileHandle) -> Answer<Arc<OpenFile<E>>> {
        self.find(handle).ok_or(Refused(Errno::EBADF))
    }

    /// The same, or `None` if the handle is not open.
    pub(super) fn find(&self, handle: FileHandle) -> Option<Arc<OpenFile<E>>> {
        self.files.get(handle)
    }

    /// Removes a file whose handle the kernel has closed; dropping it closes it.
    pub(super) fn remove(&self, handle: FileHandle) -> Option<Arc<OpenFile<E>>> {
        self.files.remove(handle)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Whether the kernel may be offered files at all.
    pub(crate) fn passes_through(&self) -> bool {
        self.engine.passes_through() && !self.direct
    }

    /// Whether files that bypass the kernel's pages may be mapped shared.
    pub(crate) fn maps_direct_files(&self) -> bool {
        self.engine.maps_direct_files()
    }

    /// Registers a file that was just opened, and decides who serves it.
    pub(super) fn admit(
        &self,
        inode: Arc<Inode<E::Vnode>>,
        handle: E::Handle,
        flags: i32,
        counted: CountedOpen,
    ) -> Opened {
        let register = |fd: BorrowedFd<'_>| self.connection.register(fd);
        let share = Share::new(&inode, register, |must, register| {
            self.passes_through() && self.engine.pass_through(&handle, must, register)
        });
        let (backing, counted) = (share.backing.clone(), Arc::new(counted));
        let mut mode = self.fopen_flags(self.engine.open_mode(&handle));
        if backing.is_some() {
            self.engine.count_while_mapped(&handle, counted.clone());
            if timeouts::served(&inode, flags) {
                self.stale_pages.forget_attributes(inode.number);
            }
            mode = beside_passthrough(mode);
        }
        let direct = mode.contains(FopenFlags::FOPEN_DIRECT_IO) || flags & libc::O_DIRECT != 0;
        let traced = self.recording.traced(&inode, backing.is_some());
        let mut file = OpenFile::new(inode, handle, (share, counted), (flags, direct));
        file.traced = traced;
        let handle = self.files.insert(file);
        Opened { handle, mode, backing }
    }

    fn fopen_flags(&self, mode: OpenMode) -> FopenFlags {
        let mut flags = FopenFlags::empty();
        if mode.direct || self.direct {
            flags |= FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        } else if mode.keep_cache {
            flags |= FopenFlags::FOPEN_KEEP_CACHE;
        }
        flags
    }
}
