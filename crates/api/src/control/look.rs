//! Looks into mounts and at paths that may hang.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Looks into a mount, which may take for ever. An implementation with a time limit answers
/// [`io::ErrorKind::TimedOut`] at its end.
pub trait Look {
    /// The path without links.
    fn resolve(&self, path: &Path) -> io::Result<PathBuf>;
    /// The control socket that a mount's root reports; `None` where it is not ours.
    fn socket(&self, root: &Path) -> io::Result<Option<PathBuf>>;
    /// Waits until the server of a file system that is mounted at `point` says anything, be it an error.
    fn wait_for(&self, point: &Path) -> io::Result<()>;
    /// Target of a symbolic link; `None` where it is not a link.
    fn link(&self, path: &Path) -> io::Result<Option<PathBuf>>;
    /// Connects to the socket at `path`.
    fn connect(&self, path: &Path) -> io::Result<UnixStream>;
}
