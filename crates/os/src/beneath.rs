//! Resolves paths strictly below a directory.
//!
//! Others may own directories below one that we change with our rights, and may replace one of them by a symbolic link
//! at any moment. What must hold: a path is resolved from an open directory, through real directories only; names are
//! changed through descriptors of their parents.
//!
//! Paths may be longer than a system call takes: users make such trees by moving deep directories below one another.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use rustix::io::Errno;

use crate::user_mounts::is_served_by_another_user;

/// Set if the kernel, or a filter of system calls, does not support `openat2`.
static WALKS: AtomicBool = AtomicBool::new(false);

/// The longest path that a system call takes, without the byte at its end.
const CALL_BYTES_MAX: usize = 4095;

/// Opens `path`, of any length, below `dir`; an empty path is the directory itself.
///
/// # Errors
/// `ELOOP` or `ENOTDIR` if a symbolic link is on the path or at its end; `EXDEV` for a path that leads out of `dir`.
pub fn open(dir: impl AsFd, path: &Path, flags: OFlags, mode: Mode) -> rustix::io::Result<OwnedFd> {
    let mut rest = path.as_os_str().as_bytes();
    let mut above: Option<OwnedFd> = None;
    while rest.len() > CALL_BYTES_MAX {
        let end = rest[..=CALL_BYTES_MAX].iter().rposition(|byte| *byte == b'/');
        let (piece, others) = rest.split_at(end.filter(|end| *end > 0).ok_or(Errno::NAMETOOLONG)?);
        let through = OFlags::PATH | OFlags::DIRECTORY;
        let piece = Path::new(OsStr::from_bytes(piece));
        let from = above.as_ref().map_or(dir.as_fd(), AsFd::as_fd);
        above = Some(open_piece(from, piece, through, Mode::empty())?);
        rest = others.strip_prefix(b"/").unwrap_or(others);
    }
    let from = above.as_ref().map_or(dir.as_fd(), AsFd::as_fd);
    open_piece(from, Path::new(OsStr::from_bytes(rest)), flags, mode)
}

/// As [`open`], for a path that one system call takes.
fn open_piece(
    dir: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    mode: Mode,
) -> rustix::io::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let flags = flags | OFlags::CLOEXEC;
    if !WALKS.load(Ordering::Relaxed) {
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        // `NOFOLLOW` would allow a symbolic link at the end of the path, which must not be one either.
        match openat2(dir, path, flags.difference(OFlags::NOFOLLOW), mode, how) {
            Err(Errno::NOSYS) => WALKS.store(true, Ordering::Relaxed),
            // A filter of system calls may give this error for any call that it does not know.
            Err(Errno::PERM) if is_refused(dir) => WALKS.store(true, Ordering::Relaxed),
            other => return other,
        }
    }
    walk(dir, path, flags, mode)
}

fn is_refused(dir: BorrowedFd<'_>) -> bool {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    matches!(openat2(dir, ".", flags, Mode::empty(), ResolveFlags::BENEATH), Err(Errno::PERM))
}

/// Opens what is called `name` in `dir` with [`OFlags::PATH`], also a symbolic link itself. On a file system that another user
/// serves nothing is asked for.
///
/// # Errors
/// `EXDEV` for the mount point of such a file system.
pub fn open_entry(dir: impl AsFd, name: &OsStr, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = flags | OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    if !WALKS.load(Ordering::Relaxed) {
        match openat2(&dir, name, flags, Mode::empty(), ResolveFlags::NO_XDEV) {
            Err(Errno::XDEV) => {}
            Err(Errno::NOSYS) => WALKS.store(true, Ordering::Relaxed),
            Err(Errno::PERM) if is_refused(dir.as_fd()) => WALKS.store(true, Ordering::Relaxed),
            other => return other,
        }
    }
    let opened = openat(&dir, name, flags, Mode::empty())?;
    match is_served_by_another_user(&opened) {
        Ok(true) => Err(Errno::XDEV),
        Ok(false) => Ok(opened),
        Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
    }
}

