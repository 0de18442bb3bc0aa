//! Finds the files on this node's SSD by reading it, and removes directories there that the store has no more.
//! Directories without a number get it, if it is [known](super::unnumbered).
//!
//! Whoever removes a directory looks for it on his own SSD under its present names. It may lie there under the names that
//! it had before a rename, and on other nodes' SSDs.

use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use halocline_api::control::tier::PRIVATE;
use halocline_model::namespace::{EntryName, InodeNumber, Name, ROOT};
use halocline_os::beneath::TreeCursor;
use halocline_os::error::Result;
use halocline_vfs::Stat;
use halocline_vfs::namespace::stat_descriptor;
use rustix::fs::{AtFlags, Mode, OFlags, openat, unlinkat};

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

/// What the store says of directories on an SSD.
pub(super) trait InStore {
    /// Whether it has no directory with that number, and never will have.
    fn is_gone(&mut self, number: u64) -> bool;

    /// The number of a directory, opened with [`OFlags::PATH`], that has none on the SSD, with its name there in the
    /// directory with the number `above`.
    fn number(&mut self, above: u64, name: &OsStr, directory: &OwnedFd) -> Option<u64>;
}

/// A directory on the way to where a scan is.
struct OnWay {
    name: OsString,
    number: u64,
    /// Whether there is something in it, as far as that was seen.
    is_used: bool,
}

/// Reports each file on an SSD that has a number. Unreadable files are skipped: nobody moves them. Directories that are
/// empty, or become so, are removed if they are gone from the store.
///
/// # Errors
/// If the SSD itself cannot be read.
pub(super) fn scan(
    ssd: &Tree,
    each: &mut dyn FnMut(ScannedFile) -> ControlFlow<()>,
    store: &mut dyn InStore,
) -> Result<()> {
    let mut cursor = TreeCursor::new(ssd.look(None)?)?;
    let mut way: Vec<OnWay> = Vec::new();
    // Directories: how deep each is, its name there, and its number. What is read next is always in a directory that was
    // just passed.
    let mut todo: Vec<(usize, OsString, u64)> = vec![(0, OsString::new(), ROOT.0)];
    while let Some((depth, name, directory)) = todo.pop() {
        leave(ssd, &mut cursor, &mut way, depth.saturating_sub(1), store);
        let names = match enter(&mut cursor, depth, &name) {
            Err(errno) if depth == 0 => return Err(errno.into()),
            names => names,
        };
        let mut is_used = names.is_err();
        for name in names.unwrap_or_default() {
            if depth == 0 && name == PRIVATE {
                continue;
            }
            match described(&cursor, &name, directory, store) {
                Some(Found::Directory(number)) => todo.push((depth + 1, name, number)),
                Some(Found::File(file)) => {
                    is_used = true;
                    if each(file).is_break() {
                        return Ok(());
                    }
                }
                None => is_used = true,
            }
        }
        if depth > 0 {
            way.push(OnWay { name, number: directory, is_used });
        }
    }
    leave(ssd, &mut cursor, &mut way, 0, store);
    Ok(())
}

/// Something with a number.
enum Found {
    Directory(u64),
    File(ScannedFile),
}

/// What is at a name in the directory with this number; `None` if that is nothing with a number.
fn described(
    cursor: &TreeCursor,
    name: &OsStr,
    directory: u64,
    store: &mut dyn InStore,
) -> Option<Found> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = openat(cursor.directory(), name, flags, Mode::empty()).ok()?;
    let stat = stat_descriptor(&fd).ok()?;
    match stat.kind() {
        libc::S_IFDIR => {
            let number = own_xattrs::number(&fd, own_xattrs::DIRECTORY);
            number.or_else(|| store.number(directory, name, &fd)).map(Found::Directory)
        }
        libc::S_IFREG => {
            let number = own_xattrs::number(&fd, own_xattrs::INODE)?;
            // Its names are listed if its place does not give them.
            let listed = own_xattrs::names(&fd).into_iter().next();
            let (directory, name) =
                listed.unwrap_or_else(|| (directory, Name::from(name.as_bytes())));
            let name = EntryName { directory: InodeNumber(directory), name };
            let resident = Resident { name, bytes: stat.disk_bytes() };
            let (mtime, stamp) = (stat.raw.st_mtime, Stamp::of(&stat));
            Some(Found::File(ScannedFile { number, resident, mtime, stamp }))
        }
        _ => None,
    }
}

