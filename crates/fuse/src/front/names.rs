//! Names, and what hangs on an inode rather than on an open file.

use std::ffi::{OsStr, OsString};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{FileAttr, FileHandle, FileType, INodeNo};
use halocline_vfs::{Caller, Engine, Make, Maker, SetAttr, Stat};

use super::{Answer, Front, privileges};

/// What the kernel is told of a name.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Attributes, under the number by which the kernel shall name the inode, also for the root.
    pub(crate) attr: FileAttr,
    /// Tells uses of one number apart.
    pub(crate) generation: u64,
    /// How long name and attributes may be kept.
    pub(crate) timeout: Duration,
}

impl Entry {
    /// An entry of which only the inode number is known.
    pub(super) fn named_only(number: u64) -> Self {
        let attr = FileAttr {
            ino: INodeNo(number),
            size: 0,
            blocks: 0,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: FileType::Directory,
            perm: 0,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        };
        Self { attr, generation: 0, timeout: Duration::ZERO }
    }
}

/// A name in a directory.
pub(crate) type Place<'a> = (INodeNo, &'a OsStr);

impl<E: Engine> Front<E> {
    pub(super) fn entry(&self, (node, stat): (E::Node, Stat)) -> Entry {
        let (inode, mut attr) = self.remember(node, &stat);
        attr.ino = INodeNo(inode.number);
        let timeout = self.timeout(&inode, &attr);
        Entry { attr, generation: inode.generation, timeout }
    }

    pub(crate) fn lookup(&self, (parent, name): Place<'_>) -> Answer<Entry> {
        let parent = self.inode(parent)?;
        let found = self.engine.lookup(&parent.node, name);
        Ok(self.entry(found.map_err(self.failed_at(&parent, name, "look-up"))?))
    }

    pub(crate) fn forget(&self, number: INodeNo, lookups: u64) {
        self.inodes.forget(number.0, lookups, |node| self.engine.key(node));
    }

    pub(crate) fn make(&self, place: Place<'_>, what: Make<'_>, by: Maker) -> Answer<Entry> {
        let parent = self.inode(place.0)?;
        let made = self.engine.make((&parent.node, place.1), what, by);
        Ok(self.entry(made.map_err(self.failed_at(&parent, place.1, "make"))?))
    }

    pub(crate) fn link(&self, number: INodeNo, (parent, name): Place<'_>) -> Answer<Entry> {
        let (inode, parent) = (self.inode(number)?, self.inode(parent)?);
        let stat = self.engine.link(&inode.node, &parent.node, name);
        let stat = stat.map_err(self.failed_at(&parent, name, "link"))?;
        Ok(self.entry((inode.node.clone(), stat)))
    }

    pub(crate) fn unlink(&self, (parent, name): Place<'_>) -> Answer<()> {
        let parent = self.inode(parent)?;
        self.engine.unlink(&parent.node, name).map_err(self.failed_at(&parent, name, "unlink"))
    }

    pub(crate) fn remove_dir(&self, (parent, name): Place<'_>) -> Answer<()> {
        let parent = self.inode(parent)?;
        self.engine.remove_dir(&parent.node, name).map_err(self.failed_at(&parent, name, "rmdir"))
    }

    /// `flags` are `renameat2(2)`'s.
    pub(crate) fn rename(&self, from: Place<'_>, to: Place<'_>, flags: u32) -> Answer<()> {
        let (old, new) = (self.inode(from.0)?, self.inode(to.0)?);
        let renamed = self.engine.rename((&old.node, from.1), (&new.node, to.1), flags);
        renamed.map_err(self.failed_at(&old, from.1, "rename"))
    }

    pub(crate) fn read_link(&self, number: INodeNo) -> Answer<OsString> {
        let inode = self.inode(number)?;
        self.engine.read_link(&inode.node).map_err(self.failed(&inode, "readlink"))
    }

    pub(crate) fn attributes(
        &self,
        number: INodeNo,
        handle: Option<FileHandle>,
    ) -> Answer<(Duration, FileAttr)> {
        let inode = self.inode(number)?;
        let file = handle.and_then(|handle| self.files.get(handle));
        let stat = self.engine.stat(&inode.node, file.as_ref().map(|file| &file.handle));
        let stat = stat.map_err(self.failed(&inode, "stat"))?;
        let attr = Self::attr(&inode, &stat);
        Ok((self.timeout(&inode, &attr), attr))
    }

    pub(crate) fn set_attributes(
        &self,
        number: INodeNo,
        handle: Option<FileHandle>,
        change: &SetAttr,
        caller: Caller,
    ) -> Answer<(Duration, FileAttr)> {
        let inode = self.inode(number)?;
        let file = handle.and_then(|handle| self.files.get(handle));
        let handle = file.as_ref().map(|file| &file.handle);
        if change.size.is_some() && caller.uid != 0 {
            self.drop_privileges(&inode, handle, caller)?;
        }
        privileges::forget(&inode);
        let stat = self.engine.set_attr(&inode.node, handle, change, caller);
        let stat = stat.map_err(self.failed(&inode, "change of attributes"))?;
        privileges::forget(&inode);
        let attr = Self::attr(&inode, &stat);
        Ok((self.timeout(&inode, &attr), attr))
    }

    pub(crate) fn totals(&self, number: INodeNo) -> Answer<libc::statvfs64> {
        Ok(self.engine.statfs(&self.inode(number)?.node)?)
    }
}
