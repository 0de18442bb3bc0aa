//! Routing on a Redis Cluster: which server to ask for a slot. A request goes to one server, and to another only if the
//! first reports that it did nothing and which one will. A request whose answer was lost is never repeated, because it
//! may have been executed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::{ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, RedisResult};
use redis::{FromRedisValue, ScriptInvocation, ServerErrorKind, Value};

use super::connection::Connection;
use super::server::{Server, TIMEOUT};
use super::slots::{Address, SlotMap};
use super::{Result, StoreError};

/// After this time no further server is asked; the last one may still take its time to answer.
const LIMIT: Duration = Duration::from_secs(5);
/// The most servers to which one request is sent, one after another.
const HOPS: u32 = 16;
/// Pause for a slot that is being moved to another server.
const PAUSE: Duration = Duration::from_millis(25);

/// The partitions of the store that a request may concern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyGroup {
    /// The members and leases.
    Members(u16),
    /// A partition, and its slot.
    Partition(usize, u16),
    /// Messages to sessions.
    Messages(u16),
}

impl KeyGroup {
    const fn slot(self) -> u16 {
        match self {
            Self::Members(slot) | Self::Partition(_, slot) | Self::Messages(slot) => slot,
        }
    }
}

impl fmt::Display for KeyGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Members(slot) => write!(f, "members, slot {slot}"),
            Self::Partition(partition, slot) => write!(f, "partition {partition}, slot {slot}"),
            Self::Messages(slot) => write!(f, "messages, slot {slot}"),
        }
    }
}

/// The servers.
pub(super) struct Routes {
    /// The servers that were named, and how to connect to others.
    seeds: Vec<(Address, Arc<Server>)>,
    template: ConnectionInfo,
    known: Mutex<ClusterView>,
    /// Which server is asked next for the masters of slots: a different one each time, so that one that is partitioned
    /// does not mislead for long.
    turn: Mutex<usize>,
    asked: AtomicU64,
}

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Routes").field("seeds", &self.seeds).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct ClusterView {
    map: SlotMap,
    /// Redirections that servers have reported since, for individual slots.
    moved: BTreeMap<u16, Address>,
    /// Servers that did not answer, or answered as replaced servers do. Only requests to these first find out who the
    /// masters are now: that may take as long as an answer.
    doubted: BTreeSet<Address>,
    servers: BTreeMap<Address, Arc<Server>>,
    /// Servers whose settings could not be checked yet.
    unchecked: BTreeMap<Address, Arc<Server>>,
}

impl ClusterView {
    fn owner(&self, slot: u16) -> Option<&Address> {
        self.moved.get(&slot).or_else(|| self.map.owner(slot))
    }

    /// Whether to ask again who serves a slot.
    fn is_stale(&self, slot: u16) -> bool {
        self.owner(slot).is_none_or(|owner| self.doubted.contains(owner))
    }
}

/// How to go on after an error.
enum Next {
    Redirected { to: Address, asking: bool },
    Pause,
    Fails,
}

impl Routes {
    /// The servers of the cluster to which the `seeds` belong, none of them asked yet.
    ///
    /// # Errors
    /// If there is none, or something other than a cluster's database is named.
    pub(super) fn new(seeds: Vec<ConnectionInfo>) -> Result<Self> {
        let unusable = |what: &str| Err(StoreError::Unusable(what.to_owned()));
        let Some(template) = seeds.first().cloned() else { return unusable("no server is named") };
        if seeds.iter().any(|seed| seed.redis_settings().db() != 0) {
            return unusable("a cluster has one database: leave the number out of the URL");
        }
        let seed = |info: ConnectionInfo| (address_of(&info), Arc::new(Server::new(info)));
        Ok(Self {
            seeds: seeds.into_iter().map(seed).collect(),
            template,
            known: Mutex::default(),
            turn: Mutex::new(0),
            asked: AtomicU64::new(0),
        })
    }

    /// Number of requests sent to servers.
    pub(super) fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    /// Runs a script on the server for a group. An error other than that of the script itself may mean that it was
    /// executed.
    pub(super) fn run<T: FromRedisValue>(
        &self,
        group: KeyGroup,
        script: &ScriptInvocation<'_>,
    ) -> Result<T> {
        self.run_on(group, script, |server, ask| server.ask(ask))
    }

    /// The same, but fails at once if the server has just left others without an answer.
    pub(super) fn run_unless_silent<T: FromRedisValue>(
        &self,
        group: KeyGroup,
        script: &ScriptInvocation<'_>,
    ) -> Result<T> {
        self.run_on(group, script, |server, ask| server.ask_unless_silent(ask))
    }

