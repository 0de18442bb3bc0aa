//! How long the kernel may use its own copy of an inode's attributes.
//!
//! What must hold: attributes that change without the kernel or us being notified are never kept. There are two kinds:
//! sizes and times of an underlying file that the kernel changes by itself through a mapping (passthrough), and set-id
//! bits that a write removes, either here or on the underlying file; after that, no one may run the file with them. For
//! a file that is lost from its tier, nothing is kept at all.

use std::sync::atomic::Ordering;

use fuser::{FileAttr, FileType};

use super::inode_table::Inode;

/// Whether the kernel may keep the name and the attributes of an inode.
pub(super) fn may_keep<N>(inode: &Inode<N>, attr: &FileAttr) -> bool {
    let set_id = attr.kind == FileType::RegularFile
        && u32::from(attr.perm) & (libc::S_ISUID | libc::S_ISGID) != 0;
    !(set_id || is_lost(attr) || inode.mapped.load(Ordering::Relaxed))
}

/// Whether this may be all that is known of a file whose data is lost and may be restored: the kernel would consider it
/// empty.
fn is_lost(attr: &FileAttr) -> bool {
    attr.kind == FileType::RegularFile && attr.perm == 0 && attr.size == 0
}

/// The kernel is about to serve a handle by itself: notes whether that handle can be mapped for writing, which needs
/// both access rights. `true` if this is new: the kernel must then drop attributes that it kept for longer.
pub(super) fn served<N>(inode: &Inode<N>, flags: i32) -> bool {
    flags & libc::O_ACCMODE == libc::O_RDWR && !inode.mapped.swap(true, Ordering::Relaxed)
}
