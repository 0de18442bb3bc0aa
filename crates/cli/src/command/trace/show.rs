//! `halocline trace show`: what is in a trace.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use halocline_os::counted::{counted, counted_with};
use halocline_trace::Reader;
use halocline_trace::analysis::{Mix, Pattern, StreamCounts};
use halocline_trace::report::{FileReport, Report, SizeReport, report};
use serde::Serialize;

use crate::command::bench::plot;
use crate::command::curve::{self, Curve, Curves, Sizes};
use crate::command::print_json;
use crate::failure::{Failure, Outcome};
use crate::print::{self, say, tell};
use crate::reading;
use crate::text;

/// Files that a person is shown, the ones with the most bytes.
const FILES_SHOWN: usize = 10;
/// Phases and regions of a file that a person is shown.
const PARTS_SHOWN: usize = 8;
/// Columns of a terminal that lines are made for.
const COLUMNS: usize = 80;
/// Columns of the names in front of values.
const NAMES: usize = 12;

/// Show what is in a trace: patterns, sizes, concurrency, phases and regions
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The trace
    file: PathBuf,
    /// Show what caches of these sizes would have missed: LRU, S3-FIFO, ours, the optimum. `64M,1G`, or `auto`
    #[arg(long, value_name = "SIZES", value_parser = curve::sizes)]
    cache_sizes: Option<Sizes>,
    /// Draw that as an SVG, too
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// JSON for scripts
    #[arg(long)]
    json: bool,
}

/// Shows it.
pub(crate) fn execute(args: &ShowArgs) -> Outcome {
    args.plot.as_deref().map_or(Ok(()), plot::check)?;
    let name = text::path(&args.file);
    let file = reading::open(&args.file, "reading")?;
    let failed = |error: halocline_trace::Error| Failure::failed(format!("{name}: {error}"));
    let refused = |error| Failure::refused(format!("{name}: {error}"));
    let mut reader = Reader::new(file).map_err(refused)?;
    let sizes = args.cache_sizes.clone().or_else(|| args.plot.as_ref().map(|_| Sizes::Footprint));
    let mut curves = sizes.as_ref().map(|_| Curves::new());
    let report = report(&mut reader, |request| {
        if let Some(curves) = &mut curves {
            curves.push(request);
        }
    });
    let report = report.map_err(failed)?;
    if let Some(plot) = args.plot.as_ref().filter(|_| report.requests == 0) {
        return Err(Failure::refused(format!(
            "{name}: there are no requests in it; nothing is drawn in {}",
            text::path(plot)
        )));
    }
    let curve = curves.zip(sizes).map(|(curves, sizes)| curves.finish(&sizes)).transpose();
    let curve = curve.map_err(|why| Failure::failed(format!("{name}: {why}")))?;
    if let (Some(file), Some(curve)) = (&args.plot, &curve) {
        plot::save(file, |out| curve.draw(out))?;
    }
    if args.json {
        return print_json(&WithCurve { report: &report, curve: curve.as_ref() });
    }
    print(&report);
    if let Some(curve) = curve {
        say!("");
        print::lines(&curve.table());
        if let Some(file) = &args.plot {
            say!("drawn in {}", text::path(file));
        }
    }
    if report.completeness.partial {
        tell!("{name}: partial: {}", missing(&report));
    }
    Ok(ExitCode::SUCCESS)
}

/// What scripts get.
#[derive(Serialize)]
struct WithCurve<'a> {
    #[serde(flatten)]
    report: &'a Report,
    /// Null where it was not asked for.
    curve: Option<&'a Curve>,
}

fn missing(report: &Report) -> String {
    let mut why = Vec::new();
    let completeness = &report.completeness;
    why.extend(completeness.cut.clone());
    if completeness.lost > 0 {
        let more = counted_with(completeness.lost, "more request", ("is", "are"));
        why.push(format!("{more} known to be missing"));
    }
    if completeness.incomplete_source {
        why.push("its source was not whole".to_owned());
    }
    format!("{}; its weight is {:.2}", why.join(", "), completeness.weight)
}

fn print(report: &Report) {
    let long = seconds(report.end_ns.saturating_sub(report.begin_ns));
    let source = if report.source.name.is_empty() {
        report.source.kind.of().to_owned()
    } else {
        format!("{}, {}", report.source.kind.of(), report.source.name.shown())
    };
    field("source", &source);
    field("requests", &format!("{} in {}", report.requests, text::seconds(long)));
    field("reads", &side(report.mix.reads, report.mix.read_bytes));
    field("writes", &side(report.mix.writes, report.mix.write_bytes));
    let processes = report.processes;
    let processes = match report.processes_per_node_max {
        Some(most) => format!("{processes} (p), {most} on one node at most (c)"),
        None => format!("{processes} (p)"),
    };
    field("processes", &processes);
    let at_once = match (report.in_flight_mean, report.in_flight_max) {
        (Some(mean), Some(max)) => format!("{mean:.1} requests on average, {max} at most"),
        _ => "not known: the trace has no durations".to_owned(),
    };
    field("in flight", &at_once);
    field("patterns", &format!("{} (each process in each file)", patterns(&report.streams)));
    field("files", &report.file_count.to_string());
    for note in &report.notes {
        field("note", note);
    }
    sizes(&report.sizes);
    for file in report.files.iter().take(FILES_SHOWN) {
        say!("");
        print_file(file);
    }
    let hidden = report.file_count.saturating_sub(FILES_SHOWN as u64);
    if hidden > 0 {
        say!("");
        say!("{}; --json has {} files", more_files(report, hidden), report.files.len());
    }
}

