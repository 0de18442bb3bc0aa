//! `halocline bench layout`: DEF, PA, PSA and ours side by side, predicted, simulated, and measured on emulated
//! servers; and the paper's figures as a page.
//! - [`setting`]: servers and requests; [`paper`]: those of the paper's figures;
//! - [`layout_results`]: a setting under each layout; [`measure`]: real I/O on emulated servers;
//! - [`page`]: the figures.

mod layout_results;
mod measure;
mod page;
mod paper;
mod setting;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use halocline_os::counted::counted;
use halocline_os::error::Error;
use halocline_plan::default_layout::Rest;
use halocline_plan::planner::Name;
use halocline_sim::workload::Class;
use halocline_trace::Op;
use plotters::prelude::*;
use serde::Serialize;

use super::plot;
use super::scratch_dir::{ScratchDir, clear_away_in};
use crate::bar_chart::{Bar, Bars, DrawResult};
use crate::command::print_json;
use crate::failure::{Failure, Outcome};
use crate::options::bytes_within;
use crate::output;
use crate::preflight;
use crate::print::{say, tell};
use crate::replaceable::ResultKind;
use crate::text;
use layout_results::{JudgedSetting, LayoutResult, judge};
use page::JudgedRow;
use setting::{Benchmark, Setting};

/// Compare the layouts of the paper and ours: predicted, simulated, and measured on emulated servers
///
/// Plans the stripes of one file on disks and SSDs (docs/PLANNING.md) and judges def, pa, psa and ours by the cost
/// model, by a replay on simulated servers, and by real I/O on files behind emulated devices. No real device is measured.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub(super) struct LayoutArgs {
    /// Benchmark whose requests are served
    #[arg(long, value_enum, required_unless_present = "figures", conflicts_with = "figures")]
    workload: Option<WorkloadName>,
    /// What the processes do; btio writes, then reads
    #[arg(long, value_enum, default_value = "write")]
    op: OpName,
    /// Processes, from 1 to 1000; btio needs a square number
    #[arg(long, default_value_t = 16, allow_hyphen_values = true, value_parser = clap::value_parser!(u32).range(1..=1000))]
    processes: u32,
    /// Bytes of a request of ior and hpio, from 1 to 64M
    #[arg(long, default_value = "512K", value_parser = request, allow_hyphen_values = true)]
    request_size: u64,
    /// Bytes of the file of ior and hpio, about, from 1M to 1T; at least a request of each process
    #[arg(long, default_value = "64M", value_parser = data, allow_hyphen_values = true)]
    data: u64,
    /// ior in random order
    #[arg(long)]
    random: bool,
    /// Disks, from 1 to 64
    #[arg(long, default_value_t = 4, allow_hyphen_values = true, value_parser = clap::value_parser!(u32).range(1..=64))]
    hdds: u32,
    /// SSDs, from 1 to 64
    #[arg(long, default_value_t = 4, allow_hyphen_values = true, value_parser = clap::value_parser!(u32).range(1..=64))]
    ssds: u32,
    /// Share of the file that the SSDs hold together, from 0 to 10
    #[arg(long, default_value = "0.25", value_parser = share, allow_hyphen_values = true)]
    ssd_share: f64,
    /// Where the files of emulated servers are made
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Predict and simulate only
    #[arg(long)]
    no_measure: bool,
    /// Write the paper's Figures 7 to 13 with the published percentages to this file instead, as Markdown
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "plot"])]
    figures: Option<PathBuf>,
    /// With --figures: a few dozen requests of each setting, for a test
    #[arg(long, requires = "figures", conflicts_with = "workload")]
    quick: bool,
    /// Draw the ratios: a file that ends in .svg
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum WorkloadName {
    /// A shared file, each process a block of it
    Ior,
    /// Regions of the processes in turn
    Hpio,
    /// Rows of tiles of 8 elements of 32 KiB
    Tile,
    /// Class W, collective
    Btio,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OpName {
    Read,
    Write,
}

/// Everything that one benchmark measured. The keys are an interface.
#[derive(Debug, Serialize)]
struct Results {
    benchmark: &'static str,
    version: &'static str,
    /// Always true: there is no other way yet.
    emulated: bool,
    cpus: usize,
    workload: String,
    processes: u32,
    requests: u64,
    bytes: u64,
    hdds: usize,
    ssds: usize,
    ssd_share: f64,
    chosen: &'static str,
    def_rest: Option<Rest>,
    def_of_paper_seconds: Option<f64>,
    layouts: std::collections::BTreeMap<&'static str, LayoutResult>,
}

fn request(text: &str) -> Result<u64, String> {
    bytes_within(text, 1, 64 << 20)
}

fn data(text: &str) -> Result<u64, String> {
    bytes_within(text, 1 << 20, 1 << 40)
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=10.0).contains(share));
    share.ok_or_else(|| "give a share such as 0.25, from 0 to 10".into())
}

