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
    /// Its bytes.
    pub length: u64,
    /// Requests that begin in it.
    pub mix: Mix,
}

/// Equal parts of a file, whose length doubles whenever the file turns out to be longer.
#[derive(Debug)]
pub(super) struct Regions {
    parts: Box<[Mix; PARTS]>,
    part: u64,
}

impl Default for Regions {
    fn default() -> Self {
        Self { parts: Box::new([Mix::default(); PARTS]), part: PART_MIN }
    }
}

impl Regions {
    pub(super) fn push(&mut self, request: &Request) {
        loop {
            let index = usize::try_from(request.offset / self.part).unwrap_or(usize::MAX);
            if let Some(part) = self.parts.get_mut(index) {
                return part.add(request);
            }
            for index in 0..PARTS / 2 {
                let mut both = self.parts[2 * index];
                both.join(&self.parts[2 * index + 1]);
                self.parts[index] = both;
            }
            self.parts[PARTS / 2..].fill(Mix::default());
            self.part *= 2;
        }
    }

    /// Merges adjacent parts with one mix; parts without requests between regions are in none.
    pub(super) fn finish(self) -> Vec<Region> {
        let mut regions: Vec<Region> = Vec::new();
        for (index, part) in self.parts.iter().enumerate() {
            if part.requests() == 0 {
                continue;
            }
            let (offset, length) = (index as u64 * self.part, self.part);
            match regions.last_mut() {
                Some(last) if last.offset + last.length == offset && !last.mix.differs(part) => {
                    last.length += length;
                    last.mix.join(part);
                }
                _ => regions.push(Region { offset, length, mix: *part }),
            }
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
        assert_eq!(found[0].offset + found[0].length, found[1].offset / 63);
    }
}
