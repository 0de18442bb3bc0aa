//! A real mount over a scratch origin, started and ended by the command under test.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use halocline_api::control::mount::is_mountpoint;
use halocline_testkit::fuse_device;
use halocline_testkit::waiting::{WAIT_LIMIT, eventually};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::programs;

const PAUSE: Duration = Duration::from_millis(5);

/// A small cache that takes all there is room for, and is flushed soon.
pub(crate) const ALWAYS: [&str; 6] =
    ["--policy", "always", "--size", "1M", "--max-dirty-age", "100ms"];
/// The flag of mounts that take requests through `io_uring`; others take them from the device.
pub(crate) const IO_URING: &str = "--io-uring=true";

/// What is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Cache,
    Tier,
}

/// A mount, its origin, its cache and its mount point. Dropping it unmounts.
pub(crate) struct Mount {
    kind: Kind,
    /// The origin of another mount, where it is not its own.
    shared_origin: Option<PathBuf>,
    scratch: TempDir,
    options: Vec<String>,
    open_files: Option<u64>,
    process: Option<Child>,
}

/// Why no mount can be tested here, if so.
pub(crate) fn obstacle() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root");
    }
    fuse_device::obstacle()
}

/// Why no mount can take requests through `io_uring` here, if so.
pub(crate) fn ring_obstacle() -> Option<String> {
    obstacle().map(str::to_owned).or_else(halocline_fuse::transport::uring::obstacle)
}

impl Mount {
    /// Mounts a new origin with these flags of `halocline mount`.
    pub(crate) fn new(options: &[&str]) -> Self {
        let mut mount = Self::prepared(Kind::Cache, options);
        mount.start();
        mount
    }

    /// Mounts the origin of another mount, which must live longer, with a cache of its own: another node.
    pub(crate) fn beside(other: &Self, options: &[&str]) -> Self {
        let mut mount = Self::prepared(Kind::Cache, options);
        mount.shared_origin = Some(other.origin());
        mount.start();
        mount
    }

    /// The same by a process that may have `limit` files open.
    pub(crate) fn with_open_files(limit: u64, options: &[&str]) -> Self {
        let mut mount = Self::prepared(Kind::Cache, options);
        mount.open_files = Some(limit);
        mount.start();
        mount
    }

    /// Mounts new tiers, an SSD and an HDD, with these flags.
    pub(crate) fn tier(options: &[&str]) -> Self {
        let mut mount = Self::tier_prepared(options);
        mount.start();
        mount
    }

    /// Mounts the shared disk of another mount, which must live longer, with an SSD of its own: another node.
    pub(crate) fn tier_beside(other: &Self, options: &[&str]) -> Self {
        let mut mount = Self::tier_prepared(options);
        let disk = mount.root().join("hdd");
        fs::remove_dir(&disk).expect("nothing in it yet");
        std::os::unix::fs::symlink(other.root().join("hdd"), disk).expect("link");
        mount.start();
        mount
    }

    /// The same, not mounted yet.
    pub(crate) fn tier_prepared(options: &[&str]) -> Self {
        Self::prepared(Kind::Tier, options)
    }

    fn prepared(kind: Kind, options: &[&str]) -> Self {
        let scratch = TempDir::new().expect("scratch directory");
        for name in ["origin", "cache", "mnt", "tiers", "tiers/ssd", "tiers/hdd"] {
            fs::create_dir(scratch.path().join(name)).expect("directory");
        }
        // Other users take part in some suites; TempDir is for the owner only, as tiers are to be.
        for (path, mode) in [("", 0o755), ("tiers", 0o700)] {
            let mode = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(mode);
            fs::set_permissions(scratch.path().join(path), mode).expect("permissions");
        }
        let mut options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
        // What a test covers must not depend on what the machine's administrator turned on.
        if !options.iter().any(|option| option == IO_URING) {
            options.push("--io-uring=false".into());
        }
        Self { kind, shared_origin: None, scratch, options, open_files: None, process: None }
    }

    /// The directory with the tiers `ssd` and `hdd`.
    pub(crate) fn root(&self) -> PathBuf {
        self.scratch.path().join("tiers")
    }

    /// The origin directory.
    pub(crate) fn origin(&self) -> PathBuf {
        self.shared_origin.clone().unwrap_or_else(|| self.scratch.path().join("origin"))
    }

