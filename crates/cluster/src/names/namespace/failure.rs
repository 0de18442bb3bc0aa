//! Why an operation on names was not done.

use rustix::io::Errno;

use crate::names::NamesError;

/// Why an operation was not done, or may not have been.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The current names do not allow it.
    #[error("{0}")]
    Refused(Errno),
    /// Other changes came between each time; nothing was done.
    #[error("other nodes changed the same names each time; nothing was done")]
    Contended,
    /// The answer was lost, so nobody knows whether it was done.
    #[error("the answer was lost, and the change may have been made: {0}")]
    Unknown(String),
    /// The store cannot be used now; nothing was done.
    #[error("{0}")]
    Store(#[from] NamesError),
}

impl Failure {
    /// Whether the change may have been made nevertheless, or the names were built again from what it left on the disks by then.
    #[must_use]
    pub const fn is_doubtful(&self) -> bool {
        matches!(self, Self::Unknown(_) | Self::Store(NamesError::Stale | NamesError::Held))
    }

    /// The error that a program gets.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::Refused(errno) => *errno,
            Self::Contended => Errno::BUSY,
            Self::Store(NamesError::Full(_)) => Errno::NOSPC,
            Self::Unknown(_) | Self::Store(_) => Errno::IO,
        }
    }
}

/// A result of an operation.
pub type Result<T> = std::result::Result<T, Failure>;
