//! `halocline bench metadata`: operations on names of a file tier that several nodes share, in their store.
//!
//! - [`load`]: clients and what they do; [`own_benchmark`]: what the server's own benchmark reaches;
//! - [`row`]: what is measured of one phase; [`simulation`]: the same carried to thousands of nodes;
//! - [`mounts`]: the same through mounts of several nodes;
//! - [`record`]: the results; [`text`]: output for people.

mod load;
mod mounts;
mod own_benchmark;
mod record;
mod row;
mod simulation;
mod text;

use std::path::PathBuf;

use clap::Args;
use halocline_cluster::names::namespace::Namespace;
use halocline_cluster::names::redis::RedisNames;
use rustix::io::Errno;

use self::load::{Clients, Phase};
use self::own_benchmark::OwnBenchmark;
use self::record::{Large, Results, Setup};
use self::row::Row;
use super::interrupted;
use super::report_args::ReportArgs;
use super::store_server::{ProcessorSplit, Server};
use crate::child::Signals;
use crate::failure::{Failure, Outcome};
use crate::print::{self, say};

/// Names of the first entry of a directory of many, if --entries names none.
const QUICK_FILES: u32 = 200;
/// Files of each client.
const FILES: u32 = 5000;

/// Measure operations on the names of a shared file tier: create, stat, list, rename, move, unlink
///
/// Without --store, through mounts that the benchmark makes on this machine: so many nodes of one tier with a server of Redis
/// between them, each used by one thread; then as many threads on a tier of one node, and in the shared directory itself.
///
/// With --store, clients are threads of one process, each with names and connections of its own. They work in own directories, then
/// all in one, and ask the store of names itself, without a mount: a server of Redis that the
/// benchmark starts and ends, or the one at the URL. Beside each number of creates stands what the server's own
/// benchmark (redis-benchmark) reaches with the same script and as many connections. A server that the benchmark starts is
/// bound to a processor in one half of them, and the load to the other half. With --masters, the same on clusters that the
/// benchmark starts, each with so many masters.
#[derive(Debug, Args)]
pub(super) struct MetadataArgs {
    /// The store itself: a server that is started for it, or one of Redis or Valkey that runs already
    #[arg(long, value_name = "URL", num_args = 0..=1, default_missing_value = "")]
    store: Option<String>,
    /// Numbers of nodes, each from 1 to 16, that are measured through mounts
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8", value_name = "NUMBERS", allow_hyphen_values = true, value_parser = clap::value_parser!(u32).range(1..=16), conflicts_with = "store")]
    nodes: Vec<u32>,
    /// Where scratch directories and mounts are made; the SSD for figures that mean something
    #[arg(long, default_value = ".", conflicts_with = "store")]
    dir: PathBuf,
    /// Numbers of clients, each from 1 to 64
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8", value_name = "NUMBERS", allow_hyphen_values = true, value_parser = clap::value_parser!(u32).range(1..=64))]
    clients: Vec<u32>,
    /// Files of each client, from 10 to 1000000 [default: 5000, with --quick 200]
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    files: Option<u32>,
    /// Also one directory of so many entries, made by most clients or mounts at once and listed by one, from 1000 to 100000000
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true, value_parser = clap::value_parser!(u64).range(1000..=100_000_000))]
    entries: Option<u64>,
    /// Numbers of masters of Redis Clusters that the benchmark starts, each from 1 to 16, instead of a single server
    #[arg(long, value_delimiter = ',', value_name = "NUMBERS", allow_hyphen_values = true, value_parser = clap::value_parser!(u32).range(1..=16), conflicts_with_all = ["simulate", "entries", "nodes"])]
    masters: Vec<u32>,
    /// Split directories that have so many entries into buckets, from 2 to 100000000 [default: 65536 on a cluster, none on a
    /// single server]
    #[arg(long, value_name = "ENTRIES", allow_hyphen_values = true, value_parser = clap::value_parser!(u64).range(2..=100_000_000))]
    split: Option<u64>,
    /// Carry the times of creates to 10,000 nodes by a simulation, which first reproduces what was measured: needs the
    /// server that the benchmark starts, and a single client among the numbers of clients
    #[arg(long)]
    simulate: bool,
    /// Microseconds of a round trip of the network that is simulated, from 0 to 1000000
    #[arg(long, default_value_t = 50, value_name = "MICROSECONDS", allow_hyphen_values = true, value_parser = clap::value_parser!(u32).range(0..=1_000_000), requires = "simulate")]
    network_us: u32,
    #[command(flatten)]
    report: ReportArgs,
}

/// Measures and reports.
pub(super) fn execute(args: &MetadataArgs) -> Outcome {
    let Some(store) = &args.store else {
        if args.simulate || !args.masters.is_empty() || args.split.is_some() {
            return Err(Failure::refused(
                "--masters, --split and --simulate ask the store itself: give --store",
            ));
        }
        return mounts::execute(args);
    };
    args.report.check()?;
    if args.simulate && !(store.is_empty() && args.clients.contains(&1)) {
        return Err(Failure::refused(
            "--simulate: it takes the processor time of the server from this system, and waking times from a client that \
             is alone; give --store without a URL, and 1 among --clients",
        ));
    }
    if !(store.is_empty() || args.masters.is_empty()) {
        return Err(Failure::refused(
            "--masters: the benchmark starts them; give --store without a URL",
        ));
    }
    let mut signals = Signals::catch()?;
    let cpus = cpus();
    let own_store = store.is_empty();
    let split = if own_store { ProcessorSplit::find()? } else { None };
    let (rows, large, why_no_native) = if args.masters.is_empty() {
        let server = Server::open(Some(store.as_str()).filter(|url| !url.is_empty()))?;
        let heading = text::heading(server.is_own(), split.as_ref());
        on(server, split.as_ref(), |server| measure(args, server, &heading, &mut signals))?
    } else {
        (on_masters(args, split.as_ref(), &mut signals)?, None, Some("it measures one server"))
    };
    let rows = row::medians(rows);
    let processors = simulation::processors(split.as_ref(), cpus);
    let simulate = || simulation::simulate(&rows, processors, args.network_us);
    let simulation = args.simulate.then(simulate).transpose()?;
    let results =
        Results { setup: setup(args, own_store, cpus), why_no_native, rows, large, simulation };
    let draw = |out: &mut String| text::draw(&results, out);
    args.report.report(&results, draw, || {
        say!("");
        print::lines(&text::summary(&results));
    })
}

