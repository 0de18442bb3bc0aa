//! Writes many runs of a file in as few and as ordered device calls as each server needs.
//!
//! Runs that are far apart in a striped file may be adjacent on a server, so they are planned in each server's own
//! offsets. The servers work concurrently, each in offset order.

use std::io::{self, IoSlice, IoSliceMut};

use halocline_model::request::{ByteRange, index};
use halocline_model::sieve::Stretch;

use super::Distribution;
use crate::device::{Device, ServerFile};

/// Bytes of a file that are to be written.
#[derive(Debug, Clone, Copy)]
pub struct Runs<'a> {
    /// File offset of `data`'s first byte.
    pub start: u64,
    /// The bytes of all runs, and arbitrary bytes between them.
    pub data: &'a [u8],
    /// The ranges to write, in order and disjoint, within `data`.
    pub runs: &'a [ByteRange],
}

/// Decides how a server's runs (local, in order, not adjacent) are written. Every run MUST be in exactly one stretch,
/// alone if the stretch has no gaps; stretches are in order.
pub type Plan<'a> = &'a (dyn Fn(&[ByteRange]) -> Vec<Stretch> + Sync);

/// A contiguous run on one server with its pieces of memory.
#[derive(Debug)]
pub(super) struct LocalRun<'a> {
    range: ByteRange,
    bufs: Vec<IoSlice<'a>>,
}

impl<'a> Runs<'a> {
    fn bytes(&self, range: ByteRange) -> &'a [u8] {
        &self.data[index(range.start - self.start)..index(range.end - self.start)]
    }

    /// The runs as they are distributed over the servers.
    pub(super) fn by_server(&self, distribution: &Distribution) -> Vec<Vec<LocalRun<'a>>> {
        let mut servers: Vec<Vec<LocalRun<'a>>> = Vec::new();
        servers.resize_with(distribution.servers() as usize, Vec::new);
        for piece in self.runs.iter().flat_map(|run| distribution.pieces(*run)) {
            let buf = IoSlice::new(self.bytes(ByteRange::at(piece.file_offset, piece.len)));
            let range = ByteRange::at(piece.local_offset, piece.len);
            let runs = &mut servers[piece.server as usize];
            match runs.last_mut() {
                Some(last) if last.range.end == range.start => {
                    last.range.end = range.end;
                    last.bufs.push(buf);
                }
                _ => runs.push(LocalRun { range, bufs: vec![buf] }),
            }
        }
        servers
    }
}

/// Writes the runs of one server as `plan` decides. The caller guarantees that no one else writes between the first
/// run's start and the last one's end.
pub(super) fn write_runs(
    device: &dyn Device,
    file: &ServerFile,
    mut runs: &[LocalRun<'_>],
    plan: Plan<'_>,
) -> io::Result<()> {
    let ranges: Vec<_> = runs.iter().map(|run| run.range).collect();
    let mut sieve = Vec::new();
    for stretch in plan(&ranges) {
        let count = runs.partition_point(|run| run.range.start < stretch.range.end);
        let (inside, rest) = runs.split_at(count);
        debug_assert!(inside.iter().all(|run| stretch.range.contains(run.range)));
        debug_assert!(!inside.is_empty() && (inside.len() == 1 || stretch.gaps));
        runs = rest;
        if stretch.gaps {
            fill(device, file, stretch.range, inside, &mut sieve)?;
            device.write_at(file, stretch.range.start, &[IoSlice::new(&sieve)])?;
        } else {
            device.write_at(file, stretch.range.start, &inside[0].bufs)?;
        }
    }
    assert!(runs.is_empty(), "the plan left runs out");
    Ok(())
}

/// Reads a stretch into `sieve` and overlays its runs.
fn fill(
    device: &dyn Device,
    file: &ServerFile,
    stretch: ByteRange,
    runs: &[LocalRun<'_>],
    sieve: &mut Vec<u8>,
) -> io::Result<()> {
    sieve.clear();
    sieve.resize(index(stretch.len()), 0);
    // Short only if the local file has a hole at its end, where zeros are correct.
    device.read_at(file, stretch.start, &mut [IoSliceMut::new(sieve)])?;
    for run in runs {
        let mut at = index(run.range.start - stretch.start);
        for buf in &run.bufs {
            sieve[at..at + buf.len()].copy_from_slice(buf);
            at += buf.len();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use halocline_model::striping::Striping;

    use super::*;

    #[test]
    fn neighbours_on_a_server_are_one_run_there() {
        // Two servers, stripes of 4: on server 0, [0, 4) and [8, 12) of the file are adjacent.
        let data: Vec<u8> = (0..16).collect();
        let runs = [ByteRange::new(2, 4), ByteRange::new(8, 13)];
        let runs = Runs { start: 0, data: &data, runs: &runs };
        let servers = runs.by_server(&Striping::new(2, 4).into());
        let of = |server: usize| -> Vec<(ByteRange, Vec<u8>)> {
            let runs = servers[server].iter();
            runs.map(|run| (run.range, run.bufs.iter().flat_map(|buf| buf.to_vec()).collect()))
                .collect()
        };
        assert_eq!(of(0), [(ByteRange::new(2, 8), vec![2, 3, 8, 9, 10, 11])]);
        assert_eq!(of(1), [(ByteRange::new(4, 5), vec![12])]);
    }
}