impl LayoutArgs {
    /// The bytes of the file of ior or hpio if they are more than `--data`, because each process has at least one
    /// request.
    fn raised_data(&self, workload: WorkloadName) -> Option<u64> {
        let least = self.request_size * u64::from(self.processes);
        let has_data = matches!(workload, WorkloadName::Ior | WorkloadName::Hpio);
        (has_data && self.data < least).then_some(least)
    }

    fn setting(&self, workload: WorkloadName) -> Setting {
        let (size, data) = (self.request_size, self.data);
        let count = (data / size / u64::from(self.processes)).max(1);
        let benchmark = match workload {
            WorkloadName::Ior => Benchmark::Ior { data, size, random: self.random },
            WorkloadName::Hpio => Benchmark::Hpio { count, size },
            WorkloadName::Tile => Benchmark::Tile { rows: 8 },
            WorkloadName::Btio => Benchmark::Btio { class: Class::W },
        };
        Setting {
            benchmark,
            processes: self.processes,
            op: if self.op == OpName::Read { Op::Read } else { Op::Write },
            servers: (self.hdds as usize, self.ssds as usize),
            ssd_share: self.ssd_share,
        }
    }
}

/// Runs the comparison.
pub(super) fn execute(args: &LayoutArgs) -> Outcome {
    args.plot.as_deref().map_or(Ok(()), plot::check)?;
    if let Some(file) = &args.figures {
        preflight::report_file(file, ResultKind::Figures).map_err(Failure::refused)?;
    }
    let scratch = if args.no_measure {
        None
    } else {
        let dir = fs::canonicalize(&args.dir);
        let dir = dir.map_err(|error| Failure::unusable(&args.dir, &error))?;
        clear_away_in(&dir).map_err(Failure::refused)?;
        Some(ScratchDir::make_in(&dir).map_err(Failure::refused)?)
    };
    let dir = scratch.as_ref().map(ScratchDir::path);
    let ended = match (&args.figures, args.workload) {
        (Some(file), _) => figures(file, args.quick, dir),
        (None, Some(workload)) => compare(args, workload, dir),
        (None, None) => Err(Failure::refused("name a --workload")),
    };
    let removed = scratch.map_or(Ok(()), ScratchDir::remove);
    let ended = ended?;
    removed?;
    Ok(ended)
}

fn compare(args: &LayoutArgs, workload: WorkloadName, dir: Option<&Path>) -> Outcome {
    let setting = args.setting(workload);
    if let Some(bytes) = args.raised_data(workload) {
        tell!(
            "halocline: --data {} is less than a request of {} by each of {}: the file has {}",
            text::bytes(args.data),
            text::bytes(args.request_size),
            counted(args.processes, "process"),
            text::bytes(bytes)
        );
    }
    let judged = judge(&setting, dir)?;
    let name = workload.to_possible_value().map_or_else(String::new, |it| it.get_name().to_owned());
    if let Some(file) = &args.plot {
        plot::save(file, |out| draw(&name, &judged, out))?;
    }
    if args.json {
        return print_json(&Results {
            benchmark: "layout",
            version: env!("CARGO_PKG_VERSION"),
            emulated: true,
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            workload: name,
            processes: setting.processes,
            requests: judged.requests,
            bytes: judged.bytes,
            hdds: setting.servers.0,
            ssds: setting.servers.1,
            ssd_share: setting.ssd_share,
            chosen: judged.chosen.text(),
            def_rest: judged.def_rest,
            def_of_paper_seconds: judged.def_of_paper().simulated_seconds,
            layouts: judged.layouts.into_iter().map(|(name, it)| (name.text(), it)).collect(),
        });
    }
    print(&name, &setting, &judged);
    Ok(ExitCode::SUCCESS)
}

