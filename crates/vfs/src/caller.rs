//! The caller of an operation, and the kind of inode to create.

use std::ffi::OsStr;

/// The caller's identity: taken from the kernel, never from the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// File-system user id.
    pub uid: u32,
    /// File-system group id.
    pub gid: u32,
    /// Thread id as the kernel reports it; 0 if the kernel itself is the caller.
    pub pid: u32,
}

/// The caller that creates an inode, which then belongs to it.
#[derive(Debug, Clone, Copy)]
pub struct Maker {
    /// Who calls.
    pub caller: Caller,
    /// Permission bits that a new inode does not get. Applied as POSIX requires: not at all if the parent has a default
    /// ACL.
    pub umask: u32,
}

/// What [`Engine::make`](crate::Engine::make) creates.
#[derive(Debug, Clone, Copy)]
pub enum Make<'a> {
    /// A directory with permission bits.
    Directory(u32),
    /// A symbolic link with its target.
    Symlink(&'a OsStr),
    /// A FIFO, socket, device or regular file: full mode and device number.
    Special(u32, u64),
}
