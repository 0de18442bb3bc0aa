//! What requests ask, done with engine calls, whichever transport brought them.
//!
//! One [`Front`] serves all threads of a mount. Permissions are the kernel's business
//! (`default_permissions`); what the kernel leaves to a file system is done here for every engine:
//! set-id bits and capabilities go on a write ([`privileges`]), pages of a shared mapping are
//! written where they belong even through an `O_APPEND` handle ([`open_files`]), and the kernel is
//! handed files that it can serve by itself ([`passing`]), and told to drop pages that direct writes
//! made old ([`stale_pages`]). Locks are held on the origin's files where other mounts use them, too ([`locks`]). Reads and writes may be recorded as a trace ([`recording`]). One user does not take what the others need to open files ([`fair`]).

pub(crate) mod attributes;
pub(crate) mod backing;
pub(crate) mod directories;
mod fair;
pub(crate) mod files;
mod inode_table;
mod locking;
pub(crate) mod locks;
pub(crate) mod names;
mod open_files;
pub(crate) mod passing;
mod plain;
pub(crate) mod privileges;
mod recording;
mod serving;
mod share;
pub(crate) mod stale_pages;
mod timeouts;
pub(crate) mod xattrs;

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use fuser::{Errno, FileAttr, FileHandle, FopenFlags, INodeNo};
use halocline_os::catch_panic::Panicked;
use halocline_os::error::Error;
use halocline_vfs::namespace::Directory;
use halocline_vfs::{Engine, OpenMode, Stat};

use backing::Connection;
use inode_table::{Inode, InodeTable};
use open_files::{Handles, OpenFile};

/// How a front end serves its engine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FrontOptions {
    /// How long the kernel may answer from its own copy of attributes and names.
    pub(crate) attr_timeout: Duration,
    /// Every file bypasses the kernel's page cache, whatever the engine says.
    pub(crate) direct: bool,
}

/// The front end of one mount.
#[derive(Debug)]
pub(crate) struct Front<E: Engine> {
    engine: Arc<E>,
    options: FrontOptions,
    pub(crate) connection: Connection,
    pub(crate) stale_pages: stale_pages::Dropper,
    inodes: InodeTable<E::Node>,
    files: Handles<OpenFile<E>>,
    dirs: Handles<OpenDir>,
    users: Arc<fair::Users>,
    waiters: locks::Waiters,
    recording: Option<recording::Recording>,
}

/// A directory that a program has open.
#[derive(Debug)]
struct OpenDir {
    dir: Directory,
    _place: fair::Place,
}

/// Errors on their way to the kernel.
#[derive(Debug)]
pub(crate) struct Refused(pub(crate) Errno);

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        if is_told(&error) {
            tracing::warn!(%error, "a request failed");
        }
        Self(Errno::from_i32(error.errno()))
    }
}

/// Whether somebody should look into it: a device, a limit of the machine, or a defect.
fn is_told(error: &Error) -> bool {
    matches!(error.errno(), libc::EIO | libc::ENOSPC | libc::EDQUOT | libc::EMFILE | libc::ENFILE)
}

impl From<Errno> for Refused {
    fn from(errno: Errno) -> Self {
        Self(errno)
    }
}

pub(crate) type Answer<T> = Result<T, Refused>;

/// A defect in one request must leave neither its program waiting for ever nor the mount without a
/// thread.
impl From<Panicked> for Refused {
    fn from(_told: Panicked) -> Self {
        Self(Errno::EIO)
    }
}

impl<E: Engine> Front<E> {
    /// A front end of `engine`.
    pub(crate) fn new(engine: Arc<E>, options: FrontOptions) -> Self {
        let root = engine.root();
        Self {
            inodes: InodeTable::new(engine.key(&root), root),
            engine,
            options,
            connection: Connection::default(),
            stale_pages: stale_pages::Dropper::default(),
            files: Handles::default(),
            dirs: Handles::default(),
            users: fair::Users::new(),
            waiters: locks::Waiters::default(),
            recording: None,
        }
    }

    /// Whether programs have files or directories open.
    pub(crate) fn is_used(&self) -> bool {
        !self.files.is_empty() || !self.dirs.is_empty()
    }

    /// For `map_err`, where a `request` about `inode` fails: the log says about which file.
    fn failed(
        &self,
        inode: &Inode<E::Node>,
        request: &'static str,
    ) -> impl FnOnce(Error) -> Refused {
        move |error| self.refusal(inode, OsStr::new(""), request, &error)
    }

    /// The same of a request about the name `name` in the directory `parent`.
    fn failed_at(
        &self,
        parent: &Inode<E::Node>,
        name: &OsStr,
        request: &'static str,
    ) -> impl FnOnce(Error) -> Refused {
        move |error| self.refusal(parent, name, request, &error)
    }

    fn refusal(
        &self,
        inode: &Inode<E::Node>,
        name: &OsStr,
        request: &'static str,
        error: &Error,
    ) -> Refused {
        if is_told(error) {
            let (tree, node) = self.engine.below(&inode.node);
            let mut file = tree.path_of(&node);
            if !name.is_empty() {
                file.push(name);
            }
            tracing::warn!(?file, request, %error, "a request failed");
        }
        Refused(Errno::from_i32(error.errno()))
    }

    fn inode(&self, number: INodeNo) -> Answer<Arc<Inode<E::Node>>> {
        self.inodes.get(number.0).ok_or(Refused(Errno::ESTALE))
    }

    fn file(&self, handle: FileHandle) -> Answer<Arc<OpenFile<E>>> {
        self.files.get(handle).ok_or(Refused(Errno::EBADF))
    }

    /// Counts a file or directory that a user is about to open.
    fn place_for(&self, user: u32) -> Answer<fair::Place> {
        let device = self.connection.device();
        self.users.take(user, device.as_deref().map(AsFd::as_fd))
    }

    fn dir(&self, handle: FileHandle) -> Answer<Arc<OpenDir>> {
        self.dirs.get(handle).ok_or(Refused(Errno::EBADF))
    }

    /// Registers a node that the kernel is about to be told of.
    fn remember(&self, node: E::Node, stat: &Stat) -> (Arc<Inode<E::Node>>, FileAttr) {
        let inode = self.inodes.remember(self.engine.key(&node), node);
        let attr = Self::attr(&inode, stat);
        (inode, attr)
    }

    /// The kernel's form of attributes, under the kernel's number.
    fn attr(inode: &Inode<E::Node>, stat: &Stat) -> FileAttr {
        privileges::notice(inode, stat);
        attributes::file_attr(inode.number, stat)
    }

    fn fopen_flags(&self, mode: OpenMode) -> FopenFlags {
        let mut flags = FopenFlags::empty();
        if mode.direct || self.options.direct {
            flags |= FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        } else if mode.keep_cache {
            flags |= FopenFlags::FOPEN_KEEP_CACHE;
        }
        flags
    }
}
