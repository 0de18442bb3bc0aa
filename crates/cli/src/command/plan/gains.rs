//! What the best layout gains in parts of the trace and in placements of its files, in words.

use halocline_os::counted::counted;
use halocline_plan::gain_range::{
    GAIN_MIN, MORE_OF_WEAK_PARTS, PartSeconds, gain_with_more_of_weak_parts,
};
use halocline_plan::planner::{Name, Outcome};

use super::job::Job;
use crate::text::{self, percent};

/// The least and the largest gain of the best layout, which are no bounds of what others gain.
pub(super) fn range(outcome: &Outcome) -> String {
    let [least, most] = [outcome.gains.least, outcome.gains.most].map(percent);
    let placements = match outcome.placements.len() {
        ..=1 => String::new(),
        count => format!(" and in {} of its files on the disks", counted(count, "placement")),
    };
    format!(
        "{least} to {most} in parts of the trace{placements} (no bounds: others may gain less, or more)"
    )
}

/// Where the best layout is slower, by how much, and what that means for the recommendation; with a `job` that has decided it,
/// nothing.
pub(super) fn lines(outcome: &Outcome, job: Option<&Job>) -> Vec<String> {
    if outcome.best == Name::Def {
        return Vec::new();
    }
    let mut lines = losses(&outcome.parts, "part", "of the sample");
    if outcome.placements.len() > 1 {
        lines.extend(losses(&outcome.placements, "placement", "of the files on the disks"));
    }
    if outcome.gains.is_sure() || outcome.best_gain <= GAIN_MIN {
        return lines;
    }
    let gains = format!("{} would gain {}", outcome.best.text(), percent(outcome.sure_gain));
    let is_withheld = outcome.chosen == Name::Def && job.is_none();
    let meaning = if is_withheld { ": that is not enough to recommend it" } else { "" };
    let placements = outcome.placements.iter().map(|placement| placement.gain());
    let in_placements = placements.fold(f64::INFINITY, f64::min);
    let of_parts = gain_with_more_of_weak_parts(&outcome.parts);
    if outcome.placements.len() > 1 && in_placements < of_parts {
        lines.push(format!(
            "a system has one placement; in that with the least gain {gains}{meaning}"
        ));
        return lines;
    }
    let of_all =
        |seconds: fn(&PartSeconds) -> f64| text::seconds(outcome.parts.iter().map(seconds).sum());
    let [def, best] = [of_all(|part| part.default), of_all(|part| part.seconds)];
    lines.push(format!(
        "all parts take {best} instead of {def}; with {MORE_OF_WEAK_PARTS} times as much of those that gain nothing {gains}{meaning}"
    ));
    lines
}

/// Which of all that are called `what` lose.
fn losses(all: &[PartSeconds], what: &str, whose: &str) -> Vec<String> {
    let slower = all.iter().enumerate().filter(|(_, part)| part.seconds > part.default);
    let line = |(at, part): (usize, &PartSeconds)| {
        format!(
            "{what} {} of {} {whose} loses: it takes {} instead of {}, {} less throughput",
            at + 1,
            all.len(),
            text::seconds(part.seconds),
            text::seconds(part.default),
            percent(-part.gain())
        )
    };
    slower.map(line).collect()
}
