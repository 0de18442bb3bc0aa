//! `halocline bench ior`: the papers' IOR patterns, with the cache and without it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use halocline_api::config::{Config, format_bytes};
use halocline_model::admit;

use super::case::{Canary, Case, Phases, Setup};
use super::case_progress::CaseProgress;
use super::interrupted;
use super::plot;
use super::record::{self, Results, Run};
use super::scratch::Scratch;
use super::table;
use super::workload::{Pattern, Shape, Workload};
use crate::child::Signals;
use crate::command::write_json;
use crate::failure::{Failure, Outcome};
use crate::mount_lookup;
use crate::options::{ConfigArgs, bytes_within};
use crate::preflight;
use crate::print::{self, say};
use crate::replaceable::ResultKind;
use crate::text;

/// The most bytes of a request, and of all data.
const BYTES_MAX: u64 = 64 << 40;
/// The largest cache, as a percentage of the data.
const SHARE_MAX: f64 = 1000.0;
/// The most processes of one benchmark: each is a real one.
const PROCESSES_MAX: u32 = 1024;

/// Run the IOR patterns of the papers through real mounts, with the cache and without it
///
/// Several processes write a shared file, each its own part, and a second run reads it. Every
/// policy and cache size is compared with the same mount over the same origin without a cache;
/// every byte is verified. Nothing of your own is touched: origin and cache are made in --dir and
/// removed. All options of a mount can be given; --policy also takes a list.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct IorArgs {
    /// Order of the offsets: random, sequential, or mix:PERCENT (ten programs with a file each, so
    /// many percent of them sequential, one after the other); a list of them
    #[arg(long, value_delimiter = ',', default_value = "random", value_name = "PATTERN")]
    pattern: Vec<Pattern>,
    /// The programs of a mix run all at the same time
    #[arg(long)]
    concurrent: bool,
    /// Processes that share a file, from 1 to 1024 [default: 16, with --quick 4]
    #[arg(short, long, value_name = "NUMBER", allow_hyphen_values = true, value_parser = clap::value_parser!(u32).range(1..=i64::from(PROCESSES_MAX)))]
    processes: Option<u32>,
    /// Bytes of a request, from 1 to 64T, or a list [default: 8K,64K,512K, with --quick 8K]
    #[arg(short, long, value_delimiter = ',', value_name = "BYTES", value_parser = bytes, allow_hyphen_values = true)]
    request_size: Vec<u64>,
    /// Bytes of all files together, from 1 to 64T [default: 256M, with --quick 16M]
    #[arg(long, value_name = "BYTES", value_parser = bytes, allow_hyphen_values = true)]
    data: Option<u64>,
    /// Room for data on the cache, in bytes (1 to 64T) or as a share of the data (above 0% to 1000%);
    /// a list
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "30%,100%",
        value_name = "SIZE",
        allow_hyphen_values = true
    )]
    cache_size: Vec<Limit>,
    /// Only write
    #[arg(long, conflicts_with = "read")]
    write: bool,
    /// Only read data that was there before: a first run, then a second one
    #[arg(long)]
    read: bool,
    /// Do not flush between the write and the second run
    #[arg(long, conflicts_with = "read")]
    no_flush: bool,
    /// What makes the random orders and the data, any number below 2^64
    #[arg(long, default_value_t = 1, value_name = "NUMBER", allow_hyphen_values = true)]
    seed: u64,
    /// Measure everything so many times, from 1 to 10000
    #[arg(long, default_value_t = 1, value_name = "TIMES", allow_hyphen_values = true, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repeat: u32,
    /// Where the scratch origin and cache are made; the system's temporary directory without it
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Where the scratch cache is made, when it is another device
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// Write the results as JSON, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the results, too: an SVG file
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// A small run, to see that all works
    #[arg(long)]
    quick: bool,
    /// Flip a byte, to see that it is found: the benchmark must fail
    #[arg(long, hide = true, value_name = "WHERE")]
    canary: Option<Canary>,
    #[command(flatten)]
    config: ConfigArgs,
}

/// A cache's limit.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Limit {
    Bytes(u64),
    Percent(f64),
}

