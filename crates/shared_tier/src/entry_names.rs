//! Names in directories, in the form of the system and in that of the store.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use halocline_api::control::tier::PRIVATE;
pub use halocline_api::file_tier::shared_disk::REGISTRY;
use halocline_cluster::names::NAME_BYTES_MAX;
use halocline_model::namespace::{EntryName, InodeNumber, Name, ROOT};
use halocline_os::error::Result;
use rustix::io::Errno;

/// A name in a directory.
pub(crate) fn entry_name(directory: InodeNumber, name: &OsStr) -> EntryName {
    EntryName { directory, name: Name::from(name.as_bytes()) }
}

/// A name in a directory that programs may use.
///
/// # Errors
/// `EPERM` for those in the root that are ours on the disks.
pub(crate) fn entry_name_of_program(directory: InodeNumber, name: &OsStr) -> Result<EntryName> {
    if directory == ROOT && [PRIVATE, REGISTRY].iter().any(|private| name == *private) {
        return Err(Errno::PERM.into());
    }
    Ok(entry_name(directory, name))
}

/// Whether something in the directory with a number may have this name. Disks may say anything.
pub(crate) fn may_name(directory: u64, name: &Name) -> bool {
    let bytes = name.as_bytes();
    let is_ours = directory == ROOT.0
        && [PRIVATE, REGISTRY].iter().any(|private| bytes == private.as_bytes());
    !is_ours && !matches!(bytes, b"" | b"." | b"..") && bytes.len() <= NAME_BYTES_MAX
}

/// A name in the form of the system.
pub(crate) fn os(name: &Name) -> &OsStr {
    OsStr::from_bytes(name.as_bytes())
}
