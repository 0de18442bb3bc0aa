//! Reading directories.

use std::ffi::OsStr;
use std::sync::Arc;

use fuser::{Errno, FileAttr, FileHandle, FileType, INodeNo};
use halocline_vfs::engine::DirectoryBelow;
use halocline_vfs::{Caller, Engine};

use super::directory_places::DirectoryPlaces;
use super::handles::Handles;
use super::inodes::{Entry, Inodes};
use super::user_limits::{CountedOpen, UserLimits};
use super::{Answer, Refused, kernel_attributes};

/// A name in a list.
#[derive(Debug)]
pub(crate) struct Listed<'a> {
    pub(crate) number: INodeNo,
    pub(crate) kind: FileType,
    pub(crate) name: &'a OsStr,
    /// The cookie from which reading continues after it.
    pub(crate) next: u64,
}

/// A directory that a program has open.
#[derive(Debug)]
struct OpenDir<E: Engine> {
    dir: DirectoryBelow<E>,
    _counted: CountedOpen,
}

/// The directories that programs have open, by the kernel's handles.
#[derive(Debug)]
pub(crate) struct Directories<E: Engine> {
    engine: Arc<E>,
    inodes: Arc<Inodes<E>>,
    /// `None` where no other node renames directories.
    places: Option<Arc<DirectoryPlaces>>,
    limits: Arc<UserLimits>,
    dirs: Handles<OpenDir<E>>,
}

impl<E: Engine> Directories<E> {
    /// Starts with no directory open.
    pub(super) fn new(
        engine: &Arc<E>,
        (inodes, places): (&Arc<Inodes<E>>, Option<Arc<DirectoryPlaces>>),
        limits: &Arc<UserLimits>,
    ) -> Self {
        let (engine, inodes, limits) = (engine.clone(), inodes.clone(), limits.clone());
        Self { engine, inodes, places, limits, dirs: Handles::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.dirs.is_empty()
    }

    /// # Errors
    /// `EBADF` for a handle that was closed.
    fn get(&self, handle: FileHandle) -> Answer<Arc<OpenDir<E>>> {
        self.dirs.get(handle).ok_or(Refused(Errno::EBADF))
    }

    pub(crate) fn open(&self, number: INodeNo, caller: Caller) -> Answer<FileHandle> {
        let counted = self.limits.take(caller.uid)?;
        let inode = self.inodes.get(number)?;
        let dir =
            self.engine.open_dir(&inode.vnode).map_err(self.inodes.failed(&inode, "opendir"))?;
        Ok(self.dirs.insert(OpenDir { dir, _counted: counted }))
    }

    pub(crate) fn close(&self, handle: FileHandle) {
        drop(self.dirs.remove(handle));
    }

    pub(crate) fn sync(&self, handle: FileHandle) -> Answer<()> {
        Ok(self.engine.sync_dir(&self.get(handle)?.dir)?)
    }

    /// Passes names from cookie `offset` on to `add` until it reports that one has no room.
    pub(crate) fn list(
        &self,
        (dir, parent): (FileHandle, INodeNo),
        offset: u64,
        mut add: impl FnMut(Listed<'_>) -> bool,
    ) -> Answer<()> {
        let dir = self.get(dir)?;
        let parent = self.inodes.get(parent)?;
        self.engine.read_dir(&dir.dir, offset, &mut |entry| {
            let kind = kernel_attributes::entry_kind(entry.kind).or_else(|| {
                let found = self.engine.lookup(&parent.vnode, &entry.name);
                found.ok().map(|(_, stat)| kernel_attributes::kind(stat.raw.st_mode))
            });
            let Some(kind) = kind else { return true };
            let number = INodeNo(entry.inode);
            add(Listed { number, kind, name: &entry.name, next: entry.next })
        })?;
        Ok(())
    }

    /// The same with attributes; each counts as a lookup in the kernel.
    pub(crate) fn list_plus(
        &self,
        (dir, parent): (FileHandle, INodeNo),
        offset: u64,
        mut add: impl FnMut(Listed<'_>, &Entry) -> bool,
    ) -> Answer<()> {
        let dir = self.get(dir)?;
        let parent = self.inodes.get(parent)?;
        self.engine.read_dir(&dir.dir, offset, &mut |entry| {
            let listed = |attr: &FileAttr| Listed {
                number: attr.ino,
                kind: attr.kind,
                name: &entry.name,
                next: entry.next,
            };
            if entry.name == "." || entry.name == ".." {
                // The kernel uses name and number of these and counts no lookup.
                let unknown = Entry::named_only(entry.inode);
                return add(listed(&unknown.attr), &unknown);
            }
            let found = self.engine.lookup_listed(&dir.dir, &parent.vnode, &entry.name);
            let Ok(found) = found else {
                // Removed since the directory was read.
                return true;
            };
            let known = self.inodes.entry(found);
            let added = add(listed(&known.attr), &known);
            let is_forgotten = !added && self.inodes.forget(known.attr.ino, 1);
            match &self.places {
                Some(places) if added => {
                    places.listed(&known, (INodeNo(parent.number), &entry.name));
                }
                Some(places) if is_forgotten => places.forgotten(known.attr.ino.0),
                _ => {}
            }
            added
        })?;
        Ok(())
    }
}
