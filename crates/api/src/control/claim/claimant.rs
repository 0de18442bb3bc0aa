//! The process that listens on a claim's name, and its answer.

use std::collections::VecDeque;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, UCred, sockopt};

use super::ClaimReport;
use super::names::Entry;

/// Longest answer in bytes: two paths as JSON arrays.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// The process that listens on a name, and the connection on which it reports what it claims.
pub(super) struct Claimant {
    pub(super) peer: UCred,
    pub(super) stream: UnixStream,
}

/// The outcome of an attempt to connect to a name.
enum ConnectResult {
    Listener(Claimant),
    Nobody,
    /// A process listens whose connection queue is full; the kernel does not report which process.
    Full,
}

impl Claimant {
    /// Does not wait.
    fn of(entry: &Entry) -> ConnectResult {
        let connected = || {
            let socket = rustix::net::socket_with(
                AddressFamily::UNIX,
                SocketType::STREAM,
                SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
                None,
            )?;
            let address = SocketAddrUnix::new_abstract_name(entry.name().as_bytes())?;
            rustix::net::connect(&socket, &address)?;
            let peer = sockopt::socket_peercred(&socket)?;
            Ok(Self { peer, stream: UnixStream::from(socket) })
        };
        match connected() {
            Ok(claimant) => ConnectResult::Listener(claimant),
            Err(Errno::AGAIN) => ConnectResult::Full,
            Err(_) => ConnectResult::Nobody,
        }
    }
}

/// How long names with a full queue are retried, all together.
const WAIT_LIMIT: Duration =
    if cfg!(test) { Duration::from_mins(2) } else { Duration::from_secs(1) };
/// Pause between two rounds of retries.
const PAUSE: Duration = Duration::from_millis(1);

/// The processes that listen on names.
///
/// Anyone may connect to a name repeatedly: a flood fills the queue of a valid claim, and must not make it invisible.
/// Equally, anyone may listen with a queue that stays full: all such names are retried together, for one short time.
pub(super) struct Claimants<I, T> {
    names: I,
    full: VecDeque<(Entry, T)>,
    deadline: Option<Instant>,
    left_in_round: usize,
}

impl<T, I: Iterator<Item = (Entry, T)>> Claimants<I, T> {
    pub(super) fn of(names: I) -> Self {
        Self { names, full: VecDeque::new(), deadline: None, left_in_round: 0 }
    }

    /// The next one that can be reached without waiting.
    pub(super) fn next_at_once(&mut self) -> Option<(Entry, T, Claimant)> {
        for (entry, about) in self.names.by_ref() {
            match Claimant::of(&entry) {
                ConnectResult::Listener(claimant) => return Some((entry, about, claimant)),
                ConnectResult::Nobody => {}
                ConnectResult::Full => self.full.push_back((entry, about)),
            }
        }
        None
    }

    /// The next one; waits for those whose queues are full.
    pub(super) fn next(&mut self) -> Option<(Entry, T, Claimant)> {
        if let Some(found) = self.next_at_once() {
            return Some(found);
        }
        while let Some((entry, about)) = self.full.pop_front() {
            match Claimant::of(&entry) {
                ConnectResult::Listener(claimant) => return Some((entry, about, claimant)),
                ConnectResult::Nobody => continue,
                ConnectResult::Full => self.full.push_back((entry, about)),
            }
            let deadline = *self.deadline.get_or_insert_with(|| Instant::now() + WAIT_LIMIT);
            if Instant::now() >= deadline {
                tracing::warn!(
                    "{} claims on directories are not looked at: their processes take no connection",
                    self.full.len()
                );
                return None;
            }
            if self.left_in_round == 0 {
                self.left_in_round = self.full.len();
                thread::sleep(PAUSE);
            }
            self.left_in_round -= 1;
        }
        None
    }
}

/// What a claimant reports until `deadline`; afterwards, what it has reported so far.
pub(super) fn read_answer(mut stream: UnixStream, deadline: Instant) -> Option<ClaimReport> {
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

#[cfg(test)]
mod tests {
    use std::net::Shutdown;

    use rustix::net::{accept, bind, connect, listen, shutdown, socket};

    use super::super::names::{Access, Kind};
    use super::*;

    /// Regression: any user could fill the queue of a claim's name with connections; meanwhile others did not see the
    /// claim, and two caches served one origin.
    #[test]
    fn i8_a_claim_whose_queue_somebody_fills_is_seen() {
        let nonce = u64::from(std::process::id());
        let entry = Entry { kind: Kind::At, id: (u64::MAX, 79), access: Access::Change, nonce };
        let unix = || socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        let (name, listener) = (entry.name(), unix());
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        bind(&listener, &address).unwrap();
        listen(&listener, 0).unwrap();
        let mut flood = Vec::new();
        loop {
            let flags = SocketFlags::NONBLOCK;
            let one =
                rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
            flood.push(one.unwrap());
            if connect(flood.last().unwrap(), &address) == Err(Errno::AGAIN) {
                break;
            }
        }
        let mut claimants = Claimants::of([(entry, ())].into_iter());
        assert!(claimants.next_at_once().is_none());
        thread::scope(|scope| {
            scope.spawn(|| while accept(&listener).is_ok() {});
            let (found, (), claimant) = claimants.next().unwrap();
            assert_eq!((found, claimant.peer.uid), (entry, rustix::process::geteuid()));
            shutdown(&listener, rustix::net::Shutdown::Both).unwrap();
            let _ = claimant.stream.shutdown(Shutdown::Both);
        });
        assert!(claimants.next().is_none());
    }
}
