//! The kernel's structures (`linux/fuse.h`, protocol 7.42); each names its original.

use std::time::{SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileHandle, FileType};
use halocline_vfs::{SetAttr, SetTime};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::front::Answer;
use crate::front::inodes::Entry;
use crate::front::kernel_attributes::time;
use crate::front::locks::{LockRange, LockRequest};

/// Declares structures that are copied from or to the kernel's buffer as they stand.
macro_rules! wire {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
        #[repr(C)]
        pub(super) struct $name { $(pub(super) $field: $type,)* }
    )*};
}

wire! {
    /// `fuse_in_header`
    InHeader { len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, padding: u32, }
    /// `fuse_out_header`
    OutHeader { len: u32, error: i32, unique: u64, }
    /// `fuse_notify_retrieve_out`
    NotifyRetrieve { unique: u64, nodeid: u64, offset: u64, size: u32, padding: u32, }
    /// `fuse_uring_ent_in_out`
    RingEntry { flags: u64, commit_id: u64, payload_bytes: u32, padding: u32, reserved: u64, }
    /// `fuse_uring_cmd_req`
    Command { flags: u64, commit_id: u64, queue: u16, padding: [u16; 3], }
    /// `fuse_uring_req_header`
    RequestHeader { in_out: [u8; 128], fields: [u8; 128], entry: RingEntry, }

    /// `fuse_getattr_in`
    GetAttrIn { flags: u32, padding: u32, handle: u64, }
    /// `fuse_setattr_in`
    SetAttrIn {
        valid: u32, padding: u32, handle: u64, size: u64, lock_owner: u64,
        atime: i64, mtime: i64, ctime: i64, atime_ns: u32, mtime_ns: u32, ctime_ns: u32,
        mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    /// `fuse_mknod_in`
    MknodIn { mode: u32, device: u32, umask: u32, padding: u32, }
    /// `fuse_mkdir_in`
    MkdirIn { mode: u32, umask: u32, }
    /// `fuse_rename_in`
    RenameIn { new_parent: u64, }
    /// `fuse_rename2_in`
    Rename2In { new_parent: u64, flags: u32, padding: u32, }
    /// `fuse_link_in`
    LinkIn { nodeid: u64, }
    /// `fuse_open_in`
    OpenIn { flags: i32, open_flags: u32, }
    /// `fuse_create_in`
    CreateIn { flags: i32, mode: u32, umask: u32, open_flags: u32, }
    /// `fuse_read_in`
    ReadIn { handle: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32, }
    /// `fuse_write_in`
    WriteIn { handle: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32, }
    /// `fuse_release_in`; also the beginning of `fuse_flush_in`
    ReleaseIn { handle: u64, flags: u32, release_flags: u32, lock_owner: u64, }
    /// `fuse_fsync_in`
    FsyncIn { handle: u64, flags: u32, padding: u32, }
    /// `fuse_lk_in`, with its `fuse_file_lock`
    LockIn { handle: u64, owner: u64, first: u64, last: u64, kind: i32, pid: u32, lock_flags: u32, padding: u32, }
    /// `fuse_setxattr_in`, short form
    SetXattrIn { size: u32, flags: i32, }
    /// `fuse_getxattr_in`, also for a list
    GetXattrIn { size: u32, padding: u32, }
    /// `fuse_fallocate_in`
    FallocateIn { handle: u64, offset: u64, len: u64, mode: i32, padding: u32, }
    /// `fuse_lseek_in`
    SeekIn { handle: u64, offset: i64, whence: i32, padding: u32, }

    /// `fuse_attr`
    Attr {
        number: u64, size: u64, blocks: u64, atime: i64, mtime: i64, ctime: i64,
        atime_ns: u32, mtime_ns: u32, ctime_ns: u32, mode: u32, links: u32, uid: u32, gid: u32,
        device: u32, block_bytes: u32, flags: u32,
    }
    /// `fuse_attr_out`
    AttrOut { valid: u64, valid_ns: u32, padding: u32, attr: Attr, }
    /// `fuse_entry_out`
    EntryOut {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64,
        entry_valid_ns: u32, attr_valid_ns: u32, attr: Attr,
    }
    /// `fuse_open_out`
    OpenOut { handle: u64, flags: u32, backing: u32, }
    /// The answer to `FUSE_CREATE`
    CreateOut { entry: EntryOut, open: OpenOut, }
    /// `fuse_write_out`
    WriteOut { size: u32, padding: u32, }
    /// `fuse_getxattr_out`
    GetXattrOut { size: u32, padding: u32, }
    /// `fuse_lseek_out`
    SeekOut { offset: i64, }
    /// `fuse_lk_out`
    LockOut { first: u64, last: u64, kind: i32, pid: u32, }
    /// `fuse_kstatfs`
    StatfsOut {
        blocks: u64, free: u64, available: u64, files: u64, free_files: u64,
        block_bytes: u32, name_max: u32, fragment_bytes: u32, padding: u32, spare: [u32; 6],
    }
    /// `fuse_dirent`, followed by the name
    Dirent { number: u64, next: u64, name_bytes: u32, kind: u32, }
}

impl RequestHeader {
    /// The header of the request in the buffer.
    pub(super) fn input(&self) -> InHeader {
        InHeader::read_from_prefix(&self.in_out).expect("it has room").0
    }

    /// Replaces the request's header with that of the answer.
    pub(super) fn set_output(&mut self, header: &OutHeader) {
        header.write_to_prefix(&mut self.in_out).expect("it has room");
    }
}

/// `FATTR_*`: which attributes a change sets.
mod valid {
    pub(super) const MODE: u32 = 1;
    pub(super) const UID: u32 = 1 << 1;
    pub(super) const GID: u32 = 1 << 2;
    pub(super) const SIZE: u32 = 1 << 3;
    pub(super) const ATIME: u32 = 1 << 4;
    pub(super) const MTIME: u32 = 1 << 5;
    pub(super) const HANDLE: u32 = 1 << 6;
    pub(super) const ATIME_NOW: u32 = 1 << 7;
    pub(super) const MTIME_NOW: u32 = 1 << 8;
}

impl LockIn {
    /// The lock that is asked for.
    ///
    /// # Errors
    /// If it is of no kind, or its range is none.
    pub(super) fn request(&self) -> Answer<LockRequest> {
        let range = LockRange::new(self.kind, self.first, self.last)?;
        Ok(LockRequest { handle: FileHandle(self.handle), owner: self.owner, range })
    }
}

impl SetAttrIn {
    fn says(&self, what: u32) -> bool {
        self.valid & what != 0
    }

    /// The open file that is named.
    pub(super) fn handle(&self) -> Option<FileHandle> {
        self.says(valid::HANDLE).then_some(FileHandle(self.handle))
    }

    /// The attributes that are set.
    pub(super) fn change(&self) -> SetAttr {
        let set = |now: u32, at: u32, seconds: i64, nanoseconds: u32| {
            if self.says(now) {
                Some(SetTime::Now)
            } else {
                self.says(at).then(|| SetTime::At(time(seconds, i64::from(nanoseconds))))
            }
        };
        SetAttr {
            mode: self.says(valid::MODE).then_some(self.mode),
            uid: self.says(valid::UID).then_some(self.uid),
            gid: self.says(valid::GID).then_some(self.gid),
            size: self.says(valid::SIZE).then_some(self.size),
            atime: set(valid::ATIME_NOW, valid::ATIME, self.atime, self.atime_ns),
            mtime: set(valid::MTIME_NOW, valid::MTIME, self.mtime, self.mtime_ns),
        }
    }
}

impl From<&FileAttr> for Attr {
    fn from(attr: &FileAttr) -> Self {
        let (atime, atime_ns) = since_epoch(attr.atime);
        let (mtime, mtime_ns) = since_epoch(attr.mtime);
        let (ctime, ctime_ns) = since_epoch(attr.ctime);
        Self {
            number: attr.ino.0,
            size: attr.size,
            blocks: attr.blocks,
            atime,
            mtime,
            ctime,
            atime_ns,
            mtime_ns,
            ctime_ns,
            mode: kind_bits(attr.kind) | u32::from(attr.perm),
            links: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            device: attr.rdev,
            block_bytes: attr.blksize,
            flags: 0,
        }
    }
}

impl From<&Entry> for EntryOut {
    fn from(entry: &Entry) -> Self {
        let Entry { timeout, attr_timeout, .. } = entry;
        Self {
            nodeid: entry.attr.ino.0,
            generation: entry.generation,
            entry_valid: timeout.as_secs(),
            attr_valid: attr_timeout.as_secs(),
            entry_valid_ns: timeout.subsec_nanos(),
            attr_valid_ns: attr_timeout.subsec_nanos(),
            attr: Attr::from(&entry.attr),
        }
    }
}

/// The type bits of a mode; shifted right by the twelve permission bits they are a `DT_*` type.
pub(super) fn kind_bits(kind: FileType) -> u32 {
    match kind {
        FileType::NamedPipe => libc::S_IFIFO,
        FileType::CharDevice => libc::S_IFCHR,
        FileType::BlockDevice => libc::S_IFBLK,
        FileType::Directory => libc::S_IFDIR,
        FileType::RegularFile => libc::S_IFREG,
        FileType::Symlink => libc::S_IFLNK,
        FileType::Socket => libc::S_IFSOCK,
    }
}

/// Seconds, and the nanoseconds to add to them, also before 1970.
fn since_epoch(time: SystemTime) -> (i64, u32) {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => (after.as_secs().cast_signed(), after.subsec_nanos()),
        Err(before) => {
            let before = before.duration();
            // The earliest second has no positive counterpart.
            let seconds = before.as_secs().cast_signed().wrapping_neg();
            match before.subsec_nanos() {
                0 => (seconds, 0),
                nanoseconds => (seconds.saturating_sub(1), 1_000_000_000 - nanoseconds),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::front::kernel_attributes::time;

    #[test]
    fn sizes_are_the_kernels() {
        let sizes = [
            (size_of::<InHeader>(), 40),
            (size_of::<OutHeader>(), 16),
            (size_of::<RequestHeader>(), 288),
            (size_of::<SetAttrIn>(), 88),
            (size_of::<ReadIn>(), 40),
            (size_of::<LockIn>(), 48),
            (size_of::<LockOut>(), 24),
            (size_of::<Attr>(), 88),
            (size_of::<EntryOut>(), 128),
            (size_of::<AttrOut>(), 104),
            (size_of::<StatfsOut>(), 80),
            (size_of::<Dirent>(), 24),
        ];
        for (ours, kernels) in sizes {
            assert_eq!(ours, kernels);
        }
    }

    #[test]
    fn times_before_1970_come_back() {
        let extreme = [(i64::MIN, 0), (i64::MIN, 999_999_999), (i64::MAX, 999_999_999)];
        let times = [(0, 0), (-1, 0), (-1, 999_999_999), (-2, 1), (5, 7)];
        for (seconds, nanoseconds) in times.into_iter().chain(extreme) {
            assert_eq!(since_epoch(time(seconds, nanoseconds.into())), (seconds, nanoseconds));
        }
    }
}
