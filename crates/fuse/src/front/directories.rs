//! Reading directories.

use std::ffi::OsStr;

use fuser::{FileAttr, FileHandle, FileType, INodeNo};
use halocline_vfs::{Caller, Engine};

use super::names::Entry;
use super::{Answer, Front, OpenDir, attributes};

/// A name in a list.
#[derive(Debug)]
pub(crate) struct Listed<'a> {
    pub(crate) number: INodeNo,
    pub(crate) kind: FileType,
    pub(crate) name: &'a OsStr,
    /// Where reading goes on after it.
    pub(crate) next: u64,
}

impl<E: Engine> Front<E> {
    pub(crate) fn open_dir(&self, number: INodeNo, caller: Caller) -> Answer<FileHandle> {
        let place = self.place_for(caller.uid)?;
        let inode = self.inode(number)?;
        let dir = self.engine.open_dir(&inode.node).map_err(self.failed(&inode, "opendir"))?;
        Ok(self.dirs.insert(OpenDir { dir, _place: place }))
    }

    pub(crate) fn close_dir(&self, handle: FileHandle) {
        drop(self.dirs.remove(handle));
    }

    pub(crate) fn sync_dir(&self, handle: FileHandle) -> Answer<()> {
        Ok(self.engine.sync_dir(&self.dir(handle)?.dir)?)
    }

    /// Gives names from cookie `offset` on to `add` until it says that one has no room.
    pub(crate) fn list(
        &self,
        (dir, parent): (FileHandle, INodeNo),
        offset: u64,
        mut add: impl FnMut(Listed<'_>) -> bool,
    ) -> Answer<()> {
        let dir = self.dir(dir)?;
        let parent = self.inode(parent)?;
        self.engine.read_dir(&dir.dir, offset, &mut |entry| {
            let kind = attributes::entry_kind(entry.kind).or_else(|| {
                let found = self.engine.lookup(&parent.node, &entry.name);
                found.ok().map(|(_, stat)| attributes::kind(stat.raw.st_mode))
            });
            let Some(kind) = kind else { return true };
            let number = INodeNo(entry.inode);
            add(Listed { number, kind, name: &entry.name, next: entry.next })
        })?;
        Ok(())
    }

    /// The same with attributes, each a lookup that the kernel counts.
    pub(crate) fn list_plus(
        &self,
        (dir, parent): (FileHandle, INodeNo),
        offset: u64,
        mut add: impl FnMut(Listed<'_>, &Entry) -> bool,
    ) -> Answer<()> {
        let dir = self.dir(dir)?;
        let parent = self.inode(parent)?;
        self.engine.read_dir(&dir.dir, offset, &mut |entry| {
            let listed = |attr: &FileAttr| Listed {
                number: attr.ino,
                kind: attr.kind,
                name: &entry.name,
                next: entry.next,
            };
            if entry.name == "." || entry.name == ".." {
                // The kernel takes name and number of these and counts no lookup.
                let unknown = Entry::named_only(entry.inode);
                return add(listed(&unknown.attr), &unknown);
            }
            let Ok(found) = self.engine.lookup(&parent.node, &entry.name) else {
                // Gone since the directory was read.
                return true;
            };
            let known = self.entry(found);
            let added = add(listed(&known.attr), &known);
            if !added {
                self.forget(known.attr.ino, 1);
            }
            added
        })?;
        Ok(())
    }
}
