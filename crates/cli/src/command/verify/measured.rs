//! Service times of a run beside those that a plan was made with.

use std::collections::HashMap;
use std::path::Path;

use halocline_model::request::Direction;
use halocline_plan::layout::Layout;
use halocline_plan::plan_file::Plan;
use halocline_plan::servers::{Server, direction, service_ps};
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

/// One server in a run.
#[derive(Debug, Serialize)]
pub(super) struct ServerTimes {
    name: String,
    /// Requests for which it was the slowest server by prediction.
    requests: u64,
    predicted_seconds: f64,
    measured_seconds: f64,
    /// Measured over predicted.
    ratio: Option<f64>,
    drifted: bool,
}

impl ServerTimes {
    pub(super) fn say(&self) {
        let name = &self.name;
        let Some(ratio) = self.ratio else {
            say!(
                "{name}: {} requests of the trace waited for it, too few to compare",
                self.requests
            );
            return;
        };
        let times = [self.measured_seconds, self.predicted_seconds].map(text::seconds);
        let drifted = if self.drifted { "; it drifted: calibrate it and plan again" } else { "" };
        say!(
            "{name}: {} measured, {} predicted for {} requests ({ratio:.2}){drifted}",
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
) -> Result<Vec<ServerTimes>, Failure> {
    let of_file = layouts_by_number(path, plan, place)?;
    let mut sums = vec![(0_u64, 0_u64, 0_u64); plan.server.len()];
    let mut heads: HashMap<(u32, usize), u64> = HashMap::new();
    source::each_request(path, |request| {
        let layout = of_file.get(request.file as usize).and_then(Option::as_ref);
        let (Some(layout), Some(took)) = (layout, request.duration_ns) else { return };
        let mut slowest = (0, 0);
        layout.pieces(request.offset, request.end(), |piece| {
            let head = heads.insert((request.file, piece.server), piece.offset + piece.length);
            let profile = plan.server[piece.server].seen();
            let service = match direction(request.op) {
                Direction::Read => &profile.read,
                Direction::Write => &profile.write,
            };
            let time = service_ps(service, head == Some(piece.offset), piece.length);
            slowest = slowest.max((time, piece.server));
        });
        let (requests, predicted_ps, measured_ns) = &mut sums[slowest.1];
        *requests += 1;
        *predicted_ps = predicted_ps.saturating_add(slowest.0);
        *measured_ns = measured_ns.saturating_add(took);
    })?;
    Ok(plan.server.iter().zip(sums).map(told).collect())
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
fn told((server, (requests, predicted, measured)): (&Server, (u64, u64, u64))) -> ServerTimes {
    let (predicted_seconds, measured_seconds) = (predicted as f64 / 1e12, measured as f64 / 1e9);
    let is_enough = requests >= REQUESTS_MIN && predicted > 0;
    let ratio = is_enough.then(|| measured_seconds / predicted_seconds);
    let drifted = ratio.is_some_and(|ratio| !(1.0 / DRIFT..=DRIFT).contains(&ratio));
    let name = server.name.clone();
    ServerTimes { name, requests, predicted_seconds, measured_seconds, ratio, drifted }
}
