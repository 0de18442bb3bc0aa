//! Whether a file that the kernel served is still mapped.
//!
//! A mapping that is made through kernel passthrough holds the underlying file and not our handle: it outlives the
//! handle's last close, unnoticed by us. What programs store there goes to the inode on the SSD, and would be lost if
//! the file had moved; and what they read through us meanwhile would be cached twice. So a file that the kernel has
//! served stays where it is, and continues to be served that way, until nobody else has it open. The kernel tells us
//! this by granting a write lease or not.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::inode::Inode;
use halocline_os::write_lease::is_exclusive;

/// Whether somebody may have the file mapped, as far as that can be seen without closing our own open files; `file` is
/// one of them.
pub(super) fn may_be_mapped(inode: &Inode, file: &File) -> bool {
    if !inode.was_passed.load(Ordering::Acquire) {
        return false;
    }
    let mapped = !is_exclusive(file);
    if !mapped {
        inode.wrote_past.store(false, Ordering::Release);
        inode.was_passed.store(false, Ordering::Release);
    }
    mapped
}

/// Whether somebody has the file mapped. The caller holds `place` exclusively; open handles release their files except
/// `file`, which is open for reading only.
pub(super) fn is_mapped(inode: &Inode, file: &Arc<File>) -> bool {
    if inode.was_passed.load(Ordering::Acquire) {
        for handle in inode.handles() {
            handle.let_go(file);
        }
    }
    may_be_mapped(inode, file)
}
