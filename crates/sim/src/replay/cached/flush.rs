//! How dirty bytes go to the origin: as in a mount's flusher (docs/ALGORITHMS.md, section 5).
//!
//! A sweep chooses regions once; several workers take one after another in the order of files and offsets. Each reads the
//! dirty bytes of its region in pieces, several concurrently, then writes them to the servers of the origin, each request
//! at its own time, so that those of programs come in between. What did not change meanwhile becomes clean after some
//! regions, or after each where writes wait for room. Where dirty bytes are not too many any more, a worker rests after
//! each region while programs use the origin. The next sweep begins when all workers are done.

use std::collections::VecDeque;
use std::time::Duration;

use halocline_model::background::Share;
use halocline_model::flush_order;
use halocline_model::profile::DeviceProfile;
use halocline_model::request::{ByteRange, Direction};
use halocline_model::sieve::OriginCost;

use super::devices::{Devices, OriginWrites};
use super::extents::{Extents, Run};

/// Bytes of a file that a region covers on each server of the origin.
const REGION_BYTES_PER_SERVER: u64 = 2 << 20;
/// Regions flushed concurrently: `flush_workers` of a mount.
const WORKERS: usize = 3;
/// Longest read of a region's bytes from the cache, and how many of them are concurrent.
const PIECE_BYTES: u64 = 1 << 20;
const READERS: usize = 8;
/// A flush begins when more than this fraction of the cache is dirty, and ends at half of that.
pub(super) const BEGINS_AT_ONE_IN: u64 = 2;
/// Bytes that a worker writes before they become clean, and while there are too many dirty bytes.
const CLEAN_BYTES: u64 = 64 << 20;
const CLEAN_BYTES_PRESSED: u64 = 8 << 20;
/// How often a worker that rests looks whether it is needed.
const REST_CHECK_NS: u64 = 20_000_000;
/// Writes that are remembered before those that completed are looked for.
const WRITES_AT_LEAST: usize = 64;
/// After its last request a program counts as using the origin for so long.
const IDLE_NS: u64 = 200_000_000;

/// What a flush has to take into account.
#[derive(Debug, Clone, Copy)]
pub(super) struct Programs {
    /// Whether writes wait for room.
    pub(super) wait: bool,
    /// When the last of their requests to the origin completes.
    pub(super) origin_until_ns: u64,
}

/// The flush.
#[derive(Debug)]
pub(super) struct Flush {
    /// Of the cache.
    capacity: u64,
    /// Dirty bytes that were written back so far.
    pub(super) written_back_bytes: u64,
    /// The number of dirty bytes at which the sweep ends.
    until_dirty: u64,
    /// The regions that it takes next.
    queue: VecDeque<(u32, ByteRange)>,
    region_bytes: u64,
    workers: [Worker; WORKERS],
    /// Writes of programs to the origin, with the time at which each completes.
    writes: Vec<(u32, ByteRange, u64)>,
    /// With so many of them, those that completed are forgotten.
    writes_at_most: usize,
    cost: OriginCost,
}

/// A worker takes its next step at `ready_ns`.
#[derive(Debug, Default)]
struct Worker {
    ready_ns: u64,
    /// When it began its region.
    begun_ns: u64,
    step: Step,
    /// What it holds of a file, from its first dirty byte in a region to the last one: no program writes there on the
    /// origin.
    held: Option<(u32, ByteRange)>,
    /// What it wrote to the origin, still to be marked clean.
    written: Vec<Run>,
    written_bytes: u64,
}

#[derive(Debug, Default)]
enum Step {
    /// It is done with the sweep.
    #[default]
    Done,
    /// Take the next region.
    Next,
    /// Read the next piece of the region.
    Read { runs: Vec<Run>, pieces: VecDeque<Run>, readers: [u64; READERS] },
    /// Write the next stretch to the server that is done with its last one.
    Write { runs: Vec<Run>, writes: OriginWrites },
    /// Rest until then.
    Rest { until_ns: u64 },
}

impl Flush {
    /// No flush in progress of a cache of `capacity` bytes; the origin has this many servers of this kind.
    pub(super) fn new(capacity: u64, origin_servers: usize, origin: &DeviceProfile) -> Self {
        Self {
            capacity,
            written_back_bytes: 0,
            until_dirty: 0,
            queue: VecDeque::new(),
            region_bytes: REGION_BYTES_PER_SERVER * origin_servers as u64,
            workers: Default::default(),
            writes: Vec::new(),
            writes_at_most: WRITES_AT_LEAST,
            cost: OriginCost::new(origin, 1),
        }
    }

