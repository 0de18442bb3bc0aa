//! Where the names are: a server, or the masters of a Redis Cluster, each with a replica that takes its place.

use std::thread;
use std::time::Duration;

use halocline_testkit::redis_cluster::{MASTERS, RedisCluster};
use halocline_testkit::redis_server::RedisServer;
use rustix::process::Signal;

/// How long a master stands still: less than its clients wait for an answer.
const STILL: Duration = Duration::from_millis(150);
/// Keys of the parts of a cluster, one of each master at first.
const KEYS: [&str; MASTERS] = ["b", "c", "a"];
/// Replicas that take over in seconds, and not where the machine is slow for one.
const SETTINGS: &[&str] = &["--cluster-node-timeout", "5000"];

#[derive(Debug)]
pub(crate) enum Store {
    Server(RedisServer),
    Masters(RedisCluster),
}

/// A server that is killed, or will be.
#[derive(Debug)]
pub(crate) struct Broken {
    /// Whether what it acknowledges is lost with it.
    loses: bool,
    /// Of a cluster: the master, the key by which its part is known, and its replica if that hears nothing any more.
    part: Option<(usize, &'static str, Option<usize>)>,
}

impl Store {
    /// One server, which logs all that it acknowledges.
    pub(crate) fn server() -> Option<Self> {
        let settings = &["--appendonly", "yes", "--appendfsync", "always"];
        RedisServer::start(settings).map(Self::Server)
    }

    /// A cluster.
    pub(crate) fn masters() -> Option<Self> {
        RedisCluster::start(SETTINGS).map(Self::Masters)
    }

    pub(crate) fn urls(&self) -> String {
        match self {
            Self::Server(server) => server.url(),
            Self::Masters(cluster) => cluster.urls(),
        }
    }

    /// Whether the names are built again after a server was killed, which may have lost what it acknowledged: a replica may
    /// always have.
    pub(crate) const fn rebuilds_after(&self, loses: bool) -> bool {
        loses || matches!(self, Self::Masters(_))
    }

    /// The master that stands still or is killed in a round, and a key of its.
    fn master(cluster: &RedisCluster, round: usize) -> (usize, &'static str) {
        let key = KEYS[round % MASTERS];
        (cluster.master_of(key), key)
    }

    /// It, or a master of it, stands still while something is done.
    pub(crate) fn stands_still(&self, round: usize, meanwhile: impl FnOnce()) {
        let signal: &dyn Fn(Signal) = match self {
            Self::Server(server) => &|signal| server.signal(signal),
            Self::Masters(cluster) => {
                let (master, _) = Self::master(cluster, round);
                &move |signal| cluster.signal(master, signal)
            }
        };
        signal(Signal::STOP);
        meanwhile();
        thread::sleep(STILL);
        signal(Signal::CONT);
    }

    /// It is killed, or a master of it. If a master `loses` what it acknowledges, it is killed at the end only: its
    /// replica hears nothing of it from now on.
    pub(crate) fn breaks(&self, round: usize, loses: bool) -> Broken {
        let part = match self {
            Self::Server(server) => {
                server.signal(Signal::KILL);
                None
            }
            Self::Masters(cluster) => {
                let (master, key) = Self::master(cluster, round);
                let replica = loses.then(|| cluster.cut_replica_of(master));
                if !loses {
                    cluster.signal(master, Signal::KILL);
                }
                Some((master, key, replica))
            }
        };
        Broken { loses, part }
    }

    /// It is started again, or the replica takes the master's place. Returns how the names are then checked.
    pub(crate) fn mend(&mut self, broken: &Broken) -> &'static [&'static str] {
        let rebuilds = self.rebuilds_after(broken.loses);
        match (self, broken.part) {
            (Self::Masters(cluster), Some((master, key, replica))) => {
                cluster.kill(master);
                if let Some(replica) = replica {
                    cluster.signal(replica, Signal::CONT);
                }
                cluster.wait_for_successor(master, key);
                cluster.revive(master);
                cluster.wait_until_well();
            }
            (Self::Server(server), _) => {
                server.kill();
                if broken.loses {
                    server.forget();
                }
                server.restart();
            }
            (Self::Masters(_), None) => unreachable!("it was a server"),
        }
        if rebuilds { &["--repair"] } else { &["--confirm", "--repair"] }
    }

    /// It forgets everything.
    pub(crate) fn forgets_all(&self) {
        match self {
            Self::Server(server) => drop(server.command(&["FLUSHALL"])),
            Self::Masters(cluster) => {
                for key in KEYS {
                    cluster.command(cluster.master_of(key), &["FLUSHALL"]);
                }
            }
        }
    }
}
