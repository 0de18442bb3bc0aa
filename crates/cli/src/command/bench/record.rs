//! Results as they are written to the JSON file. The field names are an interface: scripts read them.

use halocline_api::control::{Report, RequestTotals};
use serde::Serialize;

/// Everything that one benchmark measured.
#[derive(Debug, Serialize)]
pub(super) struct Results {
    pub(super) benchmark: &'static str,
    pub(super) version: &'static str,
    /// True when no real device was measured.
    pub(super) emulated: bool,
    /// The emulated devices, origin first.
    pub(super) devices: Option<String>,
    /// Processors of the machine, which also emulate the devices.
    pub(super) cpus: usize,
    pub(super) processes: u32,
    pub(super) seed: u64,
    /// Whether every read call reached the engine.
    pub(super) direct: bool,
    /// Whether the programs of a mix ran all at the same time.
    pub(super) concurrent: bool,
    /// Bytes of all files of a run.
    pub(super) data_bytes: u64,
    /// Every run, in the order in which it was made.
    pub(super) runs: Vec<Run>,
    /// Each case once: every phase as it was in the repetition of median duration.
    pub(super) medians: Vec<Run>,
}

/// The parameters of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Key {
    pub(super) pattern: String,
    pub(super) request_size: u64,
    /// `bare` directory, `origin` through a mount with the policy never, or `cached`.
    pub(super) setup: &'static str,
    pub(super) policy: Option<String>,
    /// The cache's limit as the user gave it: bytes, or a share of the data.
    pub(super) cache_limit: String,
    /// The same in bytes.
    pub(super) cache_size: u64,
}

/// One case, once.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Run {
    #[serde(flatten)]
    pub(super) key: Key,
    /// Counts from 0.
    pub(super) repetition: u32,
    pub(super) data_bytes: u64,
    /// In their order.
    pub(super) phases: Vec<Phase>,
    /// What the engine counted from mount to unmount; `None` for the bare directory.
    pub(super) report: Option<Report>,
    /// Bytes of the origin that were compared after the mount was gone.
    pub(super) verified_origin_bytes: u64,
}

/// One part of a run.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Phase {
    /// `write`, `flush`, `first_read`, `fetch` or `read`.
    pub(super) name: &'static str,
    pub(super) bytes: u64,
    pub(super) requests: u64,
    /// From the start to the return of the last request of the slowest process.
    pub(super) seconds: f64,
    /// 10^6 bytes a second.
    pub(super) mb_per_s: f64,
    /// Throughput over that of the origin alone.
    pub(super) ratio: Option<f64>,
    /// Seconds of a write including the `fsync` at its end.
    pub(super) fsynced_seconds: Option<f64>,
    /// Seconds of a write including the time until everything was on the origin.
    pub(super) drained_seconds: Option<f64>,
    pub(super) drained_mb_per_s: Option<f64>,
    pub(super) drained_ratio: Option<f64>,
    /// Share of the data that the cache had when the phase began.
    pub(super) cached_share_before: Option<f64>,
    /// Throughput of a second run that this share allows: the other bytes at the speed of the origin alone, the cached
    /// ones at the speed of a run whose cache had everything. If no such run was measured, the cached bytes are assumed
    /// to take no time if they are at most half; otherwise this is unknown.
    pub(super) allowed_mb_per_s: Option<f64>,
    /// Throughput of the sequential and of the random programs of a mix.
    pub(super) sequential_mb_per_s: Option<f64>,
    pub(super) random_mb_per_s: Option<f64>,
    /// As counted by the engine.
    pub(super) served: Option<RequestTotals>,
    pub(super) ssd_bytes_written: u64,
}

impl Phase {
    pub(super) fn new(name: &'static str, bytes: u64, requests: u64, seconds: f64) -> Self {
        let mb_per_s = rate(bytes, seconds);
        Self { name, bytes, requests, seconds, mb_per_s, ..Self::default() }
    }

    /// Share of the bytes that the cache served.
    #[expect(clippy::cast_precision_loss, reason = "a share for people")]
    pub(super) fn cache_share(&self) -> Option<f64> {
        let served = self.served.filter(|served| served.bytes > 0)?;
        Some(served.cache_bytes as f64 / served.bytes as f64)
    }
}

impl Run {
    pub(super) fn phase(&self, name: &str) -> Option<&Phase> {
        self.phases.iter().find(|phase| phase.name == name)
    }

    /// Compares with the origin alone, and with the cache's performance when it has everything, if `others` contains
    /// such runs of the same workload.
    pub(super) fn compare(&mut self, others: &[Self]) {
        let same = |run: &&Self| {
            (&run.key.pattern, run.key.request_size) == (&self.key.pattern, self.key.request_size)
        };
        let related = others.iter().filter(same);
        let Some(baseline) = related.clone().find(|run| run.key.setup == "origin").cloned() else {
            return self.compare_with(&self.clone(), None);
        };
        let all_hits = related
            .filter_map(|run| run.phase("read"))
            .filter(|read| read.cached_share_before.is_some_and(|share| share >= ALL))
            .map(|read| read.seconds)
            .min_by(f64::total_cmp);
        self.compare_with(&baseline, all_hits);
    }

