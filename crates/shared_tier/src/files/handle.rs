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
use halocline_vfs::namespace::{contents, has_privileges, stat_descriptor};
use halocline_vfs::{Allocate, Counted, Seek};
use rustix::fs::{OFlags, fallocate, fcntl_getfl, ftruncate};
use rustix::io::Errno;

use super::{Files, capability};
use crate::inodes::Vnode;
use crate::passthrough::WhyOurs;

/// How often room is made for what gets no further.
const ROOM_TRIES: u32 = 16;

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
                "{}: this node had lost its lease since the file was opened, and others may have moved it",
                self.vnode.0.told()
            ),
            remedy: "open it again".to_owned(),
        })
    }

    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let read = contents::read(self.file()?, offset, buf)?;
        self.files.ssd.executor.counters.read(self.tier, read);
        Ok(read)
    }

    /// Writes at an offset; if the file was opened to append, at its end, whatever other nodes append meanwhile. Returns how
    /// many bytes were written: fewer than all if the disk is full, or fails, behind them.
    pub(crate) fn write(&self, offset: u64, data: &[u8]) -> Result<usize> {
        self.change(|file| {
            let written = self.write_some(file, offset, data)?;
            self.files.ssd.executor.counters.written(self.tier, written);
            if self.syncs {
                contents::sync(file, true)?;
            }
            Ok(written)
        })
    }

    /// Changes the file. If the lease lapsed meanwhile because this process was suspended, the change may have gone
    /// to a copy that is gone: it is not acknowledged.
    fn change<T>(&self, act: impl FnOnce(&File) -> Result<T>) -> Result<T> {
        let file = self.file()?;
        let done = act(file)?;
        capability::follow(&self.files.base, &self.vnode.0, file)?;
        self.file().map(|_| done)
    }

    /// Writes everything, or as much as there is room for, as local file systems do. If this node's SSD is full, other files
    /// are demoted to make room, again if others take it.
    fn write_some(&self, file: &File, offset: u64, data: &[u8]) -> Result<usize> {
        let (mut done, mut tries) = (0, ROOM_TRIES);
        let or_some = |done, error| if done > 0 { Ok(done) } else { Err(error) };
        while done < data.len() {
            // Earlier pieces are not written again: they may have been appended.
            match file.write_at(&data[done..], offset + done as u64) {
                Ok(0) => return or_some(done, Errno::IO.into()),
                Ok(written) => (done, tries) = (done + written, ROOM_TRIES),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    let error = Error::from(error);
                    let left = ((data.len() - done) as u64, quota_of(file, &error));
                    let it = (self.vnode.0.number, self.tier == 0);
                    if !self.tries_again(&error, &mut tries)
                        || !self.files.ssd.make_room_for_write(it, left)
                    {
                        return or_some(done, error);
                    }
                    // Making room may have taken longer than the lease.
                    self.file()?;
                }
            }
        }
        Ok(done)
    }

    /// Whether what has failed for lack of room is tried again, if there is room: once where a quota is the limit, or the
    /// file is not on this node's SSD.
    fn tries_again(&self, failed: &Error, tries: &mut u32) -> bool {
        let may_try = failed.is_full() && *tries > 0;
        let is_once = failed.errno() == libc::EDQUOT || self.tier > 0;
        *tries = if is_once { 0 } else { tries.saturating_sub(1) };
        may_try
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
        let mut tries = ROOM_TRIES;
        self.change(|file| {
            loop {
                let Err(errno) = fallocate(file, how.mode(), offset, len) else { return Ok(()) };
                let error = Error::from(errno);
                let it = (self.vnode.0.number, self.tier == 0);
                if !self.tries_again(&error, &mut tries)
                    || !self.files.ssd.make_room_for_allocation(it, (len, quota_of(file, &error)))
                {
                    return Err(error);
                }
                // Making room may have taken longer than the lease.
                self.file()?;
            }
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

/// The user whose quota is used up, if that is what failed.
fn quota_of(file: &File, failed: &Error) -> Option<u32> {
    let is_quota = failed.errno() == libc::EDQUOT;
    is_quota.then(|| stat_descriptor(file).ok()).flatten().map(|stat| stat.raw.st_uid)
}

impl Drop for Handle {
    fn drop(&mut self) {
        let files = Arc::clone(&self.files);
        files.close(self);
    }
}
