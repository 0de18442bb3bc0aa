//! A process that holds a user and a mount namespace, and mounts and unmounts there on demand.
//!
//! What must hold: it ends with the process that started it, however that ends, because the socket between them closes;
//! no signal meant for a job's processes ends it earlier.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use halocline_api::control::descriptors::receive as received;
use halocline_os::error::{Error, Result};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use rustix::process::{Pid, WaitOptions, setsid, waitpid};

use crate::session::mount_point::MountPoint;
use crate::session::private_namespace;

/// Requests to the holder.
const BIND: u8 = b'b';
const UNMOUNT_UNUSED: u8 = b'u';
const DETACH: u8 = b'd';
const COPY: u8 = b'c';
/// First byte of its answers; for a failure, its text follows.
const DONE: u8 = b'+';
const IN_USE: u8 = b'=';
const FAILED: u8 = b'-';
/// Longest answer in bytes.
const ANSWER_MAX: usize = 4096;

/// The holder, as seen by the process that started it. Dropping this ends it.
#[derive(Debug)]
pub(super) struct NamespaceHolder {
    socket: Option<OwnedFd>,
    process: Pid,
    user: OwnedFd,
    mounts: OwnedFd,
}

impl NamespaceHolder {
    /// Starts the holder of the mount on `outside`, which is to be visible at `over`. The process must have one thread.
    pub(super) fn start(outside: &Path, over: &Path) -> Result<Self> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        // SAFETY: there is no other thread that could hold a lock, so the child may do anything a process may; it
        // leaves by `_exit` and never returns into its copy of the caller.
        let child = unsafe { libc::fork() };
        if child == 0 {
            drop(ours);
            let kept = catch_unwind(AssertUnwindSafe(|| keep(&theirs, outside, over)));
            // SAFETY: ends the process at once, so that no destructor of the parent's values runs twice.
            unsafe { libc::_exit(i32::from(kept.is_err())) };
        }
        drop(theirs);
        let process = Pid::from_raw(child).ok_or_else(io::Error::last_os_error)?;
        answer(&ours)?;
        let namespace = |kind: &str| {
            let path = format!("/proc/{process}/ns/{kind}");
            File::open(&path).map(OwnedFd::from).map_err(Error::at(path, "open"))
        };
        let (user, mounts) = (namespace("user")?, namespace("mnt")?);
        Ok(Self { socket: Some(ours), process, user, mounts })
    }

    pub(super) fn namespaces(&self) -> (&OwnedFd, &OwnedFd) {
        (&self.user, &self.mounts)
    }

    pub(super) fn bind(&self) -> Result<()> {
        self.ask(BIND).map(drop)
    }

    /// See [`super::PrivateView::unmount`].
    pub(super) fn unmount(&self, force: bool) -> Result<bool> {
        match self.ask(if force { DETACH } else { UNMOUNT_UNUSED }) {
            // The holder was killed. The mount ends with the last process in its namespaces.
            Err(error) if matches!(error.errno(), libc::EPIPE | libc::ECONNRESET) => Ok(true),
            other => other,
        }
    }

    /// A copy of the mount that is not attached anywhere yet.
    pub(super) fn copy(&self) -> Result<OwnedFd> {
        self.ask(COPY)?;
        let socket = self.socket.as_ref().expect("taken by the drop only");
        let lost = || io::Error::from(io::ErrorKind::BrokenPipe).into();
        received(socket)?.ok_or_else(lost)
    }

    fn ask(&self, what: u8) -> Result<bool> {
        let socket = self.socket.as_ref().expect("taken by the drop only");
        send(socket, &[what], SendFlags::NOSIGNAL)?;
        answer(socket)
    }
}

impl Drop for NamespaceHolder {
    fn drop(&mut self) {
        drop(self.socket.take());
        // The closed socket ends it; no zombie may be left.
        let _gone = waitpid(Some(self.process), WaitOptions::empty());
    }
}

/// Waits for the holder's answer; `false` if the mount is in use.
fn answer(socket: &OwnedFd) -> Result<bool> {
    let mut text = [0; ANSWER_MAX];
    let (len, _) = recv(socket, &mut text[..], RecvFlags::empty())?;
    match text[..len] {
        [DONE, ..] => Ok(true),
        [IN_USE, ..] => Ok(false),
        [FAILED, ref why @ ..] => {
            let message = String::from_utf8_lossy(why).into_owned();
            Err(Error::Refused { message, errno: libc::EPERM })
        }
        _ => Err(rustix::io::Errno::PIPE.into()),
    }
}

/// The main loop of the holder.
fn keep(socket: &OwnedFd, outside: &Path, over: &Path) {
    leave_the_job();
    close_all_but(socket.as_raw_fd());
    let begun = private_namespace();
    let failed = begun.is_err();
    tell(socket.as_fd(), begun.map(|()| true));
    let mut place = None;
    let mut what = [0];
    while !failed && recv(socket, &mut what, RecvFlags::empty()).is_ok_and(|(len, _)| len == 1) {
        if what[0] == COPY {
            let copied = place.as_ref().map(MountPoint::copy);
            let copied = copied.unwrap_or_else(|| Err(Errno::NOTCONN.into()));
            pass(socket.as_fd(), copied);
            continue;
        }
        let done = match what[0] {
            BIND => bind(outside, over).map(|bound| {
                place = Some(bound);
                true
            }),
            force => place.as_ref().map_or(Ok(true), |place| match force {
                DETACH => place.unmount(),
                _ => place.unmount_unused(),
            }),
        };
        tell(socket.as_fd(), done);
    }
}

fn bind(outside: &Path, over: &Path) -> Result<MountPoint> {
    rustix::mount::mount_bind(outside, over)
        .map_err(|errno| Error::at(over, "mount over")(errno.into()))?;
    MountPoint::of_new_mount(over)
}

fn tell(socket: BorrowedFd<'_>, done: Result<bool>) {
    let text = match done {
        Ok(true) => vec![DONE],
        Ok(false) => vec![IN_USE],
        Err(error) => [&[FAILED], error.to_string().as_bytes()].concat(),
    };
    // If the parent is gone, the next `recv` shows it.
    let _told = send(socket, &text[..text.len().min(ANSWER_MAX)], SendFlags::NOSIGNAL);
}

/// Sends the answer, followed by a descriptor.
fn pass(socket: BorrowedFd<'_>, copied: Result<OwnedFd>) {
    match copied {
        Ok(copy) => {
            tell(socket, Ok(true));
            let _sent = halocline_api::control::descriptors::send(socket, Some(copy.as_fd()));
        }
        Err(error) => tell(socket, Err(error)),
    }
}

/// Closes what the parent had open: locks and pipes are for the parent to hold.
fn close_all_but(kept: RawFd) {
    let kept = kept.cast_unsigned();
    // SAFETY: the closed descriptors belong to copies of the parent's values that this process never uses: it leaves by
    // `_exit`.
    unsafe {
        libc::syscall(libc::SYS_close_range, 3_u32, kept.saturating_sub(1), 0_u32);
        libc::syscall(libc::SYS_close_range, kept + 1, u32::MAX, 0_u32);
    }
}

/// Signals to the processes of a terminal or job are not meant for the holder, and no reader of a pipe may wait for it.
fn leave_the_job() {
    let _session = setsid();
    // SAFETY: both calls get a set from this frame; blocked signals run no handler.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
    }
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        let _closed = rustix::stdio::dup2_stdin(&null);
        let _closed = rustix::stdio::dup2_stdout(&null);
        let _closed = rustix::stdio::dup2_stderr(&null);
    }
}
