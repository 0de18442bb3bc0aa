//! The request table: each kernel operation in a few lines.
//!
//! What is not here the library refuses with `ENOSYS`, and the kernel then does it by itself: it
//! copies ranges in a loop, calls every file ready, and keeps locks (none are asked for at the
//! start), as it does for a local file system.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, INodeNo, IoctlFlags, KernelConfig, LockOwner,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, WriteFlags,
};
use halocline_core::engine::{Engine, Make, Seek, SetAttr};

use super::operations::{allocation, set_time, sized, untrusted};
use super::{Front, Refused, caller, maker, negotiation, privileges};

/// Bytes of a page.
const PAGE: usize = 4096;

thread_local! {
    /// What reads of this thread are answered from; it grows to the largest read and stays. The
    /// answer begins at a page's start, because the kernel maps page by page what it copies.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Answers with the value, or with the error.
macro_rules! answer {
    ($reply:ident, $result:expr, $value:pat => $send:expr) => {
        match $result {
            Ok($value) => $send,
            Err(Refused(errno)) => $reply.error(errno),
        }
    };
}

impl<E: Engine> Filesystem for Front<E> {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        negotiation::agree(config, self.passes_through());
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let _turn = self.turns.begin();
        match self.inode(parent) {
            Ok(parent) => self.entry(reply, self.engine.lookup(&parent.node, name)),
            Err(Refused(errno)) => reply.error(errno),
        }
    }

    fn forget(&self, _request: &Request, number: INodeNo, lookups: u64) {
        let _turn = self.turns.begin();
        self.inodes.forget(number.0, lookups, |node| self.engine.key(node));
    }

    fn getattr(
        &self,
        _request: &Request,
        number: INodeNo,
        handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        let _turn = self.turns.begin();
        answer!(reply, self.attributes(number, handle), (kept, attr) => reply.attr(&kept, &attr));
    }

    fn setattr(
        &self,
        request: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let _turn = self.turns.begin();
        let change = SetAttr {
            mode,
            uid,
            gid,
            size,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
        };
        let attr = self.set_attributes(request, number, handle, &change);
        answer!(reply, attr, (timeout, attr) => reply.attr(&timeout, &attr));
    }

    fn readlink(&self, _request: &Request, number: INodeNo, reply: ReplyData) {
        let _turn = self.turns.begin();
        let target = self.inode(number).and_then(|inode| Ok(self.engine.read_link(&inode.node)?));
        answer!(reply, target, target => reply.data(target.as_encoded_bytes()));
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let _turn = self.turns.begin();
        let what = Make::Special(mode, u64::from(device));
        answer!(reply, self.inode(parent), parent => self.entry(
            reply,
            self.engine.make((&parent.node, name), what, maker(request, umask)),
        ));
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let _turn = self.turns.begin();
        answer!(reply, self.inode(parent), parent => self.entry(
            reply,
            self.engine.make((&parent.node, name), Make::Directory(mode), maker(request, umask)),
        ));
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let _turn = self.turns.begin();
        let what = Make::Symlink(target.as_os_str());
        answer!(reply, self.inode(parent), parent => self.entry(
            reply,
            self.engine.make((&parent.node, name), what, maker(request, 0)),
        ));
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _turn = self.turns.begin();
        let done =
            self.inode(parent).and_then(|parent| Ok(self.engine.unlink(&parent.node, name)?));
        answer!(reply, done, () => reply.ok());
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _turn = self.turns.begin();
        let done =
            self.inode(parent).and_then(|parent| Ok(self.engine.remove_dir(&parent.node, name)?));
        answer!(reply, done, () => reply.ok());
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let _turn = self.turns.begin();
        let done = self.inode(parent).and_then(|from| {
            let to = self.inode(new_parent)?;
            Ok(self.engine.rename((&from.node, name), (&to.node, new_name), flags.bits())?)
        });
        answer!(reply, done, () => reply.ok());
    }

    fn link(
        &self,
        _request: &Request,
        number: INodeNo,
        parent: INodeNo,
        name: &OsStr,
        reply: ReplyEntry,
    ) {
        let _turn = self.turns.begin();
        let linked = self.inode(number).and_then(|inode| {
            let parent = self.inode(parent)?;
            Ok((inode.node.clone(), self.engine.link(&inode.node, &parent.node, name)?))
        });
        answer!(reply, linked, linked => self.entry(reply, Ok(linked)));
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let _turn = self.turns.begin();
        let created = self.create_file(request, parent, name, (mode, umask), flags);
        answer!(reply, created, created => self.answer_create(created, flags, reply));
    }

    fn open(&self, request: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let _turn = self.turns.begin();
        self.answer_open(request, number, flags.0, reply);
    }

    fn read(
        &self,
        request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let _turn = self.turns.begin();
        READ_BUFFER.with_borrow_mut(|buffer| {
            let size = size as usize;
            if buffer.len() < size + PAGE {
                buffer.resize(size + PAGE, 0);
            }
            let start = buffer.as_ptr().align_offset(PAGE).min(PAGE);
            let room = &mut buffer[start..start + size];
            let read = self.file(handle).and_then(|file| {
                Ok(self.engine.read(&file.handle, offset, room, caller(request))?)
            });
            answer!(reply, read, count => reply.data(&room[..count]));
        });
    }

    fn write(
        &self,
        request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let _turn = self.turns.begin();
        let written = self.write_bytes(request, handle, offset, data, write_flags);
        answer!(reply, written, count => reply.written(count));
    }

    fn flush(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        let _turn = self.turns.begin();
        if !self.engine.reports_at_close() {
            // The kernel does not ask again.
            return reply.error(Errno::ENOSYS);
        }
        let done = self.file(handle).and_then(|file| Ok(self.engine.flush(&file.handle)?));
        answer!(reply, done, () => reply.ok());
    }

    fn release(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let _turn = self.turns.begin();
        drop(self.files.remove(handle));
        reply.ok();
    }

    fn fsync(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        let _turn = self.turns.begin();
        let done =
            self.file(handle).and_then(|file| Ok(self.engine.fsync(&file.handle, data_only)?));
        answer!(reply, done, () => reply.ok());
    }

    fn opendir(&self, _request: &Request, number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let _turn = self.turns.begin();
        let opened = self.inode(number).and_then(|inode| Ok(self.engine.open_dir(&inode.node)?));
        answer!(reply, opened, dir => {
            reply.opened(self.dirs.insert(dir), fuser::FopenFlags::empty());
        });
    }

    fn readdir(
        &self,
        _request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let _turn = self.turns.begin();
        let listed = self.list(handle, number, offset, &mut reply);
        answer!(reply, listed, () => reply.ok());
    }

    fn readdirplus(
        &self,
        _request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let _turn = self.turns.begin();
        let listed = self.list_plus(handle, number, offset, &mut reply);
        answer!(reply, listed, () => reply.ok());
    }

    fn releasedir(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        let _turn = self.turns.begin();
        drop(self.dirs.remove(handle));
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        let _turn = self.turns.begin();
        let done = self.dir(handle).and_then(|dir| Ok(dir.sync()?));
        answer!(reply, done, () => reply.ok());
    }

    fn statfs(&self, _request: &Request, number: INodeNo, reply: ReplyStatfs) {
        let _turn = self.turns.begin();
        let totals = self.inode(number).and_then(|inode| Ok(self.engine.statfs(&inode.node)?));
        answer!(reply, totals, t => reply.statfs(
            t.f_blocks,
            t.f_bfree,
            t.f_bavail,
            t.f_files,
            t.f_ffree,
            u32::try_from(t.f_bsize).unwrap_or(4096),
            u32::try_from(t.f_namemax).unwrap_or(255),
            u32::try_from(t.f_frsize).unwrap_or(4096),
        ));
    }

    fn setxattr(
        &self,
        request: &Request,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let _turn = self.turns.begin();
        let done = self.inode(number).and_then(|inode| {
            privileges::forget(&inode);
            self.engine.set_xattr(&inode.node, name, value, flags)?;
            privileges::forget(&inode);
            if name == "system.posix_acl_access" {
                self.after_acl_change(&inode, caller(request))?;
            }
            Ok(())
        });
        answer!(reply, done, () => reply.ok());
    }

    fn getxattr(
        &self,
        _request: &Request,
        number: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        let _turn = self.turns.begin();
        let value =
            self.inode(number).and_then(|inode| Ok(self.engine.get_xattr(&inode.node, name)?));
        sized(reply, size, value);
    }

    fn listxattr(&self, request: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        let _turn = self.turns.begin();
        let names = self.inode(number).and_then(|inode| {
            let names = self.engine.list_xattr(&inode.node)?;
            Ok(if request.uid() == 0 { names } else { untrusted(&names) })
        });
        sized(reply, size, names);
    }

    fn removexattr(&self, _request: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _turn = self.turns.begin();
        let done =
            self.inode(number).and_then(|inode| Ok(self.engine.remove_xattr(&inode.node, name)?));
        answer!(reply, done, () => reply.ok());
    }

    fn fallocate(
        &self,
        request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let _turn = self.turns.begin();
        let done = self.file(handle).and_then(|file| {
            let how = allocation(mode).ok_or(Errno::EOPNOTSUPP)?;
            let caller = caller(request);
            if caller.uid != 0 {
                self.drop_privileges(&file.inode, Some(&file.handle), caller)?;
            }
            Ok(self.engine.allocate(&file.handle, offset, len, how)?)
        });
        answer!(reply, done, () => reply.ok());
    }

    fn lseek(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let _turn = self.turns.begin();
        let found = self.file(handle).and_then(|file| {
            let what = match whence {
                libc::SEEK_DATA => Seek::Data,
                libc::SEEK_HOLE => Seek::Hole,
                _ => return Err(Refused(Errno::EINVAL)),
            };
            let offset = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
            Ok(self.engine.seek(&file.handle, offset, what)?)
        });
        answer!(reply, found, at => reply.offset(at.cast_signed()));
    }

    fn ioctl(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        _command: u32,
        _data: &[u8],
        _room: u32,
        reply: ReplyIoctl,
    ) {
        let _turn = self.turns.begin();
        reply.error(Errno::ENOTTY);
    }
}
