//! Checks before anything is changed: every error names its cause and the remedy.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use halocline_api::config::{CacheSize, Config, Mode};
use halocline_api::control::mount::is_mountpoint;
use halocline_meta::identity::CACHE_FILE;
use halocline_os::bounded;
use halocline_os::error::{self, Error, Result};
use halocline_os::lost_and_found;
use halocline_os::private;
use halocline_storage::volume::origin::volume_parts;
use rustix::fs::{Access, AtFlags, CWD, Mode as FileMode, OFlags, accessat, open, statvfs};
use rustix::io::Errno;

use crate::replaceable::{self, ResultKind};
use crate::{inherited, mount_lookup, output, text};

/// A cache's file system needs at least this much free space to be useful.
const ROOM_BYTES_MIN: u64 = 16 << 20;

/// The two directories, with canonical paths.
#[derive(Debug, Clone)]
pub(crate) struct Sides {
    /// The origin.
    pub(crate) origin: PathBuf,
    /// The cache.
    pub(crate) cache: PathBuf,
}

/// Checks origin and cache.
pub(crate) fn sides(origin: &Path, cache: &Path, config: &Config) -> Result<Sides> {
    // If it is its own mount point.
    if mount_lookup::dead_mount(origin)?.is_some() {
        return Err(died("origin", origin));
    }
    let sides = Sides { origin: directory("origin", origin)?, cache: directory("cache", cache)? };
    apart(&sides)?;
    volume_parts::check_is_none(&sides.origin)?;
    // What is already there is served even from a full file system.
    writable_unless_full("cache", &sides.cache, sides.cache.join(CACHE_FILE).exists())?;
    if config.mode != Mode::ReadOnly {
        writable_unless_full("origin", &sides.origin, true)?;
    }
    room(&sides.cache, config)?;
    Ok(sides)
}

/// The directories of a file tier, with canonical paths.
#[derive(Debug, Clone)]
pub(crate) struct Tiers {
    /// Their common root.
    pub(crate) root: PathBuf,
    roots: Vec<PathBuf>,
}

impl Tiers {
    /// The set's own directory.
    pub(crate) fn private(&self) -> PathBuf {
        self.roots[0].join(halocline_api::control::tier::PRIVATE)
    }
}

/// Checks the directories of a file tier.
pub(crate) fn tiers(root: &Path, config: &Config) -> Result<Tiers> {
    let root = directory("root of the tiers", root)?;
    mount_lookup::check_tiers_answer(&root)?;
    let roots = crate::open_engine::tier_set(&root, config)?.roots;
    crate::open_engine::tier_options(config)?;
    for tier in &roots {
        volume_parts::check_is_outside(&directory("tier", tier)?)?;
        let is_known = tier.join(halocline_api::control::tier::PRIVATE).exists();
        writable_unless_full("tier", tier, is_known)?;
    }
    if config.allow_other {
        closed_to_others(&root, &roots)?;
    }
    within_total(&config.named("ssd_limit"), config.ssd_limit, &roots[0], space_of(&roots[0])?.0)?;
    Ok(Tiers { root, roots })
}

/// Refuses tiers that users of the mount can reach directly: they could put links and files in the way of operations
/// that have more rights than theirs.
fn closed_to_others(root: &Path, tiers: &[PathBuf]) -> Result<()> {
    for tier in tiers {
        if !private::others_reach(tier)? {
            continue;
        }
        // A tier may be a link to another place.
        let above = if tier.starts_with(root) { root } else { tier.parent().unwrap_or(root) };
        return Err(Error::invalid(
            format!("with --allow-other, users of the mount can reach {} past it", shown(tier)),
            format!(
                "close the directory above it: chmod 0700 {} (the mount point must lie outside)",
                shown(above)
            ),
        ));
    }
    Ok(())
}

/// Checks the mount point of a file tier.
pub(crate) fn tier_mountpoint(path: &Path, tiers: &Tiers, config: &Config) -> Result<PathBuf> {
    let path = free_mountpoint(path)?;
    if config.allow_other && path.starts_with(&tiers.root) {
        return Err(Error::invalid(
            format!(
                "with --allow-other, others cannot reach the mount point {}: it lies in {}, which is closed to them",
                shown(&path),
                shown(&tiers.root)
            ),
            "choose an empty directory outside",
        ));
    }
    let within = |tier: &&PathBuf| path.starts_with(tier);
    if let Some(tier) = tiers.roots.iter().find(within) {
        return Err(Error::invalid(
            format!("mount point {} is, or lies in, the tier {}", shown(&path), shown(tier)),
            "choose an empty directory outside the tiers",
        ));
    }
    check_alone(&path)?;
    check_empty(&path, "choose an empty directory")?;
    Ok(path)
}

