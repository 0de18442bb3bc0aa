//! The table from the kernel's operations to the front end's.
//!
//! Other operations are refused with `ENOSYS`, as in [`crate::transport::device`]; operations that wait are in
//! [`super::stand_ins`].

use std::os::unix::ffi::OsStrExt;

use fuser::{Errno, FileHandle, INodeNo, WriteFlags};
use halocline_vfs::{Engine, Make};
use zerocopy::{FromZeros, Immutable, IntoBytes};

use super::message::Message;
use super::wire::{
    Attr, AttrOut, CreateIn, CreateOut, Dirent, EntryOut, FallocateIn, FsyncIn, GetAttrIn,
    GetXattrIn, GetXattrOut, LinkIn, LockIn, LockOut, MkdirIn, MknodIn, OpenIn, OpenOut, ReadIn,
    ReleaseIn, Rename2In, RenameIn, SeekIn, SeekOut, SetAttrIn, SetXattrIn, StatfsOut, WriteIn,
    WriteOut, kind_bits,
};
use crate::front::directories::Listed;
use crate::front::files::ReadFor;
use crate::front::locks::LockRange;
use crate::front::open_files::Opened;
use crate::front::xattrs::Value;
use crate::front::{Answer, Front, Refused};

/// `fuse_opcode`
mod code {
    pub(super) const LOOKUP: u32 = 1;
    pub(super) const GETATTR: u32 = 3;
    pub(super) const SETATTR: u32 = 4;
    pub(super) const READLINK: u32 = 5;
    pub(super) const SYMLINK: u32 = 6;
    pub(super) const MKNOD: u32 = 8;
    pub(super) const MKDIR: u32 = 9;
    pub(super) const UNLINK: u32 = 10;
    pub(super) const RMDIR: u32 = 11;
    pub(super) const RENAME: u32 = 12;
    pub(super) const LINK: u32 = 13;
    pub(super) const OPEN: u32 = 14;
    pub(super) const READ: u32 = 15;
    pub(super) const WRITE: u32 = 16;
    pub(super) const STATFS: u32 = 17;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const FSYNC: u32 = 20;
    pub(super) const SETXATTR: u32 = 21;
    pub(super) const GETXATTR: u32 = 22;
    pub(super) const LISTXATTR: u32 = 23;
    pub(super) const REMOVEXATTR: u32 = 24;
    pub(super) const FLUSH: u32 = 25;
    pub(super) const OPENDIR: u32 = 27;
    pub(super) const READDIR: u32 = 28;
    pub(super) const RELEASEDIR: u32 = 29;
    pub(super) const FSYNCDIR: u32 = 30;
    pub(super) const GETLK: u32 = 31;
    pub(super) const SETLK: u32 = 32;
    pub(super) const CREATE: u32 = 35;
    pub(super) const IOCTL: u32 = 39;
    pub(super) const FALLOCATE: u32 = 43;
    pub(super) const READDIRPLUS: u32 = 44;
    pub(super) const RENAME2: u32 = 45;
    pub(super) const LSEEK: u32 = 46;
}

/// `FUSE_GETATTR_FH`: the request names an open file.
const GETATTR_HANDLE: u32 = 1;
/// A read names the lock owner that it belongs to.
const READ_LOCKOWNER: u32 = 1 << 1;
/// `FUSE_FSYNC_FDATASYNC`
const DATA_ONLY: u32 = 1;
/// Directory entries begin at multiples of this.
const DIRENT_ALIGN: usize = 8;

