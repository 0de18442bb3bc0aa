//! The results as a picture: throughput by request size, one panel for each pattern and phase.

use std::path::Path;

use halocline_os::counted::counted;
use halocline_os::error::Error;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::record::{Phase, Results, Run};
use super::table;
use crate::bar_chart::Area;
pub(crate) use crate::bar_chart::{DrawResult, colour};
use crate::failure::Failure;
use crate::output;
use crate::preflight;
use crate::replaceable::ResultKind;
use crate::text;

const PANEL_WIDTH: u32 = 420;
const PANEL_HEIGHT: u32 = 300;
const TITLE_HEIGHT: u32 = 40;
const LEGEND_LINE: u32 = 22;

type Chart<'a, 'b> = ChartContext<'b, SVGBackend<'a>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// The figure of a run that a panel shows.
struct Measure {
    title: &'static str,
    of: fn(&Run) -> Option<Throughput>,
}

/// 10^6 bytes a second, and the ratio to the origin alone.
type Throughput = (f64, Option<f64>);

const MEASURES: [Measure; 4] = [
    Measure { title: "write", of: |run| run.phase("write").map(plain) },
    Measure {
        title: "write, until all is on the origin",
        of: |run| {
            run.phase("write")
                .and_then(|phase| Some((phase.drained_mb_per_s?, phase.drained_ratio)))
        },
    },
    Measure { title: "first read", of: |run| run.phase("first_read").map(plain) },
    Measure { title: "read, second run", of: |run| run.phase("read").map(plain) },
];

fn plain(phase: &Phase) -> Throughput {
    (phase.mb_per_s, phase.ratio)
}

/// Checks, before anything is measured, that a plot can be written to `file`.
pub(crate) fn check(file: &Path) -> Result<(), Failure> {
    if file.extension().is_none_or(|extension| extension != "svg") {
        return Err(Failure::refused(format!(
            "--plot {}: plots are SVG; give a name that ends in .svg",
            file.display()
        )));
    }
    preflight::report_file(file, ResultKind::Plot).map_err(Failure::refused).map(drop)
}

/// Writes what `draw` draws, an SVG document, to `file`.
pub(crate) fn save(
    file: &Path,
    draw: impl FnOnce(&mut String) -> DrawResult,
) -> Result<(), Failure> {
    let mut svg = String::new();
    draw(&mut svg)
        .map_err(|error| Failure::failed(format!("the plot cannot be drawn: {error}")))?;
    Ok(output::write(file, svg).map_err(Error::at(file, "write the plot"))?)
}

/// Draws the results.
pub(super) fn draw(results: &Results, out: &mut String) -> DrawResult {
    let runs = &results.medians;
    let patterns = distinct(runs.iter().map(|run| run.key.pattern.clone()));
    let sizes = distinct(runs.iter().map(|run| run.key.request_size));
    let series = distinct(runs.iter().map(name));
    let measures: Vec<_> = MEASURES
        .iter()
        .filter(|measure| runs.iter().any(|run| (measure.of)(run).is_some()))
        .collect();
    Figure { results, patterns, sizes, series, measures }.draw(out)
}

fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    for value in values {
        if !found.contains(&value) {
            found.push(value);
        }
    }
    found
}

/// The meaning of a bar's colour. The cache's share is the same for every request size; its bytes may differ by a few
/// requests.
fn name(run: &Run) -> String {
    match (run.key.setup, &run.key.policy) {
        ("cached", Some(policy)) => format!("{policy}, cache {}", run.key.cache_limit),
        ("bare", _) => "bare directory".into(),
        _ => "origin alone".into(),
    }
}

struct Figure<'a> {
    results: &'a Results,
    patterns: Vec<String>,
    sizes: Vec<u64>,
    series: Vec<String>,
    measures: Vec<&'static Measure>,
}

