//! Plans for other file systems, whose layouts are not always quite the planned ones: what they gain is replayed.

use clap::ValueEnum;
use halocline_plan::plan_file::Plan;
use halocline_plan::planner::{self, Outcome};
use halocline_plan::servers::Servers;
use halocline_plan::write;

use super::FileSystem;
use super::source::TraceSummary;
use crate::command::judge::Replay;
use crate::failure::Failure;
use crate::print::tell;
use crate::text::percent;

/// Lines of a script that makes the files of `plan`. Where the file system has other layouts, it says what these gain.
/// Refused: what it cannot express, and layouts that do not surely gain.
pub(super) fn script(
    system: FileSystem,
    plan: &Plan,
    replay: &mut Replay<'_>,
    (seen, servers, outcome): (&TraceSummary, &Servers, &Outcome),
) -> Result<Vec<String>, Failure> {
    let mut script = write::script(system.target(), plan).map_err(Failure::refused)?;
    let Some(parts) = script.others.take() else { return Ok(script.lines) };
    let value = system.to_possible_value();
    let name = value.as_ref().map_or("the file system", |value| value.get_name());
    let seen_of = (servers, &seen.workload);
    let weight = seen.completeness.weight();
    let made = planner::gain_as_made(seen_of, replay, outcome, parts, weight);
    let made = made.map_err(|error| Failure::failed(error.to_string()))?;
    if let Some(why) = replay.failure() {
        return Err(Failure::failed(why));
    }
    let [gain, least, planned] = [made.gain, made.least, outcome.gain_over_def].map(percent);
    let told = format!(
        "as {name} has them, the layouts of the plan gain {gain} (least {least}) over 64 KiB everywhere; as planned {planned}"
    );
    if !made.is_sure {
        return Err(Failure::failed(format!(
            "{told}: that is not enough to recommend them, and no script is written; leave the files as they are, or put \
             the plan in place with `halocline apply`"
        )));
    }
    tell!("{told}");
    script.tell(&told);
    Ok(script.lines)
}
