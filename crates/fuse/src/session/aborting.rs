//! The kernel's interface for ending a FUSE connection while mounts of it remain.

use std::fs;
use std::io;
use std::path::Path;

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// Where the connections usually are: one directory each.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";
/// The type of their file system.
const KIND: &str = "fusectl";

/// Ends the connection of the file system on `device` (major and minor number): its programs get `ENOTCONN` from now
/// on.
///
/// # Errors
/// The connections are not mounted, and only root may mount them; or there is no such connection.
pub(super) fn abort((major, minor): (u64, u64)) -> io::Result<()> {
    let switch = Path::new(&((major << 20) | minor).to_string()).join("abort");
    if fs::write(Path::new(CONNECTIONS).join(&switch), "1").is_ok() {
        return Ok(());
    }
    // Mounted nowhere: only this descriptor reaches it.
    let context = fsopen(KIND, FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let root = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    let switch = openat(&root, &switch, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&switch, b"1")?;
    Ok(())
}
