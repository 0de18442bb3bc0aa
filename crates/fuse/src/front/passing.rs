//! Open files that the kernel serves by itself (FUSE passthrough, Linux 6.9).
//!
//! What must hold, because Linux does not see to it: while the kernel serves a file, it keeps no pages of
//! the mount's file (I1). Mappings then store into the pages of the file below, and nothing brings the
//! two together. Two calls ask for such pages all the same: `splice`, and with it `sendfile` and
//! `copy_file_range`, from a handle whose reads come to us beside the kernel's (`FOPEN_DIRECT_IO` is not
//! `O_DIRECT` to it), and `posix_fadvise` or `readahead` through any handle. Pages that they brought would
//! be found again, as old as they are then, also by who opens the file when all has been closed. So such
//! reads are refused with EINVAL, which tells programs to `read` instead; advice has no effect.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use fuser::{FileHandle, FopenFlags};
use halocline_vfs::Engine;

use super::backing::Backing;
use super::fair::Place;
use super::inode_table::Inode;
use super::open_files::OpenFile;
use super::share::Share;
use super::{Front, timeouts};

/// What the kernel is told of a file that was opened.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) handle: FileHandle,
    pub(crate) mode: FopenFlags,
    /// What it shall read and write by itself instead of asking us.
    pub(crate) backing: Option<Arc<Backing>>,
}

/// Of an engine's flags, those that go with passthrough: a direct handle reads and writes through
/// us, and the kernel serves its mappings alone. Without `FOPEN_KEEP_CACHE`: pages that were read
/// through us may not outlive writes that pass us.
fn beside_passthrough(mode: FopenFlags) -> FopenFlags {
    mode & (FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES)
}

impl<E: Engine> Front<E> {
    /// Whether the kernel may be offered files at all.
    pub(crate) fn passes_through(&self) -> bool {
        self.engine.passes_through() && !self.options.direct
    }

    /// Whether files that bypass the kernel's pages may be mapped shared.
    pub(crate) fn maps_direct_files(&self) -> bool {
        self.engine.maps_direct_files()
    }

    /// Notes a file that was just opened, and decides who serves it.
    pub(super) fn admit(
        &self,
        inode: Arc<Inode<E::Node>>,
        handle: E::Handle,
        flags: i32,
        place: Place,
    ) -> Opened {
        let register = |fd: BorrowedFd<'_>| self.connection.register(fd);
        let share = Share::new(&inode, register, |must, register| {
            self.passes_through() && self.engine.pass_through(&handle, must, register)
        });
        let backing = share.backing.clone();
        let mut mode = self.fopen_flags(self.engine.open_mode(&handle));
        if backing.is_some() {
            if timeouts::served(&inode, flags) {
                self.stale_pages.forget_attributes(inode.number);
            }
            mode = beside_passthrough(mode);
        }
        let direct = mode.contains(FopenFlags::FOPEN_DIRECT_IO) || flags & libc::O_DIRECT != 0;
        let traced = self.traced(&inode, backing.is_some());
        let mut file = OpenFile::new(inode, handle, (share, place), (flags, direct));
        file.traced = traced;
        let handle = self.files.insert(file);
        Opened { handle, mode, backing }
    }
}
