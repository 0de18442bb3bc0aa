//! A Redis server of a test's own.

use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal};
use tempfile::TempDir;

use crate::skipping::skip;
use crate::small_disk::SmallDisk;
use crate::standstill::send;
use crate::waiting::eventually;

/// The server, which listens on a socket: no port, which another test might get while it is restarted. Dropping it kills it.
#[derive(Debug)]
pub struct RedisServer {
    /// What its log lies on, if it has one. Before the place, which it is in.
    disk: Option<SmallDisk>,
    place: TempDir,
    process: Child,
    settings: &'static [&'static str],
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

impl RedisServer {
    /// A server that answers; `None`, with the reason, where there is no program for it. It saves nothing by itself.
    pub fn start(settings: &'static [&'static str]) -> Option<Self> {
        if !is_there() {
            return None;
        }
        let place = tempfile::tempdir().unwrap();
        Some(Self::begin(place, None, settings))
    }

    /// The same, and it logs each change on a small disk; `None`, with the reason, also where there can be none.
    pub fn start_with_log(bytes: u64) -> Option<Self> {
        let place = tempfile::tempdir().unwrap();
        let at = place.path().join("disk");
        fs::create_dir(&at).unwrap();
        let disk = SmallDisk::over(at, bytes)?;
        if !is_there() {
            return None;
        }
        let settings = &["--appendonly", "yes", "--auto-aof-rewrite-min-size", "1mb"];
        Some(Self::begin(place, Some(disk), settings))
    }

    fn begin(place: TempDir, disk: Option<SmallDisk>, settings: &'static [&'static str]) -> Self {
        let process = spawn(place.path(), disk.as_ref(), settings);
        let server = Self { disk, place, process, settings };
        server.wait();
        server
    }

    fn wait(&self) {
        eventually("the server answers", || self.answers());
    }

    fn answers(&self) -> bool {
        let answer = || {
            let mut server = UnixStream::connect(self.socket())?;
            server.write_all(b"PING\r\n")?;
            let mut answer = [0; 5];
            server.read_exact(&mut answer)?;
            std::io::Result::Ok(answer)
        };
        // One that wants a password answers, too.
        answer().is_ok_and(|said| !said.starts_with(b"-LOAD"))
    }

    /// Kills it.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Kills it, and starts it with what is on its disk. A server that was killed while there was no room for its log may
    /// find the log malformed, and ends: then it starts without one, as `docs/CLUSTER.md` tells people to start it.
    pub fn restart(&mut self) {
        self.kill();
        self.process = spawn(self.place.path(), self.disk.as_ref(), self.settings);
        let mut has_ended = false;
        eventually("the server answers, or ends", || {
            has_ended = self.process.try_wait().unwrap().is_some();
            has_ended || self.answers()
        });
        if has_ended {
            let disk = self.disk.as_ref().expect("a server without a log starts");
            fs::remove_dir_all(disk.path().join("appendonlydir")).unwrap();
            self.process = spawn(self.place.path(), self.disk.as_ref(), self.settings);
            self.wait();
        }
    }

    /// Waits until it ends by itself.
    pub fn wait_for_end(&mut self) {
        eventually("the server ends", || self.process.try_wait().unwrap().is_some());
    }

    /// The disk of its log.
    pub fn disk(&self) -> &SmallDisk {
        self.disk.as_ref().expect("it was started with a log")
    }

    /// Removes what is on its disk.
    pub fn forget(&self) {
        for name in ["dump.rdb", "appendonlydir"] {
            let path = self.place.path().join(name);
            let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
        }
    }

    /// What it answers to a command, as it is sent.
    pub fn command(&self, words: &[&str]) -> String {
        let mut server = UnixStream::connect(self.socket()).unwrap();
        let first = format!("*{}\r\n", words.len());
        let request =
            words.iter().fold(first, |all, word| format!("{all}${}\r\n{word}\r\n", word.len()));
        server.write_all(request.as_bytes()).unwrap();
        let mut answer = vec![0; 4096];
        let length = server.read(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer[..length]).into_owned();
        assert!(!answer.starts_with('-'), "{words:?}: {answer}");
        answer
    }

    /// Sends its process a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.process.id()).unwrap()).unwrap();
        send(pid, signal);
    }

    /// Its directory, which goes with it.
    pub fn place(&self) -> &Path {
        self.place.path()
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.place.path().join("socket")
    }

    /// Where clients find it.
    pub fn url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }
}

/// The server's program: `HALOCLINE_STORE_SERVER`, such as a `valkey-server`, or else the `redis-server` in `PATH`.
pub fn program() -> OsString {
    std::env::var_os("HALOCLINE_STORE_SERVER").unwrap_or_else(|| "redis-server".into())
}

/// Whether there is a program for it; says so if there is none.
pub(crate) fn is_there() -> bool {
    let version = Command::new(program()).arg("--version").stdout(Stdio::null()).status();
    if version.is_err() {
        skip("there is no redis-server");
    }
    version.is_ok()
}

fn spawn(place: &Path, disk: Option<&SmallDisk>, settings: &[&str]) -> Child {
    Command::new(program())
        .args(["--port", "0", "--save", "", "--dir"])
        .arg(disk.map_or(place, SmallDisk::path))
        .arg("--unixsocket")
        .arg(place.join("socket"))
        .args(settings)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}
