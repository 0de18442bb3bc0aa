//! The directories and mounts of a benchmark, and their end.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use halocline_core::control::mount::is_mountpoint;
use halocline_core::error::{Error, Result};
use tempfile::TempDir;

use crate::command::bench::scratch;

/// How long a mount may take to appear.
const PATIENCE: Duration = Duration::from_secs(30);
/// What the mount process says.
const LOG: &str = "mount.log";

/// A tier mount, a bare directory and a mergerfs mount beside each other.
#[derive(Debug)]
pub(super) struct Setup {
    scratch: TempDir,
    process: Child,
    mergerfs: bool,
}

impl Setup {
    /// Makes them in `dir`.
    pub(super) fn new(dir: &Path) -> Result<Self> {
        // Mount points are known by their whole paths.
        let whole = fs::canonicalize(dir).map_err(Error::at(dir, "use the directory"))?;
        let scratch = scratch::make(&whole)?;
        let at = |name: &str| scratch.path().join(name);
        for name in ["ssd", "hdd", "mount", "bare", "one", "two", "merged"] {
            fs::create_dir(at(name)).map_err(Error::at(at(name), "create the directory"))?;
        }
        let process = Command::new("/proc/self/exe")
            .args(["mount", "--foreground", "--tier"])
            .args([scratch.path(), &at("mount")])
            .stdin(Stdio::null())
            .stderr(fs::File::create(at(LOG))?)
            .spawn()?;
        let mergerfs = Command::new("mergerfs")
            .args(["-o", "cache.files=auto-full,category.create=ff"])
            .arg(format!("{}:{}", at("one").display(), at("two").display()))
            .arg(at("merged"))
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        let mut setup = Self { scratch, process, mergerfs };
        setup.wait()?;
        Ok(setup)
    }

    fn wait(&mut self) -> Result<()> {
        let begun = Instant::now();
        while !is_mountpoint(&self.tier())? {
            if begun.elapsed() > PATIENCE || self.process.try_wait()?.is_some() {
                let said = fs::read_to_string(self.scratch.path().join(LOG)).unwrap_or_default();
                return Err(Error::invalid(
                    format!("the tier mount did not appear: {}", said.trim()),
                    "`halocline doctor` tells what is missing",
                ));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// The tier mount.
    pub(super) fn tier(&self) -> PathBuf {
        self.scratch.path().join("mount")
    }

    /// A directory of the tiers, below the mount.
    pub(super) fn below(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// The places that are compared: the mount, the bare directory, mergerfs where it is.
    pub(super) fn places(&self) -> Vec<PathBuf> {
        let mut places = vec![self.tier(), self.below("bare")];
        if self.mergerfs {
            places.push(self.below("merged"));
        }
        places
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        let quiet = |command: &mut Command| {
            let _ = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        };
        if self.mergerfs {
            quiet(Command::new("umount").arg(self.below("merged")));
        }
        quiet(Command::new("/proc/self/exe").arg("umount").arg(self.tier()));
        if is_mountpoint(&self.tier()).unwrap_or(false) {
            quiet(Command::new("umount").arg("-l").arg(self.tier()));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
