//! Each process's activity on one file: where its last request ended, how long its stream is, and how many processes
//! are active (p of the cost model). The engine and the simulator use the same code.

use crate::heads::Heads;
use crate::in_step::StepDetector;
use crate::request::{ByteRange, Direction};
use crate::striping::Striping;
use rustc_hash::FxHashMap;

/// A process counts towards p for this long after its last request for the file.
pub(crate) const WINDOW_MS: u64 = 10_000;

/// Limit of the processes remembered per file; idle ones are dropped first.
const PROCESSES_MAX: usize = 4096;

/// How many ends of the file's latest requests are kept: processes that take turns in one stream (blocks of a shared
/// file, one after another) continue where another one ended.
const ENDS: usize = 64;

/// Of its last eight requests, at least this many of a process must have begun where others had ended: with requests at
/// random places, a few do so by chance, or nearly.
const IN_ORDER_MIN: u32 = 2;

/// The streams of one file by process and direction-less position, as the papers define distance.
#[derive(Debug)]
pub struct Streams {
    by_process: FxHashMap<u32, Stream>,
    ends: [u64; ENDS],
    next_end: usize,
    heads: Heads,
    detector: StepDetector,
    /// p as counted at `counted_ms`; counting at every request would be linear in p.
    active: u32,
    counted_ms: u64,
}

