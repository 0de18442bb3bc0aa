//! `halocline bench admission`: the admission policies on random workloads, simulated, and some on the engine itself.

mod engine;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use clap::Args;
use halocline_model::admit;
use halocline_os::counted::counted;
use halocline_sim::study::Case;
use plotters::prelude::*;
use serde::Serialize;

use self::engine::OnEngine;
use super::plot::{self, DrawResult, colour};
use super::results_file::ResultsFile;
use super::timed_engine::Outcome as Served;
use crate::command::print_json;
use crate::failure::{Failure, Outcome};
use crate::print::say;

/// What all other policies are compared with: the origin alone.
const NEVER: &str = "never";
/// The policy that is shown first, and whose worst cases are reported.
const OURS: &str = "adaptive";
/// The number of worst cases that are reported.
const WORST: usize = 5;
/// The shares of the cases at which ratios are reported.
const QUANTILES: [(&str, f64); 7] = [
    ("least", 0.0),
    ("p1", 0.01),
    ("p5", 0.05),
    ("p10", 0.1),
    ("median", 0.5),
    ("p90", 0.9),
    ("most", 1.0),
];
/// The ratios that `adaptive` should reach: to the origin alone, and to the best policy for the case.
const OF_NEVER: f64 = 0.97;
const OF_BEST: f64 = 0.9;

/// Compare the admission policies on random workloads, by simulation
///
/// 1 to 32 processes that read, write or do both, in requests of 4 KiB to 4 MiB, sequentially, in strides or at random, one
/// to three times over a file, in front of one disk or eight, with a cache of 10 to 110 % of the file. What counts is the time
/// until everything is on the origin.
#[derive(Debug, Args)]
pub(super) struct AdmissionArgs {
    /// Workloads, from 1 to 1000000
    #[arg(long, default_value_t = 1000, allow_hyphen_values = true, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    workloads: u64,
    /// Which random workloads
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only these workloads of the seed, by number
    #[arg(long, value_delimiter = ',', value_name = "NUMBERS", conflicts_with = "workloads", allow_hyphen_values = true, value_parser = clap::value_parser!(u64).range(0..1_000_000))]
    only: Vec<u64>,
    /// Run the first so many on the engine itself too, on emulated devices in simulated time; from 0 to 1000
    #[arg(long, default_value_t = 0, value_name = "NUMBER", allow_hyphen_values = true, value_parser = clap::value_parser!(u64).range(0..=1000))]
    engine: u64,
    /// Keep what the engine did with each workload in this file, and take what is there from it: a run that was ended goes on
    #[arg(long, value_name = "FILE", requires = "engine")]
    results: Option<PathBuf>,
    /// Draw the distribution of the ratios: a file that ends in .svg
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// What `bench admission --json` prints.
#[derive(Debug, Serialize)]
struct Results {
    seed: u64,
    policies: Vec<Judged>,
    cases: Vec<Judgement>,
    /// The cases that also ran on the engine itself.
    engine: Vec<OnEngine>,
}

/// One policy over all cases.
#[derive(Debug, Serialize)]
struct Judged {
    policy: &'static str,
    /// Time of `never` divided by this policy's time.
    of_never: BTreeMap<&'static str, f64>,
    /// Time of the best of the other policies (of all policies, for those other than `adaptive`) divided by this
    /// policy's time.
    of_best: BTreeMap<&'static str, f64>,
    below_never: usize,
    below_best: usize,
}

/// One case.
#[derive(Debug, Serialize)]
struct Judgement {
    number: u64,
    #[serde(flatten)]
    case: Case,
    seconds: BTreeMap<&'static str, f64>,
    /// What `adaptive` did with it.
    adaptive: Served,
}

impl Judgement {
    fn seconds(&self, policy: &str) -> f64 {
        self.seconds.get(policy).copied().unwrap_or(f64::INFINITY)
    }

    fn of_never(&self, policy: &str) -> f64 {
        self.seconds(NEVER) / self.seconds(policy)
    }

