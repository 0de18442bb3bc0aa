//! A reader-writer lock over byte ranges of one file.
//!
//! Overlapping readers share, a writer excludes everything that overlaps it, and requests that do
//! not overlap never wait for each other. Overlapping waiters are served in order of arrival, so a
//! stream of readers cannot starve a writer.
//!
//! Only a handful of requests use one file at a time, so a short list under one mutex beats a tree. There is a watch
//! for each waiting fill, which can be many: watches are in a tree.

use std::collections::BTreeMap;
use std::sync::Arc;

use halocline_model::request::ByteRange;
use parking_lot::{Condvar, Mutex};

/// A reader-writer lock over byte ranges.
#[derive(Debug, Default)]
pub struct RangeLock {
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    held: Vec<Entry>,
    /// Requests that wait, oldest first: a newcomer may not overtake one it conflicts with.
    waiting: Vec<Entry>,
    /// Watched ranges that have not been held exclusively since their watch began.
    watched: Watched,
    next_ticket: u64,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    range: ByteRange,
    exclusive: bool,
    ticket: u64,
}

/// Watched ranges, by start. Thousands of fills may wait, so a lookup must not examine all of them.
#[derive(Debug, Default)]
struct Watched {
    /// Where each ends, by its start and the ticket of its watch.
    ends: BTreeMap<(u64, u64), u64>,
    /// No watched range is longer, so one that overlaps a given range starts at most this far before it.
    longest: u64,
}

impl Watched {
    fn begin(&mut self, range: ByteRange, ticket: u64) {
        self.ends.insert((range.start, ticket), range.end);
        self.longest = self.longest.max(range.len());
    }

    fn contains(&self, range: ByteRange, ticket: u64) -> bool {
        self.ends.contains_key(&(range.start, ticket))
    }

    fn end(&mut self, range: ByteRange, ticket: u64) {
        self.ends.remove(&(range.start, ticket));
        if self.ends.is_empty() {
            self.longest = 0;
        }
    }

    /// Ends the watches of ranges that overlap `range`.
    fn end_in(&mut self, range: ByteRange) {
        let first = (range.start.saturating_sub(self.longest), 0);
        let overlaps = |start, end| ByteRange::new(start, end).overlaps(range);
        let ended = self
            .ends
            .extract_if(first..(range.end, 0), |&(start, _), &mut end| overlaps(start, end));
        ended.for_each(drop);
        if self.ends.is_empty() {
            self.longest = 0;
        }
    }
}

impl Entry {
    fn conflicts(&self, other: &Self) -> bool {
        (self.exclusive || other.exclusive) && self.range.overlaps(other.range)
    }
}

/// A held range, released on drop.
#[derive(Debug)]
#[must_use = "the range is released when the guard is dropped"]
pub struct RangeGuard<'a> {
    lock: &'a RangeLock,
    ticket: u64,
}

/// A held range that keeps its lock alive, released on drop.
#[derive(Debug)]
#[must_use = "the range is released when the guard is dropped"]
pub struct OwnedRangeGuard {
    lock: Arc<RangeLock>,
    ticket: u64,
}

/// Tells whether a range was held exclusively since the watch began: if not, nothing there changed.
/// It blocks no one.
#[derive(Debug)]
pub struct Watch {
    lock: Arc<RangeLock>,
    range: ByteRange,
    ticket: u64,
}

impl Watch {
    /// Waits until no one holds the watched range, then holds it exclusively, which ends the watch.
    /// `None` if another held it exclusively since the watch began.
    pub fn exclusive(&self) -> Option<OwnedRangeGuard> {
        let lock = &self.lock;
        let mut state = lock.state.lock();
        if !state.watched.contains(self.range, self.ticket) {
            return None;
        }
        let mine = state.entry(self.range, true);
        if !state.may_enter(&mine) {
            state.waiting.push(mine);
            let watched = loop {
                lock.freed.wait(&mut state);
                if !state.watched.contains(self.range, self.ticket) {
                    break false;
                }
                if state.may_enter(&mine) {
                    break true;
                }
            };
            state.waiting.retain(|entry| entry.ticket != mine.ticket);
            lock.freed.notify_all();
            if !watched {
                return None;
            }
        }
        state.enter(mine);
        Some(OwnedRangeGuard { lock: Arc::clone(lock), ticket: mine.ticket })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.lock.state.lock().watched.end(self.range, self.ticket);
    }
}

