//! The client end of the control socket.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;

use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use rustix::process::geteuid;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::address::Address;
use super::bounds::REQUEST_BYTES_MAX;
use super::{AnyStatus, Progress, Request, Status};
use halocline_os::error::{Error, Result};

/// How long a mount process may be silent until it is asked whether it still works, and how long it may take to answer
/// that.
const SILENCE: Duration = if cfg!(test) { Duration::from_mins(5) } else { Duration::from_secs(10) };

/// Longest answer in bytes: some millions of files with their places. The peer is not always trusted, because root asks
/// everyone's mounts.
const ANSWER_BYTES_MAX: usize = 1 << 30;

/// Longest status in bytes, many times the size of one with the maximum of jobs and paths: it is requested from mounts
/// that no one named, and processing it takes several times as much memory.
const STATUS_BYTES_MAX: usize = 64 << 20;

/// A connection to a mount process.
#[derive(Debug)]
pub struct Client {
    socket: PathBuf,
    user: u32,
    /// How long to wait, see [`SILENCE`].
    pub(super) silence: Duration,
    /// Called once if the process works but is silent about the request.
    on_silence: Option<fn(&Path, &Status)>,
    /// Makes another connection.
    connect: Connect,
    lines: BufReader<UnixStream>,
}

/// One line from the server.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Answer<T> {
    Progress(Progress),
    Ok(T),
    Error { message: String, errno: i32 },
}

impl Client {
    /// Connects to the socket of a mount process of this process's own user.
    ///
    /// # Errors
    /// As [`Client::connect_to`].
    pub fn connect(socket: &Path) -> Result<Self> {
        Self::connect_to(socket, geteuid().as_raw())
    }

    /// Connects to the socket of a mount process of `user`, whom the kernel knows as the owner of the mount: a process
    /// of another user, at a path that others may write, is not trusted.
    ///
    /// # Errors
    /// No process listens, it does not answer (`ETIMEDOUT`), or it belongs to another user (`EPERM`).
    pub(crate) fn connect_to(socket: &Path, user: u32) -> Result<Self> {
        Self::over(connect(socket), socket, user, connect)
    }