    /// The cache directory.
    pub(crate) fn cache(&self) -> PathBuf {
        self.scratch.path().join("cache")
    }

    /// The mount point.
    pub(crate) fn path(&self) -> PathBuf {
        self.scratch.path().join("mnt")
    }

    /// Mounts again after [`Mount::unmount`] or [`Mount::kill`].
    pub(crate) fn start(&mut self) {
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.scratch.path().join("mount.log"))
            .expect("log");
        let mut command = programs::halocline();
        if let Some(limit) = self.open_files {
            let mut limited = Command::new("prlimit");
            limited.arg(format!("--nofile={limit}:{limit}")).arg(command.get_program());
            command = limited;
        }
        command.args(["mount", "--foreground"]);
        match self.kind {
            Kind::Cache => {
                command.args([self.origin(), self.path()]).arg("--cache").arg(self.cache())
            }
            Kind::Tier => command.arg("--tier").arg(self.root()).arg(self.path()),
        };
        command.args(&self.options).stdin(Stdio::null());
        command.stdout(log.try_clone().expect("log")).stderr(log);
        // What kills the whole group of the test must not kill it: it would leave a dead mount.
        command.process_group(0);
        // It unmounts when it gets this.
        let mut process =
            programs::bind(&mut command, Signal::TERM).spawn().expect("halocline mount starts");
        let start = Instant::now();
        while !is_mountpoint(&self.path()).expect("mountinfo") || fs::metadata(self.path()).is_err()
        {
            let ended = process.try_wait().expect("wait");
            if ended.is_some() || start.elapsed() > WAIT_LIMIT {
                let _ = process.kill();
                panic!("the mount did not appear ({ended:?}):\n{}", self.log());
            }
            thread::sleep(PAUSE);
        }
        self.process = Some(process);
    }

    /// What the mount process said.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.scratch.path().join("mount.log")).unwrap_or_default()
    }

    /// `halocline status --json`.
    pub(crate) fn status(&self) -> Value {
        let output =
            programs::run(programs::halocline().arg("status").arg(self.path()).arg("--json"));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// Bytes were cached, and changed hands between nodes: else what was compared proves little.
    pub(crate) fn assert_cached_and_handed_over(&self) {
        let report = &self.status()["report"];
        for (of, what) in [("admitted", "requests"), ("cluster", "handovers")] {
            assert!(report[of][what].as_u64() > Some(10), "few {what}: {report}");
        }
    }

    /// Flushes and unmounts; the origin alone then holds everything (I7).
    pub(crate) fn unmount(&mut self) {
        let start = Instant::now();
        loop {
            let output = programs::halocline().arg("umount").arg(self.path()).output();
            let output = output.expect("halocline umount starts");
            if output.status.success() {
                return self.reap();
            }
            // A process that another test starts holds our files between its fork and exec.
            let message = String::from_utf8_lossy(&output.stderr);
            let in_use = message.contains("programs use the mount");
            assert!(in_use && start.elapsed() < WAIT_LIMIT, "{message}\n{}", self.log());
            thread::sleep(PAUSE);
        }
    }

    /// `kill -9` of the mount process; the dead mount is detached.
    pub(crate) fn kill(&mut self, pid: u32) {
        let pid = Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("not 0");
        kill_process(pid, Signal::KILL).expect("kill");
        // A thread that waits for the disk outlives the first one, and holds the lock so long.
        let threads = || {
            fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero()))
                .map_or(0, std::iter::Iterator::count)
        };
        let gone = || match rustix::process::test_kill_process(pid) {
            Ok(()) => fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()))
                .map_or(true, |stat| stat.contains(") Z ") && threads() <= 1),
            Err(_) => true,
        };
        eventually("the end of the mount process", gone);
        programs::run(Command::new("umount").arg("-l").arg(self.path()));
        self.reap();
    }

    fn reap(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.wait();
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.process.is_none() {
            return;
        }
        let unmounted = programs::halocline().arg("umount").arg(self.path()).output();
        if !unmounted.is_ok_and(|output| output.status.success()) {
            let _ = Command::new("umount").arg("-l").arg(self.path()).output();
        }
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
        if thread::panicking() {
            let log = self.log();
            if !log.is_empty() {
                println!("the mount process said:\n{log}");
            }
        }
    }
}
