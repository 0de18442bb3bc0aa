//! `halocline simulate`: how long a trace takes on servers that need not exist (docs/SIMULATOR.md).

mod cached;
mod planned;
pub(crate) mod tiered;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use halocline_api::config::{format_bytes, parse_bytes};
use halocline_model::{admit, tier};
use halocline_os::counted::counted;
use halocline_sim::{
    FileLayout, Options, Outcome as Replayed, Pace, ServerSet, Sides, placements, replay,
};
use serde::Serialize;

use crate::command::plan::source;
use crate::command::traced::{TraceFile, refused, tell_if_partial};
use crate::command::{print_json, server_file};
use crate::failure::{Failure, Outcome};
use crate::print::say;
use crate::reading;
use crate::text;

use planned::{Comparison, PlannedLayouts, Replays};

/// Simulate how long the requests of a trace take on servers
#[derive(Debug, Args)]
pub(crate) struct SimulateArgs {
    /// The trace
    trace: PathBuf,
    /// The servers: a file with a `server` table for each
    #[arg(long)]
    servers: PathBuf,
    /// Stripe on servers that --width does not name
    #[arg(long, value_parser = bytes, default_value = "64K", allow_hyphen_values = true)]
    stripe: u64,
    /// Stripe on the servers of a profile; 0 leaves them out
    #[arg(long, value_name = "PROFILE=BYTES", value_parser = width)]
    width: Vec<(String, u64)>,
    /// Replay under the layouts of a plan, too, and compare them with the default one
    #[arg(long, conflicts_with = "width")]
    plan: Option<PathBuf>,
    /// What paths of the plan begin with, such as the mount point where its trace was recorded; files of a trace that
    /// another mount recorded are found by their paths below it
    #[arg(long, value_name = "PATH", requires = "plan")]
    below: Option<PathBuf>,
    /// Simulate an extent cache of so many bytes, on all servers but those of the slowest class
    #[arg(long, value_name = "BYTES", value_parser = bytes, conflicts_with_all = ["width", "plan", "stripe"], allow_hyphen_values = true)]
    cache_size: Option<u64>,
    /// Simulate a file tier whose SSD has so many bytes, on all servers but those of the slowest class
    #[arg(long, value_name = "BYTES", value_parser = bytes, conflicts_with_all = ["cache_size", "width", "plan", "stripe"], allow_hyphen_values = true)]
    tier_size: Option<u64>,
    /// Policies to compare: of admission to a cache, or of a tier; without it all that are in question
    #[arg(long, value_delimiter = ',', value_parser = PossibleValuesParser::new(policies()))]
    policy: Vec<String>,
    /// When requests are issued
    #[arg(long, default_value = "closed")]
    pace: PaceName,
    /// Seed of where files lie on simulated disks: the same number is the same replay. Without it 0; with --plan, where
    /// there are several files, the placements by which `plan` judges, of which the mean counts
    #[arg(long)]
    seed: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum PaceName {
    /// Each process goes on when its last request is done
    Closed,
    /// The same, after the time that it computed in between
    Think,
    /// At the times of the trace
    Open,
}

/// Names of all policies, those of the cache first.
fn policies() -> impl Iterator<Item = &'static str> {
    let tier = tier::POLICIES.iter().map(|policy| policy.name);
    admit::POLICIES.iter().map(|policy| policy.name).chain(tier)
}

/// The policies that were asked for, or all of `known`.
fn chosen(
    asked: &[String],
    known: impl Iterator<Item = &'static str>,
) -> Result<Vec<String>, Failure> {
    let known: Vec<_> = known.collect();
    if asked.is_empty() {
        return Ok(known.into_iter().map(str::to_owned).collect());
    }
    match asked.iter().find(|name| !known.contains(&name.as_str())) {
        Some(name) => Err(Failure::refused(format!(
            "--policy {name}: not of this kind; choose from {}",
            known.join(", ")
        ))),
        None => Ok(asked.to_vec()),
    }
}

fn bytes(text: &str) -> Result<u64, String> {
    parse_bytes(text).ok_or_else(|| "not bytes such as 64K, 8M or 2G".into())
}

fn width(text: &str) -> Result<(String, u64), String> {
    let (name, width) = text.split_once('=').ok_or("not PROFILE=BYTES such as ssd=128K")?;
    Ok((name.to_owned(), bytes(width)?))
}

