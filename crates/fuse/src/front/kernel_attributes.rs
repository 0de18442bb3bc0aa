//! Attributes in the kernel's form.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo};
use halocline_vfs::Stat;

use super::inode_table::ROOT;

/// Attributes under the kernel's number; the root shows the origin's own number.
pub(super) fn file_attr(number: u64, stat: &Stat) -> FileAttr {
    let raw = &stat.raw;
    let ctime = time(raw.st_ctime, raw.st_ctime_nsec);
    FileAttr {
        ino: INodeNo(if number == ROOT { raw.st_ino } else { number }),
        size: raw.st_size.unsigned_abs(),
        blocks: raw.st_blocks.unsigned_abs(),
        atime: time(raw.st_atime, raw.st_atime_nsec),
        mtime: time(raw.st_mtime, raw.st_mtime_nsec),
        ctime,
        crtime: stat.born.unwrap_or(ctime),
        kind: kind(raw.st_mode),
        perm: u16::try_from(raw.st_mode & 0o7777).expect("twelve bits"),
        nlink: u32::try_from(raw.st_nlink).unwrap_or(u32::MAX),
        uid: raw.st_uid,
        gid: raw.st_gid,
        // The kernel's 32-bit encoding is the low half of the C library's.
        rdev: u32::try_from(raw.st_rdev & u64::from(u32::MAX)).expect("32 bits"),
        blksize: u32::try_from(raw.st_blksize).unwrap_or(4096),
        flags: 0,
    }
}

/// The time given by seconds and nanoseconds, where the nanoseconds always count forwards, also before 1970.
pub(crate) fn time(seconds: i64, nanoseconds: i64) -> SystemTime {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let base = if seconds < 0 { UNIX_EPOCH - whole } else { UNIX_EPOCH + whole };
    base + Duration::from_nanos(nanoseconds.unsigned_abs())
}

/// The file type that a mode contains.
pub(super) fn kind(mode: u32) -> FileType {
    match mode & libc::S_IFMT {
        libc::S_IFDIR => FileType::Directory,
        libc::S_IFLNK => FileType::Symlink,
        libc::S_IFIFO => FileType::NamedPipe,
        libc::S_IFSOCK => FileType::Socket,
        libc::S_IFCHR => FileType::CharDevice,
        libc::S_IFBLK => FileType::BlockDevice,
        _ => FileType::RegularFile,
    }
}

/// The file type of a directory entry; `None` if the file system does not report it.
pub(super) fn entry_kind(kind: u8) -> Option<FileType> {
    Some(match kind {
        libc::DT_REG => FileType::RegularFile,
        libc::DT_DIR => FileType::Directory,
        libc::DT_LNK => FileType::Symlink,
        libc::DT_FIFO => FileType::NamedPipe,
        libc::DT_SOCK => FileType::Socket,
        libc::DT_CHR => FileType::CharDevice,
        libc::DT_BLK => FileType::BlockDevice,
        _ => return None,
    })
}
