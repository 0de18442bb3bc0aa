//! A copy of a region's dirty bytes, taken while programs continue.
//!
//! Adjacent extents of one cache object are read together, and pieces concurrently: reading the cache extent by extent
//! would take longer than writing a dense region to the origin.

use std::sync::Arc;
use std::thread;

use bon::Builder;
use halocline_model::layout::Placement;
use halocline_model::request::{ByteRange, index};
use parking_lot::Mutex;

use crate::damage::Damage;
use crate::extent::file::CachedFile;
use crate::extent::store::ExtentStore;
use crate::range_lock::RangeGuard;
use halocline_meta::{Extent, FileId, Segment};
use halocline_os::clock::{Clock, Team, Work};
use halocline_os::error::Result;
use halocline_storage::volume::run_writes::Runs;

/// Longest piece read at once; its range stays locked against writers meanwhile.
const PIECE_BYTES: u64 = 1 << 20;

/// Threads that read a snapshot's pieces.
const READERS: usize = 8;

/// Bytes of dirty extents, held in memory between cache and origin.
#[derive(Debug)]
pub(super) struct Snapshot {
    start: u64,
    data: Vec<u8>,
    runs: Vec<ByteRange>,
    /// The extents with the generations that were copied.
    pub(super) extents: Vec<(ByteRange, u64)>,
    /// Ranges whose bytes differ from what was written there, and which were not copied.
    pub(super) damaged: Vec<ByteRange>,
}

/// Adjacent dirty extents in one object, with memory for their bytes.
#[derive(Debug)]
struct Piece<'a> {
    range: ByteRange,
    placement: Placement,
    memory: &'a mut [u8],
}

/// Copied extents of some pieces, and damaged ranges that were left out.
#[derive(Debug, Default)]
struct Copied {
    extents: Vec<(ByteRange, u64)>,
    damaged: Vec<ByteRange>,
}

impl Snapshot {
    pub(super) fn runs(&self) -> Runs<'_> {
        Runs { start: self.start, data: &self.data, runs: &self.runs }
    }
}

/// Takes snapshots.
#[derive(Debug, Builder)]
pub(crate) struct Snapshots {
    store: Arc<ExtentStore>,
    damage: Arc<Damage>,
    clock: Clock,
}

impl Snapshots {
    /// Copies the dirty extents that no one is writing to and that are undamaged; `None` if there are none. If the
    /// caller holds all of their bytes (`held`), no one writes to any of them.
    pub(super) fn take(
        &self,
        file: &CachedFile,
        id: FileId,
        dirty: &[Extent],
        held: Option<&RangeGuard<'_>>,
    ) -> Result<Option<Snapshot>> {
        let (Some(first), Some(last)) = (dirty.first(), dirty.last()) else { return Ok(None) };
        let start = first.range.start;
        let mut data = vec![0; index(last.range.end - start)];
        let Copied { mut extents, damaged } =
            self.copy((file, id), pieces(dirty, start, &mut data), held)?;
        extents.sort_unstable_by_key(|(range, _)| range.start);
        let mut runs: Vec<ByteRange> = Vec::new();
        for (range, _) in &extents {
            match runs.last_mut() {
                Some(run) if run.end == range.start => run.end = range.end,
                _ => runs.push(*range),
            }
        }
        let some = !runs.is_empty() || !damaged.is_empty();
        Ok(some.then_some(Snapshot { start, data, runs, extents, damaged }))
    }

