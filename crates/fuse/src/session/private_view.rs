//! A mount of an ordinary user, visible to one command and its children, that preserves all groups of the files.
//!
//! A FUSE mount made inside a user namespace knows only the ids that are mapped there: one user and one group. Files of
//! others have no owner on it, and the kernel refuses to write them, whatever their mode and whichever groups the
//! program has. So the mount is made outside, by `fusermount3`, on a directory that only its user may enter; a holder,
//! a process in namespaces of its own, binds it over the origin; and the command enters those namespaces. The engine
//! stays outside, where it sees every id.
//!
//! What must hold: no one else ever enters the mount, so it is removed outside as soon as it is bound; and it lives no
//! longer than its process, so the holder ends when its parent's socket closes.

mod fusermount;
mod holder;

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use halocline_os::error::{Error, Result};
use parking_lot::Mutex;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::fusermount::with_helper;
use holder::NamespaceHolder;

/// A mount that is not served or visible yet, and the namespaces in which it will be visible.
#[derive(Debug)]
pub struct PrivateView {
    over: PathBuf,
    outside: Outside,
    /// The mount's device, until it is served.
    device: Mutex<Option<OwnedFd>>,
    /// Ended by the unmount: its namespaces may still see the mount elsewhere.
    holder: Mutex<Option<NamespaceHolder>>,
}

/// The mount where it was made. Dropping this removes the mount there.
#[derive(Debug)]
struct Outside(Mutex<Option<PathBuf>>);

impl Outside {
    fn close(&self) {
        let Some(dir) = self.0.lock().take() else { return };
        let detached = with_helper(&dir, &["-u", "-z", "-q"]);
        if !detached.is_ok_and(|output| output.status.success()) {
            tracing::warn!(dir = %dir.display(), "fusermount3 did not take the mount away");
        }
        // Never recursively: while the mount exists, its content is the user's data.
        if let Err(error) = fs::remove_dir(&dir) {
            tracing::warn!(dir = %dir.display(), %error, "an empty directory stays");
        }
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        self.close();
    }
}

impl PrivateView {
    /// Makes a mount for a view over `over`; the mount's source is called `fsname`. The process must have only one
    /// thread, because it forks.
    ///
    /// # Errors
    /// `fusermount3` is missing or refuses, or this user may not make user namespaces.
    pub fn prepare(over: &Path, fsname: &str) -> Result<Self> {
        // Readable and writable for the user alone.
        let made = tempfile::Builder::new().prefix("halocline-").tempdir();
        let dir = made.map_err(Error::at(std::env::temp_dir(), "make a directory in"))?.keep();
        let device = fusermount::mount(&dir, fsname).inspect_err(|_| drop(fs::remove_dir(&dir)))?;
        let outside = Outside(Mutex::new(Some(dir.clone())));
        let holder = Mutex::new(Some(NamespaceHolder::start(&dir, over)?));
        Ok(Self { over: over.to_owned(), outside, device: Mutex::new(Some(device)), holder })
    }

    /// Where it is visible.
    pub(super) fn over(&self) -> &Path {
        &self.over
    }

    /// The mount's device; only the first caller gets it.
    pub(super) fn take_device(&self) -> io::Result<OwnedFd> {
        self.device.lock().take().ok_or_else(|| io::ErrorKind::ResourceBusy.into())
    }

    /// Shows the mount, which must already be served, in the namespaces, and nowhere else.
    pub(super) fn show(&self) -> Result<()> {
        let bound = self.holder.lock().as_ref().map_or(Ok(()), NamespaceHolder::bind);
        self.outside.close();
        bound
    }

    /// Unmounts unless the mount is in use; with `force` it is then detached. `false` if it is in use.
    pub(super) fn unmount(&self, force: bool) -> Result<bool> {
        let mut holder = self.holder.lock();
        let unmounted = holder.as_ref().map_or(Ok(true), |holder| holder.unmount(force));
        if force || matches!(unmounted, Ok(true)) {
            drop(holder.take());
        }
        unmounted
    }

    /// A copy of the mount that is not attached anywhere yet.
    pub(super) fn copy(&self) -> Result<OwnedFd> {
        let holder = self.holder.lock();
        let ended = || Error::from(io::Error::from(io::ErrorKind::NotConnected));
        holder.as_ref().ok_or_else(ended)?.copy()
    }

    /// A function for a child to call between `fork` and `exec`, which enters the view: it only makes system calls, and
    /// uses no lock and no heap. The working directory is the root afterwards.
    ///
    /// # Errors
    /// The view has ended, or the process has no descriptors left.
    pub fn entrance(&self) -> io::Result<impl FnMut() -> io::Result<()> + Send + Sync + use<>> {
        let holder = self.holder.lock();
        let (user, mounts) = holder.as_ref().ok_or(io::ErrorKind::NotConnected)?.namespaces();
        let (user, mounts) = (user.try_clone()?, mounts.try_clone()?);
        Ok(move || {
            // The owner of a user namespace may enter it and the namespaces that belong to it.
            move_into_link_name_space(user.as_fd(), Some(LinkNameSpaceType::User))?;
            Ok(move_into_link_name_space(mounts.as_fd(), Some(LinkNameSpaceType::Mount))?)
        })
    }
}
