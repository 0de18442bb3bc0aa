//! Replays in several placements of the files on the servers, of which the mean counts.
//!
//! The head of a disk goes as far as files are apart, and where they lie is a matter of chance. A layout that a search has
//! found in one placement suits that one (docs/decisions/0101-a-gain-in-several-placements.md).

use halocline_trace::Request;

use crate::filling::{self, Filling};
use crate::judge::{Judge, Layouts};
use crate::servers::Servers;
use crate::workload::Workload;

/// All requests are replayed in each placement if they are at most so many; otherwise in the first alone, and the sample in
/// each.
pub(crate) const WORK_OF_ALL: u64 = 600_000;

/// What is replayed, and in how many placements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Placed<'a> {
    pub(crate) servers: &'a Servers,
    pub(crate) workload: &'a Workload,
    pub(crate) sample: &'a [Request],
    /// At least one.
    pub(crate) placements: usize,
}

/// What the replays of a layout say.
#[derive(Debug, Clone)]
pub(crate) struct Replayed {
    /// Seconds for the whole trace, the mean of those in each placement.
    pub(crate) seconds: f64,
    /// Seconds for the whole trace in each placement.
    pub(crate) by_placement: Vec<f64>,
    /// Seconds until the SSDs are full, the mean likewise.
    pub(crate) full_after_seconds: Option<f64>,
}

impl Placed<'_> {
    /// Whether the sample is the whole trace.
    pub(crate) fn is_whole(&self) -> bool {
        self.sample.len() as u64 == self.workload.requests
    }

    /// Seconds of these requests, the mean of those in each placement.
    pub(crate) fn seconds(
        &self,
        judge: &mut dyn Judge,
        requests: &[Request],
        layouts: &Layouts,
    ) -> f64 {
        mean(&self.in_each(judge, |_, judge| judge.seconds(requests, layouts)))
    }

    /// The replays of the whole trace, or of the sample.
    pub(crate) fn replayed(&self, judge: &mut dyn Judge, layouts: &Layouts) -> Replayed {
        let all = if self.is_whole() || self.workload.requests <= WORK_OF_ALL {
            self.in_each(judge, |placed, judge| placed.once(judge, layouts))
        } else {
            self.by_sample(judge, layouts)
        };
        let by_placement: Vec<f64> = all.iter().map(|(seconds, _)| *seconds).collect();
        let full_after: Vec<f64> = all.iter().filter_map(|(_, full_after)| *full_after).collect();
        let full_after_seconds = (!full_after.is_empty()).then(|| mean(&full_after));
        Replayed { seconds: mean(&by_placement), by_placement, full_after_seconds }
    }

    /// What `of` says in each placement.
    fn in_each<T>(&self, judge: &mut dyn Judge, of: impl Fn(&Self, &mut dyn Judge) -> T) -> Vec<T> {
        in_each(self.placements, judge, |judge| of(self, judge))
    }

    /// All requests in the first placement, and in the others as much longer as the sample is there.
    fn by_sample(&self, judge: &mut dyn Judge, layouts: &Layouts) -> Vec<(f64, Option<f64>)> {
        let (seconds, full_after) = self.once(judge, layouts);
        if self.placements == 1 {
            return vec![(seconds, full_after)];
        }
        let of_sample = self.in_each(judge, |placed, judge| judge.seconds(placed.sample, layouts));
        let first = of_sample[0];
        let longer = |it: f64| if first > 0.0 && it.is_finite() { it / first } else { 1.0 };
        let longer = of_sample.iter().map(|it| longer(*it));
        longer.map(|times| (seconds * times, full_after.map(|after| after * times))).collect()
    }

    /// Seconds of the whole trace, or of the sample, in the judge's placement; and until the SSDs are full.
    fn once(&self, judge: &mut dyn Judge, layouts: &Layouts) -> (f64, Option<f64>) {
        let Self { servers, workload, sample, .. } = *self;
        let fills = filling::fills(servers, workload, layouts);
        let mut filling = fills.then(|| Filling::new(servers, workload, layouts));
        let mut note = |request: &Request, seconds: f64| {
            if let Some(filling) = &mut filling {
                filling.note(request, seconds);
            }
        };
        // Where requests follow each other, gaps in a sample cost seeks that the trace has not.
        let whole = if self.is_whole() { None } else { judge.seconds_of_all(layouts, &mut note) };
        let (seconds, scale) = match whole {
            Some(seconds) => (seconds, 1.0),
            None => (judge.seconds_noting(sample, layouts, &mut note), workload.scale()),
        };
        let full_after = filling.and_then(|filling| filling.last_seconds());
        (seconds * scale, full_after.map(|seconds| seconds * scale))
    }
}

/// What `of` says in each of so many placements, at least one; the judge is in the first one again afterwards.
pub(crate) fn in_each<T>(
    placements: usize,
    judge: &mut dyn Judge,
    of: impl Fn(&mut dyn Judge) -> T,
) -> Vec<T> {
    let mut all = vec![of(judge)];
    for placement in 1..placements {
        judge.place(placement);
        all.push(of(judge));
    }
    if placements > 1 {
        judge.place(0);
    }
    all
}

/// The mean of some seconds; of one it is that.
#[expect(clippy::cast_precision_loss, reason = "a few")]
pub(crate) fn mean(all: &[f64]) -> f64 {
    all.iter().sum::<f64>() / all.len() as f64
}
