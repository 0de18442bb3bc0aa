//! The figures of a report.

use plotters::prelude::*;

use super::html::{Cell, Figure, table};
use super::{Load, Page};
use crate::bar_chart::{Area, Bar, Bars, DrawResult, colour};
use crate::command::plan::picture::{COLUMNS, Map, ROWS};
use crate::failure::Failure;
use crate::text;
use halocline_plan::layout::Layout;

/// Pixels of a figure: what a narrow screen has.
const WIDTH: u32 = 400;
const MAP_HEIGHT: u32 = 300;
/// Rows of bars for servers at most; then classes of servers.
const SERVERS_MAX: usize = 12;
/// Dashes of a line across a map, and the gaps between them.
const DASHES: u32 = 60;
/// Shades of a map.
const SHADES: u32 = 5;

fn drawn(height: u32, draw: impl FnOnce(&Area<'_>) -> DrawResult) -> Result<String, Failure> {
    let mut svg = String::new();
    let all = || -> DrawResult {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        draw(&root)?;
        root.present()?;
        Ok(())
    };
    all().map_err(|error| Failure::failed(format!("a figure cannot be drawn: {error}")))?;
    Ok(svg)
}

fn bars(rows: Vec<Bar>, most: Option<f64>) -> Result<String, Failure> {
    let bars = Bars { rows, most };
    drawn(bars.height(), |area| bars.draw(area))
}

fn figure(id: String, title: String, svg: String, caption: &str) -> Figure {
    let (says, caption, numbers) = (title.clone(), caption.to_owned(), String::new());
    Figure { id, title, svg, says, caption, numbers }
}

/// Throughput of each layout, predicted and simulated, and that of the trace where it is known.
pub(super) fn throughput(page: &Page<'_>) -> Result<Figure, Failure> {
    let rate = |seconds: f64| super::mb_per_s(page.seen.workload.bytes, seconds);
    let has_ssds = page.servers.fast().next().is_some();
    let mut rows = Vec::new();
    let mut numbers = Vec::new();
    for (name, judged) in page.judged() {
        for (how, seconds, series) in
            [("simulated", judged.simulated_seconds, 1), ("predicted", judged.predicted_seconds, 5)]
        {
            let value = rate(seconds);
            let text = format!("{value:.1} MB/s");
            rows.push(Bar { name: format!("{}, {how}", name.text()), value, text, series });
        }
        let mut row = vec![
            Cell::Text(name.text().into()),
            Cell::Number(format!("{:.1} MB/s", rate(judged.simulated_seconds))),
            Cell::Number(format!("{:.1} MB/s", rate(judged.predicted_seconds))),
            Cell::Number(text::seconds(judged.simulated_seconds)),
        ];
        row.extend(has_ssds.then(|| Cell::Number(text::bytes(judged.ssd_bytes))));
        numbers.push(row);
    }
    if let Some(seconds) = page.seen.io_time.seconds() {
        let value = rate(seconds);
        let (name, text) = ("the trace, measured".to_owned(), format!("{value:.1} MB/s"));
        rows.push(Bar { name, value, text, series: 4 });
    }
    let said: Vec<String> = rows.iter().map(|row| format!("{}: {}", row.name, row.text)).collect();
    let head = ["Layout", "Simulated", "Predicted", "Time", "On SSDs"];
    let head = if has_ssds { &head[..] } else { &head[..4] };
    let chosen = page.judged().position(|(name, _)| name == page.outcome.chosen);
    let measured = if page.seen.io_time.seconds().is_some() {
        " Measured is what the trace says: its bytes over the time in which a request was under way, on whatever servers it was recorded."
    } else {
        " The trace has no durations, so nothing measured stands beside them."
    };
    let caption = format!(
        "Simulated: replayed on simulated servers. Predicted: by the cost model.{measured}"
    );
    let title = "Throughput under each layout".to_owned();
    let mut figure = figure("throughput".into(), title, bars(rows, None)?, &caption);
    figure.says = format!("{}. {}.", figure.title, said.join("; "));
    figure.numbers = table("Throughput under each layout", head, &numbers, chosen);
    Ok(figure)
}

/// How busy each server is under a layout.
pub(super) fn load(page: &Page<'_>, load: &Load) -> Result<Figure, Failure> {
    let name = load.name.text();
    let mut rows = Vec::new();
    let mut numbers = Vec::new();
    for server in super::stations(page, load, SERVERS_MAX) {
        let text = format!("{:.0} %, {}", server.busy * 100.0, text::bytes(server.bytes));
        numbers.push(vec![
            Cell::Text(server.name.clone()),
            Cell::Text(server.kind.clone()),
            Cell::Number(text::percent(server.busy)),
            Cell::Number(text::bytes(server.bytes)),
        ]);
        let series = if server.is_fast { 1 } else { 2 };
        let name = format!("{} ({})", server.name, server.kind);
        rows.push(Bar { name, value: server.busy, text, series });
    }
    let said: Vec<String> = rows.iter().map(|row| format!("{}: {}", row.name, row.text)).collect();
    let chosen = if load.name == page.outcome.chosen { ", recommended" } else { "" };
    let title = format!("Load under {name}{chosen}");
    let caption = format!(
        "Share of {} of replay in which each has something to do, and the bytes that it moves.",
        text::seconds(load.seconds)
    );
    let mut figure = figure(format!("load-{name}"), title, bars(rows, Some(1.0))?, &caption);
    figure.says = format!("{}. {}.", figure.title, said.join("; "));
    figure.numbers = table(&figure.title, &["Server", "Kind", "Busy", "Bytes"], &numbers, None);
    Ok(figure)
}

/// Requests by size.
pub(super) fn sizes(page: &Page<'_>) -> Result<Figure, Failure> {
    let [reads, writes] = &page.picture.sizes;
    let used = |power: &usize| reads[*power] + writes[*power] > 0;
    let (mut rows, mut numbers) = (Vec::new(), Vec::new());
    for power in (0..reads.len()).filter(used) {
        let (least, most) = (1_u64 << power, (1_u64 << power).saturating_mul(2));
        let name = text::bytes(least);
        for (count, what, series) in [(reads[power], "read", 1), (writes[power], "write", 2)] {
            if count > 0 {
                #[expect(clippy::cast_precision_loss, reason = "a bar")]
                let value = count as f64;
                let text = halocline_os::counted::counted(count, what);
                rows.push(Bar { name: name.clone(), value, text, series });
            }
        }
        numbers.push(vec![
            Cell::Text(format!("{name} to below {}", text::bytes(most))),
            Cell::Number(reads[power].to_string()),
            Cell::Number(writes[power].to_string()),
        ]);
    }
    let said: Vec<String> =
        rows.iter().map(|row| format!("from {}: {}", row.name, row.text)).collect();
    let caption =
        "All requests of the trace. A row holds those from its size to below twice as much.";
    let title = "Sizes of requests".to_owned();
    let mut figure = figure("sizes".into(), title, bars(rows, None)?, caption);
    figure.says = format!("{}. {}.", figure.title, said.join("; "));
    figure.numbers = table(&figure.title, &["Size", "Reads", "Writes"], &numbers, None);
    Ok(figure)
}

/// When which part of a file was read, or written.
pub(super) fn map(
    page: &Page<'_>,
    map: &Map,
    number: usize,
    writes: bool,
) -> Result<Figure, Failure> {
    let what = if writes { "Writes" } else { "Reads" };
    let counts = &map.counts[usize::from(writes)];
    let most = counts.iter().copied().max().unwrap_or(0);
    let file = text::line(&String::from_utf8_lossy(page.seen.name(map.file)));
    let layout = page.outcome.choice().layouts.of(map.file);
    let borders: Vec<u64> = borders(layout, map.bytes);
    let span = page.picture.span_ns;
    let svg = drawn(MAP_HEIGHT, |area| {
        draw_map(area, map.bytes, span, counts, &borders, 1 + usize::from(writes))
    })?;
    let touched = counts.iter().filter(|count| **count > 0).count();
    let dashed = match borders.len() {
        0 => String::new(),
        _ => " Dashed: where the recommended layout changes its stripes.".to_owned(),
    };
    let caption = format!(
        "Stronger: more requests, up to {most} in one of {COLUMNS} by {ROWS} cells.{dashed}"
    );
    let id = format!("map-{number}-{}", what.to_lowercase());
    let mut figure = figure(id, format!("{what} of {file}"), svg, &caption);
    figure.says = format!(
        "{what} of {file} over time and offset: {} of {} cells are touched, {}.",
        touched,
        COLUMNS * ROWS,
        super::words::shape(counts)
    );
    Ok(figure)
}

fn borders(layout: &Layout, bytes: u64) -> Vec<u64> {
    layout.parts().iter().filter_map(|part| part.end).filter(|end| *end < bytes).collect()
}

#[expect(clippy::cast_precision_loss, reason = "coordinates of a drawing")]
fn draw_map(
    area: &Area<'_>,
    bytes: u64,
    span_ns: u64,
    counts: &[u32],
    borders: &[u64],
    series: usize,
) -> DrawResult {
    // In a unit in which round numbers are round for people who count in powers of two.
    let unit = 1u64 << (bytes.max(1).ilog2() / 10 * 10);
    let (width, height) = (span_ns.max(1) as f64 * 1e-9, bytes as f64 / unit as f64);
    let mut chart = ChartBuilder::on(area)
        .margin(4)
        // Half of the label at the top.
        .margin_top(12)
        // Half of the last label, which may stand at the very end.
        .margin_right(36)
        .x_label_area_size(42)
        .y_label_area_size(74)
        .build_cartesian_2d(0.0..width, 0.0..height)?;
    chart
        .configure_mesh()
        .max_light_lines(0)
        .x_labels(4)
        .y_labels(6)
        .label_style(("sans-serif", 15))
        .x_desc("time in the trace")
        .x_label_formatter(&|seconds| text::seconds(*seconds))
        .y_label_formatter(&|offset| format!("{} {}", text::tick(*offset), unit_name(unit)))
        .draw()?;
    let most = counts.iter().copied().max().unwrap_or(0).max(1);
    for (column, rows) in counts.chunks(ROWS).enumerate() {
        let x = |edge: usize| width * (column + edge) as f64 / COLUMNS as f64;
        let mut first = 0;
        // One rectangle for neighbours of one shade.
        for part in rows.chunk_by(|a, b| shade(*a, most) == shade(*b, most)) {
            let y = |row: usize| height * row as f64 / ROWS as f64;
            let corners = [(x(0), y(first)), (x(1), y(first + part.len()))];
            first += part.len();
            let shade = shade(part[0], most);
            if shade > 0 {
                let alpha = 0.2 + 0.8 * f64::from(shade) / f64::from(SHADES);
                let style = colour(series).mix(alpha).filled();
                chart.draw_series([Rectangle::new(corners, style)])?;
            }
        }
    }
    for border in borders {
        let y = *border as f64 / unit as f64;
        let at = |dash: u32| width * f64::from(dash) / f64::from(DASHES);
        let dashes = (0..DASHES).step_by(2).map(|dash| {
            let line = [(at(dash), y), (at(dash + 1), y)];
            PathElement::new(line, BLACK.stroke_width(2))
        });
        chart.draw_series(dashes)?;
    }
    Ok(())
}

/// 0 for nothing, up to [`SHADES`] by the logarithm.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few shades")]
fn shade(count: u32, most: u32) -> u32 {
    if count == 0 {
        return 0;
    }
    let share = f64::from(count).ln_1p() / f64::from(most).ln_1p();
    ((share * f64::from(SHADES)).ceil() as u32).clamp(1, SHADES)
}

/// `MiB` of 2^20.
fn unit_name(unit: u64) -> String {
    text::bytes(unit).rsplit(' ').next().unwrap_or_default().to_owned()
}

/// All figures: those that compare, the maps, and the loads under each layout.
pub(super) fn all(page: &Page<'_>) -> Result<[Vec<Figure>; 3], Failure> {
    let mut maps = Vec::new();
    for (number, each) in page.picture.maps.iter().enumerate() {
        for writes in [false, true] {
            if each.counts[usize::from(writes)].iter().any(|count| *count > 0) {
                maps.push(map(page, each, number, writes)?);
            }
        }
    }
    let loads: Result<Vec<Figure>, Failure> =
        page.loads.iter().map(|each| load(page, each)).collect();
    Ok([vec![throughput(page)?, sizes(page)?], maps, loads?])
}
