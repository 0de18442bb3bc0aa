//! A socket to a server, on which a wait ends by what the server says or by the time limit, and by nothing else.
//!
//! A system call on a socket with a time limit fails with `EINTR` when its process was stopped and goes on (`signal(7)`), and when a
//! handler ran. Neither says anything about the server: its answer is waited for for the rest of the time. Time in
//! which the process stood still may have used all of it up; the answer is likely there by then, and gets a last moment.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use halocline_os::clock::Clock;

/// How long an answer is waited for after a process stood still for the rest of its time.
const LAST_MOMENT: Duration = Duration::from_secs(1);

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

    /// Both, because a read and a write each wait alone.
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
    /// How long each read and each write waits.
    limit: Duration,
}

impl Socket {
    /// Connects to a server on the network.
    pub(super) fn tcp(host: &str, port: u16, limit: Duration) -> io::Result<Self> {
        let mut last = None;
        for address in (host, port).to_socket_addrs()? {
            match connect(&address, limit) {
                Ok(stream) => {
                    // A request is one write, and nothing follows it before its answer.
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
        stream.set_limit(limit)?;
        Ok(Self { stream, limit })
    }

    fn patiently(
        &mut self,
        mut call: impl FnMut(&mut Stream) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let begun = Clock::MACHINE.instant();
        match call(&mut self.stream) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            done => return done,
        }
        let (mut ends, mut is_last) = (begun + self.limit, false);
        let done = loop {
            let mut left = ends.saturating_duration_since(Clock::MACHINE.instant());
            if left < LAST_MOMENT && !is_last {
                (left, is_last) = (LAST_MOMENT, true);
                ends = Clock::MACHINE.instant() + left;
            }
            // Signals that never end shall not keep it for ever.
            if left.is_zero() {
                break Err(ErrorKind::TimedOut.into());
            }
            self.stream.set_limit(left)?;
            match call(&mut self.stream) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                done => break done,
            }
        };
        self.stream.set_limit(self.limit)?;
        done
    }
}

/// The library's own wait goes on after a signal, but not beyond the limit: a process that stood still longer tries again.
fn connect(address: &SocketAddr, limit: Duration) -> io::Result<TcpStream> {
    let begun = Clock::MACHINE.instant();
    match TcpStream::connect_timeout(address, limit) {
        Err(error)
            if error.kind() == ErrorKind::TimedOut
                && Clock::MACHINE.elapsed(begun) > limit + LAST_MOMENT =>
        {
            TcpStream::connect_timeout(address, limit)
        }
        connected => connected,
    }
}

impl Read for Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
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