/// Checks a mount point. It may be the origin itself.
pub(crate) fn mountpoint(mountpoint: &Path, sides: &Sides) -> Result<PathBuf> {
    let path = free_mountpoint(mountpoint)?;
    if path != sides.origin {
        check_alone(&path)?;
    }
    for (name, side) in [("origin", &sides.origin), ("cache", &sides.cache)] {
        if path.starts_with(side) && path != sides.origin {
            return Err(Error::invalid(
                format!("mount point {} lies inside the {name} {}", shown(&path), shown(side)),
                "choose a directory outside both",
            ));
        }
    }
    if path != sides.origin {
        // A user who swapped the two would otherwise look for an error in the mount point.
        let remedy = match first_name(&sides.origin) {
            Ok(None) => "the origin is: name it first, then the mount point",
            _ => "choose an empty directory, or the origin itself",
        };
        check_empty(&path, remedy)?;
    }
    Ok(path)
}

/// The error for a dead mount of ours.
fn died(name: &str, path: &Path) -> Error {
    Error::invalid(
        format!("{name} {}: the process of an earlier mount has died", shown(path)),
        "free it with `halocline umount` first; what was written is recovered by the next mount",
    )
}

/// A directory that is not a dead mount.
fn free_mountpoint(mountpoint: &Path) -> Result<PathBuf> {
    let died = || died("mount point", mountpoint);
    if mount_lookup::dead_mount(mountpoint)?.is_some() {
        return Err(died());
    }
    match directory("mount point", mountpoint) {
        Ok(path) => Ok(path),
        // It may be dying right now.
        Err(_) if mount_lookup::dead_mount(mountpoint)?.is_some() => Err(died()),
        Err(error) => Err(error),
    }
}

fn check_alone(path: &Path) -> Result<()> {
    if is_mountpoint(path).unwrap_or(false) {
        return Err(Error::invalid(
            format!("mount point {}: something is mounted here already", shown(path)),
            "unmount it first, or choose another directory",
        ));
    }
    Ok(())
}

fn check_empty(path: &Path, remedy: &str) -> Result<()> {
    let Some(name) = first_name(path)? else { return Ok(()) };
    Err(Error::invalid(
        format!(
            "mount point {} is not empty: the mount would hide what is there ({})",
            shown(path),
            shown(Path::new(&name))
        ),
        remedy,
    ))
}

/// Checks the device used for mounting, and what this process may use.
pub(crate) fn process_and_device() -> Result<()> {
    inherited::check_limits()?;
    fuse_device()
}

/// Checks the device used for mounting.
pub(crate) fn fuse_device() -> Result<()> {
    let device = Path::new("/dev/fuse");
    match fs::OpenOptions::new().read(true).write(true).open(device) {
        Ok(opened) if is_fuse(&opened)? => Ok(()),
        Ok(_) => Err(Error::invalid(
            "/dev/fuse is not the FUSE device",
            "as root: rm /dev/fuse && mknod -m 666 /dev/fuse c 10 229, or give the container --device /dev/fuse",
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Error::invalid(
            "/dev/fuse does not exist",
            "load the module (modprobe fuse), or give the container --device /dev/fuse",
        )),
        Err(error) => Err(Error::invalid(
            format!("/dev/fuse cannot be opened: {error}"),
            "as root: chmod 666 /dev/fuse (the usual setting), or run as root",
        )),
    }
}

/// Whether an open file is the character device 10:229 (`misc`, `FUSE_MINOR` of the kernel).
fn is_fuse(file: &fs::File) -> io::Result<bool> {
    let found = file.metadata()?;
    let number = (rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev()));
    Ok(found.file_type().is_char_device() && number == (10, 229))
}

/// Whether the mount helper lets others use an ordinary user's mount, according to `/etc/fuse.conf`.
pub(crate) fn others_may_enter() -> bool {
    let conf = Path::new("/etc/fuse.conf");
    let text = bounded::read_to_string(conf, bounded::SMALL_FILE_BYTES_MAX).unwrap_or_default();
    rustix::process::geteuid().is_root()
        || text.lines().any(|line| line.trim() == "user_allow_other")
}

