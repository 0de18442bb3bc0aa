//! Service times of a run beside those that a plan was made with.

use std::collections::HashMap;
use std::path::Path;

use halocline_model::profile::ServiceProfile;
use halocline_model::request::Direction;
use halocline_plan::layout::Layout;
use halocline_plan::plan_file::Plan;
use halocline_plan::servers::{Server, direction, service_ps};
use halocline_trace::Completeness;
use serde::Serialize;

use crate::command::placement::PlacementArgs;
use crate::command::plan::source;
use crate::command::planned_files::PlannedFiles;
use crate::failure::Failure;
use crate::print::say;
use crate::text;

/// Measured over predicted time from which on, or below whose inverse, a device drifted.
const DRIFT: f64 = 1.5;
/// Requests below which nothing is said of a server.
const REQUESTS_MIN: u64 = 32;
/// A request that took less than the least time that it can take on the device, divided by this, was served from memory.
const MEMORY_OF_LEAST: u64 = 2;
/// The same of its predicted time: a random request of a disk may find the head near, but rarely that near.
const MEMORY_OF_PREDICTED: u64 = 8;

/// One server in a run.
#[derive(Debug, Serialize)]
pub(super) struct ServerTimes {
    name: String,
    /// Requests for which it was the slowest server by prediction, and that it may have served.
    requests: u64,
    /// Further ones that took less than they can on the device.
    from_memory: u64,
    predicted_seconds: f64,
    measured_seconds: f64,
    /// Measured over predicted.
    ratio: Option<f64>,
    drifted: bool,
}

impl ServerTimes {
    /// For people; `is_partial` if the trace is not whole.
    pub(super) fn say(&self, is_partial: bool) {
        let name = &self.name;
        let from_memory = match self.from_memory {
            0 => String::new(),
            requests => {
                format!("; {requests} more were faster than it can be: from memory, not judged")
            }
        };
        let Some(ratio) = self.ratio else {
            say!(
                "{name}: {} requests of the trace waited for it, too few to compare{from_memory}",
                self.requests
            );
            return;
        };
        let times = [self.measured_seconds, self.predicted_seconds].map(text::seconds);
        let drifted = match (self.drifted, is_partial) {
            (false, _) => "",
            (true, false) => "; it drifted: calibrate it and plan again",
            (true, true) => {
                "; by what there is of the trace it drifted: record a whole run, or calibrate it and plan again"
            }
        };
        say!(
            "{name}: {} measured, {} predicted for {} requests ({ratio:.2}){drifted}{from_memory}",
            times[0],
            times[1],
            self.requests
        );
    }
}

/// Measures each server of `plan` in the run that the trace at `path` is of: each request counts for the server that
/// it waited for by prediction.
///
/// # Errors
/// If the trace has none of the plan's files.
pub(super) fn measure(
    path: &Path,
    plan: &Plan,
    place: &PlacementArgs,
) -> Result<(Vec<ServerTimes>, Completeness), Failure> {
    let of_file = layouts_by_number(path, plan, place)?;
    let mut sums = vec![Sums::default(); plan.server.len()];
    let mut heads: HashMap<(u32, usize), u64> = HashMap::new();
    let completeness = source::each_request(path, |request| {
        let layout = of_file.get(request.file as usize).and_then(Option::as_ref);
        let (Some(layout), Some(took)) = (layout, request.duration_ns) else { return };
        let mut slowest = (Expected::default(), 0);
        layout.pieces(request.offset, request.end(), |piece| {
            let head = heads.insert((request.file, piece.server), piece.offset + piece.length);
            let profile = plan.server[piece.server].seen();
            let service = match direction(request.op) {
                Direction::Read => &profile.read,
                Direction::Write => &profile.write,
            };
            let expected = Expected::of(service, head == Some(piece.offset), piece.length);
            slowest = slowest.max((expected, piece.server));
        });
        sums[slowest.1].add(slowest.0, took);
    })?;
    Ok((plan.server.iter().zip(sums).map(told).collect(), completeness))
}

/// How long a request should take, in picoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Expected {
    predicted_ps: u64,
    /// If the device only had to go on where it was.
    least_ps: u64,
}

impl Expected {
    fn of(service: &ServiceProfile, sequential: bool, bytes: u64) -> Self {
        let predicted_ps = service_ps(service, sequential, bytes);
        Self { predicted_ps, least_ps: service_ps(service, true, bytes).min(predicted_ps) }
    }

