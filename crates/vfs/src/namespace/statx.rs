//! Reads and changes attributes by descriptor, including `O_PATH` ones.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, Statx, StatxFlags, StatxTimestamp, Timespec, Timestamps, Uid,
    chmod, chownat, statx, utimensat,
};

use super::{ON_DESCRIPTOR, proc_path};
use crate::{SetAttr, SetTime, Stat};
use halocline_os::error::Result;
use halocline_os::leased_files;

/// Changes owner, mode, size and times through a descriptor, which may be `O_PATH`, in an order in which none undoes
/// another.
pub fn set_attr_on(fd: impl AsFd, change: &SetAttr) -> Result<Stat> {
    if change.uid.is_some() || change.gid.is_some() {
        let uid = change.uid.map(Uid::from_raw);
        chownat(&fd, "", uid, change.gid.map(Gid::from_raw), ON_DESCRIPTOR)?;
    }
    if let Some(size) = change.size {
        let file = leased_files::reopen(&proc_path(&fd), OFlags::WRONLY | OFlags::CLOEXEC)?;
        rustix::fs::ftruncate(file, size)?;
    }
    if let Some(mode) = change.mode {
        chmod(proc_path(&fd), Mode::from_raw_mode(mode & 0o7777))?;
    }
    if change.atime.is_some() || change.mtime.is_some() {
        utimensat(&fd, "", &times(change), ON_DESCRIPTOR)?;
    }
    stat_descriptor(fd)
}

/// Whether a network file system answers with what it remembers of a file, or asks its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Freshness {
    /// As its settings say.
    Remembered,
    /// As its server has it now. Nothing else on a local file system.
    Now,
}

impl Freshness {
    const fn flags(self) -> AtFlags {
        match self {
            Self::Remembered => AtFlags::empty(),
            Self::Now => AtFlags::STATX_FORCE_SYNC,
        }
    }
}

/// Attributes of an open descriptor, `O_PATH` ones included.
pub fn stat_descriptor(fd: impl AsFd) -> Result<Stat> {
    stat_descriptor_as(fd, Freshness::Remembered)
}

pub(super) fn stat_descriptor_as(fd: impl AsFd, freshness: Freshness) -> Result<Stat> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    Ok(stat_of(&statx(fd, "", ON_DESCRIPTOR | freshness.flags(), wanted)?))
}

/// Attributes of a name, without following a symbolic link.
pub fn stat_at(parent: BorrowedFd<'_>, name: &OsStr) -> Result<Stat> {
    stat_at_as(parent, name, Freshness::Remembered)
}

pub(super) fn stat_at_as(
    parent: BorrowedFd<'_>,
    name: &OsStr,
    freshness: Freshness,
) -> Result<Stat> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let flags = AtFlags::SYMLINK_NOFOLLOW | freshness.flags();
    Ok(stat_of(&statx(parent, name, flags, wanted)?))
}

/// Id of the mount on which a descriptor is, unique while that mount exists. If the kernel does not report it (before Linux
/// 5.8), the device.
pub(super) fn mount_of_descriptor(fd: impl AsFd) -> Result<u64> {
    Ok(mount_in(&statx(fd, "", ON_DESCRIPTOR, OF_MOUNT)?))
}

/// The same of a name, without following a symbolic link.
pub(super) fn mount_at(parent: BorrowedFd<'_>, name: &OsStr) -> Result<u64> {
    Ok(mount_in(&statx(parent, name, AtFlags::SYMLINK_NOFOLLOW, OF_MOUNT)?))
}

const OF_MOUNT: StatxFlags = StatxFlags::INO.union(StatxFlags::MNT_ID);

fn mount_in(found: &Statx) -> u64 {
    if found.stx_mask & StatxFlags::MNT_ID.bits() != 0 {
        found.stx_mnt_id
    } else {
        libc::makedev(found.stx_dev_major, found.stx_dev_minor)
    }
}

/// Totals of the file system behind a descriptor.
pub fn statfs(fd: BorrowedFd<'_>) -> Result<libc::statvfs64> {
    use std::os::fd::AsRawFd;
    let mut totals = std::mem::MaybeUninit::zeroed();
    // SAFETY: the descriptor is open and the pointer is to a whole `statvfs64`.
    if unsafe { libc::fstatvfs64(fd.as_raw_fd(), totals.as_mut_ptr()) } != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    // SAFETY: the call above filled it in (and it was zeroed before).
    Ok(unsafe { totals.assume_init() })
}

fn times(change: &SetAttr) -> Timestamps {
    Timestamps { last_access: timespec(change.atime), last_modification: timespec(change.mtime) }
}

fn timespec(time: Option<SetTime>) -> Timespec {
    match time {
        None => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
        Some(SetTime::At(at)) => match at.duration_since(UNIX_EPOCH) {
            Ok(after) => Timespec {
                tv_sec: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(after.subsec_nanos()),
            },
            Err(before) => before_epoch(before.duration()),
        },
    }
}

/// A time before 1970: whole seconds are rounded down, nanoseconds count up.
fn before_epoch(before: Duration) -> Timespec {
    let seconds = -i64::try_from(before.as_secs()).unwrap_or(i64::MAX);
    match before.subsec_nanos() {
        0 => Timespec { tv_sec: seconds, tv_nsec: 0 },
        nanos => Timespec { tv_sec: seconds - 1, tv_nsec: i64::from(1_000_000_000 - nanos) },
    }
}

/// The result of a `statx` call.
pub fn stat_of(from: &Statx) -> Stat {
    let mut raw = Stat::empty().raw;
    raw.st_dev = libc::makedev(from.stx_dev_major, from.stx_dev_minor);
    raw.st_ino = from.stx_ino;
    raw.st_mode = u32::from(from.stx_mode);
    raw.st_nlink = u64::from(from.stx_nlink);
    raw.st_uid = from.stx_uid;
    raw.st_gid = from.stx_gid;
    raw.st_rdev = libc::makedev(from.stx_rdev_major, from.stx_rdev_minor);
    raw.st_size = from.stx_size.cast_signed();
    raw.st_blksize = i64::from(from.stx_blksize);
    raw.st_blocks = from.stx_blocks.cast_signed();
    (raw.st_atime, raw.st_atime_nsec) = seconds(&from.stx_atime);
    (raw.st_mtime, raw.st_mtime_nsec) = seconds(&from.stx_mtime);
    (raw.st_ctime, raw.st_ctime_nsec) = seconds(&from.stx_ctime);
    let has_birth = from.stx_mask & StatxFlags::BTIME.bits() != 0;
    Stat { raw, born: has_birth.then(|| system_time(seconds(&from.stx_btime))) }
}

fn seconds(time: &StatxTimestamp) -> (i64, i64) {
    (time.tv_sec, i64::from(time.tv_nsec))
}

/// A time of `stat` as the standard library represents it.
pub fn system_time((seconds, nanoseconds): (i64, i64)) -> SystemTime {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let base = if seconds < 0 { UNIX_EPOCH - whole } else { UNIX_EPOCH + whole };
    base + Duration::from_nanos(nanoseconds.unsigned_abs())
}