    /// Copies pieces with several threads, in any order.
    fn copy(
        &self,
        file: (&CachedFile, FileId),
        pieces: Vec<Piece<'_>>,
        held: Option<&RangeGuard<'_>>,
    ) -> Result<Copied> {
        let readers = READERS.min(pieces.len());
        let rest = Mutex::new(pieces.into_iter());
        let work = || {
            let (mut copied, mut segments) = (Copied::default(), Vec::new());
            loop {
                let Some(mut piece) = rest.lock().next() else { return Ok(copied) };
                self.copy_piece(file, &mut piece, held, &mut segments, &mut copied)?;
            }
        };
        // Simulated time does not pass while one of the readers computes or waits for a processor.
        let (team, mut works) = Team::new(&self.clock, readers);
        let read = |begun: Work| {
            let working = begun.begin();
            let copied: Result<Copied> = work();
            team.leave(working);
            copied
        };
        let own = works.pop();
        thread::scope(|scope| {
            let others: Vec<_> = works.into_iter().map(|work| scope.spawn(|| read(work))).collect();
            let mut all = own.map_or_else(|| Ok(Copied::default()), read);
            for other in others {
                let copied = other.join().expect("a reader that panics is a defect");
                all = all.and_then(|mut all| {
                    let copied = copied?;
                    all.extents.extend(copied.extents);
                    all.damaged.extend(copied.damaged);
                    Ok(all)
                });
            }
            all
        })
    }

    fn copy_piece(
        &self,
        (file, id): (&CachedFile, FileId),
        piece: &mut Piece<'_>,
        held: Option<&RangeGuard<'_>>,
        segments: &mut Vec<Segment>,
        copied: &mut Copied,
    ) -> Result<()> {
        // Without waiting: a program may hold the range and wait for `writeback`, which we hold.
        let tried = if held.is_none() { file.range.try_shared(piece.range) } else { None };
        if held.is_none() && tried.is_none() {
            return Ok(());
        }
        self.store.dmt.index().lookup(id, piece.range, segments);
        let placement = piece.placement;
        let still = |segment: &Segment| {
            segment.extent.filter(|extent| {
                extent.dirty && extent.placement == placement && extent.range == segment.range
            })
        };
        let wholes = segments.chunk_by(|a, b| still(a).is_some() == still(b).is_some());
        for neighbours in wholes.filter(|neighbours| still(&neighbours[0]).is_some()) {
            let (first, last) = (&neighbours[0], &neighbours[neighbours.len() - 1]);
            let range = ByteRange::new(first.range.start, last.range.end);
            let at = index(range.start - piece.range.start);
            let memory = &mut piece.memory[at..at + index(range.len())];
            let damaged = self.store.read_checked(id, placement, range.start, memory)?;
            let within = damaged.iter().filter_map(|bad| bad.intersect(range));
            let mut damaged: Vec<_> = within.collect();
            damaged.extend(self.damage.of(id, range));
            let extents = neighbours.iter().filter_map(still);
            let good = extents
                .filter(|extent| !damaged.iter().any(|damaged| damaged.overlaps(extent.range)));
            copied.extents.extend(good.map(|extent| (extent.range, extent.generation)));
            copied.damaged.extend(damaged);
        }
        Ok(())
    }
}

/// Cuts sorted dirty extents into pieces, each with its part of `memory`, whose first byte is at file offset `start`.
fn pieces<'a>(dirty: &[Extent], start: u64, memory: &'a mut [u8]) -> Vec<Piece<'a>> {
    let mut ranges: Vec<(ByteRange, Placement)> = Vec::new();
    for extent in dirty {
        match ranges.last_mut() {
            Some((range, placement))
                if range.end == extent.range.start
                    && *placement == extent.placement
                    && extent.range.end - range.start <= PIECE_BYTES =>
            {
                range.end = extent.range.end;
            }
            _ => ranges.push((extent.range, extent.placement)),
        }
    }
    let (mut at, mut rest) = (start, memory);
    let mut pieces = Vec::with_capacity(ranges.len());
    for (range, placement) in ranges {
        let (_, from_here) = std::mem::take(&mut rest).split_at_mut(index(range.start - at));
        let (memory, behind) = from_here.split_at_mut(index(range.len()));
        pieces.push(Piece { range, placement, memory });
        (at, rest) = (range.end, behind);
    }
    pieces
}