    fn run_on<T: FromRedisValue>(
        &self,
        group: KeyGroup,
        script: &ScriptInvocation<'_>,
        ask: impl Fn(&Server, &dyn Fn(&mut Connection) -> RedisResult<T>) -> RedisResult<T>,
    ) -> Result<T> {
        let deadline = Instant::now() + LIMIT;
        let (mut address, mut server) = self.owner(group, deadline)?;
        let mut asking = false;
        for _ in 0..HOPS {
            self.asked.fetch_add(1, Ordering::Relaxed);
            let invoke = |connection: &mut Connection| invoke(connection, script, asking);
            let error = match ask(&server, &invoke) {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            match self.next(&error, group, &address) {
                Next::Fails => return Err(at(group, server.error(&error))),
                _ if Instant::now() >= deadline => break,
                Next::Pause => thread::sleep(PAUSE),
                Next::Redirected { to, asking: to_ask } => {
                    server = self.server(&to).map_err(|error| at(group, error))?;
                    (address, asking) = (to, to_ask);
                }
            }
        }
        self.doubt(address);
        let what = format!("{}: its servers send it on to each other", server.address());
        Err(at(group, StoreError::NoAnswer(what)))
    }

    fn next(&self, error: &RedisError, group: KeyGroup, asked: &Address) -> Next {
        match error.kind() {
            ErrorKind::Server(kind @ (ServerErrorKind::Moved | ServerErrorKind::Ask)) => {
                let to = error.redirect_node().and_then(|(to, _)| Address::parse(to, asked));
                let Some(to) = to else { return Next::Fails };
                let asking = kind == ServerErrorKind::Ask;
                if !asking {
                    self.known.lock().moved.insert(group.slot(), to.clone());
                }
                Next::Redirected { to, asking }
            }
            // The slot is being moved, and its keys are on both servers; nothing was done.
            ErrorKind::Server(ServerErrorKind::TryAgain) => Next::Pause,
            ErrorKind::Server(
                ServerErrorKind::ClusterDown
                | ServerErrorKind::MasterDown
                | ServerErrorKind::ReadOnly
                | ServerErrorKind::BusyLoading,
            )
            | ErrorKind::Io => {
                self.doubt(asked.clone());
                Next::Fails
            }
            _ => Next::Fails,
        }
    }

    /// Notes that a server may have been replaced: it did not answer, or it answered as a replaced server does.
    fn doubt(&self, server: Address) {
        self.known.lock().doubted.insert(server);
    }

    /// The same for the server that serves a group.
    pub(super) fn doubt_owner(&self, group: KeyGroup) {
        let known = &mut *self.known.lock();
        if let Some(owner) = known.owner(group.slot()).cloned() {
            known.doubted.insert(owner);
        }
    }

    /// Notes that nothing arrived from the server that serves a group, after a wait of `waited`.
    pub(super) fn note_unheard(&self, group: KeyGroup, waited: Duration) {
        self.doubt_owner(group);
        let known = self.known.lock();
        let server = known.owner(group.slot()).and_then(|owner| known.servers.get(owner));
        if let Some(server) = server
            && waited >= TIMEOUT
        {
            server.note_silence();
        }
    }

    /// The master for a group, as far as known.
    ///
    /// # Errors
    /// If none is known, or it cannot be used.
    pub(super) fn owner(
        &self,
        group: KeyGroup,
        deadline: Instant,
    ) -> Result<(Address, Arc<Server>)> {
        self.refresh(|known| known.is_stale(group.slot()), deadline)?;
        let owner = self.known.lock().owner(group.slot()).cloned();
        let Some(owner) = owner else {
            return Err(at(group, StoreError::NoAnswer("no master serves it".to_owned())));
        };
        match self.server(&owner) {
            Ok(server) => Ok((owner, server)),
            Err(error) => {
                self.doubt(owner);
                Err(at(group, error))
            }
        }
    }

    /// The masters of groups, as far as known; connects to none of them.
    pub(super) fn owners(&self, groups: &[KeyGroup], deadline: Instant) -> Vec<Option<Address>> {
        let is_stale =
            |known: &ClusterView| groups.iter().any(|group| known.is_stale(group.slot()));
        if let Err(error) = self.refresh(is_stale, deadline) {
            tracing::debug!("nobody says who the masters are: {error}");
        }
        let known = self.known.lock();
        let owner = |group: &KeyGroup| known.owner(group.slot()).cloned();
        groups.iter().map(owner).collect()
    }

    /// A connection for the caller alone to the master of a group.
    pub(super) fn connect(&self, group: KeyGroup) -> Result<Connection> {
        let (address, server) = self.owner(group, Instant::now() + LIMIT)?;
        server.connect_unless_silent().map_err(|error| {
            self.doubt(address);
            at(group, server.error(&error))
        })
    }

    /// All masters, and for each the reason why it cannot be used, if any.
    ///
    /// # Errors
    /// If no server reports the masters.
    pub(super) fn masters(&self, deadline: Instant) -> Result<Vec<(Address, Result<Arc<Server>>)>> {
        self.refresh(|_| true, deadline)?;
        let masters = self.known.lock().map.masters();
        Ok(masters
            .into_iter()
            .map(|address| {
                let server = self.server(&address);
                (address, server)
            })
            .collect())
    }

    /// A server with checked settings: it does not lose keys.
    fn server(&self, address: &Address) -> Result<Arc<Server>> {
        let unchecked = {
            let known = self.known.lock();
            if let Some(server) = known.servers.get(address) {
                return Ok(Arc::clone(server));
            }
            known.unchecked.get(address).cloned()
        };
        let server = unchecked.unwrap_or_else(|| self.unknown(address));
        self.asked.fetch_add(1, Ordering::Relaxed);
        let checked = server.check_settings();
        let known = &mut *self.known.lock();
        if matches!(checked, Err(StoreError::NoAnswer(_))) {
            known.unchecked.insert(address.clone(), server);
            return Err(checked.expect_err("it was not answered"));
        }
        known.unchecked.remove(address);
        checked?;
        Ok(Arc::clone(known.servers.entry(address.clone()).or_insert(server)))
    }

    /// A server that others named and of which no more is known. If it is one of the seeds, that one is used, so that
    /// there is one record of whether it answers.
    fn unknown(&self, address: &Address) -> Arc<Server> {
        if let Some((_, seed)) = self.seeds.iter().find(|(seed, _)| seed == address) {
            return Arc::clone(seed);
        }
        let (host, port) = (address.host.clone(), address.port);
        let addr = match self.template.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(host, port),
        };
        Arc::new(Server::new(self.template.clone().set_addr(addr)))
    }

