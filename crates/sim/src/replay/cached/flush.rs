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

use super::Cache;
use super::extents::Run;
use super::inode_of;

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
    /// No flush in progress; the origin has this many servers of this kind.
    pub(super) fn new(origin_servers: usize, origin: &DeviceProfile) -> Self {
        Self {
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
}

impl Cache {
    /// Advances a flush by the steps it takes before `now_ns`.
    pub(super) fn flush_until(&mut self, now_ns: u64) {
        let most = self.capacity / BEGINS_AT_ONE_IN;
        if self.flush.is_idle() && self.extents.dirty_bytes > most {
            self.flush.begin(now_ns, most / 2);
        }
        while self.flush_step(now_ns) {}
    }

    /// Flushes everything dirty from `now_ns` on; returns when it is on the origin.
    pub(super) fn drain(&mut self, now_ns: u64) -> u64 {
        while self.flush_step(u64::MAX) {}
        let busy_ns = self.flush.workers.iter().map(|worker| worker.ready_ns).max();
        let mut end_ns = now_ns;
        if self.extents.dirty_bytes > 0 {
            self.flush.begin(now_ns, 0);
            while self.flush_step(u64::MAX) {}
        }
        for worker in &self.flush.workers {
            end_ns = end_ns.max(worker.ready_ns);
        }
        end_ns.max(busy_ns.unwrap_or(0))
    }

    /// The next step of the worker that is ready first, if there is one until `now_ns`.
    fn flush_step(&mut self, now_ns: u64) -> bool {
        let running = self.flush.running;
        let due = self.flush.workers.iter().enumerate();
        let due = due.filter(|(_, worker)| running || !matches!(worker.step, Step::Next));
        let Some((index, _)) = due
            .filter(|(_, worker)| worker.ready_ns <= now_ns)
            .min_by_key(|(index, worker)| (worker.ready_ns, *index))
        else {
            return false;
        };
        let at_ns = self.flush.workers[index].ready_ns;
        let step = match std::mem::take(&mut self.flush.workers[index].step) {
            Step::Next => self.read_region(index),
            Step::Write(runs) => {
                self.flush.workers[index].ready_ns = self.write_to_origin(at_ns, &runs);
                Step::Clean(runs)
            }
            Step::Clean(runs) => {
                for run in &runs {
                    self.extents.flushed(run.file, run.range);
                }
                Step::Next
            }
        };
        self.flush.workers[index].step = step;
        true
    }

    /// When the runs of a region, which begins at `at_ns`, are on the origin: each server writes what a mount's sieve
    /// plans for it, one stretch after another.
    fn write_to_origin(&mut self, at_ns: u64, runs: &[Run]) -> u64 {
        let (Some(first), Some(last)) = (runs.first(), runs.last()) else { return at_ns };
        let file = first.file;
        let span = ByteRange::new(first.range.start, last.range.end);
        self.streams.entry(file).or_default().flushed(self.striping, span);
        let mut by_server: Vec<Vec<ByteRange>> = vec![Vec::new(); self.stations.len()];
        for run in runs {
            self.sums.written_back_bytes += run.range.len();
            self.origin.split(run.range, |server, local| match by_server[server].last_mut() {
                Some(last) if last.end == local.start => last.end = local.end,
                _ => by_server[server].push(local),
            });
        }
        let inode = inode_of(self.seed, file);
        let mut done_ns = at_ns;
        for (station, runs) in self.stations.iter_mut().zip(&by_server) {
            let mut ready_ns = at_ns;
            for stretch in self.flush.cost.plan(runs) {
                if stretch.gaps {
                    ready_ns = station.serve(ready_ns, inode, stretch.range, Direction::Read);
                }
                ready_ns = station.serve(ready_ns, inode, stretch.range, Direction::Write);
            }
            done_ns = done_ns.max(ready_ns);
        }
        done_ns
    }

    fn read_region(&mut self, index: usize) -> Step {
        let at_ns = self.flush.workers[index].ready_ns;
        let mut runs = Vec::new();
        let mut looked = false;
        while runs.is_empty() {
            if self.extents.dirty_bytes <= self.flush.until_dirty {
                break;
            }
            if let Some((file, range)) = self.flush.queue.pop_front() {
                self.extents.flush_stretch(file, range, &mut runs);
            } else if std::mem::replace(&mut looked, true) {
                break;
            } else {
                let stretches = self.extents.dirty_stretches(self.flush.region_bytes);
                let waiting: u64 = stretches.iter().map(|(_, stretch)| stretch.dirty).sum();
                let enough = waiting.saturating_sub(self.flush.until_dirty);
                let chosen = flush_order::densest(stretches, |(_, stretch)| *stretch, enough);
                self.flush.queue =
                    chosen.into_iter().map(|(file, stretch)| (file, stretch.range)).collect();
            }
        }
        if runs.is_empty() {
            self.flush.running = false;
            return Step::Next;
        }
        let mut readers = [at_ns; READERS];
        for run in &runs {
            let mut start = run.range.start;
            while start < run.range.end {
                let piece = ByteRange::new(start, run.range.end.min(start + PIECE_BYTES));
                let reader = readers.iter_mut().min().expect("there are readers");
                let begun_ns = *reader;
                *reader =
                    self.transfer(begun_ns, run.file, piece, Some(run.placement), Direction::Read);
                start = piece.end;
            }
        }
        self.flush.workers[index].ready_ns = readers.into_iter().fold(at_ns, u64::max);
        Step::Write(runs)
    }
}
