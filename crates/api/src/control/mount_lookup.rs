//! Finds the running mount that a path is on.
//!
//! What must hold: no lookup goes through a mount that may not respond. It would wait for the mount's process,
//! unkillably if that process is stopped or waits for a disk. So links are followed only up to the mount, its owner is
//! found by the mount's device ([`super::claim`]), and what must be examined inside the mount is left to a [`MountAccess`]
//! that may have a time limit.

mod errors;

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Component, Path, PathBuf};

use rustix::process::geteuid;

use super::claim::{self, Owner};
use super::client::{self, Connect};
use super::mount::{self, MountLine, fuse_mount_of, tells_of_end};
pub use super::mount_access::MountAccess;
use super::tier::PRIVATE;
use super::{Client, SOCKET_NAME, SOCKET_XATTR};
use errors::{closed_directory, dead, not_followed, not_ours, silent, unresolved};
use halocline_os::error::{Error, Result};

/// How many directories in the root of a file tier are checked for a response.
const TIERS_MAX: usize = 256;
/// Limit of links on one path, as in the kernel.
const LINKS_MAX: u32 = 40;

/// A path on a running mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountedPath {
    /// The mount point; empty if the cache directory was named instead of a mounted path.
    pub mountpoint: PathBuf,
    /// The control socket of its owner.
    pub socket: PathBuf,
    /// The user who mounted, according to the kernel; with a cache directory, the directory's owner.
    pub user: u32,
    /// The path relative to the mount's root; empty for the root.
    pub inside: PathBuf,
}

/// Lookups without a time limit.
#[derive(Debug, Clone, Copy)]
pub struct Directly;

