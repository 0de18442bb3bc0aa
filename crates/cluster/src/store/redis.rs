//! A store on one server of Redis or Valkey, or on a [cluster](ClusterStore) of them.
//!
//! All keys of one origin have the same hash tag; on a cluster, the members and each partition have one each. A file's
//! tokens are a hash of a version and a value. It is kept for an hour after nobody holds or wants anything, so that no
//! delayed request finds the version that it expects. Each session has a list of messages, on which it waits.

mod cluster;
mod connection;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod keys;
pub(crate) mod partitions;
mod routes;
mod scripts;
mod server;
pub(crate) mod server_identity;
mod silence;
mod slots;
pub(crate) mod when_full;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use halocline_cache::coherence::SharedFile;
use halocline_model::background::{Use, Users};
use halocline_model::token::{Epoch, Members, Session, Tokens};
use parking_lot::Mutex;
use redis::{FromRedisValue, Script, ScriptInvocation};

use super::coding;
use super::{LEASE_MAX, Lease, Reading, Result, Roll, Store, StoreError, Swap};
use connection::Connection;
use keys::{Keys, file_of, named};
use scripts::{FileScripts, MemberScripts};
use server::{Server, TIMEOUT, info_of};

pub use cluster::ClusterStore;
pub use connection::polled_by_this_thread;

/// How long tokens are kept when nobody holds or wants any.
const KEPT: Duration = Duration::from_hours(1);
/// How long leases that a server has forgotten may still run.
const FORGOTTEN: Duration = LEASE_MAX;
/// The longest name of an origin.
const NAME_MAX: usize = 64;

/// The most requests that list the files of one server: a thousand keys each, including those of others. A faulty
/// server might never end its list.
const SCANS_MAX: u32 = 1_000_000;
/// The most time for that.
const SCAN_LIMIT: Duration = Duration::from_mins(10);

/// The most servers that a URL may name.
const SEEDS_MAX: usize = 64;

/// Opens the store at `urls`: the URL of a server, of one of a cluster's servers, or several URLs of one cluster
/// separated by commas. Each has the form described at [`RedisStore::connect`].
///
/// # Errors
/// If it cannot be reached, or if its settings would lose tokens. No error shows a secret.
pub fn open(urls: &str, password: Option<&str>, origin: &str) -> Result<Arc<dyn Store>> {
    let urls = urls_of(urls)?;
    if is_cluster(&urls, password)? {
        return Ok(Arc::new(ClusterStore::connect(&urls, password, origin)?));
    }
    Ok(Arc::new(RedisStore::connect(urls[0], password, origin)?))
}

/// Whether a store can be used without a password from other machines, as far as its URLs tell.
#[must_use]
pub fn is_open_to_machines(urls: &str, password: Option<&str>) -> bool {
    urls.split(',').any(|url| info_of(url, password).is_ok_and(|info| server::is_open(&info)))
}

/// The URLs in a text, at least one.
fn urls_of(urls: &str) -> Result<Vec<&str>> {
    let urls: Vec<&str> = urls.split(',').collect();
    if urls.len() > SEEDS_MAX {
        let what =
            format!("more than {SEEDS_MAX} servers are named; some of the cluster's will do");
        return Err(StoreError::Unusable(what));
    }
    Ok(urls)
}

/// Whether the servers at `urls` belong to a cluster; otherwise there is only one.
fn is_cluster(urls: &[&str], password: Option<&str>) -> Result<bool> {
    let mut failed = None;
    for url in urls {
        match is_of_cluster(&Server::new(info_of(url, password)?)) {
            Ok(true) => return Ok(true),
            Ok(false) if urls.len() == 1 => return Ok(false),
            Ok(false) => {
                let what = "several servers are named, and one is not part of a cluster";
                return Err(StoreError::Unusable(what.to_owned()));
            }
            // Another server may be reachable.
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.expect("there is a URL, if an empty one"))
}

fn is_of_cluster(server: &Server) -> Result<bool> {
    let ask = |connection: &mut Connection| redis::cmd("INFO").arg("cluster").query(connection);
    let info: String = server.ask(ask).map_err(|error| server.error(&error))?;
    Ok(info.lines().any(|line| line.trim_end() == "cluster_enabled:1"))
}

/// # Errors
/// If an origin's name is not 1 to 64 letters, digits, `-` and `_`.
fn check_name(origin: &str) -> Result<()> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
    if origin.is_empty() || origin.len() > NAME_MAX || !origin.chars().all(is_plain) {
        let what = "the name of an origin is made of up to 64 letters, digits, - and _";
        return Err(StoreError::Unusable(what.to_owned()));
    }
    Ok(())
}

