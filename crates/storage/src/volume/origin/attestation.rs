//! Attestations: that a file refers to an object because we made it so.
//!
//! Who may write to a file can have it refer to the object of another. In the tree of the volume that reaches nothing, because
//! the file's inode number and birth time are not those in the object's name; in a copy of a volume all files have others. So a
//! file has the number of its object in an attribute, too, which only root sets and sees. What must hold: it is
//! set where a file gets an object, and where its own object is there, and nowhere else. A file that is copied with it,
//! by root, has the data that it had.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{XattrFlags, fsetxattr, getxattr, setxattr};
use rustix::io::Errno;

/// The attribute: the same value as that which the file's owner can write.
const ATTRIBUTE: &str = "trusted.halocline.object";

/// Whether files of this tree can be attested by who we are, on its file system.
pub(super) fn is_possible(tree: &File) -> bool {
    // The root of the tree is a directory, and has no object.
    fsetxattr(tree, ATTRIBUTE, b"", XattrFlags::empty()).is_ok()
}

/// Attests that the file at `path` refers to `number`.
pub(super) fn write(path: &Path, number: &str) -> io::Result<()> {
    Ok(setxattr(path, ATTRIBUTE, number.as_bytes(), XattrFlags::empty())?)
}

/// Whether it is attested that the file at `path` refers to `number`.
pub(super) fn is_there(path: &Path, number: &str) -> io::Result<bool> {
    let mut value = [0_u8; 64];
    match getxattr(path, ATTRIBUTE, &mut value) {
        Ok(len) => Ok(&value[..len] == number.as_bytes()),
        Err(Errno::NODATA | Errno::RANGE | Errno::OPNOTSUPP) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}
