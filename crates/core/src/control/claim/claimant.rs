//! Who listens on a claim's name, and what that process says.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, UCred, sockopt};

use super::Told;
use super::names::Entry;

/// Longest answer in bytes: two paths as JSON arrays.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// Who listens on a name, and where that process says what it claims.
pub(super) struct Claimant {
    pub(super) peer: UCred,
    pub(super) stream: UnixStream,
}

impl Claimant {
    /// Does not wait. `None` where nobody listens.
    pub(super) fn of(entry: &Entry) -> Option<Self> {
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        );
        let socket = socket.ok()?;
        let address = SocketAddrUnix::new_abstract_name(entry.name().as_bytes()).ok()?;
        // A full queue is nobody whom we could name.
        rustix::net::connect(&socket, &address).ok()?;
        let peer = sockopt::socket_peercred(&socket).ok()?;
        Some(Self { peer, stream: UnixStream::from(socket) })
    }
}

/// What a claimant says until `deadline`; after that, what it has said already.
pub(super) fn read_answer(mut stream: UnixStream, deadline: Instant) -> Option<Told> {
    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        stream.set_nonblocking(left.is_zero()).ok()?;
        if !left.is_zero() {
            stream.set_read_timeout(Some(left)).ok()?;
        }
        let len = stream.read(&mut piece).ok()?;
        answer.extend_from_slice(&piece[..len]);
        if len == 0 || answer.ends_with(b"\n") {
            return serde_json::from_slice(&answer).ok();
        }
        if answer.len() as u64 > ANSWER_BYTES_MAX {
            return None;
        }
    }
}
