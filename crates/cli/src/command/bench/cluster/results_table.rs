//! The results for people: one row for each run as soon as it is done; the comparisons as a table and as a picture.

use std::fmt::Write as _;

use plotters::prelude::*;

use super::record::{Comparison, Key, Phase, Results, Run, Setup, Target, share};
use crate::bar_chart::{Bar, Bars, DrawResult};
use crate::text;

/// The heading of the rows; every table says whether its devices are emulated.
pub(super) fn heading(shared: &str) -> String {
    format!(
        "{shared}; MB/s are 10^6 bytes a second\n{:<17}{:>6} {:<13}|{:>9}{:>9}{:>9}{:>8} |{:>9}{:>8} |{:>9}{:>8} |{:>11}{:>7}",
        "pattern",
        "nodes",
        "setup",
        "write",
        "drained",
        "cached",
        "waits",
        "read",
        "cached",
        "shifted",
        "cached",
        "store/write",
        "/read",
    )
}

/// The row of one run.
pub(super) fn row(run: &Run) -> String {
    let Key { pattern, setup, nodes } = run.key;
    let (write, read) = (run.phase("write"), run.phase("read"));
    let shifted = run.phase("shifted_read");
    let rate = |phase: Option<&Phase>| or_dash(phase.map(|phase| format!("{:.1}", phase.mb_per_s)));
    let hits = |phase: Option<&Phase>| {
        or_dash(phase.map(|phase| format!("{:.0} %", 100.0 * share(phase.hit_bytes, phase.bytes))))
    };
    let drained = write.and_then(|write| {
        Some(format!("{:.1}", super::super::record::rate(write.bytes, write.drained_seconds?)))
    });
    let store = |phase: Option<&Phase>| {
        let phase = phase.filter(|_| setup == Setup::Cluster);
        or_dash(phase.map(|phase| format!("{:.4}", phase.store_operations_per_request)))
    };
    let waits = write.filter(|_| setup == Setup::Cluster).map(|write| write.waits.to_string());
    format!(
        "{:<17}{nodes:>6} {:<13}|{:>9}{:>9}{:>9}{:>8} |{:>9}{:>8} |{:>9}{:>8} |{:>11}{:>7}",
        pattern.text(),
        setup.text(),
        rate(write),
        or_dash(drained),
        hits(write),
        or_dash(waits),
        rate(read),
        hits(read),
        rate(shifted),
        hits(shifted),
        store(write),
        store(read),
    )
}

/// All comparisons, as a table.
pub(super) fn comparisons(all: &[Comparison]) -> String {
    let mut out = format!(
        "{:<17}{:>6}  {:<13} {:<30}{:>9}{:>10}\n",
        "pattern", "nodes", "phase", "ratio", "value", "target"
    );
    for one in all {
        let met = match one.is_met {
            Some(false) => "  missed",
            _ => "",
        };
        let _ = writeln!(
            out,
            "{:<17}{:>6}  {:<13} {:<30}{:>9}{:>10}{met}",
            one.pattern.text(),
            one.nodes,
            one.phase,
            one.what,
            value(one),
            or_dash(one.target.map(target)),
        );
    }
    out
}

fn value(of: &Comparison) -> String {
    let places = if of.what.starts_with("store") { 4 } else { 2 };
    format!("{:.places$}", of.value)
}

fn target(target: Target) -> String {
    match target {
        Target::AtLeast(least) => format!(">= {least}"),
        Target::Below(limit) => format!("< {limit}"),
    }
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".into())
}

/// The ratios that have targets, as bars.
pub(super) fn draw<S>(results: &Results<S>, out: &mut String) -> DrawResult {
    let with_targets = results.comparisons.iter().filter(|one| one.target.is_some());
    let shown = with_targets.filter(|one| !one.what.starts_with("store"));
    let rows: Vec<Bar> = shown
        .map(|one| {
            let name = format!("{}, {}, {}", one.pattern.text(), one.nodes, one.phase);
            let target = or_dash(one.target.map(target));
            let text = format!("{} of {} ({target})", value(one), one.what);
            Bar {
                name,
                value: one.value,
                text,
                series: if one.is_met == Some(true) { 1 } else { 4 },
            }
        })
        .collect();
    let bars = Bars { rows, most: None };
    let root = SVGBackend::with_string(out, (900, bars.height() + 72)).into_drawing_area();
    root.fill(&WHITE)?;
    let style = |size: u32| ("sans-serif", size).into_font().color(&BLACK);
    let title = format!(
        "halocline bench cluster: {}, {} ranks",
        text::bytes(results.data_bytes),
        results.processes
    );
    root.draw(&Text::new(title, (12, 10), style(16)))?;
    root.draw(&Text::new(results.shared.clone(), (12, 34), style(12)))?;
    let (_, below) = root.split_vertically(60);
    bars.draw(&below)?;
    root.present()?;
    Ok(())
}