/// Executes a request whose names and data begin `room`, and puts the answer there; returns its length in bytes.
pub(super) fn answer<E: Engine>(
    front: &Front<E>,
    request: &Message<'_>,
    room: &mut [u8],
) -> Answer<usize> {
    let nodeid = INodeNo(request.header.nodeid);
    match request.header.opcode {
        code::READ => {
            let read: &ReadIn = request.fields()?;
            let room = &mut room[..read.size as usize];
            let why = ReadFor::of(read.read_flags & READ_LOCKOWNER != 0);
            front.files.read((FileHandle(read.handle), why), read.offset, room, request.caller())
        }
        code::WRITE => {
            let write: &WriteIn = request.fields()?;
            let data = &room[..request.payload];
            let of_pages = WriteFlags::from_bits_retain(write.write_flags);
            let flags = (of_pages, write.flags.cast_signed());
            let at = (write.offset, data);
            let size = front.files.write(FileHandle(write.handle), at, flags, request.caller())?;
            Ok(put(room, &WriteOut { size, padding: 0 }))
        }
        code::LOOKUP => {
            let entry = front.names.lookup((nodeid, request.name(room)?), request.caller())?;
            Ok(put(room, &EntryOut::from(&entry)))
        }
        code::GETATTR => {
            let get: &GetAttrIn = request.fields()?;
            let handle = (get.flags & GETATTR_HANDLE != 0).then_some(FileHandle(get.handle));
            Ok(put_attr(room, &front.attributes.get(nodeid, handle)?))
        }
        code::OPEN => {
            let open: &OpenIn = request.fields()?;
            let opened = front.files.open(nodeid, open.flags, request.caller())?;
            Ok(put(room, &opened_out(&opened)))
        }
        code::CREATE => {
            let create: &CreateIn = request.fields()?;
            let by = request.maker(create.umask);
            let at = (nodeid, request.name(room)?);
            let (entry, opened) = front.files.create(at, create.mode, create.flags, by)?;
            let open = opened_out(&opened);
            Ok(put(room, &CreateOut { entry: EntryOut::from(&entry), open }))
        }
        code::SETATTR => {
            let set: &SetAttrIn = request.fields()?;
            let (change, handle) = (set.change(), set.handle());
            Ok(put_attr(room, &front.attributes.set(nodeid, handle, &change, request.caller())?))
        }
        code::RELEASE
        | code::FLUSH
        | code::FSYNC
        | code::FALLOCATE
        | code::LSEEK
        | code::GETLK
        | code::SETLK => answer_handle(front, request, room),
        code::OPENDIR | code::READDIR | code::READDIRPLUS | code::RELEASEDIR | code::FSYNCDIR => {
            answer_directory(front, request, room)
        }
        code::SETXATTR | code::GETXATTR | code::LISTXATTR | code::REMOVEXATTR => {
            answer_xattr(front, request, room)
        }
        // As on a file system without ioctls.
        code::IOCTL => Err(Refused(Errno::ENOTTY)),
        _ => answer_name(front, request, room),
    }
}

fn answer_handle<E: Engine>(
    front: &Front<E>,
    request: &Message<'_>,
    room: &mut [u8],
) -> Answer<usize> {
    match request.header.opcode {
        code::RELEASE => {
            front.files.release(FileHandle(request.fields::<ReleaseIn>()?.handle));
            Ok(0)
        }
        code::FLUSH => {
            let it: &ReleaseIn = request.fields()?;
            nothing(front.files.flush(FileHandle(it.handle), it.lock_owner))
        }
        code::FSYNC => {
            let sync: &FsyncIn = request.fields()?;
            nothing(front.files.sync(FileHandle(sync.handle), sync.flags & DATA_ONLY != 0))
        }
        code::FALLOCATE => {
            let it: &FallocateIn = request.fields()?;
            let range = (it.offset, it.len);
            nothing(front.files.allocate(FileHandle(it.handle), range, it.mode, request.caller()))
        }
        code::GETLK => {
            let asked: &LockIn = request.fields()?;
            let found = front.locking.find(asked.request()?, request.caller())?;
            let asked_for = (libc::F_UNLCK, asked.first, asked.last);
            let (kind, first, last) = found.map_or(asked_for, LockRange::for_kernel);
            Ok(put(room, &LockOut { first, last, kind, pid: 0 }))
        }
        code::SETLK => {
            let asked: &LockIn = request.fields()?;
            nothing(front.locking.set(asked.request()?, false, request.caller()).map(drop))
        }
        _ => {
            let seek: &SeekIn = request.fields()?;
            let offset = front.files.seek(FileHandle(seek.handle), seek.offset, seek.whence)?;
            Ok(put(room, &SeekOut { offset }))
        }
    }
}

