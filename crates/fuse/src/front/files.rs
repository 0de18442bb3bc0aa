//! Requests about files: open, create, read, write, sync, close.

use std::sync::Arc;

use fuser::{Errno, FileHandle, INodeNo, WriteFlags};
use halocline_trace::Op;
use halocline_vfs::Allocate;
use halocline_vfs::{Caller, Engine, Maker, Seek};

use super::inodes::{Entry, EntryName, Inodes};
use super::open_files::{OpenFiles, Opened};
use super::privileges::Privileges;
use super::recording::Recording;
use super::stale_pages::StalePages;
use super::user_limits::UserLimits;
use super::{Answer, Refused};

/// What the kernel does with the bytes that it reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadFor {
    /// Passes them to the program that asked.
    Program,
    /// Caches them as pages of the file, for later reads and mappings.
    Pages,
}

impl ReadFor {
    /// The kernel names the lock owner (`FUSE_READ_LOCKOWNER`) if a program waits for the bytes, and no one if it reads
    /// pages, because those belong to no single program.
    pub(crate) fn of(names_owner: bool) -> Self {
        if names_owner { Self::Program } else { Self::Pages }
    }
}

/// Requests about open files.
#[derive(Debug)]
pub(crate) struct Files<E: Engine> {
    pub(super) engine: Arc<E>,
    pub(super) inodes: Arc<Inodes<E>>,
    pub(super) open: Arc<OpenFiles<E>>,
    pub(super) limits: Arc<UserLimits>,
    pub(super) privileges: Arc<Privileges<E>>,
    pub(super) stale_pages: Arc<StalePages>,
    pub(super) recording: Arc<Recording<E>>,
}

impl<E: Engine> Files<E> {
    /// `flags` are `open(2)`'s.
    pub(crate) fn open(&self, number: INodeNo, flags: i32, caller: Caller) -> Answer<Opened> {
        let inode = self.inodes.get(number)?;
        let counted = self.limits.take(caller.uid)?;
        if flags & libc::O_TRUNC != 0 && caller.uid != 0 {
            self.privileges.drop_all(&inode, None, caller)?;
        }
        let handle = self.engine.open(&inode.vnode, flags, caller);
        let handle = handle.map_err(self.inodes.failed(&inode, "open"))?;
        Ok(self.open.admit(inode, handle, flags, counted))
    }

    /// Creates and opens a file, which then belongs to the caller.
    ///
    /// What must hold: an existing file is opened by [`Self::open`] only, for which the kernel has checked permissions.
    /// The file may have been created behind the mount since the kernel looked up the name: then the kernel is told to
    /// look it up again.
    pub(crate) fn create(
        &self,
        (parent, name): EntryName<'_>,
        mode: u32,
        flags: i32,
        by: Maker,
    ) -> Answer<(Entry, Opened)> {
        let parent = self.inodes.get(parent)?;
        let taken = self.limits.take(by.caller.uid)?;
        let created = self.engine.create((&parent.vnode, name), mode, flags | libc::O_EXCL, by);
        self.inodes.changed(&parent);
        let (vnode, stat, handle) = match created {
            Err(error) if error.errno() == libc::EEXIST && flags & libc::O_EXCL == 0 => {
                return Err(Refused(Errno::ESTALE));
            }
            created => created.map_err(self.inodes.failed_at(&parent, name, "create"))?,
        };
        let (inode, attr) = self.inodes.remember(vnode, &stat);
        let opened = self.open.admit(inode.clone(), handle, flags, taken);
        // Where the kernel serves it, it keeps nothing of what a mapping changes.
        let timeout = self.inodes.timeout(&inode, &attr);
        let (generation, attr_timeout) = (inode.generation, timeout);
        Ok((Entry { attr, generation, timeout, attr_timeout }, opened))
    }

    /// Reads at `offset` into `room`; returns the number of bytes. `why` is what they are for.
    ///
    /// EINVAL for pages of a file that the kernel serves: see [`super::open_files`].
    pub(crate) fn read(
        &self,
        (handle, why): (FileHandle, ReadFor),
        offset: u64,
        room: &mut [u8],
        caller: Caller,
    ) -> Answer<usize> {
        let file = self.open.get(handle)?;
        if why == ReadFor::Pages {
            if file.share.backing.is_some() {
                return Err(Refused(Errno::EINVAL));
            }
            file.inode.pages.reading();
        }
        let read = || match why {
            ReadFor::Program => self.engine.read(&file.handle, offset, room, caller),
            ReadFor::Pages => self.engine.read_pages(&file.handle, offset, room, caller),
        };
        let bytes = |read: &Result<usize, _>| read.as_ref().map_or(0, |&bytes| bytes as u64);
        let read = self.recording.recorded((&file, Op::Read), (offset, caller), read, bytes);
        read.map_err(self.inodes.failed(&file.inode, "read"))
    }

