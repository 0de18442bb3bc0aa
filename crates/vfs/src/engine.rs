//! The contract between front ends and engines.
//!
//! A front end decodes a program's system call, calls one of these methods and encodes the
//! answer. The extent engine and the file tier both implement [`Engine`], so every front end
//! serves both.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use halocline_os::error::Result;

use crate::tree::{OpenDirectory, Tree};
use crate::{Allocate, Caller, DirEntry, Make, Maker, Seek, SetAttr, Stat};

/// An inode of the tree below an engine.
pub type VnodeBelow<E> = <<E as Engine>::Tree as Tree>::Vnode;
/// An open directory of the tree below an engine.
pub type DirectoryBelow<E> = <<E as Engine>::Tree as Tree>::Directory;

/// What counts as an open file of a user until it is dropped.
pub type Counted = Arc<dyn Debug + Send + Sync>;

/// How the front end must treat an open file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpenMode {
    /// Whether every read must reach the engine: the kernel's page cache is not used.
    pub direct: bool,
    /// Whether the page cache of earlier opens is still valid.
    pub keep_cache: bool,
}

/// Has the kernel drop what it keeps of files.
pub trait DropPages: Send + Sync {
    /// Drops the pages of some bytes, from an offset on and so many, of the vnode with this [`Engine::key`]. Waits for that,
    /// but no longer than a moment: requests for these pages may be in progress, and wait for the caller.
    fn drop_pages(&self, key: (u64, u64), range: (u64, u64));
}

