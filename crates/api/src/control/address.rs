//! Socket addresses for paths of any length: the kernel accepts at most 107 bytes.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};

use halocline_os::private::PrivateDir;

/// Longest path that fits into `sockaddr_un`, without its terminating NUL.
const ADDRESS_BYTES_MAX: usize = 107;

/// A path that refers to the same socket and is short enough; valid while the value lives.
#[derive(Debug)]
pub(super) struct Address {
    path: PathBuf,
    /// Keeps the `/proc/self/fd` detour open.
    _parent: Option<OwnedFd>,
}

impl Address {
    pub(super) fn of(socket: &Path) -> io::Result<Self> {
        let (Some(parent), Some(name)) = (socket.parent(), socket.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        if socket.as_os_str().len() <= ADDRESS_BYTES_MAX {
            return Ok(Self { path: socket.to_owned(), _parent: None });
        }
        // A mount's user determines where its socket is, and root asks everyone's mounts: so nothing there is opened
        // for I/O, which might wait (a FIFO) or have effects (a device).
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = openat(CWD, parent, flags, Mode::empty())?;
        let path = Path::new("/proc/self/fd").join(parent.as_raw_fd().to_string()).join(name);
        Ok(Self { path, _parent: Some(parent) })
    }

    /// The address of a socket `name` in an open directory, whatever is at that directory's path now.
    pub(super) fn within(dir: &PrivateDir, name: &str) -> PathBuf {
        Path::new("/proc/self/fd").join(dir.as_fd().as_raw_fd().to_string()).join(name)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::mkfifoat;

    use super::*;

    #[test]
    fn nothing_is_opened_where_somebody_says_that_a_socket_is() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        mkfifoat(CWD, &fifo, Mode::RWXU).unwrap();
        // It would wait for a writer.
        let error = Address::of(&fifo.join("s".repeat(ADDRESS_BYTES_MAX))).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTDIR));
    }
}
