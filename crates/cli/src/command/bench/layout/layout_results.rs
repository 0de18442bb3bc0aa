//! One setting under each layout: predicted, simulated, and measured on emulated servers.

use std::path::Path;

use halocline_os::counted::counted;
use halocline_plan::default_layout::Rest;
use halocline_plan::judge::{Layouts, Note};
use halocline_plan::planner::{self, Judged, Name, RestOfDefault};
use halocline_plan::workload::Workload;
use halocline_sim::ServerSet;
use halocline_sim::replay::ServerOutcome;
use halocline_trace::Request;
use serde::Serialize;

use super::measure;
use super::setting::Setting;
use crate::command::judge::{self, Replay};
use crate::failure::Failure;
use crate::print::tell;
use crate::text;

/// Client nodes of the paper, over which its processes are spread.
const NODES: u32 = 8;

/// A measurement that takes longer is announced, in seconds.
const TOLD_FROM_SECONDS: f64 = 5.0;

/// The mean costs of a request on the disks.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DiskWork {
    /// Pieces of a request on disks.
    pub(super) pieces: f64,
    /// KiB of such a piece.
    pub(super) kib: f64,
    /// Milliseconds that each disk works for a request.
    pub(super) ms: f64,
}

/// A setting under one layout.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct LayoutResult {
    /// Stripe of each server in the first part of the file, in bytes.
    pub(super) stripes: Vec<u64>,
    /// Parts of the file with stripes of their own.
    pub(super) parts: usize,
    pub(super) ssd_bytes: Option<u64>,
    pub(super) predicted_seconds: Option<f64>,
    pub(super) simulated_seconds: Option<f64>,
    pub(super) measured_seconds: Option<f64>,
    /// Throughput divided by that of DEF.
    pub(super) predicted_ratio: Option<f64>,
    pub(super) simulated_ratio: Option<f64>,
    pub(super) measured_ratio: Option<f64>,
    /// Why there is no result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) unavailable: Option<String>,
    /// The busiest disk's share of the simulated time, and the busiest SSD's.
    #[serde(skip)]
    pub(super) busy: (f64, f64),
    /// The costs of a request on the disks.
    #[serde(skip)]
    pub(super) disks: DiskWork,
}

/// A setting under all layouts, in the order of [`Name::ALL`].
#[derive(Debug, Clone)]
pub(super) struct JudgedSetting {
    pub(super) requests: u64,
    pub(super) bytes: u64,
    pub(super) chosen: Name,
    /// How the rest lies under def; `None` if the SSDs have room for all.
    pub(super) def_rest: Option<Rest>,
    pub(super) layouts: Vec<(Name, LayoutResult)>,
    /// The paper's DEF, if def is another one.
    of_paper: Option<LayoutResult>,
}

impl JudgedSetting {
    /// The amount of the requests: `128 requests, 64.0 MiB together`.
    pub(super) fn amount(&self) -> String {
        let requests = counted(self.requests, "request");
        format!("{requests}, {} together", text::bytes(self.bytes))
    }

    /// The result of the paper's DEF, over which its gains are.
    pub(super) fn def_of_paper(&self) -> &LayoutResult {
        self.of_paper.as_ref().unwrap_or_else(|| self.of(Name::Def))
    }

    /// All results with their names, the paper's DEF behind def if that is another one.
    pub(super) fn rows(&self) -> impl Iterator<Item = (Option<Name>, &LayoutResult)> {
        self.layouts.iter().flat_map(|(name, result)| {
            let beside = self.of_paper.as_ref().filter(|_| *name == Name::Def);
            [Some((Some(*name), result)), beside.map(|it| (None, it))].into_iter().flatten()
        })
    }

    /// The result of a layout.
    pub(super) fn of(&self, name: Name) -> &LayoutResult {
        &self.layouts.iter().find(|(which, _)| *which == name).expect("all are there").1
    }
}

