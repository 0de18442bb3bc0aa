//! The paper's figures as a page of the documentation.

use std::fmt::Write as _;
use std::path::Path;

use halocline_plan::planner::Name;

use super::layout_results::{JudgedSetting, LayoutResult, judge};
use super::paper::{Row, Scale, rows};
use crate::failure::Failure;
use crate::text;

/// A row of the paper, judged.
pub(super) struct JudgedRow {
    pub(super) row: Row,
    pub(super) full: JudgedSetting,
    /// Scaled down and measured.
    pub(super) measured: Option<JudgedSetting>,
}

/// Judges all rows; with `quick`, only a few requests of each. `dir` is where servers are emulated; `None`: nowhere.
pub(super) fn all(
    quick: bool,
    dir: Option<&Path>,
    mut tell: impl FnMut(&JudgedRow),
) -> Result<Vec<JudgedRow>, Failure> {
    let mut all = Vec::new();
    for row in rows() {
        let (full, small) =
            if quick { (Scale::Quick, Scale::Quick) } else { (Scale::Full, Scale::Measured) };
        let full = judge(&row.at(full), None)?;
        let measured = dir.map(|dir| judge(&row.at(small), Some(dir))).transpose()?;
        let told = JudgedRow { row, full, measured };
        tell(&told);
        all.push(told);
    }
    Ok(all)
}

/// The page.
pub(super) fn markdown(all: &[JudgedRow], quick: bool) -> String {
    let mut out = String::from(include_str!("page.txt"));
    if quick {
        out += "\n**Made with `--quick`: a few dozen requests of each setting. Not the paper's settings.**\n";
    }
    let _ = write!(out, "\n## Summary\n\n{}", summary(all));
    let mut figure = 0;
    for told in all {
        if told.row.figure != figure {
            figure = told.row.figure;
            let _ = write!(out, "\n## Figure {figure}: {}\n", title(figure));
        }
        section(&mut out, told);
    }
    out
}

const fn title(figure: u32) -> &'static str {
    match figure {
        7 => "IOR, kinds of requests",
        8 => "IOR, numbers of processes, random",
        9 => "IOR, sizes of requests, random",
        10 => "IOR, servers, random",
        11 => "HPIO, sizes of regions",
        12 => "MPI-Tile-IO, numbers of processes",
        _ => "BTIO class C full, numbers of processes",
    }
}

/// How many percent PSA gains over another layout, by the given times of both.
fn gain(
    judged: &JudgedSetting,
    over: &LayoutResult,
    time: fn(&LayoutResult) -> Option<f64>,
) -> Option<f64> {
    Some((time(over)? / time(judged.of(Name::Psa))? - 1.0) * 100.0)
}

const fn simulated(layout: &LayoutResult) -> Option<f64> {
    layout.simulated_seconds
}

fn percent(gain: Option<f64>) -> String {
    gain.map_or_else(|| "-".to_owned(), |gain| format!("{gain:+.1} %"))
}

/// Whether PSA gains at least half of what the paper prints, over DEF and over PA; `None` if the paper prints no gain
/// over DEF.
fn appears(told: &JudgedRow) -> Option<bool> {
    let (over_def, over_pa) = told.row.published;
    let pairs = [(over_def, told.full.def_of_paper()), (over_pa, told.full.of(Name::Pa))];
    let mut known = pairs.into_iter().filter_map(|(published, over)| Some((published?, over)));
    over_def?;
    Some(known.all(|(published, over)| {
        gain(&told.full, over, simulated).is_some_and(|gain| gain >= published / 2.0)
    }))
}

fn summary(all: &[JudgedRow]) -> String {
    let printed = all.iter().filter_map(appears);
    let (count, there) =
        printed.fold((0, 0), |(count, there), appears| (count + 1, there + usize::from(appears)));
    let ratio = |told: &JudgedRow, name| told.full.of(name).simulated_ratio;
    let mut better = 0;
    let mut gains = Vec::new();
    for told in all {
        let papers = [Name::Def, Name::Pa, Name::Psa].map(|name| ratio(told, name).unwrap_or(0.0));
        let best = papers.into_iter().fold(0.0, f64::max);
        let ours = ratio(told, Name::Ours).unwrap_or(0.0);
        better += usize::from(ours > best * 1.01);
        gains.push(ours / best.max(1e-12));
    }
    gains.sort_by(f64::total_cmp);
    let at = |index: usize| gains.get(index).copied().unwrap_or(1.0);
    format!(
        "The paper prints a gain of PSA for {count} of these {} settings. In simulation at least half of it appears in {there} of them. `ours` is more than 1 % \
         faster than the best of DEF, PA and PSA in {better} of {}; its throughput is {:.2} to {:.2} times that of the best of them, {:.2} in the median.\n",
        all.len(),
        all.len(),
        at(0),
        at(gains.len().saturating_sub(1)),
        at(gains.len() / 2)
    )
}

