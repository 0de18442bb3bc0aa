//! How dirty bytes go to the origin: as in a mount's flusher (docs/ALGORITHMS.md, section 5).
//!
//! Several workers take one region after another in the order of files and offsets. Each reads the dirty bytes of its
//! region in pieces, several concurrently, then writes them to the origin; only then do the bytes that did not change
//! meanwhile become clean.

use std::collections::VecDeque;

use halocline_model::flush_order;
use halocline_model::profile::DeviceProfile;
use halocline_model::request::{ByteRange, Direction};
use halocline_model::sieve::OriginCost;

use super::devices::Devices;
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

/// A flush in progress while programs run.
#[derive(Debug)]
pub(super) struct Flush {
    /// Of the cache.
    capacity: u64,
    /// Dirty bytes that were written back so far.
    pub(super) written_back_bytes: u64,
    /// Whether workers take more regions.
    running: bool,
    /// The number of dirty bytes at which it ends.
    until_dirty: u64,
    /// What is flushed next.
    queue: VecDeque<(u32, ByteRange)>,
    region_bytes: u64,
    workers: [Worker; WORKERS],
    cost: OriginCost,
}

/// A worker takes its next step when its last one completes.
#[derive(Debug, Clone, Default)]
struct Worker {
    ready_ns: u64,
    step: Step,
}

#[derive(Debug, Clone, Default)]
enum Step {
    /// Read the next region.
    #[default]
    Next,
    /// Write what was read to the origin.
    Write(Vec<Run>),
    /// Mark it clean: it is on the origin.
    Clean(Vec<Run>),
}

impl Flush {
    /// No flush in progress of a cache of `capacity` bytes; the origin has this many servers of this kind.
    pub(super) fn new(capacity: u64, origin_servers: usize, origin: &DeviceProfile) -> Self {
        Self {
            capacity,
            written_back_bytes: 0,
            running: false,
            until_dirty: 0,
            queue: VecDeque::new(),
            region_bytes: REGION_BYTES_PER_SERVER * origin_servers as u64,
            workers: Default::default(),
            cost: OriginCost::new(origin, 1),
        }
    }

    fn begin(&mut self, now_ns: u64, until_dirty: u64) {
        (self.running, self.until_dirty) = (true, until_dirty);
        self.queue.clear();
        for worker in &mut self.workers {
            worker.ready_ns = worker.ready_ns.max(now_ns);
        }
    }

    /// When the first busy worker completes its step.
    pub(super) fn next_ns(&self) -> Option<u64> {
        let busy = self.workers.iter().filter(|worker| !matches!(worker.step, Step::Next));
        busy.map(|worker| worker.ready_ns).min()
    }

    fn is_idle(&self) -> bool {
        !self.running && self.workers.iter().all(|worker| matches!(worker.step, Step::Next))
    }

    /// Advances a flush by the steps it takes before `now_ns`; one begins if there are too many dirty bytes.
    pub(super) fn until(&mut self, now_ns: u64, extents: &mut Extents, devices: &mut Devices) {
        let most = self.capacity / BEGINS_AT_ONE_IN;
        if self.is_idle() && extents.dirty_bytes > most {
            self.begin(now_ns, most / 2);
        }
        while self.step(now_ns, extents, devices) {}
    }

    /// Flushes everything dirty from `now_ns` on; returns when it is on the origin.
    pub(super) fn drain(
        &mut self,
        now_ns: u64,
        extents: &mut Extents,
        devices: &mut Devices,
    ) -> u64 {
        while self.step(u64::MAX, extents, devices) {}
        let busy_ns = self.workers.iter().map(|worker| worker.ready_ns).max();
        let mut end_ns = now_ns;
        if extents.dirty_bytes > 0 {
            self.begin(now_ns, 0);
            while self.step(u64::MAX, extents, devices) {}
        }
        for worker in &self.workers {
            end_ns = end_ns.max(worker.ready_ns);
        }
        end_ns.max(busy_ns.unwrap_or(0))
    }

    /// The next step of the worker that is ready first, if there is one until `now_ns`.
    fn step(&mut self, now_ns: u64, extents: &mut Extents, devices: &mut Devices) -> bool {
        let running = self.running;
        let due = self.workers.iter().enumerate();
        let due = due.filter(|(_, worker)| running || !matches!(worker.step, Step::Next));
        let Some((index, _)) = due
            .filter(|(_, worker)| worker.ready_ns <= now_ns)
            .min_by_key(|(index, worker)| (worker.ready_ns, *index))
        else {
            return false;
        };
        let at_ns = self.workers[index].ready_ns;
        let step = match std::mem::take(&mut self.workers[index].step) {
            Step::Next => self.read_region(index, extents, devices),
            Step::Write(runs) => {
                self.written_back_bytes += runs.iter().map(|run| run.range.len()).sum::<u64>();
                self.workers[index].ready_ns = devices.write_to_origin(at_ns, &runs, &self.cost);
                Step::Clean(runs)
            }
            Step::Clean(runs) => {
                for run in &runs {
                    extents.flushed(run.file, run.range);
                }
                Step::Next
            }
        };
        self.workers[index].step = step;
        true
    }

    fn read_region(&mut self, index: usize, extents: &mut Extents, devices: &mut Devices) -> Step {
        let at_ns = self.workers[index].ready_ns;
        let mut runs = Vec::new();
        let mut looked = false;
        while runs.is_empty() {
            if extents.dirty_bytes <= self.until_dirty {
                break;
            }
            if let Some((file, range)) = self.queue.pop_front() {
                extents.flush_stretch(file, range, &mut runs);
            } else if std::mem::replace(&mut looked, true) {
                break;
            } else {
                let stretches = extents.dirty_stretches(self.region_bytes);
                let waiting: u64 = stretches.iter().map(|(_, stretch)| stretch.dirty).sum();
                let enough = waiting.saturating_sub(self.until_dirty);
                let chosen = flush_order::densest(stretches, |(_, stretch)| *stretch, enough);
                self.queue =
                    chosen.into_iter().map(|(file, stretch)| (file, stretch.range)).collect();
            }
        }
        if runs.is_empty() {
            self.running = false;
            return Step::Next;
        }
        let mut readers = [at_ns; READERS];
        for run in &runs {
            let mut start = run.range.start;
            while start < run.range.end {
                let piece = ByteRange::new(start, run.range.end.min(start + PIECE_BYTES));
                let reader = readers.iter_mut().min().expect("there are readers");
                let begun_ns = *reader;
                let place = Some(run.placement);
                *reader = devices.transfer(begun_ns, run.file, piece, place, Direction::Read);
                start = piece.end;
            }
        }
        self.workers[index].ready_ns = readers.into_iter().fold(at_ns, u64::max);
        Step::Write(runs)
    }
}
