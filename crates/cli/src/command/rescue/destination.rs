//! The directory that a rescue saves to: for each file its bytes, and a manifest that makes them valid.
//!
//! Bytes without a manifest were left by a kill, and are written again; bytes with one are never touched again. A kill
//! between a manifest and the records that follow it leaves bytes in both places: the next rescue saves them again if
//! they are not the same.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use halocline_api::control::path_as_json;
use halocline_meta::FileId;
use halocline_os::error::{Error, Result};
use halocline_os::lost_and_found;
use halocline_os::private::{PrivateDir, Use, check_above};
use rustix::fs::{Advice, fadvise};
use serde::Serialize;

use super::refused;

/// The prefix of the names of saved files.
const PREFIX: &str = "rescued-";

/// What is said of saved bytes.
#[derive(Debug, Serialize)]
pub(super) struct Manifest {
    /// The origin's root, where the cache was last used; empty where it never was.
    #[serde(serialize_with = "path_as_json")]
    pub(super) origin: PathBuf,
    /// Path below it, as last seen.
    #[serde(serialize_with = "path_as_json")]
    pub(super) path: PathBuf,
    /// What was wrong with the cache's records: the bytes may be older than what programs wrote.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) damage: Option<String>,
    /// The saved ranges.
    pub(super) extents: Vec<Extent>,
}

/// A range of a file, in bytes.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Extent {
    pub(super) offset: u64,
    pub(super) length: u64,
}

/// Opens or creates the directory at `path`. A directory that holds something else is left as it is. Nobody else may be
/// able to put another in its place, because what is saved there leaves the cache.
pub(super) fn open(path: &Path) -> Result<PrivateDir> {
    check_above(path)?;
    if let (Ok(entries), Ok(dir)) = (std::fs::read_dir(path), File::open(path)) {
        for entry in entries {
            let name = entry.map_err(Error::at(path, "list"))?.file_name();
            if !name.to_string_lossy().starts_with(PREFIX) && !lost_and_found::is_it(&dir, &name) {
                let (dir, name) = (path.display(), Path::new(&name).display());
                return Err(refused(
                    format!("{dir} is neither empty nor of an earlier rescue: it holds {name}"),
                    "name a new or an empty directory",
                ));
            }
        }
    }
    PrivateDir::make(path)
}

/// The bytes of one file while they are being saved.
pub(super) struct Saving<'a> {
    dir: &'a PrivateDir,
    name: String,
    /// The name and manifest of the bytes that an earlier rescue saved.
    before: Option<(String, Vec<u8>)>,
    file: File,
}

impl<'a> Saving<'a> {
    /// Begins a file for what is saved of `file` of the cache with this id.
    pub(super) fn begin(dir: &'a PrivateDir, cache_id: &str, file: FileId) -> Result<Self> {
        // The id is read from the cache's directory, so only characters that are safe in file names are kept.
        let id: String = cache_id.chars().filter(char::is_ascii_alphanumeric).take(8).collect();
        let named = |number| format!("{PREFIX}{id}-{:016x}-{number}", file.0);
        let mut before = None;
        for number in 0_u32.. {
            let name = named(number);
            let Some(manifest) = dir.read(manifest_of(&name), 1 << 30)? else {
                // Without a manifest, it was left by a kill.
                dir.remove(&name)?;
                let file = dir.file(&name, Use::New)?;
                return Ok(Self { dir, name, before, file });
            };
            before = Some((name, manifest));
        }
        unreachable!("the loop ends by a return")
    }

    /// Writes bytes at their offset.
    pub(super) fn write(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        self.file.write_all_at(bytes, at).map_err(Error::at(self.path(), "write"))
    }

    /// Makes the bytes durable, and drops them from the page cache.
    pub(super) fn sync(&self) -> Result<()> {
        self.file.sync_all().map_err(Error::at(self.path(), "sync"))?;
        // This is only advice: if it is ignored, the bytes in memory are compared.
        let _ = fadvise(&self.file, 0, None, Advice::DontNeed);
        Ok(())
    }

    /// Fails unless the saved bytes at `at` are `bytes`.
    pub(super) fn compare(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let mut found = vec![0; bytes.len()];
        self.file.read_exact_at(&mut found, at).map_err(Error::at(self.path(), "read"))?;
        if found == bytes {
            return Ok(());
        }
        Err(refused(
            format!("{}: bytes at {at} are not what was written there", self.path().display()),
            "look at its disk; what was not saved is still on the cache",
        ))
    }

    /// Ends without saving anything.
    pub(super) fn abandon(self) -> Result<()> {
        self.dir.remove(&self.name)
    }

    /// Makes the bytes valid, durably; returns the name under which they are stored.
    pub(super) fn finish(self, manifest: &Manifest) -> Result<String> {
        let json = serde_json::to_vec_pretty(manifest).map_err(std::io::Error::from)?;
        if let Some((name, _)) = self.before.as_ref().filter(|(_, before)| *before == json)
            && self.equals(name, manifest)?
        {
            self.dir.remove(&self.name)?;
            return Ok(name.clone());
        }
        // This syncs the directory, with both names.
        self.dir.replace(&manifest_of(&self.name), &json)?;
        Ok(self.name)
    }

    /// Whether an earlier rescue saved the same bytes under `name`.
    fn equals(&self, name: &str, manifest: &Manifest) -> Result<bool> {
        let other = self.dir.file(name, Use::Read)?;
        let mut bufs = (vec![0; 1 << 20], vec![0; 1 << 20]);
        for &Extent { offset: start, length } in &manifest.extents {
            let mut at = start;
            while at < start + length {
                let count = usize::try_from((start + length - at).min(1 << 20)).expect("a piece");
                let (ours, theirs) = (&mut bufs.0[..count], &mut bufs.1[..count]);
                self.file.read_exact_at(ours, at).map_err(Error::at(self.path(), "read"))?;
                if other.read_exact_at(theirs, at).is_err() || ours != theirs {
                    return Ok(false);
                }
                at += count as u64;
            }
        }
        other.sync_all().map_err(Error::at(self.path(), "sync"))?;
        Ok(true)
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join(&self.name)
    }
}

fn manifest_of(name: &str) -> String {
    format!("{name}.json")
}