/// An engine under a front end.
///
/// Names are those of a directory tree below ([`Engine::below`]): by default, operations go to that tree.
///
/// The caller guarantees that permissions were checked by the kernel (mount option `default_permissions`) and that a
/// handle is used only between its open and its drop. Where others change names without the kernel's knowledge, an
/// engine compares the owner of what is removed from a directory with the sticky bit again ([`crate::ownership`]). An implementation MUST be safe to call from many threads at once
/// and MUST keep the invariants of `docs/INVARIANTS.md` that concern it.
pub trait Engine: Sized + Send + Sync + 'static {
    /// A file, directory, link or special file that a front end refers to; cheap to clone.
    /// Dropping the last clone lets the engine forget it.
    type Vnode: Clone + Send + Sync + Debug + 'static;
    /// An open regular file; dropping it closes it.
    type Handle: Send + Sync + Debug + 'static;
    /// What has the names.
    type Tree: Tree;

    /// The tree that has the names, and its vnode for `vnode`.
    fn below<'a>(&'a self, vnode: &'a Self::Vnode) -> (&'a Self::Tree, Cow<'a, VnodeBelow<Self>>);
    /// The root directory.
    fn root(&self) -> Self::Vnode;
    /// Identity of a vnode: equal for two vnodes exactly if they are names of one inode (device, inode).
    fn key(&self, vnode: &Self::Vnode) -> (u64, u64) {
        let (tree, vnode) = self.below(vnode);
        tree.key(&vnode)
    }
    /// Looks a name up.
    fn lookup(&self, parent: &Self::Vnode, name: &OsStr) -> Result<(Self::Vnode, Stat)>;
    /// Looks a name up that was just read from an open directory: an engine may have read its attributes with it.
    fn lookup_listed(
        &self,
        _dir: &DirectoryBelow<Self>,
        parent: &Self::Vnode,
        name: &OsStr,
    ) -> Result<(Self::Vnode, Stat)> {
        self.lookup(parent, name)
    }
    /// Attributes.
    fn stat(&self, vnode: &Self::Vnode, handle: Option<&Self::Handle>) -> Result<Stat>;
    /// Whether nobody else changes the attributes of a directory for a moment, and they are still those that were
    /// returned: a front end that otherwise keeps none may then use these for the rest of the same system call.
    fn holds_directory(&self, _node: &Self::Vnode, _returned: &Stat) -> bool {
        false
    }
    /// Changes attributes. Clears set-user-id bits as the origin would.
    fn set_attr(
        &self,
        vnode: &Self::Vnode,
        handle: Option<&Self::Handle>,
        change: &SetAttr,
        caller: Caller,
    ) -> Result<Stat>;
    /// Target of a symbolic link.
    fn read_link(&self, vnode: &Self::Vnode) -> Result<OsString> {
        let (tree, vnode) = self.below(vnode);
        tree.read_link(&vnode)
    }
    /// Creates something other than an open regular file, with a name in a directory.
    fn make(
        &self,
        entry: (&Self::Vnode, &OsStr),
        what: Make<'_>,
        by: Maker,
    ) -> Result<(Self::Vnode, Stat)>;
    /// Creates and opens a regular file; `flags` are those of `open(2)`.
    fn create(
        &self,
        entry: (&Self::Vnode, &OsStr),
        mode: u32,
        flags: i32,
        by: Maker,
    ) -> Result<(Self::Vnode, Stat, Self::Handle)>;
    /// Creates a hard link.
    fn link(&self, vnode: &Self::Vnode, parent: &Self::Vnode, name: &OsStr) -> Result<Stat>;
    /// Removes a name of anything but a directory.
    fn unlink(&self, parent: &Self::Vnode, name: &OsStr, by: Caller) -> Result<()>;
    /// Removes an empty directory.
    fn remove_dir(&self, parent: &Self::Vnode, name: &OsStr, by: Caller) -> Result<()> {
        let (tree, parent) = self.below(parent);
        tree.remove_dir(&parent, name, by)
    }
    /// Renames; `flags` are those of `renameat2(2)`.
    fn rename(
        &self,
        from: (&Self::Vnode, &OsStr),
        to: (&Self::Vnode, &OsStr),
        flags: u32,
        by: Caller,
    ) -> Result<()>;

    /// Opens a regular file; `flags` are those of `open(2)`, without `O_CREAT`; `O_TRUNC` must be honoured.
    fn open(&self, vnode: &Self::Vnode, flags: i32, caller: Caller) -> Result<Self::Handle>;
    /// Whether [`Engine::pass_through`] may ever return `true`.
    fn passes_through(&self) -> bool {
        false
    }
    /// Whether files that bypass the kernel's page cache ([`OpenMode::direct`]) may be mapped shared: only then if we
    /// can drop the pages that the kernel caches for a mapping, and only we change the file.
    fn maps_direct_files(&self) -> bool {
        true
    }
    /// Lets the kernel serve an open file by itself until the handle is dropped. If the engine wants that, it gives
    /// `register` a descriptor of the file and returns whether the kernel accepted it; the engine no longer sees what
    /// the kernel then does with the file. `must` means that the kernel already serves other handles of the file: then
    /// the result must be `true`.
    fn pass_through(
        &self,
        _handle: &Self::Handle,
        _must: bool,
        _register: &mut dyn FnMut(BorrowedFd<'_>) -> std::io::Result<()>,
    ) -> bool {
        false
    }
    /// The kernel serves the handle. If the engine keeps the file open after the handle is dropped, because it may still
    /// be mapped, the file goes on counting for the user who opened it: the engine keeps `counted` as long.
    fn count_while_mapped(&self, _handle: &Self::Handle, _counted: Counted) {}
    /// How the front end must treat the open file.
    fn open_mode(&self, handle: &Self::Handle) -> OpenMode;
    /// Reads at `offset`; the result is short only at the end of the file.
    fn read(
        &self,
        handle: &Self::Handle,
        offset: u64,
        buf: &mut [u8],
        caller: Caller,
    ) -> Result<usize>;
    /// The same for pages that the kernel keeps, until it is told to drop them ([`Engine::drops_pages_by`]).
    fn read_pages(
        &self,
        handle: &Self::Handle,
        offset: u64,
        buf: &mut [u8],
        caller: Caller,
    ) -> Result<usize> {
        self.read(handle, offset, buf, caller)
    }
    /// Writes all of `data` at `offset`, or at the end for a handle opened with `O_APPEND`.
    fn write(&self, handle: &Self::Handle, offset: u64, data: &[u8], caller: Caller) -> Result<()>;
    /// The same, but writes what can be written if the rest fails, as for lack of room; returns how many bytes that was, at
    /// least one.
    fn write_some(
        &self,
        handle: &Self::Handle,
        offset: u64,
        data: &[u8],
        caller: Caller,
    ) -> Result<usize> {
        self.write(handle, offset, data, caller)?;
        Ok(data.len())
    }
    /// Makes the names in a directory durable.
    fn sync_dir(&self, dir: &DirectoryBelow<Self>) -> Result<()> {
        dir.sync()
    }
    /// Whether [`Engine::flush`] does anything; otherwise the kernel need not call it.
    fn reports_at_close(&self) -> bool {
        true
    }
    /// A descriptor of the file was closed: report delayed errors.
    fn flush(&self, _handle: &Self::Handle) -> Result<()> {
        Ok(())
    }
    /// Whether an open file has set-id bits or capabilities that others gave it without telling us. An engine whose files
    /// nobody else changes need not look.
    fn was_given_privileges(&self, _handle: &Self::Handle) -> bool {
        false
    }
    /// Takes what the engine is to drop the kernel's pages by, if others change its files.
    fn drops_pages_by(&self, _front: Box<dyn DropPages>) {}
    /// Whether locks that programs take are to be held on the files of the tree below, so that other mounts of it
    /// respect them. Otherwise the kernel handles them. The answer never changes.
    fn shares_locks(&self) -> bool {
        false
    }
    /// Whether other nodes rename files of this tree without telling this one's kernel. The answer never changes.
    fn shares_names(&self) -> bool {
        false
    }
    /// Makes the file durable, on whichever side its bytes are.
    fn fsync(&self, handle: &Self::Handle, data_only: bool) -> Result<()>;
    /// `fallocate(2)` on `len` bytes from `offset`.
    fn allocate(&self, handle: &Self::Handle, offset: u64, len: u64, how: Allocate) -> Result<()>;
    /// Position of the next data or hole at or after `offset`; `ENXIO` past the end.
    fn seek(&self, handle: &Self::Handle, offset: u64, what: Seek) -> Result<u64>;

    /// Opens a directory.
    fn open_dir(&self, vnode: &Self::Vnode) -> Result<DirectoryBelow<Self>> {
        let (tree, vnode) = self.below(vnode);
        tree.open_dir(&vnode)
    }
    /// Reads entries from cookie `offset` (0 at first) until `take` returns `false`.
    fn read_dir(
        &self,
        dir: &DirectoryBelow<Self>,
        offset: u64,
        take: &mut dyn FnMut(DirEntry) -> bool,
    ) -> Result<()> {
        dir.read(offset, take)
    }

    /// File-system totals as programs see them.
    fn statfs(&self, vnode: &Self::Vnode) -> Result<libc::statvfs64> {
        let (tree, vnode) = self.below(vnode);
        tree.statfs(&vnode)
    }
    /// Value of an extended attribute.
    fn get_xattr(&self, vnode: &Self::Vnode, name: &OsStr) -> Result<Vec<u8>> {
        let (tree, vnode) = self.below(vnode);
        tree.get_xattr(&vnode, name)
    }
    /// NUL-terminated names of the extended attributes.
    fn list_xattr(&self, vnode: &Self::Vnode) -> Result<Vec<u8>> {
        let (tree, vnode) = self.below(vnode);
        tree.list_xattr(&vnode)
    }
    /// Sets an extended attribute; `flags` are those of `setxattr(2)`.
    fn set_xattr(&self, vnode: &Self::Vnode, name: &OsStr, value: &[u8], flags: i32) -> Result<()> {
        let (tree, vnode) = self.below(vnode);
        tree.set_xattr(&vnode, name, value, flags)
    }
    /// Removes an extended attribute.
    fn remove_xattr(&self, vnode: &Self::Vnode, name: &OsStr) -> Result<()> {
        let (tree, vnode) = self.below(vnode);
        tree.remove_xattr(&vnode, name)
    }
}
