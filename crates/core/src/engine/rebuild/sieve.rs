//! Decides which dirty runs are written back one by one and which stretch is rewritten whole
//! (ours; the papers flush extent by extent).
//!
//! On a disk a seek costs as much as passing over some hundred kilobytes. Where dirty runs lie
//! closer than that, reading the stretch, laying the dirty bytes over it and writing it back in
//! one piece is cheaper than seeking to each run: data sieving, turned around.

use halocline_model::profile::DeviceProfile;
use halocline_model::request::{ByteRange, Direction};

/// One write to the origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stretch {
    /// Bytes that are written.
    pub(crate) range: ByteRange,
    /// Whether it has gaps, so that the origin must be read first.
    pub(crate) gaps: bool,
}

/// What the origin's servers cost.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OriginCost {
    seek_ps: u128,
    pass_over_ps_per_byte: u128,
    /// Servers over which a long stretch spreads: each pays its own seeks.
    servers: u128,
}

impl OriginCost {
    /// Cost on `servers` servers of this profile.
    pub(crate) fn new(profile: &DeviceProfile, servers: u32) -> Self {
        let (read, write) = (profile.of(Direction::Read), profile.of(Direction::Write));
        Self {
            seek_ps: u128::from(
                write.startup_random_ps.saturating_sub(write.startup_sequential_ps),
            ),
            pass_over_ps_per_byte: u128::from(read.per_byte_ps + write.per_byte_ps),
            servers: u128::from(servers),
        }
    }

    /// Plans the writes for dirty `runs`, which are sorted and do not touch each other. No stretch
    /// gets longer than `longest` bytes unless one run is.
    pub(crate) fn plan(&self, runs: &[ByteRange], longest: u64) -> Vec<Stretch> {
        let mut stretches = Vec::new();
        let mut rest = runs;
        while let Some(first) = rest.first() {
            let mut taken = 1;
            let mut range = *first;
            while let Some(next) = rest.get(taken) {
                let gap_ps = u128::from(next.start - range.end) * self.pass_over_ps_per_byte;
                if gap_ps >= self.seek_ps || next.end - range.start > longest {
                    break;
                }
                range.end = next.end;
                taken += 1;
            }
            let (joined, remaining) = rest.split_at(taken);
            if joined.len() > 1 && self.sieving_wins(joined, range) {
                stretches.push(Stretch { range, gaps: true });
            } else {
                stretches.extend(joined.iter().map(|&range| Stretch { range, gaps: false }));
            }
            rest = remaining;
        }
        stretches
    }

    /// Sieving pays a read pass and a write pass with a seek each on every server; writing the
    /// runs pays a seek for each. Transfer of the dirty bytes themselves is on both sides.
    fn sieving_wins(&self, runs: &[ByteRange], range: ByteRange) -> bool {
        let dirty: u64 = runs.iter().map(|run| run.len()).sum();
        let gaps = u128::from(range.len() - dirty) * self.pass_over_ps_per_byte;
        let read_dirty_too = u128::from(dirty) * self.pass_over_ps_per_byte / 2;
        let seeks = 2 * self.servers.min(runs.len() as u128) * self.seek_ps;
        gaps + read_dirty_too + seeks < runs.len() as u128 * self.seek_ps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: OriginCost =
        OriginCost { seek_ps: 10_000_000_000, pass_over_ps_per_byte: 16_000, servers: 1 };
    const MIB: u64 = 1 << 20;

    fn every(step: u64, len: u64, count: u64) -> Vec<ByteRange> {
        (0..count).map(|i| ByteRange::at(i * step, len)).collect()
    }

    #[test]
    fn dense_runs_become_one_stretch() {
        let runs = every(32 << 10, 8 << 10, 32);
        let plan = DISK.plan(&runs, 8 * MIB);
        let whole = ByteRange::new(0, runs.last().unwrap().end);
        assert_eq!(plan, [Stretch { range: whole, gaps: true }]);
    }

    #[test]
    fn sparse_runs_are_written_one_by_one() {
        let runs = every(MIB, 8 << 10, 8);
        let plan = DISK.plan(&runs, 64 * MIB);
        let single = |&range: &ByteRange| Stretch { range, gaps: false };
        assert_eq!(plan, runs.iter().map(single).collect::<Vec<_>>());
    }

    #[test]
    fn two_close_runs_are_not_worth_a_read() {
        let runs = every(64 << 10, 8 << 10, 2);
        assert!(DISK.plan(&runs, MIB).iter().all(|stretch| !stretch.gaps));
    }

    #[test]
    fn no_stretch_is_longer_than_allowed_and_every_run_is_in_one() {
        let runs = every(16 << 10, 8 << 10, 1000);
        let plan = DISK.plan(&runs, MIB);
        assert!(plan.iter().all(|stretch| stretch.range.len() <= MIB));
        assert!(plan.windows(2).all(|pair| pair[0].range.end <= pair[1].range.start));
        for run in runs {
            assert_eq!(plan.iter().filter(|s| s.range.contains(run)).count(), 1);
        }
    }

    #[test]
    fn where_seeks_are_free_nothing_is_sieved() {
        let flash = OriginCost { seek_ps: 0, pass_over_ps_per_byte: 2000, servers: 1 };
        assert!(flash.plan(&every(12 << 10, 8 << 10, 100), MIB).iter().all(|s| !s.gaps));
    }
}