    /// Asks one of the servers for the masters of slots, if they may have changed.
    ///
    /// # Errors
    /// If no server reports them, and nothing is known from before.
    fn refresh(&self, is_stale: impl Fn(&ClusterView) -> bool, deadline: Instant) -> Result<()> {
        let state = || {
            let known = self.known.lock();
            (known.map.is_empty(), is_stale(&known))
        };
        let (is_first, is_stale) = state();
        if !is_first && !is_stale {
            return Ok(());
        }
        // While another thread asks, the previous answer may suffice.
        let turn = if is_first { self.turn.try_lock_until(deadline) } else { self.turn.try_lock() };
        match turn {
            None if is_first => Err(StoreError::NoAnswer("no server answers".to_owned())),
            None => Ok(()),
            Some(_) if state() == (false, false) => Ok(()),
            Some(mut turn) => {
                let asked = self.ask_for_map(&mut turn, deadline);
                if is_first { asked } else { Ok(()) }
            }
        }
    }

    fn ask_for_map(&self, turn: &mut usize, deadline: Instant) -> Result<()> {
        let servers = self.known.lock().servers.clone();
        let mut all: Vec<_> = servers.into_iter().collect();
        all.extend(self.seeds.iter().cloned());
        let mut failed = None;
        for _ in 0..all.len() {
            *turn = (*turn + 1) % all.len();
            let (address, server) = &all[*turn];
            self.asked.fetch_add(1, Ordering::Relaxed);
            let slots = |connection: &mut Connection| {
                redis::cmd("CLUSTER").arg("SLOTS").query::<Value>(connection)
            };
            let answer = server.ask_unless_silent(slots);
            let error = match answer {
                Ok(answer) => match SlotMap::parse(&answer, address) {
                    Some(map) if !map.is_empty() => {
                        self.take(map);
                        return Ok(());
                    }
                    Some(_) => {
                        StoreError::NoAnswer(format!("{}: knows no masters", server.address()))
                    }
                    None => StoreError::Unsound(format!("{}: no map of slots", server.address())),
                },
                Err(error) => server.error(&error),
            };
            failed = Some(error);
            if Instant::now() >= deadline {
                break;
            }
        }
        Err(failed.unwrap_or_else(|| StoreError::NoAnswer("no server is known".to_owned())))
    }

    fn take(&self, map: SlotMap) {
        let known = &mut *self.known.lock();
        let masters = map.masters();
        known.servers.retain(|address, _| masters.contains(address));
        known.unchecked.retain(|address, _| masters.contains(address));
        known.moved.clear();
        known.doubted.clear();
        known.map = map;
    }
}

fn address_of(info: &ConnectionInfo) -> Address {
    match info.addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            Address { host: host.clone(), port: *port }
        }
        _ => Address { host: "127.0.0.1".to_owned(), port: 0 },
    }
}

/// Runs a script; `asking` is for keys that are being moved to that server.
fn invoke<T: FromRedisValue>(
    connection: &mut Connection,
    script: &ScriptInvocation<'_>,
    asking: bool,
) -> RedisResult<T> {
    if asking {
        // `ASKING` applies only to the next command, which must find the script loaded.
        script.load(connection)?;
        redis::cmd("ASKING").exec(connection)?;
    }
    script.invoke(connection)
}

/// Adds the group that an error concerns to its text.
fn at(group: KeyGroup, error: StoreError) -> StoreError {
    match error {
        StoreError::NoAnswer(what) => StoreError::NoAnswer(format!("{what} ({group})")),
        StoreError::Unsound(what) => StoreError::Unsound(format!("{what} ({group})")),
        StoreError::Unusable(what) => StoreError::Unusable(format!("{what} ({group})")),
    }
}
