//! A store on one server of Redis or Valkey.
//!
//! All keys of one origin have one hash tag. A file's tokens are a hash of a version and a value, which is kept for an
//! hour after nobody holds or wants anything, so that no request of before finds the version that it expects. Who is
//! told something has a list, which it waits for.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod scripts;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use halocline_cache::coherence::SharedFile;
use halocline_model::token::{Epoch, Members, Session, Tokens};
use parking_lot::Mutex;
use redis::{Client, Connection, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo};
use redis::{FromRedisValue, RedisError, ScriptInvocation};

use super::coding;
use super::{Lease, Reading, Result, Roll, Store, StoreError, Swap};
use scripts::Scripts;

/// How long connecting, and each answer, may take.
const TIMEOUT: Duration = Duration::from_secs(3);
/// How long tokens that say nothing are kept.
const KEPT: Duration = Duration::from_hours(1);
/// Connections that are kept while nobody uses them.
const IDLE_MAX: usize = 16;
/// The longest name of an origin.
const NAME_MAX: usize = 64;

/// The store.
pub struct RedisStore {
    client: Client,
    /// Where it is, without any secret.
    address: String,
    keys: Keys,
    idle: Mutex<Vec<Connection>>,
    /// For waiting.
    listening: Mutex<Option<Connection>>,
    scripts: Scripts,
    asked: AtomicU64,
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("address", &self.address).finish_non_exhaustive()
    }
}

struct Keys {
    prefix: String,
    epoch: String,
    members: String,
    leases: String,
}

impl Keys {
    fn new(origin: &str) -> Self {
        let prefix = format!("halocline:{{{origin}}}:");
        let key = |name: &str| format!("{prefix}{name}");
        Self { epoch: key("epoch"), members: key("members"), leases: key("leases"), prefix }
    }

    fn file(&self, file: SharedFile) -> String {
        format!("{}file:{}", self.prefix, named(file))
    }

    fn told(&self, session: Session) -> String {
        format!("{}told:{:016x}", self.prefix, session.0)
    }
}

fn named(file: SharedFile) -> String {
    format!("{:x}:{:x}", file.inode, file.born_ns.cast_unsigned())
}

fn file_of(name: &str) -> Option<SharedFile> {
    let (inode, born) = name.split_once(':')?;
    let inode = u64::from_str_radix(inode, 16).ok()?;
    let born_ns = u64::from_str_radix(born, 16).ok()?.cast_signed();
    Some(SharedFile { inode, born_ns })
}