impl Default for Streams {
    fn default() -> Self {
        // No request begins at the end of the address space.
        let ends = [u64::MAX; ENDS];
        Self {
            by_process: FxHashMap::default(),
            ends,
            next_end: 0,
            heads: Heads::default(),
            detector: StepDetector::default(),
            active: 0,
            counted_ms: 0,
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Stream {
    end: u64,
    run_bytes: u64,
    /// Length of the run before this one.
    last_run_bytes: u64,
    /// One bit for each of its last eight requests, set if it began where one of the latest requests had ended.
    in_order: u8,
    seen_ms: u64,
}

/// A request in relation to the earlier ones of its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pattern {
    /// `|f_i - (f_{i-1} + r_{i-1})|` (S4D-Cache), 0 also if another process's request recently ended there; `None` for
    /// the first request.
    pub distance: Option<u64>,
    /// Bytes of the contiguous run that ends with this request.
    pub run_bytes: u64,
    /// Length of the process's run before this one, 0 if there was none.
    pub last_run_bytes: u64,
    /// Whether its process does not only jump: some of its last requests began where others had ended.
    pub orderly: bool,
    /// Whether it begins where a request of another process recently ended, and not where its own last one did.
    pub in_turn: bool,
    /// Whether processes take turns and have been in step so far.
    pub in_step: bool,
    /// Processes with requests for the file within [`WINDOW_MS`], including this one.
    pub processes: u32,
}

impl Streams {
    /// Notes a request; returns how it continues its process's stream.
    pub fn note(&mut self, striping: Striping, pid: u32, range: ByteRange, now_ms: u64) -> Pattern {
        let last = self.by_process.get(&pid).copied();
        let at_an_end = self.ends.contains(&range.start);
        let pattern = relate(last, at_an_end, range);
        self.detector.note(striping, range);
        self.active += u32::from(last.is_none());
        let Pattern { run_bytes, last_run_bytes, .. } = pattern;
        let in_order = last.map_or(u8::MAX, |stream| stream.in_order << 1 | u8::from(at_an_end));
        let stream =
            Stream { end: range.end, run_bytes, last_run_bytes, in_order, seen_ms: now_ms };
        self.by_process.insert(pid, stream);
        self.ends[self.next_end] = range.end;
        self.next_end = (self.next_end + 1) % ENDS;
        if now_ms.saturating_sub(self.counted_ms) > WINDOW_MS / 10
            || self.by_process.len() > PROCESSES_MAX
        {
            self.recount(now_ms);
        }
        self.among_processes(striping, range, pattern)
    }

    /// What [`Streams::note`] would return, without noting anything: for `explain`.
    pub fn peek(&self, striping: Striping, pid: u32, range: ByteRange) -> Pattern {
        let last = self.by_process.get(&pid).copied();
        let pattern = relate(last, self.ends.contains(&range.start), range);
        self.among_processes(striping, range, pattern)
    }

    fn among_processes(&self, striping: Striping, range: ByteRange, pattern: Pattern) -> Pattern {
        let in_step = self.in_step(striping, range);
        Pattern { in_step, processes: self.active.max(1), ..pattern }
    }

    /// Whether processes are in step, and `range` would keep them so. On several servers that takes requests of whole
    /// stripes, because those that share a stripe need an order in it, too, and a file that is only written: a read
    /// comes from wherever its bytes are, and changes the order.
    fn in_step(&self, striping: Striping, range: ByteRange) -> bool {
        let kept = striping.servers() == 1
            || (range.len() >= striping.stripe() && !self.heads.serve_reads());
        self.active > 1 && kept && self.detector.in_step()
    }

    /// Whether the origin serves reads in the file, wherever its writes go.
    #[must_use]
    pub const fn origin_serves_reads(&self) -> bool {
        self.heads.serve_reads()
    }

    /// Notes that `range` goes to an origin with this striping.
    pub fn goes_to_origin(&mut self, striping: Striping, range: ByteRange, direction: Direction) {
        self.heads.follow(striping, range, direction);
    }

    /// Notes that a flush wrote `range` to the origin.
    pub fn flushed(&mut self, striping: Striping, range: ByteRange) {
        self.heads.lose(striping, range);
    }

    /// Whether `range`, a request with this pattern, would cost the origin no seek. Reads also count as such while most
    /// of what the origin serves needs no seek: if some of a stream's reads were cached, its processes would lose their
    /// order.
    ///
    /// A request of a process that streams alongside others, not in turn with them, does not count as such while only
    /// the file's writes go to the origin: the process would wait for the disk although the others need not.
    #[must_use]
    pub fn continues_origin(
        &self,
        striping: Striping,
        range: ByteRange,
        pattern: Pattern,
        direction: Direction,
    ) -> bool {
        if direction == Direction::Read && pattern.distance == Some(0) && self.heads.mostly_stay() {
            return true;
        }
        let alone = pattern.processes == 1;
        (alone || pattern.in_turn || self.heads.serve_reads()) && self.heads.are_at(striping, range)
    }

    fn recount(&mut self, now_ms: u64) {
        let oldest = now_ms.saturating_sub(WINDOW_MS);
        self.by_process.retain(|_, stream| stream.seen_ms >= oldest);
        if self.by_process.len() > PROCESSES_MAX {
            self.by_process.clear();
        }
        self.active = u32::try_from(self.by_process.len()).unwrap_or(u32::MAX);
        self.counted_ms = now_ms;
    }
}

/// A request after the `last` of its process; `at_an_end` if it begins where one of the latest requests ended. Of the
/// other processes it says nothing.
fn relate(last: Option<Stream>, at_an_end: bool, range: ByteRange) -> Pattern {
    let orderly = last.is_none_or(|stream| stream.in_order.count_ones() >= IN_ORDER_MIN);
    let shared = orderly && at_an_end;
    let distance = last.map(|stream| range.start.abs_diff(stream.end));
    let carried = last.filter(|stream| stream.end == range.start || shared);
    let run_bytes = carried.map_or(0, |stream| stream.run_bytes) + range.len();
    let last_run_bytes =
        last.map_or(
            0,
            |stream| {
                if carried.is_some() { stream.last_run_bytes } else { stream.run_bytes }
            },
        );
    Pattern {
        distance: if shared { distance.map(|_| 0) } else { distance },
        run_bytes,
        last_run_bytes,
        orderly,
        in_turn: shared && last.is_none_or(|stream| stream.end != range.start),
        in_step: false,
        processes: 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Striping = Striping::new(1, 100);

    fn pattern(distance: Option<u64>, run_bytes: u64, last_run_bytes: u64) -> Pattern {
        Pattern {
            distance,
            run_bytes,
            last_run_bytes,
            orderly: true,
            in_turn: false,
            in_step: false,
            processes: 1,
        }
    }

    #[test]
    fn a_stream_is_told_from_jumps() {
        let mut streams = Streams::default();
        assert_eq!(streams.note(ONE, 1, ByteRange::at(0, 100), 0), pattern(None, 100, 0));
        assert_eq!(streams.note(ONE, 1, ByteRange::at(100, 50), 1), pattern(Some(0), 150, 0));
        assert_eq!(streams.note(ONE, 1, ByteRange::at(10, 5), 2), pattern(Some(140), 5, 150));
        assert_eq!(streams.note(ONE, 1, ByteRange::at(30, 5), 3), pattern(Some(15), 5, 5));
    }

    #[test]
    fn processes_that_take_turns_are_one_stream() {
        let mut streams = Streams::default();
        for turn in 0..8 {
            for pid in 0..4 {
                let seen =
                    streams.note(ONE, pid, ByteRange::at((turn * 4 + u64::from(pid)) * 64, 64), 0);
                assert!(turn == 0 || seen.distance == Some(0), "turn {turn} of {pid}: {seen:?}");
            }
        }
    }

    #[test]
    fn p_counts_processes_that_were_active_lately() {
        let mut streams = Streams::default();
        for pid in 0..16 {
            streams.note(ONE, pid, ByteRange::at(0, 1), 0);
        }
        assert_eq!(streams.note(ONE, 0, ByteRange::at(1, 1), 1).processes, 16);
        assert_eq!(streams.note(ONE, 0, ByteRange::at(2, 1), 2 * WINDOW_MS).processes, 1);
    }

    #[test]
    fn a_jump_that_ends_where_another_began_is_no_turn() {
        let mut streams = Streams::default();
        for at in 0..32 {
            streams.note(ONE, 1, ByteRange::at(at * 1000, 10), 0);
            streams.note(ONE, 2, ByteRange::at(at * 1000 + 500, 10), 0);
        }
        let seen = streams.note(ONE, 2, ByteRange::at(31_010, 10), 0);
        assert!(!seen.orderly && !seen.in_turn && seen.distance == Some(500), "{seen:?}");
    }

    #[test]
    fn a_turn_continues_what_went_to_the_origin() {
        let mut streams = Streams::default();
        let (a, b) = (ByteRange::at(0, 10), ByteRange::at(10, 10));
        streams.note(ONE, 1, a, 0);
        streams.goes_to_origin(ONE, a, Direction::Write);
        let seen = streams.note(ONE, 2, b, 0);
        assert!(seen.in_turn && streams.continues_origin(ONE, b, seen, Direction::Write));
        streams.flushed(ONE, ByteRange::at(0, 1));
        assert!(!streams.continues_origin(ONE, b, seen, Direction::Write), "the head has moved");
    }

    #[test]
    fn one_of_several_writers_continues_its_own_stream_where_the_origin_reads() {
        let mut streams = Streams::default();
        streams.note(ONE, 1, ByteRange::at(0, 10), 0);
        streams.note(ONE, 2, ByteRange::at(5000, 10), 0);
        streams.goes_to_origin(ONE, ByteRange::at(0, 10), Direction::Write);
        let next = ByteRange::at(10, 10);
        let seen = streams.note(ONE, 1, next, 0);
        assert!(!streams.continues_origin(ONE, next, seen, Direction::Write));
        streams.goes_to_origin(ONE, ByteRange::at(0, 10), Direction::Read);
        assert!(streams.continues_origin(ONE, next, seen, Direction::Write));
    }
}
