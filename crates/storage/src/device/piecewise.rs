//! Writes in small pieces, for files that are later written in small requests.
//!
//! Linux keeps data written by one call in page-cache folios as large as the call, up to 2 MiB, and ext4 examines every
//! block of such a folio at every write into it: after writes of 256 KiB, 4 KiB writes reach half of the speed that
//! they reach after writes of 64 KiB; after writes of 4 MiB it was a ninth. Reads of 1 MiB are fastest from 256 KiB on
//! and lose a sixth at 64 KiB (docs/BENCH.md). A cache is filled in large pieces, and serves small requests.

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;

use halocline_model::request::ByteRange;

use super::{Device, ServerFile, Space};
use halocline_vfs::Allocate;

/// Largest write of one call, within one aligned piece of the file.
///
/// Ours, from measurements: compared with 64 KiB pieces, 4 KiB writes into the cache reach four fifths, and 1 MiB reads
/// and writes nine eighths. So neither is slower than through mergerfs (docs/BENCH-HISTORY.md).
const PIECE: usize = 256 << 10;

/// A device whose files are written in aligned pieces of 256 KiB. Everything else is passed on unchanged.
#[derive(Debug)]
pub struct PiecewiseDevice(Arc<dyn Device>);

impl PiecewiseDevice {
    /// Writes to `below` in pieces.
    pub fn new(below: Arc<dyn Device>) -> Self {
        Self(below)
    }
}

impl Device for PiecewiseDevice {
    fn read_at(
        &self,
        file: &ServerFile,
        offset: u64,
        bufs: &mut [IoSliceMut<'_>],
    ) -> io::Result<usize> {
        self.0.read_at(file, offset, bufs)
    }

    fn write_at(&self, file: &ServerFile, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        let mut room = left_of_piece(offset);
        if len <= room {
            return self.0.write_at(file, offset, bufs);
        }
        let (mut at, mut piece, mut pieces) = (offset, 0, Vec::with_capacity(bufs.len().min(64)));
        for buf in bufs {
            let mut rest: &[u8] = buf;
            while !rest.is_empty() {
                let (now, later) = rest.split_at(rest.len().min(room - piece));
                pieces.push(IoSlice::new(now));
                (piece, rest) = (piece + now.len(), later);
                if piece == room {
                    self.0.write_at(file, at, &pieces)?;
                    at += room as u64;
                    (room, piece) = (PIECE, 0);
                    pieces.clear();
                }
            }
        }
        if pieces.is_empty() { Ok(()) } else { self.0.write_at(file, at, &pieces) }
    }

    fn allocate(&self, file: &ServerFile, range: ByteRange, how: Allocate) -> io::Result<()> {
        self.0.allocate(file, range, how)
    }

    fn truncate(&self, file: &ServerFile, len: u64) -> io::Result<()> {
        self.0.truncate(file, len)
    }

    fn sync(&self, file: &ServerFile, data_only: bool) -> io::Result<()> {
        self.0.sync(file, data_only)
    }

    fn space(&self) -> io::Result<Space> {
        self.0.space()
    }
}

/// Bytes from `offset` to the end of its piece.
fn left_of_piece(offset: u64) -> usize {
    PIECE - usize::try_from(offset % PIECE as u64).expect("less than a piece")
}