/// Refuses `allow_other` if the mount helper would.
pub(crate) fn allow_other(config: &Config, may_enter: bool) -> Result<()> {
    if !config.allow_other || may_enter {
        return Ok(());
    }
    Err(Error::invalid(
        "--allow-other: /etc/fuse.conf does not let ordinary users do that",
        "add the line user_allow_other to it, as root, or mount without --allow-other",
    ))
}

/// Checks that a file can be written where a result of this kind is to go, so that no job runs for one that cannot be written,
/// and that none of another kind is replaced.
pub(crate) fn report_file(path: &Path, kind: ResultKind) -> Result<PathBuf> {
    let path = std::path::absolute(path)?;
    let parent = path.parent().unwrap_or(Path::new("/"));
    directory("directory of the file to be written", parent)?;
    if path.is_dir() {
        return Err(Error::invalid(
            format!("{}, which is to be written, is a directory", shown(&path)),
            "name a file in it",
        ));
    }
    output::check(&path).map_err(|error| {
        let remedy =
            error::remedy(&error).unwrap_or("name another file, or correct the permissions");
        Error::invalid(format!("{}: it cannot be written: {error}", shown(&path)), remedy)
    })?;
    replaceable::check(&path, kind)?;
    Ok(path)
}

/// Refuses to write the result of `inputs` to `out` if that is one of them.
pub(crate) fn no_input(out: &Path, inputs: &[&Path]) -> Result<()> {
    let known = |path: &Path| {
        let found = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
        Some((found.dev(), found.ino()))
    };
    let Some(own) = known(out) else { return Ok(()) };
    match inputs.iter().find(|input| known(input) == Some(own)) {
        Some(_) => Err(Error::invalid(
            format!("{} is what is read, and would be replaced", shown(out)),
            "name another file to be written",
        )),
        None => Ok(()),
    }
}

/// Refuses to write two results to one file: the later would replace the earlier.
pub(crate) fn different_outputs(one: &Path, other: &Path) -> Result<()> {
    // What is no file, such as /dev/null, takes both.
    let place = |path: &Path| {
        if let Ok(real) = fs::canonicalize(path) {
            return real.is_file().then_some(real);
        }
        let path = std::path::absolute(path).ok()?;
        Some(fs::canonicalize(path.parent()?).ok()?.join(path.file_name()?))
    };
    let first = place(one);
    if first.is_none() || first != place(other) {
        return Ok(());
    }
    Err(Error::invalid(
        format!("{} would be written twice, and the first be lost", shown(one)),
        "name another file for one of them",
    ))
}

fn shown(path: &Path) -> std::path::Display<'_> {
    path.display()
}

fn directory(name: &str, path: &Path) -> Result<PathBuf> {
    let complain = |what: String, remedy: &str| {
        Err(Error::invalid(format!("{name} {}: {what}", shown(path)), remedy))
    };
    mount_lookup::check_answers(path)?;
    let real = match fs::canonicalize(path) {
        Ok(real) => real,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return complain("there is no such directory".into(), "create it, or correct the path");
        }
        Err(error) => return complain(error.to_string(), "correct the path or its permissions"),
    };
    let failed = |error: io::Error| {
        let remedy = error::remedy(&error).unwrap_or("correct its owner or permissions");
        complain(format!("cannot be read: {error}"), remedy)
    };
    match fs::metadata(&real) {
        Ok(found) if !found.is_dir() => {
            return complain("this is not a directory".into(), "name a directory");
        }
        Ok(_) => {}
        Err(error) => return failed(error),
    }
    if let Err(error) = fs::read_dir(&real) {
        return failed(error);
    }
    Ok(real)
}

