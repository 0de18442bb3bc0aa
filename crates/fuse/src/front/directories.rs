//! Reading directories.

use std::ffi::OsStr;
use std::sync::Arc;

use fuser::{Errno, FileAttr, FileHandle, FileType, INodeNo};
use halocline_os::error::{Error, Result};
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
    /// `None` if that cannot be found out now.
    pub(crate) kind: Option<FileType>,
    pub(crate) name: &'a OsStr,
    /// The cookie from which reading continues after it.
    pub(crate) next: u64,
}

/// What became of a name that was to be added to an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Added {
    /// The answer has it.
    Yes,
    /// The answer is full.
    NoRoom,
    /// The transport has no form for a name of which so little is known.
    NoForm,
}

impl From<bool> for Added {
    /// Whether there was room.
    fn from(had_room: bool) -> Self {
        if had_room { Self::Yes } else { Self::NoRoom }
    }
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
    ///
    /// A name that is there is never left out: if nobody says what it leads to, it is passed on without that. If it has
    /// no form then, the answer ends before it.
    ///
    /// # Errors
    /// That of the look-up, if the answer would begin with a name that has no form.
    pub(crate) fn list(
        &self,
        (dir, parent): (FileHandle, INodeNo),
        offset: u64,
        mut add: impl FnMut(Listed<'_>) -> Added,
    ) -> Answer<()> {
        let dir = self.get(dir)?;
        let parent = self.inodes.get(parent)?;
        let mut answer = ListAnswer::default();
        self.engine.read_dir(&dir.dir, offset, &mut |entry| {
            let mut kind = kernel_attributes::entry_kind(entry.kind);
            if kind.is_none() {
                let find = || self.engine.lookup(&parent.vnode, &entry.name);
                match answer.look_up(find, self.inodes.failed_at(&parent, &entry.name, "readdir")) {
                    Found::There((_, stat)) => {
                        kind = Some(kernel_attributes::kind(stat.raw.st_mode));
                    }
                    Found::Gone => return true,
                    Found::Unknown => {}
                }
            }
            let number = INodeNo(entry.inode);
            answer.added(add(Listed { number, kind, name: &entry.name, next: entry.next }))
        })?;
        answer.end()
    }

    /// The same with attributes; each counts as a lookup in the kernel. Without attributes where nobody says them now: then
    /// nothing counts, and the kernel looks the name up when a program asks for it.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    pub(crate) fn list_plus(
        &self,
        (dir, parent): (FileHandle, INodeNo),
        offset: u64,
        mut add: impl FnMut(Listed<'_>, Option<&Entry>) -> Added,
    ) -> Answer<()> {
        let dir = self.get(dir)?;
        let parent = self.inodes.get(parent)?;
        let mut answer = ListAnswer::default();
        self.engine.read_dir(&dir.dir, offset, &mut |entry| {
            let (name, next) = (&*entry.name, entry.next);
            let listed =
                |attr: &FileAttr| Listed { number: attr.ino, kind: Some(attr.kind), name, next };
            if name == "." || name == ".." {
                // The kernel uses name and number of these and counts no lookup.
                let unknown = Entry::named_only(entry.inode, FileType::Directory);
                return answer.added(add(listed(&unknown.attr), Some(&unknown)));
            }
            let find = || self.engine.lookup_listed(&dir.dir, &parent.vnode, name);
            let found =
                match answer.look_up(find, self.inodes.failed_at(&parent, name, "readdirplus")) {
                    Found::There(found) => found,
                    Found::Gone => return true,
                    Found::Unknown => {
                        let kind = kernel_attributes::entry_kind(entry.kind);
                        let number = INodeNo(entry.inode);
                        return answer.added(add(Listed { number, kind, name, next }, None));
                    }
                };
            let known = self.inodes.entry(found);
            let added = answer.added(add(listed(&known.attr), Some(&known)));
            let is_forgotten = !added && self.inodes.forget(known.attr.ino, 1);
            match &self.places {
                Some(places) if added => {
                    places.listed(&known, (INodeNo(parent.number), name));
                }
                Some(places) if is_forgotten => places.forgotten(known.attr.ino.0),
                _ => {}
            }
            added
        })?;
        answer.end()
    }
}

/// What a look-up of a listed name found.
#[derive(Debug, PartialEq, Eq)]
enum Found<T> {
    /// This.
    There(T),
    /// It was removed since the directory was read.
    Gone,
    /// Whoever has it does not say: the name is there.
    Unknown,
}

/// One answer to a request for names.
///
/// After one look-up has failed, no other is made for this answer: each may take as long as a store, or a server, that does not answer is waited
/// for.
#[derive(Debug, Default)]
struct ListAnswer {
    /// The error of the look-up that failed.
    failed: Option<Refused>,
    has_names: bool,
    /// Whether it ends before a name that has no form.
    is_cut: bool,
}

impl ListAnswer {
    /// Looks up a name that was listed; `failed` notes the error.
    fn look_up<T>(
        &mut self,
        find: impl FnOnce() -> Result<T>,
        failed: impl FnOnce(Error) -> Refused,
    ) -> Found<T> {
        if self.failed.is_some() {
            return Found::Unknown;
        }
        match find() {
            Ok(found) => Found::There(found),
            Err(error) if error.errno() == libc::ENOENT => Found::Gone,
            Err(error) => {
                self.failed = Some(failed(error));
                Found::Unknown
            }
        }
    }

    /// Notes what became of a name; whether the next one is to follow.
    fn added(&mut self, added: Added) -> bool {
        self.has_names |= added == Added::Yes;
        self.is_cut |= added == Added::NoForm;
        added == Added::Yes
    }

    /// An answer without names would say that the directory ends.
    fn end(self) -> Answer<()> {
        match self.failed {
            Some(failed) if self.is_cut && !self.has_names => Err(failed),
            _ => Ok(()),
        }
    }
}
