//! Finds the owner of a mount without accessing the mount.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::super::client;
use super::super::mount::MountLine;
use super::super::mount_access::MountAccess;
use super::super::{Client, Request, SOCKET_NAME};
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

/// The owner of the mount `line`, found without accessing it; `None` if no process claims it.
///
/// A device number is reused by the next mount while the process of an earlier one, which is ending, still reports that
/// it serves it: so a claim is trusted at once only if a single process names the mount point. Other processes are
/// asked whether they are ending: their sockets may be on something that hangs, by accident or because their user wants
/// that, which `access` finds out first.
pub(in crate::control) fn owner_of(line: &MountLine, access: &dyn MountAccess) -> Option<Owner> {
    let entries = names::all().unwrap_or_default();
    let of_it = |entry: &Entry| entry.kind == Kind::Mount && entry.id == line.device;
    let (mut silent, mut named) = (None, Vec::new());
    let deadline = Instant::now() + OWNER_TIMEOUT;
    let mut claimants = Claimants::of(entries.into_iter().filter(of_it).map(|entry| (entry, ())));
    loop {
        let nobody_yet = silent.is_none() && named.is_empty();
        // A user who fills queues must not delay anyone once an owner was reported.
        let next = if nobody_yet { claimants.next() } else { claimants.next_at_once() };
        let Some((_, (), Claimant { peer, stream })) = next else { break };
        // Anyone may claim this; the kernel knows who the mount's user is. Others are not waited for.
        let uid = peer.uid.as_raw();
        if line.user != Some(uid) {
            continue;
        }
        let told = read_answer(stream, deadline);
        let pid = peer.pid.as_raw_nonzero().get().unsigned_abs();
        match told {
            None => silent = Some(Owner { pid, cache: None }),
            Some(told) => named.push((told.dir != line.point, pid, uid, told.cache)),
        }
    }
    named.sort_by_key(|(elsewhere, ..)| *elsewhere);
    let is_certain = silent.is_none() && named.len() == 1 && !named[0].0;
    let goes_on = |uid: u32, cache: &Path| {
        let socket = cache.join(SOCKET_NAME);
        // Answered at once or not at all: no second connection is made.
        Client::over(access.connect(&socket), &socket, uid, client::connect)
            .and_then(|mut client| client.call(&Request::Ending {}, |_| {}))
            .is_ok_and(|ends: bool| !ends)
    };
    let found = named.into_iter().find(|(.., uid, cache)| is_certain || goes_on(*uid, cache));
    found.map(|(_, pid, _, cache)| Owner { pid, cache: Some(cache) }).or(silent)
}
