//! `halocline bench cluster`: several nodes that cache one origin, each with a mount on this machine.
//!
//! - [`nodes`]: their mounts; the store of their tokens is a [`Server`];
//! - [`case`]: one pattern over one set of mounts, from mount to unmount;
//! - [`record`]: the results and what they are compared with; [`results_table`]: output for people;
//! - [`simulation`]: token traffic of thousands of nodes.

mod case;
mod nodes;
mod record;
mod results_table;
mod simulation;

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use halocline_api::config::Config;

use self::case::Case;
use self::record::{Key, Pattern, Results, Run, Setup};
use super::case_progress::CaseProgress;
use super::interrupted;
use super::report_args::ReportArgs;
use super::scratch::Scratch;
use super::store_server::Server;
use super::table;
use super::workload::Shape;
use crate::child::Signals;
use crate::failure::{Failure, Outcome};
use crate::mount_lookup;
use crate::options::{ConfigArgs, bytes_within};
use crate::preflight;
use crate::print::{self, say};

/// The devices of the whole system.
const DEVICES: &str = "8xhdd+4xssd";
/// The most bytes of a request, and of all data.
const REQUEST_BYTES_MAX: u64 = 1 << 30;
const DATA_BYTES_MAX: u64 = 64 << 40;
/// The most requests: their offsets are made before they are used.
const REQUESTS_MAX: u64 = 1 << 26;

/// Measure several nodes that cache one origin: mounts on this machine, with caches of their own and tokens
///
/// Ranks on all nodes write, then read: a file each, their parts of one shared file, or every n-th request
/// of it, of n ranks. Each run of a cluster is compared with mounts without one: private ones over an
/// origin directory each, a single one, and the origin alone. Every byte is verified on the origin. The store
/// of tokens is a server of Redis that the benchmark starts and ends, unless --cluster names one. All
/// mounts are in one process; the devices are emulated unless --real is given: all nodes share the
/// origin's disks, and divide the SSDs and the room on them among each other.
#[derive(Debug, Args)]
pub(super) struct ClusterBenchArgs {
    /// Numbers of nodes, each from 1 to 64; 1 is a single mount without a cluster
    #[arg(long, value_delimiter = ',', default_value = "1,2,4", value_name = "NUMBERS", allow_hyphen_values = true, value_parser = clap::value_parser!(u32).range(1..=64))]
    nodes: Vec<u32>,
    /// Only these patterns
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "file-per-process,segmented,strided"
    )]
    pattern: Vec<Pattern>,
    /// Ranks on all nodes together, from 1 to 1024, a multiple of each number of nodes [default: 16, with --quick 4]
    #[arg(short, long, value_name = "NUMBER", allow_hyphen_values = true, value_parser = clap::value_parser!(u32).range(1..=1024))]
    processes: Option<u32>,
    /// Bytes of a request, from 1 to 1G
    #[arg(short, long, default_value = "8K", value_name = "BYTES", value_parser = request, allow_hyphen_values = true)]
    request_size: u64,
    /// Bytes of all files together, from 1 to 64T [default: 256M, with --quick 16M]
    #[arg(long, value_name = "BYTES", value_parser = data, allow_hyphen_values = true)]
    data: Option<u64>,
    /// A server of Redis or Valkey that runs already, as for a mount
    #[arg(long, value_name = "URL")]
    cluster: Option<String>,
    /// Real devices as they are, instead of emulated ones
    #[arg(long)]
    real: bool,
    /// What makes the random orders and the data, any number below 2^64
    #[arg(long, default_value_t = 1, value_name = "NUMBER", allow_hyphen_values = true)]
    seed: u64,
    /// Where the scratch origins and caches are made; the system's temporary directory without it
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    report: ReportArgs,
    /// Carry the traffic of tokens to 10,000 nodes by a simulation, with the processor time of the server that the
    /// benchmark starts
    #[arg(long, conflicts_with = "cluster")]
    simulate: bool,
    /// Flip a byte, to see that it is found: the benchmark must fail
    #[arg(long, hide = true)]
    canary: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

