//! `mount(2)` and its relatives.

use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use fuser::{Config, MountOption, Session, SessionACL};
use halocline_core::engine::Engine;
use halocline_core::error::{Error, Result};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{getegid, geteuid, getpriority_process, setpriority_process};

use super::MountOptions;
use crate::front::Front;

const DEVICE: &str = "/dev/fuse";
/// What `mount` and `df` show as the type.
const SUBTYPE: &str = "halocline";
/// Read-ahead per file, in KiB: the largest request.
const READ_AHEAD_KIB: &str = "1024";

/// Nice value of the event-loop threads.
const PRIORITY: i32 = -10;

/// How often and how long a busy mount is tried before it is detached.
const TRIES: u32 = 10;
const BETWEEN_TRIES: Duration = Duration::from_millis(50);

/// Mounts and shakes hands with the kernel.
pub(super) fn mount<E: Engine>(
    front: Front<E>,
    mountpoint: &Path,
    options: &MountOptions,
    origin: &libc::statvfs64,
) -> Result<Session<Front<E>>> {
    // The kernel keeps strangers out unless `allow_other` is given; the library needs not.
    let mut config = Config::default();
    config.acl = SessionACL::All;
    config.n_threads = Some(options.threads.max(1));
    config.clone_fd = true;
    match mount_directly(mountpoint, options, origin) {
        Ok(device) => Session::from_fd(front, device, SessionACL::All, config).map_err(|source| {
            let _undone = rustix::mount::unmount(mountpoint, UnmountFlags::DETACH);
            Error::at(mountpoint, "start the FUSE session on")(source)
        }),
        Err(error) if error.errno() == libc::EPERM && !geteuid().is_root() => {
            mount_with_helper(front, mountpoint, options, config)
        }
        Err(error) => Err(error),
    }
}

fn mount_directly(
    mountpoint: &Path,
    options: &MountOptions,
    origin: &libc::statvfs64,
) -> Result<OwnedFd> {
    let device = open_device()?;
    let mode = fs::metadata(mountpoint).map_err(Error::at(mountpoint, "look at"))?.mode();
    let mut data = format!(
        "fd={},rootmode={:o},user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        mode & libc::S_IFMT,
        geteuid().as_raw(),
        getegid().as_raw(),
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let data = CString::new(data).expect("no NUL in numbers and words");
    let mut flags = inherited_flags(origin);
    if options.read_only {
        flags |= MountFlags::RDONLY;
    }
    let kind = format!("fuse.{SUBTYPE}");
    rustix::mount::mount(options.fsname.as_str(), mountpoint, kind, flags, data.as_c_str())
        .map_err(|errno| Error::at(mountpoint, "mount on")(errno.into()))?;
    Ok(device)
}

fn open_device() -> Result<OwnedFd> {
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_CLOEXEC)
        .open(DEVICE)
        .map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => Error::invalid(
                format!("{DEVICE} does not exist"),
                "load the kernel module: modprobe fuse",
            ),
            io::ErrorKind::PermissionDenied => Error::invalid(
                format!("{DEVICE} may not be opened by this user"),
                "as root: chmod 666 /dev/fuse (the usual setting)",
            ),
            _ => Error::at(DEVICE, "open")(source),
        })?;
    Ok(device.into())
}

/// The origin's own restrictions hold on the mount, too.
fn inherited_flags(origin: &libc::statvfs64) -> MountFlags {
    let mut flags = MountFlags::empty();
    for (bit, flag) in [
        (libc::ST_NOSUID, MountFlags::NOSUID),
        (libc::ST_NODEV, MountFlags::NODEV),
        (libc::ST_NOEXEC, MountFlags::NOEXEC),
        (libc::ST_RDONLY, MountFlags::RDONLY),
    ] {
        if origin.f_flag & bit != 0 {
            flags |= flag;
        }
    }
    flags
}

