//! A connection to a server: the client library's commands and parser over our own [`Socket`].
//!
//! The library's own connection reports an interrupted wait as a lost answer, and then takes the late answer for the
//! answer to the next request. A script whose answer is lost may have run, so programs would get errors. Here waits are
//! not interrupted ([`socket`]), and a failed connection is not used again.

mod answer_poll;
mod socket;

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use redis::{ConnectionAddr, ConnectionInfo, ConnectionLike, Parser, Value};
use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

pub use answer_poll::polled_by_this_thread;
use socket::Socket;

enum Channel {
    Plain(Socket),
    Encrypted(Box<StreamOwned<ClientConnection, Socket>>),
}

/// The connection. It speaks RESP2, whatever the URL says: that suffices for all our requests.
pub(super) struct Connection {
    channel: Channel,
    parser: Parser,
    database: i64,
    is_open: bool,
}

impl Connection {
    /// Connects and authenticates. Connecting, sending, and each wait for an answer take at most `limit`.
    ///
    /// # Errors
    /// If the server is not reached, or refuses the user or the database.
    pub(super) fn open(to: &ConnectionInfo, limit: Duration) -> RedisResult<Self> {
        let channel = match to.addr() {
            ConnectionAddr::Tcp(host, port) => Channel::Plain(tcp(host, *port, limit)?),
            ConnectionAddr::TcpTls { host, port, insecure, .. } => {
                if *insecure {
                    return Err(refusal("an insecure client cannot be made"));
                }
                let server = rustls::pki_types::ServerName::try_from(host.clone())?;
                let client = ClientConnection::new(Arc::new(tls()?), server)?;
                let stream = StreamOwned::new(client, tcp(host, *port, limit)?);
                Channel::Encrypted(Box::new(stream))
            }
            ConnectionAddr::Unix(path) => Channel::Plain(Socket::local(path, limit)?),
            _ => return Err(refusal("no such address is known")),
        };
        let settings = to.redis_settings();
        let database = settings.db();
        let mut connection = Self { channel, parser: Parser::new(), database, is_open: true };
        if let Some(password) = settings.password() {
            connection.authenticate(settings.username(), password)?;
        }
        if database != 0 {
            connection.select(database)?;
        }
        Ok(connection)
    }

    fn authenticate(&mut self, user: Option<&str>, password: &str) -> RedisResult<()> {
        let mut command = redis::cmd("AUTH");
        if let Some(user) = user {
            command.arg(user);
        }
        match self.req_command(command.arg(password))? {
            Value::Okay => Ok(()),
            // The server's message may repeat what was sent.
            _ => Err((ErrorKind::AuthenticationFailed, "Password authentication failed").into()),
        }
    }

    fn select(&mut self, database: i64) -> RedisResult<()> {
        let refused = "Redis server refused to switch database";
        match self.req_command(redis::cmd("SELECT").arg(database))? {
            Value::Okay => Ok(()),
            Value::ServerError(error) => {
                let why = error.details().unwrap_or_default().to_owned();
                Err((ServerErrorKind::ResponseError.into(), refused, why).into())
            }
            _ => Err((ServerErrorKind::ResponseError.into(), refused).into()),
        }
    }

    /// Whether a connection that waits for a request can take one: the server has not ended it since, for example because
    /// it was restarted. What a request that fails on the way has done is unknown; one that was not sent has done nothing.
    pub(super) fn is_ready(&self) -> bool {
        match &self.channel {
            Channel::Plain(socket) => socket.is_quiet(),
            // What follows the handshake arrives before the first answer.
            Channel::Encrypted(stream) => stream.sock.is_quiet(),
        }
    }

    fn send(&mut self, bytes: &[u8]) -> RedisResult<()> {
        let sent = match &mut self.channel {
            Channel::Plain(socket) => socket.write_all(bytes),
            Channel::Encrypted(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
        };
        Ok(sent.inspect_err(|_| self.is_open = false)?)
    }

    /// The next answer; push messages of the server are skipped.
    fn answer(&mut self) -> RedisResult<Value> {
        loop {
            let source: &mut dyn Read = match &mut self.channel {
                Channel::Plain(socket) => socket,
                Channel::Encrypted(stream) => stream,
            };
            match self.parser.parse_value(source) {
                Ok(Value::Push { .. }) => {}
                answer => return answer.inspect_err(|_| self.is_open = false),
            }
        }
    }
}

fn tcp(host: &str, port: u16, limit: Duration) -> RedisResult<Socket> {
    if matches!(host, "0.0.0.0" | "::") {
        return Err(refusal("a server cannot be at a wildcard address (0.0.0.0 or ::)"));
    }
    Ok(Socket::tcp(host, port, limit)?)
}

fn refusal(what: &'static str) -> RedisError {
    (ErrorKind::InvalidClientConfig, what).into()
}

/// Certificates are checked against the system's authorities, as they are at that time.
fn tls() -> RedisResult<ClientConfig> {
    let mut found = rustls_native_certs::load_native_certs();
    if let Some(error) = found.errors.pop() {
        return Err(error.into());
    }
    let mut authorities = RootCertStore::empty();
    for authority in found.certs {
        authorities.add(authority)?;
    }
    Ok(ClientConfig::builder().with_root_certificates(authorities).with_no_client_auth())
}

impl ConnectionLike for Connection {
    fn req_packed_command(&mut self, command: &[u8]) -> RedisResult<Value> {
        self.send(command)?;
        self.answer()
    }

    fn req_packed_commands(
        &mut self,
        commands: &[u8],
        offset: usize,
        count: usize,
    ) -> RedisResult<Vec<Value>> {
        self.send(commands)?;
        for _ in 0..offset {
            self.answer()?;
        }
        (0..count).map(|_| self.answer()).collect()
    }

    fn get_db(&self) -> i64 {
        self.database
    }

    fn check_connection(&mut self) -> bool {
        redis::cmd("PING").exec(self).is_ok()
    }

    fn is_open(&self) -> bool {
        self.is_open
    }
}