impl std::str::FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let within = |share: &f64| *share > 0.0 && *share <= SHARE_MAX;
        let limit = match text.strip_suffix('%') {
            Some(share) => share.trim().parse().ok().filter(within).map(Self::Percent),
            None => bytes(text).ok().map(Self::Bytes),
        };
        limit.ok_or_else(|| {
            format!(
                "{text:?} is neither a size such as 64M, at most {}, nor a share such as 30%, above 0% and at most {SHARE_MAX}%",
                format_bytes(BYTES_MAX)
            )
        })
    }
}

impl std::fmt::Display for Limit {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bytes(bytes) => out.write_str(&text::bytes(*bytes)),
            Self::Percent(share) => write!(out, "{share} %"),
        }
    }
}

impl Limit {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a share of the data needs no exact bytes"
    )]
    fn bytes(self, data: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(share) => (data as f64 * share / 100.0) as u64,
        }
    }
}

fn bytes(text: &str) -> Result<u64, String> {
    bytes_within(text, 1, BYTES_MAX)
}

/// Everything that was checked before the run.
struct Plan {
    config: Config,
    policies: Vec<String>,
    workloads: Vec<Workload>,
    phases: Phases,
    json: Option<PathBuf>,
    plot: Option<PathBuf>,
}

/// Measures and reports.
pub(crate) fn execute(args: &IorArgs) -> Outcome {
    let plan = plan(args)?;
    let mut signals = Signals::catch()?;
    // Before the engine starts threads: only a process with a single thread can enter a user namespace.
    halocline_fuse::private_namespace().map_err(Failure::refused)?;
    let scratch = make_scratch(args, &plan)?;
    let measured = measure(args, &plan, &scratch, &mut signals);
    let removed = scratch.remove();
    let runs = measured?;
    removed?;
    let medians = record::medians(&runs);
    if args.repeat > 1 {
        say!("medians of {}:", args.repeat);
        for run in &medians {
            print::lines(&table::row(run));
        }
    }
    let results = Results {
        benchmark: "ior",
        version: env!("CARGO_PKG_VERSION"),
        emulated: plan.config.emulate.is_some(),
        devices: plan.config.emulate.as_ref().map(ToString::to_string),
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        processes: plan.workloads[0].shape.processes,
        seed: args.seed,
        direct: plan.config.direct,
        concurrent: args.concurrent,
        data_bytes: runs.iter().map(|run| run.data_bytes).max().unwrap_or(0),
        runs,
        medians,
    };
    write(&plan, &results)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the files that were asked for.
fn write(plan: &Plan, results: &Results) -> Result<(), Failure> {
    if let Some(file) = &plan.json {
        write_json(file, "write the results", results)?;
    }
    if let Some(file) = &plan.plot {
        plot::save(file, |out| plot::draw(results, out))?;
    }
    Ok(())
}

fn plan(args: &IorArgs) -> Result<Plan, Failure> {
    let mut given = args.config.clone();
    let policies = given.take("policy");
    if given.take("size").is_some() {
        return Err(Failure::refused("--size: give the cache's limits with --cache-size"));
    }
    given.check_effect(false).map_err(Failure::refused)?;
    let direct = given.take("direct");
    let mut config = given.load().map_err(Failure::refused)?;
    config.direct = direct.as_deref() != Some("false");
    let policies = policies.map_or_else(
        || vec![config.policy.clone()],
        |list| list.split(',').map(|name| name.trim().to_owned()).collect(),
    );
    if let Some(unknown) = policies.iter().find(|name| !is_policy(name)) {
        let known: Vec<_> = admit::POLICIES.iter().map(|row| row.name).collect();
        return Err(Failure::refused(format!(
            "--policy: there is no policy {unknown:?}; give some of {}",
            known.join(",")
        )));
    }
    preflight::process_and_device().map_err(Failure::refused)?;
    let phases = match (args.write, args.read) {
        (true, _) => Phases::Write,
        (_, true) => Phases::Read,
        _ => Phases::WriteRead,
    };
    args.plot.as_deref().map_or(Ok(()), plot::check)?;
    let json = args
        .json
        .as_deref()
        .map(|file| preflight::report_file(file, ResultKind::Report))
        .transpose();
    Ok(Plan {
        config,
        policies,
        workloads: workloads(args).map_err(Failure::refused)?,
        phases,
        json: json.map_err(Failure::refused)?,
        plot: args.plot.clone(),
    })
}

fn is_policy(name: &str) -> bool {
    admit::POLICIES.iter().any(|row| row.name == name)
}

fn workloads(args: &IorArgs) -> Result<Vec<Workload>, String> {
    let (processes, data, sizes): (_, u64, &[u64]) = if args.quick {
        (4, 16 << 20, &[8 << 10])
    } else {
        (16, 256 << 20, &[8 << 10, 64 << 10, 512 << 10])
    };
    let sizes = if args.request_size.is_empty() { sizes } else { &args.request_size };
    let processes = args.processes.unwrap_or(processes);
    let data = args.data.unwrap_or(data);
    let mut workloads = Vec::new();
    for &pattern in &args.pattern {
        for &request_size in sizes {
            let shape = Shape { processes, request_size, seed: args.seed };
            workloads.push(Workload::new(pattern, shape, data)?);
        }
    }
    Ok(workloads)
}

fn make_scratch(args: &IorArgs, plan: &Plan) -> Result<Scratch, Failure> {
    let data = plan.workloads.iter().map(Workload::bytes).max().unwrap_or(0);
    let cache = args.cache_size.iter().map(|limit| limit.bytes(data)).max().unwrap_or(0);
    let absolute = |dir: &Path| {
        mount_lookup::check_answers(dir).map_err(Failure::refused)?;
        fs::canonicalize(dir).map_err(|error| Failure::unusable(dir, &error))
    };
    let dir = absolute(&args.dir.clone().unwrap_or_else(std::env::temp_dir))?;
    let cache_dir = args.cache_dir.as_deref().map(absolute).transpose()?;
    // What is written to the cache at one time is at most the data.
    Scratch::new(&dir, cache_dir.as_deref(), data, cache.min(data)).map_err(Failure::refused)
}

/// Runs all cases and prints their rows.
fn measure(
    args: &IorArgs,
    plan: &Plan,
    scratch: &Scratch,
    signals: &mut Signals,
) -> Result<Vec<Run>, Failure> {
    let setups = |workload: &Workload| {
        let bare = plan.config.emulate.is_none().then_some(Setup::Bare);
        let cached = plan.policies.iter().flat_map(|policy| {
            args.cache_size.iter().map(|limit| Setup::Cached {
                policy: policy.clone(),
                limit: limit.to_string(),
                bytes: limit.bytes(workload.bytes()),
            })
        });
        [Setup::Origin].into_iter().chain(bare).chain(cached).collect::<Vec<_>>()
    };
    let devices = plan.config.emulate.as_ref().map(ToString::to_string);
    print::lines(&table::heading(devices.as_deref()));
    let mut runs: Vec<Run> = Vec::new();
    let each: Vec<_> = plan.workloads.iter().map(|workload| (workload, setups(workload))).collect();
    let total = args.repeat as usize * each.iter().map(|(_, setups)| setups.len()).sum::<usize>();
    for repetition in 0..args.repeat {
        for (workload, setups) in &each {
            let first = runs.len();
            for setup in setups {
                let case = Case {
                    workload,
                    setup,
                    phases: plan.phases,
                    flush: !args.no_flush,
                    concurrent: args.concurrent,
                    config: &plan.config,
                    canary: args.canary,
                    repetition,
                };
                let name = format!("{} of {total}: {}", runs.len() + 1, describe(&case));
                let mut watch = CaseProgress::new(signals, case.transfers(), name);
                let mut run = case.run(scratch, &mut watch)?;
                run.compare(&runs[first..]);
                print::lines(&table::row(&run));
                runs.push(run);
            }
        }
    }
    signals.stop_signal().map_or(Ok(runs), |signal| Err(interrupted(signal)))
}

fn describe(case: &Case<'_>) -> String {
    let key = case.key();
    let policy = key.policy.as_deref().unwrap_or("no mount");
    format!("{} {} {policy}", key.pattern, text::bytes(key.request_size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_bytes_or_shares() {
        assert_eq!("64M".parse::<Limit>().unwrap().bytes(1), 64 << 20);
        assert_eq!("30%".parse::<Limit>().unwrap().bytes(1000), 300);
        for bad in ["0", "0%", "-3%", "x", "%"] {
            assert!(bad.parse::<Limit>().unwrap_err().contains("30%"), "{bad}");
        }
    }
}
