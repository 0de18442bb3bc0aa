//! Which halocline mount a path lies on, by `/proc/self/mountinfo`.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::{Client, SOCKET_NAME, SOCKET_XATTR};
use crate::error::{Error, Result};

/// The mounts that this process sees (`proc_pid_mountinfo(5)`).
const MOUNTINFO: &str = "/proc/self/mountinfo";

/// A place on a running mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The mount point; empty when the cache directory was named instead of a mounted path.
    pub mountpoint: PathBuf,
    /// The control socket of its owner.
    pub socket: PathBuf,
    /// The path relative to the mount's root; empty for the root.
    pub inside: PathBuf,
}

impl Place {
    /// Finds the mount of `path`. A cache directory in use stands for the root of its mount, so
    /// that a private mount (`halocline run`) can be asked from outside.
    pub fn find(path: &Path) -> Result<Self> {
        let whole = fs::canonicalize(path).map_err(|error| match error.raw_os_error() {
            Some(errno) if tells_of_end(errno) => dead(path),
            _ => Error::at(path, "find the path")(error),
        })?;
        let socket = whole.join(SOCKET_NAME);
        if socket.exists() {
            return Ok(Self { mountpoint: PathBuf::new(), socket, inside: PathBuf::new() });
        }
        let table = fs::read(MOUNTINFO).map_err(Error::at(MOUNTINFO, "read the mounts"))?;
        let not_ours = || {
            Error::invalid(
                format!("{} is not on a halocline mount", path.display()),
                "give a path below a mount point, or the cache directory of a running mount",
            )
        };
        let mountpoint = fuse_mount_of(&table, &whole).ok_or_else(not_ours)?;
        let socket = socket_of(&mountpoint)?.ok_or_else(not_ours)?;
        let inside = whole.strip_prefix(&mountpoint).map_err(|_| not_ours())?.to_owned();
        Ok(Self { mountpoint, socket, inside })
    }

    /// Connects to the mount's owner.
    pub fn connect(&self) -> Result<Client> {
        // A mount that told of its socket lives: what is gone is the device with the socket.
        if !self.mountpoint.as_os_str().is_empty() && !self.socket.exists() {
            return Err(Error::invalid(
                format!(
                    "{}: the control socket of the mount at {} is not there any more",
                    self.socket.display(),
                    self.mountpoint.display()
                ),
                "bring the device of its directory back; or end the mount with the system's umount",
            ));
        }
        Client::connect(&self.socket)
    }
}

/// Whether the kernel answers a request with `errno` because the mount's process has ended. Its
/// connection ends some milliseconds after it: requests that come in between are cancelled or aborted.
pub fn tells_of_end(errno: i32) -> bool {
    matches!(errno, libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED)
}

/// The error for a mount point whose owner died.
fn dead(path: &Path) -> Error {
    Error::invalid(
        format!("the process behind the mount at {} has ended", path.display()),
        "free the mount point with `halocline umount`, then mount again: recovery is automatic",
    )
}

/// Socket path that a mount's root tells; `None` where it is not ours.
fn socket_of(root: &Path) -> Result<Option<PathBuf>> {
    let mut value = vec![0; 4096];
    match rustix::fs::getxattr(root, SOCKET_XATTR, &mut value[..]) {
        Ok(len) => {
            value.truncate(len);
            Ok(Some(OsString::from_vec(value).into()))
        }
        Err(error) if tells_of_end(error.raw_os_error()) => Err(dead(root)),
        Err(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP) => Ok(None),
        Err(error) => Err(Error::at(root, "ask the mount for its socket")(io::Error::from(error))),
    }
}

/// The mount point that `path` lies on, if it is a FUSE mount. Of several mounts on one place the
/// last listed is on top.
fn fuse_mount_of(table: &[u8], path: &Path) -> Option<PathBuf> {
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

/// Undoes the `\ooo` escapes of blanks and backslashes.
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

/// What is mounted at `dir`, absolute and without links, or below it, in the order of mounting, as
/// this process sees it.
pub fn below(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let table = fs::read(MOUNTINFO)?;
    let points = table.split(|byte| *byte == b'\n').filter_map(parse_line).map(|(point, _)| point);
    Ok(points.filter(|point| point.starts_with(dir)).collect())
}

/// Other paths of `dir`, absolute and without links, that begin higher up in its file system than
/// the mount that it lies on does (a bind mount of a part of it): the path of what is mounted here,
/// and the rest of the path from there.
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

/// What one line of mountinfo says of where a mount is.
#[derive(Debug, PartialEq, Eq)]
struct MountLine<'a> {
    device: &'a [u8],
    /// The directory of the file system that is mounted.
    root: PathBuf,
    point: PathBuf,
}