    /// Whether no device answered a request that took so long, but a page cache. (Or the device is another one than was
    /// calibrated, and far faster.)
    const fn is_memory(self, took_ps: u64) -> bool {
        took_ps < self.least_ps / MEMORY_OF_LEAST
            || took_ps < self.predicted_ps / MEMORY_OF_PREDICTED
    }
}

/// The requests that waited for a server.
#[derive(Debug, Clone, Default)]
struct Sums {
    requests: u64,
    predicted_ps: u64,
    measured_ns: u64,
    from_memory: u64,
}

impl Sums {
    fn add(&mut self, expected: Expected, took_ns: u64) {
        if expected.is_memory(took_ns.saturating_mul(1000)) {
            self.from_memory += 1;
            return;
        }
        self.requests += 1;
        self.predicted_ps = self.predicted_ps.saturating_add(expected.predicted_ps);
        self.measured_ns = self.measured_ns.saturating_add(took_ns);
    }
}

/// The planned layout of each file of the trace at `path`, by its number.
fn layouts_by_number(
    path: &Path,
    plan: &Plan,
    place: &PlacementArgs,
) -> Result<Vec<Option<Layout>>, Failure> {
    let planned = PlannedFiles::new(plan, place.below.as_deref());
    let (names, source) = source::names(path)?;
    let of = |name: &Vec<u8>| {
        let file = planned.find(name, &source);
        file.map(|file| file.layout(plan.server.len())).transpose()
    };
    let layouts = names.iter().map(of).collect::<Result<Vec<_>, _>>().map_err(Failure::refused)?;
    if layouts.iter().all(Option::is_none) {
        let (trace, plan) = (text::path(path), text::path(&place.plan));
        return Err(Failure::refused(format!(
            "{trace}: none of its files is one of {plan}; give a trace of a run with these files, and with --below what the \
             plan's paths begin with"
        )));
    }
    Ok(layouts)
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn told((server, sums): (&Server, Sums)) -> ServerTimes {
    let Sums { requests, from_memory, .. } = sums;
    let predicted_seconds = sums.predicted_ps as f64 / 1e12;
    let measured_seconds = sums.measured_ns as f64 / 1e9;
    let is_enough = requests >= REQUESTS_MIN && sums.predicted_ps > 0;
    let ratio = is_enough.then(|| measured_seconds / predicted_seconds);
    let drifted = ratio.is_some_and(|ratio| !(1.0 / DRIFT..=DRIFT).contains(&ratio));
    let name = server.name.clone();
    ServerTimes { name, requests, from_memory, predicted_seconds, measured_seconds, ratio, drifted }
}

#[cfg(test)]
mod tests {
    use halocline_model::profile::DeviceProfile;
    use halocline_plan::servers::Network;

    use super::*;

    /// Requests of 4 KiB at random to a disk, which took so many microseconds, each so often.
    fn told_of(took: &[(u64, usize)]) -> ServerTimes {
        let profile = DeviceProfile::hdd_7200();
        let (name, directory, network) = ("s".into(), None, Network::default());
        let server = Server { name, directory, capacity: None, channels: 1, profile, network };
        let expected = Expected::of(&profile.read, false, 4096);
        let mut sums = Sums::default();
        for (took_us, times) in took {
            for _ in 0..*times {
                sums.add(expected, took_us * 1000);
            }
        }
        told((&server, sums))
    }

    /// A warm page cache was told as a drift of the device.
    #[test]
    fn answers_from_memory_are_counted_and_not_judged() {
        let predicted_us = service_ps(&DeviceProfile::hdd_7200().read, false, 4096) / 1_000_000;
        let warm = told_of(&[(20, 500)]);
        assert_eq!((warm.requests, warm.from_memory, warm.ratio), (0, 500, None));
        assert!(!warm.drifted);
        let mixed = told_of(&[(20, 500), (predicted_us, 40)]);
        assert_eq!((mixed.requests, mixed.from_memory, mixed.drifted), (40, 500, false));
        assert!(mixed.ratio.is_some_and(|ratio| (ratio - 1.0).abs() < 0.01), "{mixed:?}");
        let slower = told_of(&[(20, 500), (predicted_us * 2, 40)]);
        assert!(slower.drifted, "{slower:?}");
        let faster = told_of(&[(predicted_us / 2, 40)]);
        assert!(
            faster.drifted && faster.from_memory == 0,
            "a device may become faster: {faster:?}"
        );
    }
}
