//! The files that a command names, before they are moved.

use std::path::PathBuf;

use halocline_api::control::{MoveReport, Skipped};
use halocline_cluster::names::attributes::Location;
use halocline_model::namespace::{EntryName, InodeNumber};

/// A file that a command names.
pub(super) struct SelectedFile {
    pub(super) path: PathBuf,
    pub(super) name: EntryName,
    pub(super) inode: InodeNumber,
    pub(super) size: u64,
    pub(super) place: Location,
    /// Whether it is where it should go already.
    pub(super) is_there: bool,
    /// Whether a program on some node had it open.
    pub(super) is_open: bool,
}

/// The sizes that the store has of files, which may be any numbers, and those of sparse files, are together at most this.
pub(super) fn sum_of<'a>(files: impl IntoIterator<Item = &'a SelectedFile>) -> u64 {
    files.into_iter().fold(0, |sum, file| sum.saturating_add(file.size))
}

/// Notes that a file stays, and why.
pub(super) fn skip(file: SelectedFile, reason: String, report: &mut MoveReport) {
    report.left_bytes = report.left_bytes.saturating_add(file.size);
    report.skipped.push(Skipped { path: file.path, reason });
}

#[cfg(test)]
mod tests {
    use halocline_cluster::names::attributes::RelativePath;
    use halocline_model::namespace::{Name, ROOT};

    use crate::move_commands::why_files_stay::NO_ROOM;
    use crate::places::SHARED;

    use super::*;

    /// Regression: the sizes of a few sparse files, or forged ones, ended a command with a panic.
    #[test]
    fn sizes_that_no_disk_has_are_added_up() {
        let file = || SelectedFile {
            path: "f".into(),
            name: EntryName { directory: ROOT, name: Name::from("f") },
            inode: InodeNumber(7),
            size: u64::MAX / 2,
            place: Location {
                node: None,
                tier: SHARED,
                base: ROOT.0,
                path: RelativePath::new(b"f").unwrap(),
            },
            is_there: false,
            is_open: false,
        };
        assert_eq!(sum_of(&[file(), file(), file()]), u64::MAX);
        let mut report = MoveReport::default();
        for _ in 0..3 {
            skip(file(), NO_ROOM.to_owned(), &mut report);
        }
        assert_eq!((report.left_bytes, report.skipped.len()), (u64::MAX, 3));
    }
}
