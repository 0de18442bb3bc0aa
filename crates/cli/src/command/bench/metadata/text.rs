//! The results for people.

use std::fmt::Write as _;

use plotters::prelude::*;

use super::super::store_server::Halves;
use super::record::{
    LARGE_TARGET, Large, MountResults, MountRow, RATIO_TARGET, Results, TIER_TARGET,
};
use super::row::Row;
use super::simulation;
use crate::bar_chart::{Bar, Bars, Drawn};
use crate::text;

/// The heading of the rows.
pub(super) fn heading(is_own: bool, halves: Option<&Halves>) -> String {
    let server = if is_own {
        "a server on a local socket, without anything on disk"
    } else {
        "the server of --store"
    };
    let shared = halves.map_or_else(
        || {
            let cpus = std::thread::available_parallelism().map_or(1, usize::from);
            format!("load and server share {cpus} processors of this machine if it runs here")
        },
        |halves| {
            let [store, load] = halves.numbers();
            format!("the server is bound to processor {}, the load to {load:?}", store[0])
        },
    );
    format!(
        "names in {server}; {shared}\n{:>7}  {:<9}{:<12}{:>12}{:>13}{:>16}{:>8}",
        "clients", "what", "directories", "a second", "round trips", "own benchmark", "ratio"
    )
}

/// The heading of the rows of clusters.
pub(super) fn heading_of_masters(halves: Option<&Halves>) -> String {
    let bound = halves.map_or_else(
        || "masters and load share the only processor".to_owned(),
        |halves| {
            let [store, load] = halves.numbers();
            format!("masters are bound to the processors {store:?}, one each in turn, the load to {load:?}")
        },
    );
    format!(
        "names in Redis Clusters on ports of this machine, without anything on disk; {bound}\n{:>7}  {:>7}  {:<9}{:<12}{:>12}{:>13}",
        "masters", "clients", "what", "directories", "a second", "round trips"
    )
}

/// One row.
pub(super) fn row(row: &Row) -> String {
    if let Some(masters) = row.masters {
        return format!(
            "{masters:>7}  {:>7}  {:<9}{:<12}{:>12.0}{:>13.2}",
            row.clients,
            row.operation,
            row.directories,
            row.per_second,
            row.round_trips_per_operation,
        );
    }
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    format!(
        "{:>7}  {:<9}{:<12}{:>12.0}{:>13.2}{:>16}{:>8}",
        row.clients,
        row.operation,
        row.directories,
        row.per_second,
        row.round_trips_per_operation,
        or_dash(row.native_per_second.map(|rate| format!("{rate:.0}"))),
        or_dash(row.ratio.map(|ratio| format!("{ratio:.2}"))),
    )
}

/// What the targets say, and the large directory.
pub(super) fn summary(results: &Results) -> String {
    let mut out = String::new();
    if results.setup.repeat > 1 {
        let _ = writeln!(out, "medians of {}:", results.setup.repeat);
        results.rows.iter().for_each(|one| {
            let _ = writeln!(out, "{}", row(one));
        });
    }
    let ratios = results.rows.iter().filter_map(|row| row.ratio);
    let least = ratios.fold(f64::INFINITY, f64::min);
    if least.is_finite() {
        let met = if least >= RATIO_TARGET { "met" } else { "missed" };
        let _ = writeln!(
            out,
            "creates reach at least {least:.2} of the server's own benchmark with the same script and as many \
             connections (target {RATIO_TARGET}: {met})"
        );
    }
    for one in results.rows.iter().filter(|row| is_own_create(row)) {
        let alone =
            |row: &&Row| is_own_create(row) && (row.masters, row.clients) == (Some(1), one.clients);
        let Some(alone) = results.rows.iter().find(alone).filter(|_| one.masters != Some(1)) else {
            continue;
        };
        let _ = writeln!(
            out,
            "creates in own directories by {} client{}: {:.2} with {} masters of what one does",
            one.clients,
            if one.clients == 1 { "" } else { "s" },
            one.per_second / alone.per_second,
            one.masters.unwrap_or_default(),
        );
    }
    out += &results.large.as_ref().map_or_else(String::new, large_directory);
    if let Some(simulation) = &results.simulation {
        out += &simulation::told(simulation);
    }
    out
}

