//! Creates inodes, as the caller.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsFd;

use rustix::fs::{FileType, Mode, OFlags, mkdirat, mknodat, openat, symlinkat};
use rustix::io::Errno;

use super::act_as::ActAs;
use super::{Namespace, Node, stat_descriptor};
use crate::{Make, Maker, Stat};
use halocline_os::error::Result;

impl Namespace {
    /// Creates a directory, symbolic link or special file that belongs to the caller.
    pub fn make(
        &self,
        (parent, name): (&Node, &OsStr),
        what: Make<'_>,
        by: Maker,
    ) -> Result<(Node, Stat)> {
        self.refuse_hidden(parent, name, Errno::PERM)?;
        let dir = self.descriptor(parent)?;
        let acting = ActAs::new(by)?;
        match what {
            Make::Directory(mode) => mkdirat(&dir, name, Mode::from_raw_mode(mode & 0o7777))?,
            Make::Symlink(target) => symlinkat(target, &dir, name)?,
            Make::Special(mode, device) => mknodat(
                &dir,
                name,
                FileType::from_raw_mode(mode),
                Mode::from_raw_mode(mode & 0o7777),
                device,
            )?,
        }
        drop(acting);
        self.lookup(parent, name)
    }

    /// Creates a regular file that belongs to the caller, and opens it with the `flags` of `open(2)` (`O_CREAT` is
    /// added, `O_DIRECT` dropped).
    pub fn create(
        &self,
        (parent, name): (&Node, &OsStr),
        mode: u32,
        flags: i32,
        by: Maker,
    ) -> Result<(Node, Stat, File)> {
        self.refuse_hidden(parent, name, Errno::PERM)?;
        let dir = self.descriptor(parent)?;
        let flags = OFlags::from_bits_retain((flags & !libc::O_DIRECT).cast_unsigned());
        let always = OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY;
        let acting = ActAs::new(by)?;
        let file = openat(&dir, name, flags | always, Mode::from_raw_mode(mode & 0o7777))?;
        drop(acting);
        let stat = stat_descriptor(file.as_fd())?;
        let node = self.nodes.intern(&stat, parent, name);
        Ok((node, stat, File::from(file)))
    }
}