impl MountAccess for Directly {
    fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        fs::canonicalize(path)
    }

    fn socket(&self, root: &Path) -> io::Result<Option<PathBuf>> {
        let mut value = vec![0; 4096];
        match rustix::fs::getxattr(root, SOCKET_XATTR, &mut value[..]) {
            Ok(len) => {
                value.truncate(len);
                Ok(Some(OsString::from_vec(value).into()))
            }
            Err(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    fn wait_for(&self, point: &Path) -> io::Result<()> {
        // The kernel never answers this from its cache.
        let _answer = rustix::fs::statvfs(point);
        Ok(())
    }

    fn link(&self, path: &Path) -> io::Result<Option<PathBuf>> {
        if fs::symlink_metadata(path)?.is_symlink() {
            fs::read_link(path).map(Some)
        } else {
            Ok(None)
        }
    }

    fn connect(&self, path: &Path) -> io::Result<UnixStream> {
        client::connect(path)
    }
}

/// How far a path can be followed without accessing one of our mounts.
#[derive(Debug, PartialEq, Eq)]
enum FollowedPath {
    /// To its end.
    Whole(PathBuf),
    /// To this mount, with the rest of the path.
    Mount(MountLine, PathBuf),
}

impl MountedPath {
    /// Finds the mount of `path`. A cache directory in use also identifies its mount's root, so that a private mount
    /// (`halocline run`) can be asked from outside.
    pub fn find(path: &Path) -> Result<Self> {
        Self::find_by(path, &Directly)
    }

    /// The same, accessing mounts through `access`.
    pub fn find_by(path: &Path, access: &dyn MountAccess) -> Result<Self> {
        let table = mount::table()?;
        let absolute = std::path::absolute(path).map_err(Error::at(path, "find the path"))?;
        let followed =
            follow(&table, &absolute, access).map_err(|error| not_followed(path, error))?;
        let (line, rest) = match followed {
            FollowedPath::Whole(whole) => return Self::off_mounts(&table, path, &whole, access),
            FollowedPath::Mount(line, rest) => (line, rest),
        };
        let mountpoint = line.point.clone();
        let (socket, user) = socket_of(&line, access)?.ok_or_else(|| not_ours(path))?;
        if rest.as_os_str().is_empty() {
            return Ok(Self { mountpoint, socket, user, inside: PathBuf::new() });
        }
        let whole = access.resolve(&absolute).map_err(|error| unresolved(path, error))?;
        if fuse_mount_of(&table, &whole).as_ref() != Some(&mountpoint) {
            // A link leads out of the mount.
            return Self::off_mounts(&table, path, &whole, access);
        }
        let inside = whole.strip_prefix(&mountpoint).map_err(|_| not_ours(path))?.to_owned();
        Ok(Self { mountpoint, socket, user, inside })
    }

    /// The path that `whole` identifies, which is not on any mount found so far.
    fn off_mounts(
        table: &[u8],
        path: &Path,
        whole: &Path,
        access: &dyn MountAccess,
    ) -> Result<Self> {
        let socket = whole.join(SOCKET_NAME);
        let is_closed = |dir: &Path| {
            let seen = fs::symlink_metadata(dir.join(SOCKET_NAME));
            seen.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
        };
        let cache = |socket: PathBuf| {
            let dir = socket.parent().unwrap_or(whole);
            let seen = fs::metadata(dir).map_err(Error::at(dir, "look at the directory"))?;
            let (mountpoint, inside) = Default::default();
            Ok(Self { mountpoint, user: seen.uid(), socket, inside })
        };
        let Some(mountpoint) = fuse_mount_of(table, whole) else {
            if is_there(table, &socket, access) {
                return cache(socket);
            }
            // The contents of a directory that is closed to this user are unknown.
            let nothing = || if is_closed(whole) { closed_directory(path) } else { not_ours(path) };
            if let Some(socket) = socket_of_tiers(table, whole, access) {
                return cache(socket);
            }
            // The socket may be on a file system that hangs.
            check_tiers_answer(whole, access)?;
            return Err(dead_tier(whole).unwrap_or_else(nothing));
        };
        // A cache, too, may be on someone else's FUSE mount.
        if access.resolve(&socket).is_ok() {
            return cache(socket);
        }
        let line = MountLine::on(table, &mountpoint).ok_or_else(|| not_ours(path))?;
        let (socket, user) = socket_of(&line, access)?.ok_or_else(|| not_ours(path))?;
        let inside = whole.strip_prefix(&mountpoint).map_err(|_| not_ours(path))?.to_owned();
        Ok(Self { mountpoint, socket, user, inside })
    }

    /// Connects to the mount's owner.
    pub fn connect(&self) -> Result<Client> {
        self.connect_by(client::connect)
    }

    /// The same, by `connect`, which may have a time limit: the mount's user determines where the socket is, and may
    /// make it hang.
    pub fn connect_by(&self, connect: Connect) -> Result<Client> {
        let client = match connect(&self.socket) {
            // A mount that reported its socket is alive, so the device with the socket is gone.
            Err(error)
                if error.kind() == io::ErrorKind::NotFound
                    && !self.mountpoint.as_os_str().is_empty() =>
            {
                return Err(Error::invalid(
                    format!(
                        "{}: the control socket of the mount at {} is not there any more",
                        self.socket.display(),
                        self.mountpoint.display()
                    ),
                    "bring the device of its directory back; or end the mount with the system's umount",
                ));
            }
            connected => Client::over(connected, &self.socket, self.user, connect),
        };
        client.map_err(|error| match error.errno() {
            libc::EACCES => self.closed(geteuid().as_raw()),
            _ => error,
        })
    }

    /// The error for a mount whose control socket the user `asking` may not reach.
    fn closed(&self, asking: u32) -> Error {
        let what = if self.mountpoint.as_os_str().is_empty() {
            format!("the mount with the control socket {}", self.socket.display())
        } else {
            format!("the mount at {}", self.mountpoint.display())
        };
        let message = if asking == self.user {
            format!(
                "{what} is yours, and you may not reach {}; let yourself into the directories above it \
                 (chmod u+x), or ask as root",
                self.socket.display()
            )
        } else {
            format!(
                "{what} belongs to user {}, not to you (user {asking}): only that user and root may ask it; \
                 have one of them do that",
                self.user
            )
        };
        Error::Refused { message, errno: libc::EACCES }
    }
}

/// The control socket of the file tier whose root, or one of whose directories, is `root`. Directories with their own
/// server, which may not respond, are not accessed.
fn socket_of_tiers(table: &[u8], root: &Path, access: &dyn MountAccess) -> Option<PathBuf> {
    let of_tier = |tier: &Path| {
        let private = match follow(table, &tier.join(PRIVATE), access).ok()? {
            FollowedPath::Whole(private) => private,
            FollowedPath::Mount(..) => return None,
        };
        Some(private.join(SOCKET_NAME)).filter(|socket| is_there(table, socket, access))
    };
    let may_hang = |dir: &Path| MountLine::on(table, dir).is_some_and(|line| line.has_server());
    of_tier(root).or_else(|| {
        let mut dirs = directories_in(root).filter(|dir| !may_hang(dir));
        dirs.find_map(|dir| of_tier(&dir))
    })
}

/// Directories in the root of a file tier. A tier may be a link to another place.
fn directories_in(root: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    let dirs = entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir() || kind.is_symlink()));
    dirs.map(|entry| entry.path())
}

