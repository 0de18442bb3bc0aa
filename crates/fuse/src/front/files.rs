//! Requests about files: open, create, read, write, sync, close.

use std::ffi::OsStr;
use std::sync::Arc;

use fuser::{Errno, FileAttr, FileHandle, INodeNo, WriteFlags};
use halocline_os::error::Error;
use halocline_trace::Op;
use halocline_vfs::ownership::{Owner, may_certainly_open};
use halocline_vfs::{Allocate, Caller, Engine, Maker, Seek};

use super::inode_table::Inode;
use super::inodes::{Entry, EntryName, Inodes, attr};
use super::lease_waits::LeaseWaits;
use super::open_files::{OpenFiles, Opened};
use super::privileges::Privileges;
use super::recording::Recording;
use super::stale_pages::StalePages;
use super::user_limits::UserLimits;
use super::{Answer, Refused};

/// How often a file is created, or opened, whose name others make and remove all the time.
const CREATE_TRIES: usize = 64;

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

/// A file that was opened by its name.
struct Named<E: Engine> {
    inode: Arc<Inode<E::Vnode>>,
    attr: FileAttr,
    handle: E::Handle,
}

/// Requests about open files.
#[derive(Debug)]
pub(crate) struct Files<E: Engine> {
    pub(super) engine: Arc<E>,
    pub(super) inodes: Arc<Inodes<E>>,
    pub(super) open: Arc<OpenFiles<E>>,
    pub(super) limits: Arc<UserLimits>,
    pub(super) leases: Arc<LeaseWaits>,
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
        let open = || self.engine.open(&inode.vnode, flags, caller);
        let handle = self.leases.wait(caller, open);
        let handle = handle.map_err(self.inodes.failed(&inode, "open"))?;
        Ok(self.open.admit(inode, handle, flags, counted))
    }

    /// Creates and opens a file, which then belongs to the caller.
    ///
    /// What must hold: an existing file is opened by [`Self::open`] only, for which the kernel has checked permissions,
    /// or here if the caller certainly has them. The file may have been created behind the mount since the kernel looked
    /// up the name. Where it is not certain who may open it, the kernel is told to look the name up again. It does that
    /// once; then programs get `ESTALE`.
    pub(crate) fn create(
        &self,
        (parent, name): EntryName<'_>,
        mode: u32,
        flags: i32,
        by: Maker,
    ) -> Answer<(Entry, Opened)> {
        let parent = self.inodes.get(parent)?;
        let taken = self.limits.take(by.caller.uid)?;
        let opened = self.create_or_open((&parent, name), mode, flags, by)?;
        let Named { inode, attr, handle } = opened;
        let opened = self.open.admit(inode.clone(), handle, flags, taken);
        // Where the kernel serves it, it keeps nothing of what a mapping changes.
        let timeout = self.inodes.timeout(&inode, &attr);
        let (generation, attr_timeout) = (inode.generation, timeout);
        Ok((Entry { attr, generation, timeout, attr_timeout }, opened))
    }

    /// Creates a file, or opens the one that is there by now.
    fn create_or_open(
        &self,
        (parent, name): (&Inode<E::Vnode>, &OsStr),
        mode: u32,
        flags: i32,
        by: Maker,
    ) -> Answer<Named<E>> {
        for _ in 0..CREATE_TRIES {
            let created = self.engine.create((&parent.vnode, name), mode, flags | libc::O_EXCL, by);
            self.inodes.changed(parent);
            match created {
                Err(error) if error.errno() == libc::EEXIST && flags & libc::O_EXCL == 0 => {
                    if let Some(opened) = self.open_existing((parent, name), flags, by.caller)? {
                        return Ok(opened);
                    }
                }
                created => {
                    let created = created.map_err(self.inodes.failed_at(parent, name, "create"));
                    let (vnode, stat, handle) = created?;
                    let (inode, attr) = self.inodes.remember(vnode, &stat);
                    return Ok(Named { inode, attr, handle });
                }
            }
        }
        Err(Refused(Errno::ESTALE))
    }

    /// Opens a file that was created since the kernel looked up its name; `None` if it is gone again.
    fn open_existing(
        &self,
        (parent, name): (&Inode<E::Vnode>, &OsStr),
        flags: i32,
        caller: Caller,
    ) -> Answer<Option<Named<E>>> {
        let failed = |error| self.inodes.failed_at(parent, name, "create")(error);
        let is_gone = |error: &Error| matches!(error.errno(), libc::ENOENT | libc::ESTALE);
        let (vnode, stat) = match self.engine.lookup(&parent.vnode, name) {
            Err(error) if is_gone(&error) => return Ok(None),
            found => found.map_err(failed)?,
        };
        let owner = Owner { uid: stat.raw.st_uid, gid: stat.raw.st_gid };
        // In a directory with the sticky bit the kernel may refuse to open what another user has made.
        let above = self.engine.stat(&parent.vnode, None).map_err(failed)?.raw.st_mode;
        let is_free = above & libc::S_ISVTX == 0 || caller.uid == owner.uid;
        let may_open = || may_certainly_open(caller, (stat.raw.st_mode, owner), flags);
        if stat.kind() != libc::S_IFREG || !is_free || !may_open() {
            return Err(Refused(Errno::ESTALE));
        }
        let (inode, _) = self.inodes.remember(vnode, &stat);
        let opened = (|| {
            if flags & libc::O_TRUNC != 0 && caller.uid != 0 {
                self.privileges.drop_all(&inode, None, caller)?;
            }
            let flags = flags & !(libc::O_CREAT | libc::O_EXCL);
            let open = || self.engine.open(&inode.vnode, flags, caller);
            let handle = self.leases.wait(caller, open)?;
            let stat = self.engine.stat(&inode.vnode, Some(&handle))?;
            Ok((attr(&inode, &stat), handle))
        })();
        match opened {
            Ok((attr, handle)) => Ok(Some(Named { inode, attr, handle })),
            Err(error) => {
                // The kernel does not learn of it.
                self.inodes.forget(INodeNo(inode.number), 1);
                if is_gone(&error) { Ok(None) } else { Err(failed(error)) }
            }
        }
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
        // A file that has moved is opened at its new place.
        let read = || {
            self.leases.wait(caller, || match why {
                ReadFor::Program => self.engine.read(&file.handle, offset, room, caller),
                ReadFor::Pages => self.engine.read_pages(&file.handle, offset, room, caller),
            })
        };
        let bytes = |read: &Result<usize, _>| read.as_ref().map_or(0, |&bytes| bytes as u64);
        let read = self.recording.recorded((&file, Op::Read), (offset, caller), read, bytes);
        read.map_err(self.inodes.failed(&file.inode, "read"))
    }

    /// Writes `data`; returns the number of bytes, fewer if the rest has failed. `open_flags` are the program's
    /// descriptor's at the time of the write.
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
        let write = || {
            // Of pages the kernel asks only whether they were written, not how far.
            self.leases.wait(caller, || {
                if of_pages {
                    return self.engine.write(target, offset, data, caller).map(|()| data.len());
                }
                self.engine.write_some(target, offset, data, caller)
            })
        };
        let bytes = |written: &Result<usize, _>| written.as_ref().map_or(0, |&bytes| bytes as u64);
        let written = self.recording.recorded((&file, Op::Write), (offset, caller), write, bytes);
        let written = written.map_err(self.inodes.failed(&file.inode, "write"))?;
        if file.direct && !of_pages {
            self.stale_pages.written(file.inode.number, &file.inode.pages, offset, written as u64);
        }
        if drops {
            // Somebody may have set them while the bytes were being written.
            self.privileges.drop_all(&file.inode, Some(&file.handle), caller)?;
        }
        Ok(u32::try_from(written).expect("a request is at most 1 MiB"))
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
        let allocate = || self.engine.allocate(&file.handle, offset, len, how);
        let allocated = self.leases.wait(caller, allocate);
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
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    use halocline_vfs::uncached::Uncached;

    use super::super::{Front, FrontOptions};
    use super::*;

    /// Regression: it was opened with the rights of the mount process; then it was opened by nobody, and programs got
    /// `ESTALE` where others made and removed the name all the time.
    #[test]
    fn what_others_made_meanwhile_is_opened_by_whoever_may() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("theirs");
        fs::write(&path, "secret").expect("write");
        let engine = Arc::new(Uncached::open(dir.path(), false).expect("open"));
        let (attr_timeout, device_threads) = (Duration::ZERO, 1);
        let options = FrontOptions { attr_timeout, direct: false, device_threads };
        let front = Front::new(engine, options, None);
        let owner = rustix::process::geteuid().as_raw();
        let create = |name: &str, flags, uid| {
            // Nobody's thread: it has no capabilities.
            let caller = Caller { uid, gid: 0, pid: 0 };
            let at = (INodeNo(1), OsStr::new(name));
            let made = front.files.create(at, 0o600, flags, Maker { caller, umask: 0 });
            made.map(|(entry, _)| entry.attr.size).map_err(|Refused(errno)| errno.code())
        };
        let flags = libc::O_RDWR | libc::O_CREAT;
        for flags in [flags, flags | libc::O_TRUNC] {
            assert_eq!(create("theirs", flags, owner + 1), Err(libc::ESTALE));
        }
        assert_eq!(create("theirs", flags | libc::O_EXCL, owner), Err(libc::EEXIST));
        let allow = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        allow(0o477);
        assert_eq!(create("theirs", flags, owner), Err(libc::ESTALE));
        assert_eq!(create("theirs", libc::O_CREAT, owner), Ok(6));
        allow(0o600);
        assert_eq!(create("theirs", flags, owner), Ok(6));
        assert_eq!(fs::read(&path).expect("read"), b"secret");
        assert_eq!(create("theirs", flags | libc::O_TRUNC, owner), Ok(0));
        assert_eq!(fs::read(&path).expect("read"), b"");
        assert_eq!(create("new", flags, owner), Ok(0));
        fs::create_dir(dir.path().join("directory")).expect("a directory");
        assert_eq!(create("directory", flags, owner), Err(libc::ESTALE));
    }
}
