//! Finds the owner of a mount without accessing the mount.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::super::client;
use super::super::mount::MountLine;
use super::super::mount_access::MountAccess;
use super::super::{Client, Request, SOCKET_NAME};
use super::ClaimReport;
use super::claimant::{Claimant, Claimants, read_answer};
use super::names::{self, Entry, Kind};

/// How long a mount's owner may take to identify itself: long enough for a busy machine.
const OWNER_TIMEOUT: Duration = Duration::from_secs(10);

/// The process that serves a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::control) struct Owner {
    pub(in crate::control) pid: u32,
    /// Its cache, or what identifies the user instead; `None` if the process does not answer.
    pub(in crate::control) cache: Option<PathBuf>,
}

/// The most processes that are asked about one mount: its owner, and earlier ones that are ending or stopped. Only
/// processes of the mount's own user count, so a user who makes more of them hides only their own mount.
const ASKED_MAX: usize = 64;

/// The owner of the mount `line`, found without accessing it; `None` if no process claims it.
///
/// The next mount may reuse a device number while the process of an earlier one, which is ending or stopped, still
/// claims it: so a claim is trusted at once only if a single process names the mount point. Otherwise processes are
/// asked whether they are ending. Their sockets may be on something that hangs, by accident or by their user's intent:
/// `access` finds that out first.
pub(in crate::control) fn owner_of(line: &MountLine, access: &dyn MountAccess) -> Option<Owner> {
    let goes_on = |named: &AnsweringClaimant| {
        let socket = named.told.cache.join(SOCKET_NAME);
        // Answered at once or not at all: no second connection is made.
        Client::over(access.connect(&socket), &socket, named.uid, client::connect)
            .and_then(|mut client| client.call(&Request::Ending {}, |_| {}))
            .is_ok_and(|ends: bool| !ends)
    };
    let mut silent = claimants_of(line);
    let mut elsewhere = Vec::new();
    let deadline = Instant::now() + OWNER_TIMEOUT;
    let alone = silent.len() == 1;
    while !silent.is_empty() && wait_for_one(&silent, deadline) {
        for ClaimantConnection { pid, uid, stream } in
            silent.extract_if(.., |asked| is_ready(&asked.stream))
        {
            // A process that ended meanwhile does not answer.
            let Some(told) = read_answer(stream, deadline) else { continue };
            let named = AnsweringClaimant { pid, uid, told };
            if named.told.dir != line.point {
                elsewhere.push(named);
            } else if alone || goes_on(&named) {
                return Some(named.owner());
            }
        }
    }
    let found = elsewhere.into_iter().find(goes_on).map(AnsweringClaimant::owner);
    found.or_else(|| silent.pop().map(|asked| Owner { pid: asked.pid, cache: None }))
}

/// A process that claims the mount, and where it answers.
struct ClaimantConnection {
    pid: u32,
    uid: u32,
    stream: UnixStream,
}

/// A process that answered.
struct AnsweringClaimant {
    pid: u32,
    uid: u32,
    told: ClaimReport,
}

impl AnsweringClaimant {
    fn owner(self) -> Owner {
        Owner { pid: self.pid, cache: Some(self.told.cache) }
    }
}

/// The processes that claim a mount. Anyone may claim one; the kernel knows who the mount's user is, and others are not
/// waited for.
fn claimants_of(line: &MountLine) -> Vec<ClaimantConnection> {
    let entries = names::all().unwrap_or_default();
    let of_it = |entry: &Entry| entry.kind == Kind::Mount && entry.id == line.device;
    let mut claimants = Claimants::of(entries.into_iter().filter(of_it).map(|entry| (entry, ())));
    let mut asked = Vec::new();
    while asked.len() < ASKED_MAX {
        // A user who fills queues must not delay anyone once another process was reached.
        let next = if asked.is_empty() { claimants.next() } else { claimants.next_at_once() };
        let Some((_, (), Claimant { peer, stream })) = next else { break };
        let uid = peer.uid.as_raw();
        if line.user == Some(uid) {
            let pid = peer.pid.as_raw_nonzero().get().unsigned_abs();
            asked.push(ClaimantConnection { pid, uid, stream });
        }
    }
    asked
}

/// Waits until one of them has something to read, or has ended; `false` at the deadline.
fn wait_for_one(asked: &[ClaimantConnection], deadline: Instant) -> bool {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).expect("seconds");
        let fds = asked.iter().map(|asked| PollFd::new(&asked.stream, PollFlags::IN));
        match poll(&mut fds.collect::<Vec<_>>(), Some(&left)) {
            Ok(ready) => return ready > 0,
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

fn is_ready(stream: &UnixStream) -> bool {
    let now = Timespec::default();
    poll(&mut [PollFd::new(stream, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
}