    /// Writes all of `data`; returns the number of bytes. `open_flags` are the program's descriptor's at the time of the
    /// write.
    pub(crate) fn write(
        &self,
        handle: FileHandle,
        (offset, data): (u64, &[u8]),
        (flags, open_flags): (WriteFlags, i32),
        caller: Caller,
    ) -> Answer<u32> {
        let file = self.open.get(handle)?;
        let drops = flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        if drops {
            self.privileges.drop_all(&file.inode, Some(&file.handle), caller)?;
        }
        let of_pages = flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let appends = !of_pages && open_flags & libc::O_APPEND != 0;
        let target = file.to_write(&self.engine, appends, caller)?;
        let len = data.len() as u64;
        let write = || self.engine.write(target, offset, data, caller);
        let bytes = |written: &Result<(), _>| if written.is_ok() { len } else { 0 };
        let written = self.recording.recorded((&file, Op::Write), (offset, caller), write, bytes);
        written.map_err(self.inodes.failed(&file.inode, "write"))?;
        if file.direct && !of_pages {
            self.stale_pages.written(file.inode.number, &file.inode.pages, offset, len);
        }
        if drops {
            // Somebody may have set them while the bytes were being written.
            self.privileges.drop_all(&file.inode, Some(&file.handle), caller)?;
        }
        Ok(u32::try_from(data.len()).expect("a request is at most 1 MiB"))
    }

    /// A descriptor was closed in the process `lock_owner`; its locks of the file end with it.
    pub(crate) fn flush(&self, handle: FileHandle, lock_owner: u64) -> Answer<()> {
        if self.engine.shares_locks() {
            self.open.get(handle)?.inode.locks.closed(lock_owner);
        } else if !self.engine.reports_at_close() {
            // The kernel does not ask again.
            return Err(Refused(Errno::ENOSYS));
        }
        let file = self.open.get(handle)?;
        self.engine.flush(&file.handle).map_err(self.inodes.failed(&file.inode, "flush"))
    }

    pub(crate) fn release(&self, handle: FileHandle) {
        let file = self.open.remove(handle);
        if let Some(file) = file.filter(|_| self.engine.shares_locks()) {
            file.inode.locks.released(handle);
        }
    }

    pub(crate) fn sync(&self, handle: FileHandle, data_only: bool) -> Answer<()> {
        let file = self.open.get(handle)?;
        let synced = self.engine.fsync(&file.handle, data_only);
        synced.map_err(self.inodes.failed(&file.inode, "fsync"))
    }

    /// `mode` is that of `fallocate(2)`.
    pub(crate) fn allocate(
        &self,
        handle: FileHandle,
        (offset, len): (u64, u64),
        mode: i32,
        caller: Caller,
    ) -> Answer<()> {
        let file = self.open.get(handle)?;
        let how = allocation(mode).ok_or(Errno::EOPNOTSUPP)?;
        if caller.uid != 0 {
            self.privileges.drop_all(&file.inode, Some(&file.handle), caller)?;
        }
        let allocated = self.engine.allocate(&file.handle, offset, len, how);
        allocated.map_err(self.inodes.failed(&file.inode, "fallocate"))?;
        if caller.uid != 0 {
            self.privileges.drop_all(&file.inode, Some(&file.handle), caller)?;
        }
        Ok(())
    }

    /// `whence` is that of `lseek(2)`, for data or a hole.
    pub(crate) fn seek(&self, handle: FileHandle, offset: i64, whence: i32) -> Answer<i64> {
        let file = self.open.get(handle)?;
        let what = match whence {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return Err(Refused(Errno::EINVAL)),
        };
        let offset = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
        let found = self.engine.seek(&file.handle, offset, what);
        Ok(found.map_err(self.inodes.failed(&file.inode, "lseek"))?.cast_signed())
    }
}

/// Decodes the mode of `fallocate(2)`; `None` for a mode that no engine supports.
fn allocation(mode: i32) -> Option<Allocate> {
    const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
    const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | KEEP;
    const ZERO_KEEP: i32 = libc::FALLOC_FL_ZERO_RANGE | KEEP;
    Some(match mode {
        0 => Allocate::Reserve,
        KEEP => Allocate::ReserveKeepSize,
        PUNCH => Allocate::PunchHole,
        libc::FALLOC_FL_ZERO_RANGE => Allocate::Zero { keep_size: false },
        ZERO_KEEP => Allocate::Zero { keep_size: true },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::fs;
    use std::time::Duration;

    use halocline_vfs::uncached::Uncached;

    use super::super::{Front, FrontOptions};
    use super::*;

    /// Regression: it was opened with the rights of the mount process.
    #[test]
    fn what_others_made_meanwhile_is_not_opened_as_new() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("theirs"), "secret").expect("write");
        let engine = Arc::new(Uncached::open(dir.path(), false).expect("open"));
        let options = FrontOptions { attr_timeout: Duration::ZERO, direct: false };
        let front = Front::new(engine, options, None);
        let caller = Caller { uid: 0, gid: 0, pid: 1 };
        let create = |name: &str, flags| {
            let at = (INodeNo(1), OsStr::new(name));
            let made = front.files.create(at, 0o600, flags, Maker { caller, umask: 0 });
            made.map(drop).map_err(|Refused(errno)| errno.code())
        };
        let flags = libc::O_RDWR | libc::O_CREAT;
        assert_eq!(create("theirs", flags), Err(libc::ESTALE));
        assert_eq!(create("theirs", flags | libc::O_TRUNC), Err(libc::ESTALE));
        assert_eq!(create("theirs", flags | libc::O_EXCL), Err(libc::EEXIST));
        assert_eq!(create("new", flags), Ok(()));
        assert_eq!(fs::read(dir.path().join("theirs")).expect("read"), b"secret");
    }
}
