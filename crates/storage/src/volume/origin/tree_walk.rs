//! Entries in the tree of a striped origin, accessed by descriptors because others may change its names at any time.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use halocline_os::beneath::{TreeCursor, open_entry};
use halocline_os::birth_time::born_ns_of;
use halocline_os::clock::Clock;
use halocline_os::error::{Error, Result};
use halocline_os::leased_files::{Patience, open_at};
use halocline_os::user_mounts::is_served_by_another_user;
use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, openat, syncfs};
use rustix::io::Errno;

use super::Origin;
use super::file::OriginFile;
use super::identity::{ObjectNumber, Reference};

/// A directory to be searched; not followed if it is a link.
pub(in crate::volume) const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);

/// How often a tree whose names change is read.
const TRIES: usize = 3;
/// At least one tick of the kernel's clock, by which it notes changes.
const TICK: Duration = Duration::from_millis(20);

/// How long this process still waits for leases of files: it has one command, which goes from file to file.
static PATIENCE: Patience = Patience::new();

/// What could not be read of a tree: an error for each directory, or file. What lies there is not known: nothing may be taken for
/// missing then.
pub(crate) type Unread = Vec<Error>;

/// A file to copy. Others may change names of the tree at any time, so everything is done to what was found first.
pub(in crate::volume) struct TreeEntry {
    /// An `O_PATH` descriptor, or a directory.
    pub(in crate::volume) fd: OwnedFd,
    pub(in crate::volume) found: Metadata,
    pub(in crate::volume) shown: PathBuf,
}

impl TreeEntry {
    pub(in crate::volume) fn of(fd: OwnedFd, shown: PathBuf) -> Result<Self> {
        // A link is opened itself.
        let found = File::from(fd.try_clone()?).metadata().map_err(Error::at(&shown, "stat"))?;
        Ok(Self { fd, found, shown })
    }

    /// Opens it for reading.
    pub(in crate::volume) fn open(&self) -> Result<OwnedFd> {
        let path = by_descriptor(&self.fd);
        let open = || open_at(CWD, &*path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let is_leased = |opened: &Result<_, Errno>| opened.as_ref().err() == Some(&Errno::AGAIN);
        PATIENCE.wait(&Clock::MACHINE, open, is_leased).map_err(at(&self.shown, "open"))
    }

    /// Opens its data; `flags` are those of `open(2)`.
    pub(in crate::volume) fn open_data(&self, of: &Origin, flags: i32) -> io::Result<OriginFile> {
        let open = || of.open_data(self.fd.as_fd(), flags);
        let is_leased = |opened: &io::Result<_>| {
            opened.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EAGAIN))
        };
        PATIENCE.wait(&Clock::MACHINE, open, is_leased)
    }
}

/// The regular file at `relative`, its path below the mount. `or_else` is what else can be done where it is none.
pub(in crate::volume) fn file(
    origin: &Origin,
    relative: &Path,
    or_else: &str,
) -> Result<TreeEntry> {
    if relative.components().any(|part| !matches!(part, Component::Normal(_) | Component::CurDir)) {
        return Err(Error::invalid(
            format!("{}: not a path below the origin", relative.display()),
            "give its path from the mount point on, such as `dir/file`, without ..",
        ));
    }
    let shown = origin.namespace_dir().join(relative);
    let from = match open_below(tree(origin)?, relative) {
        Err((Errno::LOOP, _)) => None,
        Err((Errno::XDEV, place)) => {
            return Err(unreadable(&origin.namespace_dir().join(place), Errno::XDEV));
        }
        Err((errno @ (Errno::ACCESS | Errno::PERM | Errno::NOTCONN | Errno::STALE), _)) => {
            return Err(unreadable(&shown, errno));
        }
        other => Some(other.map_err(|(errno, _)| at(&shown, "find")(errno))?),
    };
    let from = from.map(|from| TreeEntry::of(from, shown.clone())).transpose()?;
    from.filter(|from| from.found.is_file()).ok_or_else(|| {
        Error::invalid(
            format!("{}: not a regular file", shown.display()),
            format!("give a file below directories that are not links, or {or_else}"),
        )
    })
}

