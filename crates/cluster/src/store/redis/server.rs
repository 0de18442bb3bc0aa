//! One server: a pool of connections to it, and what its errors mean.

use std::fmt;
use std::net::ToSocketAddrs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};
use redis::{ErrorKind, RedisError, RedisResult};

use super::connection::Connection;
use super::silence::Silence;
use super::{NAME_MAX, Result, StoreError};
use crate::store::Memory;

/// Limit for connecting, and for each answer.
pub(super) const TIMEOUT: Duration = Duration::from_secs(3);
/// How other errors spell the system's time-out of a connection (`EAGAIN`).
const UNAVAILABLE: &str = "Resource temporarily unavailable";
/// The error for a server that is not asked, because it has just left others without an answer.
const LEFT_ALONE: &str = "it has just given no answer";
/// Idle connections that are kept.
const IDLE_MAX: usize = 16;

/// A server.
pub(super) struct Server {
    info: ConnectionInfo,
    /// Its address, without any secret.
    address: String,
    /// Whether it is reached over TLS.
    is_encrypted: bool,
    /// Whether it has answered a request: then it is named as it should be.
    has_answered: AtomicBool,
    idle: Mutex<Vec<Connection>>,
    silence: Silence,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

/// How to connect to the server at `url`; a `password` from elsewhere takes precedence.
///
/// # Errors
/// If the URL cannot be parsed. The error does not show it, because it may contain a password.
pub(super) fn info_of(url: &str, password: Option<&str>) -> Result<ConnectionInfo> {
    // An error means that one is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let info: ConnectionInfo = url.into_connection_info().map_err(|_| {
        let what = "this is not a URL of a store, such as redis://HOST:6379, rediss://HOST:6379 or redis://HOST:6379/1";
        StoreError::Unusable(what.to_owned())
    })?;
    Ok(match password {
        Some(password) => {
            let settings = info.redis_settings().clone().set_password(password);
            info.set_redis_settings(settings)
        }
        None => info,
    })
}

/// Whether a server is used without a password, at an address that is not this machine's alone.
pub(super) fn is_open(info: &ConnectionInfo) -> bool {
    let (ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. }) = info.addr()
    else {
        return false;
    };
    let is_local = (host.as_str(), *port)
        .to_socket_addrs()
        .is_ok_and(|mut all| all.all(|address| address.ip().to_canonical().is_loopback()));
    info.redis_settings().password().is_none_or(str::is_empty) && !is_local
}

/// A value of a server's report about its memory.
fn memory_value<'a>(info: &'a str, key: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(key))
}

/// Whether an answer, or a connection, did not come in time.
fn is_late(error: &RedisError) -> bool {
    // A TLS handshake that times out reports it in its own way.
    error.is_timeout() || error.to_string().contains(UNAVAILABLE)
}