/// The store on one server.
pub struct RedisStore {
    server: Server,
    keys: Keys,
    /// The connection for waits.
    listening: Mutex<Option<Connection>>,
    receiving: Mutex<Option<Connection>>,
    files: FileScripts,
    members: MemberScripts,
    asked: AtomicU64,
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("server", &self.server).finish_non_exhaustive()
    }
}

impl RedisStore {
    /// Connects to the server at `url`, `redis://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE]`, or `rediss://` for TLS; a
    /// `password` given separately takes precedence. `origin` distinguishes origins that share the server: letters,
    /// digits, `-` and `_`.
    ///
    /// # Errors
    /// If it cannot be reached, or if its settings would lose tokens. No error shows a secret.
    pub fn connect(url: &str, password: Option<&str>, origin: &str) -> Result<Self> {
        check_name(origin)?;
        let store = Self {
            server: Server::new(info_of(url, password)?),
            keys: Keys::new(origin),
            listening: Mutex::default(),
            receiving: Mutex::default(),
            files: FileScripts::new(),
            members: MemberScripts::new(),
            asked: AtomicU64::new(0),
        };
        store.server.check_settings()?;
        Ok(store)
    }

    /// Sends a request over an idle connection.
    fn ask<T>(&self, ask: impl FnOnce(&mut Connection) -> redis::RedisResult<T>) -> Result<T> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.server.ask(ask).map_err(|error| self.server.error(&error))
    }

    fn run<T: FromRedisValue>(&self, script: &ScriptInvocation<'_>) -> Result<T> {
        self.ask(|connection| script.invoke(connection))
    }
}

/// Parses the answer of a script that reads a file: epoch, version and tokens.
fn reading((epoch, version, bytes): (String, String, Vec<u8>)) -> Result<Reading> {
    let epoch = Epoch(number(&epoch)?);
    if version.is_empty() {
        return Ok(Reading { tokens: Tokens::new(epoch), epoch });
    }
    Ok(Reading { tokens: coding::tokens(&bytes, number(&version)?)?, epoch })
}

/// Parses the answer of a script that changes a file: whether it did, and otherwise what is stored.
fn swapped((taken, epoch, version, bytes): (bool, String, String, Vec<u8>)) -> Result<Swap> {
    if taken { Ok(Swap::Taken) } else { Ok(Swap::Other(reading((epoch, version, bytes))?)) }
}

fn number<T: FromStr>(text: &str) -> Result<T> {
    text.parse().map_err(|_| StoreError::Unsound("something that should be a number".to_owned()))
}

/// The number of the epoch that begins if the server may have forgotten something; never used again.
fn candidate() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    // The keys are random, and differ each time.
    RandomState::new().build_hasher().finish()
}

/// The answer of the script that reads the members: epoch, version, members, time, sessions with their leases, when the
/// epoch began, and the partitions of a cluster.
type RollAnswer = (String, String, Vec<u8>, u64, Vec<String>, String, String);

/// Parses the answer of the script that reads the members. `forgotten` is how long leases that the store has forgotten
/// may still run.
fn roll_of(answer: RollAnswer, forgotten: Duration) -> Result<(Roll, String)> {
    let (epoch, version, members, now_ms, leases, since_ms, partitions) = answer;
    let epoch = Epoch(number(&epoch)?);
    let lease = |pair: &[String]| Ok((Session(number(&pair[0])?), number(&pair[1])?));
    let roll = Roll {
        epoch,
        partitions: Arc::from([epoch]),
        version: if version.is_empty() { 0 } else { number(&version)? },
        members: if version.is_empty() { Members::default() } else { coding::members(&members)? },
        leases: leases.chunks_exact(2).map(lease).collect::<Result<_>>()?,
        forgotten_until_ms: number::<u64>(&since_ms)?.saturating_add(millis(forgotten)),
        now_ms,
    };
    Ok((roll, partitions))
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// # Errors
/// If a lease is longer than the time for which forgotten leases are respected.
fn check_lease(lease_ms: u64) -> Result<()> {
    if lease_ms > millis(LEASE_MAX) {
        let what = format!("a lease of {lease_ms} ms, longer than {} s", LEASE_MAX.as_secs());
        return Err(StoreError::Unusable(what));
    }
    Ok(())
}

/// The script that reads a file's tokens.
fn read<'a>(script: &'a Script, keys: &Keys, file: SharedFile) -> ScriptInvocation<'a> {
    let mut script = script.prepare_invoke();
    script.key(&keys.epoch).key(keys.file(file)).arg(candidate());
    script
}

