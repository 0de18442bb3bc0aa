//! Whether the kernel or this process serves the open handles of a file.
//!
//! What must hold, because the kernel refuses anything else: while the kernel serves a handle of a file, it serves all
//! of the file's handles, with the same backing; while we serve one, it serves none. So a file's first handle decides
//! for the others.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use parking_lot::Mutex;

use super::backing::Backing;

/// Who serves a file's open handles.
#[derive(Debug, Default)]
pub(super) struct ServedBy(Mutex<HandleCounts>);

#[derive(Debug, Default)]
struct HandleCounts {
    ours: usize,
    kernels: usize,
    backing: Option<Arc<Backing>>,
}

impl ServedBy {
    /// Decides who serves a new handle, and counts it. `offer` decides whether the kernel shall; its arguments are
    /// whether the kernel must, and a function that registers a descriptor with the kernel. Returns the backing that
    /// the kernel reads and writes, if it serves the handle.
    pub(super) fn join(
        &self,
        open_backing: impl Fn(BorrowedFd<'_>) -> io::Result<Backing>,
        offer: impl FnOnce(bool, &mut dyn FnMut(BorrowedFd<'_>) -> io::Result<()>) -> bool,
    ) -> Option<Arc<Backing>> {
        let mut handles = self.0.lock();
        let must = handles.kernels > 0;
        if handles.ours == 0 {
            let mut backing = handles.backing.clone();
            let mut register = |fd: BorrowedFd<'_>| {
                if backing.is_none() {
                    backing = Some(Arc::new(open_backing(fd)?));
                }
                Ok(())
            };
            let taken = offer(must, &mut register);
            if let Some(backing) = backing.filter(|_| taken || must) {
                handles.kernels += 1;
                handles.backing = Some(backing.clone());
                return Some(backing);
            }
        }
        handles.ours += 1;
        None
    }

    /// A handle is closed; `kernels` is whether the kernel served it.
    pub(super) fn leave(&self, kernels: bool) {
        let mut handles = self.0.lock();
        if !kernels {
            handles.ours -= 1;
            return;
        }
        handles.kernels -= 1;
        if handles.kernels == 0 {
            handles.backing = None;
        }
    }
}
