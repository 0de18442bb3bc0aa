//! The mounts that this process sees, by `/proc/self/mountinfo`.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use halocline_os::error::{Error, Result};

/// The mounts that this process sees (`proc_pid_mountinfo(5)`).
const MOUNTINFO: &str = "/proc/self/mountinfo";

/// Whether `errno` means that the process of a mount has ended. Its connection ends some milliseconds later: requests
/// in between are cancelled or aborted.
pub(crate) fn tells_of_end(errno: i32) -> bool {
    matches!(errno, libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED)
}

/// The mount point of the FUSE mount that `path` is on, if it is one. Of several mounts on one place, the last listed
/// is on top.
pub(super) fn fuse_mount_of(table: &[u8], path: &Path) -> Option<PathBuf> {
    let mut best: Option<(PathBuf, bool)> = None;
    for line in table.split(|byte| *byte == b'\n') {
        let Some((point, kind)) = parse_line(line) else { continue };
        let longer = best
            .as_ref()
            .is_none_or(|(other, _)| point.components().count() >= other.components().count());
        if longer && path.starts_with(&point) {
            best = Some((point, kind == b"fuse" || kind.starts_with(b"fuse.")));
        }
    }
    best.filter(|(_, fuse)| *fuse).map(|(point, _)| point)
}

/// Mount point and file-system type of one line of mountinfo.
fn parse_line(line: &[u8]) -> Option<(PathBuf, &[u8])> {
    let mut fields = line.split(|byte| *byte == b' ');
    let point = unescape(fields.nth(4)?);
    let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
    Some((OsString::from_vec(point).into(), kind))
}

/// Decodes the `\ooo` escapes of blanks and backslashes.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let code = (*first == b'\\')
            .then(|| tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok()))
            .flatten()
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        if let Some(code) = code {
            out.push(code);
            rest = &tail[3..];
        } else {
            out.push(*first);
            rest = tail;
        }
    }
    out
}

/// All halocline mount points that this process sees, in the order of mounting.
pub fn mountpoints() -> Result<Vec<PathBuf>> {
    let table = fs::read(MOUNTINFO).map_err(Error::at(MOUNTINFO, "read the mounts"))?;
    let ours = |(point, kind): (PathBuf, &[u8])| (kind == b"fuse.halocline").then_some(point);
    Ok(table.split(|byte| *byte == b'\n').filter_map(parse_line).filter_map(ours).collect())
}

/// Where a file system of type `kind` on `device` is mounted with its root: a bind mount of a directory in it does not count.
pub fn root_of(kind: &str, device: u64) -> Result<Option<PathBuf>> {
    Ok(root_in(&table()?, kind, device))
}

fn root_in(table: &[u8], kind: &str, device: u64) -> Option<PathBuf> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let wanted = (u64::from(major), u64::from(minor));
    let mut lines = table.split(|byte| *byte == b'\n').filter_map(MountLine::parse);
    let is_it = |line: &MountLine| {
        line.device == wanted && line.kind == kind.as_bytes() && line.root == Path::new("/")
    };
    lines.find(is_it).map(|line| line.point)
}

/// The mounts at or below `dir`, absolute and without links, in the order of mounting, as seen by this process.
pub fn below(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let table = fs::read(MOUNTINFO)?;
    let points = table.split(|byte| *byte == b'\n').filter_map(parse_line).map(|(point, _)| point);
    Ok(points.filter(|point| point.starts_with(dir)).collect())
}

/// Other paths of `dir` (absolute and without links) that begin higher up in its file system than the mount that it is
/// on (a bind mount of a part of it): the path of such a mount, and the rest of the path from there.
pub(super) fn wider_paths(dir: &Path) -> io::Result<Vec<(PathBuf, PathBuf)>> {
    Ok(wider_paths_in(&fs::read(MOUNTINFO)?, dir))
}

fn wider_paths_in(table: &[u8], dir: &Path) -> Vec<(PathBuf, PathBuf)> {
    let lines = || table.split(|byte| *byte == b'\n').filter_map(MountLine::parse);
    let cover = |path: &Path| {
        let over = lines().filter(|line| path.starts_with(&line.point));
        over.max_by_key(|line| line.point.components().count())
    };
    let Some(own) = cover(dir) else { return Vec::new() };
    let Ok(inside) = dir.strip_prefix(&own.point) else { return Vec::new() };
    let others = lines().filter(|line| line.device == own.device && line.root != own.root);
    let wider = others.filter_map(|line| {
        let path = line.point.join(own.root.strip_prefix(&line.root).ok()?);
        // Another mount may hide it there.
        (cover(&path)? == line).then(|| (path, inside.to_owned()))
    });
    wider.collect()
}

/// The contents of one line of mountinfo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MountLine {
    /// Major and minor number of the file system's device.
    pub(super) device: (u64, u64),
    /// The directory of the file system that is mounted.
    pub(super) root: PathBuf,
    /// The mount point.
    pub(super) point: PathBuf,
    kind: Vec<u8>,
    /// The user whose process serves it, if it is a FUSE mount.
    pub(super) user: Option<u32>,
}