/// Opens what is at `relative` below `top`, one name after another: a file system that another user serves is asked for nothing. An
/// error comes with the path at which it came.
fn open_below(top: OwnedFd, relative: &Path) -> std::result::Result<OwnedFd, (Errno, PathBuf)> {
    let (mut opened, mut place) = (top, PathBuf::new());
    for name in relative.components() {
        place.push(name);
        let next = open_entry(&opened, name.as_os_str(), OFlags::empty());
        opened = next.map_err(|errno| match errno {
            Errno::NOTDIR if is_link(&opened) => (Errno::LOOP, place.clone()),
            errno => (errno, place.clone()),
        })?;
    }
    if is_link(&opened) { Err((Errno::LOOP, place)) } else { Ok(opened) }
}

fn is_link(opened: &OwnedFd) -> bool {
    fstat(opened).is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Symlink)
}

/// The root of a volume's tree.
pub(in crate::volume) fn tree(origin: &Origin) -> Result<OwnedFd> {
    let dir = origin.namespace_dir();
    openat(CWD, dir, DIRECTORY, Mode::empty()).map_err(at(dir, "open"))
}

/// A path to what a descriptor refers to, whatever its name is by now.
pub(in crate::volume) fn by_descriptor(fd: &impl AsFd) -> PathBuf {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()).into()
}

pub(in crate::volume) fn at(path: &Path, what: &'static str) -> impl FnOnce(Errno) -> Error {
    let path = path.to_owned();
    move |errno| Error::at(&path, what)(errno.into())
}

/// A regular file of a tree, under one of its names.
pub(super) struct FoundFile<'w> {
    directory: BorrowedFd<'w>,
    /// An `O_PATH` descriptor.
    file: BorrowedFd<'w>,
    /// Its path, for people.
    pub(super) shown: PathBuf,
}

/// What was found of a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct FileState {
    /// The object to which it refers.
    pub(super) reference: Reference,
    pub(super) inode: u64,
    /// Its birth time, in nanoseconds since 1970; 0 if the file system tells none.
    pub(super) born_ns: u64,
    pub(super) len: u64,
    /// Its owner's number.
    pub(super) owner: u32,
}

impl FoundFile<'_> {
    /// The file system of its name, to be synced, and its device number.
    pub(super) fn file_system(&self) -> Result<(u64, OwnedFd)> {
        let opened = openat(self.directory, ".", DIRECTORY, Mode::empty());
        let opened = opened.and_then(|opened| Ok((fstat(&opened)?.st_dev, opened)));
        opened.map_err(at(&self.shown, "look at the directory of"))
    }

    /// A path that leads to it, whoever renames it.
    pub(super) fn path(&self) -> PathBuf {
        by_descriptor(&self.file)
    }

    /// Its state. All of it is that of one file, whoever renames others meanwhile: of which file an object is decides what
    /// becomes of its data.
    fn state(&self, found: &Stat) -> Result<FileState> {
        let reference = ObjectNumber::named_by(&self.path())
            .map_err(Error::at(&self.shown, "read the object of"))?;
        let born_ns = born_ns_of(self.file).map_err(at(&self.shown, "stat"))?;
        let (inode, len) = (found.st_ino, found.st_size.unsigned_abs());
        Ok(FileState { reference, inode, born_ns, len, owner: found.st_uid })
    }
}

/// What is done with each name of a regular file. An error ends the walk.
pub(super) type Look<'l> = &'l mut dyn FnMut(&FoundFile, &FileState) -> Result<()>;

/// Calls `look` for each name of a regular file below `tree`. Programs and users can make directories whose paths are
/// longer than a system call takes, that nobody can read, or on which they mount file systems of their own: none of that keeps others'
/// files from being looked at.
pub(super) fn each_file(tree: &Path, look: Look<'_>) -> Result<Unread> {
    walk(tree, Some(look), &mut |_| Ok(()))
}

/// The same, unless names of the tree changed meanwhile: `None`. Only if none did, and all was read, are these all files: one that was moved from a
/// directory that was not read yet to one that was has no name here, and is there. Tries again a few times; `look` must
/// stand to be called more than once for a file.
pub(super) fn each_file_if_still(tree: &Path, look: Look<'_>) -> Result<Option<Unread>> {
    for _ in 0..TRIES {
        let read = read_still(tree, &mut *look)?;
        if read.is_some() {
            return Ok(read);
        }
    }
    Ok(None)
}

