//! `halocline bench tier`: what the file tier costs and gains, on this machine.
//!
//! Files and metadata are measured in a mount and in the bare directory beside it, in turn, so that both see the
//! machine in the same state; mergerfs takes part if it is installed. Policies are replayed over the workload of the
//! paper's section 7.5 with their production code. The paper's figures of an HDD against SSD and HDD are measured with
//! emulated devices.

mod figures;
mod files;
mod metadata;
mod moves;
mod plot;
mod policies;
mod random;
mod setup;
mod supervise;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::command::print_json;
use crate::failure::{Failure, Outcome};
use crate::options::bytes_within;
use crate::print::say;

/// What identifies a process that measures; comes last.
const INSIDE: &str = "--inside";

/// Measure the file tier against the bare directory, mergerfs, cp and other policies
#[derive(Debug, Args)]
pub(super) struct TierArgs {
    /// Where scratch directories are made; the SSD for figures that mean something
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Only these parts
    #[arg(long, value_enum, value_delimiter = ',')]
    part: Vec<Part>,
    /// Bytes of a file that is read, written and moved, from 1 to 64T; the part files needs 4M
    #[arg(long, default_value = "1G", value_parser = size, allow_hyphen_values = true)]
    size: u64,
    /// Small files of the metadata part, from 1 to 10000000
    #[arg(long, default_value_t = 100_000, allow_hyphen_values = true, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    files: u64,
    /// Small files of the moves part, 4 KiB each, from 1 to 10000000
    #[arg(long, default_value_t = 3000, allow_hyphen_values = true, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    small_files: u64,
    /// Times each figure is taken, from 1 to 10000; the median is shown
    #[arg(long, default_value_t = 3, allow_hyphen_values = true, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repetitions: u32,
    /// Seconds that each figure on emulated devices is taken over, from 0.001 to 86400
    #[arg(long, default_value = "1.5", value_parser = seconds, allow_hyphen_values = true)]
    seconds: Duration,
    /// Draw the ratios and the policies' disk traffic: a file that ends in .svg
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
    /// This is the process that measures, below this directory
    #[arg(long, hide = true, value_name = "ROOT")]
    inside: Option<PathBuf>,
}

impl TierArgs {
    fn wants(&self, part: Part) -> bool {
        self.part.is_empty() || self.part.contains(&part)
    }
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Reads and writes of files on the SSD, in the page cache
    Files,
    /// create, stat, open, unlink of small files
    Metadata,
    /// Promotion and demotion against cp
    Moves,
    /// Disk traffic of each policy over the paper's workload
    Policies,
    /// The paper's Fig. 9, 12, 14 and Table 2 on an emulated HDD and SSD
    Figures,
}

/// One figure, measured in two or three places.
#[derive(Debug, Serialize)]
struct Row {
    part: &'static str,
    what: String,
    unit: &'static str,
    /// Median in the mount.
    tier: f64,
    /// Median of what it is compared with.
    baseline: f64,
    baseline_name: &'static str,
    /// `tier / baseline`.
    ratio: f64,
    /// `mergerfs / baseline`, if mergerfs took part.
    mergerfs_ratio: Option<f64>,
}

impl Row {
    fn new(
        part: &'static str,
        what: String,
        unit: &'static str,
        tier: f64,
        baseline: (&'static str, f64),
        mergerfs: Option<f64>,
    ) -> Self {
        Self {
            part,
            what,
            unit,
            tier,
            baseline: baseline.1,
            baseline_name: baseline.0,
            ratio: tier / baseline.1,
            mergerfs_ratio: mergerfs.map(|figure| figure / baseline.1),
        }
    }

    /// The row of the figures that were measured in each of [`setup::Setup::places`].
    fn of_places(
        part: &'static str,
        what: String,
        unit: &'static str,
        figures: impl IntoIterator<Item = Vec<f64>>,
    ) -> Self {
        let mut medians = figures.into_iter().map(median);
        let (tier, bare) = (medians.next().unwrap_or(0.0), medians.next().unwrap_or(0.0));
        Self::new(part, what, unit, tier, ("bare directory", bare), medians.next())
    }
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
struct Results {
    version: &'static str,
    command: String,
    cpus: usize,
    rows: Vec<Row>,
    policies: Vec<policies::Line>,
    figures: Option<figures::Figures>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let within = |seconds: &f64| (0.001..=86_400.0).contains(seconds);
    let span = text.parse().ok().filter(within).map(Duration::from_secs_f64);
    span.ok_or_else(|| "give a number of seconds such as 1.5, from 0.001 to 86400".into())
}

fn size(text: &str) -> Result<u64, String> {
    bytes_within(text, 1, 64 << 40)
}

/// Runs the measurement.
pub(super) fn execute(args: &TierArgs) -> Outcome {
    args.plot.as_deref().map_or(Ok(()), super::plot::check)?;
    if args.wants(Part::Files) && args.size < files::BYTES_MIN {
        return Err(Failure::refused(format!(
            "--size {}: the files part needs {} bytes at least; raise it, or name other parts with \
             --part",
            args.size,
            files::BYTES_MIN
        )));
    }
    let on_mounts = [Part::Files, Part::Metadata, Part::Moves, Part::Figures];
    let setup = args.inside.as_deref().map(setup::Setup::find).transpose()?;
    if setup.is_none() && on_mounts.into_iter().any(|part| args.wants(part)) {
        return supervise::supervise(&args.dir);
    }
    measure(args, setup.as_ref())
}

/// Measures in the place that was set up, and reports.
fn measure(args: &TierArgs, setup: Option<&setup::Setup>) -> Outcome {
    let (mut rows, mut figures) = (Vec::new(), None);
    if let Some(setup) = setup {
        let (size, repetitions) = (args.size, args.repetitions);
        if args.wants(Part::Files) {
            rows.extend(files::measure(setup, size, repetitions)?);
        }
        if args.wants(Part::Metadata) {
            rows.extend(metadata::measure(setup, args.files, repetitions)?);
        }
        if args.wants(Part::Moves) {
            rows.extend(moves::measure(setup, size, repetitions)?);
            rows.extend(moves::small::measure(setup, args.small_files, repetitions)?);
        }
        if args.wants(Part::Figures) {
            figures = Some(figures::measure(setup, size, repetitions, args.seconds)?);
        }
    }
    let policies = if args.wants(Part::Policies) { policies::measure() } else { Vec::new() };
    let results = Results {
        version: env!("CARGO_PKG_VERSION"),
        command: std::env::args().take_while(|arg| arg != INSIDE).collect::<Vec<_>>().join(" "),
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        rows,
        policies,
        figures,
    };
    if let Some(file) = &args.plot {
        super::plot::save(file, |out| plot::draw(&results, out))?;
    }
    if args.json {
        return print_json(&results);
    }
    tell(&results);
    Ok(std::process::ExitCode::SUCCESS)
}

fn tell(results: &Results) {
    if !results.rows.is_empty() {
        say!("{:<34} {:>12} {:>12} {:>7} {:>9}", "", "tier", "baseline", "ratio", "mergerfs");
    }
    for row in &results.rows {
        let mergerfs = row.mergerfs_ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"));
        say!(
            "{:<34} {:>12.1} {:>12.1} {:>7.2} {:>9}  {} (baseline: {})",
            row.what,
            row.tier,
            row.baseline,
            row.ratio,
            mergerfs,
            row.unit,
            row.baseline_name
        );
    }
    policies::tell(&results.policies);
    if let Some(figures) = &results.figures {
        figures::tell(figures);
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// The median of some figures.
fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}
