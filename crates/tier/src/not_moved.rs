//! Why a file stays where it is, and the limits that prevent it from moving.

use std::fmt;

use halocline_os::error::Error;

/// Room that a copy needs besides its data.
pub(super) const COPY_SLACK: u64 = 16 << 10;

/// Room that is made for names if the SSD itself is full.
pub(super) const ROOM_FOR_NAMES: u64 = 4 << 20;

/// The most names that a file may have and still be moved: while they are cut over, look-ups of all names wait.
pub(super) const NAMES_MAX: u64 = 1024;

/// Why a file stayed where it was.
#[derive(Debug)]
pub(super) enum NotMoved {
    /// It is there already.
    There,
    /// Only regular files move.
    NotAFile,
    /// It has more names than the mount knows, or than are moved together.
    HardLinked { names: u64, known: u64 },
    /// The kernel serves it by itself while it is open.
    PassedThrough,
    /// A program has mapped it, bypassing us.
    Mapped,
    /// It changed while it was copied.
    Changed,
    /// It was removed.
    Gone,
    /// No tier that it may go to has room.
    NoRoom,
    /// An exclude glob keeps it off the SSD.
    Excluded,
    /// A pin glob keeps it on the SSD.
    Pinned,
    /// The user who mounted may not change its directory.
    Closed,
    /// A program holds a lease of it, or of its copy.
    Leased,
    /// The copy failed.
    Failed(Error),
}

impl fmt::Display for NotMoved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::There => write!(f, "it is there already"),
            Self::NotAFile => write!(f, "only regular files are moved"),
            Self::HardLinked { names, known } if *known >= NAMES_MAX => {
                write!(
                    f,
                    "it has {names} names (hard links): no more than {NAMES_MAX} move together"
                )
            }
            Self::HardLinked { names, known } => write!(
                f,
                "it has {names} names (hard links), of which the mount knows {known}: others are \
                 outside the tier, or were made behind the mount; mount again if they are in it"
            ),
            Self::PassedThrough => {
                write!(f, "the kernel serves it by itself until it is closed: try again then")
            }
            Self::Mapped => write!(f, "a program has it mapped in memory: try again later"),
            Self::Changed => write!(f, "it is being changed: try again"),
            Self::Gone => write!(f, "it was removed"),
            Self::NoRoom => write!(f, "there is no room: free some, or raise the limit"),
            Self::Excluded => write!(f, "an exclude glob keeps it off the SSD"),
            Self::Pinned => write!(f, "a pin glob keeps it on the SSD: unpin it first"),
            Self::Closed => write!(
                f,
                "the user who mounted may not write to its directory: change that, or mount as root"
            ),
            Self::Leased => write!(f, "{}", Error::Leased),
            Self::Failed(error) => write!(f, "{error}"),
        }
    }
}

impl<E: Into<Error>> From<E> for NotMoved {
    fn from(error: E) -> Self {
        let error = error.into();
        if error.is_full() {
            Self::NoRoom
        } else if error.is_leased() {
            Self::Leased
        } else {
            Self::Failed(error)
        }
    }
}
