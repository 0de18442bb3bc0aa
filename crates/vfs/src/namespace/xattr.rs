//! Extended attributes of a descriptor, including ACLs.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{XattrFlags, fgetxattr_query, getxattr, listxattr, removexattr, setxattr};
use rustix::io::Errno;

use super::proc_path;
use halocline_os::error::Result;

/// Buffer size tried first: most values fit.
const BUFFER_BYTES: usize = 512;
/// The kernel's own limit of a value and of a list of names.
const BUFFER_BYTES_MAX: usize = 1 << 16;
/// Prefixes of all of Halocline's extended attributes.
const PREFIXES: [&[u8]; 2] = [b"user.halocline.", b"trusted.halocline."];

/// Whether an extended attribute belongs to Halocline and is hidden from programs.
pub fn hidden_xattr(name: &OsStr) -> bool {
    PREFIXES.iter().any(|prefix| name.as_bytes().starts_with(prefix))
}

/// NUL-terminated names of extended attributes, without the hidden ones.
pub fn shown_xattrs(all: &[u8]) -> Vec<u8> {
    let names = all.split_inclusive(|&byte| byte == 0);
    names.filter(|name| !hidden_xattr(OsStr::from_bytes(name))).flatten().copied().collect()
}

/// Value of an extended attribute of a descriptor, which may be `O_PATH`, as in the other functions here.
pub fn get_on(fd: &impl AsFd, name: &OsStr) -> Result<Vec<u8>> {
    let path = proc_path(fd);
    with_buffer(|buffer| getxattr(&path, name.as_bytes(), buffer))
}

/// Whether an open file has an extended attribute with a value; the descriptor must not be `O_PATH`.
pub fn is_set(file: &File, name: &OsStr) -> bool {
    // With an empty buffer, `fgetxattr` returns 0, whatever the size is.
    fgetxattr_query(file, name.as_bytes()).is_ok_and(|bytes| bytes > 0)
}

/// NUL-terminated names of the extended attributes.
pub fn list_on(fd: &impl AsFd) -> Result<Vec<u8>> {
    let path = proc_path(fd);
    with_buffer(|buffer| listxattr(&path, buffer))
}

/// Sets an extended attribute; `flags` are those of `setxattr(2)`.
pub fn set_on(fd: &impl AsFd, name: &OsStr, value: &[u8], flags: i32) -> Result<()> {
    let flags = XattrFlags::from_bits_retain(flags.cast_unsigned());
    Ok(setxattr(proc_path(fd), name.as_bytes(), value, flags)?)
}

/// Removes an extended attribute.
pub fn remove_on(fd: &impl AsFd, name: &OsStr) -> Result<()> {
    Ok(removexattr(proc_path(fd), name.as_bytes())?)
}

/// What `call` writes into a buffer, which is made larger if it is too small.
fn with_buffer(mut call: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>) -> Result<Vec<u8>> {
    let mut value = vec![0; BUFFER_BYTES];
    let len = match call(&mut value) {
        Err(Errno::RANGE) => {
            value.resize(BUFFER_BYTES_MAX, 0);
            call(&mut value)?
        }
        other => other?,
    };
    value.truncate(len);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: nothing was set, so that a capability counted as lost when its file was closed.
    #[test]
    fn what_has_a_value_is_set() {
        let file = tempfile::tempfile().unwrap();
        let [set, unset] = ["user.set", "user.unset"].map(OsStr::new);
        match set_on(&file, set, b"v", 0) {
            Err(error) if error.errno() == libc::EOPNOTSUPP => return,
            done => done.unwrap(),
        }
        assert!(is_set(&file, set) && !is_set(&file, unset));
        remove_on(&file, set).unwrap();
        assert!(!is_set(&file, set));
    }
}
