//! `halocline simulate --tier-size`: the file tier under several policies, side by side.

use std::process::ExitCode;

use halocline_api::config::format_bytes;
use halocline_model::tier;
use halocline_sim::{Options, ServerSet, Sides, TierOutcome, TracedFiles, replay_tiered};
use serde::Serialize;

use super::SimulateArgs;
use crate::command::traced::{TraceFile, refused, tell_if_partial};
use crate::command::{print_json, server_file};
use crate::failure::{Failure, Outcome};
use crate::print::say;
use crate::text;

/// What `simulate --tier-size --json` prints.
#[derive(Debug, Serialize)]
struct Report {
    /// Bytes of the SSD.
    tier_size: u64,
    /// Share of what happened that the trace is known to have, 0 to 1.
    trace_weight: f64,
    /// Each policy, in the order in which they were asked for.
    policies: Vec<TierOutcome>,
}

/// Simulates a tier whose SSD has `tier_size` bytes under each policy.
pub(super) fn execute(
    args: &SimulateArgs,
    tier_size: u64,
    (servers, sides): (&ServerSet, &Sides),
    options: &Options,
) -> Outcome {
    let wrong = |error: String| refused(&args.trace, &error);
    let asked = super::chosen(&args.policy, tier::POLICIES.iter().map(|policy| policy.name))?;
    let trace = TraceFile::new(&args.trace);
    let (files, trace_weight) = traced_files(&trace)?;
    server_file::check_disks_hold(&files, sides, servers)?;
    let mut policies = Vec::new();
    for policy in asked {
        let mut requests = trace.requests()?;
        let done = replay_tiered(&mut requests, &files, servers, tier_size, &policy, options);
        let done = done.map_err(wrong)?;
        requests.end()?;
        trace.tell_if_late(done.late);
        if done.requests == 0 {
            return Err(wrong("there are no requests in it".into()));
        }
        policies.push(done);
    }
    if args.json {
        return print_json(&Report { tier_size, trace_weight, policies });
    }
    say!("SIMULATED: a file tier of {}", format_bytes(tier_size));
    say!(
        "{:9} {:>11} {:>11} {:>9} {:>10} {:>12} {:>12}",
        "policy",
        "time",
        "moved",
        "MB/s",
        "on SSD",
        "MB promoted",
        "MB demoted"
    );
    policies.iter().for_each(tell_of);
    Ok(ExitCode::SUCCESS)
}

/// What a trace tells of its files, and how far it is to be believed. Says where it lacks requests.
pub(crate) fn traced_files(trace: &TraceFile<'_>) -> Result<(TracedFiles, f64), Failure> {
    let (mut files, mut requests) = (TracedFiles::default(), trace.requests()?);
    requests.by_ref().for_each(|request| files.push(&request));
    let completeness = requests.end()?.completeness().clone();
    tell_if_partial(trace.path(), &completeness);
    Ok((files, completeness.weight()))
}

#[expect(clippy::cast_precision_loss, reason = "shares and megabytes for people")]
fn tell_of(done: &TierOutcome) {
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    let served = (done.ssd_read_bytes + done.ssd_written_bytes) as f64;
    say!(
        "{:9} {:>11} {:>11} {:>9.1} {:>9.1}% {:>12.1} {:>12.1}",
        done.policy,
        text::seconds(done.foreground_seconds),
        text::seconds(done.total_seconds),
        megabytes(done.bytes) / done.foreground_seconds.max(1e-12),
        served / done.bytes.max(1) as f64 * 100.0,
        megabytes(done.promoted_bytes),
        megabytes(done.demoted_bytes)
    );
}