    /// Communicates over a connection that `connect` made to `socket`; `connect` makes later ones, too. See
    /// [`Client::connect_to`], also for errors.
    ///
    /// # Errors
    /// As there.
    pub fn over(
        stream: io::Result<UnixStream>,
        socket: &Path,
        user: u32,
        connect: Connect,
    ) -> Result<Self> {
        let stream = stream.map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => silent(socket),
            ErrorKind::TimedOut => hangs(socket),
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => Error::invalid(
                format!("{}: no mount process answers here", socket.display()),
                "mount the origin with this cache first; after a crash, mount it again: \
                     recovery is automatic",
            ),
            _ => Error::at(socket, "connect to the control socket")(error),
        })?;
        let limited = stream
            .set_read_timeout(Some(SILENCE))
            .and_then(|()| stream.set_write_timeout(Some(SILENCE)));
        limited.map_err(Error::at(socket, "connect to the control socket"))?;
        let peer = sockopt::socket_peercred(&stream)
            .map_err(|errno| Error::at(socket, "connect to the control socket")(errno.into()))?;
        if peer.uid.as_raw() != user {
            return Err(Error::Refused {
                message: format!(
                    "{}: process {} of user {} listens here, not of user {user}: not asked",
                    socket.display(),
                    peer.pid.as_raw_nonzero(),
                    peer.uid.as_raw()
                ),
                errno: libc::EPERM,
            });
        }
        let (socket, lines) = (socket.to_owned(), BufReader::new(stream));
        Ok(Self { socket, user, silence: SILENCE, on_silence: None, connect, lines })
    }

    /// Makes `tell` report the wait once the process has been silent for [`SILENCE`] although it works: the request
    /// waits for a disk or a server, or for programs.
    #[must_use]
    pub fn telling_silence(self, tell: fn(&Path, &Status)) -> Self {
        Self { on_silence: Some(tell), ..self }
    }

    /// Reads a line, which must be complete within [`SILENCE`] of its first byte. Before that byte a long operation may
    /// be silent for a long time: then the process is asked on another connection for its status, which it reports at
    /// once unless it is stopped.
    fn read_line(&mut self, line: &mut Vec<u8>, is_status: bool) -> Result<()> {
        let most = if is_status { STATUS_BYTES_MAX } else { ANSWER_BYTES_MAX };
        let mut deadline = is_status.then(|| Instant::now() + self.silence);
        let mut ending = false;
        loop {
            self.limit_to(deadline)?;
            let (used, ends) = match self.lines.fill_buf() {
                Ok([]) => return Err(self.failed(io::Error::from_raw_os_error(libc::ECONNRESET))),
                Ok(bytes) => {
                    let end = bytes.iter().position(|byte| *byte == b'\n');
                    let used = end.map_or(bytes.len(), |end| end + 1);
                    line.extend_from_slice(&bytes[..used]);
                    (used, end.is_some())
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() != ErrorKind::WouldBlock => {
                    return Err(self.failed(error));
                }
                Err(_) if deadline.is_some() => return Err(silent(&self.socket)),
                Err(_) => {
                    let stream = (self.connect)(&self.socket);
                    let asked = Self::over(stream, &self.socket, self.user, self.connect)
                        .and_then(|mut other| other.call::<AnyStatus>(&Request::Status {}, |_| {}));
                    let status = match asked {
                        Ok(told) => told.status,
                        // It is ending, and accepts no more connections: its last answer comes on this one.
                        Err(error) if error.errno() != libc::ETIMEDOUT && !ending => {
                            ending = true;
                            continue;
                        }
                        Err(error) => return Err(error),
                    };
                    if let Some(tell) = self.on_silence.take() {
                        tell(&self.socket, &status);
                    }
                    continue;
                }
            };
            self.lines.consume(used);
            if line.len() <= most && ends {
                return Ok(());
            }
            if line.len() > most {
                return Err(Error::invalid(
                    format!("{}: an answer without an end", self.socket.display()),
                    "see whose mount it is; ask for less at a time",
                ));
            }
            deadline = deadline.or_else(|| Some(Instant::now() + self.silence));
        }
    }

    /// Lets reads wait until `deadline`, or for as long as silence may last.
    fn limit_to(&self, deadline: Option<Instant>) -> Result<()> {
        let left = match deadline {
            None => self.silence,
            Some(deadline) => deadline
                .checked_duration_since(Instant::now())
                .filter(|left| !left.is_zero())
                .ok_or_else(|| silent(&self.socket))?,
        };
        self.stream().set_read_timeout(Some(left)).map_err(|error| self.failed(error))
    }

    pub(super) fn failed(&self, error: io::Error) -> Error {
        match error.kind() {
            ErrorKind::WouldBlock => silent(&self.socket),
            _ => Error::at(&self.socket, "talk to the mount process")(error),
        }
    }

    /// Sends a request and waits for its answer, passing progress on.
    pub fn call<T: DeserializeOwned>(
        &mut self,
        request: &Request,
        progress: impl FnMut(Progress),
    ) -> Result<T> {
        let is_status = matches!(request, Request::Status {} | Request::Ending {});
        let Err(error) = self.send(request) else { return self.receive(is_status, progress) };
        // A rejected client is told why before it sends a request.
        match has_hung_up(&error).then(|| self.receive::<T>(is_status, progress)) {
            Some(Err(told @ Error::Refused { .. })) => Err(told),
            _ => Err(error),
        }
    }

    pub(super) fn stream(&self) -> &UnixStream {
        self.lines.get_ref()
    }

    pub(super) fn send(&mut self, request: &Request) -> Result<()> {
        let mut line = serde_json::to_vec(request).map_err(io::Error::from)?;
        line.push(b'\n');
        if line.len() > REQUEST_BYTES_MAX {
            return Err(Error::invalid(
                format!("a request of {} bytes; the mount takes {REQUEST_BYTES_MAX}", line.len()),
                "name fewer files at a time",
            ));
        }
        self.lines.get_mut().write_all(&line).map_err(|error| self.failed(error))
    }

    pub(super) fn receive<T: DeserializeOwned>(
        &mut self,
        is_status: bool,
        mut progress: impl FnMut(Progress),
    ) -> Result<T> {
        let mut line = Vec::new();
        loop {
            line.clear();
            self.read_line(&mut line, is_status)?;
            match serde_json::from_slice(&line) {
                // A status is answered at once, without progress.
                Ok(Answer::Progress(_)) if is_status => return Err(silent(&self.socket)),
                Ok(Answer::Progress(now)) => progress(now),
                Ok(Answer::Ok(value)) => return Ok(value),
                Ok(Answer::Error { message, errno }) => {
                    return Err(Error::Refused { message, errno });
                }
                Err(error) => {
                    return Err(Error::invalid(
                        format!("{}: unexpected answer: {error}", self.socket.display()),
                        "use the halocline command of the version that mounted",
                    ));
                }
            }
        }
    }
}

/// Whether the mount process closed the connection, as an ending process does with clients that have just connected.
pub fn has_hung_up(error: &Error) -> bool {
    [libc::EPIPE, libc::ECONNRESET].contains(&error.errno())
}

/// Connects to a socket. The file system it is on may hang: an implementation with a time limit then returns
/// [`ErrorKind::TimedOut`].
pub(crate) type Connect = fn(&Path) -> io::Result<UnixStream>;

/// Connects without a time limit.
///
/// # Errors
/// No process listens or accepts connections there, or this user may not reach it.
pub fn connect(socket: &Path) -> io::Result<UnixStream> {
    connect_at_once(Address::of(socket)?.path())
}

/// Connects without waiting: a stopped process accepts no connections, and its queue may be full.
fn connect_at_once(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// The error for a socket on a file system that hangs.
fn hangs(socket: &Path) -> Error {
    Error::Refused {
        message: format!(
            "{}: what the control socket lies on does not answer; see whether its server is stopped, or waits for a disk or \
             network",
            socket.display()
        ),
        errno: libc::ETIMEDOUT,
    }
}

/// The error for a live process that does not answer.
fn silent(socket: &Path) -> Error {
    Error::Refused {
        message: format!(
            "{}: the mount process does not answer; see whether it is stopped (kill -CONT continues \
             it) or waits for a disk",
            socket.display()
        ),
        errno: libc::ETIMEDOUT,
    }
}
