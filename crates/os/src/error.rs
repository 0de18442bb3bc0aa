//! The error of the engine layer and its one conversion to an errno.

use std::io;
use std::path::{Path, PathBuf};

use crate::chattr;

/// What went wrong, to which thing, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused; the errno goes to the program unchanged.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A system call on a named path failed outside a program's request.
    #[error("{path}: cannot {action}: {source}{}", with_remedy(path, action, source))]
    Path {
        /// The path.
        path: PathBuf,
        /// What was attempted, as an infinitive: "open", "create the directory".
        action: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
    /// A program holds a lease of the file ([`crate::leased_files`]).
    #[error("{LEASED}")]
    Leased,
    /// Something given by the user does not fit.
    #[error("{what}; {remedy}")]
    Invalid {
        /// What is wrong, naming its cause.
        what: String,
        /// What to do about it.
        remedy: String,
    },
    /// The metadata store failed or is damaged.
    #[error("metadata store {path}: {what}; {remedy}")]
    Store {
        /// The store's directory.
        path: PathBuf,
        /// What is wrong.
        what: String,
        /// What to do about it.
        remedy: String,
    },
    /// The other nodes, or what all nodes share, prevent something.
    #[error("{what}; {remedy}")]
    Cluster {
        /// What prevents it, naming the node if it is one.
        what: String,
        /// What to do about it.
        remedy: String,
    },
    /// A disk, or what should be on it, cannot be reached from here: another node's, or one that all nodes share.
    #[error("{what}; {remedy}")]
    Unreached {
        /// What is not reached.
        what: String,
        /// What to do about it.
        remedy: String,
    },
    /// The mount process refused a command; the message is its own.
    #[error("{message}")]
    Refused {
        /// Its message.
        message: String,
        /// Its errno.
        errno: i32,
    },
}

/// What a file's lease is told as.
const LEASED: &str =
    "a program holds a lease of it (fcntl, F_SETLEASE): end it, or try again later";

/// What to do if the system's error alone allows only one remedy.
pub fn remedy(error: &io::Error) -> Option<&'static str> {
    Some(match error.raw_os_error()? {
        libc::ENOSPC => "free some space (or inodes: df -i) there",
        libc::EDQUOT => "free some of the quota there, or have it raised",
        libc::EROFS => "mount that file system for writing, or name another directory",
        libc::ENOTCONN | libc::ECONNABORTED => {
            "a server there, or of what lies below, is dead: unmount that (umount -l), mount it again"
        }
        libc::EIO => {
            "its device, or what serves it, fails: see the kernel's log (dmesg) and, of a mount, `halocline status`"
        }
        libc::EFBIG => "raise the limit of file sizes (ulimit -f)",
        libc::EMFILE => "raise the limit of open files (ulimit -n)",
        _ => return None,
    })
}

/// The remedy as a suffix of the error's own text; empty if there is none.
fn with_remedy(path: &Path, action: &str, error: &io::Error) -> String {
    let remedy = match error.raw_os_error() {
        Some(libc::EAGAIN) if action.starts_with("open") => Some(LEASED.to_owned()),
        Some(libc::EPERM) => chattr::remedy(path),
        _ => remedy(error).map(str::to_owned),
    };
    remedy.map_or_else(String::new, |remedy| format!("; {remedy}"))
}

/// Result of the engine layer.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An [`Error::Invalid`] from anything printable.
    pub fn invalid(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Invalid { what: what.into(), remedy: remedy.into() }
    }

    /// An [`Error::Path`], for `map_err`.
    pub fn at(path: impl Into<PathBuf>, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Path { path, action, source }
    }

    /// The errno that a program sees.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Io(source) | Self::Path { source, .. } => {
                source.raw_os_error().unwrap_or(libc::EIO)
            }
            Self::Leased => libc::EAGAIN,
            Self::Invalid { .. } => libc::EINVAL,
            Self::Store { .. } | Self::Cluster { .. } | Self::Unreached { .. } => libc::EIO,
            Self::Refused { errno, .. } => *errno,
        }
    }

    /// Whether a program's lease kept a file from being opened ([`crate::leased_files`]): the same may succeed later.
    pub fn is_leased(&self) -> bool {
        self.errno() == libc::EAGAIN
    }

    /// Whether a file system, or someone's quota, has no block or no inode left.
    pub fn is_full(&self) -> bool {
        matches!(self.errno(), libc::ENOSPC | libc::EDQUOT)
    }
}

impl From<rustix::io::Errno> for Error {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Io(errno.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a tier on a full disk was refused without a remedy.
    #[test]
    fn a_full_disk_is_told_with_its_remedy() {
        let full = io::Error::from_raw_os_error(libc::ENOSPC);
        let said = Error::at("ssd/halocline.lock", "write the lock")(full).to_string();
        assert!(said.starts_with("ssd/halocline.lock: cannot write the lock: No space"), "{said}");
        assert!(said.ends_with("; free some space (or inodes: df -i) there"), "{said}");
        let leased = io::Error::from_raw_os_error(libc::EAGAIN);
        let said = Error::at("f", "open the data")(leased).to_string();
        assert!(
            said.ends_with(
                "; a program holds a lease of it (fcntl, F_SETLEASE): end it, or try again later"
            ),
            "{said}"
        );
        let denied = Error::at("x", "open")(io::Error::from_raw_os_error(libc::EACCES)).to_string();
        assert_eq!(denied, "x: cannot open: Permission denied (os error 13)");
    }
}
