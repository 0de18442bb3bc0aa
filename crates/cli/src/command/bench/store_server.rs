//! The store of a benchmark: a server that the benchmark starts and ends, or one that is running already.
//!
//! - [`masters`]: a Redis Cluster that it starts; [`processor_split`]: processors for the store, and others for its load.

mod masters;
mod processor_split;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use halocline_cluster::store::redis::RedisStore;
use halocline_os::bounded;

use self::masters::Masters;
pub(super) use self::processor_split::ProcessorSplit;
use super::mount_processes::MountProcess;
use super::scratch_dir::{ScratchDir, clear_away_in};
use crate::failure::Failure;
use crate::store_password::password;
use crate::text;

/// Programs that can serve; the first one that is installed is used.
const PROGRAMS: [&str; 2] = ["redis-server", "valkey-server"];
/// How long a server may take until it answers.
const START_WAIT_MAX: Duration = Duration::from_secs(10);
/// How often it is asked.
const TICK: Duration = Duration::from_millis(20);
/// Longest path of a socket.
const SOCKET_BYTES_MAX: usize = 107;
/// Bytes of the server's log that are read at most.
const LOG_BYTES_MAX: u64 = 1 << 16;

/// The store.
#[derive(Debug)]
pub(super) struct Server {
    url: String,
    password: Option<String>,
    own: Option<Own>,
}

/// The processes of the server, or of the masters, which end before their directory is removed.
#[derive(Debug)]
struct Own {
    processes: Vec<MountProcess>,
    place: ScratchDir,
    /// Of a single server.
    socket: Option<PathBuf>,
}

impl Server {
    /// The server at `url`, or one started by the benchmark if none is named: in a private directory, on a socket that
    /// only this user can reach, and without anything on disk.
    pub(super) fn open(url: Option<&str>) -> Result<Self, Failure> {
        let Some(url) = url else { return Self::start() };
        let password = password().map_err(Failure::refused)?;
        Ok(Self { url: url.to_owned(), password, own: None })
    }

    /// A Redis Cluster of so many masters without replicas, started by the benchmark, on ports of the loopback that take
    /// a password that nobody else has.
    pub(super) fn start_masters(count: u32) -> Result<Self, Failure> {
        let place = place()?;
        let Masters { processes, urls, password } = masters::start(count, &place)?;
        let own = Own { processes, place, socket: None };
        Ok(Self { url: urls, password: Some(password), own: Some(own) })
    }

    fn start() -> Result<Self, Failure> {
        let place = place()?;
        let socket = place.path().join("socket");
        if socket.as_os_str().len() > SOCKET_BYTES_MAX {
            let dir = text::path(&std::env::temp_dir());
            return Err(Failure::refused(format!(
                "{dir}: too long a name for a socket of the store below it; set TMPDIR to a shorter one"
            )));
        }
        let log = place.path().join("log");
        let args = ["--port", "0", "--save", "", "--appendonly", "no", "--unixsocketperm", "700"];
        let paths = [("--dir", place.path()), ("--unixsocket", &socket), ("--logfile", &log)];
        let paths = paths.into_iter().flat_map(|(name, path)| [OsStr::new(name), path.as_os_str()]);
        let process = spawn(&args.into_iter().map(OsStr::new).chain(paths).collect::<Vec<_>>())?;
        let url = format!("redis+unix://{}", encoded(&socket));
        let own = Own { processes: vec![process], place, socket: Some(socket) };
        let mut server = Self { url, password: None, own: Some(own) };
        server.wait(&log)?;
        Ok(server)
    }

    /// Its URL and its password.
    pub(super) fn address(&self) -> (&str, Option<&str>) {
        (&self.url, self.password.as_deref())
    }

