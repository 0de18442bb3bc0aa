//! Resolves paths strictly below a directory.
//!
//! Others may own directories below one that we change with our rights, and may replace one of them by a symbolic link
//! at any moment. What must hold: a path is resolved from an open directory, through real directories only; names are
//! changed through descriptors of their parents.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use rustix::io::Errno;

/// Set if the kernel, or a filter of system calls, does not support `openat2`.
static WALKS: AtomicBool = AtomicBool::new(false);

/// Opens `path` below `dir`; an empty path is the directory itself.
///
/// # Errors
/// `ELOOP` or `ENOTDIR` if a symbolic link is on the path or at its end; `EXDEV` for a path that leads out of `dir`.
pub fn open(dir: impl AsFd, path: &Path, flags: OFlags, mode: Mode) -> rustix::io::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let flags = flags | OFlags::CLOEXEC;
    if !WALKS.load(Ordering::Relaxed) {
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        // `NOFOLLOW` would allow a symbolic link at the end of the path, which must not be one either.
        match openat2(&dir, path, flags.difference(OFlags::NOFOLLOW), mode, how) {
            Err(Errno::NOSYS) => WALKS.store(true, Ordering::Relaxed),
            // A filter of system calls may give this error for any call that it does not know.
            Err(Errno::PERM) if is_refused(dir.as_fd()) => WALKS.store(true, Ordering::Relaxed),
            other => return other,
        }
    }
    walk(dir.as_fd(), path, flags, mode)
}

fn is_refused(dir: BorrowedFd<'_>) -> bool {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    matches!(openat2(dir, ".", flags, Mode::empty(), ResolveFlags::BENEATH), Err(Errno::PERM))
}

/// As [`open`], but opens one name after another.
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

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::symlink;

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
}
