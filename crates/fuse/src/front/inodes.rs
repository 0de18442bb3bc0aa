//! The inodes that the kernel knows: the engine's vnode for each, and what the kernel may keep of it.

use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, UNIX_EPOCH};

use fuser::{Errno, FileAttr, FileType, INodeNo};
use halocline_os::error::Error;
use halocline_vfs::{Engine, Stat, Tree};

use super::inode_table::{Inode, InodeTable, ROOT};
use super::stale_pages::StalePages;
use super::{Answer, Refused, is_told, kernel_attributes, privileges, timeouts};

/// What the kernel is told of a name.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Attributes under the number by which the kernel is to name the inode, including the root.
    pub(crate) attr: FileAttr,
    /// Distinguishes successive uses of one number.
    pub(crate) generation: u64,
    /// How long the kernel may keep the name and the attributes.
    pub(crate) timeout: Duration,
    /// How long it may keep the attributes; not less.
    pub(crate) attr_timeout: Duration,
}

impl Entry {
    /// An entry of which only the inode number is known, and what it is.
    pub(super) fn named_only(number: u64, kind: FileType) -> Self {
        let attr = FileAttr {
            ino: INodeNo(number),
            size: 0,
            blocks: 0,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm: 0,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        };
        Self { attr, generation: 0, timeout: Duration::ZERO, attr_timeout: Duration::ZERO }
    }

    /// A listed name that was not looked up, for a transport that must give each name an inode number: that of the root.
    /// Under it the kernel passes the name on, takes no attributes, and forgets the root once (`invalid_nodeid` in
    /// `fuse_direntplus_link`), which counts nothing. So programs see this number, too.
    pub(crate) fn not_looked_up(kind: FileType) -> Self {
        Self::named_only(ROOT, kind)
    }
}

/// A name in a directory.
pub(crate) type EntryName<'a> = (INodeNo, &'a OsStr);

/// All inodes that the kernel knows, with the lookups that it has not yet forgotten.
#[derive(Debug)]
pub(super) struct Inodes<E: Engine> {
    engine: Arc<E>,
    table: InodeTable<E::Vnode>,
    attr_timeout: Duration,
    stale_pages: Arc<StalePages>,
}

impl<E: Engine> Inodes<E> {
    /// Starts with the root as the only known inode; the kernel keeps attributes for `attr_timeout` where it may.
    pub(super) fn new(
        engine: &Arc<E>,
        attr_timeout: Duration,
        stale_pages: &Arc<StalePages>,
    ) -> Self {
        let root = engine.root();
        let table = InodeTable::new(engine.key(&root), root);
        Self { engine: engine.clone(), table, attr_timeout, stale_pages: stale_pages.clone() }
    }

    /// # Errors
    /// `ESTALE` for a number that the kernel has forgotten.
    pub(super) fn get(&self, number: INodeNo) -> Answer<Arc<Inode<E::Vnode>>> {
        self.table.get(number.0).ok_or(Refused(Errno::ESTALE))
    }

    /// The inode of a vnode with this [`Engine::key`], if the kernel knows it.
    pub(super) fn find(&self, key: (u64, u64)) -> Option<Arc<Inode<E::Vnode>>> {
        self.table.find(key)
    }

    /// Registers a vnode that the kernel is about to learn of.
    pub(super) fn remember(
        &self,
        vnode: E::Vnode,
        stat: &Stat,
    ) -> (Arc<Inode<E::Vnode>>, FileAttr) {
        let inode = self.table.remember(self.engine.key(&vnode), vnode);
        let attr = attr(&inode, stat);
        (inode, attr)
    }

    /// Registers what was found under a name, and returns what the kernel is told of it.
    pub(super) fn entry(&self, (vnode, stat): (E::Vnode, Stat)) -> Entry {
        let (inode, mut attr) = self.remember(vnode, &stat);
        attr.ino = INodeNo(inode.number);
        let timeout = self.timeout(&inode, &attr);
        let attr_timeout = timeout.max(self.briefly(&inode, &stat));
        Entry { attr, generation: inode.generation, timeout, attr_timeout }
    }

    /// Subtracts lookups that the kernel has forgotten. Whether it knows the inode no longer.
    pub(super) fn forget(&self, number: INodeNo, lookups: u64) -> bool {
        self.table.forget(number.0, lookups, |vnode| self.engine.key(vnode))
    }

    /// How long the kernel may keep the name and the attributes of an inode.
    pub(super) fn timeout(&self, inode: &Inode<E::Vnode>, attr: &FileAttr) -> Duration {
        if timeouts::may_keep(inode, attr) { self.attr_timeout } else { Duration::ZERO }
    }

    /// The shortest time for which the kernel keeps attributes, up to two ticks of its clock, for a directory that does
    /// not change meanwhile: resolving a path needs the attributes of each directory on it once or twice more after they
    /// were looked up. Otherwise 0.
    pub(super) fn briefly(&self, inode: &Inode<E::Vnode>, stat: &Stat) -> Duration {
        let is_held = || self.engine.holds_directory(&inode.vnode, stat);
        if stat.kind() != libc::S_IFDIR || !is_held() {
            return Duration::ZERO;
        }
        inode.kept_briefly.store(true, SeqCst);
        // Again: whoever changed the directory before that told the kernel nothing.
        if is_held() { Duration::from_nanos(1) } else { Duration::ZERO }
    }

    /// A directory was changed, and whoever changed it is not answered yet. The kernel may only now get, and keep, an
    /// answer to somebody else with the attributes from before: it must not use that for whoever changed it.
    pub(super) fn changed(&self, directory: &Inode<E::Vnode>) {
        if directory.kept_briefly.swap(false, SeqCst) {
            self.stale_pages.forget_attributes(directory.number);
        }
    }

    /// For `map_err` after a `request` about `inode` failed: the log says which file it concerned.
    pub(super) fn failed(
        &self,
        inode: &Inode<E::Vnode>,
        request: &'static str,
    ) -> impl FnOnce(Error) -> Refused {
        move |error| self.refusal(inode, OsStr::new(""), request, &error)
    }

    /// The same for a request about the name `name` in the directory `parent`.
    pub(super) fn failed_at(
        &self,
        parent: &Inode<E::Vnode>,
        name: &OsStr,
        request: &'static str,
    ) -> impl FnOnce(Error) -> Refused {
        move |error| self.refusal(parent, name, request, &error)
    }

    fn refusal(
        &self,
        inode: &Inode<E::Vnode>,
        name: &OsStr,
        request: &'static str,
        error: &Error,
    ) -> Refused {
        if is_told(error) {
            let (tree, vnode) = self.engine.below(&inode.vnode);
            let mut file = tree.path_of(&vnode);
            if !name.is_empty() {
                file.push(name);
            }
            tracing::warn!(?file, request, %error, "a request failed");
        }
        Refused(Errno::from_i32(error.errno()))
    }
}

/// The kernel's form of attributes, under the kernel's number.
pub(super) fn attr<N>(inode: &Inode<N>, stat: &Stat) -> FileAttr {
    privileges::notice(inode, stat);
    kernel_attributes::file_attr(inode.number, stat)
}