/// Walks, and then compares the directories with those that the walk has read: each change of a name changes the time of its
/// directory.
fn read_still(tree: &Path, look: Look<'_>) -> Result<Option<Unread>> {
    let (mut before, mut after) = (BTreeMap::new(), BTreeMap::new());
    let mut is_known = true;
    let unread = walk(tree, Some(look), &mut |dir| {
        let mut found = fstat(dir)?;
        // Nothing is to be known any more where one directory changes all the time.
        if is_known && is_fresh(&found) {
            // A second change in the same tick of the clock would not be seen.
            Clock::MACHINE.sleep(TICK);
            found = fstat(dir)?;
            is_known = !is_fresh(&found);
        }
        is_known &= before.insert((found.st_dev, found.st_ino), changed(&found)).is_none();
        Ok(())
    })?;
    if !is_known {
        return Ok(None);
    }
    walk(tree, None, &mut |dir| {
        let found = fstat(dir)?;
        after.insert((found.st_dev, found.st_ino), changed(&found));
        Ok(())
    })?;
    Ok((before == after).then_some(unread))
}

/// Makes the names below `tree` durable, on each of its file systems.
pub(super) fn sync_file_systems(tree: &Path) -> Result<()> {
    let mut synced = BTreeSet::new();
    let unread = walk(tree, None, &mut |dir| {
        let is_new = synced.insert(fstat(dir)?.st_dev);
        if is_new { syncfs(openat(dir, ".", DIRECTORY, Mode::empty())?) } else { Ok(()) }
    })?;
    unread.into_iter().next().map_or(Ok(()), Err)
}

/// Total bytes of all files below `tree`, each counted once.
pub(in crate::volume) fn tree_bytes(tree: &Path) -> Result<(u64, Unread)> {
    let (mut seen, mut total) = (BTreeSet::new(), 0_u64);
    let unread = each_file(tree, &mut |_, state| {
        if seen.insert((state.inode, state.born_ns)) {
            total = total.saturating_add(state.len);
        }
        Ok(())
    })?;
    Ok((total, unread))
}

const fn changed(found: &Stat) -> (i64, i64) {
    (found.st_ctime, found.st_ctime_nsec.cast_signed())
}

/// Whether it was changed in the last tick of the kernel's clock, or in the future.
fn is_fresh(found: &Stat) -> bool {
    let (seconds, nanoseconds) = changed(found);
    let then = i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds);
    i128::from(Clock::MACHINE.now_ns()) - then < i128::try_from(TICK.as_nanos()).unwrap_or(0)
}

