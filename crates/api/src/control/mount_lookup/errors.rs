//! Errors for a path that leads to no responding mount.

use std::io;
use std::path::Path;

use halocline_os::error::Error;

/// The error for a path that could not be followed.
pub(super) fn not_followed(path: &Path, error: io::Error) -> Error {
    if error.kind() == io::ErrorKind::TimedOut {
        return Error::Refused {
            message: format!(
                "{}: {error}; see whether its server is stopped, or waits for a disk or network",
                path.display()
            ),
            errno: libc::ETIMEDOUT,
        };
    }
    missing(path, "", &error).unwrap_or_else(|| Error::at(path, "find the path")(error))
}

/// The error for a path in a mount whose root responds.
pub(super) fn unresolved(path: &Path, error: io::Error) -> Error {
    if error.kind() == io::ErrorKind::TimedOut {
        return Error::Refused {
            message: format!(
                "{}: the mount answers, and not for this path: its origin hangs; see what is wrong with the \
                 origin's disk or server",
                path.display()
            ),
            errno: libc::ETIMEDOUT,
        };
    }
    missing(path, " on the mount", &error)
        .unwrap_or_else(|| Error::at(path, "find the path on the mount")(error))
}

/// The error for a path that does not exist.
pub(super) fn missing(path: &Path, place: &str, error: &io::Error) -> Option<Error> {
    (error.kind() == io::ErrorKind::NotFound).then(|| Error::Refused {
        message: format!(
            "{}: there is no such file or directory{place}; correct the path",
            path.display()
        ),
        errno: libc::ENOENT,
    })
}

pub(super) fn not_ours(path: &Path) -> Error {
    Error::Refused {
        message: format!(
            "{} is not on a halocline mount; give a path below a mount point, the cache directory of a running mount, or \
             the root of a file tier",
            path.display()
        ),
        errno: libc::ENODEV,
    }
}

/// The error for a directory that this user may not read.
pub(super) fn closed_directory(path: &Path) -> Error {
    Error::Refused {
        message: format!(
            "{}: you may not look into this directory, so it cannot be told whether a mount uses it; name \
             the mount point, or ask as its owner or as root",
            path.display()
        ),
        errno: libc::EACCES,
    }
}

/// The error for a mount point whose owner died.
pub(super) fn dead(path: &Path) -> Error {
    Error::invalid(
        format!("the process behind the mount at {} has ended", path.display()),
        "free the mount point with `halocline umount`, then mount again: recovery is automatic",
    )
}

/// The error for a mount whose owner is alive but does not respond.
pub(super) fn silent(mountpoint: &Path, pid: Option<u32>) -> Error {
    let process = pid.map_or_else(|| "its process".to_owned(), |pid| format!("its process {pid}"));
    Error::Refused {
        message: format!(
            "{}: {process} does not answer; see whether it is stopped (kill -CONT continues it) or \
             waits for a disk",
            mountpoint.display()
        ),
        errno: libc::ETIMEDOUT,
    }
}
