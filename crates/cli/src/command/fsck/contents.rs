//! Compares cached bytes with their checksums, and saves damaged ones that only the cache had.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use halocline_api::control::{Progress, path_as_json};
use halocline_meta::table::ExtentTable;
use halocline_meta::{Extent, FileRecord};
use halocline_model::request::ByteRange;
use halocline_os::error::{Error, Result};
use halocline_os::private::{PrivateDir, Use};
use halocline_storage::volume::CacheObjects;
use serde::Serialize;

use crate::progress::Meter;

/// Directory of the cache for bytes that could not go to the origin.
const CONFLICTS: &str = "conflicts";
/// Bytes read at once.
const PIECE_BYTES: u64 = 1 << 20;

/// Progress of the comparison.
pub(in crate::command) struct Contents {
    meter: Meter,
    total_bytes: u64,
    done_bytes: u64,
    /// Bytes that have a checksum and were compared with it.
    pub(in crate::command) verified_bytes: u64,
    buf: Vec<u8>,
}

/// The description of saved bytes, in the same form as for a conflict.
#[derive(Serialize)]
struct SavedBytes<'a> {
    #[serde(serialize_with = "path_as_json")]
    path: &'a Path,
    reason: &'static str,
    /// Offset and length of each range, in bytes.
    extents: Vec<(u64, u64)>,
}

impl Contents {
    /// Nothing of `total_bytes` was compared yet; silent if `quiet`.
    pub(in crate::command) fn new(total_bytes: u64, quiet: bool) -> Self {
        let meter = Meter::new("verifying", quiet);
        Self { meter, total_bytes, done_bytes: 0, verified_bytes: 0, buf: Vec::new() }
    }

    /// The parts of an extent that differ from what was written. Unreadable parts count as such.
    pub(in crate::command) fn damaged(
        &mut self,
        (dmt, objects): (&ExtentTable, &CacheObjects),
        file: &FileRecord,
        extent: &Extent,
    ) -> Result<Vec<ByteRange>> {
        let object = objects.open(file.id.0, extent.placement)?;
        let mut damaged: Vec<ByteRange> = Vec::new();
        let mut at = extent.range.start;
        while at < extent.range.end {
            // Pieces end at block boundaries: if a block were in two pieces, each would read all of it.
            let end = (at / PIECE_BYTES + 1) * PIECE_BYTES;
            let piece = ByteRange::new(at, end.min(extent.range.end));
            let length = usize::try_from(piece.len()).expect("a piece fits in memory");
            self.buf.resize(length, 0);
            let read = object.read_filled(at, &mut self.buf);
            let checked = read.and_then(|()| {
                let mut rest = |at, buf: &mut [u8]| object.read_filled(at, buf);
                let of = (file.id, extent.placement);
                dmt.checksums().check(of, at, &self.buf, &mut rest)
            });
            match checked {
                Ok(checked) => {
                    self.verified_bytes += checked.known_bytes;
                    let within = checked.damaged.iter().filter_map(|bad| bad.intersect(piece));
                    within.for_each(|bad| push_joined(&mut damaged, bad));
                }
                Err(error) if error.raw_os_error() == Some(libc::EIO) => {
                    push_joined(&mut damaged, piece);
                }
                Err(error) => return Err(error.into()),
            }
            self.done_bytes += piece.len();
            at = piece.end;
            let (done_bytes, total_bytes) = (self.done_bytes, self.total_bytes);
            self.meter.tell(&Progress { done_bytes, total_bytes, path: file.path.clone() });
        }
        Ok(damaged)
    }
}

/// Saves the damaged dirty bytes of one file, durably, in a new sparse file below `cache` with a description beside it;
/// returns its path.
pub(in crate::command) fn save(
    cache: &Path,
    objects: &CacheObjects,
    file: &FileRecord,
    damaged: &[(ByteRange, Extent)],
) -> Result<PathBuf> {
    let dir = PrivateDir::make(&cache.join(CONFLICTS))?;
    let taken = dir.names()?;
    let named = |number| format!("{:016x}-damaged-{number}", file.id.0);
    let name = (0..u32::MAX).map(named).find(|name| !taken.contains(&name.into()));
    let name = name.expect("nobody has so many files");
    let (path, bytes) = (dir.path().join(&name), dir.file(&name, Use::New)?);
    for (range, extent) in damaged {
        let object = objects.open(file.id.0, extent.placement)?;
        let mut at = range.start;
        while at < range.end {
            let piece = ByteRange::at(at, PIECE_BYTES.min(range.end - at));
            let mut buf = vec![0; usize::try_from(piece.len()).expect("a piece fits in memory")];
            // Unreadable bytes stay a hole.
            if object.read_filled(at, &mut buf).is_ok() {
                bytes.write_all_at(&buf, at).map_err(Error::at(&path, "write"))?;
            }
            at = piece.end;
        }
    }
    bytes.sync_all().map_err(Error::at(&path, "sync"))?;
    let saved = SavedBytes {
        path: &file.path,
        reason: "these bytes were damaged on the cache",
        extents: damaged.iter().map(|(range, _)| (range.start, range.len())).collect(),
    };
    let json = serde_json::to_vec_pretty(&saved).expect("it is plain data");
    dir.replace(&format!("{name}.json"), &json)?;
    Ok(path)
}

fn push_joined(ranges: &mut Vec<ByteRange>, next: ByteRange) {
    match ranges.last_mut() {
        Some(last) if last.end == next.start => last.end = next.end,
        _ => ranges.push(next),
    }
}
