//! Phases: periods in which a file gets requests of one kind.

use super::mix::Mix;
use crate::request::Request;

/// Requests that are analysed together: fewer reveal little about a mix.
const WINDOW: u64 = 64;
/// Limit of the phases of a file; beyond it, the two most similar adjacent ones are merged.
const PHASES_MAX: usize = 32;
/// A pause this long ends a window, in nanoseconds: different requests may follow.
const PAUSE_NS: u64 = 1_000_000_000;

/// A period with a uniform mix of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Phase {
    /// Start of its first request, nanoseconds.
    pub begin_ns: u64,
    /// Start of its last request.
    pub end_ns: u64,
    /// Its requests.
    pub mix: Mix,
    /// Requests that begin where the last one of the same process ended.
    pub sequential: u64,
    /// Number of stretches without a pause of a second.
    pub bursts: u64,
}

impl Phase {
    fn join(&mut self, next: &Self) {
        self.end_ns = next.end_ns;
        self.mix.join(&next.mix);
        self.sequential += next.sequential;
        self.bursts += next.bursts;
    }

    fn differs(&self, other: &Self) -> bool {
        let share = |phase: &Self| (u128::from(phase.sequential), u128::from(phase.mix.requests()));
        let ((a, all_a), (b, all_b)) = (share(self), share(other));
        let turned = 2 * (a * all_b).abs_diff(b * all_a) > all_a * all_b;
        turned || self.mix.differs(&other.mix)
    }
}

/// The phases so far, and the current window.
#[derive(Debug, Default)]
pub(super) struct Phases {
    done: Vec<Phase>,
    window: Phase,
    /// Whether the window began after a pause.
    paused: bool,
}

impl Phases {
    /// Adds a request; `continues` is whether it begins where the last one of its process ended.
    pub(super) fn push(&mut self, request: &Request, continues: bool) {
        let filled = self.window.mix.requests();
        let first = filled == 0 && self.done.is_empty();
        let last_ns = if filled > 0 {
            self.window.end_ns
        } else {
            self.done.last().map_or(0, |last| last.end_ns)
        };
        let pause = first || request.start_ns - last_ns >= PAUSE_NS;
        if filled >= WINDOW || (filled > 0 && pause) {
            self.close();
        }
        let window = &mut self.window;
        if window.mix.requests() == 0 {
            *window = Phase { begin_ns: request.start_ns, ..Phase::default() };
            self.paused = pause;
        }
        window.end_ns = request.start_ns;
        window.mix.add(request);
        window.sequential += u64::from(continues);
    }

    fn close(&mut self) {
        let window = Phase { bursts: u64::from(self.paused), ..std::mem::take(&mut self.window) };
        match self.done.last_mut() {
            // A few requests reveal nothing about a mix: they are added to the previous phase.
            Some(last) if !last.differs(&window) || window.mix.requests() < WINDOW / 8 => {
                last.join(&window);
            }
            _ => self.done.push(window),
        }
        if self.done.len() > PHASES_MAX {
            self.join_two();
        }
    }

    /// Merges the two adjacent phases whose mean lengths are closest.
    fn join_two(&mut self) {
        let distance = |index: usize| {
            let [a, b] = [index, index + 1].map(|at| self.done[at].mix.mean_length().max(1));
            u128::from(a.max(b)) * 1024 / u128::from(a.min(b))
        };
        if let Some(index) = (0..self.done.len() - 1).min_by_key(|&index| distance(index)) {
            let next = self.done.remove(index + 1);
            self.done[index].join(&next);
        }
    }

    pub(super) fn finish(mut self) -> Vec<Phase> {
        if self.window.mix.requests() > 0 {
            self.close();
        }
        self.done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Op;

    fn phases(requests: impl IntoIterator<Item = (u64, Op, u64)>) -> Vec<Phase> {
        let mut phases = Phases::default();
        for (start_ns, op, length) in requests {
            let (process, file, offset) = (0, 0, 0);
            let request =
                Request { start_ns, duration_ns: None, process, file, op, offset, length };
            phases.push(&request, false);
        }
        phases.finish()
    }

    #[test]
    fn reading_after_writing_and_larger_requests_are_phases_and_pauses_are_bursts() {
        let writes = (0..640).map(|n| (n * 1_000, Op::Write, 4096));
        let reads = (0..640).map(|n| (1_000_000 + n * 1_000, Op::Read, 4096));
        let large = (0..640).map(|n| (5_000_000_000 * (1 + n / 64) + n, Op::Read, 1 << 20));
        let found = phases(writes.chain(reads).chain(large));
        let requests: Vec<_> = found.iter().map(|phase| phase.mix.requests()).collect();
        assert_eq!(requests, [640, 640, 640]);
        assert_eq!(found.iter().map(|phase| phase.bursts).collect::<Vec<_>>(), [1, 0, 10]);
        assert_eq!((found[1].begin_ns, found[1].end_ns), (1_000_000, 1_639_000));
    }

    #[test]
    fn however_often_a_file_changes_its_phases_are_bounded() {
        let found = phases((0..64 * 200).map(|n| (n, Op::Read, 4096 << (n / 64 % 2 * 4))));
        assert_eq!(found.len(), PHASES_MAX);
        assert_eq!(found.iter().map(|phase| phase.mix.requests()).sum::<u64>(), 64 * 200);
    }
}
