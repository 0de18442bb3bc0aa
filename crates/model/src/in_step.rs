//! Whether processes that take turns in one stream are in step, that is, whether their requests arrive in the order in
//! which the disks have them, so that disks without queues of their own serve them without seeks (ours;
//! docs/ALGORITHMS.md, section 3.2).
//!
//! The order in which requests arrive is the order in which a disk would get them. If they are in the disk's order for
//! a while, it is worth a seek to go to the origin and stay there: processes that wait for one disk keep their order.
//! That pays only if it lasts. After an attempt that did not last, twice as many requests must arrive in order before
//! the next one.

use crate::request::ByteRange;
use crate::striping::Striping;

/// Requests in order required of one server before the first attempt.
const NEEDED: u32 = 4;
/// Where there are several servers: requests in order for each of them.
const NEEDED_PER_SERVER: u32 = 2;
/// Requests in order required after the first failure.
const NEEDED_AGAIN: u32 = 64;
/// Limit of that number.
const NEEDED_MAX: u32 = 1 << 16;
/// An attempt has failed if the order breaks before this many requests, which is how many an SSD would have served
/// during its seek.
const LASTS: u32 = 128;
/// How many servers are tracked; requests to others neither keep nor break the order.
const SERVERS_MAX: u32 = 64;

/// The order of a file's requests.
#[derive(Debug, Default)]
pub struct StepDetector {
    /// For each server, where in its part of the file the last request ended; 0 if there was none.
    ends: Vec<u64>,
    /// Requests that each began where the previous one on its server ended.
    in_order: u32,
    /// How many of those lead to an attempt; 0 before the first failure.
    needed: u32,
}

impl StepDetector {
    /// Notes a request of any process, to a file with this striping.
    pub fn note(&mut self, striping: Striping, range: ByteRange) {
        if range.is_empty() {
            return;
        }
        let servers = striping.servers().min(SERVERS_MAX);
        self.ends.resize(servers as usize, 0);
        let first = striping.piece_at(range.start, range.end);
        match self.ends.get(first.server as usize) {
            // Requests in file order are in that order on every server, so the first one stands for the others.
            Some(&end) if end == first.local_offset && end > 0 => {
                self.in_order = self.in_order.saturating_add(1);
            }
            // Nothing is known of where that server's head would be.
            Some(0) | None => {}
            Some(_) => self.break_order(servers),
        }
        let mut pieces = 0;
        for piece in striping.pieces(range).take(servers as usize) {
            self.end(piece.server, piece.local_offset + piece.len);
            pieces += piece.len;
        }
        if pieces < range.len() {
            // It is longer than one stripe on each server.
            for server in 0..servers {
                let local = striping.local_range(server, range);
                if !local.is_empty() {
                    self.end(server, local.end);
                }
            }
        }
    }

    fn end(&mut self, server: u32, at: u64) {
        if let Some(end) = self.ends.get_mut(server as usize) {
            *end = at;
        }
    }

    fn break_order(&mut self, servers: u32) {
        let needed = self.needed(servers);
        if self.in_order >= needed {
            let failed = self.in_order - needed < LASTS;
            self.needed = if failed { (2 * needed).clamp(NEEDED_AGAIN, NEEDED_MAX) } else { 0 };
        }
        self.in_order = 0;
    }

    /// How many requests in order lead to an attempt.
    fn needed(&self, servers: u32) -> u32 {
        let first = if servers == 1 { NEEDED } else { NEEDED_PER_SERVER * servers };
        self.needed.max(first)
    }

    /// Whether the requests so far are in step.
    #[must_use]
    pub fn in_step(&self) -> bool {
        let servers = u32::try_from(self.ends.len()).unwrap_or(SERVERS_MAX);
        servers > 0 && self.in_order >= self.needed(servers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Striping = Striping::new(1, 100);

    /// Notes requests of 10 bytes one behind the other, from `from` on; how many are in step.
    fn in_step(detector: &mut StepDetector, from: u64, count: u64) -> usize {
        let step = |at: u64| {
            detector.note(ONE, ByteRange::at(from + at * 10, 10));
            detector.in_step()
        };
        (0..count).map(step).filter(|in_step| *in_step).count()
    }

    #[test]
    fn four_in_order_are_in_step_until_the_order_breaks() {
        let mut detector = StepDetector::default();
        assert!(!detector.in_step());
        assert_eq!(in_step(&mut detector, 0, 200), 196);
        detector.note(ONE, ByteRange::at(0, 10));
        assert!(!detector.in_step());
        assert_eq!(in_step(&mut detector, 5000, 200), 196, "it had lasted");
    }

    #[test]
    fn what_did_not_last_takes_longer_to_be_believed() {
        let mut detector = StepDetector::default();
        let mut tried = 0;
        for at in 0..100 {
            tried += usize::from(in_step(&mut detector, at * 1000, 70) > 0);
        }
        assert_eq!(tried, 2, "after 4 and after 64 requests; 128 never come");
        assert!(in_step(&mut detector, 0, 1000) > 0);
        detector.note(ONE, ByteRange::at(7, 1));
        assert_eq!(in_step(&mut detector, 0, 10), 6, "what has lasted is believed again");
    }

    #[test]
    fn on_several_servers_the_order_on_each_counts() {
        let four = Striping::new(4, 100);
        let mut detector = StepDetector::default();
        // Four processes with a server each, out of order in the file.
        for round in 0..4 {
            for process in [2, 0, 3, 1] {
                detector.note(four, ByteRange::at((round * 4 + process) * 100, 100));
            }
            assert_eq!(
                detector.in_step(),
                round >= 2,
                "twice on each server after round 2: {round}"
            );
        }
        detector.note(four, ByteRange::at(50, 10));
        assert!(!detector.in_step());
        // Requests over all servers, each of them the next.
        let mut detector = StepDetector::default();
        for at in 0..12 {
            detector.note(four, ByteRange::at(at * 800, 800));
            assert_eq!(detector.in_step(), at >= 8, "{at}");
        }
    }
}