/// Goes through all directories below `tree` in which no other user serves a file system. The root must be readable.
fn walk(
    tree: &Path,
    mut look: Option<Look<'_>>,
    enters: &mut dyn FnMut(BorrowedFd<'_>) -> std::result::Result<(), Errno>,
) -> Result<Unread> {
    let root = openat(CWD, tree, DIRECTORY, Mode::empty()).map_err(at(tree, "list"))?;
    let mut cursor = TreeCursor::new(root).map_err(at(tree, "list"))?;
    let mut open = vec![(0, OsString::new())];
    // The path of the directory in which the cursor is.
    let mut shown = tree.to_owned();
    let mut unread = Unread::new();
    while let Some((depth, name)) = open.pop() {
        if let Some(above) = usize::checked_sub(depth, 1) {
            let before = cursor.depth();
            let found = cursor.leave_to(above);
            for _ in cursor.depth()..before {
                shown.pop();
            }
            let entered = found.and_then(|()| cursor.enter(&name));
            match entered {
                // It was removed meanwhile, or something else took its place.
                Err(Errno::NOENT | Errno::NOTDIR) => continue,
                Err(errno) => {
                    unread.push(unreadable(&shown.join(&name), errno));
                    continue;
                }
                Ok(()) => shown.push(&name),
            }
        }
        let entered = enters(cursor.directory().as_fd()).and_then(|()| cursor.names());
        let names = match entered {
            Err(errno) if depth == 0 => return Err(at(tree, "list")(errno)),
            Err(Errno::NOENT) => continue,
            Err(errno) => {
                unread.push(unreadable(&shown, errno));
                continue;
            }
            Ok(names) => names,
        };
        for name in names {
            let opened = open_entry(cursor.directory(), &name, OFlags::empty());
            let (file, found) = match opened.and_then(|file| Ok((fstat(&file)?, file))) {
                Err(Errno::NOENT) => continue,
                Err(errno) => {
                    unread.push(unreadable(&shown.join(&name), errno));
                    continue;
                }
                Ok((found, file)) => (file, found),
            };
            match FileType::from_raw_mode(found.st_mode) {
                FileType::Directory => open.push((depth + 1, name)),
                FileType::RegularFile => {
                    let Some(look) = &mut look else { continue };
                    let directory = cursor.directory();
                    let file = file.as_fd();
                    let place = FoundFile { directory, file, shown: shown.join(&name) };
                    match place.state(&found) {
                        Ok(state) => look(&place, &state)?,
                        Err(error) => unread.push(error),
                    }
                }
                _ => {}
            }
        }
    }
    Ok(unread)
}

/// Refuses a file on a file system that another user serves: of it he says what he likes, also the inode number of another file.
/// `tree_device` is the device number of the tree.
pub(super) fn check_file_system(file: impl AsFd, tree_device: u64) -> io::Result<()> {
    if fstat(&file)?.st_dev == tree_device || !is_served_by_another_user(file)? {
        return Ok(());
    }
    let what = "it is on a file system that another user has mounted in the tree; unmount that";
    Err(io::Error::new(io::ErrorKind::InvalidData, what))
}

/// Why a directory, or what is called so, could not be read, and what to do about it.
pub(in crate::volume) fn unreadable(shown: &Path, errno: Errno) -> Error {
    let remedy = match errno {
        Errno::XDEV => {
            let what = format!("{}: another user has mounted a file system there", shown.display());
            return Error::invalid(what, "unmount it (umount -l), and look again");
        }
        Errno::ACCESS | Errno::PERM => {
            "give its owner the permission to read it (chmod u+rwx), or run this as root"
        }
        Errno::NOTCONN | Errno::STALE | Errno::IO => {
            "unmount what is mounted there (umount -l), or end what moves it, and look again"
        }
        _ => "look again when it can be read",
    };
    Error::invalid(
        format!("{}: cannot be read: {}", shown.display(), io::Error::from(errno)),
        remedy,
    )
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    /// Regression: of a file that its owner moved while the tree was read, no name was found, and its data was removed.
    #[test]
    fn a_walk_that_misses_a_file_that_is_moved_meanwhile_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let (here, there) = (dir.path().join("a"), dir.path().join("b"));
        for dir in [&here, &there] {
            fs::create_dir(dir).unwrap();
        }
        fs::write(here.join("moved"), "").unwrap();
        fs::write(there.join("stays"), "").unwrap();
        let walk = || {
            let mut seen = Vec::new();
            let read = each_file_if_still(dir.path(), &mut |file, _| {
                seen.push(file.shown.file_name().unwrap().to_owned());
                Ok(())
            });
            let is_still = read.map(|read| read.is_some_and(|unread| unread.is_empty()));
            is_still.map(|it| (it, ["moved", "stays"].map(|name| seen.iter().any(|it| it == name))))
        };
        let all = (true, [true, true]);
        assert_eq!(walk().unwrap(), all);
        let is_over = AtomicBool::new(false);
        let walked = thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    fs::rename(here.join("moved"), there.join("moved")).unwrap();
                    fs::rename(there.join("moved"), here.join("moved")).unwrap();
                }
            });
            // The thread may begin late on a busy machine.
            let (mut told, mut walked) = (0, Vec::new());
            while told < 10 && walked.len() < 10_000 {
                walked.push(walk());
                told += match walked.last() {
                    Some(Ok((false, _))) => 1,
                    Some(Ok((true, _))) | None => 0,
                    Some(Err(_)) => break,
                };
            }
            // Nothing ends the scope before the thread ends, so that what failed is told after it.
            is_over.store(true, Ordering::Relaxed);
            walked
        });
        let walked: Vec<_> = walked.into_iter().map(|walk| walk.unwrap()).collect();
        let wrong = walked.iter().filter(|walked| walked.0 && **walked != all).count();
        let told = walked.iter().filter(|walked| !walked.0).count();
        assert_eq!((wrong, told), (0, 10));
        assert_eq!(walk().unwrap(), all);
    }
}