/// Prefixes of the types of file systems that another process or machine serves.
const SERVED: [&[u8]; 11] = [
    b"fuse",
    b"nfs",
    b"cifs",
    b"smb",
    b"9p",
    b"ceph",
    b"lustre",
    b"afs",
    b"gpfs",
    b"beegfs",
    b"virtiofs",
];

impl MountLine {
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ').skip(2);
        let device = std::str::from_utf8(fields.next()?).ok()?.split_once(':')?;
        let mut path = || Some(OsString::from_vec(unescape(fields.next()?)).into());
        let (root, point) = (path()?, path()?);
        let mut behind = fields.skip_while(|field| *field != b"-").skip(1);
        let kind = behind.next()?.to_owned();
        let options = behind.nth(1).unwrap_or_default();
        let user = options.split(|byte| *byte == b',').find_map(|option| {
            std::str::from_utf8(option.strip_prefix(b"user_id=")?).ok()?.parse().ok()
        });
        let device = (device.0.parse().ok()?, device.1.parse().ok()?);
        Some(Self { device, root, point, kind, user })
    }

    /// The topmost mount at `point`.
    pub(super) fn on(table: &[u8], point: &Path) -> Option<Self> {
        let number = top_of(table, point)?.to_string();
        let is_it =
            |line: &&[u8]| line.split(|byte| *byte == b' ').next() == Some(number.as_bytes());
        Self::parse(table.split(|byte| *byte == b'\n').find(is_it)?)
    }

    pub(super) fn is_ours(&self) -> bool {
        self.kind == b"fuse.halocline"
    }

    /// Whether another process or machine serves it, which may be stopped or unreachable.
    pub(super) fn has_server(&self) -> bool {
        SERVED.iter().any(|kind| self.kind.starts_with(kind))
    }
}

/// The mounts that this process sees.
pub(super) fn table() -> Result<Vec<u8>> {
    fs::read(MOUNTINFO).map_err(Error::at(MOUNTINFO, "read the mounts"))
}

/// Another place where the file system of a mount is visible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountCopy {
    /// A process that sees it.
    pub pid: u32,
    /// Where that process sees it.
    pub point: PathBuf,
}

impl fmt::Display for MountCopy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} (mount namespace of process {})", self.point.display(), self.pid)
    }
}

/// Major and minor number of the file system of the mount `number`, as this process sees it.
///
/// # Errors
/// The mounts cannot be read.
pub fn device_of(number: u64) -> io::Result<Option<(u64, u64)>> {
    let table = fs::read(MOUNTINFO)?;
    let found = numbered(&table).find(|(found, _)| *found == number);
    Ok(found.and_then(|(_, line)| Some(MountLine::parse(line)?.device)))
}

/// Where the file system `device` is mounted other than by the mount `number`: in any mount namespace of a process that
/// this one may examine. A namespace that was created while a mount existed has such a copy, which keeps the file
/// system in use.
pub fn copies(device: (u64, u64), number: u64) -> Vec<MountCopy> {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut looked_at = HashSet::new();
    let mut seen = HashSet::from([number]);
    let mut found = Vec::new();
    for pid in pids {
        // If the namespace is not reported, its mounts may still be.
        let namespace = fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
        if namespace.is_some_and(|namespace| !looked_at.insert(namespace)) {
            continue;
        }
        let Ok(table) = fs::read(format!("/proc/{pid}/mountinfo")) else { continue };
        for (number, line) in numbered(&table) {
            let line = MountLine::parse(line).filter(|line| line.device == device);
            if let Some(line) = line.filter(|_| seen.insert(number)) {
                found.push(MountCopy { pid, point: line.point });
            }
        }
    }
    found
}

/// The copies of the topmost mount at `path`.
///
/// # Errors
/// The mounts cannot be read.
pub fn copies_of(path: &Path) -> io::Result<Vec<MountCopy>> {
    let Some(number) = number_on(path)? else { return Ok(Vec::new()) };
    Ok(device_of(number)?.map_or_else(Vec::new, |device| copies(device, number)))
}

/// The lines of a table that begin with a mount's number.
fn numbered(table: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    table.split(|byte| *byte == b'\n').filter_map(|line| {
        let number = line.split(|byte| *byte == b' ').next()?;
        Some((std::str::from_utf8(number).ok()?.parse().ok()?, line))
    })
}

/// State of a mount that was made on a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountState {
    /// It is there, with nothing mounted over it.
    OnTop,
    /// It is there, under another mount.
    Covered,
    /// It is no longer there.
    Gone,
}

/// The number of the topmost mount at `path`, as seen by this process.
pub fn number_on(path: &Path) -> io::Result<Option<u64>> {
    Ok(top_of(&fs::read(MOUNTINFO)?, path))
}

/// The state of the mount `number`, which was made on `path`: by path alone, the disk below would be mistaken for it
/// once it is gone.
pub fn state(path: &Path, number: u64) -> io::Result<MountState> {
    Ok(state_in(&fs::read(MOUNTINFO)?, path, number))
}

