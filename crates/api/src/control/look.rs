//! Looks into mounts and at paths that may hang.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Looks into a mount, which may take for ever. An implementation with a time limit answers
/// [`io::ErrorKind::TimedOut`] at its end.
pub trait Look {
    /// The path without links.
    fn resolve(&self, path: &Path) -> io::Result<PathBuf>;
    /// The control socket that the root of a mount tells of; `None` where it is not ours.
    fn socket(&self, root: &Path) -> io::Result<Option<PathBuf>>;
    /// Waits until the server of a file system that is mounted at `point` says anything, be it an error.
    fn wait_for(&self, point: &Path) -> io::Result<()>;
    /// Where a symbolic link leads; `None` where it is none.
    fn link(&self, path: &Path) -> io::Result<Option<PathBuf>>;
    /// Connects to the socket at `path`.
    fn connect(&self, path: &Path) -> io::Result<UnixStream>;
}
