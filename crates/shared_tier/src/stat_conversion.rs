//! Converts attributes between the store, the disks, and what programs are shown.

use halocline_cluster::names::attributes::{Attributes, Kind};
use halocline_cluster::names::namespace;
use halocline_vfs::namespace::statx;
use halocline_vfs::{SetTime, Stat};

/// The preferred size of reads and writes.
const BLOCK_BYTES: i64 = 4096;

/// The type of an inode, one of `S_IF*`.
pub(crate) const fn file_type(kind: Kind) -> u32 {
    match kind {
        Kind::File => libc::S_IFREG,
        Kind::Directory => libc::S_IFDIR,
        Kind::Symlink => libc::S_IFLNK,
        Kind::Fifo => libc::S_IFIFO,
        Kind::Socket => libc::S_IFSOCK,
        Kind::CharDevice => libc::S_IFCHR,
        Kind::BlockDevice => libc::S_IFBLK,
    }
}

/// The kind of an inode with this mode.
pub(crate) const fn kind(mode: u32) -> Kind {
    match mode & libc::S_IFMT {
        libc::S_IFREG => Kind::File,
        libc::S_IFDIR => Kind::Directory,
        libc::S_IFLNK => Kind::Symlink,
        libc::S_IFIFO => Kind::Fifo,
        libc::S_IFSOCK => Kind::Socket,
        libc::S_IFCHR => Kind::CharDevice,
        _ => Kind::BlockDevice,
    }
}

/// Splits nanoseconds since 1970 into seconds and the rest.
pub(crate) const fn split(ns: i64) -> (i64, i64) {
    (ns.div_euclid(1_000_000_000), ns.rem_euclid(1_000_000_000))
}

/// The reverse of [`split`].
pub(crate) const fn joined(seconds: i64, ns: i64) -> i64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(ns)
}

/// Converts a time in a change of attributes to nanoseconds since 1970.
pub(crate) fn time_ns(time: SetTime, now_ns: i64) -> i64 {
    let SetTime::At(at) = time else { return now_ns };
    match at.duration_since(std::time::UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |ns| -ns),
    }
}

/// Attributes as programs see them; `st_blocks` ignores holes.
pub(crate) fn stat(found: &namespace::StoredInode) -> Stat {
    let of = &found.attributes;
    let mut stat = Stat::empty();
    let raw = &mut stat.raw;
    raw.st_ino = found.inode.0;
    raw.st_mode = file_type(of.kind) | of.mode & 0o7777;
    raw.st_nlink = u64::from(found.links);
    (raw.st_uid, raw.st_gid, raw.st_rdev) = (of.uid, of.gid, of.rdev);
    let size = match of.kind {
        Kind::Symlink => of.target.len() as u64,
        // As other file systems do: programs take a directory of size 0 for empty.
        Kind::Directory => BLOCK_BYTES.unsigned_abs(),
        _ => of.size,
    };
    raw.st_size = i64::try_from(size).unwrap_or(i64::MAX);
    raw.st_blksize = BLOCK_BYTES;
    raw.st_blocks = if of.kind == Kind::File { blocks(size) } else { 0 };
    (raw.st_atime, raw.st_atime_nsec) = split(of.atime_ns);
    (raw.st_mtime, raw.st_mtime_nsec) = split(of.mtime_ns);
    (raw.st_ctime, raw.st_ctime_nsec) = split(of.ctime_ns);
    stat.born = Some(statx::system_time(split(of.birth_ns)));
    stat
}

/// The blocks of 512 bytes that a size takes, in multiples of 4 KiB.
fn blocks(size: u64) -> i64 {
    i64::try_from(size.div_ceil(BLOCK_BYTES.unsigned_abs())).map_or(i64::MAX, |blocks| blocks * 8)
}

/// Updates what may have changed on a file that is open for writing, from the file with the bytes.
pub(crate) fn overlay(stat: &mut Stat, data: &Stat) {
    let (raw, data) = (&mut stat.raw, &data.raw);
    (raw.st_size, raw.st_blocks) = (data.st_size, data.st_blocks);
    (raw.st_mtime, raw.st_mtime_nsec) = (data.st_mtime, data.st_mtime_nsec);
    let changed = (data.st_ctime, data.st_ctime_nsec);
    (raw.st_ctime, raw.st_ctime_nsec) = changed.max((raw.st_ctime, raw.st_ctime_nsec));
}

/// Takes size and times from the file with the bytes, and set-id bits away that it has lost because somebody wrote it who
/// may not keep them.
pub(crate) fn take_over(attributes: &mut Attributes, data: &Stat) {
    let raw = &data.raw;
    attributes.size = raw.st_size.unsigned_abs();
    attributes.mode &= raw.st_mode | !(libc::S_ISUID | libc::S_ISGID);
    attributes.mtime_ns = joined(raw.st_mtime, raw.st_mtime_nsec);
    attributes.ctime_ns = attributes.ctime_ns.max(joined(raw.st_ctime, raw.st_ctime_nsec));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_and_its_type_are_the_same() {
        use Kind::{BlockDevice, CharDevice, Directory, Fifo, File, Socket, Symlink};
        for of in [BlockDevice, CharDevice, Directory, Fifo, File, Socket, Symlink] {
            assert_eq!(kind(file_type(of) | 0o644), of);
        }
    }

    #[test]
    fn a_time_before_1970_is_put_together_again() {
        for ns in [0, 1, -1, 1_500_000_000, -1_500_000_000, i64::MAX] {
            let (seconds, nanos) = split(ns);
            assert!((0..1_000_000_000).contains(&nanos));
            assert_eq!(joined(seconds, nanos), ns);
        }
    }
}