impl RedisStore {
    /// Connects to the server at `url`, `redis://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE]` or `rediss://` for TLS; a
    /// `password` that comes from elsewhere counts more. `origin` tells origins apart that share the server: letters,
    /// digits, `-` and `_`.
    ///
    /// # Errors
    /// If it cannot be reached, or would lose tokens by its settings. No error shows a secret.
    pub fn connect(url: &str, password: Option<&str>, origin: &str) -> Result<Self> {
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
        if origin.is_empty() || origin.len() > NAME_MAX || !origin.chars().all(is_plain) {
            let what = "the name of an origin is made of up to 64 letters, digits, - and _";
            return Err(StoreError::Unusable(what.to_owned()));
        }
        // An error means that there is one already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        // Its own words might repeat the URL, with the password in it.
        let unread = |_| {
            let what = "this is no URL of a store, such as redis://HOST:6379, rediss://HOST:6379 or \
                        redis://HOST:6379/1";
            StoreError::Unusable(what.to_owned())
        };
        let mut info: ConnectionInfo = url.into_connection_info().map_err(unread)?;
        if let Some(password) = password {
            let settings = info.redis_settings().clone().set_password(password);
            info = info.set_redis_settings(settings);
        }
        let address = match info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                format!("{host}:{port}")
            }
            _ => "a local socket".to_owned(),
        };
        let client = Client::open(info).map_err(unread)?;
        let store = Self {
            client,
            address,
            keys: Keys::new(origin),
            idle: Mutex::default(),
            listening: Mutex::default(),
            scripts: Scripts::new(),
            asked: AtomicU64::new(0),
        };
        store.check_settings()?;
        Ok(store)
    }

    /// A server that makes room by forgetting keys would forget tokens, and its epoch would not tell.
    fn check_settings(&self) -> Result<()> {
        let info: String =
            self.ask(|connection| redis::cmd("INFO").arg("memory").query(connection))?;
        let value = |key: &str| info.lines().find_map(|line| line.strip_prefix(key));
        match value("maxmemory_policy:") {
            Some("noeviction") => Ok(()),
            _ if value("maxmemory:") == Some("0") => Ok(()),
            policy => Err(StoreError::Unusable(format!(
                "{}: it may forget keys (maxmemory-policy is {}); set it to noeviction",
                self.address,
                policy.unwrap_or("not told").chars().take(NAME_MAX).collect::<String>(),
            ))),
        }
    }

    fn connect_once(&self) -> Result<Connection> {
        let connect = || {
            let connection = self.client.get_connection_with_timeout(TIMEOUT)?;
            connection.set_read_timeout(Some(TIMEOUT))?;
            connection.set_write_timeout(Some(TIMEOUT))?;
            Ok(connection)
        };
        connect().map_err(|error| self.error(&error))
    }

    /// Asks something over a connection that nobody uses.
    fn ask<T>(&self, ask: impl FnOnce(&mut Connection) -> redis::RedisResult<T>) -> Result<T> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let kept = self.idle.lock().pop();
        let mut connection = match kept {
            Some(connection) => connection,
            None => self.connect_once()?,
        };
        let answer = ask(&mut connection).map_err(|error| self.error(&error));
        // After an error nobody knows what comes next over it.
        let mut idle = self.idle.lock();
        match &answer {
            Ok(_) if idle.len() < IDLE_MAX => idle.push(connection),
            Ok(_) => {}
            // The others are from before, too.
            Err(_) => idle.clear(),
        }
        answer
    }

    fn run<T: FromRedisValue>(&self, script: &ScriptInvocation<'_>) -> Result<T> {
        self.ask(|connection| script.invoke(connection))
    }

    /// Which of ours it is. The server's words are cut: it may say anything.
    fn error(&self, error: &RedisError) -> StoreError {
        let said: String =
            error.to_string().chars().filter(|c| !c.is_control()).take(200).collect();
        let said = format!("{}: {said}", self.address);
        match (error.kind(), error.code()) {
            (ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig, _)
            | (_, Some("NOAUTH" | "WRONGPASS" | "NOPERM")) => StoreError::Unusable(said),
            (ErrorKind::UnexpectedReturnType | ErrorKind::Parse, _)
            | (_, Some("UNSOUND" | "WRONGTYPE")) => StoreError::Unsound(said),
            _ => StoreError::NoAnswer(said),
        }
    }

    fn reading(epoch: &str, version: &str, bytes: &[u8]) -> Result<Reading> {
        let epoch = Epoch(number(epoch)?);
        if version.is_empty() {
            return Ok(Reading { tokens: Tokens::new(epoch), epoch });
        }
        Ok(Reading { tokens: coding::tokens(bytes, number(version)?)?, epoch })
    }
}

fn number<T: FromStr>(text: &str) -> Result<T> {
    text.parse().map_err(|_| StoreError::Unsound("something that should be a number".to_owned()))
}

/// The number of an epoch that begins if the server may have forgotten something; never the same again.
fn candidate() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    // Keys of the system's randomness, and another one each time.
    RandomState::new().build_hasher().finish()
}

/// What the script answers who reads the members: epoch, version, members, time, and sessions with their leases.
type RollAnswer = (String, String, Vec<u8>, u64, Vec<String>);

fn roll_of((epoch, version, members, now_ms, leases): RollAnswer) -> Result<Roll> {
    let epoch = Epoch(number(&epoch)?);
    let lease = |pair: &[String]| Ok((Session(number(&pair[0])?), number(&pair[1])?));
    Ok(Roll {
        epoch,
        parts: Arc::from([epoch]),
        version: if version.is_empty() { 0 } else { number(&version)? },
        members: if version.is_empty() { Members::default() } else { coding::members(&members)? },
        leases: leases.chunks_exact(2).map(lease).collect::<Result<_>>()?,
        now_ms,
    })
}

impl Store for RedisStore {
    fn part(&self, _file: SharedFile) -> usize {
        0
    }

    fn read(&self, file: SharedFile) -> Result<Reading> {
        let mut script = self.scripts.read.prepare_invoke();
        script.key(&self.keys.epoch).key(self.keys.file(file)).arg(candidate());
        let (epoch, version, bytes): (String, String, Vec<u8>) = self.run(&script)?;
        Self::reading(&epoch, &version, &bytes)
    }

