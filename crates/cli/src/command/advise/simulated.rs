//! The uses of an SSD, simulated on the described servers and on variants of them.

use std::collections::HashMap;
use std::path::Path;

use halocline_model::{admit, tier};
use halocline_plan::planner::{self, Name};
use halocline_sim::placement::placements;
use halocline_sim::servers::Profile;
use halocline_sim::{
    FileLayout, Options, Pace, ServerSet, Sides, TracedFiles, replay, replay_cached, replay_tiered,
};
use halocline_trace::Request;
use serde::Serialize;

use super::decide::{Seconds, Use};
use crate::command::judge::{self, Replay};
use crate::command::plan::job::{self, Job};
use crate::command::plan::no_plan;
use crate::command::plan::source::{self, TraceSummary};
use crate::command::server_file;
use crate::command::simulate::tiered::traced_files;
use crate::command::traced::{TraceFile, refused};
use crate::failure::Failure;
use crate::reading;

/// Stripe of files without a plan, in bytes.
const STRIPE: u64 = 64 << 10;
/// Variants are judged by this many requests from the beginning of the trace.
const VARIANT_REQUESTS: usize = 250_000;
/// Times of a device in the variants, relative to the description: a fifth faster and slower.
const FACTORS: [f64; 3] = [0.8, 1.0, 1.2];

/// The layouts that a planner chose for files, and their default; or why there are none.
type Stripes = Result<(HashMap<u32, FileLayout>, FileLayout), String>;

/// What `plan` recommends for the files of the trace; the default layout where that is nothing.
fn planned(
    trace: &TraceFile<'_>,
    set: &ServerSet,
    seen: &TraceSummary,
) -> Result<Stripes, Failure> {
    let there = judge::servers(set).map_err(Failure::refused)?;
    let whole = job::replay_of_all(trace, set);
    let mut replays = Replay::with_whole(set, &whole, seen.workload.requests);
    let plan = planner::plan(&there, &seen.workload, &mut replays, seen.completeness.weight());
    let plan = match plan.map_err(|error| no_plan(seen, &error)) {
        Ok(plan) => plan,
        Err(why) => return Ok(Err(why)),
    };
    let job = Job::of(trace, seen, set, &plan)?;
    let recommended = match plan.of(Name::Def) {
        Ok(def) if job.is_some_and(|job| job.gains_nothing()) => def,
        _ => plan.choice(),
    };
    Ok(Replay::file_layouts(&recommended.layouts))
}

/// What is simulated.
pub(in crate::command) struct Case<'a> {
    trace: TraceFile<'a>,
    set: &'a ServerSet,
    slow: Vec<usize>,
    size: u64,
    options: Options,
    /// Seeds of the placements of the files on the disks, the usual one first.
    placements: &'static [u64],
    files: TracedFiles,
    stripes: Stripes,
    slow_alone: FileLayout,
    pub(in crate::command) trace_weight: f64,
    pub(in crate::command) requests: u64,
    pub(in crate::command) bytes: u64,
}

/// The result of one use.
#[derive(Debug, Clone, Default, Serialize)]
pub(in crate::command) struct Outcome {
    /// From the first issue to the last completion.
    pub(in crate::command) foreground_seconds: Option<f64>,
    /// The same, with dirty bytes written back and moves completed.
    pub(in crate::command) seconds: Option<f64>,
    /// Why it is impossible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::command) unavailable: Option<String>,
}

/// A variant of the servers.
#[derive(Debug, Clone, Serialize)]
pub(in crate::command) struct Variant {
    /// Times of the slowest servers' devices, relative to the description.
    pub(in crate::command) disk_times: f64,
    /// The same of all others.
    pub(in crate::command) ssd_times: f64,
    /// Seed for the positions of files on disks.
    pub(in crate::command) seed: u64,
    /// What would be advised.
    pub(in crate::command) answer: &'static str,
}

impl<'a> Case<'a> {
    /// Reads the trace and plans stripes for it.
    pub(in crate::command) fn new(
        trace: &'a Path,
        set: &'a ServerSet,
        size: Option<u64>,
    ) -> Result<Self, Failure> {
        if set.classes().len() < 2 {
            return Err(Failure::refused(
                "all servers are of one class: describe an SSD beside the disks",
            ));
        }
        let sides = Sides::new(set, 0, "SSD").map_err(Failure::refused)?;
        let room = sides.fast.iter().map(|server| set.servers()[*server].capacity);
        let room = room.fold(0, u64::saturating_add);
        let size = size.unwrap_or(room);
        if size == 0 || size > room {
            return Err(Failure::refused(format!(
                "--size {size}: choose from 1 to {room} bytes, which the faster servers hold"
            )));
        }
        reading::check_repeatable(trace)?;
        let file = TraceFile::new(trace);
        let (files, trace_weight) = traced_files(&file)?;
        // All uses but stripes have the files on the disks.
        server_file::check_disks_hold(&files, &sides, set)?;
        let seen = source::summarize(trace, set.len())?;
        file.check_same(&seen.content)?;
        if seen.workload.requests == 0 {
            return Err(refused(trace, "there are no requests in it"));
        }
        let stripes = planned(&file, set, &seen)?;
        let mut widths = vec![0; set.len()];
        for server in &sides.slow {
            widths[*server] = STRIPE;
        }
        Ok(Self {
            trace: file,
            set,
            slow: sides.slow,
            size,
            options: Options { pace: Pace::ClosedLoop { think: true }, ..Options::default() },
            placements: placements(set, seen.files()),
            files,
            stripes,
            slow_alone: FileLayout::uniform(widths).map_err(Failure::refused)?,
            trace_weight,
            requests: seen.workload.requests,
            bytes: seen.workload.bytes,
        })
    }

