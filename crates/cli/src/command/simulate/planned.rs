//! The layouts of a plan, for a replay of a trace that may be another one than the plan was made from.

use std::collections::HashMap;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use halocline_plan::default_layout::{self, Rest};
use halocline_plan::gain_range::gain;
use halocline_plan::judge::Layouts;
use halocline_plan::layout::{DEFAULT_STRIPE, Layout, Placer};
use halocline_plan::plan_file::Plan;
use halocline_plan::servers::Servers;
use halocline_plan::unplanned::Unplanned;
use halocline_plan::workload::File;
use halocline_sim::{Options, Outcome as Replayed, Pace, ServerSet};
use halocline_trace::Reader;

use serde::Serialize;

use crate::command::placement::BELOW;
use crate::command::plan::no_plan;
use crate::command::plan::source::TraceSummary;
use crate::command::planned_files::PlannedFiles;
use crate::command::traced::{TraceFile, refused};
use crate::command::{judge, placement};
use crate::failure::Failure;
use crate::reading::Reading;
use crate::text;

/// What `simulate --plan --json` says beside the replay under the plan.
#[derive(Debug, Serialize)]
pub(super) struct Comparison {
    /// Files of the trace that the plan has a layout for.
    pub(super) files: usize,
    /// Files of the trace that keep the default layout.
    pub(super) other_files: usize,
    /// Throughput that the plan gains, as a share of the default layout's: each by the mean of its times.
    pub(super) gain_over_default: f64,
    /// The replays in each placement of the files.
    pub(super) placements: Vec<InPlacement>,
    /// What the plan promised for its own trace.
    pub(super) promised_gain: f64,
    /// How the default layout lies where not all servers have room for its stripes; `None` where they have.
    pub(super) default_rest: Option<Rest>,
    /// Seconds of the replay under the default layout in the other way.
    pub(super) other_default_seconds: Option<f64>,
    /// Throughput that the plan gains over that.
    pub(super) gain_over_other_default: Option<f64>,
    /// The replay under the default layout, as far as there is room for it on each server: for the plan's own trace the way
    /// that the plan was compared with, for another one the faster.
    pub(super) default: Replayed,
}

/// The replays of a trace in a placement of its files on the disks.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct InPlacement {
    seed: u64,
    default_seconds: f64,
    seconds: f64,
    /// Throughput that the plan gains there.
    pub(super) gain: f64,
}

/// The replays of a layout.
struct InPlacements {
    /// Seconds in each placement.
    seconds: Vec<f64>,
    /// The means of all.
    mean: Replayed,
    /// The trace, read to its end.
    read: Reader<BufReader<Reading>>,
}

/// A plan for the servers on which a trace is replayed.
#[derive(Debug)]
pub(super) struct PlannedLayouts<'a> {
    plan: Plan,
    /// What its paths begin with.
    below: Option<PathBuf>,
    set: &'a ServerSet,
    servers: Servers,
}

/// How a trace is replayed under two layouts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Replays<'a> {
    pub(super) trace: &'a Path,
    /// The default stripe of each server, in bytes.
    pub(super) stripes: &'a [u64],
    /// Of the placements of its files on the disks, one at least.
    pub(super) seeds: &'a [u64],
    pub(super) pace: Pace,
}

impl<'a> PlannedLayouts<'a> {
    /// The plan at `path`. Refused: what is not a plan, or one for other servers than `set`.
    pub(super) fn read(
        path: &Path,
        below: Option<&Path>,
        set: &'a ServerSet,
    ) -> Result<Self, Failure> {
        let refused = |what: String| Failure::refused(format!("{}: {what}", text::path(path)));
        let plan = placement::read(path)?;
        let servers = judge::servers(set).map_err(Failure::refused)?;
        let checked = judge::check_planned(&plan, set, &servers);
        checked.map_err(|error| refused(error.to_string()))?;
        Ok(Self { plan, below: below.map(Path::to_owned), set, servers })
    }

