//! Decides which dirty runs are written back separately and which stretches are rewritten as a whole (ours; the papers
//! flush extent by extent).
//!
//! On a disk a seek costs as much as passing over some hundred kilobytes. If dirty runs are closer together than that,
//! it is cheaper to read the stretch, overlay the dirty bytes and write it back in one piece than to seek to each run:
//! data sieving for writes. Whether that pays for a run depends on its neighbours, so the cheapest plan is found over
//! all of them, in one pass.

use crate::profile::DeviceProfile;
use crate::request::{ByteRange, Direction};

/// One write to a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stretch {
    /// Local bytes to be written.
    pub range: ByteRange,
    /// Whether there are gaps between its runs, which are read first and written back.
    pub gaps: bool,
}

/// The cost of writing to one place.
#[derive(Debug, Clone, Copy)]
pub struct OriginCost {
    seek_ps: u128,
    /// Reading a byte of a gap before it is written back.
    read_ps_per_byte: u128,
    write_ps_per_byte: u128,
    /// Servers over which the file system below distributes a stretch: each pays its own seeks.
    servers: u128,
}

/// Costs of the cheapest plans up to a run, by how that run is written.
#[derive(Debug, Clone, Copy)]
struct Cheapest {
    alone: u128,
    sieved: u128,
}

impl Cheapest {
    fn least(self) -> u128 {
        self.alone.min(self.sieved)
    }
}

/// How the cheapest plan that sieves a run reached it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Came {
    /// The stretch begins here.
    Begins,
    /// The previous run is in the same stretch.
    GoesOn,
}

impl OriginCost {
    /// Cost of local runs on one server of this profile; `servers` is 1 unless a file system below distributes what we
    /// see as one file.
    pub fn new(profile: &DeviceProfile, servers: u32) -> Self {
        let (read, write) = (profile.of(Direction::Read), profile.of(Direction::Write));
        let seek_ps = write.startup_random_ps.saturating_sub(write.startup_sequential_ps);
        Self {
            seek_ps: u128::from(seek_ps),
            read_ps_per_byte: u128::from(read.per_byte_ps),
            write_ps_per_byte: u128::from(write.per_byte_ps),
            servers: u128::from(servers),
        }
    }

    /// The cheapest writes for dirty `runs`, which are sorted and do not touch each other. Linear
    /// in their number.
    pub fn plan(&self, runs: &[ByteRange]) -> Vec<Stretch> {
        let mut steps = Vec::with_capacity(runs.len());
        let mut cheapest: Option<Cheapest> = None;
        for (at, run) in runs.iter().enumerate() {
            let before = cheapest.map_or(0, Cheapest::least);
            // A stretch pays a read pass and a write pass, with a seek each on every server.
            let begins = before + 2 * self.servers * self.seek_ps;
            let goes_on = cheapest.map(|cheapest| {
                let gap = u128::from(run.start - runs[at - 1].end);
                cheapest.sieved + gap * (self.read_ps_per_byte + self.write_ps_per_byte)
            });
            let came = match goes_on {
                Some(goes_on) if goes_on < begins => Came::GoesOn,
                _ => Came::Begins,
            };
            // Every plan writes the run's own bytes, so that cost is left out.
            let read_too = u128::from(run.len()) * self.read_ps_per_byte;
            let now = Cheapest {
                alone: before + self.seek_ps,
                sieved: goes_on.map_or(begins, |goes_on| goes_on.min(begins)) + read_too,
            };
            steps.push((now, came));
            cheapest = Some(now);
        }
        stretches(runs, &steps)
    }
}

