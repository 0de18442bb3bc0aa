//! `halocline simulate --cache-size`: the extent cache under several admission policies, side by side.

use std::process::ExitCode;

use halocline_api::config::format_bytes;
use halocline_model::admit;
use halocline_sim::{CacheOutcome, Options, ServerSet, Sides, TracedFiles, replay_cached};
use halocline_trace::Request;
use serde::Serialize;

use super::SimulateArgs;
use crate::command::traced::{TraceFile, refused, tell_if_partial};
use crate::command::{print_json, server_file};
use crate::failure::Outcome;
use crate::print::say;
use crate::text;

/// What `simulate --cache-size --json` prints.
#[derive(Debug, Serialize)]
struct Report {
    /// Bytes of the cache.
    cache_size: u64,
    /// Share of what happened that the trace is known to have, 0 to 1.
    trace_weight: f64,
    /// Each policy, in the order in which they were asked for.
    policies: Vec<CacheOutcome>,
}

/// Simulates a cache of `cache_size` bytes under each policy.
pub(super) fn execute(
    args: &SimulateArgs,
    cache_size: u64,
    (servers, sides): (&ServerSet, &Sides),
    options: &Options,
) -> Outcome {
    let wrong = |error: String| refused(&args.trace, &error);
    let trace = TraceFile::new(&args.trace);
    let mut trace_weight = 1.0;
    let mut policies = Vec::new();
    let known: Vec<_> = if args.policy.is_empty() {
        admit::COMPARED.to_vec()
    } else {
        admit::POLICIES.iter().map(|policy| policy.name).collect()
    };
    for policy in super::chosen(&args.policy, known.into_iter())? {
        let (mut requests, mut files) = (trace.requests()?, TracedFiles::default());
        let is_first = policies.is_empty();
        let seen = |request: &Request| {
            if is_first {
                files.push(request);
            }
        };
        let seen = requests.by_ref().inspect(seen);
        let done = replay_cached(seen, servers, cache_size, &policy, options);
        let done = done.map_err(wrong)?;
        let reader = requests.end()?;
        trace.tell_if_late(done.late);
        if is_first {
            tell_if_partial(&args.trace, reader.completeness());
            server_file::check_disks_hold(&files, sides, servers)?;
        }
        if done.requests == 0 {
            return Err(wrong("there are no requests in it".into()));
        }
        trace_weight = reader.completeness().weight();
        policies.push(done);
    }
    if args.json {
        return print_json(&Report { cache_size, trace_weight, policies });
    }
    say!("SIMULATED: a cache of {}", format_bytes(cache_size));
    say!(
        "{:9} {:>11} {:>11} {:>9} {:>11} {:>11} {:>11}",
        "policy",
        "time",
        "drained",
        "MB/s",
        "on cache",
        "MB filled",
        "MB evicted"
    );
    for done in &policies {
        tell_of(done);
    }
    Ok(ExitCode::SUCCESS)
}

#[expect(clippy::cast_precision_loss, reason = "shares and megabytes for people")]
fn tell_of(done: &CacheOutcome) {
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    let served = (done.cache_read_bytes + done.cache_written_bytes) as f64;
    say!(
        "{:9} {:>11} {:>11} {:>9.1} {:>10.1}% {:>11.1} {:>11.1}",
        done.policy,
        text::seconds(done.foreground_seconds),
        text::seconds(done.total_seconds),
        megabytes(done.bytes) / done.foreground_seconds.max(1e-12),
        served / done.bytes.max(1) as f64 * 100.0,
        megabytes(done.filled_bytes),
        megabytes(done.evicted_bytes)
    );
}