    fn of_best(&self, policy: &str) -> f64 {
        let others = self.seconds.iter().filter(|(name, _)| **name != OURS);
        others.map(|(_, seconds)| *seconds).fold(f64::INFINITY, f64::min) / self.seconds(policy)
    }
}

/// Ratios, how many are too low, and the bound below which they count as too low.
type RatioSummary<'a> = (&'a BTreeMap<&'static str, f64>, usize, f64);

/// Runs the comparison.
pub(super) fn execute(args: &AdmissionArgs) -> Outcome {
    args.plot.as_deref().map_or(Ok(()), plot::check)?;
    let kept = args.results.as_deref().map(|file| ResultsFile::open(file, "bench admission"));
    let kept = kept.transpose()?;
    let policies: Vec<&'static str> = admit::COMPARED.to_vec();
    let mut cases = judge_all(args, &policies)?;
    cases.sort_by_key(|case| case.number);
    let judged = policies.iter().map(|policy| judged(policy, &cases)).collect();
    let on_engine = &cases[..cases.len().min(usize_of(args.engine))];
    let engine = engine::run_all((args.seed, on_engine), &policies, kept)?;
    let results = Results { seed: args.seed, policies: judged, cases, engine };
    if let Some(file) = &args.plot {
        plot::save(file, |out| draw(&results, out))?;
    }
    if args.json {
        return print_json(&results);
    }
    tell_of(&results);
    Ok(ExitCode::SUCCESS)
}

/// Each case under each policy, on all processors.
fn judge_all(args: &AdmissionArgs, policies: &[&'static str]) -> Result<Vec<Judgement>, Failure> {
    let numbers: Vec<u64> =
        if args.only.is_empty() { (0..args.workloads).collect() } else { args.only.clone() };
    let next = AtomicUsize::new(0);
    let work = || -> Result<Vec<Judgement>, String> {
        let mut done = Vec::new();
        while let Some(&number) = numbers.get(next.fetch_add(1, Ordering::Relaxed)) {
            let case = Case::random(args.seed, number);
            let outcomes = case.judge(policies)?;
            let times = outcomes.iter().map(|outcome| outcome.total_seconds);
            let seconds = policies.iter().copied().zip(times).collect();
            let ours = outcomes.iter().find(|outcome| outcome.policy == OURS);
            let adaptive = Served::from(ours.expect("it is compared"));
            done.push(Judgement { number, case, seconds, adaptive });
        }
        Ok(done)
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut all = Vec::new();
        for thread in threads {
            all.extend(thread.join().expect("it answers").map_err(Failure::failed)?);
        }
        Ok(all)
    })
}

fn judged(policy: &'static str, cases: &[Judgement]) -> Judged {
    let of_never: Vec<f64> = cases.iter().map(|case| case.of_never(policy)).collect();
    let of_best: Vec<f64> = cases.iter().map(|case| case.of_best(policy)).collect();
    let below = |ratios: &[f64], least: f64| ratios.iter().filter(|ratio| **ratio < least).count();
    let (below_never, below_best) = (below(&of_never, OF_NEVER), below(&of_best, OF_BEST));
    Judged {
        policy,
        of_never: quantiles(of_never),
        of_best: quantiles(of_best),
        below_never,
        below_best,
    }
}

fn quantiles(mut ratios: Vec<f64>) -> BTreeMap<&'static str, f64> {
    ratios.sort_by(f64::total_cmp);
    QUANTILES.iter().map(|(name, share)| (*name, ratios[place(ratios.len(), *share)])).collect()
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a place among at most a million"
)]
fn place(len: usize, share: f64) -> usize {
    ((len - 1) as f64 * share) as usize
}

fn tell_of(results: &Results) {
    let count = counted(results.cases.len(), "random workload");
    say!("SIMULATED: {count}; time until all is on the origin, as a ratio");
    for (what, of) in [
        (
            "of the origin alone (never)",
            Judged::shown_never as for<'a> fn(&'a Judged) -> RatioSummary<'a>,
        ),
        ("of the best policy for the workload", Judged::shown_best),
    ] {
        say!("{what:36}{}   below", columns(str::to_owned));
        for judged in &results.policies {
            let (ratios, below, least) = of(judged);
            let ratios = columns(|name| format!("{:.3}", ratios[name]));
            say!("  {:34}{ratios}{below:>8} < {least}", judged.policy);
        }
    }
    let mut cases: Vec<&Judgement> = results.cases.iter().collect();
    cases.sort_by(|a, b| a.of_best(OURS).total_cmp(&b.of_best(OURS)));
    say!("where {OURS} is worst:");
    for case in cases.iter().take(WORST) {
        say!("  {:.3} of the best: {}", case.of_best(OURS), text_of(case));
    }
    engine::tell_of(&results.engine);
}

fn usize_of(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

/// The text that `of` returns for each quantile, side by side.
fn columns(of: impl Fn(&str) -> String) -> String {
    QUANTILES.iter().fold(String::new(), |mut out, (name, _)| {
        let _ = write!(out, "{:>9}", of(name));
        out
    })
}

impl Judged {
    fn shown_never(&self) -> RatioSummary<'_> {
        (&self.of_never, self.below_never, OF_NEVER)
    }

    fn shown_best(&self) -> RatioSummary<'_> {
        (&self.of_best, self.below_best, OF_BEST)
    }
}

fn text_of(judgement: &Judgement) -> String {
    let Case { workload, disks, cache_percent, think_us, .. } = &judgement.case;
    format!(
        "number {}: {}, {}, {} KiB, {} % read, {}, {}, a cache of {cache_percent} %, {think_us} us between",
        judgement.number,
        counted(usize_of(workload.processes.into()), "process"),
        format!("{:?}", workload.order).to_lowercase(),
        workload.request >> 10,
        workload.read_percent,
        counted(usize_of(workload.passes), "pass"),
        counted(usize_of((*disks).into()), "disk"),
    )
}

/// The cases from the worst to the best of each policy, by the ratio to the best policy for each.
fn draw(results: &Results, out: &mut String) -> DrawResult {
    let root = SVGBackend::with_string(out, (720, 420)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption("SIMULATED: random workloads by policy", ("sans-serif", 16))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..100.0, (0.01..10.0).log_scale())?;
    chart
        .configure_mesh()
        .max_light_lines(0)
        .x_desc("% of the workloads")
        .y_desc("speed, as a ratio to the best policy")
        .draw()?;
    for (number, judged) in results.policies.iter().enumerate() {
        let mut ratios: Vec<f64> =
            results.cases.iter().map(|case| case.of_best(judged.policy)).collect();
        ratios.sort_by(f64::total_cmp);
        let points: Vec<_> = (0..=100)
            .map(|percent| {
                let ratio = ratios[place(ratios.len(), f64::from(percent) / 100.0)];
                (f64::from(percent), ratio.clamp(0.01, 10.0))
            })
            .collect();
        let style = colour(number).stroke_width(2);
        chart
            .draw_series([PathElement::new(points, style)])?
            .label(judged.policy)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .border_style(BLACK)
        .background_style(WHITE)
        .draw()?;
    root.present()?;
    Ok(())
}
