//! A Redis Cluster of a test's own: three masters, each with a replica.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tempfile::TempDir;

use crate::redis_server::{is_there, program};
use crate::standstill::send;
use crate::waiting::{WAIT_LIMIT, eventually};

/// Masters at first: the first ones of the servers. Each one's replica is as many servers later.
pub const MASTERS: usize = 3;
const SERVERS: usize = 2 * MASTERS;
const SLOTS: usize = 16384;
/// How long a server that is stopped is waited for.
const ANSWER: Duration = Duration::from_secs(1);

/// Settings for tests in which no replica is to take its master's place: by default that happens where a server does not
/// answer for two seconds, which may be only a slow machine. With far more, masters hear so rarely from each other that
/// they give no leases.
pub const STEADY: &[&str] = &["--cluster-node-timeout", "10000"];

/// The servers, which listen on ports of the loopback. Dropping it kills them.
#[derive(Debug)]
pub struct RedisCluster {
    place: TempDir,
    settings: &'static [&'static str],
    /// For clients, and between servers.
    ports: Vec<(u16, u16)>,
    processes: Vec<Child>,
}

impl Drop for RedisCluster {
    fn drop(&mut self) {
        for server in 0..self.processes.len() {
            self.kill(server);
        }
    }
}

impl RedisCluster {
    /// A cluster that answers, with all replicas; `None`, with the reason, where there is no program for it. Its servers save
    /// nothing by themselves. They know each other from the start, by the file that they keep of the cluster.
    pub fn start(settings: &'static [&'static str]) -> Option<Self> {
        if !is_there() {
            return None;
        }
        // Somebody may get a port before its server has it: then others.
        for _ in 0..4 {
            let ports = free_ports();
            let place = tempfile::tempdir().unwrap();
            for server in 0..SERVERS {
                let dir = place.path().join(server.to_string());
                fs::create_dir(&dir).unwrap();
                fs::write(dir.join("nodes.conf"), file_of_nodes(server, &ports)).unwrap();
            }
            let mut cluster = Self { place, settings, ports, processes: Vec::new() };
            for server in 0..SERVERS {
                let process = cluster.spawn(server);
                cluster.processes.push(process);
            }
            if cluster.is_ready() {
                return Some(cluster);
            }
        }
        panic!("no ports for a cluster");
    }

    /// Waits until all servers agree that all is well; `false` if one of them has ended.
    fn is_ready(&mut self) -> bool {
        let mut has_ended = false;
        eventually("the cluster is ready", || {
            has_ended = self.processes.iter_mut().any(|one| one.try_wait().unwrap().is_some());
            has_ended || (0..SERVERS).all(|server| self.is_well(server))
        });
        !has_ended
    }

    /// Waits until all servers run, and all masters have replicas with all that they have.
    pub fn wait_until_well(&self) {
        eventually("the cluster is well", || (0..SERVERS).all(|server| self.is_well(server)));
    }

    fn is_well(&self, server: usize) -> bool {
        let said = |words: &[&str]| self.try_command(server, words).unwrap_or_default();
        let replication = said(&["INFO", "replication"]);
        let is_linked = replication.contains("master_link_status:up")
            || replication.contains("role:master") && replication.contains("state=online");
        is_linked && said(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
    }

    fn spawn(&self, server: usize) -> Child {
        let (port, bus) = self.ports[server];
        Command::new(program())
            .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
            .args(["--cluster-enabled", "yes", "--cluster-port", &bus.to_string()])
            .args(["--cluster-node-timeout", "2000", "--cluster-replica-validity-factor", "0"])
            .args(["--repl-diskless-sync-delay", "0", "--save", "", "--dir"])
            .arg(self.dir(server))
            .args(self.settings)
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// The directory of a server.
    pub fn dir(&self, server: usize) -> PathBuf {
        self.place.path().join(server.to_string())
    }

    /// The directory of all, which goes with them.
    pub fn place(&self) -> &Path {
        self.place.path()
    }

    /// Where clients find each of the servers, on the loopback.
    pub(crate) fn ports(&self) -> impl Iterator<Item = u16> {
        self.ports.iter().map(|(port, _)| *port)
    }

    /// Where clients find one server.
    pub fn url(&self, server: usize) -> String {
        format!("redis://127.0.0.1:{}", self.ports[server].0)
    }

    /// Where clients find the servers.
    pub fn urls(&self) -> String {
        (0..SERVERS).map(|server| self.url(server)).collect::<Vec<_>>().join(",")
    }

    /// Kills a server.
    pub fn kill(&mut self, server: usize) {
        let _ = self.processes[server].kill();
        let _ = self.processes[server].wait();
    }

    /// Starts a server that was killed, with what is on its disk.
    pub fn revive(&mut self, server: usize) {
        self.kill(server);
        self.processes[server] = self.spawn(server);
    }

    /// From now on the replica of a master hears nothing of it: what the master acknowledges is lost with it. Answers
    /// which server that is; it stands still.
    pub fn cut_replica_of(&self, master: usize) -> usize {
        let replica = (master + MASTERS) % SERVERS;
        self.signal(replica, Signal::STOP);
        // What was sent before would be read when it goes on.
        self.command(master, &["CLIENT", "KILL", "TYPE", "replica"]);
        replica
    }

    /// Kills the master that serves a key, and with it what it acknowledges from now on; its replica takes its place, and it
    /// comes back.
    pub fn lose_master_of(&mut self, key: &str) {
        let master = self.master_of(key);
        let replica = self.cut_replica_of(master);
        thread::sleep(Duration::from_millis(300));
        self.kill(master);
        self.signal(replica, Signal::CONT);
        self.wait_for_successor(master, key);
        self.revive(master);
    }

    /// Sends the process of a server a signal.
    pub fn signal(&self, server: usize, signal: Signal) {
        let pid = i32::try_from(self.processes[server].id()).unwrap();
        send(Pid::from_raw(pid).unwrap(), signal);
    }

    /// Who serves a key: a master that runs.
    pub fn master_of(&self, key: &str) -> usize {
        let mut found = None;
        eventually("somebody serves the key", || {
            let serves = |server: &usize| {
                self.try_command(*server, &["EXISTS", key]).is_ok_and(|said| said.starts_with(':'))
            };
            found = (0..SERVERS).find(serves);
            found.is_some()
        });
        found.unwrap()
    }

    /// Waits until another server than `server` serves a key, and who that is.
    pub fn wait_for_successor(&self, server: usize, key: &str) -> usize {
        eventually("another takes its place", || self.master_of(key) != server);
        self.master_of(key)
    }

    /// What a server answers to a command; an array's elements are lines.
    pub fn command(&self, server: usize, words: &[&str]) -> String {
        let said = self.ask(server, words, WAIT_LIMIT).unwrap();
        assert!(!said.starts_with('-'), "{words:?}: {said}");
        said
    }

    /// The same of a server that may stand still, or be none.
    fn try_command(&self, server: usize, words: &[&str]) -> std::io::Result<String> {
        self.ask(server, words, ANSWER)
    }

    fn ask(&self, server: usize, words: &[&str], limit: Duration) -> std::io::Result<String> {
        let connection = TcpStream::connect((Ipv4Addr::LOCALHOST, self.ports[server].0))?;
        connection.set_read_timeout(Some(limit))?;
        let mut from = BufReader::new(&connection);
        let mut ask = |words: &[&str]| {
            (&connection).write_all(request(words).as_bytes())?;
            answer(&mut from)
        };
        if let Some(at) = self.settings.iter().position(|word| *word == "--requirepass") {
            ask(&["AUTH", self.settings[at + 1]])?;
        }
        ask(words)
    }
}

fn request(words: &[&str]) -> String {
    let first = format!("*{}\r\n", words.len());
    words.iter().fold(first, |all, word| format!("{all}${}\r\n{word}\r\n", word.len()))
}

/// One answer: texts as they are, numbers and errors with the sign that they begin with.
fn answer(from: &mut impl BufRead) -> std::io::Result<String> {
    let mut line = String::new();
    from.read_line(&mut line)?;
    let line = line.trim_end();
    let count = |text: &str| text.parse::<usize>().unwrap_or(0);
    match (line.get(..1), line.get(1..)) {
        (Some("$"), Some(len)) => {
            let mut bytes = vec![0; count(len) + 2];
            from.read_exact(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned())
        }
        (Some("*"), Some(len)) => {
            let all: std::io::Result<Vec<_>> = (0..count(len)).map(|_| answer(from)).collect();
            Ok(all?.join("\n"))
        }
        (Some("+"), Some(text)) => Ok(text.to_owned()),
        _ if line.is_empty() => Err(std::io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(line.to_owned()),
    }
}

/// Ports that nobody has at this moment.
fn free_ports() -> Vec<(u16, u16)> {
    let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let held: Vec<_> = (0..SERVERS).map(|_| (listen(), listen())).collect();
    let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
    held.iter().map(|(one, other)| (port(one), port(other))).collect()
}

fn id(server: usize) -> String {
    format!("{:040x}", server + 1)
}

/// What a server keeps of the cluster, as if it had been part of it before.
fn file_of_nodes(own: usize, ports: &[(u16, u16)]) -> String {
    let mut text = String::new();
    for (server, (port, bus)) in ports.iter().enumerate() {
        let myself = if server == own { "myself," } else { "" };
        let master = server % MASTERS;
        let (first, end) = (master * SLOTS / MASTERS, (master + 1) * SLOTS / MASTERS);
        let (role, slots) = if server == master {
            ("master -".to_owned(), format!(" {first}-{}", end - 1))
        } else {
            (format!("slave {}", id(master)), String::new())
        };
        let (id, epoch) = (id(server), master + 1);
        let _ = writeln!(
            text,
            "{id} 127.0.0.1:{port}@{bus} {myself}{role} 0 0 {epoch} connected{slots}"
        );
    }
    let _ = writeln!(text, "vars currentEpoch {MASTERS} lastVoteEpoch 0");
    text
}
