//! A small file system that can be filled.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use crate::skipping::skip;

/// The smallest room that is taken: a page.
const PIECE: u64 = 4096;

/// The file system, in memory. Dropping it removes it.
#[derive(Debug)]
pub struct SmallDisk {
    at: PathBuf,
    bytes: u64,
}

impl SmallDisk {
    /// A new one over an empty directory; `None`, with the reason, where none can be mounted.
    pub fn over(at: PathBuf, bytes: u64) -> Option<Self> {
        let options = format!("size={bytes}");
        let mut mount = Command::new("mount");
        let done = mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(&at).output();
        if done.is_ok_and(|done| done.status.success()) {
            return Some(Self { at, bytes });
        }
        skip("no small file system can be mounted");
        None
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.at
    }

    fn ballast(&self) -> PathBuf {
        self.at.join("ballast")
    }

    /// Takes all room that is left.
    pub fn fill(&self) {
        let file = File::create(self.ballast()).unwrap();
        let (mut end, mut piece) = (0, self.bytes);
        while piece >= PIECE {
            match fallocate(&file, FallocateFlags::empty(), end, piece) {
                Ok(()) => end += piece,
                Err(Errno::NOSPC) => piece /= 2,
                Err(error) => panic!("{}: {error}", self.at.display()),
            }
        }
    }

    /// Gives it back.
    pub fn free(&self) {
        fs::remove_file(self.ballast()).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.at).status();
    }
}