/// Leaves the directories that are deeper than that, with all in them seen; removes those that are empty and gone from the
/// store.
fn leave(
    ssd: &Tree,
    cursor: &mut TreeCursor,
    way: &mut Vec<OnWay>,
    depth: usize,
    store: &mut dyn InStore,
) {
    while way.len() > depth
        && let Some(left) = way.pop()
    {
        let is_removed = !left.is_used && store.is_gone(left.number) && {
            let is_above = cursor.leave_to(way.len()).is_ok() && cursor.depth() == way.len();
            // Whatever came into it meanwhile stays.
            let remove = || unlinkat(cursor.directory(), &left.name, AtFlags::REMOVEDIR);
            is_above && ssd.step("removing an empty directory", remove).is_ok()
        };
        if let Some(above) = way.last_mut() {
            above.is_used |= !is_removed;
        }
    }
}

/// Goes to a directory that was found before, and lists it.
fn enter(cursor: &mut TreeCursor, depth: usize, name: &OsStr) -> rustix::io::Result<Vec<OsString>> {
    if let Some(above) = depth.checked_sub(1) {
        cursor.leave_to(above)?;
        cursor.enter(name)?;
    }
    cursor.names()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::path::Path;

    use super::*;
    use crate::places::steps::Steps;

    /// Those below 20 are gone; the numbers that were asked about.
    #[derive(Default)]
    struct Asked(Vec<u64>);

    impl InStore for Asked {
        fn is_gone(&mut self, number: u64) -> bool {
            self.0.push(number);
            number < 20
        }

        fn number(&mut self, _: u64, _: &OsStr, _: &OwnedFd) -> Option<u64> {
            None
        }
    }

    /// Makes a directory with a number.
    fn directory(ssd: &Path, path: &str, number: u64) {
        fs::create_dir(ssd.join(path)).unwrap();
        let made = File::open(ssd.join(path)).unwrap();
        own_xattrs::set_number(&made, own_xattrs::DIRECTORY, number).unwrap();
    }

    /// Regression: directories that were renamed, or removed by another node, stayed on the SSD when they were removed.
    #[test]
    fn empty_directories_that_the_store_has_no_more_are_removed_with_those_above_them() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |path: &str| scratch.path().join(path);
        let ssd = Tree::open(scratch.path(), Steps::new(None)).unwrap();
        let all = [
            ("gone", 10),
            ("gone/a", 11),
            ("gone/a/b", 12),
            ("gone/c", 13),
            ("live", 20),
            ("live/gone", 14),
            ("gone with a file", 15),
            ("gone with a file/gone", 16),
            ("gone above", 17),
            ("gone above/live", 21),
        ];
        for (path, number) in all {
            directory(scratch.path(), path, number);
        }
        fs::write(at("gone with a file/f"), "of nobody").unwrap();
        let made = File::create(at("live/f")).unwrap();
        own_xattrs::set_number(&made, own_xattrs::INODE, 30).unwrap();
        fs::create_dir_all(at("without a number/below")).unwrap();
        let (mut files, mut store) = (Vec::new(), Asked::default());
        let mut each = |file: ScannedFile| {
            files.push(file.number);
            ControlFlow::Continue(())
        };
        scan(&ssd, &mut each, &mut store).unwrap();
        assert_eq!(files, [30]);
        let Asked(mut asked) = store;
        asked.sort_unstable();
        // Where something is left, nobody is asked.
        assert_eq!(asked, [10, 11, 12, 13, 14, 16, 21]);
        for gone in ["gone", "live/gone", "gone with a file/gone"] {
            assert!(!at(gone).exists(), "{gone}");
        }
        for left in ["live/f", "gone with a file/f", "gone above/live", "without a number/below"] {
            assert!(at(left).exists(), "{left}");
        }
    }
}
