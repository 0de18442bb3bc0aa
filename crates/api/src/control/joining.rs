//! Runs that join a running mount instead of starting a second engine over its origin (I8).

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

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

/// The processes that use a mount besides its own.
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
pub fn join(client: &mut Client, origin: Option<(u64, u64)>) -> Result<(Joined, Option<OwnedFd>)> {
    client.send(&Request::Join { origin })?;
    let copy = descriptors::receive(client.stream())
        .map_err(|error| client.failed(std::io::Error::from_raw_os_error(error.errno())))?;
    Ok((client.receive(false, |_| {})?, copy))
}

#[cfg(test)]
mod tests {
    use super::*;

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
