//! What the store's own files take on the cache's device (I5).
//!
//! Measured now and then in the background; in between, what was appended since is added. Counted
//! is also what the store writes beside its files before it removes them: tables count twice, they
//! are written anew beside the old ones; a journal counts half as much again, its records go to a
//! table first. So the sum is never less than what is on disk.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes that a change takes in the journal beside its keys and values.
pub(super) const CHANGE_OVERHEAD: u64 = 64;

/// Bytes of the store's files, and of the journal that is written now.
#[derive(Debug, Default)]
pub(crate) struct Footprint {
    measured: AtomicU64,
    appended: AtomicU64,
    journal: AtomicU64,
}

impl Footprint {
    /// Bytes that the store may take.
    pub(crate) fn bytes(&self) -> u64 {
        self.measured.load(Relaxed) + self.appended.load(Relaxed)
    }

    /// Bytes of the journal that is written now.
    pub(super) fn journal(&self) -> u64 {
        self.journal.load(Relaxed)
    }

    /// A change of `bytes` bytes was appended to the journal; returns whether what was appended
    /// since the last measurement passed a multiple of `step` bytes.
    pub(super) fn appended(&self, bytes: u64, step: u64) -> bool {
        self.journal.fetch_add(bytes, Relaxed);
        let counted = in_a_journal(bytes);
        let before = self.appended.fetch_add(counted, Relaxed);
        before / step != (before + counted) / step
    }

    /// Whether `step` bytes were appended since the last measurement.
    pub(super) fn has_grown(&self, step: u64) -> bool {
        self.appended.load(Relaxed) >= step
    }

    /// The journal that is written now has `bytes` bytes.
    pub(super) fn begin_journal(&self, bytes: u64) {
        self.journal.store(bytes, Relaxed);
    }

    /// Measures the store in `path`. What is appended meanwhile counts twice until the next time.
    pub(super) fn measure(&self, path: &Path) {
        let appended = self.appended.load(Relaxed);
        let mut bytes = 0;
        if add_files(path, false, &mut bytes).is_ok() {
            self.measured.store(bytes, Relaxed);
            self.appended.fetch_sub(appended, Relaxed);
        }
    }
}

fn add_files(dir: &Path, tables: bool, bytes: &mut u64) -> io::Result<()> {
    *bytes += fs::metadata(dir)?.blocks() * 512;
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        // The store removes files as it goes: what is gone takes nothing.
        let Ok(found) = path.symlink_metadata() else { continue };
        if path.ends_with(super::checksums::NAME) {
            // Counted by whoever makes it longer.
        } else if found.is_dir() {
            match add_files(&path, path.ends_with("tables"), bytes) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        } else {
            let on_disk = found.blocks() * 512;
            *bytes += match path.extension() {
                _ if tables => 2 * on_disk,
                Some(extension) if extension == "jnl" => in_a_journal(on_disk),
                _ => on_disk,
            };
        }
    }
    Ok(())
}

/// What `bytes` bytes of a journal count for: their table has no overhead of each change, and only
/// the last change of each record.
fn in_a_journal(bytes: u64) -> u64 {
    bytes + bytes / 2
}