fn mount_with_helper<E: Engine>(
    front: Front<E>,
    mountpoint: &Path,
    options: &MountOptions,
    mut config: Config,
) -> Result<Session<Front<E>>> {
    config.mount_options = vec![
        MountOption::DefaultPermissions,
        MountOption::FSName(options.fsname.clone()),
        MountOption::Subtype(SUBTYPE.into()),
    ];
    if options.read_only {
        config.mount_options.push(MountOption::RO);
    }
    if !options.allow_other {
        config.acl = SessionACL::Owner;
    }
    Session::new(front, mountpoint, &config).map_err(|source| {
        Error::invalid(
            format!("{}: fusermount3 could not mount: {source}", mountpoint.display()),
            "install fuse3, or use a private mount (halocline run), which needs no helper",
        )
    })
}

/// Unmounts; `false` if it was busy and is detached only. A mount that is gone already is fine.
pub(super) fn unmount(mountpoint: &Path) -> Result<bool> {
    if unmount_unused(mountpoint)? {
        return Ok(true);
    }
    match rustix::mount::unmount(mountpoint, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH) {
        Ok(()) => Ok(false),
        Err(Errno::INVAL | Errno::NOENT) => Ok(true),
        Err(Errno::PERM) => {
            let detached = helper(mountpoint, &["-u", "-z"])?;
            if detached.status.success() {
                return Ok(false);
            }
            let said = String::from_utf8_lossy(&detached.stderr);
            Err(Error::invalid(
                format!("{}: {}", mountpoint.display(), said.trim()),
                "close what uses the mount and run: fusermount3 -u MOUNTPOINT",
            ))
        }
        Err(errno) => Err(Error::at(mountpoint, "detach")(errno.into())),
    }
}

/// Unmounts unless the mount is in use; `false` if it is, and then nothing has changed. A mount
/// that is gone already is fine.
pub(super) fn unmount_unused(mountpoint: &Path) -> Result<bool> {
    for attempt in 1..=TRIES {
        match rustix::mount::unmount(mountpoint, UnmountFlags::NOFOLLOW) {
            Ok(()) | Err(Errno::INVAL | Errno::NOENT) => return Ok(true),
            Err(Errno::BUSY) if attempt < TRIES => thread::sleep(BETWEEN_TRIES),
            Err(Errno::BUSY) => {}
            Err(Errno::PERM) => return Ok(helper(mountpoint, &["-u", "-q"])?.status.success()),
            Err(errno) => return Err(Error::at(mountpoint, "unmount")(errno.into())),
        }
    }
    Ok(false)
}

/// What an ordinary user outside a user namespace needs for unmounting.
fn helper(mountpoint: &Path, options: &[&str]) -> Result<std::process::Output> {
    Command::new("fusermount3")
        .args(options)
        .arg("--")
        .arg(mountpoint)
        .output()
        .map_err(Error::at("fusermount3", "run"))
}

/// Runs `spawn` so that the threads it starts go before ordinary ones, where we may: every program
/// on the mount waits for them, and a busy machine must not make them wait in turn.
pub(super) fn with_priority<T>(spawn: impl FnOnce() -> T) -> T {
    // Zero means the calling thread, and new threads inherit.
    let before = getpriority_process(None).unwrap_or(0);
    let raised = before > PRIORITY && setpriority_process(None, PRIORITY).is_ok();
    let spawned = spawn();
    if raised && let Err(error) = setpriority_process(None, before) {
        tracing::debug!(%error, "the mounting thread keeps its raised priority");
    }
    spawned
}

/// Raises the mount's read-ahead to the largest request. Only root may; without it sequential
/// reads come in requests of the kernel's default of 128 KiB.
pub(super) fn widen_read_ahead(mountpoint: &Path) {
    let widened = fs::metadata(mountpoint).and_then(|metadata| {
        let device = metadata.dev();
        let (major, minor) = (libc::major(device), libc::minor(device));
        fs::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), READ_AHEAD_KIB)
    });
    if let Err(error) = widened {
        tracing::debug!(%error, "read-ahead stays at the kernel's default");
    }
}
