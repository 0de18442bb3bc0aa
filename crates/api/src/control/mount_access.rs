//! Lookups in mounts and at paths that may hang.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Lookups in a mount, which may take forever. An implementation with a time limit returns [`io::ErrorKind::TimedOut`]
/// when it expires.
pub trait MountAccess {
    /// The path without links.
    fn resolve(&self, path: &Path) -> io::Result<PathBuf>;
    /// The control socket that a mount's root reports; `None` if it is not ours.
    fn socket(&self, root: &Path) -> io::Result<Option<PathBuf>>;
    /// Waits until the server of a file system that is mounted at `point` answers, even with an error.
    fn wait_for(&self, point: &Path) -> io::Result<()>;
    /// Target of a symbolic link; `None` if it is not a link.
    fn link(&self, path: &Path) -> io::Result<Option<PathBuf>>;
    /// Connects to the socket at `path`.
    fn connect(&self, path: &Path) -> io::Result<UnixStream>;
}
