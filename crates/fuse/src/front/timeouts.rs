//! How long the kernel may answer from its copy of an inode's attributes.
//!
//! What must hold: what changes without a notice to the kernel or to us is never kept. Two things do: the kernel serves
//! the stores of a mapping by itself in the file below (passthrough), and a write takes off set-id bits here or there,
//! with which nobody may run the file a moment later. Of a file that is gone from its tier nothing is kept at all.

use std::sync::atomic::Ordering;

use fuser::{FileAttr, FileType};

use super::inode_table::Inode;

/// Whether the kernel may keep the name and the attributes of an inode.
pub(super) fn may_keep<N>(inode: &Inode<N>, attr: &FileAttr) -> bool {
    let set_id = attr.kind == FileType::RegularFile
        && u32::from(attr.perm) & (libc::S_ISUID | libc::S_ISGID) != 0;
    !(set_id || is_lost(attr) || inode.mapped.load(Ordering::Relaxed))
}

/// Whether this may be all that is known of a file whose data is gone and may be restored: the kernel would take it for
/// empty.
fn is_lost(attr: &FileAttr) -> bool {
    attr.kind == FileType::RegularFile && attr.perm == 0 && attr.size == 0
}

/// The kernel is about to serve a handle by itself: notes whether that can be mapped for writing, which takes both
/// rights. `true` if that is new: the kernel must drop what it was to keep for longer.
pub(super) fn served<N>(inode: &Inode<N>, flags: i32) -> bool {
    flags & libc::O_ACCMODE == libc::O_RDWR && !inode.mapped.swap(true, Ordering::Relaxed)
}
