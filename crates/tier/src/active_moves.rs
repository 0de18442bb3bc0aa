//! Moves between tiers that are in progress, and how fast bytes were moved recently: for `status`.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use halocline_api::control::tier::MoveNow;
use halocline_os::clock::Clock;
use halocline_vfs::namespace::{Namespace, Node};

/// The rate is an average over this time.
const WINDOW: Duration = Duration::from_secs(5);
/// Bytes copied within this much time are one entry of the window.
const GRAIN: Duration = Duration::from_millis(100);
/// The most moves that `status` names; as a rule, no more than these are in progress.
const NAMED_MAX: usize = 100;

/// All moves in progress.
#[derive(Debug, Default)]
pub(super) struct ActiveMoves {
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    moves: BTreeMap<u64, Move>,
    next: u64,
    /// Bytes copied recently, each entry with its start.
    lately: VecDeque<(Instant, u64)>,
}

#[derive(Debug)]
struct Move {
    /// Its name on the SSD when the move began.
    entry: Node,
    from: usize,
    to: usize,
    done: u64,
    total: u64,
    begun: Instant,
}

impl ActiveMoves {
    /// Starts with no moves.
    pub(super) fn new(clock: &Clock) -> Self {
        Self { clock: clock.clone(), state: Mutex::default() }
    }

    /// Registers the beginning of a move of a file with `total` bytes of data; the move ends when the guard is dropped.
    pub(super) fn begin(
        &self,
        entry: Node,
        (from, to): (usize, usize),
        total: u64,
    ) -> ActiveMove<'_> {
        let mut state = self.state.lock();
        let id = state.next;
        state.next += 1;
        let begun = self.clock.instant();
        state.moves.insert(id, Move { entry, from, to, done: 0, total, begun });
        ActiveMove { all: self, id }
    }

    /// The moves in progress, the oldest first.
    pub(super) fn now(&self, tree: &Namespace) -> Vec<MoveNow> {
        let state = self.state.lock();
        let describe = |of: &Move| MoveNow {
            path: tree.path_of(&of.entry),
            from: of.from,
            to: of.to,
            done_bytes: of.done.min(of.total),
            total_bytes: of.total,
            seconds: self.clock.elapsed(of.begun).as_secs_f64(),
        };
        state.moves.values().take(NAMED_MAX).map(describe).collect()
    }

    /// Bytes per second that were copied between tiers during the last seconds.
    pub(super) fn rate(&self) -> u64 {
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

impl State {
    fn forget_before(&mut self, now: Instant) {
        while self.lately.front().is_some_and(|(since, _)| now.duration_since(*since) > WINDOW) {
            self.lately.pop_front();
        }
    }

    fn copied(&mut self, id: u64, bytes: u64, now: Instant) {
        if let Some(of) = self.moves.get_mut(&id) {
            of.done += bytes;
        }
        self.forget_before(now);
        match self.lately.back_mut() {
            Some((since, sum)) if now.duration_since(*since) < GRAIN => *sum += bytes,
            _ => self.lately.push_back((now, bytes)),
        }
    }
}

/// One move in progress.
pub(super) struct ActiveMove<'a> {
    all: &'a ActiveMoves,
    id: u64,
}

impl ActiveMove<'_> {
    /// Counts `bytes` more copied bytes. Called once per piece or file, not once per request.
    pub(super) fn copied(&self, bytes: u64) {
        self.all.state.lock().copied(self.id, bytes, self.all.clock.instant());
    }
}

impl Drop for ActiveMove<'_> {
    fn drop(&mut self) {
        self.all.state.lock().moves.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_last_seconds() {
        let dir = tempfile::tempdir().unwrap();
        let root = Namespace::open(dir.path()).unwrap().root();
        let all = ActiveMoves::default();
        let guard = all.begin(root, (1, 0), 100);
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