    /// Replays a trace under the default layout and under the plan; answers the latter, and what it is worth.
    ///
    /// No server gets more bytes of files than it holds, as in the plan: where SSDs fill up, a default layout that ignores
    /// that is faster than what is possible, and than many a plan.
    pub(super) fn compare(
        &self,
        seen: &TraceSummary,
        by: Replays<'_>,
    ) -> Result<(Replayed, Comparison), Failure> {
        let trace = TraceFile::known(by.trace, seen.content.clone());
        let full = |error| refused(by.trace, &no_plan(seen, &error));
        let files = &seen.workload.files;
        // As in the plan: files that it has no layout for take room first.
        let others = |files: &[(u32, u64)]| {
            let placed = Unplanned::place(&self.servers, files, by.stripes).map_err(full)?;
            Ok::<_, Failure>((Placer::new(placed.servers.room()), placed.layouts))
        };
        let all: Vec<&File> = files.iter().collect();
        let (placer, unplanned) = others(&seen.workload.other_files)?;
        let both = default_layout::both(&self.servers, &all, by.stripes, &placer, |_| {});
        let mut defaults = Vec::new();
        for (rest, mut layouts) in both.map_err(full)? {
            layouts.files.extend(unplanned.clone());
            defaults.push((rest, self.replayed(&trace, &layouts, by)?));
        }
        defaults.sort_by(|a, b| a.1.mean.seconds.total_cmp(&b.1.mean.seconds));
        // A plan for a trace of very many requests took the faster one of a sample.
        let of_plan = self.default_of_plan(seen, by.stripes);
        defaults.sort_by_key(|(rest, _)| of_plan.is_some_and(|of_plan| *rest != of_plan));
        let other_default_seconds = defaults.get(1).map(|(_, replayed)| replayed.mean.seconds);
        let (rest, default) = defaults.swap_remove(0);
        let default_rest = other_default_seconds.map(|_| rest);
        let planned = self.by_number(&default.read)?;
        if planned.is_empty() {
            return Err(Failure::refused(format!(
                "the plan has none of the files of the trace; {BELOW}"
            )));
        }
        let other_files = seen.workload.other_files.iter();
        let left = other_files.clone().filter(|(number, _)| !planned.contains_key(number)).copied();
        let (mut placer, unplanned) = others(&left.collect::<Vec<_>>())?;
        let sizes = files.iter().map(|file| (file.number, file.bytes)).chain(other_files.copied());
        let of_plan = sizes.filter_map(|(number, bytes)| Some(planned.get(&number)?.bytes(bytes)));
        of_plan.for_each(|bytes| placer.occupy(&bytes));
        let left = all.into_iter().filter(|file| !planned.contains_key(&file.number));
        let left: Vec<&File> = left.collect();
        let layouts =
            default_layout::lay_out(&self.servers, &left, by.stripes, rest, placer, |_| {});
        let mut layouts = layouts.map_err(full)?;
        layouts.files.extend(unplanned);
        let (files, other_files) = (planned.len(), default.read.files() - planned.len());
        layouts.files.extend(planned);
        let done = self.replayed(&trace, &layouts, by)?;
        let placements = in_placements(by.seeds, &default.seconds, &done.seconds);
        let (default, replayed) = (default.mean, done.mean);
        let gain_over_default = gain(default.seconds, replayed.seconds);
        let gain_over_other_default =
            other_default_seconds.map(|seconds| gain(seconds, replayed.seconds));
        let promised_gain = self.plan.expected.gain_over_def;
        let compared = Comparison {
            files,
            other_files,
            gain_over_default,
            placements,
            promised_gain,
            default_rest,
            other_default_seconds,
            gain_over_other_default,
            default,
        };
        Ok((replayed, compared))
    }

    /// Replays `trace` in each placement.
    fn replayed(
        &self,
        trace: &TraceFile<'_>,
        layouts: &Layouts,
        by: Replays<'_>,
    ) -> Result<InPlacements, Failure> {
        let replayed = |seed: &u64| {
            let options = Options { seed: *seed, pace: by.pace };
            trace.replay(self.set, layouts, &options, &mut |_, _| {})
        };
        let (first, others) = by.seeds.split_first().expect("a placement");
        let (replayed_first, read) = replayed(first)?;
        let mut all = vec![replayed_first];
        for seed in others {
            all.push(replayed(seed)?.0);
        }
        let seconds = all.iter().map(|replayed| replayed.seconds).collect();
        Ok(InPlacements { seconds, mean: Replayed::mean(&all), read })
    }

    /// Which of two default layouts the plan was compared with, if this is its trace, and they are the same stripes.
    fn default_of_plan(&self, seen: &TraceSummary, stripes: &[u64]) -> Option<Rest> {
        let is_its_own = seen.digest == self.plan.trace.digest
            && stripes.iter().all(|stripe| *stripe == DEFAULT_STRIPE);
        self.plan.expected.def_rest.filter(|_| is_its_own)
    }

    /// The layout of each file of the trace, by its number, for which the plan has one.
    fn by_number<R: Read>(&self, trace: &Reader<R>) -> Result<HashMap<u32, Layout>, Failure> {
        let files = u32::try_from(trace.files()).unwrap_or(u32::MAX);
        let planned = PlannedFiles::new(&self.plan, self.below.as_deref());
        let layout = |number| {
            let file = planned.find(trace.file(number)?, trace.source())?;
            Some(file.layout(self.set.len()).map(|layout| (number, layout)))
        };
        (0..files).filter_map(layout).collect::<Result<_, String>>().map_err(Failure::refused)
    }
}

/// What each placement gains.
fn in_placements(seeds: &[u64], default: &[f64], planned: &[f64]) -> Vec<InPlacement> {
    let of = |(&seed, (&default_seconds, &seconds))| InPlacement {
        seed,
        default_seconds,
        seconds,
        gain: gain(default_seconds, seconds),
    };
    seeds.iter().zip(default.iter().zip(planned)).map(of).collect()
}
