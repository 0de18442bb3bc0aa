//! `halocline advise`: what an SSD is best used for, from a trace (docs/PLANNING.md).

pub(super) mod decide;
pub(super) mod simulated;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use halocline_api::config::parse_bytes;
use halocline_os::counted::counted;
use halocline_plan::gain_range::gain;
use halocline_sim::ServerSet;
use serde::Serialize;

use super::{print_json, server_file};
use crate::failure::{Failure, Outcome as Ended};
use crate::print::say;
use crate::text::{self, percent};
use decide::{Advice, Use};
use simulated::{Case, Outcome, Variant};

/// Advise what an SSD is best used for: stripe target, extent cache, file tier, or nothing
///
/// Simulates the requests of a trace with each use, on the servers as they are described and on devices that are a
/// fifth faster or slower, and says which use is fastest, by how much, and how sure that is.
#[derive(Debug, Args)]
pub(crate) struct AdviseArgs {
    /// The trace
    trace: PathBuf,
    /// The servers: a `server` table for each; those of the slowest class are the disks, all others the SSD
    #[arg(long)]
    servers: PathBuf,
    /// Bytes of the SSD for a cache or tier; without it all that the servers have
    #[arg(long, value_name = "BYTES", value_parser = bytes, allow_hyphen_values = true)]
    size: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn bytes(text: &str) -> Result<u64, String> {
    parse_bytes(text).ok_or_else(|| "not bytes such as 64K, 8M or 2G".into())
}

/// What `advise --json` prints.
#[derive(Debug, Serialize)]
struct Report {
    requests: u64,
    bytes: u64,
    size: u64,
    trace_weight: f64,
    uses: BTreeMap<&'static str, Row>,
    answer: &'static str,
    best: &'static str,
    gain: f64,
    gain_over_next: f64,
    spread: f64,
    least_gain: f64,
    most_gain: f64,
    ties: Vec<&'static str>,
    stays: f64,
    variant_requests: u64,
    variants: Vec<Variant>,
}

#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    outcome: Outcome,
    /// Throughput gained over no use.
    gain: Option<f64>,
}

/// A case with what is advised for it.
pub(super) struct Judged<'a> {
    pub(super) case: Case<'a>,
    /// In the order of [`Use::ALL`].
    pub(super) outcomes: [Outcome; 4],
    pub(super) advice: Advice,
    variants: Vec<Variant>,
}

/// Advises what the faster ones of the servers are best used for by the requests of `trace`, with `size` bytes of them
/// for a cache or tier, or all.
pub(super) fn judge<'a>(
    trace: &'a Path,
    set: &'a ServerSet,
    size: Option<u64>,
) -> Result<Judged<'a>, Failure> {
    let case = Case::new(trace, set, size)?;
    let outcomes = case.base()?;
    let base = outcomes.each_ref().map(|outcome| outcome.seconds);
    let (variants, seconds): (Vec<_>, Vec<_>) = case.variants()?.into_iter().unzip();
    let advice = decide::advise(&base, &seconds, case.trace_weight);
    Ok(Judged { case, outcomes, advice, variants })
}

/// Advises.
pub(crate) fn execute(args: &AdviseArgs) -> Ended {
    let set = server_file::read(&args.servers)?;
    if set.classes().len() < 2 {
        let file = text::path(&args.servers);
        return Err(Failure::refused(format!(
            "{file}: all servers are of one class: describe an SSD beside the disks"
        )));
    }
    let Judged { case, outcomes, advice, variants } = judge(&args.trace, &set, args.size)?;
    let base = outcomes.each_ref().map(|outcome| outcome.seconds);
    let rows = Use::ALL.into_iter().zip(outcomes).map(|(what, outcome)| {
        let gain = base[0].zip(outcome.seconds).map(|(none, seconds)| gain(none, seconds));
        (what, Row { outcome, gain })
    });
    let rows: Vec<_> = rows.collect();
    if !args.json {
        tell(&case, &rows, &advice, variants.len());
        return Ok(ExitCode::SUCCESS);
    }
    print_json(&Report {
        requests: case.requests,
        bytes: case.bytes,
        size: case.size(),
        trace_weight: case.trace_weight,
        uses: rows.into_iter().map(|(what, row)| (what.word(), row)).collect(),
        answer: advice.answer.word(),
        best: advice.best.word(),
        gain: advice.gain,
        gain_over_next: advice.gain_over_next,
        spread: advice.gains.spread(),
        least_gain: advice.gains.least,
        most_gain: advice.gains.most,
        ties: advice.ties.iter().map(|what| what.word()).collect(),
        stays: advice.stays,
        variant_requests: case.variant_requests(),
        variants,
    })
}

fn tell(case: &Case<'_>, rows: &[(Use, Row)], advice: &Advice, variants: usize) {
    say!(
        "SIMULATED: {}, an SSD of {}",
        counted(case.requests, "request"),
        text::bytes(case.size())
    );
    say!("{:13} {:>12} {:>12} {:>9} {:>11}", "use", "time", "drained", "MB/s", "gain");
    for (what, row) in rows {
        let (Some(foreground), Some(seconds)) =
            (row.outcome.foreground_seconds, row.outcome.seconds)
        else {
            let why = row.outcome.unavailable.as_deref().unwrap_or("not possible");
            say!("{:13} not possible: {why}", what.text());
            continue;
        };
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let rate = case.bytes as f64 / 1e6 / seconds.max(1e-12);
        let gain = row.gain.map(percent).unwrap_or_default();
        let [foreground, drained] = [foreground, seconds].map(text::seconds);
        say!("{:13} {foreground:>12} {drained:>12} {rate:>9.1} {gain:>11}", what.text());
    }
    say!("");
    let [gain, least, most] = [advice.gain, advice.gains.least, advice.gains.most].map(percent);
    match (advice.answer, advice.best) {
        (Use::None, Use::None) => say!("advice: none of them; the disks alone are the fastest"),
        (Use::None, best) => {
            say!("advice: none of them; what the {} gains is not certain", best.text());
        }
        (answer, _) => say!("advice: {}", answer.text()),
    }
    if advice.best != Use::None {
        say!("gain: {gain} more throughput than the disks alone,");
        say!("{least} to {most} in {variants} variants of the servers");
        say!("{} more than the next best use", percent(advice.gain_over_next));
    }
    for tie in &advice.ties {
        say!("{} and {} cannot be told apart", advice.best.text(), tie.text());
    }
    say!("the fastest use is the same in {} of {variants} variants", percent(advice.stays));
}