fn files(args: &MetadataArgs) -> u32 {
    args.files.unwrap_or(if args.report.quick { QUICK_FILES } else { FILES })
}

fn setup(args: &MetadataArgs, own_store: bool, cpus: usize) -> Setup {
    Setup {
        benchmark: "metadata",
        version: env!("CARGO_PKG_VERSION"),
        own_store,
        cpus,
        files: files(args),
        split: args.split,
        repeat: args.report.repeat,
    }
}

/// Processors of this machine that the benchmark may use.
fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

type Measured = (Vec<Row>, Option<Large>, Option<&'static str>);

fn measure(
    args: &MetadataArgs,
    server: &Server,
    heading: &str,
    signals: &mut Signals,
) -> Result<Measured, Failure> {
    let tell = |text: &str| args.report.tell(text);
    let native = own_benchmark::find(server);
    tell(heading);
    if let Err(why) = native {
        tell(&format!("without the server's own benchmark: {why}"));
    }
    let mut rows = Vec::new();
    for _ in 0..args.report.repeat {
        for &count in &args.clients {
            case(args, (server, count), native.as_ref().ok(), signals, &mut |row| {
                tell(&text::row(&row));
                rows.push(row);
            })?;
        }
    }
    let large = match args.entries {
        Some(entries) => {
            let names = formatted((server, args.split))?;
            let count = args.clients.iter().copied().max().unwrap_or(1);
            let clients = Clients::new((server, args.split), count, files(args))?;
            let mut go_on =
                || signals.stop_signal().map_or(Ok(()), |signal| Err(interrupted(signal)));
            let large = clients.large(entries, row::own_creates(&rows, count), &mut go_on);
            names.erase().map_err(load::failed)?;
            Some(large?)
        }
        None => None,
    };
    Ok((rows, large, native.err()))
}

/// Measures on a server, bound apart from this load where there are processors for both; it then ends if the benchmark
/// started it.
fn on<T>(
    server: Server,
    split: Option<&ProcessorSplit>,
    measure: impl FnOnce(&Server) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let bound = split.map(|split| split.bind(&server)).transpose();
    let measured = bound.and_then(|_bound| measure(&server));
    let ended = server.end();
    let measured = measured?;
    ended?;
    Ok(measured)
}

/// The same on clusters of so many masters each, in turn.
fn on_masters(
    args: &MetadataArgs,
    split: Option<&ProcessorSplit>,
    signals: &mut Signals,
) -> Result<Vec<Row>, Failure> {
    let tell = |text: &str| args.report.tell(text);
    tell(&text::heading_of_masters(split));
    let mut rows = Vec::new();
    for _ in 0..args.report.repeat {
        for &masters in &args.masters {
            on(Server::start_masters(masters)?, split, |server| {
                for &count in &args.clients {
                    case(args, (server, count), None, signals, &mut |row| {
                        let row = Row { masters: Some(masters), ..row };
                        tell(&text::row(&row));
                        rows.push(row);
                    })?;
                }
                Ok(())
            })?;
        }
    }
    Ok(rows)
}

/// All phases with one number of clients, on names of their own.
fn case(
    args: &MetadataArgs,
    (server, count): (&Server, u32),
    native: Option<&OwnBenchmark>,
    signals: &mut Signals,
    measured: &mut dyn FnMut(Row),
) -> Result<(), Failure> {
    let names = formatted((server, args.split))?;
    let done = phases(args, (server, count), native, signals, measured);
    names.erase().map_err(load::failed)?;
    done
}

fn phases(
    args: &MetadataArgs,
    (server, count): (&Server, u32),
    native: Option<&OwnBenchmark>,
    signals: &mut Signals,
    measured: &mut dyn FnMut(Row),
) -> Result<(), Failure> {
    let clients = Clients::new((server, args.split), count, files(args))?;
    for phase in Phase::ALL {
        if let Some(signal) = signals.stop_signal() {
            return Err(interrupted(signal));
        }
        let native = native.filter(|_| phase.creates());
        let rate = || native.map(|native| clients.native(native)).transpose();
        let (before, row) = (rate()?, clients.run(phase, server)?);
        measured(match before.zip(rate()?) {
            Some(around) => row.beside(around),
            None => row,
        });
    }
    Ok(())
}

/// The store's names of this benchmark, without any.
fn formatted(server: (&Server, Option<u64>)) -> Result<RedisNames, Failure> {
    let names = load::connect(server)?;
    let root = load::directory();
    Namespace::format(&names, &root).map_err(|error| match error.errno() {
        Errno::EXIST => Failure::refused(
            "another benchmark uses the store, or one was killed and left its keys; if none runs, remove those that \
             `redis-cli --scan --pattern 'halocline:{bench-metadata.*'` lists",
        ),
        _ => load::failed(error),
    })?;
    Ok(names)
}