/// The error for the root of a file tier if one of its directories is a mount whose server has ended.
pub fn dead_tier(root: &Path) -> Option<Error> {
    directories_in(root).take(TIERS_MAX).find_map(|dir| {
        // The kernel never answers this from its cache.
        let errno = rustix::fs::statvfs(&dir).err()?;
        tells_of_end(errno.raw_os_error()).then(|| Error::at(dir, "look at")(errno.into()))
    })
}

/// Refuses the root of a file tier if one of its directories is a mount that does not respond. The root itself is not
/// such a mount.
///
/// # Errors
/// [`Error::Refused`] with `ETIMEDOUT` names the directory.
pub fn check_tiers_answer(root: &Path, access: &dyn MountAccess) -> Result<()> {
    directories_in(root).take(TIERS_MAX).try_for_each(|dir| check_answers(&dir, access))
}

/// Where the mount with the control socket `socket` is; `None` if it is in another namespace, or does not respond.
pub fn mountpoint_of(socket: &Path, access: &dyn MountAccess) -> Option<PathBuf> {
    mountpoint_by(access, |cache| cache.join(SOCKET_NAME) == socket)
}

/// Where the mount is whose cache, or first tier, is `dir` or is below it. Found without accessing `dir`, which may not
/// respond.
pub fn mountpoint_over(dir: &Path, access: &dyn MountAccess) -> Option<PathBuf> {
    let dir = std::path::absolute(dir).ok()?;
    mountpoint_by(access, |cache| cache.starts_with(&dir))
}

/// Our topmost mount at `path`, whether or not its process responds.
pub fn mountpoint_at(path: &Path, access: &dyn MountAccess) -> Option<PathBuf> {
    match follow(&mount::table().ok()?, &std::path::absolute(path).ok()?, access).ok()? {
        FollowedPath::Mount(line, rest) if rest.as_os_str().is_empty() => Some(line.point),
        _ => None,
    }
}

/// Anyone may claim that a cache belongs to their mount, so this user's own mounts come first.
fn mountpoint_by(access: &dyn MountAccess, is_it: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let (table, own) = (mount::table().ok()?, Some(geteuid().as_raw()));
    let points = mount::mountpoints().ok()?.into_iter();
    let mut lines: Vec<_> = points.filter_map(|point| MountLine::on(&table, &point)).collect();
    lines.sort_by_key(|line| line.user != own);
    let found = lines.into_iter().find(|line| {
        let cache = claim::owner_of(line, access).and_then(|owner| owner.cache);
        cache.is_some_and(|cache| is_it(&cache))
    });
    found.map(|line| line.point)
}

/// The halocline mount on top at `path` (which need not exist), if its process has ended; an error if that cannot be
/// determined in time.
///
/// This is judged by a request that the mount's process answers by itself: if the origin's own server has ended,
/// everything else fails in the same way.
pub fn dead_mount(path: &Path, access: &dyn MountAccess) -> Result<Option<PathBuf>> {
    let table = mount::table()?;
    let absolute = std::path::absolute(path).map_err(Error::at(path, "find the path"))?;
    let (line, rest) = match follow(&table, &absolute, access) {
        Ok(FollowedPath::Mount(line, rest)) => (line, rest),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            return Err(not_followed(path, error));
        }
        _ => return Ok(None),
    };
    if !rest.as_os_str().is_empty() {
        return Ok(None);
    }
    match claim::owner_of(&line, access) {
        Some(Owner { cache: Some(_), .. }) => return Ok(None),
        Some(Owner { pid, .. }) => return Err(silent(&line.point, Some(pid))),
        None => {}
    }
    match access.socket(&line.point) {
        Err(error) if error.raw_os_error().is_some_and(tells_of_end) => Ok(Some(line.point)),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(silent(&line.point, None)),
        _ => Ok(None),
    }
}

