//! Moves between tiers that are in progress, and how fast bytes were moved recently: for `status`.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::control::tier::MoveNow;
use halocline_os::clock::Clock;

/// The rate is an average over this time.
const WINDOW: Duration = Duration::from_secs(5);
/// Bytes copied within this much time are one entry of the window.
const GRAIN: Duration = Duration::from_millis(100);
/// The most moves that `status` names; as a rule, no more than these are in progress.
const NAMED_MAX: usize = 100;

/// All moves in progress, of files that `F` names.
#[derive(Debug)]
pub struct ActiveMoves<F> {
    clock: Clock,
    state: Mutex<State<F>>,
}

#[derive(Debug)]
struct State<F> {
    moves: BTreeMap<u64, Move<F>>,
    next: u64,
    /// Bytes copied recently, each entry with its start.
    lately: VecDeque<(Instant, u64)>,
}

#[derive(Debug)]
struct Move<F> {
    file: F,
    from: usize,
    to: usize,
    done: u64,
    total: u64,
    begun: Instant,
}

impl<F> ActiveMoves<F> {
    /// Starts with no moves.
    pub fn new(clock: &Clock) -> Self {
        let state = State { moves: BTreeMap::new(), next: 0, lately: VecDeque::new() };
        Self { clock: clock.clone(), state: Mutex::new(state) }
    }

    /// Registers the beginning of a move of a file with `total` bytes of data; the move ends when the guard is dropped.
    pub fn begin(&self, file: F, (from, to): (usize, usize), total: u64) -> ActiveMove<'_, F> {
        let mut state = self.state.lock();
        let id = state.next;
        state.next += 1;
        let begun = self.clock.instant();
        state.moves.insert(id, Move { file, from, to, done: 0, total, begun });
        ActiveMove { all: self, id }
    }

    /// The moves in progress, the oldest first.
    pub fn now(&self, path_of: impl Fn(&F) -> PathBuf) -> Vec<MoveNow> {
        let state = self.state.lock();
        let describe = |of: &Move<F>| MoveNow {
            path: path_of(&of.file),
            from: of.from,
            to: of.to,
            done_bytes: of.done.min(of.total),
            total_bytes: of.total,
            seconds: self.clock.elapsed(of.begun).as_secs_f64(),
        };
        state.moves.values().take(NAMED_MAX).map(describe).collect()
    }

    /// Bytes per second that were copied between tiers during the last seconds.
    pub fn rate(&self) -> u64 {
        self.rate_at(self.clock.instant())
    }

    fn rate_at(&self, now: Instant) -> u64 {
        let mut state = self.state.lock();
        state.forget_before(now);
        let bytes: u64 = state.lately.iter().map(|(_, bytes)| bytes).sum();
        let millis = u64::try_from(WINDOW.as_millis()).unwrap_or(u64::MAX);
        bytes.saturating_mul(1000) / millis
    }
}

impl<F> State<F> {
    fn forget_before(&mut self, now: Instant) {
        while self.lately.front().is_some_and(|(since, _)| now.duration_since(*since) > WINDOW) {
            self.lately.pop_front();
        }
    }

    fn copied(&mut self, id: u64, bytes: u64, now: Instant) {
        let of = self.moves.get_mut(&id).expect("a move is listed as long as it goes on");
        of.done = of.done.saturating_add(bytes);
        self.forget_before(now);
        match self.lately.back_mut() {
            Some((since, sum)) if now.duration_since(*since) < GRAIN => *sum += bytes,
            _ => self.lately.push_back((now, bytes)),
        }
    }
}

/// One move in progress.
#[derive(Debug)]
pub struct ActiveMove<'a, F> {
    all: &'a ActiveMoves<F>,
    id: u64,
}

impl<F> ActiveMove<'_, F> {
    /// Counts `bytes` more copied bytes. Called once per piece or file, not once per request.
    pub fn copied(&self, bytes: u64) {
        self.all.state.lock().copied(self.id, bytes, self.all.clock.instant());
    }
}

impl<F> Drop for ActiveMove<'_, F> {
    fn drop(&mut self) {
        let ended = self.all.state.lock().moves.remove(&self.id);
        debug_assert!(ended.is_some(), "a move ends once");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_last_seconds() {
        let all = ActiveMoves::new(&Clock::MACHINE);
        let guard = all.begin("file", (1, 0), 100);
        let begun = Instant::now();
        for tenth in 0..100 {
            let now = begun + tenth * GRAIN;
            all.state.lock().copied(guard.id, 10, now);
        }
        let end = begun + 100 * GRAIN;
        assert!((95..=105).contains(&all.rate_at(end)), "{}", all.rate_at(end));
        assert!(all.state.lock().lately.len() <= 51, "bounded");
        assert_eq!(all.rate_at(end + 2 * WINDOW), 0, "nothing moves any more");
        assert_eq!(all.state.lock().moves.len(), 1);
        drop(guard);
        assert!(all.state.lock().moves.is_empty());
    }
}
