//! Why files stay where they are: for people.

use halocline_os::error::Error;

use crate::places::SSD;

pub(super) const IS_OPEN: &str = "a program on some node has it open, or changed it meanwhile; move it again when it is closed. If its node was \
     killed meanwhile, mount that again, and move it there";
pub(super) const NO_ROOM: &str = "there is no room: what else is on this SSD is open, pinned, or named by this command, too; free some, or raise the \
     limit";
pub(super) const TOO_LARGE: &str =
    "it is larger than the limit of this SSD admits: raise that (--ssd-limit)";
const SSD_FULL: &str = "this SSD has no room for it: free some";
pub(super) const SHARED_DISK_FULL: &str = "the shared disk has no room for it: free some there";

/// What has become of a file since the command has found it.
pub(super) enum Now {
    Here,
    /// A program on some node has it open.
    Open,
    /// It was renamed or removed.
    Gone,
}

/// Whether there is room on the own SSD.
pub(super) enum Room {
    Made,
    /// The file cannot be moved now, or at all, so nothing has to leave for it.
    NotNeeded(Now),
    /// There is none, and why.
    None(String),
}

/// The reason after an error of a move to a tier.
pub(super) fn of_error(error: &Error, tier: u8) -> String {
    match error {
        // A store without room tells it in its own words.
        Error::Io(_) if error.is_full() && tier == SSD => SSD_FULL.to_owned(),
        Error::Io(_) if error.is_full() => SHARED_DISK_FULL.to_owned(),
        Error::Io(_) if error.errno() == libc::ENOENT => NOT_ON_DISK.to_owned(),
        error => error.to_string(),
    }
}

/// The reason if the disk of a file is there, and the file is not on it.
const NOT_ON_DISK: &str = "its bytes are not on the disk that is there: bring back the one that has them, unless it was removed just now";