/// Refuses a path that leads into a mount whose process or server is alive but does not respond, or does not for this
/// path: using the path would wait with it.
pub fn check_answers(path: &Path, access: &dyn MountAccess) -> Result<()> {
    // An empty path, as in `PATH=:/bin`, leads nowhere.
    let Ok(absolute) = std::path::absolute(path) else { return Ok(()) };
    let answer = match follow(&mount::table()?, &absolute, access) {
        Ok(FollowedPath::Mount(line, _)) => socket_of(&line, access).and_then(|_| {
            wait_for_path(&absolute, access).map_err(|error| unresolved(path, error))
        }),
        Ok(FollowedPath::Whole(_)) => Ok(()),
        Err(error) => Err(not_followed(path, error)),
    };
    // Other errors are reported when the path is used.
    answer.or_else(|error| if error.errno() == libc::ETIMEDOUT { Err(error) } else { Ok(()) })
}

/// Follows links and `..` as the kernel does, up to the first mount of ours. Anything on file systems with other
/// servers is examined through `access`.
fn follow(table: &[u8], path: &Path, access: &dyn MountAccess) -> io::Result<FollowedPath> {
    let mut at = PathBuf::from("/");
    let mut left: VecDeque<OsString> = parts(path).collect();
    let mut links = 0;
    while let Some(part) = left.pop_front() {
        match Path::new(&part).components().next() {
            Some(Component::RootDir) => at = "/".into(),
            Some(Component::ParentDir) => drop(at.pop()),
            Some(Component::Normal(name)) => {
                let next = at.join(name);
                match MountLine::on(table, &next) {
                    Some(line) if line.is_ours() => {
                        return Ok(FollowedPath::Mount(line, left.into_iter().collect()));
                    }
                    Some(line) if line.has_server() => wait_for(&next, access)?,
                    _ => {}
                }
                let target = match served_at(table, &next) {
                    Some(point) => in_time(&point, access.link(&next))?,
                    None => Directly.link(&next)?,
                };
                let Some(target) = target else {
                    at = next;
                    continue;
                };
                links += 1;
                if links > LINKS_MAX {
                    return Err(io::Error::from_raw_os_error(libc::ELOOP));
                }
                for part in parts(&target).collect::<Vec<_>>().into_iter().rev() {
                    left.push_front(part);
                }
            }
            _ => {}
        }
    }
    Ok(FollowedPath::Whole(at))
}

/// Waits until all servers of file systems on the way to `path` respond, and the last one at its end.
fn wait_for_path(path: &Path, access: &dyn MountAccess) -> io::Result<()> {
    access.resolve(path).and_then(|whole| access.wait_for(&whole))
}

/// Whether anything exists at `path`.
fn is_there(table: &[u8], path: &Path, access: &dyn MountAccess) -> bool {
    match served_at(table, path) {
        Some(_) => access.link(path).is_ok(),
        None => path.exists(),
    }
}

/// The mount point that `path` is on, if another process or machine serves it.
fn served_at(table: &[u8], path: &Path) -> Option<PathBuf> {
    let line = path.ancestors().find_map(|above| MountLine::on(table, above))?;
    line.has_server().then_some(line.point)
}

fn wait_for(point: &Path, access: &dyn MountAccess) -> io::Result<()> {
    in_time(point, access.wait_for(point))
}

/// The result of examining the file system mounted at `point`; an error if it did not respond says so.
fn in_time<T>(point: &Path, looked: io::Result<T>) -> io::Result<T> {
    looked.map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => {
            let what = format!("the file system mounted at {} does not answer", point.display());
            io::Error::new(io::ErrorKind::TimedOut, what)
        }
        _ => error,
    })
}

fn parts(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().map(|part| part.as_os_str().to_owned())
}

/// The socket of the mount's owner, and the owner; `None` if the mount is not ours.
fn socket_of(line: &MountLine, access: &dyn MountAccess) -> Result<Option<(PathBuf, u32)>> {
    let user = line.user.unwrap_or_else(|| geteuid().as_raw());
    match claim::owner_of(line, access) {
        Some(Owner { cache: Some(cache), .. }) => {
            return Ok(Some((cache.join(SOCKET_NAME), user)));
        }
        Some(Owner { pid, .. }) => return Err(silent(&line.point, Some(pid))),
        // Its version is older, it is in another network namespace, or it has died.
        None => {}
    }
    let socket = access.socket(&line.point).map_err(|error| match error.raw_os_error() {
        Some(errno) if tells_of_end(errno) => dead(&line.point),
        _ if error.kind() == io::ErrorKind::TimedOut => silent(&line.point, None),
        _ => Error::at(&line.point, "ask the mount for its socket")(error),
    })?;
    Ok(socket.map(|socket| (socket, user)))
}

#[cfg(test)]
mod tests;