    fn swap(&self, file: SharedFile, expected: u64, new: &Tokens) -> Result<Swap> {
        let kept = if new.is_empty() { KEPT.as_millis() } else { 0 };
        let mut script = self.scripts.swap.prepare_invoke();
        script.key(&self.keys.epoch).key(self.keys.file(file)).arg(candidate());
        script.arg(expected).arg(new.epoch().0).arg(new.version).arg(coding::encode(new)?);
        script.arg(kept.to_string());
        let (taken, epoch, version, bytes): (bool, String, String, Vec<u8>) = self.run(&script)?;
        if taken {
            return Ok(Swap::Taken);
        }
        Ok(Swap::Other(Self::reading(&epoch, &version, &bytes)?))
    }

    fn roll(&self) -> Result<Roll> {
        let mut script = self.scripts.roll.prepare_invoke();
        script
            .key(&self.keys.epoch)
            .key(&self.keys.members)
            .key(&self.keys.leases)
            .arg(candidate());
        roll_of(self.run(&script)?)
    }

    fn swap_members(&self, from: &Roll, new: &Members, lease: Lease) -> Result<bool> {
        let (what, session, lease_ms) = match lease {
            Lease::Stays => ("stays", Session(0), 0),
            Lease::Runs(session, lease_ms) => ("runs", session, lease_ms),
            Lease::IsOver(session) => ("over", session, 0),
            Lease::Ends(session) => ("ends", session, 0),
        };
        let version = from.version.checked_add(1);
        let version = version.ok_or_else(|| StoreError::Unsound("a last version".to_owned()))?;
        let mut script = self.scripts.swap_members.prepare_invoke();
        script
            .key(&self.keys.epoch)
            .key(&self.keys.members)
            .key(&self.keys.leases)
            .arg(candidate());
        script.arg(from.version).arg(from.epoch.0).arg(version).arg(coding::encode(new)?);
        script.arg(what).arg(session.0).arg(lease_ms);
        self.run(&script)
    }

    fn renew(&self, session: Session, epoch: Epoch, lease_ms: u64) -> Result<bool> {
        let mut script = self.scripts.renew.prepare_invoke();
        script.key(&self.keys.epoch).key(&self.keys.leases).arg(candidate());
        script.arg(epoch.0).arg(session.0).arg(lease_ms);
        self.run(&script)
    }

    fn tell(&self, session: Session, file: SharedFile) {
        let mut script = self.scripts.tell.prepare_invoke();
        script.key(self.keys.told(session)).arg(named(file));
        let _: Result<u64> = self.run(&script);
    }

    fn listen(&self, session: Session, wait_limit: Duration) -> Vec<SharedFile> {
        let mut listening = self.listening.lock();
        if listening.is_none() {
            *listening = self.connect_once().ok();
        }
        let Some(connection) = listening.as_mut() else {
            drop(listening);
            std::thread::sleep(wait_limit);
            return Vec::new();
        };
        let list = self.keys.told(session);
        let wait = wait_limit.min(TIMEOUT / 2).as_secs_f64();
        let told: redis::RedisResult<Option<(String, String)>> =
            redis::cmd("BLPOP").arg(&list).arg(wait).query(connection);
        if let Ok(told) = told {
            return told.iter().filter_map(|(_, name)| file_of(name)).collect();
        }
        *listening = None;
        drop(listening);
        std::thread::sleep(wait_limit);
        Vec::new()
    }

    fn files(&self, limit: usize) -> Result<Vec<SharedFile>> {
        let prefix = self.keys.file(SharedFile { inode: 0, born_ns: 0 });
        let prefix = prefix.trim_end_matches("0:0").to_owned();
        let mut files = Vec::new();
        let mut cursor = 0_u64;
        loop {
            let (next, keys): (u64, Vec<String>) = self.ask(|connection| {
                let mut scan = redis::cmd("SCAN");
                scan.arg(cursor).arg("MATCH").arg(format!("{prefix}*")).arg("COUNT").arg(1000);
                scan.query(connection)
            })?;
            files.extend(keys.iter().filter_map(|key| file_of(key.strip_prefix(&prefix)?)));
            files.truncate(limit);
            cursor = next;
            if cursor == 0 || files.len() == limit {
                break;
            }
        }
        files.sort_unstable();
        files.dedup();
        Ok(files)
    }

    fn round_trips(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }
}