fn answer_name<E: Engine>(
    front: &Front<E>,
    request: &Message<'_>,
    room: &mut [u8],
) -> Answer<usize> {
    let nodeid = INodeNo(request.header.nodeid);
    let entry = match request.header.opcode {
        code::MKNOD => {
            let make: &MknodIn = request.fields()?;
            let what = Make::Special(make.mode, u64::from(make.device));
            front.names.make((nodeid, request.name(room)?), what, request.maker(make.umask))?
        }
        code::MKDIR => {
            let make: &MkdirIn = request.fields()?;
            let by = request.maker(make.umask);
            front.names.make((nodeid, request.name(room)?), Make::Directory(make.mode), by)?
        }
        code::SYMLINK => {
            let (name, target) = request.two_names(room)?;
            front.names.make((nodeid, name), Make::Symlink(target), request.maker(0))?
        }
        code::LINK => {
            let link: &LinkIn = request.fields()?;
            front.names.link(
                INodeNo(link.nodeid),
                (nodeid, request.name(room)?),
                request.caller(),
            )?
        }
        code::UNLINK => {
            return nothing(front.names.unlink((nodeid, request.name(room)?), request.caller()));
        }
        code::RMDIR => {
            return nothing(
                front.names.remove_dir((nodeid, request.name(room)?), request.caller()),
            );
        }
        code::RENAME | code::RENAME2 => {
            let to: &RenameIn = request.fields()?;
            let flags = match request.header.opcode {
                code::RENAME2 => request.fields::<Rename2In>()?.flags,
                _ => 0,
            };
            let (old, new) = request.two_names(room)?;
            return nothing(front.names.rename(
                (nodeid, old),
                (INodeNo(to.new_parent), new),
                flags,
                request.caller(),
            ));
        }
        code::READLINK => {
            let target = front.names.read_link(nodeid)?;
            return Ok(put_bytes(room, target.as_encoded_bytes()));
        }
        code::STATFS => return Ok(put(room, &StatfsOut::from(&front.attributes.totals(nodeid)?))),
        _ => return Err(Refused(Errno::ENOSYS)),
    };
    Ok(put(room, &EntryOut::from(&entry)))
}

fn answer_xattr<E: Engine>(
    front: &Front<E>,
    request: &Message<'_>,
    room: &mut [u8],
) -> Answer<usize> {
    let nodeid = INodeNo(request.header.nodeid);
    let value = match request.header.opcode {
        code::SETXATTR => {
            let set: &SetXattrIn = request.fields()?;
            let name = request.name(room)?;
            let value = room.get(name.len() + 1..request.payload).ok_or(Errno::EINVAL)?;
            let value = value.get(..set.size as usize).ok_or(Errno::EINVAL)?;
            return nothing(front.xattrs.set(nodeid, (name, value), set.flags, request.caller()));
        }
        code::REMOVEXATTR => {
            return nothing(front.xattrs.remove(nodeid, request.name(room)?, request.caller()));
        }
        code::GETXATTR => {
            front.xattrs.get(nodeid, request.name(room)?, request.fields::<GetXattrIn>()?.size)?
        }
        _ => front.xattrs.list(nodeid, request.fields::<GetXattrIn>()?.size, request.caller())?,
    };
    Ok(match value {
        Value::Size(size) => put(room, &GetXattrOut { size, padding: 0 }),
        Value::Bytes(bytes) => put_bytes(room, &bytes),
    })
}

