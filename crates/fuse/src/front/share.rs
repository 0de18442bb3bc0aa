//! One open handle's share in the decision who serves its file.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::backing::Backing;
use super::inode_table::Inode;

/// One open handle's share in [`ServedBy`](super::served_by::ServedBy), until it is dropped.
#[derive(Debug)]
pub(super) struct Share<N> {
    inode: Arc<Inode<N>>,
    /// What the kernel reads and writes, if it serves the handle by itself.
    pub(super) backing: Option<Arc<Backing>>,
}

impl<N> Share<N> {
    /// Decides who serves a new handle; see [`join`](super::served_by::ServedBy::join).
    pub(super) fn new(
        inode: &Arc<Inode<N>>,
        open_backing: impl Fn(BorrowedFd<'_>) -> io::Result<Backing>,
        offer: impl FnOnce(bool, &mut dyn FnMut(BorrowedFd<'_>) -> io::Result<()>) -> bool,
    ) -> Self {
        let backing = inode.served_by.join(open_backing, offer);
        Self { inode: inode.clone(), backing }
    }
}

impl<N> Drop for Share<N> {
    fn drop(&mut self) {
        self.inode.served_by.leave(self.backing.is_some());
    }
}
