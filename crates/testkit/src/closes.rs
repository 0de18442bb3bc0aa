//! Closes of files on a mount: the kernel tells the mount's process of them when the program has gone on.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, major, minor, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::waiting::eventually;

/// Waits until the process of the FUSE mount at `mountpoint` has answered all requests, among them the closes of files
/// that programs closed before. Where the kernel does not show that, because only root may see it, waits for a second.
#[track_caller]
pub fn all_are_told(mountpoint: &Path) {
    let device = mountpoint.metadata().unwrap().dev();
    let number = (u64::from(major(device)) << 20) | u64::from(minor(device));
    let waiting = || -> io::Result<bool> {
        // The list of all connections, mounted nowhere.
        let context = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&context)?;
        let root = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = openat(&root, format!("{number}/waiting"), flags, Mode::empty())?;
        let mut digits = [0; 32];
        let len = rustix::io::read(file, &mut digits)?;
        Ok(digits[..len].trim_ascii() != b"0")
    };
    if waiting().is_err() {
        return sleep(Duration::from_secs(1));
    }
    eventually("an answer to each request", || waiting().is_ok_and(|waiting| !waiting));
}
