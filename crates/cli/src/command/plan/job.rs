//! What a plan is worth to a whole job, which computes between its requests.

use std::thread;

use halocline_plan::gain_range::gain;
use halocline_plan::judge::{Layouts, Note};
use halocline_plan::planner::{Judged, Name, Outcome};
use halocline_sim::placement::{PLACEMENTS, placements};
use halocline_sim::{Options, Pace, ServerSet};
use serde::Serialize;

use super::source::TraceSummary;
use crate::command::judge::REPLAYED_MAX;
use crate::command::traced::TraceFile;
use crate::failure::Failure;
use crate::text::percent;

/// A smaller gain of the whole job is none, as in the advice.
const GAIN_MIN: f64 = 0.01;

/// The whole trace on simulated servers, each process going on after the time that it computed between its requests.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Job {
    /// Seconds under the default layout, the mean of those in each placement of the files.
    pub(crate) def_seconds: f64,
    /// Seconds under the layout that is the fastest for the requests alone.
    pub(crate) seconds: f64,
    /// How much sooner it ends, as throughput over that of the default layout, less one.
    pub(crate) gain: f64,
}

impl Job {
    /// The job of the `trace`, under the default layout and the one that was chosen; `None` where none was chosen, or
    /// the trace does not say what it computed.
    pub(in crate::command) fn of(
        trace: &TraceFile<'_>,
        seen: &TraceSummary,
        set: &ServerSet,
        outcome: &Outcome,
    ) -> Result<Option<Self>, Failure> {
        let Ok(def) = outcome.of(Name::Def) else { return Ok(None) };
        if outcome.chosen == Name::Def || seen.io_time.seconds().is_none() {
            return Ok(None);
        }
        let seeds = match seen.workload.requests {
            ..=REPLAYED_MAX => placements(set, seen.files()),
            _ => &PLACEMENTS[..1],
        };
        let one = |seed, judged: &Judged| {
            seconds_of_all(trace, set, (seed, true), &judged.layouts, &mut |_, _| {})
        };
        let seconds = |judged: &Judged| {
            let all = seeds.iter().map(|seed| one(*seed, judged));
            let sum = all.sum::<Result<f64, Failure>>()?;
            #[expect(clippy::cast_precision_loss, reason = "a few")]
            let count = seeds.len() as f64;
            Ok::<f64, Failure>(sum / count)
        };
        let (def_seconds, seconds) = thread::scope(|scope| {
            let def = scope.spawn(|| seconds(def));
            let chosen = seconds(outcome.choice());
            (def.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), chosen)
        });
        let (def_seconds, seconds) = (def_seconds?, seconds?);
        Ok(Some(Self { def_seconds, seconds, gain: gain(def_seconds, seconds) }))
    }

    /// Whether the plan is worth nothing to it, whatever it is worth to the requests.
    pub(crate) fn gains_nothing(&self) -> bool {
        self.gain < GAIN_MIN
    }

    /// Why it is then not recommended.
    pub(super) fn why_not(&self) -> String {
        if self.gain < 0.0 {
            return format!(
                "the job, which also computes, would take longer with it ({} less throughput)",
                percent(-self.gain)
            );
        }
        format!(
            "the job, which also computes, would gain {} with it, and {} is the least that counts",
            percent(self.gain),
            percent(GAIN_MIN)
        )
    }
}

/// Replays all requests of the `trace` on simulated servers, without pauses between them; answers the seconds.
pub(in crate::command) fn replay_of_all<'a>(
    trace: &'a TraceFile<'a>,
    set: &'a ServerSet,
) -> impl Fn(u64, &Layouts, Note<'_>) -> Result<f64, String> + 'a {
    |seed, layouts, note| {
        let seconds = seconds_of_all(trace, set, (seed, false), layouts, note);
        seconds.map_err(|failure| failure.message().to_owned())
    }
}

/// Seconds of all requests of the `trace` in the placement with this seed; `think`: with what the processes computed between
/// them.
fn seconds_of_all(
    trace: &TraceFile<'_>,
    set: &ServerSet,
    (seed, think): (u64, bool),
    layouts: &Layouts,
    note: Note<'_>,
) -> Result<f64, Failure> {
    let options = Options { seed, pace: Pace::ClosedLoop { think } };
    trace.replay(set, layouts, &options, note).map(|(done, _)| done.seconds)
}
