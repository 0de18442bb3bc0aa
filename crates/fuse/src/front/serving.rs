//! Whether the kernel by itself serves the open handles of a file, or we do.
//!
//! What must hold, because the kernel refuses anything else: while a file has a handle that the
//! kernel serves, all its handles are served so, with the same backing; while it has one that we
//! serve, none is. A file's first handle therefore decides for those opened beside it.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use parking_lot::Mutex;

use super::backing::Backing;

/// Who serves a file's open handles.
#[derive(Debug, Default)]
pub(super) struct Serving(Mutex<Handles>);

#[derive(Debug, Default)]
struct Handles {
    ours: usize,
    kernels: usize,
    backing: Option<Arc<Backing>>,
}

impl Serving {
    /// Decides who serves a new handle, and counts it. `offer` is asked whether the kernel shall; it is given whether
    /// the kernel must, and what registers a descriptor with it. Returns what the kernel reads and writes, if it serves
    /// the handle.
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

    /// A handle is closed; `kernels` says whether the kernel served it.
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