fn request(text: &str) -> Result<u64, String> {
    bytes_within(text, 1, REQUEST_BYTES_MAX)
}

fn data(text: &str) -> Result<u64, String> {
    bytes_within(text, 1, DATA_BYTES_MAX)
}

/// Everything that was checked before the run.
struct Plan {
    config: Config,
    shape: Shape,
    data: u64,
    keys: Vec<Key>,
}

/// Measures and reports.
pub(super) fn execute(args: &ClusterBenchArgs) -> Outcome {
    let plan = plan(args)?;
    let mut signals = Signals::catch()?;
    // Before the engines start threads: only a process with a single thread can enter a user namespace.
    halocline_fuse::private_namespace().map_err(Failure::refused)?;
    let scratch = make_scratch(args, &plan)?;
    let store = Server::open(args.cluster.as_deref())?;
    let own_store = store.is_own();
    let measured = measure(args, &plan, (&scratch, &store), &mut signals);
    let simulated = match &measured {
        Ok(runs) if args.simulate => {
            let medians = record::medians(runs);
            let measured = (medians.as_slice(), &plan.shape, plan.data);
            simulation::simulate(&store, measured, args.report.quick).map(Some)
        }
        _ => Ok(None),
    };
    let ended = store.end();
    let removed = scratch.remove();
    let (runs, simulation) = (measured?, simulated?);
    ended?;
    removed?;
    let medians = record::medians(&runs);
    let comparisons = record::compare(&medians);
    let results = Results {
        benchmark: "cluster",
        version: env!("CARGO_PKG_VERSION"),
        emulated: plan.config.emulate.is_some(),
        devices: plan.config.emulate.as_ref().map(ToString::to_string),
        shared: shared(&plan.config),
        own_store,
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        processes: plan.shape.processes,
        request_size: plan.shape.request_size,
        data_bytes: plan.data,
        seed: args.seed,
        direct: plan.config.direct,
        runs,
        medians,
        comparisons,
        simulation,
    };
    let draw = |out: &mut String| results_table::draw(&results, out);
    args.report.report(&results, draw, || {
        if args.report.repeat > 1 {
            say!("medians of {}:", args.report.repeat);
            results.medians.iter().for_each(|run| print::lines(&results_table::row(run)));
        }
        say!("");
        print::lines(&results_table::comparisons(&results.comparisons));
        if let Some(simulation) = &results.simulation {
            print::lines(&simulation::told(simulation));
        }
    })
}

fn plan(args: &ClusterBenchArgs) -> Result<Plan, Failure> {
    let mut given = args.config.clone();
    if given.take("size").is_some() {
        return Err(Failure::refused(
            "--size: the caches have room for all data, divided among the nodes",
        ));
    }
    given.check_effect(false).map_err(Failure::refused)?;
    let direct = given.take("direct");
    if !args.real {
        given.default_to("emulate", DEVICES);
    }
    let mut config = given.load().map_err(Failure::refused)?;
    config.direct = direct.as_deref() != Some("false");
    if args.real && config.emulate.is_some() {
        return Err(Failure::refused(
            "--real: devices are emulated by --emulate or the configuration file",
        ));
    }
    preflight::process_and_device().map_err(Failure::refused)?;
    args.report.check()?;
    let (processes, data) = if args.report.quick { (4, 16 << 20) } else { (16, 256 << 20) };
    let processes = args.processes.unwrap_or(processes);
    let shape = Shape { processes, request_size: args.request_size, seed: args.seed };
    let data = whole_requests(&shape, args.data.unwrap_or(data))?;
    let ssds = config.emulate.as_ref().map(|emulation| emulation.cache.count);
    for nodes in &args.nodes {
        if !processes.is_multiple_of(*nodes) {
            return Err(Failure::refused(format!(
                "--processes: {processes} ranks cannot be divided among {nodes} nodes; give a multiple"
            )));
        }
        if ssds.is_some_and(|ssds| !ssds.is_multiple_of(*nodes)) {
            let devices = config.emulate.as_ref().map(ToString::to_string).unwrap_or_default();
            return Err(Failure::refused(format!(
                "--nodes: the SSDs of {devices} cannot be divided among {nodes} nodes; give more with --emulate"
            )));
        }
    }
    Ok(Plan { config, shape, data, keys: keys(&args.pattern, &args.nodes) })
}

