//! Runs that join a running mount instead of starting a second engine over its origin (I8).

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::client::has_hung_up;
use super::{Client, Report, Request, descriptors, wire};
use halocline_os::error::{Error, Result};

/// What a run learns about the mount that it joined.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Joined {
    /// The mount process.
    pub pid: u32,
    /// Where the mount is visible to all; `None` if it is private to its process.
    pub mountpoint: Option<MountPoint>,
    /// The options in force, as text by key.
    pub options: BTreeMap<String, String>,
    /// What was served so far.
    pub report: Report,
}

/// A path on the wire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountPoint(#[serde(with = "wire::path")] pub PathBuf);

/// The processes that use a mount, apart from the one that serves it.
#[derive(Debug, Clone, Default)]
pub struct Members(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    pids: Vec<u32>,
    closed: bool,
}

/// A member; it leaves on drop.
#[derive(Debug)]
pub struct Member {
    members: Members,
    pid: u32,
}

impl Members {
    /// Admits a process.
    ///
    /// # Errors
    /// `ESHUTDOWN` once the mount is ending.
    pub fn admit(&self, pid: u32) -> Result<Member> {
        let mut state = self.0.lock();
        if state.closed {
            return Err(Error::from(std::io::Error::from_raw_os_error(libc::ESHUTDOWN)));
        }
        state.pids.push(pid);
        drop(state);
        Ok(Member { members: self.clone(), pid })
    }

    /// Stops accepting joins; current members stay.
    pub fn close(&self) {
        self.0.lock().closed = true;
    }

    /// The same if there are no members; otherwise returns them.
    pub fn close_if_empty(&self) -> Result<(), Vec<u32>> {
        let mut state = self.0.lock();
        if state.pids.is_empty() {
            state.closed = true;
            return Ok(());
        }
        Err(state.pids.clone())
    }

    /// Accepts joins again, because the mount continues.
    pub fn reopen(&self) {
        self.0.lock().closed = false;
    }

    /// Whether joins are no longer accepted.
    pub fn is_closed(&self) -> bool {
        self.0.lock().closed
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut state = self.members.0.lock();
        if let Some(at) = state.pids.iter().position(|pid| *pid == self.pid) {
            state.pids.remove(at);
        }
    }
}

/// Makes this process a user of the mount until `client` is dropped; `origin` as in [`Request::Join`].
///
/// # Errors
/// `ESHUTDOWN` if the mount is ending and says so, [`has_hung_up`] if it ended instead of answering, and why it takes
/// no user otherwise.
pub fn join(client: &mut Client, origin: Option<(u64, u64)>) -> Result<(Joined, Option<OwnedFd>)> {
    match client.send(&Request::Join { origin }) {
        // A rejected client is told why before it sends a request.
        Err(error) if !has_hung_up(&error) => return Err(error),
        _ => {}
    }
    let failed = |error: Error| client.failed(std::io::Error::from_raw_os_error(error.errno()));
    let is_taken = descriptors::is_next(client.stream()).map_err(failed)?;
    let received = is_taken.then(|| descriptors::receive(client.stream()).map_err(failed));
    let copy = received.transpose()?.flatten();
    Ok((client.receive(false, |_| {})?, copy))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    /// The error of a join if the mount process writes `answer` and hangs up without reading the request.
    fn sent_away(answer: &[u8]) -> Error {
        let scratch = tempfile::tempdir().unwrap();
        let socket = scratch.path().join("control.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        thread::scope(|scope| {
            // The request is written before or after the end of the connection.
            let mut client = Client::connect(&socket).unwrap();
            scope.spawn(move || listener.accept().unwrap().0.write_all(answer).unwrap());
            join(&mut client, None).unwrap_err()
        })
    }

    /// Regression: a run that found an engine at the moment when it ended failed instead of starting its own.
    #[test]
    fn i8_one_who_joins_an_engine_that_ends_learns_that_it_is_gone() {
        for _ in 0..50 {
            let error = sent_away(b"");
            assert!(has_hung_up(&error), "{error}");
        }
    }

    #[test]
    fn one_who_is_sent_away_is_told_why() {
        for _ in 0..50 {
            let error = sent_away(b"{\"error\":{\"message\":\"enough clients\",\"errno\":11}}\n");
            assert_eq!((error.errno(), error.to_string().as_str()), (11, "enough clients"));
        }
    }

    #[test]
    fn members_keep_a_mount_open_and_a_closed_one_takes_none() {
        let members = Members::default();
        let (first, second) = (members.admit(1).unwrap(), members.admit(1).unwrap());
        assert_eq!(members.close_if_empty(), Err(vec![1, 1]));
        drop(first);
        assert_eq!(members.close_if_empty(), Err(vec![1]));
        drop(second);
        assert_eq!(members.close_if_empty(), Ok(()));
        assert_eq!(members.admit(2).unwrap_err().errno(), libc::ESHUTDOWN);
    }
}