/// Checks that files can be created in a directory; with `may_be_full`, it is acceptable that its file system has no
/// space or inode left.
fn writable_unless_full(name: &str, path: &Path, may_be_full: bool) -> Result<()> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    // An unnamed file tests most of it; not every file system supports them.
    let tried = match open(path, flags, FileMode::RUSR | FileMode::WUSR) {
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOTDIR | Errno::NOENT) => {
            accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS)
        }
        tried => tried.map(drop),
    };
    let tried = tried.or_else(|errno| match errno {
        Errno::NOSPC | Errno::DQUOT if may_be_full => Ok(()),
        _ => Err(errno),
    });
    tried.map_err(|errno| {
        let no_inodes = || statvfs(path).is_ok_and(|space| space.f_favail == 0);
        let remedy = match errno {
            Errno::ROFS => "mount its file system for writing",
            Errno::NOSPC if no_inodes() => "it has no free inodes (df -i): remove some files",
            Errno::NOSPC => "free some space",
            Errno::DQUOT => "a quota on it is used up: raise it, or remove some files",
            _ => error::remedy(&errno.into()).unwrap_or("correct its owner or permissions"),
        };
        Error::invalid(
            format!("{name} {} cannot be written: {}", shown(path), io::Error::from(errno)),
            remedy,
        )
    })
}

/// Neither side may be inside the other, by name or by identity.
fn apart(sides: &Sides) -> Result<()> {
    let Sides { origin, cache } = sides;
    let identity = |path: &Path| fs::metadata(path).map(|meta| (meta.dev(), meta.ino()));
    let same = origin == cache || identity(origin)? == identity(cache)?;
    let problem = if same {
        format!("origin and cache are the same directory {}", shown(origin))
    } else if cache.starts_with(origin) {
        format!("cache {} lies inside the origin {}", shown(cache), shown(origin))
    } else if origin.starts_with(cache) {
        format!("origin {} lies inside the cache {}", shown(origin), shown(cache))
    } else {
        return Ok(());
    };
    Err(Error::invalid(problem, "give the cache a directory of its own, on the SSD"))
}

/// The cache's file system must have free space, and be at least as large as the limit.
fn room(cache: &Path, config: &Config) -> Result<()> {
    let (total, left) = space_of(cache)?;
    // A cache that itself fills the disk may continue.
    if left < ROOM_BYTES_MIN && first_name(cache)?.is_none() {
        return Err(Error::invalid(
            format!("cache {}: its file system has only {} left", shown(cache), text::bytes(left)),
            format!("free at least {}, or choose another", text::bytes(ROOM_BYTES_MIN)),
        ));
    }
    config.cache_bytes(total)?;
    within_total(&config.named("size"), config.size, cache, total)
}

/// Total and free bytes of the file system of a directory.
fn space_of(dir: &Path) -> Result<(u64, u64)> {
    let space = statvfs(dir).map_err(|errno| Error::at(dir, "ask for space in")(errno.into()))?;
    Ok((
        space.f_blocks.saturating_mul(space.f_frsize),
        space.f_bavail.saturating_mul(space.f_frsize),
    ))
}

/// A limit of more than the total would never be reached.
fn within_total(named: &str, limit: CacheSize, dir: &Path, total: u64) -> Result<()> {
    match limit {
        CacheSize::Bytes(size) if size > total => Err(Error::invalid(
            format!(
                "{named} {} is more than the file system of {} has ({})",
                text::bytes(size),
                shown(dir),
                text::bytes(total)
            ),
            "give less, or a share such as 80%",
        )),
        _ => Ok(()),
    }
}

/// A name in the directory; none if it has but what a new file system has.
fn first_name(path: &Path) -> Result<Option<OsString>> {
    let dir = fs::File::open(path).map_err(Error::at(path, "list"))?;
    for entry in fs::read_dir(path).map_err(Error::at(path, "list"))? {
        let name = entry.map_err(Error::at(path, "list"))?.file_name();
        if !lost_and_found::is_it(&dir, &name) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: an ordinary user's mount created a cache first, and ended with status 1.
    #[test]
    fn what_the_helper_would_refuse_is_refused_before() {
        let config = Config { allow_other: true, ..Config::default() };
        let error = allow_other(&config, false).unwrap_err().to_string();
        assert!(error.contains("--allow-other") && error.contains("user_allow_other"), "{error}");
        allow_other(&config, true).unwrap();
        allow_other(&Config::default(), false).unwrap();
    }

    /// Regression: a file, or another device, with that name made a mount fail without a remedy.
    #[test]
    fn another_device_is_not_taken_for_fuse() {
        assert!(!is_fuse(&fs::File::open("/dev/null").unwrap()).unwrap());
        assert!(!is_fuse(&tempfile::tempfile().unwrap()).unwrap());
        if let Ok(fuse) = fs::File::open("/dev/fuse") {
            assert!(is_fuse(&fuse).unwrap());
        }
    }
}