/// What `simulate --json` prints.
#[derive(Debug, Serialize)]
struct Report {
    /// Stripe of each server, bytes.
    stripes: Vec<u64>,
    /// The share of the requests that the trace is known to contain, 0 to 1.
    trace_weight: f64,
    /// With a plan: the replay under the default layout. The other fields then describe the replay under the plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<Comparison>,
    #[serde(flatten)]
    replayed: Replayed,
}

/// Executes the command.
pub(crate) fn execute(args: &SimulateArgs) -> Outcome {
    let servers = server_file::read(&args.servers)?;
    let pace = match args.pace {
        PaceName::Closed => Pace::ClosedLoop { think: false },
        PaceName::Think => Pace::ClosedLoop { think: true },
        PaceName::Open => Pace::OpenLoop,
    };
    let options = Options { seed: args.seed.unwrap_or(Options::default().seed), pace };
    let sides = sides(args, &servers, pace)?;
    let is_repeated = [args.cache_size, args.tier_size].iter().any(Option::is_some);
    if is_repeated || args.plan.is_some() {
        reading::check_repeatable(&args.trace)?;
    }
    match (sides, args.cache_size, args.tier_size) {
        (Some(sides), Some(size), _) => {
            return cached::execute(args, size, (&servers, &sides), &options);
        }
        (Some(sides), _, Some(size)) => {
            return tiered::execute(args, size, (&servers, &sides), &options);
        }
        _ => {}
    }
    if !args.policy.is_empty() {
        return Err(Failure::refused("--policy is for --cache-size and --tier-size"));
    }
    let stripes = stripes(args, &servers)?;
    let layout = FileLayout::uniform(stripes.clone()).map_err(Failure::refused)?;
    let read = |path: &PathBuf| PlannedLayouts::read(path, args.below.as_deref(), &servers);
    let empty = || refused(&args.trace, "there are no requests in it");
    let planned = args.plan.as_ref().map(read).transpose()?;
    let (replayed, plan, completeness) = if let Some(planned) = planned {
        let seen = source::summarize(&args.trace, servers.len())?;
        tell_if_partial(&args.trace, &seen.completeness);
        if seen.workload.requests == 0 {
            return Err(empty());
        }
        let all = || placements(&servers, seen.files()).to_vec();
        let seeds = args.seed.map_or_else(all, |one| vec![one]);
        let by = Replays { trace: &args.trace, stripes: &stripes, seeds: &seeds, pace };
        let (replayed, compared) = planned.compare(&seen, by)?;
        (replayed, Some(compared), seen.completeness)
    } else {
        let file = TraceFile::new(&args.trace);
        let mut requests = file.requests()?;
        let replayed = replay(&mut requests, &servers, |_| &layout, &options);
        let replayed = replayed.map_err(|error| refused(&args.trace, &error))?;
        let trace = requests.end()?;
        file.tell_if_late(replayed.late);
        tell_if_partial(&args.trace, trace.completeness());
        if replayed.requests == 0 {
            return Err(empty());
        }
        (replayed, None, trace.completeness().clone())
    };
    let trace_weight = completeness.weight();
    let report = Report { stripes, trace_weight, plan, replayed };
    if args.json {
        return print_json(&report);
    }
    tell_of(&report);
    Ok(ExitCode::SUCCESS)
}

/// The sides of a cache or tier, if one is asked for. Refused is one that the servers cannot have.
fn sides(args: &SimulateArgs, servers: &ServerSet, pace: Pace) -> Result<Option<Sides>, Failure> {
    if args.tier_size.is_some() && pace == Pace::OpenLoop {
        return Err(Failure::refused(
            "--pace open is not for --tier-size: nobody would wait for a file that moves; choose closed or think",
        ));
    }
    let asked =
        [("--cache-size", args.cache_size, "cache"), ("--tier-size", args.tier_size, "tier")];
    let asked = asked.into_iter().find_map(|(option, size, what)| Some((option, size?, what)));
    let Some((option, size, what)) = asked else { return Ok(None) };
    Sides::new(servers, size, what).map(Some).map_err(|error| {
        let file = text::path(&args.servers);
        let remedy = format!("describe an SSD beside the disks, or choose a smaller {option}");
        Failure::refused(format!("{file}: {error}; {remedy}"))
    })
}

