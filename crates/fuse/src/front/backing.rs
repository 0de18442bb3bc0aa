//! Files that are registered with the kernel for passthrough.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock, Weak};

use fuser::BackingId;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

/// `FUSE_DEV_IOC_BACKING_CLOSE`: `_IOW(229, 2, uint32_t)`.
const BACKING_CLOSE: libc::Ioctl = 0x4004_e502;

/// The mount's `/dev/fuse`, once it is open.
#[derive(Debug, Default)]
pub(crate) struct Connection(OnceLock<Weak<OwnedFd>>);

/// A file that the kernel may read and write by itself until this is dropped.
#[derive(Debug)]
pub(crate) struct Backing {
    /// The kernel's number for it.
    pub(crate) id: u32,
    device: Weak<OwnedFd>,
}

impl Connection {
    /// Sets the device that the mount is served through, before its first request.
    pub(crate) fn set_device(&self, device: &Arc<OwnedFd>) {
        self.0.set(Arc::downgrade(device)).expect("a mount has one device");
    }

    /// The device, for users that do not keep it open.
    pub(super) fn weak(&self) -> Weak<OwnedFd> {
        self.0.get().cloned().unwrap_or_default()
    }

    /// Registers a file. Only a process with `CAP_SYS_ADMIN` may.
    ///
    /// The kernel writes the file with the privileges of the registering thread, whoever the writer is. So it is
    /// registered without the privilege to keep set-id bits: a write removes any that were set meanwhile.
    pub(super) fn register(&self, file: BorrowedFd<'_>) -> io::Result<Backing> {
        let device = self.0.get().expect("requests come after the mount");
        let open = device.upgrade().ok_or(io::ErrorKind::NotConnected)?;
        let id = without_set_id(|| BackingId::create_raw(&*open, file))?;
        Ok(Backing { id, device: device.clone() })
    }
}

/// Runs `register` without the capability that lets set-id bits and file capabilities outlive a write.
fn without_set_id<T>(register: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let before = capabilities(None)?;
    if !before.effective.contains(CapabilitySet::FSETID) {
        return register();
    }
    let mut without = before;
    without.effective.remove(CapabilitySet::FSETID);
    set_capabilities(None, without)?;
    let registered = register();
    // These are the thread's own sets; the permitted set stays, so this cannot fail. Without the capability, the thread
    // would remove the bits even for programs that may keep them.
    set_capabilities(None, before).expect("what is permitted can be made effective");
    registered
}

impl Drop for Backing {
    fn drop(&mut self) {
        // Without the device there is no mount, and the kernel has closed its files.
        let Some(device) = self.device.upgrade() else { return };
        // SAFETY: the request takes a pointer to a number that is alive.
        let closed = unsafe { libc::ioctl(device.as_raw_fd(), BACKING_CLOSE, &raw const self.id) };
        if closed < 0 {
            let error = io::Error::last_os_error();
            tracing::debug!(%error, "a file stays registered with the kernel");
        }
    }
}