    /// If a flush holds bytes of `range`, which a program wants to write to on the origin: when to ask again.
    pub(super) fn holds(&self, file: u32, range: ByteRange) -> Option<u64> {
        let overlaps = |worker: &&Worker| {
            worker.held.is_some_and(|(of, held)| of == file && held.overlaps(range))
        };
        self.workers.iter().filter(overlaps).map(|worker| worker.ready_ns).max()
    }

    /// Notes a program's write to the origin, issued at `now_ns`: a flush of these bytes waits for it.
    pub(super) fn note_write(&mut self, now_ns: u64, file: u32, range: ByteRange, done_ns: u64) {
        if self.writes.len() >= self.writes_at_most {
            self.writes.retain(|(_, _, done_ns)| *done_ns > now_ns);
            self.writes_at_most = (2 * self.writes.len()).max(WRITES_AT_LEAST);
        }
        self.writes.push((file, range, done_ns));
    }

    /// Begins a sweep that leaves no more than `until_dirty` bytes dirty.
    fn begin(&mut self, now_ns: u64, until_dirty: u64, extents: &Extents) {
        let stretches = extents.dirty_stretches(self.region_bytes);
        let enough = extents.dirty_bytes.saturating_sub(until_dirty);
        let chosen = flush_order::densest(stretches, |(_, stretch)| *stretch, enough);
        self.queue = chosen.into_iter().map(|(file, stretch)| (file, stretch.range)).collect();
        self.until_dirty = until_dirty;
        for worker in &mut self.workers {
            worker.ready_ns = now_ns;
            worker.step = Step::Next;
        }
    }

    /// Dirty bytes above which programs wait for the flush.
    const fn most(&self) -> u64 {
        self.capacity / BEGINS_AT_ONE_IN
    }

    /// When a worker takes its next step, if any is busy.
    pub(super) fn next_ns(&self) -> Option<u64> {
        let busy = self.workers.iter().filter(|worker| !worker.is_done());
        busy.map(|worker| worker.ready_ns).min()
    }

    /// Advances a flush by the steps it takes before `now_ns`; one begins if there are too many dirty bytes.
    pub(super) fn until(
        &mut self,
        now_ns: u64,
        extents: &mut Extents,
        devices: &mut Devices,
        programs: Programs,
    ) {
        if self.next_ns().is_none() && extents.dirty_bytes > self.most() {
            self.begin(now_ns, self.most() / 2, extents);
        }
        while self.step(now_ns, extents, devices, programs) {
            if self.next_ns().is_none() && extents.dirty_bytes > self.most() {
                let ended_ns = self.workers.iter().map(|worker| worker.ready_ns).max();
                self.begin(ended_ns.unwrap_or(now_ns), self.most() / 2, extents);
            }
        }
    }

    /// Flushes everything dirty from `now_ns` on; returns when it is on the origin.
    pub(super) fn drain(
        &mut self,
        now_ns: u64,
        extents: &mut Extents,
        devices: &mut Devices,
    ) -> u64 {
        let programs = Programs { wait: false, origin_until_ns: 0 };
        // Who asks for all of it does not let the sweep in progress rest, nor begin another region.
        self.queue.clear();
        while self.step(u64::MAX, extents, devices, programs) {}
        let busy_ns = self.workers.iter().map(|worker| worker.ready_ns).max();
        let begin_ns = now_ns.max(busy_ns.unwrap_or(0));
        if extents.dirty_bytes == 0 {
            return begin_ns;
        }
        self.begin(begin_ns, 0, extents);
        while self.step(u64::MAX, extents, devices, programs) {}
        self.workers.iter().map(|worker| worker.ready_ns).fold(begin_ns, u64::max)
    }

