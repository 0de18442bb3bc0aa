//! `halocline bench advise`: what `advise` recommends for workloads of different kinds, and how each use performs when
//! the engines serve it on emulated devices.

mod cases;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use halocline_api::config::{EmulatedDevice, Emulation, format_bytes};
use halocline_model::{admit, tier};
use halocline_os::counted::counted;
use halocline_os::error::Error;
use halocline_plan::gain_range::gain;
use halocline_sim::servers::Profile;
use halocline_sim::{FileLayout, ServerSet};
use halocline_trace::{Kind, Process, Request, Source, Writer};
use serde::{Deserialize, Serialize};

use super::results_file::{ResultsFile, left};
use super::timed_engine::{self, Placed, Setup};
use super::timed_tier;
use crate::command::advise::decide::{Seconds, Use};
use crate::command::advise::{self, Judged};
use crate::command::print_json;
use crate::failure::{Failure, Outcome};
use crate::print::{self, say, tell};
use cases::Case;

/// An advised use that is slower than the fastest by at most this share counts as equally good: `advise` calls such
/// uses ties.
const AS_GOOD: f64 = 0.01;
/// How many times smaller the workloads of `--quick` are.
const QUICK: u64 = 16;

/// Compare what `advise` says with what the engines do on emulated devices, for workloads of different kinds
///
/// Each workload is a trace that `advise` reads. Then the extent engine serves it on the disks alone, on striped files as
/// planned, and as a cache, and the file tier as a tier: the engines themselves on EMULATED devices in simulated time.
#[derive(Debug, Args)]
pub(super) struct AdviseArgs {
    /// Only these workloads, by their names
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    workload: Vec<String>,
    /// A sixteenth of each workload: for a test
    #[arg(long)]
    quick: bool,
    /// Keep the result of each workload in this file, and take those that are there from it: a run that was ended goes on
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
    /// Answer with a table in Markdown, as docs/PLANNING.md has it
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// What `bench advise --json` prints.
#[derive(Debug, Serialize)]
struct Results {
    emulated: bool,
    quick: bool,
    agree: usize,
    workloads: Vec<Row>,
}

/// One workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Row {
    name: String,
    what: String,
    requests: usize,
    bytes: u64,
    ssd_bytes: u64,
    /// Seconds of each use in the simulation of `advise`.
    simulated_seconds: BTreeMap<String, Option<f64>>,
    /// Seconds of each use on emulated devices.
    emulated_seconds: BTreeMap<String, Option<f64>>,
    /// What `advise` recommends.
    advised: String,
    /// The share of its variants in which it recommends the same.
    stays: f64,
    /// The use that gains the most on emulated devices.
    fastest: String,
    /// How much more throughput the fastest use has than the advised one, as a share.
    lost: f64,
    agrees: bool,
}

/// A result that is kept.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    quick: bool,
    row: Row,
}

/// Runs the comparison.
pub(super) fn execute(args: &AdviseArgs) -> Outcome {
    let mut cases = cases::all(if args.quick { QUICK } else { 1 }).map_err(Failure::failed)?;
    if let Some(name) = args.workload.iter().find(|name| cases.iter().all(|it| it.name != **name)) {
        let names = cases.iter().map(|case| case.name).collect::<Vec<_>>().join(", ");
        return Err(Failure::refused(format!("--workload {name}: choose from {names}")));
    }
    if !args.workload.is_empty() {
        cases.retain(|case| args.workload.iter().any(|name| name == case.name));
    }
    let kept = args.results.as_deref().map(|file| ResultsFile::open(file, "bench advise"));
    let workloads = all_compared(&cases, args.quick, kept.transpose()?)?;
    let agree = workloads.iter().filter(|row| row.agrees).count();
    let results = Results { emulated: true, quick: args.quick, agree, workloads };
    if args.json {
        return print_json(&results);
    }
    if args.markdown {
        print::lines(&table(&results));
    } else {
        tell_of(&results);
    }
    Ok(ExitCode::SUCCESS)
}