fn section(out: &mut String, told: &JudgedRow) {
    let JudgedRow { row, full, measured } = told;
    let _ = write!(
        out,
        "\n### {}\n\n{}.\n\n| layout | stripes <disk, SSD> | parts | on SSDs | predicted | simulated | over DEF, predicted | over DEF, simulated | over DEF, measured (EMULATED, scaled down) |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
        row.what,
        full.amount()
    );
    for (name, layout) in full.rows() {
        let line = layout_line(name, layout, full, measured.as_ref());
        let _ = writeln!(out, "{line}");
    }
    if let Some(rest) = full.def_rest {
        let _ = write!(out, "\ndef: what the SSDs have no room for lies {}.\n", rest.told());
    }
    let (over_def, over_pa) = row.published;
    let published = |gain: Option<f64>, up_to: bool| match gain {
        Some(_) => format!("{}{}", if up_to { "up to " } else { "" }, percent(gain)),
        None => "not printed".to_owned(),
    };
    let _ = write!(
        out,
        "\nPSA over DEF: published {}, simulated {}. PSA over PA: published {}, simulated {}.",
        published(over_def, row.up_to.0),
        percent(gain(full, full.def_of_paper(), simulated)),
        published(over_pa, row.up_to.1),
        percent(gain(full, full.of(Name::Pa), simulated))
    );
    if let Some(measured) = measured {
        let time = |layout: &LayoutResult| layout.measured_seconds;
        let _ = write!(
            out,
            " Scaled down to {} requests, PSA over DEF: simulated {}, measured on emulated servers {}.",
            measured.requests,
            percent(gain(measured, measured.def_of_paper(), simulated)),
            percent(gain(measured, measured.def_of_paper(), time))
        );
    }
    let _ = writeln!(out, "{}", why(told));
}

/// A row of the table; that of the paper's DEF has no name, because no plan has this layout.
fn layout_line(
    name: Option<Name>,
    layout: &LayoutResult,
    full: &JudgedSetting,
    measured: Option<&JudgedSetting>,
) -> String {
    let called = name.map_or("DEF of the paper", Name::text);
    if let Some(why) = &layout.unavailable {
        return format!("| {called} | none: {why} | | | | | | | |");
    }
    let recommended = if name == Some(full.chosen) { " (recommended)" } else { "" };
    let widths = |from: Option<&u64>| from.map_or_else(|| "-".into(), |bytes| text::bytes(*bytes));
    let ratio = |ratio: Option<f64>| percent(ratio.map(|ratio| (ratio - 1.0) * 100.0));
    let seconds = |time: Option<f64>| time.map_or_else(|| "-".into(), text::seconds);
    format!(
        "| {called}{recommended} | {}, {} | {} | {} | {} | {} | {} | {} | {} |",
        widths(layout.stripes.first()),
        widths(layout.stripes.last()),
        layout.parts,
        text::bytes(layout.ssd_bytes.unwrap_or(0)),
        seconds(layout.predicted_seconds),
        seconds(layout.simulated_seconds),
        ratio(layout.predicted_ratio),
        ratio(layout.simulated_ratio),
        ratio(measured.and_then(|measured| {
            let layout = name.map_or_else(|| measured.def_of_paper(), |name| measured.of(name));
            layout.measured_ratio
        }))
    )
}

/// Why a published gain does not appear; empty if it does, or if none is printed.
fn why(told: &JudgedRow) -> String {
    let full = &told.full;
    if appears(told) != Some(false) {
        return String::new();
    }
    let [pa, psa] = [Name::Pa, Name::Psa].map(|name| full.of(name));
    let def = full.def_of_paper();
    if let Some(why) = &psa.unavailable {
        return format!(" **The published gain does not appear**: PSA has no answer, since {why}.");
    }
    let over_def = gain(full, def, simulated).unwrap_or(0.0);
    let same = pa.stripes == psa.stripes && pa.parts == psa.parts;
    if told.row.published.0.is_some_and(|published| over_def >= published / 2.0) && same {
        return " **The published gain does not appear** over PA, whose layout PSA chooses here, too; over DEF it does.".to_owned();
    }
    let work = |layout: &LayoutResult| {
        let disks = layout.disks;
        format!("{:.2} ms ({:.1} pieces of {:.0} KiB)", disks.ms, disks.pieces, disks.kib)
    };
    let ratio = psa.disks.ms / def.disks.ms.max(1e-12);
    let so = if ratio > 1.02 {
        "PSA gives the disks more to do than DEF"
    } else if ratio > 0.98 {
        "PSA leaves the disks as much to do as DEF"
    } else {
        "PSA takes less off the disks than the published gain needs"
    };
    format!(
        " **The published gain does not appear**: {so}. A request keeps each disk busy for {} under DEF, {} under PA and {} under PSA; the busiest disk works {:.0} % of the time under PSA, the busiest SSD {:.0} %.",
        work(def),
        work(pa),
        work(psa),
        psa.busy.0 * 100.0,
        psa.busy.1 * 100.0
    )
}