fn state_in(table: &[u8], path: &Path, number: u64) -> MountState {
    if top_of(table, path) == Some(number) {
        MountState::OnTop
    } else if numbers_on(table, path).any(|(found, _)| found == number) {
        MountState::Covered
    } else {
        MountState::Gone
    }
}

/// Of the mounts on one path, the one that is not the parent of another.
fn top_of(table: &[u8], path: &Path) -> Option<u64> {
    let is_below = |number| numbers_on(table, path).any(|(_, parent)| parent == number);
    numbers_on(table, path).map(|(number, _)| number).find(|number| !is_below(*number))
}

/// Numbers of the mounts on `path`, and of their parents.
fn numbers_on(table: &[u8], path: &Path) -> impl Iterator<Item = (u64, u64)> {
    table.split(|byte| *byte == b'\n').filter_map(move |line| {
        let (point, _) = parse_line(line)?;
        let mut fields = line.split(|byte| *byte == b' ');
        let mut number = || std::str::from_utf8(fields.next()?).ok()?.parse().ok();
        let pair = (number()?, number()?);
        (point == path).then_some(pair)
    })
}

/// Whether anything is mounted exactly on `path` (absolute and without links), as seen by this process.
pub fn is_mountpoint(path: &Path) -> io::Result<bool> {
    Ok(numbers_on(&fs::read(MOUNTINFO)?, path).next().is_some())
}

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) const TABLE: &[u8] = b"\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
40 22 0:40 / /mnt/a\\040b rw,nosuid shared:7 master:2 - fuse.halocline halocline rw,user_id=0\n\
41 40 0:41 / /mnt/a\\040b/inner rw - tmpfs tmpfs rw\n\
42 22 0:42 / /srv rw - ext4 /dev/sdb rw\n\
43 42 0:43 / /srv rw - fuse halocline rw\n";

    #[test]
    fn the_longest_and_topmost_mount_wins() {
        let of = |path: &str| fuse_mount_of(TABLE, Path::new(path));
        assert_eq!(of("/mnt/a b/dir/file"), Some("/mnt/a b".into()));
        assert_eq!(of("/mnt/a b/inner/file"), None, "a tmpfs inside the mount is not ours");
        assert_eq!(of("/srv/x"), Some("/srv".into()), "the mount on top counts");
        assert_eq!(of("/srvx"), None);
        assert_eq!(of("/home"), None);
    }

    /// Any user may mount below a name that is no text; no cluster could be mounted then.
    #[test]
    fn the_root_of_a_file_system_is_found_by_its_type_and_device() {
        let table: &[u8] = b"\
27 1 254:0 / / rw - ext4 /dev/vda rw\n\
40 27 0:38 / /srv/u/\xff rw,nosuid - fuse.sshfs h: rw,user_id=1000\n\
41 27 0:39 /sub /bound rw - fuse.glusterfs glusterfs:v rw\n\
42 27 0:39 / /mnt/g\\040v rw,relatime shared:1 - fuse.glusterfs glusterfs:v rw\n\
43 27 0:40 / /mnt/s rw - fuse.sshfs h: rw\n";
        let root = |minor| root_in(table, "fuse.glusterfs", rustix::fs::makedev(0, minor));
        assert_eq!(root(39), Some(PathBuf::from("/mnt/g v")));
        assert_eq!((root(40), root(38)), (None, None));
        assert_eq!(root_in(b"\n - fuse.glusterfs \nx", "fuse.glusterfs", 39), None);
    }

    #[test]
    fn a_mount_is_told_from_the_one_below_it() {
        let of = |path: &str, number| state_in(TABLE, Path::new(path), number);
        assert_eq!(of("/srv", 43), MountState::OnTop);
        assert_eq!(of("/srv", 42), MountState::Covered);
        assert_eq!(of("/srv", 40), MountState::Gone);
        assert_eq!(of("/mnt/a b", 40), MountState::OnTop, "a mount inside covers nothing");
        assert_eq!(of("/mnt/a b", 41), MountState::Gone);
    }

    #[test]
    fn a_part_of_a_file_system_is_found_where_more_of_it_is_mounted() {
        let table = b"\
22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
30 22 8:2 / /data rw - ext4 /dev/sdb rw\n\
31 22 8:2 /jobs/a /mnt/a rw - ext4 /dev/sdb rw\n\
32 22 8:2 /other /mnt/o rw - ext4 /dev/sdb rw\n";
        let of = |path: &str| wider_paths_in(table, Path::new(path));
        let pair = |path: &str, inside: &str| (PathBuf::from(path), PathBuf::from(inside));
        assert_eq!(of("/mnt/a/b/c"), [pair("/data/jobs/a", "b/c")]);
        assert_eq!(of("/mnt/a"), [pair("/data/jobs/a", "")]);
        assert!(of("/data/jobs/a").is_empty());
        assert!(of("/etc").is_empty());
    }
}
