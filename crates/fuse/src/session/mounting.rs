//! `mount(2)`, or `fusermount3` if this user may not call that.

use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use fuser::{Config, MountOption, Session, SessionACL};
use halocline_os::error::{Error, Result};
use halocline_vfs::Engine;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{getegid, geteuid, getpriority_process, setpriority_process};

use super::MountOptions;
use super::fusermount::{SUBTYPE, escaped, remedy};
use super::mount_point::MountPoint;
use super::unmounting::OwnMount;
use crate::transport::device::Device;

const DEVICE: &str = "/dev/fuse";
/// Read-ahead per file, in KiB: the largest request.
const READ_AHEAD_KIB: &str = "1024";

/// Nice value of the event-loop threads.
const PRIORITY: i32 = -10;

/// Mounts, and performs the handshake with the kernel.
pub(super) fn mount<E: Engine>(
    served: Device<E>,
    mountpoint: &Path,
    options: &MountOptions,
    origin: &libc::statvfs64,
) -> Result<(Session<Device<E>>, OwnMount)> {
    // The kernel excludes other users unless `allow_other` is given; the library need not.
    let mut config = Config::default();
    config.acl = SessionACL::All;
    config.n_threads = Some(options.threads.max(1));
    config.clone_fd = true;
    if let Some(view) = &options.view {
        let session = view
            .take_device()
            .and_then(|device| Session::from_fd(served, device, SessionACL::All, config))
            .map_err(Error::at(mountpoint, "start the FUSE session on"))?;
        return Ok((session, OwnMount::InView(Arc::clone(view))));
    }
    let undo = || {
        let _undone = rustix::mount::unmount(mountpoint, UnmountFlags::DETACH);
    };
    let session = match mount_directly(mountpoint, options, origin) {
        Ok(device) => Session::from_fd(served, device, SessionACL::All, config).map_err(|source| {
            undo();
            Error::at(mountpoint, "start the FUSE session on")(source)
        }),
        Err(error) if error.errno() == libc::EPERM && !geteuid().is_root() => {
            mount_with_helper(served, mountpoint, options, config)
        }
        Err(error) => Err(error),
    }?;
    let point = MountPoint::of_new_mount(mountpoint).inspect_err(|_| undo())?;
    Ok((session, OwnMount::Here(point)))
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
    for (flag, set) in [
        (MountFlags::RDONLY, options.read_only),
        (MountFlags::NOSUID, !options.allow_suid),
        (MountFlags::NODEV, !options.allow_dev),
    ] {
        flags.set(flag, flags.contains(flag) || set);
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

/// The origin's own restrictions apply to the mount, too.
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
    served: Device<E>,
    mountpoint: &Path,
    options: &MountOptions,
    mut config: Config,
) -> Result<Session<Device<E>>> {
    config.mount_options = vec![
        MountOption::DefaultPermissions,
        MountOption::FSName(escaped(&options.fsname)),
        MountOption::Subtype(SUBTYPE.into()),
    ];
    if options.read_only {
        config.mount_options.push(MountOption::RO);
    }
    if !options.allow_other {
        config.acl = SessionACL::Owner;
    }
    Session::new(served, mountpoint, &config).map_err(|source| {
        let said = said(&source);
        let what = format!("{}: fusermount3 could not mount: {said}", mountpoint.display());
        // If a helper ran, it said why; otherwise none was found.
        if source.raw_os_error().is_some() {
            return Error::invalid(
                what,
                "install fuse3, or use a private mount (halocline run), which needs no helper",
            );
        }
        Error::invalid(what, remedy(&said))
    })
}

/// The helper's output, for use within a sentence.
fn said(source: &io::Error) -> String {
    let text = source.to_string();
    let text = text.trim();
    text.strip_prefix("fusermount3: ").unwrap_or(text).to_owned()
}

/// Runs `spawn` so that the threads it starts have priority over ordinary ones, if we may do that: every program on the
/// mount waits for them, and a busy machine must not make them wait in turn.
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

/// Raises the read-ahead of the mount with this device to the largest request. Only root may; without it, sequential
/// reads arrive in requests of the kernel's default of 128 KiB. The mount itself is not accessed: a process that waits
/// for its own mount cannot be killed.
pub(super) fn widen_read_ahead((major, minor): (u64, u64)) {
    let setting = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    if let Err(error) = fs::write(setting, READ_AHEAD_KIB) {
        tracing::debug!(%error, "read-ahead stays at the kernel's default");
    }
}