impl RangeLock {
    /// Begins to watch `range`, which the caller holds against writers.
    pub fn watch(self: &Arc<Self>, range: ByteRange) -> Watch {
        let mut state = self.state.lock();
        let Entry { ticket, .. } = state.entry(range, false);
        debug_assert!(
            !state.held.iter().any(|held| held.exclusive && held.range.overlaps(range)),
            "a range that is being changed has no state to watch"
        );
        state.watched.begin(range, ticket);
        Watch { lock: Arc::clone(self), range, ticket }
    }

    /// Waits until no writer holds `range`, then holds it against writers.
    pub fn shared(&self, range: ByteRange) -> RangeGuard<'_> {
        self.acquire(range, false)
    }

    /// Waits until no one holds `range`, then holds it exclusively.
    pub fn exclusive(&self, range: ByteRange) -> RangeGuard<'_> {
        self.acquire(range, true)
    }

    /// Holds `range` against writers, or returns `None` if it would have to wait.
    pub(crate) fn try_shared(&self, range: ByteRange) -> Option<RangeGuard<'_>> {
        self.try_acquire(range, false)
    }

    /// Holds `range` exclusively, or returns `None` if it would have to wait.
    pub fn try_exclusive(&self, range: ByteRange) -> Option<RangeGuard<'_>> {
        self.try_acquire(range, true)
    }

    /// As [`RangeLock::try_exclusive`], with a guard that is bound to no scope.
    pub(crate) fn try_exclusive_owned(
        self: &Arc<Self>,
        range: ByteRange,
    ) -> Option<OwnedRangeGuard> {
        let ticket = self.try_enter(range, true)?;
        Some(OwnedRangeGuard { lock: Arc::clone(self), ticket })
    }

    fn acquire(&self, range: ByteRange, exclusive: bool) -> RangeGuard<'_> {
        let mut state = self.state.lock();
        let mine = state.entry(range, exclusive);
        if state.may_enter(&mine) {
            state.enter(mine);
        } else {
            state.waiting.push(mine);
            while !state.may_enter(&mine) {
                self.freed.wait(&mut state);
            }
            state.waiting.retain(|entry| entry.ticket != mine.ticket);
            state.enter(mine);
            // Others that waited only because this one was ahead in the queue may enter beside it.
            if !state.waiting.is_empty() {
                self.freed.notify_all();
            }
        }
        RangeGuard { lock: self, ticket: mine.ticket }
    }

    fn try_acquire(&self, range: ByteRange, exclusive: bool) -> Option<RangeGuard<'_>> {
        let ticket = self.try_enter(range, exclusive)?;
        Some(RangeGuard { lock: self, ticket })
    }

    fn try_enter(&self, range: ByteRange, exclusive: bool) -> Option<u64> {
        let mut state = self.state.lock();
        let mine = state.entry(range, exclusive);
        state.may_enter(&mine).then(|| {
            state.enter(mine);
            mine.ticket
        })
    }

    fn leave(&self, ticket: u64) {
        let mut state = self.state.lock();
        let at = state.held.iter().position(|entry| entry.ticket == ticket);
        state.held.swap_remove(at.expect("a guard's range is held until it is dropped"));
        if !state.waiting.is_empty() {
            self.freed.notify_all();
        }
    }
}

impl State {
    fn entry(&mut self, range: ByteRange, exclusive: bool) -> Entry {
        self.next_ticket += 1;
        Entry { range, exclusive, ticket: self.next_ticket }
    }

    fn enter(&mut self, mine: Entry) {
        if mine.exclusive && !self.watched.ends.is_empty() {
            self.watched.end_in(mine.range);
        }
        self.held.push(mine);
    }

    fn may_enter(&self, mine: &Entry) -> bool {
        let older = |entry: &&Entry| entry.ticket < mine.ticket;
        !self.held.iter().any(|entry| entry.conflicts(mine))
            && !self.waiting.iter().filter(older).any(|entry| entry.conflicts(mine))
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        self.lock.leave(self.ticket);
    }
}

