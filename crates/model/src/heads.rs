//! The positions of the heads of an origin's disks in a file, as far as its requests reveal them: a request that begins
//! at one costs the disk no seek, whichever process it is from (ours; docs/ALGORITHMS.md, section 3.2).

use crate::request::{ByteRange, Direction};
use crate::striping::Striping;

/// How many servers are tracked: of a request that touches more, only the first ones count.
const SERVERS_MAX: u32 = 64;

/// After this many writes to the origin, its last read is forgotten.
const NEAR_READ: u32 = 64;

/// How many of the last 64 requests to the origin count as most of them.
const MOSTLY: u32 = 48;

/// For each server, where in its part of the file its last request ended.
#[derive(Debug, Default)]
pub struct Heads {
    ends: Vec<u64>,
    /// How many more writes until the last read is forgotten.
    near_read: u32,
    /// One bit for each of the last 64 requests, set if it needed no seek.
    without_seek: u64,
}

impl Heads {
    /// Whether `range` begins where the last request on its first server ended. Requests in file order are in that
    /// order on every server, so the first one stands for the others.
    #[must_use]
    pub(crate) fn are_at(&self, striping: Striping, range: ByteRange) -> bool {
        if range.is_empty() {
            return false;
        }
        let piece = striping.piece_at(range.start, range.end);
        // No request is continued by one at the beginning of a file.
        piece.local_offset > 0 && self.ends.get(piece.server as usize) == Some(&piece.local_offset)
    }

    /// `range` was written by a flush.
    pub fn lose(&mut self, striping: Striping, range: ByteRange) {
        for (server, end) in (0..).zip(&mut self.ends) {
            if !striping.local_range(server, range).is_empty() {
                *end = 0;
            }
        }
    }

    /// Whether the origin serves reads in the file, wherever its writes go.
    #[must_use]
    pub(crate) const fn serve_reads(&self) -> bool {
        self.near_read > 0
    }

    /// Whether most of the requests that go to the origin need no seek.
    #[must_use]
    pub(crate) const fn mostly_stay(&self) -> bool {
        self.without_seek.count_ones() >= MOSTLY
    }

    /// Notes that `range` goes to the origin.
    pub fn follow(&mut self, striping: Striping, range: ByteRange, direction: Direction) {
        self.near_read = match direction {
            Direction::Read => NEAR_READ,
            Direction::Write => self.near_read.saturating_sub(1),
        };
        self.without_seek = self.without_seek << 1 | u64::from(self.are_at(striping, range));
        let servers = striping.servers().min(SERVERS_MAX);
        self.ends.resize(servers as usize, 0);
        for (server, end) in (0..servers).zip(&mut self.ends) {
            let local = striping.local_range(server, range);
            if !local.is_empty() {
                *end = local.end;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_continues_the_last_request_on_its_server_needs_no_seek() {
        let one = Striping::new(1, 100);
        let mut heads = Heads::default();
        assert!(!heads.are_at(one, ByteRange::at(0, 10)), "nothing is known");
        heads.follow(one, ByteRange::at(50, 10), Direction::Write);
        assert!(heads.are_at(one, ByteRange::at(60, 10)));
        assert!(!heads.are_at(one, ByteRange::at(50, 10)));
        assert!(!heads.are_at(one, ByteRange::at(60, 0)));
        heads.follow(one, ByteRange::at(500, 10), Direction::Write);
        assert!(!heads.are_at(one, ByteRange::at(60, 10)), "the head has moved");
    }

    #[test]
    fn each_server_has_a_head() {
        let two = Striping::new(2, 100);
        let mut heads = Heads::default();
        // Out of order in the file, in order on each server.
        heads.follow(two, ByteRange::at(100, 100), Direction::Write);
        heads.follow(two, ByteRange::at(0, 100), Direction::Write);
        assert!(
            heads.are_at(two, ByteRange::at(200, 100))
                && heads.are_at(two, ByteRange::at(300, 100))
        );
        heads.follow(two, ByteRange::at(400, 100), Direction::Write);
        assert!(!heads.are_at(two, ByteRange::at(200, 100)));
        assert!(heads.are_at(two, ByteRange::at(300, 100)));
    }

    #[test]
    fn a_flush_takes_the_head_away() {
        let two = Striping::new(2, 100);
        let mut heads = Heads::default();
        heads.follow(two, ByteRange::at(0, 200), Direction::Write);
        heads.lose(two, ByteRange::at(0, 50));
        assert!(!heads.are_at(two, ByteRange::at(200, 10)));
        assert!(heads.are_at(two, ByteRange::at(300, 10)), "it wrote on the other server alone");
    }

    #[test]
    fn what_the_origin_does_lately_counts() {
        let one = Striping::new(1, 100);
        let mut heads = Heads::default();
        heads.follow(one, ByteRange::at(0, 10), Direction::Read);
        for at in 1..=64 {
            assert!(heads.serve_reads() && !(at < 48 && heads.mostly_stay()));
            heads.follow(one, ByteRange::at(at * 10, 10), Direction::Write);
        }
        assert!(!heads.serve_reads() && heads.mostly_stay());
        for at in 0..20 {
            heads.follow(one, ByteRange::at(at * 5000, 10), Direction::Write);
        }
        assert!(!heads.mostly_stay(), "it seeks now");
    }
}
