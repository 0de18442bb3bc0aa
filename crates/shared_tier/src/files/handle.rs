//! Operations on an open file.
//!
//! What must hold: once others may have moved a file, nothing is read through the old handle and no change is
//! acknowledged.

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use halocline_os::error::{Error, Result};
use halocline_vfs::namespace::{contents, has_privileges};
use halocline_vfs::{Allocate, Counted, Seek};
use rustix::fs::{OFlags, fallocate, fcntl_getfl, ftruncate};
use rustix::io::Errno;

use super::{Files, capability};
use crate::inodes::Vnode;
use crate::passthrough::WhyOurs;

/// An open file. Dropping it closes it.
#[derive(Debug)]
pub struct Handle {
    pub(super) vnode: Vnode,
    pub(super) file: Arc<File>,
    /// Whether each write is durable before it is answered.
    pub(super) syncs: bool,
    /// How often the lease had lapsed when it was opened.
    pub(super) lapses: u64,
    /// Where it is, for the counts: 0 on this node's SSD.
    pub(super) tier: usize,
    /// Why reads must come to us, if they must.
    pub(super) why_ours: WhyOurs,
    /// Whether the kernel reads it by itself.
    pub(super) is_passed: AtomicBool,
    /// Counts for the user who opened it, also while it is closed and mapped.
    pub(super) counted: OnceLock<Counted>,
    pub(super) files: Arc<Files>,
}

impl Handle {
    pub(crate) fn vnode(&self) -> &Vnode {
        &self.vnode
    }

    /// The file, as long as nobody can have moved it.
    fn file(&self) -> Result<&File> {
        self.files.base.sessions.check()?;
        if self.lapses == self.files.base.sessions.lapses() {
            return Ok(&self.file);
        }
        Err(Error::Cluster {
            what: format!(
                "inode {}: this node had lost its lease since the file was opened, and others may have moved it",
                self.vnode.0.number.0
            ),
            remedy: "open it again".to_owned(),
        })
    }

    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let read = contents::read(self.file()?, offset, buf)?;
        self.files.ssd.executor.counters.read(self.tier, read);
        Ok(read)
    }

    /// Writes at an offset; if the file was opened to append, at its end, whatever other nodes append meanwhile.
    pub(crate) fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.change(|file| {
            self.write_all(file, offset, data)?;
            self.files.ssd.executor.counters.written(self.tier, data.len());
            if self.syncs { contents::sync(file, true) } else { Ok(()) }
        })
    }

    /// Changes the file. If the lease lapsed meanwhile because this process was suspended, the change may have gone
    /// to a copy that is gone: it is not acknowledged.
    fn change(&self, act: impl FnOnce(&File) -> Result<()>) -> Result<()> {
        let file = self.file()?;
        act(file)?;
        capability::follow(&self.files.base, &self.vnode.0, file)?;
        self.file().map(drop)
    }

    /// Writes everything. If this node's SSD is full, other files are demoted to make room.
    fn write_all(&self, file: &File, offset: u64, data: &[u8]) -> Result<()> {
        let (mut done, mut has_made_room) = (0, false);
        while done < data.len() {
            // Earlier pieces are not written again: they may have been appended.
            match file.write_at(&data[done..], offset + done as u64) {
                Ok(0) => return Err(Errno::IO.into()),
                Ok(written) => done += written,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    let error = Error::from(error);
                    let left = (data.len() - done) as u64;
                    let (number, is_here) = (self.vnode.0.number, self.tier == 0);
                    let may_help = error.is_full() && !has_made_room;
                    if !may_help || !self.files.ssd.make_room_for_write((number, is_here), left) {
                        return Err(error);
                    }
                    has_made_room = true;
                    // Making room may have taken longer than the lease.
                    self.file()?;
                }
            }
        }
        Ok(())
    }

    /// Whether a change of its contents must take rights away.
    pub(crate) fn has_privileges(&self) -> bool {
        has_privileges(&self.file)
    }

    pub(crate) fn sync(&self, data_only: bool) -> Result<()> {
        contents::sync(self.file()?, data_only)
    }

    pub(crate) fn truncate(&self, size: u64) -> Result<()> {
        self.change(|file| Ok(ftruncate(file.as_fd(), size)?))
    }

    pub(crate) fn allocate(&self, offset: u64, len: u64, how: Allocate) -> Result<()> {
        let file = (self.vnode.0.number, self.tier == 0);
        self.change(|fd| match fallocate(fd, how.mode(), offset, len) {
            Err(errno @ (Errno::NOSPC | Errno::DQUOT)) => {
                if !self.files.ssd.make_room_for_allocation(file, len) {
                    return Err(errno.into());
                }
                // Making room may have taken longer than the lease.
                Ok(fallocate(self.file()?, how.mode(), offset, len)?)
            }
            done => Ok(done?),
        })
    }

    pub(crate) fn seek(&self, offset: u64, what: Seek) -> Result<u64> {
        contents::seek(self.file()?, offset, what)
    }

    /// Offers the file to the kernel; see `Engine::pass_through`.
    pub(crate) fn pass_through(
        &self,
        must: bool,
        register: &mut dyn FnMut(BorrowedFd<'_>) -> std::io::Result<()>,
    ) -> bool {
        let passthrough = &self.files.base.passthrough;
        let file = (&self.vnode.0, self.file.as_fd());
        let passed = passthrough.offer(file, (self.why_ours, must), register);
        if passed {
            self.vnode.0.noting.lock().is_passed = true;
        }
        self.is_passed.store(passed && self.why_ours.is_none(), Ordering::Release);
        passed
    }

    /// See `Engine::count_while_mapped`.
    pub(crate) fn count_while_mapped(&self, counted: Counted) {
        self.counted.get_or_init(|| counted);
    }

    /// Whether the kernel reads it by itself.
    pub(crate) fn is_passed(&self) -> bool {
        self.is_passed.load(Ordering::Acquire)
    }

    /// Whether it may be written through.
    pub(crate) fn is_writable(&self) -> bool {
        let flags = fcntl_getfl(&*self.file).unwrap_or(OFlags::RDONLY);
        flags.intersects(OFlags::WRONLY | OFlags::RDWR)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let files = Arc::clone(&self.files);
        files.close(self);
    }
}