fn answer_directory<E: Engine>(
    front: &Front<E>,
    request: &Message<'_>,
    room: &mut [u8],
) -> Answer<usize> {
    let nodeid = INodeNo(request.header.nodeid);
    match request.header.opcode {
        code::OPENDIR => {
            let handle = front.directories.open(nodeid, request.caller())?.0;
            return Ok(put(room, &OpenOut { handle, flags: 0, backing: 0 }));
        }
        code::RELEASEDIR => {
            front.directories.close(FileHandle(request.fields::<ReleaseIn>()?.handle));
            return Ok(0);
        }
        code::FSYNCDIR => {
            return nothing(
                front.directories.sync(FileHandle(request.fields::<FsyncIn>()?.handle)),
            );
        }
        _ => {}
    }
    let read: &ReadIn = request.fields()?;
    let dir = (FileHandle(read.handle), nodeid);
    let mut list = List { room: &mut room[..read.size as usize], used: 0 };
    if request.header.opcode == code::READDIR {
        front.directories.list(dir, read.offset, |listed| list.add(&[], &listed).into())?;
    } else {
        front.directories.list_plus(dir, read.offset, |listed, entry| {
            // The number 0 says that the name was not looked up.
            let entry = entry.map_or_else(EntryOut::new_zeroed, EntryOut::from);
            list.add(entry.as_bytes(), &listed).into()
        })?;
    }
    Ok(list.used)
}

/// Directory entries, one after another.
struct List<'a> {
    room: &'a mut [u8],
    used: usize,
}

impl List<'_> {
    /// Adds an entry, preceded by `before`; `false` if there is no room.
    fn add(&mut self, before: &[u8], listed: &Listed<'_>) -> bool {
        let name = listed.name.as_bytes();
        let dirent = Dirent {
            number: listed.number.0,
            next: listed.next,
            name_bytes: u32::try_from(name.len()).expect("at most 255"),
            kind: listed.kind.map_or(libc::DT_UNKNOWN.into(), |kind| kind_bits(kind) >> 12),
        };
        let bytes = before.len() + size_of::<Dirent>() + name.len();
        let padded = bytes.next_multiple_of(DIRENT_ALIGN);
        let Some(mut place) = self.room.get_mut(self.used..self.used + padded) else {
            return false;
        };
        for part in [before, dirent.as_bytes(), name, &[0; DIRENT_ALIGN][..padded - bytes]] {
            let (here, rest) = place.split_at_mut(part.len());
            here.copy_from_slice(part);
            place = rest;
        }
        self.used += padded;
        true
    }
}

impl From<&libc::statvfs64> for StatfsOut {
    fn from(t: &libc::statvfs64) -> Self {
        Self {
            blocks: t.f_blocks,
            free: t.f_bfree,
            available: t.f_bavail,
            files: t.f_files,
            free_files: t.f_ffree,
            block_bytes: u32::try_from(t.f_bsize).unwrap_or(4096),
            name_max: u32::try_from(t.f_namemax).unwrap_or(255),
            fragment_bytes: u32::try_from(t.f_frsize).unwrap_or(4096),
            padding: 0,
            spare: [0; 6],
        }
    }
}

fn opened_out(opened: &Opened) -> OpenOut {
    /// `FOPEN_PASSTHROUGH`
    const PASSTHROUGH: u32 = 1 << 7;
    let (kind, backing) = match &opened.backing {
        Some(backing) => (PASSTHROUGH, backing.id),
        None => (0, 0),
    };
    OpenOut { handle: opened.handle.0, flags: opened.mode.bits() | kind, backing }
}

fn nothing(done: Answer<()>) -> Answer<usize> {
    done.map(|()| 0)
}

fn put(room: &mut [u8], value: &(impl IntoBytes + Immutable)) -> usize {
    put_bytes(room, value.as_bytes())
}

fn put_bytes(room: &mut [u8], bytes: &[u8]) -> usize {
    room[..bytes.len()].copy_from_slice(bytes);
    bytes.len()
}

fn put_attr(room: &mut [u8], (kept, attr): &(std::time::Duration, fuser::FileAttr)) -> usize {
    let (valid, valid_ns) = (kept.as_secs(), kept.subsec_nanos());
    put(room, &AttrOut { valid, valid_ns, padding: 0, attr: Attr::from(attr) })
}