impl Drop for OwnedRangeGuard {
    fn drop(&mut self) {
        self.lock.leave(self.ticket);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    const fn range(start: u64, end: u64) -> ByteRange {
        ByteRange::new(start, end)
    }

    #[test]
    fn readers_share_and_writers_exclude() {
        let lock = RangeLock::default();
        let reader = lock.shared(range(0, 10));
        assert!(lock.try_shared(range(5, 15)).is_some());
        assert!(lock.try_exclusive(range(9, 12)).is_none());
        assert!(lock.try_exclusive(range(10, 12)).is_some(), "ranges are half-open");
        drop(reader);
        let _writer = lock.exclusive(range(0, 10));
        assert!(lock.try_shared(range(9, 10)).is_none());
    }

    #[test]
    fn a_waiting_writer_is_not_overtaken_by_new_readers() {
        let lock = RangeLock::default();
        let (entered, order) = mpsc::channel();
        let first = lock.shared(range(0, 10));
        thread::scope(|scope| {
            scope.spawn(|| {
                let _guard = lock.exclusive(range(0, 10));
                entered.send("writer").expect("the receiver lives");
            });
            while lock.state.lock().waiting.is_empty() {
                thread::yield_now();
            }
            assert!(lock.try_shared(range(0, 1)).is_none(), "a reader overtook the writer");
            assert!(lock.try_shared(range(20, 30)).is_some(), "an unrelated reader had to wait");
            drop(first);
            assert_eq!(order.recv(), Ok("writer"));
        });
    }

    #[test]
    fn a_watch_ends_with_whoever_holds_some_of_its_range_alone() {
        let lock = Arc::new(RangeLock::default());
        let watch = |at: ByteRange| {
            let _reader = lock.shared(at);
            lock.watch(at)
        };
        let watches = [range(0, 10), range(10, 20), range(5, 15)].map(watch);
        drop(lock.shared(range(0, 20)));
        drop(lock.exclusive(range(15, 16)));
        assert!(watches[1].exclusive().is_none());
        let filled = watches[2].exclusive();
        assert!(filled.is_some() && lock.try_shared(range(5, 6)).is_none());
        drop(filled);
        assert!(watches.iter().all(|watch| watch.exclusive().is_none()), "a watch ends once");
        drop(watches);
        assert!(lock.state.lock().watched.ends.is_empty());
    }

    /// Compares watches with a plain list: ranges of all lengths, also empty ones, many watched at the same time.
    #[test]
    fn exactly_the_watches_that_overlap_a_writer_end() {
        let mut random = 1_u64;
        let mut below = |limit: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % limit
        };
        let (mut watched, mut list) = (Watched::default(), Vec::new());
        for ticket in 0..4000 {
            let start = below(1000);
            let range = {
                let longest = [3, 20, 300][usize::try_from(below(3)).unwrap()];
                range(start, start + below(longest))
            };
            match below(8) {
                0 => {
                    watched.end_in(range);
                    list.retain(|(kept, _): &(ByteRange, u64)| !kept.overlaps(range));
                }
                1 if !list.is_empty() => {
                    let (range, ticket) =
                        list.swap_remove(usize::try_from(below(list.len() as u64)).unwrap());
                    watched.end(range, ticket);
                }
                _ => {
                    watched.begin(range, ticket);
                    list.push((range, ticket));
                }
            }
            assert_eq!(watched.ends.len(), list.len());
            assert!(list.iter().all(|&(range, ticket)| watched.contains(range, ticket)));
        }
    }

    #[test]
    fn a_watcher_waits_for_readers_and_gives_way_to_a_writer() {
        let lock = Arc::new(RangeLock::default());
        for written in [false, true] {
            let reader = lock.shared(range(0, 10));
            let watch = lock.watch(range(0, 10));
            thread::scope(|scope| {
                let writer = written.then(|| {
                    let writer = scope.spawn(|| drop(lock.exclusive(range(0, 1))));
                    while lock.state.lock().waiting.is_empty() {
                        thread::yield_now();
                    }
                    writer
                });
                let watcher = scope.spawn(|| watch.exclusive().is_some());
                while lock.state.lock().waiting.len() < 1 + usize::from(written) {
                    thread::yield_now();
                }
                drop(reader);
                assert_eq!(watcher.join().unwrap(), !written);
                drop(writer);
            });
        }
    }

    #[test]
    fn increments_under_exclusive_ranges_are_never_lost() {
        const THREADS: u64 = 8;
        const ROUNDS: u64 = 2000;
        let lock = RangeLock::default();
        let cells: Vec<AtomicU64> = (0..16).map(|_| AtomicU64::new(0)).collect();
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (lock, cells) = (&lock, &cells);
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let start = (thread * 7 + round * 5) % 13;
                        let _guard = lock.exclusive(range(start, start + 3));
                        for cell in &cells[usize::try_from(start).unwrap()..][..3] {
                            // Not fetch_add: a race must be able to lose an increment.
                            let seen = cell.load(Ordering::Relaxed);
                            cell.store(seen + 1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        let total: u64 = cells.iter().map(|cell| cell.load(Ordering::Relaxed)).sum();
        assert_eq!(total, THREADS * ROUNDS * 3);
    }
}
