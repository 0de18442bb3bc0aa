//! Reads a directory by the file system's own cookies.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use parking_lot::Mutex;
use rustix::fs::{FileType, RawDir, SeekFrom, fsync, seek};

use super::Vnode;
use halocline_os::error::Result;

/// One directory entry.
#[derive(Debug, Clone)]
pub struct DirEntry {
    /// Inode number.
    pub inode: u64,
    /// Cookie from which reading continues after this entry.
    pub next: u64,
    /// `DT_*` type.
    pub kind: u8,
    /// Name.
    pub name: OsString,
}

/// Bytes of entries read at once.
const BUFFER: usize = 64 << 10;

/// An open directory; dropping it closes it.
#[derive(Debug)]
pub struct Directory {
    fd: OwnedFd,
    vnode: Vnode,
    stream: Mutex<Stream>,
}

/// Entries read ahead, and the cookie before the first of them.
#[derive(Debug, Default)]
struct Stream {
    ahead: VecDeque<DirEntry>,
    position: u64,
    buffer: Vec<u8>,
    /// Whether anything was read since the last seek.
    moved: bool,
    hidden: Option<&'static str>,
}

impl Directory {
    /// `hidden` is a name to leave out.
    pub(super) fn new(fd: OwnedFd, vnode: Vnode, hidden: Option<&'static str>) -> Self {
        Self { fd, vnode, stream: Mutex::new(Stream { hidden, ..Stream::default() }) }
    }

    /// The vnode it was opened by.
    pub fn vnode(&self) -> &Vnode {
        &self.vnode
    }

    /// Passes entries from cookie `offset` (0 at first) to `take` until it returns `false`; an entry that was refused
    /// is the first one when reading continues from the cookie before it.
    pub fn read(&self, offset: u64, take: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        let mut stream = self.stream.lock();
        // From 0, the program wants to see the directory as it is now.
        if stream.position != offset || (offset == 0 && stream.moved) {
            seek(&self.fd, SeekFrom::Start(offset))?;
            stream.ahead.clear();
            stream.position = offset;
            stream.moved = false;
        }
        loop {
            if stream.ahead.is_empty() && !stream.fill(&self.fd)? {
                return Ok(());
            }
            while let Some(entry) = stream.ahead.pop_front() {
                debug_assert!(stream.hidden.is_none_or(|hidden| entry.name != hidden));
                let next = entry.next;
                let again = entry.clone();
                if !take(entry) {
                    stream.ahead.push_front(again);
                    return Ok(());
                }
                stream.position = next;
            }
        }
    }

    /// Makes the directory durable.
    pub fn sync(&self) -> Result<()> {
        Ok(fsync(&self.fd)?)
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Stream {
    /// Reads the next entries; `false` at the end.
    fn fill(&mut self, fd: &OwnedFd) -> Result<bool> {
        while self.fill_once(fd)? {
            if let Some(hidden) = self.hidden {
                self.ahead.retain(|entry| entry.name != hidden);
            }
            if !self.ahead.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn fill_once(&mut self, fd: &OwnedFd) -> Result<bool> {
        self.moved = true;
        self.buffer.reserve_exact(BUFFER);
        let mut raw = RawDir::new(fd, self.buffer.spare_capacity_mut());
        while let Some(entry) = raw.next() {
            let entry = entry?;
            self.ahead.push_back(DirEntry {
                inode: entry.ino(),
                next: entry.next_entry_cookie(),
                kind: kind(entry.file_type()),
                name: OsStr::from_bytes(entry.file_name().to_bytes()).to_owned(),
            });
            if raw.is_buffer_empty() {
                break;
            }
        }
        Ok(!self.ahead.is_empty())
    }
}

fn kind(of: FileType) -> u8 {
    match of {
        FileType::RegularFile => libc::DT_REG,
        FileType::Directory => libc::DT_DIR,
        FileType::Symlink => libc::DT_LNK,
        FileType::Fifo => libc::DT_FIFO,
        FileType::Socket => libc::DT_SOCK,
        FileType::CharacterDevice => libc::DT_CHR,
        FileType::BlockDevice => libc::DT_BLK,
        FileType::Unknown => libc::DT_UNKNOWN,
    }
}