    /// The next step of the worker that is ready first, if there is one until `now_ns`.
    fn step(
        &mut self,
        now_ns: u64,
        extents: &mut Extents,
        devices: &mut Devices,
        programs: Programs,
    ) -> bool {
        let due = self.workers.iter().enumerate();
        let due = due.filter(|(_, worker)| !worker.is_done() && worker.ready_ns <= now_ns);
        let first = due.min_by_key(|(index, worker)| (worker.ready_ns, *index));
        let Some((index, _)) = first else { return false };
        let most = self.most();
        let worker = &mut self.workers[index];
        let at_ns = worker.ready_ns;
        let step = match std::mem::take(&mut worker.step) {
            Step::Done => Step::Done,
            Step::Next => self.next_region(index, extents),
            Step::Read { runs, mut pieces, mut readers } => {
                if let Some(piece) = pieces.pop_front() {
                    let reader = readers.iter_mut().min().expect("there are readers");
                    let place = Some(piece.placement);
                    *reader =
                        devices.transfer(*reader, piece.file, piece.range, place, Direction::Read);
                    let first = readers.iter().copied().min();
                    let last = readers.iter().copied().max();
                    worker.ready_ns = if pieces.is_empty() { last } else { first }.unwrap_or(at_ns);
                    Step::Read { runs, pieces, readers }
                } else {
                    let writes = devices.begin_writes(at_ns, &runs, &self.cost);
                    Step::Write { runs, writes }
                }
            }
            Step::Write { runs, mut writes } => match devices.write_next(&mut writes) {
                Some(next_ns) => {
                    worker.ready_ns = next_ns;
                    Step::Write { runs, writes }
                }
                None => self.end_region(index, runs, extents, programs),
            },
            Step::Rest { until_ns } => {
                let is_over = extents.dirty_bytes > most
                    || programs.wait
                    || extents.dirty_bytes <= self.until_dirty;
                let idle = at_ns >= programs.origin_until_ns.saturating_add(IDLE_NS);
                if is_over || idle || at_ns >= until_ns {
                    Step::Next
                } else {
                    worker.ready_ns = until_ns.min(at_ns + REST_CHECK_NS);
                    Step::Rest { until_ns }
                }
            }
        };
        self.workers[index].step = step;
        true
    }

    /// What a worker does first with the next region; it is done if there is none.
    fn next_region(&mut self, index: usize, extents: &mut Extents) -> Step {
        let mut runs = Vec::new();
        if extents.dirty_bytes <= self.until_dirty {
            self.queue.clear();
        }
        while runs.is_empty() {
            let Some((file, range)) = self.queue.pop_front() else { break };
            extents.flush_stretch(file, range, &mut runs);
        }
        let worker = &mut self.workers[index];
        if runs.is_empty() {
            worker.clean(extents);
            return Step::Done;
        }
        worker.begun_ns = worker.ready_ns;
        let span = ByteRange::new(runs[0].range.start, runs[runs.len() - 1].range.end);
        let file = runs[0].file;
        worker.held = Some((file, span));
        let in_the_way =
            self.writes.iter().filter(|(of, range, _)| *of == file && range.overlaps(span));
        worker.ready_ns =
            in_the_way.map(|(_, _, done_ns)| *done_ns).fold(worker.ready_ns, u64::max);
        let mut pieces = VecDeque::new();
        for run in &runs {
            let mut start = run.range.start;
            while start < run.range.end {
                let range = ByteRange::new(start, run.range.end.min(start + PIECE_BYTES));
                pieces.push_back(Run { range, ..run.clone() });
                start = range.end;
            }
        }
        Step::Read { runs, pieces, readers: [worker.ready_ns; READERS] }
    }

    /// What a worker does when a region is on the origin.
    fn end_region(
        &mut self,
        index: usize,
        runs: Vec<Run>,
        extents: &mut Extents,
        programs: Programs,
    ) -> Step {
        let bytes = runs.iter().map(|run| run.range.len()).sum::<u64>();
        self.written_back_bytes += bytes;
        let most = self.most();
        let worker = &mut self.workers[index];
        worker.held = None;
        worker.written.extend(runs);
        worker.written_bytes += bytes;
        let limit = if extents.dirty_bytes > most { CLEAN_BYTES_PRESSED } else { CLEAN_BYTES };
        let at_ns = worker.ready_ns;
        let begun_ns = worker.begun_ns;
        if worker.written_bytes >= limit || programs.wait {
            worker.clean(extents);
        }
        let is_busy = at_ns < programs.origin_until_ns.saturating_add(IDLE_NS);
        if extents.dirty_bytes > most || !is_busy {
            return Step::Next;
        }
        let took = Duration::from_nanos(at_ns - begun_ns);
        let workers = u32::try_from(WORKERS).unwrap_or(u32::MAX);
        let rest = Share::WHOLE.rest(took, workers, true);
        let rest_ns = u64::try_from(rest.as_nanos()).unwrap_or(u64::MAX);
        Step::Rest { until_ns: at_ns.saturating_add(rest_ns) }
    }
}

impl Worker {
    const fn is_done(&self) -> bool {
        matches!(self.step, Step::Done)
    }

    /// Marks clean what it wrote.
    fn clean(&mut self, extents: &mut Extents) {
        self.written_bytes = 0;
        for run in self.written.drain(..) {
            extents.flushed(run.file, run.range);
        }
    }
}
