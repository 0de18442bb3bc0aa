//! What a plan is worth to a whole job, which computes between its requests.

use std::path::Path;
use std::thread;

use halocline_plan::judge::Layouts;
use halocline_plan::planner::{self, Judged, Name, Outcome};
use halocline_sim::{Options, Pace, ServerSet, replay};
use halocline_trace::Request;
use serde::Serialize;

use super::source::TraceSummary;
use crate::command::judge::Replay;
use crate::command::simulate::traced::{Traced, refused};
use crate::failure::Failure;

/// A smaller gain of the whole job is none, as in the advice.
const GAIN_MIN: f64 = 0.01;

/// When requests are under way.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct IoTime {
    requests: u64,
    timed: u64,
    begin_ns: u64,
    until_ns: u64,
    busy_ns: u64,
}

impl IoTime {
    /// Takes a request; they come in the order of their start.
    pub(crate) fn push(&mut self, request: &Request) {
        if self.requests == 0 {
            (self.begin_ns, self.until_ns) = (request.start_ns, request.start_ns);
        }
        self.requests += 1;
        let Some(duration_ns) = request.duration_ns else { return };
        self.timed += 1;
        let end_ns = request.start_ns.saturating_add(duration_ns);
        let from_ns = request.start_ns.max(self.until_ns);
        self.busy_ns += end_ns.saturating_sub(from_ns);
        self.until_ns = self.until_ns.max(end_ns);
    }

    /// Seconds in which at least one request was under way; `None` where the trace does not say it of each.
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    pub(crate) fn seconds(&self) -> Option<f64> {
        let is_known = self.timed > 0 && self.timed == self.requests && self.busy_ns > 0;
        is_known.then_some(self.busy_ns as f64 * 1e-9)
    }

    /// The same as a share of the time from the first request's start to the last one's end.
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    pub(crate) fn share(&self) -> Option<f64> {
        let all = (self.until_ns - self.begin_ns) as f64 * 1e-9;
        self.seconds().map(|seconds| seconds / all.max(1e-9))
    }
}

/// The whole trace on simulated servers, each process going on after the time that it computed between its requests.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Job {
    /// Seconds under the default layout.
    pub(crate) def_seconds: f64,
    /// Seconds under the layout that is the fastest for the requests alone.
    pub(crate) seconds: f64,
    /// How much sooner it ends, as throughput over that of the default layout, less one.
    pub(crate) gain: f64,
}

impl Job {
    /// The job of the trace at `path`, under the default layout and the one that was chosen; `None` where none was chosen, or
    /// the trace does not say what it computed.
    pub(super) fn of(
        path: &Path,
        seen: &TraceSummary,
        set: &ServerSet,
        outcome: &Outcome,
    ) -> Result<Option<Self>, Failure> {
        let Ok(def) = outcome.of(Name::Def) else { return Ok(None) };
        if outcome.chosen == Name::Def || seen.io_time.seconds().is_none() {
            return Ok(None);
        }
        let seconds = |judged: &Judged| with_pauses(path, set, &judged.layouts);
        let (def_seconds, seconds) = thread::scope(|scope| {
            let def = scope.spawn(|| seconds(def));
            let chosen = seconds(outcome.choice());
            (def.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), chosen)
        });
        let (def_seconds, seconds) = (def_seconds?, seconds?);
        Ok(Some(Self { def_seconds, seconds, gain: planner::gain(def_seconds, seconds) }))
    }

    /// Whether the plan is worth nothing to it, whatever it is worth to the requests.
    pub(crate) fn gains_nothing(&self) -> bool {
        self.gain < GAIN_MIN
    }
}

fn with_pauses(path: &Path, set: &ServerSet, layouts: &Layouts) -> Result<f64, Failure> {
    let wrong = |error: String| refused(path, &error);
    let (files, default) = Replay::file_layouts(layouts).map_err(wrong)?;
    let mut requests = Traced::open(path)?;
    let options = Options { pace: Pace::ClosedLoop { think: true }, ..Options::default() };
    let of = |file| files.get(&file).unwrap_or(&default);
    let done = replay(&mut requests, set, of, &options).map_err(wrong)?;
    requests.end()?;
    Ok(done.seconds)
}

#[cfg(test)]
mod tests {
    use halocline_trace::Op;

    use super::*;

    #[test]
    fn time_with_requests_under_way_is_counted_once() {
        let request = |start_ns, duration_ns| Request {
            start_ns,
            duration_ns,
            process: 0,
            file: 7,
            op: Op::Write,
            offset: 0,
            length: 1,
        };
        let mut time = IoTime::default();
        // 1000 to 1150 and 5790 to 5890.
        for start_ns in [1000, 1050, 5790] {
            time.push(&request(start_ns, Some(100)));
        }
        assert!((time.seconds().unwrap() - 250e-9).abs() < 1e-15, "{time:?}");
        assert!((time.share().unwrap() - 250.0 / 4890.0).abs() < 1e-9, "{time:?}");
        time.push(&request(6000, None));
        assert_eq!((time.seconds(), time.share()), (None, None));
    }
}