/// The script that changes a file's tokens.
fn swap<'a>(
    script: &'a Script,
    keys: &Keys,
    file: SharedFile,
    (expected, new): (u64, &Tokens),
) -> Result<ScriptInvocation<'a>> {
    let kept_ms = if new.is_empty() { millis(KEPT) } else { 0 };
    let mut script = script.prepare_invoke();
    script.key(&keys.epoch).key(keys.file(file)).arg(candidate());
    script.arg(expected).arg(new.epoch().0).arg(new.version).arg(coding::encode(new)?).arg(kept_ms);
    Ok(script)
}

/// The script that reads the members.
fn roll<'a>(script: &'a Script, keys: &Keys) -> ScriptInvocation<'a> {
    let mut script = script.prepare_invoke();
    script.key(&keys.epoch).key(&keys.members).key(&keys.leases).arg(candidate());
    script
}

/// The script that changes the members.
fn swap_members<'a>(
    script: &'a Script,
    keys: &Keys,
    (from, new, lease): (&Roll, &Members, Lease),
    forgotten: Duration,
) -> Result<ScriptInvocation<'a>> {
    let (what, session, lease_ms) = match lease {
        Lease::Stays => ("stays", Session(0), 0),
        Lease::Runs(session, lease_ms) => ("runs", session, lease_ms),
        Lease::IsOver(session) => ("over", session, 0),
        Lease::Ends(session) => ("ends", session, 0),
    };
    check_lease(lease_ms)?;
    let version = from.version.checked_add(1);
    let version = version.ok_or_else(|| StoreError::Unsound("a last version".to_owned()))?;
    let mut script = roll(script, keys);
    script.arg(from.version).arg(from.epoch.0).arg(version).arg(coding::encode(new)?);
    script.arg(what).arg(session.0).arg(lease_ms).arg(millis(forgotten));
    Ok(script)
}

/// The script that renews a lease.
fn renew<'a>(
    script: &'a Script,
    keys: &Keys,
    (session, epoch, lease_ms): (Session, Epoch, u64),
) -> Result<ScriptInvocation<'a>> {
    check_lease(lease_ms)?;
    let mut script = script.prepare_invoke();
    script.key(&keys.epoch).key(&keys.members).key(&keys.leases).arg(candidate());
    script.arg(epoch.0).arg(session.0).arg(lease_ms);
    Ok(script)
}

/// The script that counts the origin's users, after noting what one of them does.
fn users<'a>(
    script: &'a Script,
    keys: &Keys,
    own: Option<(Session, Use, u64)>,
) -> ScriptInvocation<'a> {
    let mut script = script.prepare_invoke();
    script.key(&keys.working).key(&keys.serving).key(&keys.leases);
    match own {
        Some((session, own, kept_ms)) => script
            .arg(format!("{:016x}", session.0))
            .arg(u8::from(own.works))
            .arg(u8::from(own.serves))
            .arg(kept_ms.max(1)),
        None => script.arg(""),
    };
    script
}

/// The answer of that script.
fn users_of((working, serving, nodes): (u64, u64, u64)) -> Users {
    Users { working, serving, nodes }
}

/// The script that sends a session a message; `told` is the session's list.
fn tell<'a>(script: &'a Script, messages: &str, file: SharedFile) -> ScriptInvocation<'a> {
    let mut script = script.prepare_invoke();
    script.key(messages).arg(named(file));
    script
}

/// The script that sends a session a peer message; `messages` is the session's list.
fn send<'a>(script: &'a Script, messages: &str, message: &[u8]) -> ScriptInvocation<'a> {
    let mut script = script.prepare_invoke();
    script.key(messages).arg(message);
    script
}

/// Waits over a separate connection until something is in a list; `None` if the connection fails.
fn wait_for(
    waiting: &Mutex<Option<Connection>>,
    connect: impl FnOnce() -> Option<Connection>,
    list: &str,
    limit: Duration,
) -> Option<Vec<Vec<u8>>> {
    let mut waiting = waiting.lock();
    if waiting.is_none() {
        *waiting = connect();
    }
    let wait = limit.min(TIMEOUT / 2).as_secs_f64();
    let pop = |connection: &mut Connection| -> redis::RedisResult<Option<(String, Vec<u8>)>> {
        redis::cmd("BLPOP").arg(list).arg(wait).query(connection)
    };
    if let Some(Ok(popped)) = waiting.as_mut().map(pop) {
        return Some(popped.into_iter().map(|(_, value)| value).collect());
    }
    *waiting = None;
    None
}

/// An empty result after a failed connection, following a pause so that it is not retried at once.
fn nothing_for(pause: Duration) -> Vec<Vec<u8>> {
    std::thread::sleep(pause);
    Vec::new()
}

/// The files named in messages.
fn files_of(messages: Vec<Vec<u8>>) -> Vec<SharedFile> {
    let name = |message: Vec<u8>| file_of(&String::from_utf8(message).ok()?);
    messages.into_iter().filter_map(name).collect()
}

