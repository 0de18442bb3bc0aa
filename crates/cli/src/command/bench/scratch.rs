//! Where a benchmark's origin, cache and mount point are, and their removal.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use halocline_os::error::{Error, Result};
use rustix::fs::{Advice, fadvise, statvfs};

use super::scratch_dir::{self, ScratchDir};
use crate::mount_paths::MountPaths;
use crate::text;

/// Room for metadata and the file system's own blocks, in addition to one part in 16.
const SLACK_BYTES: u64 = 128 << 20;

/// The directories of one benchmark; removed with this value.
#[derive(Debug)]
pub(super) struct Scratch {
    origin_side: ScratchDir,
    cache_side: Option<ScratchDir>,
}

/// The places of the nodes of a cluster.
#[derive(Debug)]
pub(super) struct Nodes {
    pub(super) mounts: Vec<MountPaths>,
    /// For the devices that their emulated origins share.
    pub(super) devices: PathBuf,
}

impl Scratch {
    /// Creates the directories in `dir`, and those of the cache in `cache_dir` if given, after checking that there is
    /// room for `data` and `cache` bytes.
    pub(super) fn new(dir: &Path, cache_dir: Option<&Path>, data: u64, cache: u64) -> Result<Self> {
        for side in [Some(dir), cache_dir].into_iter().flatten().filter(|side| side.is_dir()) {
            scratch_dir::clear_away_in(side)?;
        }
        match cache_dir {
            Some(cache_dir) => {
                check_room("--dir", dir, data)?;
                check_room("--cache-dir", cache_dir, cache)?;
            }
            None => check_room("--dir", dir, data + cache)?,
        }
        Ok(Self {
            origin_side: ScratchDir::make_in(dir)?,
            cache_side: cache_dir.map(ScratchDir::make_in).transpose()?,
        })
    }

    /// Empty directories for one mount.
    pub(super) fn paths(&self) -> Result<MountPaths> {
        let cache_side = self.cache_side.as_ref().unwrap_or(&self.origin_side).path();
        let paths = MountPaths {
            origin: self.origin_side.path().join("origin"),
            cache: cache_side.join("cache"),
            mountpoint: self.origin_side.path().join("mount"),
            view: None,
        };
        for dir in [&paths.origin, &paths.cache, &paths.mountpoint] {
            clear(dir)?;
        }
        Ok(paths)
    }

    /// Empty directories for the mounts of `count` nodes, with one origin for all or one for each.
    pub(super) fn nodes(&self, count: u32, one_origin: bool) -> Result<Nodes> {
        let cache_side = self.cache_side.as_ref().unwrap_or(&self.origin_side).path();
        let (all, caches) = (self.origin_side.path().join("nodes"), cache_side.join("caches"));
        for dir in [&all, &caches] {
            clear(dir)?;
        }
        let make = |dir: PathBuf| match fs::create_dir(&dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(Error::at(dir, "create the directory")(error))
            }
            _ => Ok(dir),
        };
        let paths = |node: u32| {
            let origin = if one_origin { 0 } else { node };
            Ok(MountPaths {
                origin: make(all.join(format!("origin-{origin}")))?,
                cache: make(caches.join(format!("cache-{node}")))?,
                mountpoint: make(all.join(format!("mount-{node}")))?,
                view: None,
            })
        };
        let mounts = (0..count).map(paths).collect::<Result<_>>()?;
        Ok(Nodes { mounts, devices: all.join("devices") })
    }

    /// Removes everything.
    pub(super) fn remove(self) -> Result<()> {
        self.origin_side.remove()?;
        self.cache_side.map_or(Ok(()), ScratchDir::remove)
    }
}

/// Creates `dir` as an empty directory.
pub(super) fn clear(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(Error::at(dir, "remove")(error));
        }
        _ => {}
    }
    fs::create_dir(dir).map_err(Error::at(dir, "create the directory"))
}

fn check_room(flag: &str, dir: &Path, bytes: u64) -> Result<()> {
    if !dir.is_dir() {
        return Err(Error::invalid(
            format!("{flag} {}: there is no such directory", dir.display()),
            "create it, or name another",
        ));
    }
    let space = statvfs(dir).map_err(|errno| Error::at(dir, "ask for space in")(errno.into()))?;
    let left = space.f_bavail.saturating_mul(space.f_frsize);
    let need = bytes + bytes / 16 + SLACK_BYTES;
    if left < need {
        return Err(Error::invalid(
            format!(
                "{flag} {}: the benchmark needs {}, and {} are free",
                dir.display(),
                text::bytes(need),
                text::bytes(left)
            ),
            "free some space, name another directory, or make --data or --cache-size smaller",
        ));
    }
    Ok(())
}

/// Writes back the kernel's cached pages of a file, and drops them.
pub(super) fn forget_pages_of(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    file.sync_data()?;
    fadvise(&file, 0, None, Advice::DontNeed).map_err(io::Error::from)
}

/// Drops the kernel's cached pages of all files below `dir`, so that reads reach the device.
pub(super) fn forget_pages(dir: &Path) -> Result<()> {
    for path in files_below(dir).map_err(Error::at(dir, "list"))? {
        match forget_pages_of(&path) {
            // The engine has removed it in the meantime.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            done => done.map_err(Error::at(&path, "drop the cached pages of"))?,
        }
    }
    Ok(())
}

fn files_below(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let (mut open, mut files) = (vec![dir.to_owned()], Vec::new());
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                open.push(entry.path());
            } else if kind.is_file() {
                files.push(entry.path());
            }
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_room_is_told_before_anything_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let error = Scratch::new(dir.path(), None, 1 << 60, 0).unwrap_err().to_string();
        assert!(error.contains("--dir") && error.contains("--data"), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_place_is_empty_each_time_and_all_goes_in_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let scratch = Scratch::new(dir.path(), None, 0, 0).unwrap();
        let paths = scratch.paths().unwrap();
        fs::write(paths.origin.join("file"), "old").unwrap();
        forget_pages(&paths.origin).unwrap();
        assert!(files_below(&scratch.paths().unwrap().origin).unwrap().is_empty());
        scratch.remove().unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