    /// How the server's own benchmark is told where it is; or why it cannot be.
    pub(super) fn for_its_own_benchmark(&self) -> Result<[String; 2], &'static str> {
        if let Some(socket) = self.own.as_ref().and_then(|own| own.socket.as_ref()) {
            return Ok(["-s".to_owned(), socket.to_string_lossy().into_owned()]);
        }
        let url = &self.url;
        if self.password.is_some() || url.contains('@') {
            return Err("its command line would show the password to others");
        }
        if url.contains(',') {
            return Err("it asks one server only");
        }
        match url.strip_prefix("redis+unix://").or_else(|| url.strip_prefix("unix://")) {
            Some(socket) => Ok(["-s".to_owned(), socket.to_owned()]),
            None if url.starts_with("redis://") => Ok(["-u".to_owned(), url.clone()]),
            None => Err("it is not told how to use TLS"),
        }
    }

    /// How long the threads that serve requests have worked, one of each server; `None` if the benchmark did not start
    /// the server, or the system does not say.
    pub(super) fn worked(&self) -> Option<Duration> {
        let of = |process: &MountProcess| {
            let file = format!("/proc/{}/schedstat", process.id());
            let told = bounded::read_to_string(Path::new(&file), LOG_BYTES_MAX).ok()?;
            told.split(' ').next()?.parse().ok().map(Duration::from_nanos)
        };
        let worked = self.own.as_ref()?.processes.iter().map(of).sum::<Option<Duration>>();
        worked.filter(|worked| !worked.is_zero())
    }

    /// The processes that the benchmark started.
    fn processes(&self) -> &[MountProcess] {
        self.own.as_ref().map_or(&[], |own| &own.processes)
    }

    /// Whether the benchmark started it.
    pub(super) fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// Ends it if the benchmark started it.
    pub(super) fn end(self) -> Result<(), Failure> {
        let Some(Own { processes, place, .. }) = self.own else { return Ok(()) };
        drop(processes);
        Ok(place.remove()?)
    }

    fn wait(&mut self, log: &Path) -> Result<(), Failure> {
        let begun = Instant::now();
        loop {
            let Err(error) = RedisStore::connect(&self.url, None, "bench") else { return Ok(()) };
            let has_ended = match &mut self.own {
                Some(own) => own.processes[0].has_ended()?,
                None => false,
            };
            if has_ended || begun.elapsed() > START_WAIT_MAX {
                let said = last_line(log).unwrap_or_else(|_| error.to_string());
                return Err(Failure::failed(format!("the store's server does not work: {said}")));
            }
            thread::sleep(TICK);
        }
    }
}

/// A private directory for the servers.
fn place() -> Result<ScratchDir, Failure> {
    let temporary = std::env::temp_dir();
    clear_away_in(&temporary).map_err(Failure::refused)?;
    ScratchDir::make_in(&temporary).map_err(Failure::refused)
}

/// Starts a server.
fn spawn(args: &[&OsStr]) -> Result<MountProcess, Failure> {
    let remedy =
        "install it (Debian: apt-get install redis-server), or give the URL of a server that runs";
    first_installed(PROGRAMS, remedy, |command| {
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        MountProcess::start(command)
    })
}

/// Runs the first program that is installed.
fn first_installed<T>(
    programs: [&str; 2],
    remedy: &str,
    run: impl Fn(&mut Command) -> io::Result<T>,
) -> Result<T, Failure> {
    for program in programs {
        match run(&mut Command::new(program)) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(Failure::refused(format!("{program}: {error}"))),
            Ok(done) => return Ok(done),
        }
    }
    let programs = programs.join(" and no ");
    Err(Failure::refused(format!("there is no {programs} in PATH for the store: {remedy}")))
}

/// Encodes the path for a URL.
fn encoded(path: &Path) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.".contains(&byte);
    let letter = |byte: &u8| match *byte {
        byte if plain(byte) => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    path.as_os_str().as_bytes().iter().map(letter).collect()
}

fn last_line(log: &Path) -> io::Result<String> {
    let said = bounded::read_from(File::open(log)?, LOG_BYTES_MAX)?;
    let said = String::from_utf8_lossy(&said).into_owned();
    said.lines().last().map(str::to_owned).ok_or_else(|| ErrorKind::UnexpectedEof.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_path_is_a_part_of_a_url() {
        assert_eq!(encoded(Path::new("/tmp/a b%/s-1")), "/tmp/a%20b%25/s-1");
    }
}