impl Figure<'_> {
    fn draw(&self, out: &mut String) -> DrawResult {
        let [rows, columns, series] =
            [self.patterns.len(), self.measures.len(), self.series.len()].map(count);
        let width = PANEL_WIDTH * columns.max(2);
        let panels_end = TITLE_HEIGHT + PANEL_HEIGHT * rows;
        let size = (width, panels_end + LEGEND_LINE * series + LEGEND_LINE / 2);
        let root = SVGBackend::with_string(out, size).into_drawing_area();
        root.fill(&WHITE)?;
        let (title, rest) = root.split_vertically(TITLE_HEIGHT);
        let (panels, legend) = rest.split_vertically(PANEL_HEIGHT * rows);
        self.title(&title)?;
        let areas = panels.split_evenly((self.patterns.len(), self.measures.len()));
        let cells = self
            .patterns
            .iter()
            .flat_map(|pattern| self.measures.iter().map(move |measure| (pattern, *measure)));
        for (area, (pattern, measure)) in areas.iter().zip(cells) {
            self.panel(area, pattern, measure)?;
        }
        self.legend(&legend)?;
        root.present()?;
        Ok(())
    }

    fn title(&self, area: &Area<'_>) -> DrawResult {
        let title = format!(
            "halocline bench ior: {}, {}, {}",
            counted(self.results.processes, "process"),
            text::bytes(self.results.data_bytes),
            table::devices(self.results.devices.as_deref())
        );
        let style = ("sans-serif", 16).into_font().color(&BLACK);
        area.draw(&Text::new(title, (12, 14), style))?;
        Ok(())
    }

    fn panel(&self, area: &Area<'_>, pattern: &str, measure: &Measure) -> DrawResult {
        let bars = self.bars(pattern, measure);
        let highest = bars.iter().map(|bar| bar.mb_per_s).fold(1.0, f64::max) * 1.15;
        let mut chart = ChartBuilder::on(area)
            .caption(format!("{pattern}: {}", measure.title), ("sans-serif", 14))
            .margin(10)
            .x_label_area_size(28)
            .y_label_area_size(56)
            .build_cartesian_2d(0.0..f64::from(count(self.sizes.len())), 0.0..highest)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(0)
            .max_light_lines(0)
            .y_label_formatter(&|value| text::tick(*value))
            .y_desc("MB/s")
            .draw()?;
        for bar in &bars {
            chart.draw_series([Rectangle::new(
                [(bar.left, 0.0), (bar.right, bar.mb_per_s)],
                bar.colour.filled(),
            )])?;
            if let Some(ratio) = bar.ratio {
                let middle = f64::midpoint(bar.left, bar.right);
                label(&mut chart, (middle, bar.mb_per_s), -2, format!("{ratio:.2}x"), 10)?;
            }
        }
        for (index, bytes) in self.sizes.iter().enumerate() {
            let middle = f64::from(count(index)) + 0.5;
            label(&mut chart, (middle, 0.0), 20, text::bytes(*bytes), 12)?;
        }
        Ok(())
    }

    fn bars(&self, pattern: &str, measure: &Measure) -> Vec<Bar> {
        let runs = self.results.medians.iter().filter(|run| run.key.pattern == pattern);
        runs.filter_map(|run| {
            let (mb_per_s, ratio) = (measure.of)(run)?;
            let group = self.sizes.iter().position(|bytes| *bytes == run.key.request_size)?;
            let series = self.series.iter().position(|series| *series == name(run))?;
            let width = 0.84 / f64::from(count(self.series.len()));
            let left = f64::from(count(group)) + 0.08 + width * f64::from(count(series));
            let ratio = ratio.filter(|_| run.key.setup != "origin");
            let colour = colour(series);
            Some(Bar { left, right: left + width * 0.92, mb_per_s, ratio, colour })
        })
        .collect()
    }

    fn legend(&self, area: &Area<'_>) -> DrawResult {
        let style = ("sans-serif", 13).into_font().color(&BLACK);
        let line = i32::try_from(LEGEND_LINE)?;
        for (index, series) in (0..).zip(&self.series) {
            let top = index * line + 4;
            let swatch = [(60, top), (74, top + 14)];
            let series_index = usize::try_from(index)?;
            area.draw(&Rectangle::new(swatch, colour(series_index).filled()))?;
            area.draw(&Text::new(series.clone(), (82, top), style.clone()))?;
        }
        Ok(())
    }
}

/// A run in a panel, in the panel's coordinates.
struct Bar {
    left: f64,
    right: f64,
    mb_per_s: f64,
    ratio: Option<f64>,
    colour: RGBColor,
}

/// Text whose bottom middle is `down` pixels below a point of the chart.
fn label(
    chart: &mut Chart<'_, '_>,
    at: (f64, f64),
    down: i32,
    what: String,
    size: u32,
) -> DrawResult {
    let style =
        ("sans-serif", size).into_font().color(&BLACK).pos(Pos::new(HPos::Center, VPos::Bottom));
    chart.draw_series([EmptyElement::at(at) + Text::new(what, (0, down), style)])?;
    Ok(())
}

/// The number as the type of coordinates.
pub(crate) fn count(len: usize) -> u32 {
    u32::try_from(len).expect("a handful of cases")
}
