//! `halocline umount`: flushes, unmounts, and reports success only after that.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use halocline_api::control::mount::copies_of;
use halocline_api::control::{AnyStatus, MoveReport, Request};
use halocline_fuse::with_helper;
use halocline_os::error::Error;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::bulk::conflicts;
use crate::failure::{Failure, Outcome};
use crate::mount_lookup;
use crate::print::{self, tell};
use crate::progress::Meter;
use crate::text;

/// How long the mount process may take to end after the mount is gone.
const END_TIMEOUT: Duration = Duration::from_mins(1);
/// The same where it may wait for what does not answer, or for programs.
const END_TIMEOUT_FORCED: Duration = Duration::from_secs(10);

/// Flush everything to the origin, then unmount
#[derive(Debug, Args)]
pub(crate) struct UmountArgs {
    /// The mount point, or the cache directory or root of the tiers of a running mount
    mountpoint: PathBuf,
    /// Detach even while programs use the mount, or although not everything can be flushed
    #[arg(long)]
    force: bool,
    /// Leave dirty data on the cache; it is flushed after the next mount
    #[arg(long)]
    keep_dirty: bool,
}

/// Executes the command.
pub(crate) fn execute(args: &UmountArgs) -> Outcome {
    let mounted = match mount_lookup::find(&args.mountpoint) {
        Ok(mounted) => mounted,
        Err(error) if cannot_be_asked(&error) => {
            let mountpoint = mount_lookup::mountpoint_at_or_over(&args.mountpoint);
            let mountpoint = mountpoint.ok_or_else(|| hangs(&error))?;
            return detach_unasked(args.force, &mountpoint, &error);
        }
        Err(error) => {
            let dead = mount_lookup::dead_mount(&args.mountpoint)?;
            let dead = dead.ok_or_else(|| mount_lookup::not_found(error))?;
            return detach_dead(&dead);
        }
    };
    if !mounted.inside.as_os_str().is_empty() {
        let (path, mountpoint) = (args.mountpoint.display(), mounted.mountpoint.display());
        return Err(Failure::refused(format!(
            "{path} is inside the mount at {mountpoint}; unmount that"
        )));
    }
    let mut client = match mount_lookup::connect(&mounted) {
        // The mount is alive, according to the look-up.
        Err(error)
            if !mounted.mountpoint.as_os_str().is_empty() && error.errno() != libc::EACCES =>
        {
            return detach_unasked(args.force, &mounted.mountpoint, &error);
        }
        client => client?,
    };
    let AnyStatus { status, tier } = client.call(&Request::Status {}, |_| {})?;
    let process = process(status.pid);
    tell_copies(&mounted.mountpoint);
    let request = Request::Unmount { force: args.force, keep_dirty: args.keep_dirty };
    let mut meter = Meter::new("flushing", false);
    let done: MoveReport = client.call(&request, |now| meter.tell(&now))?;
    drop(meter);
    let timeout = if args.force || done.left_bytes > 0 { END_TIMEOUT_FORCED } else { END_TIMEOUT };
    let ended = process.map_or(Ok(()), |process| wait_for_end(&process, status.pid, timeout));
    match tier {
        // Its files are where they belong: there is nothing to flush.
        Some(_) => print::lines(&format!("unmounted{}", text::skipped(&done))),
        None => print::lines(&format!("unmounted; {}", text::moved("flushed", &done, false))),
    }
    if done.left_bytes > 0 {
        if let Err(lives) = &ended {
            tell!("halocline: {lives}");
        }
        return Err(Failure::mount_again(done.left_bytes, &status.cache));
    }
    if let Some(why) = &done.not_in_order {
        return Err(Failure::not_in_order(why, &status.cache));
    }
    ended.map_err(Failure::failed)?;
    conflicts(&done).map_or(Ok(ExitCode::SUCCESS), Err)
}

/// Reports where else the mount will end.
fn tell_copies(mountpoint: &Path) {
    for copy in copies_of(mountpoint).unwrap_or_default() {
        tell!("halocline: the mount is also at {copy}; it ends there, too");
    }
}

/// A handle to the mount process that a reused process id cannot confuse.
fn process(pid: u32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Waits until the mount process has released the cache, so that it can be mounted again; otherwise returns why it has
/// not.
fn wait_for_end(process: &OwnedFd, pid: u32, timeout: Duration) -> Result<(), String> {
    let timeout = Timespec::try_from(timeout).ok();
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    match poll(&mut fds, timeout.as_ref()) {
        Ok(0) => Err(format!(
            "the mount is gone, but its process {pid} has not ended yet; programs may still have \
             files open, or the kernel waits for the origin"
        )),
        _ => Ok(()),
    }
}

/// Detaches the mount at `mountpoint` even if it is busy; `false` if this user may not.
pub(super) fn detach(mountpoint: &Path) -> Result<bool, Failure> {
    match rustix::mount::unmount(mountpoint, UnmountFlags::DETACH) {
        Err(Errno::PERM) => Ok(with_helper(mountpoint, &["-u", "-z"])?.status.success()),
        result => Ok(result.is_ok()),
    }
}

/// Whether an error says that the mount's process, or the directory with its control socket, hangs or is gone.
fn cannot_be_asked(error: &Error) -> bool {
    const GONE: [i32; 5] =
        [libc::ETIMEDOUT, libc::ENOTCONN, libc::ECONNABORTED, libc::EIO, libc::ESTALE];
    GONE.contains(&error.errno())
}

/// What can be done about a mount that cannot be asked.
fn hangs(error: &Error) -> Failure {
    Failure::failed(format!("{error}; or detach the mount point with `halocline umount --force`"))
}

/// With `force`, detaches a mount that does not answer: nothing is flushed, and the process ends when it can.
fn detach_unasked(force: bool, mountpoint: &Path, error: &Error) -> Outcome {
    if !force {
        return Err(hangs(error));
    }
    let path = text::path(mountpoint);
    for copy in copies_of(mountpoint).unwrap_or_default() {
        tell!(
            "halocline: the mount is also at {copy}: its process ends when it is unmounted there, too"
        );
    }
    if mountpoint.as_os_str().is_empty() || !detach(mountpoint)? {
        return Err(Failure::failed(format!(
            "{error}; {path}: it cannot be detached by this user"
        )));
    }
    Err(Failure::dirty_left(format!(
        "{error}; {path} was detached, and nothing was flushed: its process ends when it can, and what it had to write is \
         there or on the cache then"
    )))
}

/// Detaches the mount point of a process that has died.
fn detach_dead(mountpoint: &Path) -> Outcome {
    if !detach(mountpoint)? {
        let path = mountpoint.display();
        return Err(Failure::failed(format!(
            "{path}: cannot detach it; try as the user who mounted"
        )));
    }
    Err(Failure::dirty_left(format!(
        "{}: the mount process had ended before; the mount point is free now. Whether all was flushed is not known: \
         mount again as before, and what was written is recovered",
        mountpoint.display()
    )))
}
