//! The process that creates the directories and mounts of a benchmark, lets another process measure, and removes
//! everything, whatever happens to that process.
//!
//! The process that measures is inside system calls that no request to stop can reach, so it can only be killed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use halocline_api::control::mount;
use halocline_os::bound_process::bind;
use halocline_os::bounded::{self, SMALL_FILE_BYTES_MAX};
use halocline_os::error::Error;
use rustix::process::{Signal, geteuid};

use super::INSIDE;
use super::setup::{DIRECTORIES, MERGED, TIER};
use crate::child::Signals;
use crate::command::bench::interrupted;
use crate::command::bench::mount_processes::MountProcess;
use crate::command::bench::scratch_dir::{ScratchDir, clear_away_in};
use crate::command::umount::detach;
use crate::failure::{Failure, Outcome};
use crate::mount_lookup;
use crate::self_exec;

/// How long a mount may take to appear.
const WAIT_LIMIT: Duration = Duration::from_secs(30);
/// How often this is checked.
const TICK: Duration = Duration::from_millis(5);
/// The file with the output of the mount process.
const LOG: &str = "mount.log";

/// Runs this command again with [`INSIDE`] and a new directory in `dir`, after mounting everything.
pub(super) fn supervise(dir: &Path) -> Outcome {
    // Mount points are identified by their full paths.
    mount_lookup::check_answers(dir).map_err(Failure::refused)?;
    let dir = fs::canonicalize(dir).map_err(|error| Failure::unusable(dir, &error))?;
    let mut signals = Signals::catch()?;
    if geteuid().is_root() {
        // Mounts that nobody else sees end with us, even if all of our processes are killed at once. An ordinary user's
        // mounts cannot be made by a child in a namespace.
        halocline_fuse::private_namespace().map_err(Failure::refused)?;
    }
    clear_away_in(&dir)?;
    let scratch = ScratchDir::make_in(&dir)?;
    let measured = measure(scratch.path(), &mut signals);
    let removed = scratch.remove();
    let status = measured?;
    removed?;
    match i32::from(status) - 128 {
        signal if signal > 0 => Err(interrupted(signal)),
        _ => Ok(ExitCode::from(status)),
    }
}

/// The exit status of the process that measures below `root`.
fn measure(root: &Path, signals: &mut Signals) -> Result<u8, Failure> {
    let mut mounts = Mounts { root: root.to_owned(), processes: Vec::new() };
    mounts.make(signals)?;
    let mut again = self_exec::command();
    again.args(std::env::args_os().skip(1)).arg(INSIDE).arg(root);
    bind(&mut again, Signal::KILL);
    signals.run(again)
}

/// What is mounted in a directory; unmounted when this is dropped.
#[derive(Debug)]
struct Mounts {
    root: PathBuf,
    processes: Vec<MountProcess>,
}

impl Mounts {
    fn make(&mut self, signals: &mut Signals) -> Result<(), Failure> {
        let at = |name: &str| self.root.join(name);
        for name in DIRECTORIES {
            fs::create_dir(at(name)).map_err(Error::at(at(name), "create the directory"))?;
        }
        let log = at(LOG);
        let mut tier = self_exec::command();
        tier.args(["mount", "--foreground", "--tier"]).args([&self.root, &at(TIER)]);
        tier.stdin(Stdio::null()).stderr(File::create(&log)?);
        let mut mergerfs = Command::new("mergerfs");
        mergerfs.args(["-f", "-o", "cache.files=auto-full,category.create=ff"]);
        mergerfs.arg(format!("{}:{}", at("one").display(), at("two").display())).arg(at(MERGED));
        mergerfs.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let tier = MountProcess::start(&mut tier)?;
        if !self.has_appeared(TIER, tier, signals)? {
            let said = bounded::read_to_string(&log, SMALL_FILE_BYTES_MAX).unwrap_or_default();
            return Err(Failure::from(Error::invalid(
                format!("the tier mount did not appear: {}", said.trim()),
                "`halocline doctor` tells what is missing",
            )));
        }
        // It takes part if it is installed.
        if let Ok(mergerfs) = MountProcess::start(&mut mergerfs) {
            self.has_appeared(MERGED, mergerfs, signals)?;
        }
        Ok(())
    }

    /// Waits for the mount that `process` makes on `name`.
    fn has_appeared(
        &mut self,
        name: &str,
        mut process: MountProcess,
        signals: &mut Signals,
    ) -> Result<bool, Failure> {
        let begun = Instant::now();
        while !mount::is_mountpoint(&self.root.join(name))? {
            if let Some(signal) = signals.stop_signal() {
                return Err(interrupted(signal));
            }
            if begun.elapsed() > WAIT_LIMIT || process.has_ended()? {
                return Ok(false);
            }
            thread::sleep(TICK);
        }
        self.processes.push(process);
        Ok(true)
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        self.processes.clear();
        // The processes unmounted before they ended, or had to be killed.
        for left in mount::below(&self.root).unwrap_or_default().iter().rev() {
            let _ = detach(left);
        }
    }
}