/// As [`open_piece`], but opens one name after another.
fn walk(
    dir: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    mode: Mode,
) -> rustix::io::Result<OwnedFd> {
    let mut names = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => names.push(name),
            Component::CurDir => {}
            _ => return Err(Errno::XDEV),
        }
    }
    let (last, above) = match names.split_last() {
        Some((last, above)) => (*last, above),
        None => (OsStr::new("."), [].as_slice()),
    };
    let through = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at: Option<OwnedFd> = None;
    for name in above {
        let from = at.as_ref().map_or(dir, AsFd::as_fd);
        at = Some(openat(from, *name, through, Mode::empty())?);
    }
    let from = at.as_ref().map_or(dir, AsFd::as_fd);
    let opened = openat(from, last, flags | OFlags::NOFOLLOW, mode)?;
    // With `PATH` and without following, the link itself could be opened.
    let is_link = flags.contains(OFlags::PATH)
        && FileType::from_raw_mode(fstat(&opened)?.st_mode) == FileType::Symlink;
    if is_link { Err(Errno::LOOP) } else { Ok(opened) }
}

/// The directory that a name is in.
#[derive(Debug)]
pub enum Parent<'d> {
    /// The one where the path begins.
    Top(BorrowedFd<'d>),
    /// One below that.
    Below(OwnedFd),
}

impl AsFd for Parent<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Top(fd) => *fd,
            Self::Below(fd) => fd.as_fd(),
        }
    }
}

/// The directory of `path` below `dir`, and the name in it: for calls that change names.
///
/// # Errors
/// As [`open`]; `EINVAL` for a path without a name.
pub fn parent<'d, 'p>(
    dir: BorrowedFd<'d>,
    path: &'p Path,
) -> rustix::io::Result<(Parent<'d>, &'p OsStr)> {
    let name = path.file_name().ok_or(Errno::INVAL)?;
    let above = match path.parent().filter(|above| !above.as_os_str().is_empty()) {
        None => Parent::Top(dir),
        Some(above) => {
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            Parent::Below(open(dir, above, flags, Mode::empty())?)
        }
    };
    Ok((above, name))
}

/// Names in an open directory, unordered, without `.` and `..`.
pub fn names(dir: impl AsFd) -> rustix::io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let name = OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned();
        if name != "." && name != ".." {
            names.push(name);
        }
    }
    Ok(names)
}

/// Goes through a tree from directory to directory. One descriptor is open, however deep that is, and each step costs the
/// same.
#[derive(Debug)]
pub struct TreeCursor {
    root: OwnedFd,
    at: OwnedFd,
    /// The directories passed, from the root on: the name of each, and device and inode number of the one above it.
    passed: Vec<(OsString, (u64, u64))>,
}

const THROUGH: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl TreeCursor {
    /// Begins in the directory `root`.
    ///
    /// # Errors
    /// Those of `openat(2)`.
    pub fn new(root: impl AsFd) -> rustix::io::Result<Self> {
        let open = || openat(&root, ".", THROUGH, Mode::empty());
        Ok(Self { root: open()?, at: open()?, passed: Vec::new() })
    }

    /// How many directories below the root it is.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.passed.len()
    }

    /// The directory in which it is, opened with [`OFlags::PATH`].
    #[must_use]
    pub fn directory(&self) -> BorrowedFd<'_> {
        self.at.as_fd()
    }

    /// Goes into a directory below.
    ///
    /// # Errors
    /// `ENOTDIR` for anything else, also a symbolic link; `EXDEV` as [`open_entry`].
    pub fn enter(&mut self, name: &OsStr) -> rustix::io::Result<()> {
        let above = key(&self.at)?;
        self.at = open_entry(&self.at, name, THROUGH)?;
        self.passed.push((name.to_owned(), above));
        Ok(())
    }

    /// Goes back up until it is `depth` directories below the root. If a directory that was passed was moved to elsewhere, or
    /// something is mounted over the one above, it finds the one at that depth by its path again.
    ///
    /// # Errors
    /// `ESTALE`, or why it cannot be opened, if that directory is no longer there. It stays where it is then; directories at
    /// lower depths may still be found.
    pub fn leave_to(&mut self, depth: usize) -> rustix::io::Result<()> {
        while self.passed.len() > depth
            && let Some((_, above)) = self.passed.last()
        {
            let up = open_entry(&self.at, OsStr::new(".."), THROUGH);
            match up.and_then(|up| Ok((key(&up)?, up))) {
                Ok((found, up)) if found == *above => {
                    self.at = up;
                    self.passed.pop();
                }
                _ => {
                    self.at = self.passed_by_path(depth)?;
                    self.passed.truncate(depth);
                }
            }
        }
        Ok(())
    }

    /// The directory that was passed at this depth.
    fn passed_by_path(&self, depth: usize) -> rustix::io::Result<OwnedFd> {
        let mut found = openat(&self.root, ".", THROUGH, Mode::empty())?;
        for (name, _) in &self.passed[..depth] {
            found = open_entry(&found, name, THROUGH)?;
        }
        if key(&found)? == self.passed[depth].1 { Ok(found) } else { Err(Errno::STALE) }
    }

    /// The names in the directory in which it is, unordered.
    ///
    /// # Errors
    /// Those of `openat(2)` and `getdents64(2)`.
    pub fn names(&self) -> rustix::io::Result<Vec<OsString>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        names(openat(&self.at, ".", flags, Mode::empty())?)
    }
}

