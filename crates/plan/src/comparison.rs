//! What a layout gains over the default: in all, in parts of the sample, and in each placement of the files.

use halocline_trace::Request;

use crate::gain_range::{GainRange, PartSeconds, gain, gain_with_more_of_weak_parts};
use crate::judge::{Judge, Layouts};
use crate::parts::parts;
use crate::placed::{Placed, mean};
use crate::planner::Judged;

/// Compares layouts with the default.
#[derive(Debug)]
pub(crate) struct Comparison<'a> {
    pub(crate) placed: Placed<'a>,
    def_seconds: f64,
    def_by_placement: Vec<f64>,
    parts: Vec<Vec<Request>>,
    /// Seconds of each part under the default.
    def_of_parts: Vec<f64>,
    weight: f64,
}

/// What a layout gains.
#[derive(Debug)]
pub(crate) struct Gains {
    pub(crate) whole: f64,
    pub(crate) parts: Vec<PartSeconds>,
    pub(crate) placements: Vec<PartSeconds>,
    /// Of the whole, of each part and in each placement.
    pub(crate) range: GainRange,
    /// With more of the parts that gain nothing, and in each placement: if that counts, the layout is recommended.
    pub(crate) sure: GainRange,
}

impl<'a> Comparison<'a> {
    /// With the default, which is replayed in parts of the sample. `weight`, from 0 to 1, says how much the trace can be
    /// trusted.
    pub(crate) fn new(
        placed: Placed<'a>,
        judge: &mut dyn Judge,
        def: &Judged,
        weight: f64,
    ) -> Self {
        let parts = parts(&placed.workload.sample);
        let seconds = |part: &Vec<Request>| placed.seconds(judge, part, &def.layouts);
        let def_of_parts = parts.iter().map(seconds).collect();
        let def_by_placement = def.seconds_by_placement.clone();
        let def_seconds = def.simulated_seconds;
        Self { placed, def_seconds, def_by_placement, parts, def_of_parts, weight }
    }

    /// What `layouts` gain, whose replays take so many seconds in each placement.
    pub(crate) fn gains(
        &self,
        judge: &mut dyn Judge,
        layouts: &Layouts,
        by_placement: &[f64],
    ) -> Gains {
        let whole = gain(self.def_seconds, mean(by_placement));
        let placements = self.in_placements(by_placement);
        let of = |(part, default): (&Vec<Request>, &f64)| PartSeconds {
            default: *default,
            seconds: self.placed.seconds(judge, part, layouts),
        };
        let parts: Vec<PartSeconds> = self.parts.iter().zip(&self.def_of_parts).map(of).collect();
        let of_placements = || placements.iter().map(|placement| placement.gain());
        let gains = parts.iter().map(|part| part.gain()).chain(of_placements());
        let range = GainRange::new(whole, gains, self.weight);
        // A part is as much of a run as it is of the trace. Of the placements a system has one.
        let sure = of_placements().chain([gain_with_more_of_weak_parts(&parts)]);
        let sure = GainRange::new(whole, sure, self.weight);
        Gains { whole, parts, placements, range, sure }
    }

    /// Whether a layout gains in each placement, of which a system has one.
    pub(crate) fn gains_in_each(&self, by_placement: &[f64]) -> bool {
        let whole = gain(self.def_seconds, mean(by_placement));
        let placements = self.in_placements(by_placement);
        let gains = placements.iter().map(|placement| placement.gain());
        GainRange::new(whole, gains, self.weight).is_sure()
    }

    fn in_placements(&self, by_placement: &[f64]) -> Vec<PartSeconds> {
        let both = self.def_by_placement.iter().zip(by_placement);
        both.map(|(default, seconds)| PartSeconds { default: *default, seconds: *seconds })
            .collect()
    }
}
