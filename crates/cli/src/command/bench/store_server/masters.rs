//! A Redis Cluster without replicas, of masters that the benchmark starts and ends.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::Instant;

use halocline_os::random::random_bytes;

use super::super::mount_processes::MountProcess;
use super::super::scratch_dir::ScratchDir;
use super::{START_WAIT_MAX, TICK, first_installed, last_line, spawn};
use crate::failure::Failure;

/// Hash slots of a Redis Cluster.
const SLOTS: u32 = 16384;
/// Programs that ask a server; the first one that is installed is used.
const CLIENTS: [&str; 2] = ["redis-cli", "valkey-cli"];
/// How often ports are tried: somebody may get one before its server has it.
const TRIES: u32 = 4;

/// Masters that answer, each with its share of the slots.
#[derive(Debug)]
pub(super) struct Masters {
    pub(super) processes: Vec<MountProcess>,
    /// Where clients find them.
    pub(super) urls: String,
    /// Without it nobody else on this machine may use them.
    pub(super) password: String,
}

/// One master.
#[derive(Debug)]
struct Master {
    dir: PathBuf,
    port: u16,
    /// Between servers.
    bus: u16,
}

/// Starts `count` masters, which listen on the loopback and keep what they write below `place`.
///
/// # Errors
/// If a program is missing, or they do not answer.
pub(super) fn start(count: u32, place: &ScratchDir) -> Result<Masters, Failure> {
    let password = password()?;
    let mut tried = 1;
    loop {
        let masters = configured(count, place.path(), &password)?;
        let mut processes = Vec::new();
        for master in &masters {
            processes.push(spawn(&[master.settings().as_os_str()])?);
        }
        let begun = Instant::now();
        match join(&masters, &password, &mut processes, begun) {
            Ok(()) => {
                let url = |master: &Master| format!("redis://127.0.0.1:{}", master.port);
                let urls = masters.iter().map(url).collect::<Vec<_>>().join(",");
                return Ok(Masters { processes, urls, password });
            }
            Err(_) if tried < TRIES && has_ended(&mut processes)? => tried += 1,
            Err(failure) => return Err(failure),
        }
        drop(processes);
        for master in masters {
            fs::remove_dir_all(&master.dir)
                .map_err(|error| Failure::unusable(&master.dir, &error))?;
        }
    }
}

impl Master {
    fn settings(&self) -> PathBuf {
        self.dir.join("settings")
    }

    fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// What it answers to a command.
    fn ask(&self, password: &str, words: &[&str]) -> Result<String, Failure> {
        let remedy = "install it (Debian: apt-get install redis-tools)";
        let done = first_installed(CLIENTS, remedy, |command| {
            command.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-e"]).args(words);
            // Not in the command line, which others can read.
            command.env("REDISCLI_AUTH", password).stdin(Stdio::null()).output()
        })?;
        if done.status.success() {
            return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
        }
        Err(does_not_work(String::from_utf8_lossy(&done.stderr).trim()))
    }
}

fn does_not_work(said: &str) -> Failure {
    Failure::failed(format!("a master of the store does not work: {said}"))
}

/// Masters on free ports, each with a directory with its settings.
fn configured(count: u32, place: &Path, password: &str) -> Result<Vec<Master>, Failure> {
    let free = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let unusable = |error: &io::Error| Failure::unusable(place, error);
    // All are held until the last one is known, so that none comes twice.
    let listeners: Vec<_> = (0..2 * count)
        .map(|_| free())
        .collect::<Result<_, _>>()
        .map_err(|error| unusable(&error))?;
    let mut masters = Vec::new();
    for (number, pair) in listeners.chunks(2).enumerate() {
        let port = |listener: &TcpListener| listener.local_addr().map(|address| address.port());
        let dir = place.join(format!("master{number}"));
        DirBuilder::new().mode(0o700).create(&dir).map_err(|error| unusable(&error))?;
        let [port, bus] =
            [port(&pair[0]), port(&pair[1])].map(|port| port.map_err(|e| unusable(&e)));
        let master = Master { port: port?, bus: bus?, dir };
        settle(&master, password).map_err(|error| Failure::unusable(&master.dir, &error))?;
        masters.push(master);
    }
    Ok(masters)
}

/// Writes a master's settings, which only this user can read.
fn settle(master: &Master, password: &str) -> io::Result<()> {
    let Master { dir, port, bus } = master;
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(master.settings())?;
    write!(
        file,
        "bind 127.0.0.1\nport {port}\ncluster-enabled yes\ncluster-port {bus}\nrequirepass {password}\nsave \"\"\n\
         appendonly no\ndir \"{dir}\"\nlogfile \"{log}\"\n",
        dir = dir.display(),
        log = master.log().display(),
    )
}

/// Shares the slots out, and makes the masters known to each other.
fn join(
    masters: &[Master],
    password: &str,
    processes: &mut [MountProcess],
    begun: Instant,
) -> Result<(), Failure> {
    let count = u32::try_from(masters.len()).unwrap_or(u32::MAX);
    let late = || begun.elapsed() > START_WAIT_MAX;
    let mut until = |master: &Master, words: &[&str], said: &str| loop {
        match master.ask(password, words) {
            Ok(answer) if answer.contains(said) => return Ok(()),
            Ok(answer) if late() => return Err(does_not_work(&answer)),
            // Its log says why it ended, or listens nowhere.
            Err(failure) if late() || has_ended(processes)? => {
                return Err(last_line(&master.log()).map_or(failure, |said| does_not_work(&said)));
            }
            Ok(_) | Err(_) => thread::sleep(TICK),
        }
    };
    for (number, master) in (0..).zip(masters) {
        until(master, &["PING"], "PONG")?;
        let first = SLOTS * number / count;
        let last = SLOTS * (number + 1) / count - 1;
        master
            .ask(password, &["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()])?;
        master.ask(password, &["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()])?;
    }
    for other in &masters[1..] {
        let (port, bus) = (other.port.to_string(), other.bus.to_string());
        masters[0].ask(password, &["CLUSTER", "MEET", "127.0.0.1", &port, &bus])?;
    }
    let known = format!("cluster_known_nodes:{count}\r");
    for master in masters {
        until(master, &["CLUSTER", "INFO"], &known)?;
        until(master, &["CLUSTER", "INFO"], "cluster_state:ok")?;
    }
    Ok(())
}

fn has_ended(processes: &mut [MountProcess]) -> Result<bool, Failure> {
    for process in processes {
        if process.has_ended()? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A new password.
fn password() -> Result<String, Failure> {
    Ok(format!("{:032x}", u128::from_ne_bytes(random_bytes()?)))
}
