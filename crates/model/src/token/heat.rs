//! Ranges that nodes take from each other repeatedly: no one caches there until they calm down.

use serde::{Deserialize, Serialize};

use crate::request::ByteRange;

/// Contention is detected, and ended, in regions of this many bytes.
pub const REGION: u64 = 16 << 20;

/// A region is contended after this many handovers, each within [`PAUSE_MS`] of the previous one: more than a few nodes
/// need to settle which part of the region belongs to each.
const HANDOVERS: u32 = 24;
/// The limit if another region of the file is already contended: nodes probably interleave here as they do there.
const HANDOVERS_NEXT: u32 = 2;
/// A longer pause between handovers, in milliseconds, restarts the count.
const PAUSE_MS: u64 = 1_000;
/// How long a region stays contended the first time, in milliseconds; twice as long each time after that.
const CALM_MS: u64 = 5_000;
/// How often this is doubled: up to 5 minutes.
const DOUBLINGS: u32 = 6;
/// How many regions of a file are remembered; the one that was quiet longest is replaced.
const REGIONS: usize = 64;

/// The contention of the regions of one file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Heat {
    regions: Vec<Region>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Region {
    /// Offset in the file in units of [`REGION`].
    number: u64,
    handovers: u32,
    last_ms: u64,
    /// Until when no one caches there, in milliseconds.
    until_ms: u64,
    /// How often it was contended.
    times: u32,
}

impl Heat {
    /// No region was ever contended.
    pub const NONE: Self = Self { regions: Vec::new() };

    /// Counts that someone had to give up `range` for someone else, at `now_ms`.
    pub(crate) fn note_handover(&mut self, range: ByteRange, now_ms: u64) {
        let first = range.start / REGION;
        let last = range.end.saturating_sub(1).max(range.start) / REGION;
        let is_hot = self.regions.iter().any(|region| now_ms < region.until_ms);
        let limit = if is_hot { HANDOVERS_NEXT } else { HANDOVERS };
        // A wider range is no sign of interleaving.
        for number in first..=last.min(first + 1) {
            let region = self.region(number, now_ms);
            if now_ms.saturating_sub(region.last_ms) > PAUSE_MS {
                region.handovers = 0;
            }
            region.last_ms = now_ms;
            region.handovers += 1;
            if region.handovers >= limit {
                let wait_ms = CALM_MS << region.times.min(DOUBLINGS);
                region.handovers = 0;
                region.times += 1;
                region.until_ms = now_ms.saturating_add(wait_ms);
            }
        }
    }

    /// Whether `range` touches a contended region.
    #[must_use]
    pub fn is_contended(&self, range: ByteRange, now_ms: u64) -> bool {
        self.regions.iter().any(|region| {
            let start = region.number.saturating_mul(REGION);
            now_ms < region.until_ms && ByteRange::at(start, REGION).overlaps(range)
        })
    }

    /// Whether its counts are plausible.
    pub(super) fn is_sound(&self) -> bool {
        self.regions.len() <= REGIONS
            && self
                .regions
                .iter()
                .all(|region| region.handovers < HANDOVERS && region.times < u32::MAX / 2)
    }

    fn region(&mut self, number: u64, now_ms: u64) -> &mut Region {
        let at = self.regions.iter().position(|region| region.number == number);
        let at = at.unwrap_or_else(|| {
            if self.regions.len() >= REGIONS {
                let quietest = (0..REGIONS).min_by_key(|at| self.regions[*at].last_ms);
                self.regions.swap_remove(quietest.expect("there are some"));
            }
            let times = 0;
            self.regions.push(Region { number, handovers: 0, last_ms: now_ms, until_ms: 0, times });
            self.regions.len() - 1
        });
        &mut self.regions[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: ByteRange = ByteRange::new(4096, 8192);

    fn heated(heat: &mut Heat, begin_ms: u64, step_ms: u64) {
        for step in 0..u64::from(HANDOVERS) {
            heat.note_handover(BLOCK, begin_ms + step * step_ms);
        }
    }

    #[test]
    fn what_changes_hands_all_the_time_is_contended_for_a_while() {
        let mut heat = Heat::default();
        heated(&mut heat, 1_000, 10);
        assert!(heat.is_contended(ByteRange::new(0, 1), 1_300), "all of the region");
        assert!(!heat.is_contended(ByteRange::at(REGION, 1), 1_300), "not the next");
        assert!(!heat.is_contended(BLOCK, 1_230 + CALM_MS));
    }

    #[test]
    fn what_happens_in_one_region_is_soon_believed_of_the_next() {
        let mut heat = Heat::default();
        heated(&mut heat, 1_000, 10);
        let next = ByteRange::at(REGION, 4096);
        heat.note_handover(next, 1_300);
        assert!(!heat.is_contended(next, 1_300));
        heat.note_handover(next, 1_310);
        assert!(heat.is_contended(next, 1_310));
    }

    #[test]
    fn what_changes_hands_now_and_then_is_not() {
        let mut heat = Heat::default();
        heated(&mut heat, 1_000, PAUSE_MS + 1);
        assert!(!heat.is_contended(BLOCK, 1_000 + PAUSE_MS * u64::from(HANDOVERS)));
    }

    #[test]
    fn each_time_it_stays_so_for_longer_up_to_a_bound() {
        let mut heat = Heat::default();
        let mut now_ms = 0;
        let mut lengths = Vec::new();
        for _ in 0..10 {
            heated(&mut heat, now_ms, 0);
            let begun = now_ms;
            while heat.is_contended(BLOCK, now_ms) {
                now_ms += 1_000;
            }
            lengths.push(now_ms - begun);
        }
        assert_eq!(lengths[..3], [5_000, 10_000, 20_000]);
        assert_eq!(lengths[7..], [320_000; 3]);
    }

    #[test]
    fn a_file_of_any_size_takes_bounded_room() {
        let mut heat = Heat::default();
        for number in 0..10_000 {
            heat.note_handover(ByteRange::at(number * REGION, 4096), number);
        }
        heat.note_handover(ByteRange::new(0, u64::MAX), 10_000);
        assert_eq!(heat.regions.len(), REGIONS);
    }
}
