//! Regions: stretches of a file that get requests of one kind.

use super::mix::Mix;
use crate::request::Request;

/// Number of parts in which a file is analysed, a power of two.
const PARTS: usize = 64;
/// The smallest part, in bytes.
const PART_MIN: u64 = 64 << 10;

/// A stretch of a file with a uniform mix of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// Its first byte.
    pub offset: u64,
    /// Its bytes: to where its last request ends, or the next region begins.
    pub length: u64,
    /// Requests that begin in it.
    pub mix: Mix,
}

/// Requests that begin in one part of a file.
#[derive(Debug, Default, Clone, Copy)]
struct Part {
    mix: Mix,
    /// Where the last of them ends in the file.
    end: u64,
}

/// Equal parts of a file, whose length doubles whenever the file turns out to be longer.
#[derive(Debug)]
pub(super) struct Regions {
    parts: Box<[Part; PARTS]>,
    part: u64,
}

impl Default for Regions {
    fn default() -> Self {
        Self { parts: Box::new([Part::default(); PARTS]), part: PART_MIN }
    }
}

impl Regions {
    pub(super) fn push(&mut self, request: &Request) {
        loop {
            let index = usize::try_from(request.offset / self.part).unwrap_or(usize::MAX);
            if let Some(part) = self.parts.get_mut(index) {
                part.end = part.end.max(request.end());
                return part.mix.add(request);
            }
            for index in 0..PARTS / 2 {
                let mut both = self.parts[2 * index];
                let next = self.parts[2 * index + 1];
                both.mix.join(&next.mix);
                both.end = both.end.max(next.end);
                self.parts[index] = both;
            }
            self.parts[PARTS / 2..].fill(Part::default());
            self.part *= 2;
        }
    }

    /// Merges adjacent parts with one mix. Parts in which no request begins belong to the region whose requests reach into
    /// them, or to none.
    pub(super) fn finish(self) -> Vec<Region> {
        let mut regions: Vec<Region> = Vec::new();
        let mut part_end = 0;
        for (index, part) in self.parts.iter().enumerate() {
            if part.mix.requests() == 0 {
                continue;
            }
            let begin = index as u64 * self.part;
            match regions.last_mut() {
                Some(last)
                    if part_end.max(last.offset + last.length) >= begin
                        && !last.mix.differs(&part.mix) =>
                {
                    last.length = last.length.max(part.end - last.offset);
                    last.mix.join(&part.mix);
                }
                last => {
                    if let Some(last) = last {
                        last.length = last.length.min(begin - last.offset);
                    }
                    let length = part.end - begin;
                    regions.push(Region { offset: begin, length, mix: part.mix });
                }
            }
            part_end = begin + self.part;
        }
        regions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{FILE_END_MAX, Op};

    fn at(offset: u64, length: u64) -> Request {
        let (start_ns, duration_ns, process, file, op) = (0, None, 0, 0, Op::Write);
        Request { start_ns, duration_ns, process, file, op, offset, length }
    }

    #[test]
    fn parts_of_one_kind_are_a_region() {
        let mut regions = Regions::default();
        // Small requests in the first MiB, large ones from 4 to 8 MiB.
        for n in 0..256 {
            regions.push(&at(n << 12, 1 << 12));
        }
        for n in 8..16 {
            regions.push(&at(n << 19, 1 << 19));
        }
        let found = regions.finish();
        assert_eq!(found[0].length, 1 << 20);
        assert_eq!(found[0].mix.writes, 256);
        assert_eq!(found.iter().skip(1).map(|region| region.mix.writes).sum::<u64>(), 8);
        assert!(found[1].offset == 4 << 20);
    }

    #[test]
    fn the_largest_file_has_as_many_parts() {
        let mut regions = Regions::default();
        regions.push(&at(0, 1));
        regions.push(&at(FILE_END_MAX - 1, 1));
        let found = regions.finish();
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].offset, found[0].length), (0, 1));
        assert_eq!(found[1].offset + found[1].length, FILE_END_MAX);
    }

    /// They ended where the part ended in which the last request begins, and each request longer than a part was a region.
    #[test]
    fn regions_end_where_requests_end() {
        let mut regions = Regions::default();
        for n in 0..3 {
            regions.push(&at(n << 20, 1 << 20));
        }
        // Small requests up to 10000 bytes behind these, and a large one into which others begin.
        for n in 0..100 {
            regions.push(&at((3 << 20) + n * 100, 100));
        }
        regions.push(&at(5 << 20, 1 << 20));
        for n in 0..100 {
            regions.push(&at((5 << 20) + (512 << 10) + n * 100, 100));
        }
        let found = regions.finish();
        let found: Vec<_> = found.iter().map(|r| (r.offset, r.length, r.mix.writes)).collect();
        let [large, small] = [(0, 3 << 20, 3), (3 << 20, 10_000, 100)];
        let [cut, last] = [(5 << 20, 512 << 10, 1), ((5 << 20) + (512 << 10), 10_000, 100)];
        assert_eq!(found, [large, small, cut, last]);
    }
}