/// At most `data` bytes in whole requests, the same number for each process.
fn whole_requests(shape: &Shape, data: u64) -> Result<u64, Failure> {
    let round = shape.request_size * u64::from(shape.processes);
    let whole = data / round * round;
    if whole == 0 || data / shape.request_size > REQUESTS_MAX {
        return Err(Failure::refused(format!(
            "--data: {data} bytes are not at least one request of {} bytes for each of {} ranks and at most \
             {REQUESTS_MAX} for all; give at least {round} bytes",
            shape.request_size, shape.processes,
        )));
    }
    Ok(whole)
}

/// All cases, each after those that it is compared with.
fn keys(patterns: &[Pattern], nodes: &[u32]) -> Vec<Key> {
    let mut keys = Vec::new();
    for &pattern in patterns {
        let alone = |setup| Key { pattern, setup, nodes: 1 };
        if pattern != Pattern::FilePerProcess {
            keys.push(alone(Setup::Origin));
        }
        if nodes.contains(&1) && pattern != Pattern::Strided {
            keys.push(alone(Setup::Single));
        }
        for &nodes in nodes.iter().filter(|nodes| **nodes > 1) {
            if pattern != Pattern::Strided {
                keys.push(Key { pattern, setup: Setup::Private, nodes });
            }
            keys.push(Key { pattern, setup: Setup::Cluster, nodes });
        }
    }
    keys
}

fn make_scratch(args: &ClusterBenchArgs, plan: &Plan) -> Result<Scratch, Failure> {
    let dir: &Path = &args.dir.clone().unwrap_or_else(std::env::temp_dir);
    mount_lookup::check_answers(dir).map_err(Failure::refused)?;
    let dir = fs::canonicalize(dir).map_err(|error| Failure::unusable(dir, &error))?;
    Scratch::new(&dir, None, plan.data, plan.data).map_err(Failure::refused)
}

/// What the nodes of a run have in common, and what each has a share of.
fn shared(config: &Config) -> String {
    let devices = config.emulate.as_ref().map(ToString::to_string);
    let what = table::devices(devices.as_deref());
    match &config.emulate {
        Some(emulation) => format!(
            "{what}; all nodes share {}, and divide {} among each other",
            emulation.origin, emulation.cache
        ),
        None => format!("{what}; all nodes share one file system"),
    }
}

/// Runs all cases and prints their rows.
fn measure(
    args: &ClusterBenchArgs,
    plan: &Plan,
    (scratch, store): (&Scratch, &Server),
    signals: &mut Signals,
) -> Result<Vec<Run>, Failure> {
    let tell = |text: &str| args.report.tell(text);
    tell(&results_table::heading(&shared(&plan.config)));
    let mut runs: Vec<Run> = Vec::new();
    let total = args.report.repeat as usize * plan.keys.len();
    for repetition in 0..args.report.repeat {
        for &key in &plan.keys {
            let Plan { config, shape, data, .. } = plan;
            let canary = args.canary;
            let case = Case { key, repetition, shape: *shape, data: *data, config, canary };
            let name = format!("{} of {total}: {}", runs.len() + 1, case.name());
            let mut watch = CaseProgress::new(signals, case.transfers(), name);
            let run = case.run(scratch, store, &mut watch)?;
            drop(watch);
            tell(&results_table::row(&run));
            runs.push(run);
        }
    }
    signals.stop_signal().map_or(Ok(runs), |signal| Err(interrupted(signal)))
}