/// All of them, one after the other, because each takes much memory. What was kept is not done again.
fn all_compared(
    cases: &[Case],
    quick: bool,
    mut kept: Option<ResultsFile<Kept>>,
) -> Result<Vec<Row>, Failure> {
    let found = kept.iter().flat_map(ResultsFile::results).filter(|kept| kept.quick == quick);
    let found: Vec<Row> = found.map(|kept| kept.row.clone()).collect();
    let find =
        |case: &Case| found.iter().find(|row| row.name == case.name && row.what == case.what);
    let requests = |case: &Case| case.requests.len();
    let to_do = cases.iter().filter(|case| find(case).is_none()).map(requests).sum::<usize>();
    let (begun, mut done) = (Instant::now(), 0);
    let mut rows = Vec::new();
    for (number, case) in (1..).zip(cases) {
        let what = format!("{number} of {}: {}", cases.len(), case.name);
        if let Some(row) = find(case) {
            tell!("{what}: as kept");
            rows.push(row.clone());
            continue;
        }
        tell!("{what}: {}{}", case.what, left(begun.elapsed().as_secs_f64(), done, to_do));
        let row = compared(case)?;
        if let Some(kept) = &mut kept {
            kept.add(Kept { quick, row: row.clone() })?;
        }
        done += requests(case);
        rows.push(row);
    }
    Ok(rows)
}

fn compared(case: &Case) -> Result<Row, Failure> {
    let scratch = timed_engine::scratch_dir()
        .map_err(|error| Error::at(Path::new("/tmp"), "make a directory in")(error))?;
    let trace = scratch.path().join("trace.hct");
    record(&case.requests, &trace)?;
    let set = case.servers().map_err(Failure::failed)?;
    let judged = advise::judge(&trace, &set, None)?;
    let simulated = judged.outcomes.each_ref().map(|outcome| outcome.seconds);
    let emulated = emulated(case, &set, &judged)?;
    let advised = judged.advice.answer;
    let (fastest, least) = fastest(&emulated);
    let seconds = emulated[advised as usize].unwrap_or(f64::INFINITY);
    let named = |seconds: Seconds| {
        let words = Use::ALL.into_iter().map(|what| what.word().to_owned());
        words.zip(seconds).collect()
    };
    let lost = gain(seconds, least);
    Ok(Row {
        name: case.name.to_owned(),
        what: case.what.clone(),
        requests: case.requests.len(),
        bytes: case.requests.iter().map(|request| request.length).sum(),
        ssd_bytes: case.ssd_bytes,
        simulated_seconds: named(simulated),
        emulated_seconds: named(emulated),
        advised: advised.word().to_owned(),
        stays: judged.advice.stays,
        fastest: fastest.word().to_owned(),
        lost,
        agrees: lost <= AS_GOOD,
    })
}

/// The fastest use, or `Use::None` if no use gains anything.
fn fastest(seconds: &Seconds) -> (Use, f64) {
    let known = Use::ALL.into_iter().zip(seconds).filter_map(|(what, s)| Some((what, (*s)?)));
    let none = seconds[0].unwrap_or(f64::INFINITY);
    let (what, least) = known
        .min_by(|(_, one), (_, other)| one.total_cmp(other))
        .expect("no use is always possible");
    if gain(none, least) > AS_GOOD { (what, least) } else { (Use::None, none) }
}

/// The trace that `advise` reads.
fn record(requests: &[Request], path: &Path) -> Result<(), Failure> {
    let file = File::create(path).map_err(Error::at(path, "make"))?;
    let put = || -> Result<(), halocline_trace::Error> {
        let source = Source { name: "bench advise".into(), ..Source::new(Kind::Generated) };
        let mut writer = Writer::new(BufWriter::new(file), &source)?;
        let most = |of: fn(&Request) -> u32| requests.iter().map(of).max().unwrap_or(0);
        for file in 0..=most(|request| request.file) {
            writer.file(file.to_string().as_bytes())?;
        }
        for number in 0..=most(|request| request.process) {
            writer.process(&Process { number: number.into(), node: Vec::new() })?;
        }
        requests.iter().try_for_each(|request| writer.push(request))?;
        writer.finish().map(drop)
    };
    put().map_err(|error| Failure::failed(error.to_string()))
}