impl<'a> MountLine<'a> {
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ').skip(2);
        let device = fields.next()?;
        let mut path = || Some(OsString::from_vec(unescape(fields.next()?)).into());
        Some(Self { device, root: path()?, point: path()? })
    }
}

/// Where a mount is that was made on a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// There, and nothing is mounted over it.
    OnTop,
    /// There, under another mount.
    Covered,
    /// Not there any more.
    Gone,
}

/// The number of the mount that is on top of others at `path`, as this process sees it.
pub fn number_on(path: &Path) -> io::Result<Option<u64>> {
    Ok(top_of(&fs::read(MOUNTINFO)?, path))
}

/// Where the mount `number` is that was made on `path`: by path alone, the disk below it would be
/// taken for it once it is gone.
pub fn standing(path: &Path, number: u64) -> io::Result<Standing> {
    Ok(standing_in(&fs::read(MOUNTINFO)?, path, number))
}

fn standing_in(table: &[u8], path: &Path, number: u64) -> Standing {
    if top_of(table, path) == Some(number) {
        Standing::OnTop
    } else if numbers_on(table, path).any(|(found, _)| found == number) {
        Standing::Covered
    } else {
        Standing::Gone
    }
}

/// Of the mounts on one path, the one that no other has for its parent.
fn top_of(table: &[u8], path: &Path) -> Option<u64> {
    let is_below = |number| numbers_on(table, path).any(|(_, parent)| parent == number);
    numbers_on(table, path).map(|(number, _)| number).find(|number| !is_below(*number))
}

/// Numbers of the mounts on `path` and of their parents.
fn numbers_on(table: &[u8], path: &Path) -> impl Iterator<Item = (u64, u64)> {
    table.split(|byte| *byte == b'\n').filter_map(move |line| {
        let (point, _) = parse_line(line)?;
        let mut fields = line.split(|byte| *byte == b' ');
        let mut number = || std::str::from_utf8(fields.next()?).ok()?.parse().ok();
        let pair = (number()?, number()?);
        (point == path).then_some(pair)
    })
}

/// Whether anything is mounted exactly on `path`, absolute and without links, as this process sees
/// it.
pub fn is_mountpoint(path: &Path) -> io::Result<bool> {
    Ok(numbers_on(&fs::read(MOUNTINFO)?, path).next().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"\
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

    #[test]
    fn a_mount_is_told_from_the_one_below_it() {
        let of = |path: &str, number| standing_in(TABLE, Path::new(path), number);
        assert_eq!(of("/srv", 43), Standing::OnTop);
        assert_eq!(of("/srv", 42), Standing::Covered);
        assert_eq!(of("/srv", 40), Standing::Gone);
        assert_eq!(of("/mnt/a b", 40), Standing::OnTop, "a mount inside covers nothing");
        assert_eq!(of("/mnt/a b", 41), Standing::Gone);
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

    /// The SSD was taken away under a mount, which then was said not to be there.
    #[test]
    fn a_socket_that_is_gone_is_told_from_a_mount_that_is() {
        let (mountpoint, socket) =
            (PathBuf::from("/mnt/x"), PathBuf::from("/nowhere/control.sock"));
        let place = Place { mountpoint, socket, inside: PathBuf::new() };
        let error = place.connect().unwrap_err().to_string();
        assert!(error.contains("/mnt/x") && error.contains("umount"), "{error}");
        let named_by_cache = Place { mountpoint: PathBuf::new(), ..place };
        let error = named_by_cache.connect().unwrap_err().to_string();
        assert!(error.contains("no mount process answers"), "{error}");
    }

    #[test]
    fn a_path_elsewhere_is_refused_with_a_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let error = Place::find(dir.path()).unwrap_err().to_string();
        assert!(error.contains("is not on a halocline mount"), "{error}");
    }
}