/// The stripe of each server.
fn stripes(args: &SimulateArgs, servers: &ServerSet) -> Result<Vec<u64>, Failure> {
    let widths: BTreeMap<&str, u64> =
        args.width.iter().map(|(name, width)| (name.as_str(), *width)).collect();
    let profiles = servers.servers();
    for name in widths.keys() {
        if profiles.iter().all(|server| server.profile_name != *name) {
            return Err(Failure::refused(format!("--width {name}: no server has this profile")));
        }
    }
    let of = |profile: &str| widths.get(profile).copied().unwrap_or(args.stripe);
    let stripes: Vec<u64> = profiles.iter().map(|server| of(&server.profile_name)).collect();
    if stripes.iter().all(|stripe| *stripe == 0) {
        return Err(Failure::refused(
            "the stripes of the servers are all 0: give --stripe, or --width of a profile, more than 0",
        ));
    }
    Ok(stripes)
}

fn tell_of(report: &Report) {
    let replayed = &report.replayed;
    if let Some(plan) = &report.plan {
        tell_of_plan(plan, replayed);
    }
    let requests = counted(usize::try_from(replayed.requests).unwrap_or(0), "request");
    say!("{requests} in {}: {:.1} MB/s", text::seconds(replayed.seconds), replayed.mb_per_s);
    for (what, op) in [("read", &replayed.read), ("written", &replayed.write)] {
        if op.requests > 0 {
            let [mean, longest] = [op.mean_seconds, op.longest_seconds].map(text::seconds);
            say!("{what}: {:.1} MB/s, {mean} a request, {longest} at most", op.mb_per_s);
        }
    }
    say!(
        "{:16}{:>10}{:>12}{:>14}{:>14}{:>8}",
        "server",
        if report.plan.is_some() { "" } else { "stripe" },
        "requests",
        "read",
        "written",
        "busy"
    );
    for (server, stripe) in replayed.servers.iter().zip(&report.stripes) {
        let busy =
            if replayed.seconds > 0.0 { server.busy_seconds / replayed.seconds } else { 0.0 };
        say!(
            "{:16}{:>10}{:>12}{:>14}{:>14}{:>7.0}%",
            text::line(&server.name),
            if report.plan.is_some() { String::new() } else { format_bytes(*stripe) },
            server.requests,
            text::bytes(server.read_bytes),
            text::bytes(server.written_bytes),
            busy * 100.0
        );
        if let Some(at) = server.full_at_seconds {
            say!("{:16}full after {}", "", text::seconds(at));
        }
    }
}

fn tell_of_plan(plan: &Comparison, replayed: &Replayed) {
    let gain = |share: f64| format!("{:+.1} %", share * 100.0);
    say!("{:15} {:>11} {:>11}   SIMULATED", "layout", "time", "MB/s");
    for (layout, done) in [("default", &plan.default), ("plan", replayed)] {
        say!("{layout:15} {:>11} {:>11.1}", text::seconds(done.seconds), done.mb_per_s);
    }
    if let (Some(rest), Some(seconds)) = (plan.default_rest, plan.other_default_seconds) {
        let (here, other) = (rest.told(), rest.other().told());
        say!("default: what does not fit lies {here}");
        say!("where it lies {other}, all takes {}", text::seconds(seconds));
        let over_other = plan.gain_over_other_default.unwrap_or(0.0);
        if seconds < plan.default.seconds {
            say!("that is faster, by all requests; the plan was compared with the other one,");
            say!("by a sample. Over this one it gains {}", gain(over_other));
        }
    }
    let (is, promised) = (gain(plan.gain_over_default), gain(plan.promised_gain));
    let in_placements = match plan.placements.as_slice() {
        [] | [_] => String::new(),
        several => {
            let gains = several.iter().map(|placement| placement.gain);
            let (least, most) = (f64::INFINITY, f64::NEG_INFINITY);
            let (least, most) =
                gains.fold((least, most), |(least, most), it| (it.min(least), it.max(most)));
            let count = counted(several.len(), "placement");
            format!(", {} to {} in {count} of the files on the disks", gain(least), gain(most))
        }
    };
    say!("gain of the plan: {is}{in_placements};");
    say!("the plan promised {promised} for its own trace");
    let (files, others) = (counted(plan.files, "file"), counted(plan.other_files, "file"));
    say!("the plan has {files} of the trace; the default layout is that of {others}");
    say!("under the plan:");
}