/// Judges `setting`; also measures it on files in `dir`, if given.
pub(super) fn judge(setting: &Setting, dir: Option<&Path>) -> Result<JudgedSetting, Failure> {
    let requests = setting.requests().map_err(Failure::refused)?;
    let set = setting.set(&requests).map_err(Failure::refused)?;
    let servers = judge::servers(&set).map_err(Failure::refused)?;
    let workload = Workload::of(&requests, u64::from((setting.processes / NODES).max(1)));
    // A setting has one file, so it lies in one placement.
    let all = |_, layouts: &Layouts, note: Note<'_>| {
        Ok(Replay::new(&set).outcome(&requests, layouts, note)?.seconds)
    };
    let mut replay = Replay::with_whole(&set, &all, requests.len() as u64);
    let outcome = planner::plan(&servers, &workload, &mut replay, 1.0).map_err(Failure::refused)?;
    let judging = Judging { setting, dir, set: &set, requests: &requests, replay: &replay };
    let mut layouts = Vec::new();
    for name in Name::ALL {
        let judged = outcome.of(name).map(|planned| judging.result(name.text(), planned));
        let result = judged.unwrap_or_else(|why| Ok(unavailable(why)))?;
        layouts.push((name, result));
    }
    let of_paper = match &outcome.rest {
        Some(RestOfDefault { rest: Rest::Default, other }) => {
            Some(judging.result("the paper's def", other)?)
        }
        _ => None,
    };
    let bytes = requests.iter().map(|request| request.length).sum();
    let mut judged = JudgedSetting {
        requests: requests.len() as u64,
        bytes,
        chosen: outcome.chosen,
        def_rest: outcome.rest.as_ref().map(|it| it.rest),
        layouts,
        of_paper,
    };
    judged.compare();
    Ok(judged)
}

fn unavailable(why: &str) -> LayoutResult {
    LayoutResult { unavailable: Some(why.to_owned()), ..Default::default() }
}

/// What layouts of a setting are judged by.
struct Judging<'a> {
    setting: &'a Setting,
    dir: Option<&'a Path>,
    set: &'a ServerSet,
    requests: &'a [Request],
    replay: &'a Replay<'a>,
}

impl Judging<'_> {
    /// The setting under a layout, which is called `name`.
    fn result(&self, name: &str, planned: &Judged) -> Result<LayoutResult, Failure> {
        let Judging { set, requests, .. } = self;
        let replayed = self.replay.outcome(requests, &planned.layouts, &mut |_, _| {});
        let replayed = replayed.map_err(Failure::failed)?;
        let layout = planned.layouts.of(0);
        if self.dir.is_some() && replayed.seconds > TOLD_FROM_SECONDS {
            tell!(
                "halocline: measuring {name}: it takes about {}; --no-measure leaves that out",
                text::seconds(replayed.seconds)
            );
        }
        let measured = self.dir.map(|dir| measure::seconds(dir, set, layout, requests));
        let (disks, ssds) = replayed.servers.split_at(self.setting.servers.0);
        let busy = |servers: &[ServerOutcome]| {
            let most = servers.iter().map(|server| server.busy_seconds).fold(0.0, f64::max);
            most / replayed.seconds.max(1e-12)
        };
        Ok(LayoutResult {
            stripes: layout.parts()[0].widths.clone(),
            parts: layout.parts().len(),
            ssd_bytes: Some(planned.ssd_bytes),
            predicted_seconds: Some(planned.predicted_seconds),
            simulated_seconds: Some(replayed.seconds),
            measured_seconds: measured.transpose()?,
            busy: (busy(disks), busy(ssds)),
            disks: work(disks, requests.len()),
            ..Default::default()
        })
    }
}

#[expect(clippy::cast_precision_loss, reason = "means for people")]
fn work(disks: &[ServerOutcome], requests: usize) -> DiskWork {
    let pieces = disks.iter().map(|server| server.requests).sum::<u64>() as f64;
    let bytes: u64 = disks.iter().map(|server| server.read_bytes + server.written_bytes).sum();
    let seconds: f64 = disks.iter().map(|server| server.busy_seconds).sum();
    let requests = requests.max(1) as f64;
    DiskWork {
        pieces: pieces / requests,
        kib: bytes as f64 / 1024.0 / pieces.max(1.0),
        ms: seconds * 1e3 / requests / disks.len().max(1) as f64,
    }
}

impl JudgedSetting {
    /// Computes the ratios to DEF.
    fn compare(&mut self) {
        let def = self.of(Name::Def).clone();
        let ratio = |def: Option<f64>, seconds: Option<f64>| Some(def? / seconds?.max(1e-12));
        let layouts = self.layouts.iter_mut().map(|(_, layout)| layout);
        for layout in layouts.chain(&mut self.of_paper) {
            layout.predicted_ratio = ratio(def.predicted_seconds, layout.predicted_seconds);
            layout.simulated_ratio = ratio(def.simulated_seconds, layout.simulated_seconds);
            layout.measured_ratio = ratio(def.measured_seconds, layout.measured_seconds);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::bench::layout::setting::Benchmark;

    /// Regression: the sum of all requests was reported as the length of each.
    #[test]
    fn the_sum_of_requests_is_told_as_a_sum() {
        let setting = Setting {
            benchmark: Benchmark::Ior { data: 2 << 20, size: 64 << 10, random: false },
            processes: 4,
            op: halocline_trace::Op::Write,
            servers: (2, 1),
            ssd_share: 0.25,
        };
        let judged = judge(&setting, None).expect("layouts");
        assert_eq!(judged.amount(), "32 requests, 2.00 MiB together");
    }
}
