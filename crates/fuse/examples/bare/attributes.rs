//! Attributes that a bare mount tells: no more than programs need to go on.

use std::time::UNIX_EPOCH;

use fuser::{FileAttr, FileType, INodeNo};

/// An empty file or directory of root's.
pub(crate) fn attributes(number: u64, kind: FileType) -> FileAttr {
    FileAttr {
        ino: INodeNo(number),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm: 0o777,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}