fn key(fd: &OwnedFd) -> rustix::io::Result<(u64, u64)> {
    fstat(fd).map(|stat| (stat.st_dev, stat.st_ino))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use rustix::fs::mkdirat;

    use super::*;

    /// Both ways of resolving give the same results.
    #[test]
    fn nothing_but_real_directories_below_is_passed() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        fs::create_dir_all(at("top/dir/deep")).unwrap();
        fs::create_dir(at("outside")).unwrap();
        for file in ["top/file", "top/dir/file", "top/dir/deep/file", "outside/file"] {
            fs::write(at(file), file).unwrap();
        }
        symlink(at("outside"), at("top/out")).unwrap();
        symlink("dir", at("top/in")).unwrap();
        symlink("file", at("top/link")).unwrap();
        let top = File::open(at("top")).unwrap();
        for flags in [OFlags::RDONLY, OFlags::PATH, OFlags::PATH | OFlags::NOFOLLOW] {
            let each = |path: &str| {
                let path = Path::new(path);
                let walked = walk(top.as_fd(), path, flags, Mode::empty()).map(drop);
                assert_eq!(
                    open(&top, path, flags, Mode::empty()).map(drop).is_ok(),
                    walked.is_ok()
                );
                walked
            };
            for path in ["file", "dir/file", "dir/deep/file", "dir", ".", "./dir"] {
                assert!(each(path).is_ok(), "{path}");
            }
            for path in ["out/file", "in/file", "link", "out", "../outside/file", "dir/../file/x"] {
                assert!(each(path).is_err(), "{path}");
            }
        }
        assert!(parent(top.as_fd(), Path::new("out/file")).is_err());
        let (dir, name) = parent(top.as_fd(), Path::new("dir/deep/file")).unwrap();
        rustix::fs::unlinkat(&dir, name, rustix::fs::AtFlags::empty()).unwrap();
        assert!(!at("top/dir/deep/file").exists());
    }

    /// Makes directories with names of 255 bytes below one another; returns the path of the last.
    fn deep(top: &File, levels: usize) -> PathBuf {
        let name = "d".repeat(255);
        let mut cursor = TreeCursor::new(top).unwrap();
        for _ in 0..levels {
            mkdirat(cursor.directory(), name.as_str(), Mode::RWXU).unwrap();
            cursor.enter(OsStr::new(&name)).unwrap();
        }
        vec![name; levels].iter().collect()
    }

    /// Regression: `ENAMETOOLONG`. Pieces of a path end at and around the length that a call takes.
    #[test]
    fn paths_longer_than_a_call_takes_are_opened() {
        let scratch = tempfile::tempdir().unwrap();
        let top = File::open(scratch.path()).unwrap();
        for levels in [15, 31, 150] {
            let path = deep(&top, levels);
            for last in 248..=255 {
                let path = path.join("e".repeat(last));
                for below in ["", "f", "f/gg", "f/gg/h", "f/gg/h/i"] {
                    let path = path.join(below);
                    let (above, name) = parent(top.as_fd(), &path).unwrap();
                    mkdirat(&above, name, Mode::RWXU).unwrap();
                    let opened = open(&top, &path, OFlags::RDONLY, Mode::empty()).unwrap();
                    let walked = walk(top.as_fd(), &path, OFlags::RDONLY, Mode::empty()).unwrap();
                    assert_eq!(key(&opened), key(&walked), "{}", path.as_os_str().len());
                    let missing = open(&top, &path.join("x"), OFlags::PATH, Mode::empty());
                    assert_eq!(missing.map(drop), Err(Errno::NOENT));
                }
            }
            fs::rename(scratch.path().join("d".repeat(255)), scratch.path().join("done")).unwrap();
            fs::remove_dir_all(scratch.path().join("done")).unwrap();
        }
        for bytes in [256, 4095, 4096, 9000] {
            let name = "x".repeat(bytes);
            let opened = open(&top, Path::new(&name), OFlags::PATH, Mode::empty());
            assert_eq!(opened.map(drop), Err(Errno::NAMETOOLONG));
        }
    }

    /// A link at the end of a piece of a path leads nowhere, as everywhere else.
    #[test]
    fn links_on_a_long_path_are_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let top = File::open(scratch.path()).unwrap();
        let path = deep(&top, 30);
        for at in 1..30 {
            let link: PathBuf = path.iter().take(at - 1).collect();
            let link = link.join("l");
            let (above, _) = parent(top.as_fd(), &link).unwrap();
            rustix::fs::symlinkat("d".repeat(255), &above, "l").unwrap();
            let rest: PathBuf = path.iter().skip(at).collect();
            let opened = open(&top, &link.join(rest), OFlags::PATH, Mode::empty());
            assert_eq!(opened.map(drop), Err(Errno::LOOP), "{at}");
            rustix::fs::unlinkat(&above, "l", rustix::fs::AtFlags::empty()).unwrap();
        }
    }

    #[test]
    fn a_cursor_finds_its_way_back_though_directories_move() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        fs::create_dir_all(at("a/b/c")).unwrap();
        fs::create_dir(at("elsewhere")).unwrap();
        let go = |names: &[&str]| {
            let mut cursor = TreeCursor::new(File::open(scratch.path()).unwrap()).unwrap();
            for name in names {
                cursor.enter(OsStr::new(name)).unwrap();
            }
            cursor
        };
        let mut cursor = go(&["a", "b", "c"]);
        fs::rename(at("a/b/c"), at("elsewhere/c")).unwrap();
        cursor.leave_to(2).unwrap();
        assert_eq!((cursor.depth(), cursor.names().unwrap().len()), (2, 0));
        cursor.leave_to(0).unwrap();
        assert_eq!(cursor.names().unwrap().len(), 2);
        // Nothing above the root is reached, nor anything that took the place.
        let mut cursor = go(&["elsewhere", "c"]);
        fs::rename(at("elsewhere"), at("a/b/elsewhere")).unwrap();
        fs::create_dir(at("elsewhere")).unwrap();
        cursor.leave_to(1).unwrap();
        assert_eq!(cursor.names().unwrap(), ["c"]);
        cursor.leave_to(0).unwrap();
        assert_eq!(cursor.names().unwrap().len(), 2);
        let mut cursor = go(&["a", "b", "elsewhere", "c"]);
        fs::rename(at("a/b/elsewhere/c"), at("c")).unwrap();
        fs::rename(at("a/b/elsewhere"), at("gone")).unwrap();
        assert_eq!(cursor.leave_to(3), Err(Errno::NOENT));
        // It stays where it is, until the way is there again.
        assert_eq!((cursor.depth(), cursor.names().unwrap().len()), (4, 0));
        // Those further up are found all the same.
        cursor.leave_to(1).unwrap();
        assert_eq!(cursor.names().unwrap(), ["b"]);
        let mut cursor = go(&["a", "b"]);
        fs::rename(at("gone"), at("a/b/elsewhere")).unwrap();
        cursor.leave_to(2).unwrap();
        assert_eq!(cursor.names().unwrap(), ["elsewhere"]);
    }
}