/// What is said of files that are not shown; of those that a trace names late nothing is known but their requests.
fn more_files(report: &Report, hidden: u64) -> String {
    match report.requests_of_other_files {
        0 => format!("{hidden} more with fewer bytes"),
        late => format!("{hidden} more, with {late} requests of those that the trace names last"),
    }
}

/// A name and what it stands for, broken at words into lines of a terminal's width.
fn field(name: &str, value: &str) {
    let mut line = format!("{name:<NAMES$}");
    let mut empty = true;
    for word in value.split(' ') {
        let wide = line.chars().count() + 1 + word.chars().count() > COLUMNS;
        if !empty && wide {
            say!("{line}");
            line = " ".repeat(NAMES);
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line += word;
        empty = false;
    }
    say!("{line}");
}

fn sizes(sizes: &[SizeReport]) {
    if sizes.is_empty() {
        return;
    }
    say!("");
    say!("{:>10}{:>14}{:>14}", "size from", "reads", "writes");
    for size in sizes {
        say!("{:>10}{:>14}{:>14}", text::bytes(size.from_bytes), size.reads, size.writes);
    }
}

fn print_file(file: &FileReport) {
    say!("{}", file.name.shown());
    field("  reads", &side(file.mix.reads, file.mix.read_bytes));
    field("  writes", &side(file.mix.writes, file.mix.write_bytes));
    let processes = counted(usize::try_from(file.processes).unwrap_or(usize::MAX), "process");
    field("  used by", &format!("{processes}, up to {}", text::bytes(file.end)));
    let pattern =
        format!("{} all together; {} by process", named(file.pattern), patterns(&file.streams));
    field("  pattern", &pattern);
    for phase in file.phases.iter().take(PARTS_SHOWN) {
        let [begin, end] = [phase.begin_ns, phase.end_ns].map(|ns| text::seconds(seconds(ns)));
        field("  phase", &format!("{begin} to {end}: {}", mixed(&phase.mix)));
    }
    more(file.phases.len(), "phase");
    for region in file.regions.iter().take(PARTS_SHOWN) {
        let end = text::bytes(region.offset.saturating_add(region.length));
        let begin = text::bytes(region.offset);
        field("  region", &format!("{begin} to {end}: {}", mixed(&region.mix)));
    }
    more(file.regions.len(), "region");
}

fn more(all: usize, what: &str) {
    if all > PARTS_SHOWN {
        say!("{:NAMES$}and {}", "", counted(all - PARTS_SHOWN, &format!("more {what}")));
    }
}

fn seconds(ns: u64) -> f64 {
    std::time::Duration::from_nanos(ns).as_secs_f64()
}

fn side(requests: u64, bytes: u64) -> String {
    match bytes.checked_div(requests) {
        None => "none".to_owned(),
        Some(mean) => {
            format!("{requests}, {}, {} on average", text::bytes(bytes), text::bytes(mean))
        }
    }
}

/// Both directions in a few words: `64 reads of 4.00 KiB, 3 writes of 1.00 MiB`.
fn mixed(mix: &Mix) -> String {
    let one = |requests: u64, bytes: u64, what: &str| {
        let mean = text::bytes(bytes.checked_div(requests)?);
        let count = counted(usize::try_from(requests).unwrap_or(usize::MAX), what);
        Some(format!("{count} of {mean}"))
    };
    let both = [one(mix.reads, mix.read_bytes, "read"), one(mix.writes, mix.write_bytes, "write")];
    both.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

const fn named(pattern: Pattern) -> &'static str {
    match pattern {
        Pattern::Sequential => "sequential",
        Pattern::Strided => "strided",
        Pattern::NestedStrided => "nested strided",
        Pattern::Random => "random",
        Pattern::Short => "too short to tell",
    }
}

fn patterns(counts: &StreamCounts) -> String {
    let all = [
        (counts.sequential, Pattern::Sequential),
        (counts.strided, Pattern::Strided),
        (counts.nested_strided, Pattern::NestedStrided),
        (counts.random, Pattern::Random),
        (counts.short, Pattern::Short),
    ];
    let there = all.iter().filter(|(count, _)| *count > 0);
    let there: Vec<_> = there.map(|(count, what)| format!("{count} {}", named(*what))).collect();
    if there.is_empty() { "none".to_owned() } else { there.join(", ") }
}
