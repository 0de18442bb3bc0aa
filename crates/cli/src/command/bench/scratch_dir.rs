//! The directory of one benchmark, and those that killed benchmarks left behind.
//!
//! What must hold: no directory in which a benchmark is working is removed. So each benchmark holds a lock on a file in
//! its directory, which the kernel releases however the benchmark ends. The file appears only once it is locked, and
//! what is mounted in the directory ends with the benchmark (see [`super::mount_processes`]).

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::print::tell;
use crate::text;
use halocline_api::control::mount;
use halocline_os::error::{Error, Result};
use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;
use tempfile::TempDir;

/// The prefix of the directories that a benchmark creates; those that a killed one left behind are found by it.
const PREFIX: &str = "halocline-bench-";
/// The file in it that a benchmark holds a lock on.
const LOCK: &str = "in-use";

/// A directory of a benchmark; removed with this value.
#[derive(Debug)]
pub(super) struct ScratchDir {
    dir: TempDir,
    #[cfg_attr(not(test), expect(dead_code, reason = "held, not used"))]
    lock: File,
}

impl ScratchDir {
    /// Creates a new directory in `dir`.
    pub(super) fn make_in(dir: &Path) -> Result<Self> {
        let failed = || Error::at(dir, "make a scratch directory in");
        let dir = tempfile::Builder::new().prefix(PREFIX).tempdir_in(dir).map_err(failed())?;
        let lock = lock(dir.path()).map_err(failed())?;
        Ok(Self { dir, lock })
    }

    pub(super) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Removes it with everything in it.
    pub(super) fn remove(self) -> Result<()> {
        let path = self.path().to_owned();
        self.dir.close().map_err(Error::at(path, "remove the scratch directory"))
    }
}

/// Creates the lock file of `dir`.
fn lock(dir: &Path) -> io::Result<File> {
    let fresh = dir.join(format!("{LOCK}.new"));
    let file = File::create_new(&fresh)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    fs::rename(fresh, dir.join(LOCK))?;
    Ok(file)
}

/// What was done about a directory that was found.
#[derive(Debug, PartialEq, Eq)]
enum Cleanup {
    /// A benchmark is working in it, or it belongs to somebody else.
    Left,
    Removed,
    /// It is uncertain whether somebody uses it; these paths are mounted below it.
    Unclear(Vec<PathBuf>),
}

/// Removes what killed benchmarks left in `dir`, and says so. If it is uncertain whether somebody still uses a
/// directory, says how to remove it.
pub(super) fn clear_away_in(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir).map_err(Error::at(dir, "list"))? {
        let entry = entry.map_err(Error::at(dir, "list"))?;
        let path = entry.path();
        if !is_ours(&entry.file_name(), &path) {
            continue;
        }
        let shown = text::path(&path);
        match clear_away(&path) {
            Ok(Cleanup::Left) => {}
            Ok(Cleanup::Removed) => tell!("halocline: removed {shown}: its benchmark was killed"),
            Ok(Cleanup::Unclear(mounts)) => {
                tell!("halocline: {shown} may be of a benchmark that was killed; if so:");
                for mount in mounts.iter().rev() {
                    tell!("    umount -l {}", text::path(mount));
                }
                tell!("    rm -r {shown}");
            }
            Err(error) => tell!("halocline: {shown} is of a killed benchmark: {error}"),
        }
    }
    Ok(())
}

/// Whether a benchmark of this user made the directory at `path`.
fn is_ours(name: &OsStr, path: &Path) -> bool {
    let named = name.as_encoded_bytes().starts_with(PREFIX.as_bytes());
    named
        && fs::symlink_metadata(path)
            .is_ok_and(|found| found.is_dir() && found.uid() == geteuid().as_raw())
}

fn clear_away(path: &Path) -> Result<Cleanup> {
    let mounts = mount::below(path).map_err(Error::at(path, "look for mounts below"))?;
    // Held until the directory has been removed.
    let lock = match File::open(path.join(LOCK)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Cleanup::Unclear(mounts));
        }
        Err(error) => return Err(Error::at(path.join(LOCK), "open")(error)),
    };
    if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(Cleanup::Left);
    }
    if !mounts.is_empty() {
        return Ok(Cleanup::Unclear(mounts));
    }
    fs::remove_dir_all(path).map_err(Error::at(path, "remove the scratch directory"))?;
    Ok(Cleanup::Removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_in_use_stays_and_one_of_a_killed_benchmark_goes() {
        let dir = tempfile::tempdir().unwrap();
        let mut claimed = ScratchDir::make_in(dir.path()).unwrap();
        let path = claimed.path().to_owned();
        assert_eq!(clear_away(&path).unwrap(), Cleanup::Left);
        assert!(path.join(LOCK).exists());
        // As when its process is killed. Here the process lives on: a program that another test is just starting has a
        // copy of the file until it runs, and that copy would keep a lock that is only dropped.
        claimed.dir.disable_cleanup(true);
        flock(&claimed.lock, FlockOperation::Unlock).unwrap();
        drop(claimed);
        fs::write(path.join("data"), "x").unwrap();
        assert_eq!(clear_away(&path).unwrap(), Cleanup::Removed);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_directory_that_nobody_can_answer_for_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("halocline-bench-old");
        fs::create_dir(&path).unwrap();
        assert_eq!(clear_away(&path).unwrap(), Cleanup::Unclear(Vec::new()));
        assert!(path.exists());
        assert!(is_ours("halocline-bench-old".as_ref(), &path));
        assert!(!is_ours("thesis".as_ref(), &path));
        std::os::unix::fs::symlink(&path, dir.path().join("halocline-bench-link")).unwrap();
        assert!(!is_ours(
            "halocline-bench-link".as_ref(),
            &dir.path().join("halocline-bench-link")
        ));
    }
}