    fn compare_with(&mut self, baseline: &Self, all_hits_seconds: Option<f64>) {
        for phase in &mut self.phases {
            let Some(base) = baseline.phase(phase.name) else { continue };
            if base.seconds <= 0.0 || phase.bytes == 0 {
                continue;
            }
            phase.ratio = Some(phase.mb_per_s / base.mb_per_s);
            phase.drained_ratio =
                phase.drained_mb_per_s.zip(base.drained_mb_per_s).map(|(own, base)| own / base);
            phase.allowed_mb_per_s = phase
                .cached_share_before
                .filter(|share| *share > 0.0 && *share < ALL && phase.name == "read")
                .and_then(|share| {
                    let hits = all_hits_seconds.or((share <= FEW).then_some(0.0))? * share;
                    Some(rate(phase.bytes, base.seconds * (1.0 - share) + hits))
                });
        }
    }
}

/// Share of the data that counts as all of it.
const ALL: f64 = 0.999;
/// Share of the data up to which the time of hits is small beside that of the others.
const FEW: f64 = 0.5;

/// Each case once, compared with the median of the origin alone.
pub(super) fn medians(runs: &[Run]) -> Vec<Run> {
    let mut medians: Vec<Run> = Vec::new();
    for run in runs.iter().filter(|run| run.repetition == 0) {
        let repetitions: Vec<_> = runs.iter().filter(|other| other.key == run.key).collect();
        let phases = run.phases.iter().map(|phase| median(&repetitions, phase.name));
        medians.push(Run { phases: phases.flatten().collect(), ..run.clone() });
    }
    let others = medians.clone();
    for run in &mut medians {
        run.compare(&others);
    }
    medians
}

fn median(repetitions: &[&Run], name: &str) -> Option<Phase> {
    let phases = repetitions.iter().filter_map(|run| run.phase(name));
    of_median_duration(phases, |phase| phase.seconds).cloned()
}

/// The phase of median duration: of two in the middle, the longer one; `None` if there are none.
pub(super) fn of_median_duration<'a, T>(
    phases: impl Iterator<Item = &'a T>,
    seconds: impl Fn(&T) -> f64,
) -> Option<&'a T> {
    let mut phases: Vec<&T> = phases.collect();
    phases.sort_by(|a, b| seconds(a).total_cmp(&seconds(b)));
    phases.get(phases.len() / 2).copied()
}

/// 10^6 bytes a second.
#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
pub(super) fn rate(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { bytes as f64 / 1e6 / seconds } else { 0.0 }
}

/// What was served between two reports.
pub(super) fn difference(before: RequestTotals, after: RequestTotals) -> RequestTotals {
    RequestTotals {
        requests: after.requests - before.requests,
        bytes: after.bytes - before.bytes,
        cache_requests: after.cache_requests - before.cache_requests,
        cache_bytes: after.cache_bytes - before.cache_bytes,
    }
}

/// Bytes written to the SSD between two reports.
pub(super) fn ssd_difference(before: &Report, after: &Report) -> u64 {
    after.ssd_bytes_written - before.ssd_bytes_written
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(setup: &'static str, repetition: u32, seconds: f64, share: f64) -> Run {
        let key = Key {
            pattern: "random".into(),
            request_size: 8192,
            setup,
            policy: None,
            cache_limit: format!("{share}"),
            cache_size: 0,
        };
        let mut read = Phase::new("read", 1_000_000, 100, seconds);
        read.cached_share_before = Some(share);
        let phases = vec![read];
        Run {
            key,
            repetition,
            data_bytes: 1_000_000,
            phases,
            report: None,
            verified_origin_bytes: 0,
        }
    }

    fn allowed_seconds(run: &Run) -> Option<f64> {
        run.phases[0].allowed_mb_per_s.map(|allowed| 1.0 / allowed)
    }

    #[test]
    fn a_run_is_compared_with_the_origin_of_its_own_workload() {
        let mut other = run("origin", 0, 1.0, 0.0);
        other.key.request_size = 4096;
        let mut cached = run("cached", 0, 2.0, 0.25);
        cached.compare(&[other, run("origin", 0, 8.0, 0.0)]);
        assert_eq!(cached.phases[0].ratio, Some(4.0));
        assert!((allowed_seconds(&cached).unwrap() - 6.0).abs() < 1e-9);
    }

    #[test]
    fn hits_take_the_time_that_they_take_when_all_hit() {
        let others = [run("origin", 0, 8.0, 0.0), run("cached", 0, 1.0, 1.0)];
        for (share, seconds) in [(0.25, 6.25), (0.75, 2.75)] {
            let mut cached = run("cached", 0, 7.0, share);
            cached.compare(&others);
            assert!((allowed_seconds(&cached).unwrap() - seconds).abs() < 1e-9, "{share}");
        }
        let mut cached = run("cached", 0, 7.0, 0.75);
        cached.compare(&others[..1]);
        assert_eq!(allowed_seconds(&cached), None, "nobody knows what the hits cost");
    }

    #[test]
    fn medians_are_compared_with_the_median_of_the_origin() {
        let mut runs = Vec::new();
        for (repetition, base, cached) in [(0, 9.0, 1.0), (1, 6.0, 2.0), (2, 1.0, 3.0)] {
            runs.push(run("origin", repetition, base, 0.0));
            runs.push(run("cached", repetition, cached, 0.25));
        }
        let medians = medians(&runs);
        let read: Vec<_> = medians.iter().map(|run| run.phases[0].seconds).collect();
        assert_eq!(read, [6.0, 2.0]);
        assert_eq!(medians[1].phases[0].ratio, Some(3.0));
    }
}
