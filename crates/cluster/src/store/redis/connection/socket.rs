//! A socket to a server. A wait on it ends by what the server sends or by the time limit, and by nothing else.
//!
//! A system call on a socket with a time limit fails with `EINTR` when its process was stopped and continued
//! (`signal(7)`), and when a signal handler ran. Neither says anything about the server, so the wait continues for the
//! rest of the time.
//!
//! The same holds for time in which this process stood still, or the whole machine, such as a virtual machine that its
//! host pauses: the server may have stood still, too. So a wait consists of steps, and a step that took longer counts
//! as one.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use halocline_os::clock::Clock;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::answer_poll::AnswerPoll;

/// The number of steps of a wait.
const STEPS: u32 = 6;
/// If a wait ends more than this after its limit, the process stood still for part of it.
const LATE: Duration = Duration::from_secs(1);

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Local(UnixStream),
}

impl Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(into),
            Self::Local(stream) => stream.read(into),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Local(stream) => stream.write(bytes),
        }
    }

    /// Reads what has arrived; `None` if nothing has.
    fn read_at_once(&self, into: &mut [u8]) -> Option<io::Result<usize>> {
        let flags = RecvFlags::DONTWAIT;
        let read = match self {
            Self::Tcp(stream) => recv(stream, into, flags),
            Self::Local(stream) => recv(stream, into, flags),
        };
        match read {
            Err(Errno::AGAIN | Errno::INTR) => None,
            read => Some(read.map(|(bytes, _)| bytes).map_err(io::Error::from)),
        }
    }

    /// Whether nothing has arrived, not even the end.
    fn is_quiet(&self) -> bool {
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        let mut byte = [0];
        let peeked = match self {
            Self::Tcp(stream) => recv(stream, &mut byte, flags),
            Self::Local(stream) => recv(stream, &mut byte, flags),
        };
        matches!(peeked, Err(Errno::AGAIN | Errno::INTR))
    }

    /// Sets both limits, because a read and a write each wait on their own.
    fn set_limit(&self, limit: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => {
                stream.set_read_timeout(Some(limit))?;
                stream.set_write_timeout(Some(limit))
            }
            Self::Local(stream) => {
                stream.set_read_timeout(Some(limit))?;
                stream.set_write_timeout(Some(limit))
            }
        }
    }
}

/// The socket.
#[derive(Debug)]
pub(super) struct Socket {
    stream: Stream,
    /// The duration of one step of a read or write.
    step: Duration,
    poll: AnswerPoll,
}

impl Socket {
    /// Connects to a server on the network.
    pub(super) fn tcp(host: &str, port: u16, limit: Duration) -> io::Result<Self> {
        let mut last = None;
        for address in (host, port).to_socket_addrs()? {
            match connect(&address, limit) {
                Ok(stream) => {
                    // A request is a single write, and nothing follows before its answer.
                    stream.set_nodelay(true)?;
                    return Self::new(Stream::Tcp(stream), limit);
                }
                Err(error) => last = Some(error),
            }
        }
        let none = || io::Error::new(ErrorKind::NotFound, "the host's name has no address");
        Err(last.unwrap_or_else(none))
    }

    /// Connects to a server on this machine.
    pub(super) fn local(path: &Path, limit: Duration) -> io::Result<Self> {
        Self::new(Stream::Local(UnixStream::connect(path)?), limit)
    }

    fn new(stream: Stream, limit: Duration) -> io::Result<Self> {
        let step = limit / STEPS;
        stream.set_limit(step)?;
        Ok(Self { stream, step, poll: AnswerPoll::default() })
    }

    /// Whether the server has sent nothing since its last answer and has not ended the connection, as far as is known.
    pub(super) fn is_quiet(&self) -> bool {
        self.stream.is_quiet()
    }

    fn patiently(
        &mut self,
        mut call: impl FnMut(&mut Stream) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut left = self.step * STEPS;
        loop {
            let begun = Clock::MACHINE.instant();
            let error = match call(&mut self.stream) {
                Err(error) => error,
                done => return done,
            };
            left = match error.kind() {
                // Signals without end must not keep it waiting for ever.
                ErrorKind::Interrupted => {
                    left.saturating_sub(Clock::MACHINE.elapsed(begun).min(self.step))
                }
                ErrorKind::WouldBlock | ErrorKind::TimedOut => left.saturating_sub(self.step),
                _ => return Err(error),
            };
            if left.is_zero() {
                let is_interrupted = error.kind() == ErrorKind::Interrupted;
                return Err(if is_interrupted { ErrorKind::TimedOut.into() } else { error });
            }
        }
    }
}

/// The library's own wait continues after a signal, but not beyond the limit; if the process stood still for longer,
/// this tries again.
fn connect(address: &SocketAddr, limit: Duration) -> io::Result<TcpStream> {
    let begun = Clock::MACHINE.instant();
    match TcpStream::connect_timeout(address, limit) {
        Err(error)
            if error.kind() == ErrorKind::TimedOut
                && Clock::MACHINE.elapsed(begun) > limit + LATE =>
        {
            TcpStream::connect_timeout(address, limit)
        }
        connected => connected,
    }
}

impl Read for Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Self { stream, poll, .. } = self;
        if let Some(read) = poll.poll(|| stream.read_at_once(into)) {
            return read;
        }
        self.patiently(|stream| stream.read(into))
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.patiently(|stream| stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
