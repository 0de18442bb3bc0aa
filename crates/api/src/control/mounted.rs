//! Functions of a mount rather than of its engine: how it is joined, and how it ends.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use rustix::net::UCred;

use super::joining::{Joined, Member};
use super::{MoveReport, ProcessHint, ProgressSink, descriptors};
use halocline_os::error::{Error, Result};

/// Functions of the mount rather than of its engine.
pub trait Mounted: Send + Sync {
    /// How requests arrive from the kernel: `device` or `io_uring`.
    fn transport(&self) -> &'static str;
    /// The origin, if runs may join.
    fn origin(&self) -> Option<PathBuf> {
        None
    }
    /// Notes for people about the mount itself.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
    /// Processes that still use the mount although it was detached, as part of a sentence.
    fn detached(&self) -> Option<String> {
        None
    }
    /// Notes what a process says about itself.
    fn hinted(&self, _hint: &ProcessHint) {}
    /// Whether the mount is ending: it accepts no more joins, and is gone once all is flushed.
    fn is_ending(&self) -> bool {
        false
    }
    /// Admits the process `pid` as a user of the mount, with a copy of a mount that is invisible to others. `origin` is
    /// the origin as that process sees it; `None` if it sees the mount there.
    fn join(
        &self,
        _pid: u32,
        _origin: Option<(u64, u64)>,
    ) -> Result<(Joined, Option<OwnedFd>, Member)> {
        Err(Error::invalid("this mount cannot be joined", "use its mount point"))
    }
    /// Ends the mount: flushes, detaches it from the directory tree, waits until the front end is done, and returns
    /// what was flushed. After an error the mount continues as before.
    fn unmount(
        &self,
        force: bool,
        keep_dirty: bool,
        progress: ProgressSink<'_>,
    ) -> Result<MoveReport>;
}

/// The serving end: sends the copy of the mount, and returns the answer and the member.
pub(super) fn admit(
    mut stream: &UnixStream,
    peer: UCred,
    mounted: &dyn Mounted,
    origin: Option<(u64, u64)>,
) -> Result<(Joined, Member)> {
    let pid = peer.pid.as_raw_nonzero().get().unsigned_abs();
    let own = rustix::process::geteuid();
    let admitted = if peer.uid == own {
        mounted.join(pid, origin)
    } else {
        Err(Error::invalid(
            format!("the mount belongs to user {own}"),
            "run as that user, or use the mount point",
        ))
    };
    stream.flush()?;
    let copy = admitted.as_ref().ok().and_then(|(_, copy, _)| copy.as_ref().map(AsFd::as_fd));
    descriptors::send(stream, copy)?;
    let (joined, _, member) = admitted?;
    Ok((joined, member))
}