/// Traces the cheapest plan back from the last run.
fn stretches(runs: &[ByteRange], steps: &[(Cheapest, Came)]) -> Vec<Stretch> {
    let mut stretches = Vec::new();
    let mut at = runs.len();
    while at > 0 {
        let end = at;
        at -= 1;
        if steps[at].0.sieved < steps[at].0.alone {
            while steps[at].1 == Came::GoesOn {
                at -= 1;
            }
        }
        let range = ByteRange::new(runs[at].start, runs[end - 1].end);
        stretches.push(Stretch { range, gaps: end - at > 1 });
    }
    stretches.reverse();
    stretches
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: OriginCost = OriginCost {
        seek_ps: 10_000_000_000,
        read_ps_per_byte: 8_000,
        write_ps_per_byte: 8_000,
        servers: 1,
    };
    const MIB: u64 = 1 << 20;

    fn every(step: u64, len: u64, count: u64) -> Vec<ByteRange> {
        (0..count).map(|i| ByteRange::at(i * step, len)).collect()
    }

    /// The cost of a plan, computed from its stretches alone.
    fn cost(cost: OriginCost, runs: &[ByteRange], plan: &[Stretch]) -> u128 {
        let of = |stretch: &Stretch| {
            let dirty: u64 =
                runs.iter().filter(|r| stretch.range.contains(**r)).map(|r| r.len()).sum();
            let gap = u128::from(stretch.range.len() - dirty);
            if stretch.gaps {
                2 * cost.servers * cost.seek_ps
                    + u128::from(stretch.range.len()) * cost.read_ps_per_byte
                    + gap * cost.write_ps_per_byte
            } else {
                cost.seek_ps
            }
        };
        plan.iter().map(of).sum()
    }

    #[test]
    fn dense_runs_become_one_stretch() {
        let runs = every(32 << 10, 8 << 10, 32);
        let whole = ByteRange::new(0, runs.last().unwrap().end);
        assert_eq!(DISK.plan(&runs), [Stretch { range: whole, gaps: true }]);
    }

    #[test]
    fn sparse_runs_are_written_one_by_one() {
        let runs = every(MIB, 8 << 10, 8);
        let single = |&range: &ByteRange| Stretch { range, gaps: false };
        assert_eq!(DISK.plan(&runs), runs.iter().map(single).collect::<Vec<_>>());
    }

    #[test]
    fn two_close_runs_are_not_worth_a_read() {
        let runs = every(64 << 10, 8 << 10, 2);
        assert!(DISK.plan(&runs).iter().all(|stretch| !stretch.gaps));
    }

    #[test]
    fn dense_runs_are_sieved_beside_sparse_ones() {
        let dense = every(16 << 10, 8 << 10, 40);
        let mut runs = dense.clone();
        runs.extend([10, 20, 30].map(|at| ByteRange::at(at * MIB, 8 << 10)));
        let plan = DISK.plan(&runs);
        assert_eq!(plan[0], Stretch { range: ByteRange::new(0, dense[39].end), gaps: true });
        assert_eq!(plan.len(), 4);
    }

    #[test]
    fn no_plan_is_cheaper_and_every_run_is_in_one_stretch() {
        let mut seed = 7_u64;
        for _ in 0..200 {
            let (mut runs, mut at) = (Vec::new(), 0);
            for _ in 0..9 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                at += (seed >> 33) % (700 << 10) + 1;
                runs.push(ByteRange::at(at, (seed >> 50) % (64 << 10) + 1));
                at = runs.last().unwrap().end;
            }
            let plan = DISK.plan(&runs);
            for run in &runs {
                assert_eq!(plan.iter().filter(|s| s.range.contains(*run)).count(), 1);
            }
            // Every way to cut nine runs into stretches of neighbours.
            let best = (0_u32..1 << 8).map(|cuts| {
                let mut all: Vec<Stretch> = Vec::new();
                for (i, run) in runs.iter().enumerate() {
                    match all.last_mut() {
                        Some(last) if cuts >> (i - 1) & 1 == 1 => {
                            *last = Stretch {
                                range: ByteRange::new(last.range.start, run.end),
                                gaps: true,
                            };
                        }
                        _ => all.push(Stretch { range: *run, gaps: false }),
                    }
                }
                cost(DISK, &runs, &all)
            });
            assert_eq!(cost(DISK, &runs, &plan), best.min().unwrap());
        }
    }

    #[test]
    fn where_seeks_are_free_nothing_is_sieved() {
        let flash =
            OriginCost { seek_ps: 0, read_ps_per_byte: 1000, write_ps_per_byte: 1000, servers: 1 };
        assert!(flash.plan(&every(12 << 10, 8 << 10, 100)).iter().all(|s| !s.gaps));
    }
}
