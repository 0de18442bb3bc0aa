//! Finds the files on this node's SSD by reading it.

use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;

use halocline_api::control::tier::PRIVATE;
use halocline_model::namespace::{EntryName, InodeNumber, Name, ROOT};
use halocline_os::beneath::TreeCursor;
use halocline_os::error::Result;
use halocline_vfs::Stat;
use halocline_vfs::namespace::stat_descriptor;
use rustix::fs::{Mode, OFlags, openat};

use super::residents::Resident;
use crate::places::own_xattrs;
use crate::places::tree::Tree;
use crate::stat_conversion::joined;

/// A file that was found.
#[derive(Debug)]
pub(super) struct ScannedFile {
    pub(super) number: u64,
    pub(super) resident: Resident,
    /// When its content was last changed, in seconds since 1970.
    pub(super) mtime: i64,
    pub(super) stamp: Stamp,
}

/// By which it is seen that a file has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) size: u64,
    pub(super) mtime_ns: i64,
    pub(super) ctime_ns: i64,
}

impl Stamp {
    pub(super) const fn of(stat: &Stat) -> Self {
        let raw = &stat.raw;
        Self {
            size: raw.st_size.unsigned_abs(),
            mtime_ns: joined(raw.st_mtime, raw.st_mtime_nsec),
            ctime_ns: joined(raw.st_ctime, raw.st_ctime_nsec),
        }
    }
}

/// Reports each file on an SSD that has a number. Unreadable files are skipped: nobody moves them.
///
/// # Errors
/// If the SSD itself cannot be read.
pub(super) fn scan(ssd: &Tree, each: &mut dyn FnMut(ScannedFile) -> ControlFlow<()>) -> Result<()> {
    let mut cursor = TreeCursor::new(ssd.look(None)?)?;
    // Directories: how deep each is, its name there, and its number. What is read next is always in a directory that was
    // just passed.
    let mut todo: Vec<(usize, OsString, u64)> = vec![(0, OsString::new(), ROOT.0)];
    while let Some((depth, name, directory)) = todo.pop() {
        let names = match enter(&mut cursor, depth, &name) {
            Err(errno) if depth == 0 => return Err(errno.into()),
            names => names.unwrap_or_default(),
        };
        for name in names.into_iter().filter(|name| depth > 0 || name != PRIVATE) {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let found = openat(cursor.directory(), &name, flags, Mode::empty());
            let Ok(fd) = found else { continue };
            let Ok(stat) = stat_descriptor(&fd) else { continue };
            match stat.kind() {
                libc::S_IFDIR => {
                    if let Some(number) = own_xattrs::number(&fd, own_xattrs::DIRECTORY) {
                        todo.push((depth + 1, name, number));
                    }
                }
                libc::S_IFREG => {
                    let Some(number) = own_xattrs::number(&fd, own_xattrs::INODE) else { continue };
                    // Its names are listed if its place does not give them.
                    let listed = own_xattrs::names(&fd).into_iter().next();
                    let (directory, name) =
                        listed.unwrap_or_else(|| (directory, Name::from(name.as_bytes())));
                    let name = EntryName { directory: InodeNumber(directory), name };
                    let resident = Resident { name, bytes: stat.disk_bytes() };
                    let (mtime, stamp) = (stat.raw.st_mtime, Stamp::of(&stat));
                    if each(ScannedFile { number, resident, mtime, stamp }).is_break() {
                        return Ok(());
                    }
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// Goes to a directory that was found before, and lists it.
fn enter(cursor: &mut TreeCursor, depth: usize, name: &OsStr) -> rustix::io::Result<Vec<OsString>> {
    if let Some(above) = depth.checked_sub(1) {
        cursor.leave_to(above)?;
        cursor.enter(name)?;
    }
    cursor.names()
}