    /// The layouts of a stripe target: those of individual files, and the default for all others; or why there are
    /// none.
    pub(in crate::command) fn stripes(
        &self,
    ) -> Result<(&HashMap<u32, FileLayout>, &FileLayout), &String> {
        self.stripes.as_ref().map(|(files, default)| (files, default))
    }

    /// The layout on the disks alone.
    pub(in crate::command) const fn slow_alone(&self) -> &FileLayout {
        &self.slow_alone
    }

    /// Bytes of the SSD.
    pub(in crate::command) const fn size(&self) -> u64 {
        self.size
    }

    /// The whole trace on the described servers.
    pub(in crate::command) fn base(&self) -> Result<[Outcome; 4], Failure> {
        let mut outcomes = Vec::new();
        for what in Use::ALL {
            let mut requests = self.trace.requests()?;
            outcomes.push(match self.run(what, self.set, &self.options, &mut requests) {
                Ok((foreground, seconds)) => Outcome {
                    foreground_seconds: Some(foreground),
                    seconds: Some(seconds),
                    unavailable: None,
                },
                Err(why) if what != Use::None => {
                    Outcome { unavailable: Some(why), ..Outcome::default() }
                }
                Err(why) => return Err(refused(self.trace.path(), &why)),
            });
            requests.end()?;
        }
        Ok(outcomes.try_into().expect("one for each use"))
    }

    /// The beginning of the trace on the variants of the servers, without those equal to the base.
    pub(in crate::command) fn variants(&self) -> Result<Vec<(Variant, Seconds)>, Failure> {
        let mut input = self.trace.requests()?;
        let requests: Vec<Request> = input.by_ref().take(VARIANT_REQUESTS).collect();
        input.end()?;
        let usual = self.options.seed;
        let factors = FACTORS.into_iter().flat_map(|disk| FACTORS.map(|ssd| (disk, ssd, usual)));
        let factors = factors.filter(|(disk, ssd, _)| (*disk, *ssd) != (1.0, 1.0));
        let seeds = self.placements.iter().skip(1).map(|seed| (1.0, 1.0, *seed));
        let mut variants = Vec::new();
        for (disk_times, ssd_times, seed) in factors.chain(seeds) {
            let times = |server| if self.slow.contains(&server) { disk_times } else { ssd_times };
            let set = self.set.with_profiles(|number, it: &Profile| it.slower(times(number)));
            let options = Options { seed, ..self.options };
            let seconds = Use::ALL.map(|what| {
                let requests = &mut requests.iter().copied();
                self.run(what, &set, &options, requests).ok().map(|(_, seconds)| seconds)
            });
            let answer = super::decide::answer(&seconds).word();
            variants.push((Variant { disk_times, ssd_times, seed, answer }, seconds));
        }
        Ok(variants)
    }

    /// Number of requests by which the variants are judged.
    pub(in crate::command) fn variant_requests(&self) -> u64 {
        self.requests.min(VARIANT_REQUESTS as u64)
    }

    /// Seconds until the last request completes, and until all data is where it belongs.
    fn run(
        &self,
        what: Use,
        set: &ServerSet,
        options: &Options,
        requests: &mut dyn Iterator<Item = Request>,
    ) -> Result<(f64, f64), String> {
        match what {
            Use::None => {
                let done = replay(requests, set, |_| &self.slow_alone, options)?;
                self.trace.tell_if_late(done.late);
                Ok((done.seconds, done.seconds))
            }
            Use::Stripes => {
                let (files, default) = self.stripes.as_ref().map_err(Clone::clone)?;
                let of = |file| files.get(&file).unwrap_or(default);
                let done = replay(requests, set, of, options)?;
                self.trace.tell_if_late(done.late);
                Ok((done.seconds, done.seconds))
            }
            Use::Cache => {
                let policy = admit::POLICIES[0].name;
                let done = replay_cached(requests, set, self.size, policy, options)?;
                self.trace.tell_if_late(done.late);
                Ok((done.foreground_seconds, done.total_seconds))
            }
            Use::Tier => {
                let policy = tier::POLICIES[0].name;
                let done = replay_tiered(requests, &self.files, set, self.size, policy, options)?;
                self.trace.tell_if_late(done.late);
                Ok((done.foreground_seconds, done.total_seconds))
            }
        }
    }
}