/// A directory of many entries.
fn large_directory(large: &Large) -> String {
    let ratio = large.ratio.map_or_else(String::new, |ratio| {
        let met = if ratio >= LARGE_TARGET { "met" } else { "missed" };
        format!(", {ratio:.2} of those in own directories (target {LARGE_TARGET}: {met})")
    });
    let (by, whose) = match large.pages {
        Some(pages) => {
            (format!("clients: {:.0}", large.create_per_second), format!("{pages} pages, "))
        }
        None => (format!("mounts: {:.0}", large.create_per_second), String::new()),
    };
    format!(
        "a directory of {} entries, by {} {by} creates a second{ratio}; listed in {:.1} s, {whose}{:.0} entries a second; {} \
         had {} before and {} at most\n",
        large.entries,
        large.clients,
        large.list_seconds,
        large.listed_per_second,
        if large.pages.is_some() { "this process" } else { "the mount" },
        text::bytes(large.resident_bytes_before),
        text::bytes(large.resident_bytes_most),
    )
}

fn is_own_create(row: &Row) -> bool {
    (row.operation, row.directories) == ("create", "own")
}

/// What was measured through mounts.
pub(super) fn mounts(results: &MountResults) -> String {
    let mut out = format!(
        "names through mounts; programs, mounts and store share {} processors\n{:>7}  {:<8}{:<8}{:<12}{:>12}{:>9}\n",
        results.setup.cpus, "threads", "system", "what", "directories", "a second", "of tier"
    );
    for row in &results.mounts {
        let of_tier = row.of_tier.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
        let _ = writeln!(
            out,
            "{:>7}  {:<8}{:<8}{:<12}{:>12.0}{of_tier:>9}",
            row.nodes, row.system, row.operation, row.directories, row.per_second
        );
    }
    let is_create = |row: &&MountRow| (row.system, row.operation) == ("nodes", "create");
    let ratios = results.mounts.iter().filter(is_create).filter_map(|row| row.of_tier);
    let least = ratios.fold(f64::INFINITY, f64::min);
    if least.is_finite() {
        let met = if least >= TIER_TARGET { "met" } else { "missed" };
        let _ = writeln!(
            out,
            "creates reach at least {least:.2} of those on a tier of one node (target {TIER_TARGET}: {met})"
        );
    }
    out += &results.large.as_ref().map_or_else(String::new, large_directory);
    out
}

/// The same as bars.
pub(super) fn draw_mounts(results: &MountResults, out: &mut String) -> Drawn {
    let bar = |row: &MountRow| Bar {
        name: format!("{} {}, {}", row.operation, row.directories, row.nodes),
        value: row.per_second,
        text: format!("{:.0} {}", row.per_second, row.system),
        series: match row.system {
            "nodes" => 1,
            "tier" => 2,
            _ => 0,
        },
    };
    let shared = format!(
        "{} files a thread; nodes: mounts of a shared tier, tier: of one node, disk: the shared directory itself",
        results.setup.files
    );
    chart(results.mounts.iter().map(bar).collect(), ("threads", &shared), out)
}

/// The rates, as bars.
pub(super) fn draw(results: &Results, out: &mut String) -> Drawn {
    let bar = |row: &Row| {
        let native = row.ratio.map(|ratio| format!(", {ratio:.2} of the own benchmark"));
        Bar {
            name: match row.masters {
                Some(masters) => {
                    format!("{} {}, {} on {masters}", row.operation, row.directories, row.clients)
                }
                None => format!("{} {}, {}", row.operation, row.directories, row.clients),
            },
            value: row.per_second,
            text: format!("{:.0}{}", row.per_second, native.unwrap_or_default()),
            series: if row.directories == "own" { 1 } else { 2 },
        }
    };
    let cpus = results.setup.cpus;
    let shared =
        format!("{} files a client; load and server on {cpus} processors", results.setup.files);
    let has_masters = results.rows.iter().any(|row| row.masters.is_some());
    let by = if has_masters { "clients on masters" } else { "clients" };
    chart(results.rows.iter().map(bar).collect(), (by, &shared), out)
}

fn chart(rows: Vec<Bar>, (by, below): (&str, &str), out: &mut String) -> Drawn {
    let bars = Bars { rows, most: None };
    let root = SVGBackend::with_string(out, (900, bars.height() + 72)).into_drawing_area();
    root.fill(&WHITE)?;
    let style = |size: u32| ("sans-serif", size).into_font().color(&BLACK);
    let title = format!("halocline bench metadata: operations a second, by {by}");
    root.draw(&Text::new(title, (12, 10), style(16)))?;
    root.draw(&Text::new(below.to_owned(), (12, 34), style(12)))?;
    let (_, area) = root.split_vertically(60);
    bars.draw(&area)?;
    root.present()?;
    Ok(())
}
