//! The pattern of a stream: the requests of one process in one file, or of all processes in one file.

use serde::Serialize;

use crate::request::Request;

/// The pattern of a stream's accesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// Each request begins where the previous one ended.
    Sequential,
    /// With the same gap between requests.
    Strided,
    /// Runs with one gap, and another gap between runs of one length.
    NestedStrided,
    /// None of these.
    Random,
    /// Fewer than three requests: too few for a pattern.
    Short,
}

/// Number of steps from one request to the next, by how they can be explained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Transitions {
    /// All.
    pub all: u64,
    /// Without a gap.
    pub sequential: u64,
    /// With the gap of the run.
    pub repeated: u64,
    /// From one run to the next, with the same gap as between the previous two.
    pub outer: u64,
    /// From one run to the next.
    pub breaks: u64,
}

/// The state of a stream: its last request, its run, and the break before that.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Stream {
    seen: Transitions,
    started: bool,
    end: u64,
    /// Gap within the run, once it has two requests.
    inner: Option<i64>,
    run: u64,
    /// Gap after the last complete run, and the number of its requests.
    last_break: Option<(i64, u64)>,
    /// The last gap, and the one before it.
    last_gap: Option<i64>,
    before: Option<i64>,
}

impl Stream {
    /// Adds the next request; returns whether it begins where the previous one ended.
    pub(super) fn push(&mut self, request: &Request) -> bool {
        let gap = request.offset.cast_signed().wrapping_sub(self.end.cast_signed());
        self.end = request.end();
        if !self.started {
            self.started = true;
            self.run = 1;
            return false;
        }
        self.seen.all += 1;
        self.seen.sequential += u64::from(gap == 0);
        match self.inner {
            None => {
                self.inner = Some(gap);
                self.run += 1;
            }
            Some(inner) if inner == gap => {
                self.seen.repeated += 1;
                self.run += 1;
            }
            Some(_) => {
                self.seen.breaks += 1;
                let this = (gap, self.run);
                // Going back is another pass, not a wider step.
                let as_before = gap >= 0 && self.last_break == Some(this);
                let in_turn = gap >= 0 && self.run == 2 && self.before == Some(gap);
                self.seen.outer += u64::from(as_before || in_turn);
                self.last_break = Some(this);
                // A run of one step does not count: this step may be the first of the next run.
                let is_run = self.run > 2 || as_before;
                (self.inner, self.run) = if is_run { (self.inner, 1) } else { (Some(gap), 2) };
            }
        }
        self.before = self.last_gap.replace(gap);
        gap == 0
    }

    /// The simplest pattern that explains four fifths of the steps.
    pub(super) fn pattern(&self) -> Pattern {
        let seen = &self.seen;
        if seen.all < 2 {
            return Pattern::Short;
        }
        // The first step cannot be compared with anything.
        let most = |explained: u64| explained * 5 >= (seen.all - 1) * 4;
        if seen.sequential * 5 >= seen.all * 4 {
            Pattern::Sequential
        } else if seen.outer >= 2
            && seen.outer * 5 >= seen.breaks * 4
            && most(seen.repeated + seen.outer)
        {
            Pattern::NestedStrided
        } else if most(seen.repeated) {
            Pattern::Strided
        } else if seen.outer >= 2 && most(seen.repeated + seen.outer) {
            Pattern::NestedStrided
        } else {
            Pattern::Random
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Op;

    fn pattern(offsets: impl IntoIterator<Item = u64>) -> Pattern {
        let mut stream = Stream::default();
        for offset in offsets {
            stream.push(&Request {
                start_ns: 0,
                duration_ns: None,
                process: 0,
                file: 0,
                op: Op::Read,
                offset,
                length: 10,
            });
        }
        stream.pattern()
    }

    #[test]
    fn patterns_are_told_apart() {
        assert_eq!(pattern([5, 15]), Pattern::Short);
        assert_eq!(pattern((0..50).map(|n| n * 10)), Pattern::Sequential);
        assert_eq!(pattern((0..50).map(|n| n * 70)), Pattern::Strided);
        assert_eq!(pattern((0..50).rev().map(|n| n * 70)), Pattern::Strided);
        // Rows of 4 in a matrix, contiguous or not.
        for inner in [10, 30] {
            let rows = (0..20).flat_map(|row| (0..4).map(move |n| row * 1000 + n * inner));
            assert_eq!(pattern(rows), Pattern::NestedStrided, "{inner}");
        }
        let pairs = (0..20).flat_map(|row| [row * 1000, row * 1000 + 30]);
        assert_eq!(pattern(pairs), Pattern::NestedStrided);
        assert_eq!(pattern((0..40).map(|n| n % 2 * 1000)), Pattern::Random);
        // A header first, and a different stride later.
        let two = [7].into_iter().chain((1..30).map(|n| n * 70)).chain((30..60).map(|n| n * 90));
        assert_eq!(pattern(two), Pattern::Strided);
        let random = (1..50_u64).map(|n| n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20);
        assert_eq!(pattern(random), Pattern::Random);
        // Two passes are not steps of a stride; a few jumps do not make a stream random.
        assert_eq!(pattern((0..100).map(|n| n % 50 * 10)), Pattern::Sequential);
        assert_eq!(pattern((0..100).map(|n| n * 10 + n / 30 * 7777)), Pattern::Sequential);
    }
}