fn print(name: &str, setting: &Setting, judged: &JudgedSetting) {
    let (hdds, ssds) = setting.servers;
    say!(
        "EMULATED {} and {}, and an emulated network: no real hardware was measured",
        counted(hdds, "disk"),
        counted(ssds, "SSD")
    );
    say!(
        "{name}: {}, by {}; ratios are throughput over that of def",
        judged.amount(),
        counted(setting.processes, "process")
    );
    say!("measured is real I/O on files behind emulated devices, without a mount or an engine");
    say!("");
    say!("layout   stripes <disk, SSD>    on SSDs   predicted        simulated       measured");
    for (name, layout) in judged.rows() {
        let called = name.map_or("paper's", Name::text);
        if let Some(why) = &layout.unavailable {
            say!("{called:<7}  none: {why}");
            continue;
        }
        let width = |width: Option<&u64>| text::bytes(width.copied().unwrap_or(0));
        let both = |seconds: Option<f64>, ratio: Option<f64>| match (seconds, ratio) {
            (Some(seconds), Some(ratio)) => format!("{} {ratio:.2}x", text::seconds(seconds)),
            _ => "-".to_owned(),
        };
        let chosen = if name == Some(judged.chosen) { "  recommended" } else { "" };
        say!(
            "{called:<7}{:>11}, {:>9} {:>10} {:>16} {:>16} {:>16}{chosen}",
            width(layout.stripes.first()),
            width(layout.stripes.last()),
            text::bytes(layout.ssd_bytes.unwrap_or(0)),
            both(layout.predicted_seconds, layout.predicted_ratio),
            both(layout.simulated_seconds, layout.simulated_ratio),
            both(layout.measured_seconds, layout.measured_ratio)
        );
    }
    if let Some(rest) = judged.def_rest {
        say!("def: what the SSDs have no room for lies {}", rest.told());
    }
}

/// Ratios as bars.
fn draw(name: &str, judged: &JudgedSetting, out: &mut String) -> DrawResult {
    let mut rows = Vec::new();
    for (layout, result) in &judged.layouts {
        for (how, ratio, series) in [
            ("predicted", result.predicted_ratio, 5),
            ("simulated", result.simulated_ratio, 1),
            ("measured", result.measured_ratio, 2),
        ] {
            if let Some(value) = ratio {
                let (name, text) = (format!("{}, {how}", layout.text()), format!("{value:.2}x"));
                rows.push(Bar { name, value, text, series });
            }
        }
    }
    let bars = Bars { rows, most: None };
    let root = SVGBackend::with_string(out, (640, bars.height() + 52)).into_drawing_area();
    root.fill(&WHITE)?;
    let style = ("sans-serif", 16).into_font().color(&BLACK);
    let title = format!("bench layout {name}: throughput over that of def, EMULATED devices");
    root.draw(&Text::new(title, (12, 12), style))?;
    let (_, below) = root.split_vertically(40);
    bars.draw(&below)?;
    root.present()?;
    Ok(())
}

fn figures(file: &Path, quick: bool, dir: Option<&Path>) -> Outcome {
    let told = |told: &JudgedRow| {
        let ratio = |ratio: Option<f64>| {
            ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"))
        };
        let ratios = told
            .full
            .layouts
            .iter()
            .map(|(name, layout)| format!("{} {}", name.text(), ratio(layout.simulated_ratio)));
        let ratios: Vec<String> = ratios.collect();
        tell!("Figure {}, {}: simulated {}", told.row.figure, told.row.what, ratios.join(", "));
    };
    let all = page::all(quick, dir, told)?;
    let text = page::markdown(&all, quick);
    output::write(file, text).map_err(Error::at(file, "write the page"))?;
    say!("{} written to {}", counted(all.len(), "setting"), text::path(file));
    Ok(ExitCode::SUCCESS)
}
