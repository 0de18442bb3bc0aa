//! The names below an engine: what an engine that does not answer a call itself, and a front end, ask of them.

use std::ffi::{OsStr, OsString};
use std::fmt::Debug;
use std::fs::File;
use std::path::PathBuf;

use halocline_os::error::Result;

use crate::namespace::{self, Namespace};
use crate::{Caller, DirEntry};

/// A directory tree with the names of an engine.
///
/// The caller guarantees that permissions were checked. An implementation MUST be safe to call from many threads at once.
pub trait Tree: Send + Sync + Debug + 'static {
    /// An inode of the tree; cheap to clone.
    type Vnode: Clone + Send + Sync + Debug + 'static;
    /// An open directory; dropping it closes it.
    type Directory: OpenDirectory;

    /// Identity of a vnode: equal for two vnodes exactly if they are names of one inode (device, inode).
    fn key(&self, vnode: &Self::Vnode) -> (u64, u64);
    /// Best known path of the vnode relative to the root, for messages; empty for the root itself.
    fn path_of(&self, vnode: &Self::Vnode) -> PathBuf;
    /// Opens the bytes of a regular file, to hold locks on it. `flags` are those of `open(2)`.
    fn open_file(&self, vnode: &Self::Vnode, flags: i32) -> Result<File>;
    /// Target of a symbolic link.
    fn read_link(&self, vnode: &Self::Vnode) -> Result<OsString>;
    /// Removes an empty directory.
    fn remove_dir(&self, parent: &Self::Vnode, name: &OsStr, by: Caller) -> Result<()>;
    /// Opens a directory for reading its entries.
    fn open_dir(&self, vnode: &Self::Vnode) -> Result<Self::Directory>;
    /// Totals of the file system that the vnode is on.
    fn statfs(&self, vnode: &Self::Vnode) -> Result<libc::statvfs64>;
    /// Value of an extended attribute.
    fn get_xattr(&self, vnode: &Self::Vnode, name: &OsStr) -> Result<Vec<u8>>;
    /// NUL-terminated names of the extended attributes.
    fn list_xattr(&self, vnode: &Self::Vnode) -> Result<Vec<u8>>;
    /// Sets an extended attribute; `flags` are those of `setxattr(2)`.
    fn set_xattr(&self, vnode: &Self::Vnode, name: &OsStr, value: &[u8], flags: i32) -> Result<()>;
    /// Removes an extended attribute.
    fn remove_xattr(&self, vnode: &Self::Vnode, name: &OsStr) -> Result<()>;
}

/// A directory that was opened for reading its entries.
pub trait OpenDirectory: Send + Sync + Debug + 'static {
    /// Passes entries from cookie `offset` (0 at first) to `take` until it returns `false`; an entry that was refused is
    /// the first one when reading continues from the cookie before it.
    fn read(&self, offset: u64, take: &mut dyn FnMut(DirEntry) -> bool) -> Result<()>;
    /// Makes the names in it durable.
    fn sync(&self) -> Result<()>;
}

impl Tree for Namespace {
    type Vnode = namespace::Vnode;
    type Directory = namespace::Directory;

    fn key(&self, vnode: &Self::Vnode) -> (u64, u64) {
        vnode.key()
    }

    fn path_of(&self, vnode: &Self::Vnode) -> PathBuf {
        Self::path_of(self, vnode)
    }

    fn open_file(&self, vnode: &Self::Vnode, flags: i32) -> Result<File> {
        Self::open_file(self, vnode, flags)
    }

    fn read_link(&self, vnode: &Self::Vnode) -> Result<OsString> {
        Self::read_link(self, vnode)
    }

    fn remove_dir(&self, parent: &Self::Vnode, name: &OsStr, by: Caller) -> Result<()> {
        Self::remove_dir(self, parent, name, Some(by)).map(drop)
    }

    fn open_dir(&self, vnode: &Self::Vnode) -> Result<Self::Directory> {
        Self::open_dir(self, vnode)
    }

    fn statfs(&self, vnode: &Self::Vnode) -> Result<libc::statvfs64> {
        Self::statfs(self, vnode)
    }

    fn get_xattr(&self, vnode: &Self::Vnode, name: &OsStr) -> Result<Vec<u8>> {
        Self::get_xattr(self, vnode, name)
    }

    fn list_xattr(&self, vnode: &Self::Vnode) -> Result<Vec<u8>> {
        Self::list_xattr(self, vnode)
    }

    fn set_xattr(&self, vnode: &Self::Vnode, name: &OsStr, value: &[u8], flags: i32) -> Result<()> {
        Self::set_xattr(self, vnode, name, value, flags)
    }

    fn remove_xattr(&self, vnode: &Self::Vnode, name: &OsStr) -> Result<()> {
        Self::remove_xattr(self, vnode, name)
    }
}

impl OpenDirectory for namespace::Directory {
    fn read(&self, offset: u64, take: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        Self::read(self, offset, take)
    }

    fn sync(&self) -> Result<()> {
        Self::sync(self)
    }
}
