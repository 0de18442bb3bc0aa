//! How far a log was synced, in a file beside the log's own: otherwise a missing end would look like a power loss of
//! batches that were not synced.
//!
//! The file is written after each sync, and never synced itself: it may say too little, and never too much. A file that
//! is missing, incomplete or of another log is ignored. Integers are little-endian:
//!
//! ```text
//! "hcsync01" generation:8 batch:8 sum:4
//! ```

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::files::SYNCED;
use super::log_file::sum;
use halocline_os::private::{PrivateDir, Use};

const MAGIC: &[u8; 8] = b"hcsync01";
const LEN: usize = 28;

/// The sync point of an open log.
#[derive(Debug)]
pub(super) struct Synced {
    /// `None` where the file could not be made: then it says too little.
    file: Option<File>,
    generation: u64,
}

impl Synced {
    pub(super) fn open(dir: &PrivateDir, generation: u64) -> Self {
        let file = dir.file(SYNCED, Use::Write);
        let file = file.inspect_err(|error| tracing::debug!(%error, "no record of what is synced"));
        Self { file: file.ok(), generation }
    }

    /// All batches up to `batch` are durable.
    pub(super) fn set(&self, batch: u64) {
        let Some(file) = &self.file else { return };
        if let Err(error) = file.write_all_at(&encode(self.generation, batch), 0) {
            tracing::debug!(%error, "what is synced cannot be recorded");
        }
    }
}

/// The last batch that was certainly synced; 0 where nothing is known.
pub(super) fn synced(dir: &PrivateDir, generation: u64) -> u64 {
    let found = match dir.read(SYNCED, LEN as u64) {
        Ok(found) => found.unwrap_or_default(),
        Err(error) => {
            tracing::warn!(%error, "the record of what was synced cannot be read");
            return 0;
        }
    };
    let batch = found.get(16..24).and_then(|bytes| bytes.first_chunk());
    let batch = batch.map_or(0, |bytes| u64::from_le_bytes(*bytes));
    if found == encode(generation, batch) { batch } else { 0 }
}

fn encode(generation: u64, batch: u64) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..16].copy_from_slice(&generation.to_le_bytes());
    bytes[16..24].copy_from_slice(&batch.to_le_bytes());
    let sum = sum(&bytes[..24], generation);
    bytes[24..].copy_from_slice(&sum.to_le_bytes());
    bytes
}