/// Some of the files whose keys begin like one of the `keys`, according to some server; at most `limit`.
fn scan(
    ask: impl Fn(&redis::Cmd) -> Result<(u64, Vec<String>)>,
    pattern: &str,
    limit: usize,
) -> Result<Vec<SharedFile>> {
    let mut files = Vec::new();
    let mut cursor = 0_u64;
    let begun = Instant::now();
    for _ in 0..SCANS_MAX {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(1000);
        let (next, keys) = ask(&scan)?;
        let name = |key: &String| file_of(key.split_once("}:file:")?.1);
        files.extend(keys.iter().filter_map(name));
        files.truncate(limit);
        cursor = next;
        if cursor == 0 || files.len() == limit {
            files.sort_unstable();
            files.dedup();
            return Ok(files);
        }
        if begun.elapsed() > SCAN_LIMIT {
            break;
        }
    }
    Err(StoreError::NoAnswer("it does not come to an end with the list of its keys".to_owned()))
}

impl Store for RedisStore {
    fn partition(&self, _file: SharedFile) -> usize {
        0
    }

    fn read(&self, file: SharedFile) -> Result<Reading> {
        reading(self.run(&read(&self.files.read, &self.keys, file))?)
    }

    fn swap(&self, file: SharedFile, expected: u64, new: &Tokens) -> Result<Swap> {
        let swap = |script| swap(script, &self.keys, file, (expected, new));
        swapped(self.files.swap.run(swap, |script| self.run(script))?)
    }

    fn roll(&self) -> Result<Roll> {
        let answer = self.run(&roll(&self.members.roll, &self.keys))?;
        Ok(roll_of(answer, FORGOTTEN)?.0)
    }

    fn swap_members(&self, from: &Roll, new: &Members, lease: Lease) -> Result<bool> {
        let swap = |script| swap_members(script, &self.keys, (from, new, lease), FORGOTTEN);
        self.members.swap_members.run(swap, |script| self.run(script))
    }

    fn renew(&self, session: Session, epoch: Epoch, lease_ms: u64) -> Result<bool> {
        let renew = |script| renew(script, &self.keys, (session, epoch, lease_ms));
        self.members.renew.run(renew, |script| self.run(script))
    }

    fn tell(&self, session: Session, file: SharedFile) {
        let messages = self.keys.messages(session);
        let tell = |script| Ok(tell(script, &messages, file));
        let _: Result<u64> = self.files.tell.run(tell, |script| self.run(script));
    }

    fn listen(&self, session: Session, wait_limit: Duration) -> Vec<SharedFile> {
        let connect = || self.server.connect().ok();
        let found = wait_for(&self.listening, connect, &self.keys.messages(session), wait_limit);
        files_of(found.unwrap_or_else(|| nothing_for(wait_limit)))
    }

    fn send(&self, session: Session, message: &[u8]) {
        let messages = self.keys.peer_messages(session);
        let send = |script| Ok(send(script, &messages, message));
        let _: Result<u64> = self.files.send.run(send, |script| self.run(script));
    }

    fn receive(&self, session: Session, wait_limit: Duration) -> Vec<Vec<u8>> {
        let connect = || self.server.connect().ok();
        let messages = self.keys.peer_messages(session);
        let received = wait_for(&self.receiving, connect, &messages, wait_limit);
        received.unwrap_or_else(|| nothing_for(wait_limit))
    }

    fn users(&self, own: Option<(Session, Use, u64)>) -> Result<Users> {
        self.run(&users(&self.members.users, &self.keys, own)).map(users_of)
    }

    fn files(&self, limit: usize) -> Result<Vec<SharedFile>> {
        let pattern = format!("{}file:*", self.keys.prefix);
        scan(|command| self.ask(|connection| command.query(connection)), &pattern, limit)
    }

    fn round_trips(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a server that never ended its list kept `cluster status`, `fsck` and `forget` forever.
    #[test]
    fn a_list_of_keys_without_an_end_is_an_error() {
        let endless = |_: &redis::Cmd| Ok((1, Vec::new()));
        assert!(matches!(scan(endless, "x", 10), Err(StoreError::NoAnswer(_))));
        let key = "halocline:{0}:file:1:2".to_owned();
        let two = |command: &redis::Cmd| {
            let is_first = command
                .args_iter()
                .nth(1)
                .is_some_and(|cursor| matches!(cursor, redis::Arg::Simple(b"0")));
            Ok((u64::from(is_first), vec![key.clone()]))
        };
        assert_eq!(scan(two, "x", 10).unwrap(), [SharedFile { inode: 1, born_ns: 2 }]);
    }
}