/// Seconds of each use on the engines, until all bytes are written back and moves have ended.
fn emulated(case: &Case, set: &ServerSet, judged: &Judged<'_>) -> Result<Seconds, Failure> {
    let none_planned = HashMap::new();
    let placed = |files, default| on_engine(case, set, Some((files, default)));
    let none = placed(&none_planned, judged.case.slow_alone())?;
    let stripes = judged.case.stripes().ok().map(|(files, default)| placed(files, default));
    let cache = on_engine(case, set, None)?;
    let tier = timed_tier::run(&case.requests, set, case.ssd_bytes, tier::POLICIES[0].name)?;
    Ok([Some(none), stripes.transpose()?, Some(cache), Some(tier.total_seconds)])
}

/// Seconds with files on all servers in these layouts, or with a cache on the SSDs.
fn on_engine(
    case: &Case,
    set: &ServerSet,
    layouts: Option<(&HashMap<u32, FileLayout>, &FileLayout)>,
) -> Result<f64, Failure> {
    let all = case.disks + case.ssds;
    let emulation = match layouts {
        Some(_) => format!("{all}xhdd+ssd"),
        None => format!("{}xhdd+{}xssd", case.disks, case.ssds),
    };
    let emulation = Emulation::parse(&emulation, |_| None).map_err(Failure::failed)?;
    let devices = set.servers().iter().map(|server| match server.profile {
        Profile::Emulated(device) => device,
        Profile::Measured(_) => unreachable!("all servers of a workload are emulated"),
    });
    let devices: Vec<EmulatedDevice> = devices.collect();
    let setup = Setup {
        devices: &emulation,
        capacity: case.ssd_bytes,
        policy: if layouts.is_some() { "never" } else { admit::POLICIES[0].name },
        background: layouts.is_none(),
        think: true,
        placed: layouts.map(|(files, default)| Placed { devices: &devices, files, default }),
    };
    Ok(timed_engine::run(&case.requests, &setup)?.total_seconds)
}

/// Seconds on the engines, with those of the simulation in brackets; the fastest is bold.
fn table(results: &Results) -> String {
    let mut out = String::from("| workload | ");
    out += &Use::ALL.map(Use::word).join(" | ");
    out += " | advised | the same in variants | lost |\n| --- | ---: | ---: | ---: | ---: | --- | ---: | ---: |\n";
    for row in &results.workloads {
        let cells = Use::ALL.map(|what| cell(row, what));
        let cells = Use::ALL.into_iter().zip(cells).map(|(what, cell)| {
            if what.word() == row.fastest { format!("**{cell}**") } else { cell }
        });
        let cells = cells.collect::<Vec<_>>().join(" | ");
        let (stays, lost) = (row.stays * 100.0, row.lost * 100.0);
        let what = format!("{}: {}", row.name, row.what);
        let _ =
            writeln!(out, "| {what} | {cells} | {} | {stays:.0} % | {lost:.1} % |", row.advised);
    }
    let (agree, all) = (results.agree, results.workloads.len());
    let _ = writeln!(out, "\nAdvice that is right: {agree} of {all}.");
    out
}

/// The time that the engines take for a use, with that of the simulation in brackets.
fn cell(row: &Row, what: Use) -> String {
    let of = |seconds: &BTreeMap<String, Option<f64>>| {
        let seconds = seconds.get(what.word()).copied().flatten();
        seconds.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.2}"))
    };
    format!("{} ({})", of(&row.emulated_seconds), of(&row.simulated_seconds))
}

fn tell_of(results: &Results) {
    say!("THE ENGINES THEMSELVES, on EMULATED devices in simulated time: seconds until all");
    say!("bytes are where they belong, and in brackets what the simulation of advise says");
    let heads = Use::ALL.map(|what| format!("{:>18}", what.word())).concat();
    say!("{:18}{heads}", "");
    for row in &results.workloads {
        let cells = Use::ALL.map(|what| format!("{:>18}", cell(row, what)));
        say!("{:18}{}", row.name, cells.concat());
        let agrees =
            if row.agrees { "right".to_owned() } else { format!("{:.1} % lost", row.lost * 100.0) };
        say!(
            "    {}, {}; advised {}, the same in {:.0} % of the variants; fastest {}: {agrees}",
            counted(row.requests, "request"),
            format_bytes(row.bytes),
            row.advised,
            row.stays * 100.0,
            row.fastest,
        );
    }
    say!("advice that is right: {} of {}", results.agree, results.workloads.len());
}
