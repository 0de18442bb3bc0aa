//! The way to a file that shall be written, without links that others put there.
//!
//! What must hold: in a directory where anybody may make names, a link is followed only if it is
//! this user's, root's, or of the directory's owner, wherever on the way it is. Linux can see to
//! that itself where the directory is sticky (`fs.protected_symlinks`); not every system has it do so.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, PROC_SUPER_MAGIC, Stat, fstat, fstatfs, openat,
    readlinkat, statat,
};
use rustix::io::Errno;

use crate::text;

/// Links that are followed on one way, as in Linux.
const LINKS_MAX: usize = 40;
/// Anybody may make names.
const FOR_ALL: u32 = 0o002;

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Where a path leads: a name in a directory, which is not a link, unless it is one of `/proc`.
#[derive(Debug)]
pub(super) struct End {
    pub(super) dir: OwnedFd,
    /// What is known of the directory.
    pub(super) dir_stat: Stat,
    pub(super) name: OsString,
    /// A link was in the place of the last name.
    pub(super) followed: bool,
    /// The name is a link that only the kernel can follow: an open file of a process.
    pub(super) is_open_file: bool,
}

impl End {
    /// What is there, if anything: of an open file of a process, that file.
    pub(super) fn stat(&self) -> io::Result<Option<Stat>> {
        let flags = if self.is_open_file { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        match statat(&self.dir, &self.name, flags) {
            Err(Errno::NOENT) => Ok(None),
            found => Ok(Some(found?)),
        }
    }
}

/// Whether anybody may make names in a directory.
pub(super) fn is_for_all(dir: &Stat) -> bool {
    dir.st_mode & FOR_ALL != 0
}

/// Goes to the directory of what `path` names.
///
/// # Errors
/// `PermissionDenied` for a link that is not believed, and those of the system.
pub(super) fn walk(path: &Path) -> io::Result<End> {
    let mut dir = openat(CWD, ".", DIRECTORY, Mode::empty())?;
    // The next one is the last.
    let mut names = names_of(path);
    let (mut links, mut followed) = (0, false);
    while let Some(name) = names.pop() {
        let is_last = names.is_empty();
        let found = match statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) if is_last => None,
            Err(Errno::NOENT) => return Err(no_directory(&name)),
            found => Some(found?),
        };
        let is_link = found.is_some_and(|found| is_a(&found, FileType::Symlink));
        if is_link && fstatfs(&dir)?.f_type != PROC_SUPER_MAGIC {
            links += 1;
            if links > LINKS_MAX {
                return Err(Errno::LOOP.into());
            }
            followed |= is_last;
            names.extend(names_of(&believed_link(&dir, &name)?));
        } else if is_last && (name != "/" && name != "..") {
            let dir_stat = fstat(&dir)?;
            return Ok(End { dir, dir_stat, name, followed, is_open_file: is_link });
        } else {
            // What was no link a moment ago is none now.
            let flags = if is_link { DIRECTORY } else { DIRECTORY | OFlags::NOFOLLOW };
            dir = openat(&dir, &name, flags, Mode::empty())?;
        }
    }
    // `..`, `/` or nothing.
    Err(Errno::ISDIR.into())
}

fn no_directory(name: &OsStr) -> io::Error {
    let name = text::path(Path::new(name));
    let what = format!("there is no directory {name}; create it, or correct the path");
    io::Error::new(io::ErrorKind::NotFound, what)
}

/// What a link says, if it is one that may be followed.
fn believed_link(dir: &OwnedFd, name: &OsStr) -> io::Result<PathBuf> {
    let link = openat(dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let (found, above) = (fstat(&link)?, fstat(dir)?);
    let own = rustix::process::geteuid().as_raw();
    if is_for_all(&above) && ![own, 0, above.st_uid].contains(&found.st_uid) {
        let what = format!("another user made the link {}", Path::new(name).display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    Ok(OsString::from_vec(readlinkat(&link, "", Vec::new())?.into_bytes()).into())
}

/// The names of a path, the first one last. A path that ends in a slash names what is in a directory of
/// that name: nothing.
fn names_of(path: &Path) -> Vec<OsString> {
    let ends_in_directory = path.as_os_str().as_bytes().ends_with(b"/");
    let mut names: Vec<_> = path
        .components()
        .filter(|part| *part != Component::CurDir)
        .map(|part| part.as_os_str().to_owned())
        .collect();
    if ends_in_directory {
        names.push("..".into());
    }
    names.reverse();
    names
}

pub(super) fn is_a(found: &Stat, kind: FileType) -> bool {
    FileType::from_raw_mode(found.st_mode) == kind
}
