//! The table from the library's methods to the front end's.
//!
//! The library refuses all other operations with `ENOSYS`, and the kernel then handles them itself: it copies ranges in
//! a loop and reports every file as ready, as for a local file system. It also handles locks, unless lock requests were
//! negotiated at the start.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, Generation, INodeNo, IoctlFlags, KernelConfig,
    LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use halocline_os::catch_panic::{catch_panic, caught};
use halocline_vfs::{Engine, Make, SetAttr};

use super::negotiation::Features;
use super::{
    Device, add_entry, add_name, caller, locking, maker, named, reading, set_time, valued,
};
use crate::front::Refused;
use crate::front::directories::Listed;
use crate::front::files::ReadFor;
use crate::front::inodes::Entry;

/// Answers with the value that `$call` returns, or with its error; a panic in it counts as an error.
macro_rules! answer {
    ($reply:ident, $call:expr, $value:pat => $send:expr) => {
        match catch_panic(|| $call) {
            Ok($value) => $send,
            Err(Refused(errno)) => $reply.error(errno),
        }
    };
}

impl<E: Engine> Filesystem for Device<E> {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let features = Features {
            passes_through: self.front.open.passes_through(),
            maps_direct_files: self.front.open.maps_direct_files(),
            shares_locks: self.front.locking.shares_locks(),
        };
        self.agreed.agree(config, &features);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let _timing = self.begin(request);
        named(reply, || self.front.names.lookup((parent, name), caller(request)));
    }

    fn forget(&self, request: &Request, number: INodeNo, lookups: u64) {
        let _timing = self.begin(request);
        let _ = caught(|| self.front.names.forget(number, lookups));
    }

    fn getattr(
        &self,
        request: &Request,
        number: INodeNo,
        handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        let _timing = self.begin(request);
        answer!(reply, self.front.attributes.get(number, handle), (kept, attr) => reply.attr(&kept, &attr));
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
        let _timing = self.begin(request);
        let change = SetAttr {
            mode,
            uid,
            gid,
            size,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
        };
        let set = || self.front.attributes.set(number, handle, &change, caller(request));
        answer!(reply, set(), (timeout, attr) => reply.attr(&timeout, &attr));
    }

    fn readlink(&self, request: &Request, number: INodeNo, reply: ReplyData) {
        let _timing = self.begin(request);
        answer!(reply, self.front.names.read_link(number), target => reply.data(target.as_encoded_bytes()));
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
        let _timing = self.begin(request);
        let what = Make::Special(mode, u64::from(device));
        named(reply, || self.front.names.make((parent, name), what, maker(request, umask)));
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
        let _timing = self.begin(request);
        let by = maker(request, umask);
        named(reply, || self.front.names.make((parent, name), Make::Directory(mode), by));
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let _timing = self.begin(request);
        let what = Make::Symlink(target.as_os_str());
        named(reply, || self.front.names.make((parent, name), what, maker(request, 0)));
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _timing = self.begin(request);
        answer!(reply, self.front.names.unlink((parent, name), caller(request)), () => reply.ok());
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _timing = self.begin(request);
        answer!(reply, self.front.names.remove_dir((parent, name), caller(request)), () => reply.ok());
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let _timing = self.begin(request);
        let (from, to, by) = ((parent, name), (new_parent, new_name), caller(request));
        answer!(reply, self.front.names.rename(from, to, flags.bits(), by), () => reply.ok());
    }

    fn link(
        &self,
        request: &Request,
        number: INodeNo,
        parent: INodeNo,
        name: &OsStr,
        reply: ReplyEntry,
    ) {
        let _timing = self.begin(request);
        named(reply, || self.front.names.link(number, (parent, name), caller(request)));
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
        let _timing = self.begin(request);
        let create = || self.front.files.create((parent, name), mode, flags, maker(request, umask));
        answer!(reply, create(), (it, file) => {
            let (kept, generation) = (&it.timeout, Generation(it.generation));
            let (handle, mode) = (file.handle, file.mode);
            let Some(backing) = file.backing else {
                return reply.created(kept, &it.attr, generation, handle, mode);
            };
            // SAFETY: the number is of a registered file, whose owner closes it.
            let id = unsafe { reply.wrap_backing(backing.id) };
            reply.created_passthrough(kept, &it.attr, generation, handle, mode, &id);
            id.into_raw();
        });
    }

    fn open(&self, request: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let _timing = self.begin(request);
        answer!(reply, self.front.files.open(number, flags.0, caller(request)), file => {
            let Some(backing) = file.backing else {
                return reply.opened(file.handle, file.mode);
            };
            // SAFETY: the number is of a registered file, whose owner closes it.
            let id = unsafe { reply.wrap_backing(backing.id) };
            reply.opened_passthrough(file.handle, file.mode, &id);
            id.into_raw();
        });
    }

    fn read(
        &self,
        request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let _timing = self.begin(request);
        let what = (handle, ReadFor::of(lock_owner.is_some()));
        let read = |room: &mut [u8]| self.front.files.read(what, offset, room, caller(request));
        reading::read(size as usize, read, reply);
    }

    fn write(
        &self,
        request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let _timing = self.begin(request);
        let flags = (write_flags, flags.0);
        let write = || self.front.files.write(handle, (offset, data), flags, caller(request));
        answer!(reply, write(), count => reply.written(count));
    }

    fn flush(
        &self,
        request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        let _timing = self.begin(request);
        answer!(reply, self.front.files.flush(handle, lock_owner.0), () => reply.ok());
    }

    fn getlk(
        &self,
        request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        first: u64,
        last: u64,
        kind: i32,
        _pid: u32,
        reply: ReplyLock,
    ) {
        let _timing = self.begin(request);
        let asked = (kind, first, last);
        locking::find(&self.front, (handle, owner), (asked, caller(request)), reply);
    }

    fn setlk(
        &self,
        request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        first: u64,
        last: u64,
        kind: i32,
        _pid: u32,
        waits: bool,
        reply: ReplyEmpty,
    ) {
        let _timing = self.begin(request);
        let asked = (kind, first, last);
        locking::set(&self.front, (handle, owner), asked, (waits, caller(request)), reply);
    }

    fn release(
        &self,
        request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let _timing = self.begin(request);
        let release = || {
            self.front.files.release(handle);
            Ok(())
        };
        answer!(reply, release(), () => reply.ok());
    }

    fn fsync(
        &self,
        request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        let _timing = self.begin(request);
        answer!(reply, self.front.files.sync(handle, data_only), () => reply.ok());
    }

    fn opendir(&self, request: &Request, number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let _timing = self.begin(request);
        let open = || self.front.directories.open(number, caller(request));
        answer!(reply, open(), dir => reply.opened(dir, fuser::FopenFlags::empty()));
    }

    fn readdir(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let _timing = self.begin(request);
        let mut add = |it: Listed<'_>| add_name(&mut reply, &it);
        let listed =
            catch_panic(|| self.front.directories.list((handle, number), offset, &mut add));
        answer!(reply, listed, () => reply.ok());
    }

    fn readdirplus(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let _timing = self.begin(request);
        let mut add = |it: Listed<'_>, known: Option<&Entry>| add_entry(&mut reply, &it, known);
        let listed =
            catch_panic(|| self.front.directories.list_plus((handle, number), offset, &mut add));
        answer!(reply, listed, () => reply.ok());
    }

    fn releasedir(
        &self,
        request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        let _timing = self.begin(request);
        let close_dir = || {
            self.front.directories.close(handle);
            Ok(())
        };
        answer!(reply, close_dir(), () => reply.ok());
    }

    fn fsyncdir(
        &self,
        request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        let _timing = self.begin(request);
        answer!(reply, self.front.directories.sync(handle), () => reply.ok());
    }

    fn statfs(&self, request: &Request, number: INodeNo, reply: ReplyStatfs) {
        let _timing = self.begin(request);
        answer!(reply, self.front.attributes.totals(number), t => reply.statfs(
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
        let _timing = self.begin(request);
        let set = || self.front.xattrs.set(number, (name, value), flags, caller(request));
        answer!(reply, set(), () => reply.ok());
    }

    fn getxattr(
        &self,
        request: &Request,
        number: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        let _timing = self.begin(request);
        answer!(reply, self.front.xattrs.get(number, name, size), value => valued(reply, &value));
    }

    fn listxattr(&self, request: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        let _timing = self.begin(request);
        let list = || self.front.xattrs.list(number, size, caller(request));
        answer!(reply, list(), names => valued(reply, &names));
    }

    fn removexattr(&self, request: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _timing = self.begin(request);
        answer!(reply, self.front.xattrs.remove(number, name, caller(request)), () => reply.ok());
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
        let _timing = self.begin(request);
        let allocate = || self.front.files.allocate(handle, (offset, len), mode, caller(request));
        answer!(reply, allocate(), () => reply.ok());
    }

    fn lseek(
        &self,
        request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let _timing = self.begin(request);
        answer!(reply, self.front.files.seek(handle, offset, whence), at => reply.offset(at));
    }

    fn ioctl(
        &self,
        request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        _command: u32,
        _data: &[u8],
        _room: u32,
        reply: ReplyIoctl,
    ) {
        let _timing = self.begin(request);
        reply.error(Errno::ENOTTY);
    }
}
