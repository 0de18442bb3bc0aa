//! The servers of a store whose keys lie in partitions, on one server or on a cluster: each partition has its own hash
//! tag, the same on both.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redis::{FromRedisValue, ScriptInvocation};

use super::routes::{KeyGroup, Routes};
use super::server::{Server, info_of};
use super::slots::{PARTITIONS, slot_of, tags_of};
use super::{Result, StoreError, check_name, is_cluster, number, urls_of};
use crate::store::Memory;

/// After this time no further master is asked.
const MASTERS_LIMIT: Duration = Duration::from_secs(5);
/// The most keys that are listed.
const KEYS_MAX: usize = 1 << 28;

/// The servers.
pub(crate) struct Partitions {
    servers: Servers,
    origin: String,
    /// Hash tag and slot of each.
    tags: Vec<(String, u16)>,
    asked: AtomicU64,
}

enum Servers {
    One(Server),
    Cluster(Routes),
}

impl fmt::Debug for Partitions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Partitions").field("origin", &self.origin).finish_non_exhaustive()
    }
}

impl Partitions {
    /// Number of partitions.
    pub(crate) const COUNT: usize = PARTITIONS;

    /// Connects to the servers at `urls`, as [`open`](super::open) does.
    ///
    /// # Errors
    /// If they cannot be reached, or if their settings would lose keys. No error shows a secret.
    pub(crate) fn connect(urls: &str, password: Option<&str>, origin: &str) -> Result<Self> {
        check_name(origin)?;
        let urls = urls_of(urls)?;
        let servers = if is_cluster(&urls, password)? {
            let seeds = urls.iter().map(|url| info_of(url, password)).collect::<Result<_>>()?;
            Servers::Cluster(Routes::new(seeds)?)
        } else {
            let server = Server::new(info_of(urls[0], password)?);
            server.check_settings()?;
            Servers::One(server)
        };
        let partition = |tag: String| {
            let slot = slot_of(&tag);
            (tag, slot)
        };
        let tags = tags_of(origin).into_iter().map(partition).collect();
        Ok(Self { servers, origin: origin.to_owned(), tags, asked: AtomicU64::new(0) })
    }

    /// Whether they are a cluster.
    pub(crate) const fn is_cluster(&self) -> bool {
        matches!(self.servers, Servers::Cluster(_))
    }

    /// The hash tag of a partition.
    pub(crate) fn tag(&self, partition: usize) -> &str {
        &self.tags[partition].0
    }

    /// Runs a script whose keys have a partition's tag. An error other than that of the script itself may mean that it
    /// was executed.
    pub(crate) fn run<T: FromRedisValue>(
        &self,
        partition: usize,
        script: &ScriptInvocation<'_>,
    ) -> Result<T> {
        match &self.servers {
            Servers::One(server) => {
                self.asked.fetch_add(1, Ordering::Relaxed);
                let answer = server.ask(|connection| script.invoke(connection));
                answer.map_err(|error| server.error(&error))
            }
            Servers::Cluster(routes) => {
                routes.run(KeyGroup::Partition(partition, self.tags[partition].1), script)
            }
        }
    }

    /// All keys `halocline:{TAG}:BEGIN...END` of all partitions, each as the text between `BEGIN` and `END`. Keys that
    /// are added or removed meanwhile may be missing, or there twice.
    pub(crate) fn keys(&self, begin: &str, end: &str) -> Result<Vec<String>> {
        // Names of origins contain no characters with a meaning in patterns.
        let pattern = format!("halocline:{{{}.*}}:{begin}*{end}", self.origin);
        let infix = format!("}}:{begin}");
        let mut found = Vec::new();
        match &self.servers {
            Servers::One(server) => self.scan(server, &pattern, (&infix, end), &mut found)?,
            Servers::Cluster(routes) => {
                for (_, master) in routes.masters(Instant::now() + MASTERS_LIMIT)? {
                    self.scan(&*master?, &pattern, (&infix, end), &mut found)?;
                }
            }
        }
        Ok(found)
    }

    fn scan(
        &self,
        server: &Server,
        pattern: &str,
        (infix, end): (&str, &str),
        found: &mut Vec<String>,
    ) -> Result<()> {
        let mut cursor = String::from("0");
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(1000);
            self.asked.fetch_add(1, Ordering::Relaxed);
            let answer = server.ask(|connection| scan.query(connection));
            let (next, keys): (String, Vec<String>) =
                answer.map_err(|error| server.error(&error))?;
            let between =
                |key: &String| Some(key.split_once(infix)?.1.strip_suffix(end)?.to_owned());
            found.extend(keys.iter().filter_map(between));
            if found.len() > KEYS_MAX {
                return Err(StoreError::Unsound(format!("more than {KEYS_MAX} keys")));
            }
            if number::<u64>(&next)? == 0 {
                return Ok(());
            }
            cursor = next;
        }
    }

    /// The memory of the fullest server whose memory is limited.
    pub(crate) fn memory(&self) -> Result<Option<Memory>> {
        let all = match &self.servers {
            Servers::One(server) => vec![server.memory()?],
            Servers::Cluster(routes) => {
                let masters = routes.masters(Instant::now() + MASTERS_LIMIT)?;
                masters.into_iter().map(|(_, master)| master?.memory()).collect::<Result<_>>()?
            }
        };
        Ok(all.into_iter().flatten().max_by_key(|memory| memory.percent()))
    }

    /// Number of requests sent to servers.
    pub(crate) fn round_trips(&self) -> u64 {
        let own = self.asked.load(Ordering::Relaxed);
        match &self.servers {
            Servers::One(_) => own,
            Servers::Cluster(routes) => own + routes.asked(),
        }
    }
}