impl Server {
    /// A server to which no request was sent yet.
    pub(super) fn new(info: ConnectionInfo) -> Self {
        let address = match info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                format!("{host}:{port}")
            }
            ConnectionAddr::Unix(path) => path.display().to_string(),
            _ => "a local socket".to_owned(),
        };
        let is_encrypted = matches!(info.addr(), ConnectionAddr::TcpTls { .. });
        let has_answered = AtomicBool::new(false);
        let silence = Silence::default();
        Self { info, address, is_encrypted, has_answered, idle: Mutex::default(), silence }
    }

    /// Refuses a server that makes room by forgetting keys: it would forget tokens, and its epoch would not change.
    ///
    /// # Errors
    /// If it is such a server, or does not answer.
    pub(super) fn check_settings(&self) -> Result<()> {
        let info = self.memory_info()?;
        match memory_value(&info, "maxmemory_policy:") {
            Some("noeviction") => Ok(()),
            _ if memory_value(&info, "maxmemory:") == Some("0") => Ok(()),
            policy => Err(StoreError::Unusable(format!(
                "{}: it may forget keys (maxmemory-policy is {}); set it to noeviction",
                self.address,
                policy.unwrap_or("not told").chars().take(NAME_MAX).collect::<String>(),
            ))),
        }
    }

    fn memory_info(&self) -> Result<String> {
        let ask = |connection: &mut Connection| redis::cmd("INFO").arg("memory").query(connection);
        self.ask_unless_silent(ask).map_err(|error| self.error(&error))
    }

    /// Its memory, if that is limited.
    ///
    /// # Errors
    /// If it does not answer.
    pub(super) fn memory(&self) -> Result<Option<Memory>> {
        let info = self.memory_info()?;
        let bytes = |key| memory_value(&info, key).and_then(|value| value.parse::<u64>().ok());
        let Some(limit) = bytes("maxmemory:").filter(|limit| *limit > 0) else { return Ok(None) };
        // The server's own limit leaves out what it keeps for replicas and its log.
        let uncounted = bytes("mem_not_counted_for_evict:").unwrap_or(0);
        let used = bytes("used_memory:").unwrap_or(0).saturating_sub(uncounted);
        Ok(Some(Memory { used, limit }))
    }

    /// A connection for the caller alone.
    pub(super) fn connect(&self) -> RedisResult<Connection> {
        let connected = Connection::open(&self.info, TIMEOUT);
        if let Err(error) = &connected {
            self.silence.note(is_late(error));
        }
        connected
    }

    /// The same, unless the server has just left others without an answer.
    pub(super) fn connect_unless_silent(&self) -> RedisResult<Connection> {
        self.check_silence()?;
        self.connect()
    }

    /// Notes that others who asked it got no answer.
    pub(super) fn note_silence(&self) {
        self.silence.note(true);
    }

    /// Sends a request; fails at once if the server has just left others without an answer.
    pub(super) fn ask_unless_silent<T>(
        &self,
        ask: impl FnOnce(&mut Connection) -> RedisResult<T>,
    ) -> RedisResult<T> {
        self.check_silence()?;
        self.ask(ask)
    }

    fn check_silence(&self) -> RedisResult<()> {
        if self.silence.may_ask() { Ok(()) } else { Err((ErrorKind::Io, LEFT_ALONE).into()) }
    }

    /// Sends a request over an idle connection. A request that failed may have been executed.
    pub(super) fn ask<T>(
        &self,
        ask: impl FnOnce(&mut Connection) -> RedisResult<T>,
    ) -> RedisResult<T> {
        let mut connection = match self.idle_connection() {
            Some(connection) => connection,
            None => self.connect()?,
        };
        let answer = ask(&mut connection);
        if answer.is_ok() {
            self.has_answered.store(true, Ordering::Relaxed);
        }
        self.silence.note(answer.as_ref().is_err_and(is_late));
        let is_answer = |error: &RedisError| matches!(error.kind(), ErrorKind::Server(_));
        let mut idle = self.idle.lock();
        match &answer {
            Err(error) if !is_answer(error) => {
                // What this connection delivers next is unknown, and the other idle ones may be as stale.
                idle.clear();
            }
            _ if idle.len() < IDLE_MAX => idle.push(connection),
            _ => {}
        }
        answer
    }

    /// One that the server has not ended.
    fn idle_connection(&self) -> Option<Connection> {
        loop {
            let connection = self.idle.lock().pop()?;
            if connection.is_ready() {
                return Some(connection);
            }
        }
    }

    /// Converts an error to ours. The server's text is truncated, because it may contain anything.
    pub(super) fn error(&self, error: &RedisError) -> StoreError {
        let is_late = is_late(error);
        let said = if is_late {
            format!("no answer in {} s", TIMEOUT.as_secs())
        } else if error.to_string().contains(LEFT_ALONE) {
            format!("{LEFT_ALONE} in {} s", TIMEOUT.as_secs())
        } else {
            error.to_string()
        };
        let said: String = said.chars().filter(|c| !c.is_control()).take(200).collect();
        let said = format!("{}: {said}{}", self.address, self.hint(error, &said, is_late));
        match (error.kind(), error.code()) {
            _ if said.contains("refused to switch database") => StoreError::Unusable(said),
            (ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig, _)
            | (_, Some("NOAUTH" | "WRONGPASS" | "NOPERM")) => StoreError::Unusable(said),
            (ErrorKind::UnexpectedReturnType | ErrorKind::Parse, _)
            | (_, Some("UNSOUND" | "WRONGTYPE")) => StoreError::Unsound(said),
            _ => StoreError::NoAnswer(said),
        }
    }

    /// A remedy, where the error does not name one.
    fn hint(&self, error: &RedisError, said: &str, is_late: bool) -> &'static str {
        if said.contains("not valid for name") {
            "; name the host as its certificate does"
        } else if said.contains("invalid peer certificate") {
            "; the certificate's authority must be one of the system's, or in the file that SSL_CERT_FILE names"
        } else if said.contains("insecure client") {
            "; certificates are always checked here: leave #insecure away"
        } else if error.kind() == ErrorKind::AuthenticationFailed
            || matches!(error.code(), Some("NOAUTH" | "WRONGPASS"))
        {
            "; the environment variable HALOCLINE_CLUSTER_PASSWORD_FILE names a file with the password"
        } else if error.code() == Some("NOPERM") {
            "; docs/CLUSTER.md lists what the user needs"
        } else if error.code() == Some("OOM") {
            "; its memory is used up: raise its maxmemory"
        } else if error.code() == Some("MISCONF") {
            "; make room on its disk, or let it save nothing: tokens need no persistence"
        } else if error.code() == Some("READONLY") {
            "; it is a replica: name its master"
        } else if error.code() == Some("NOREPLICAS") {
            "; its replicas are away, and its min-replicas-to-write wants them"
        } else if is_late && self.is_encrypted {
            "; a server without TLS is named redis://"
        } else if error.is_connection_dropped() && !error.is_connection_refusal() {
            let is_known = self.has_answered.load(Ordering::Relaxed);
            if !is_known && matches!(self.info.addr(), ConnectionAddr::Tcp(..)) {
                "; a server that wants TLS is named rediss://"
            } else {
                "; it ended the connection: it may have been stopped or restarted"
            }
        } else {
            ""
        }
    }

    /// Its address, without any secret.
    pub(super) fn address(&self) -> &str {
        &self.address
    }
}

#[cfg(test)]
mod tests {
    use crate::store::redis::is_open_to_machines;

    #[test]
    fn a_store_is_open_that_needs_no_password_and_is_not_this_machines() {
        for open in ["redis://10.0.0.1", "rediss://[2001:db8::1]:6379/1", "redis://u@10.0.0.1"] {
            assert!(is_open_to_machines(open, None), "{open}");
            assert!(is_open_to_machines(open, Some("")), "{open}");
            assert!(!is_open_to_machines(open, Some("p")), "{open}");
        }
        assert!(is_open_to_machines("redis://127.0.0.1,redis://10.0.0.1", None));
        let closed = ["redis://127.0.0.1:7", "redis://[::1]", "redis://[::ffff:127.0.0.2]"];
        for closed in closed.iter().chain(&["redis+unix:///s", "redis://:p@10.0.0.1", "x"]) {
            assert!(!is_open_to_machines(closed, None), "{closed}");
        }
    }
}
