//! Writes in small pieces, for files that are later written in small requests.
//!
//! Linux keeps what one call wrote in pages as large as the call, up to 2 MiB, and ext4 looks at
//! every block of such a page at every write into it: 4 KiB writes to a file that was written 4 MiB
//! at a time reach a ninth of what they reach where 64 KiB were written at a time. Reads of 1 MiB
//! lose a sixth (docs/BENCH.md). A cache is written in large pieces by those who fill it, and is
//! there for small requests.

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;

use halocline_model::request::ByteRange;

use super::{Allocate, Device, ServerFile, Space};

/// Bytes that one call writes at most, inside one aligned piece of the file.
const PIECE: usize = 64 << 10;

/// A device whose files are written in aligned pieces of 64 KiB. All else goes to it unchanged.
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
