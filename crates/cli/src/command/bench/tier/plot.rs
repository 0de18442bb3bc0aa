//! The results as a picture: what the mount achieves of its baselines, the paper's ratios beside ours, and what each
//! policy moved.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::Results;
use super::policies::Line;
use crate::bar_chart::Area;
use crate::command::bench::plot::{DrawResult, colour, count};
use crate::text;

const WIDTH: u32 = 880;
/// Pixels left of the bars, where their names stand.
const NAMES: u32 = 330;
const BAR: u32 = 26;
/// Title, axis and legend of bars.
const AROUND_BARS: u32 = 90;
const CURVES: u32 = 360;
const LEGEND: i32 = 18;

/// Ratios of one part of the measurement.
struct Bars {
    title: String,
    /// What the second bar of a pair is.
    other: &'static str,
    pairs: Vec<Bar>,
}

/// The ratio of one item on the mount, and another beside it.
pub(super) struct Bar {
    pub(super) name: String,
    pub(super) ours: f64,
    pub(super) other: Option<f64>,
}

/// Draws the results.
pub(super) fn draw(results: &Results, out: &mut String) -> DrawResult {
    let rows = results.rows.iter().map(|row| Bar {
        name: format!("{} (of {})", row.what, row.baseline_name),
        ours: row.ratio,
        other: row.mergerfs_ratio,
    });
    let mut parts = vec![Bars {
        title: "bench tier: ratio to the baseline, higher is better".to_owned(),
        other: "mergerfs",
        pairs: rows.collect(),
    }];
    parts.extend(results.figures.as_ref().map(|figures| Bars {
        title: "bench tier: the paper's figures, EMULATED devices, ratio to the disk".to_owned(),
        other: "the paper",
        pairs: figures.bars(),
    }));
    parts.retain(|part| !part.pairs.is_empty());
    let curves = workloads(&results.policies);
    let height = parts.iter().map(Bars::height).sum::<u32>() + CURVES * count(curves.len());
    let root = SVGBackend::with_string(out, (WIDTH, height.max(1))).into_drawing_area();
    root.fill(&WHITE)?;
    let mut rest = root.clone();
    for part in &parts {
        let (area, below) = rest.split_vertically(part.height());
        part.draw(&area)?;
        rest = below;
    }
    for lines in &curves {
        let (area, below) = rest.split_vertically(CURVES);
        draw_curves(&area, lines)?;
        rest = below;
    }
    root.present()?;
    Ok(())
}

impl Bars {
    fn height(&self) -> u32 {
        AROUND_BARS + BAR * count(self.pairs.len())
    }

    fn draw(&self, area: &Area<'_>) -> DrawResult {
        let ratios = || self.pairs.iter().flat_map(|bar| [Some(bar.ours), bar.other]).flatten();
        let least = ratios().fold(1.0, f64::min) / 2.0;
        let most = ratios().fold(1.0, f64::max) * 2.0;
        let rows = f64::from(count(self.pairs.len()));
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, ("sans-serif", 14))
            .margin(10)
            .margin_bottom(LEGEND + 12)
            .x_label_area_size(24)
            .y_label_area_size(NAMES)
            .build_cartesian_2d((least..most).log_scale(), 0.0..rows)?;
        chart.configure_mesh().disable_y_mesh().y_labels(0).max_light_lines(0).draw()?;
        for (bar, below) in self.pairs.iter().zip(0..) {
            let top = rows - f64::from(below);
            let end = if bar.other.is_some() { 0.5 } else { 0.9 };
            let pair = [Some((bar.ours, 0.1, end, 1)), bar.other.map(|ratio| (ratio, 0.5, 0.9, 2))];
            for (ratio, from, to, series) in pair.into_iter().flatten() {
                let corners = [(least, top - from), (ratio, top - to)];
                chart.draw_series([Rectangle::new(corners, colour(series).filled())])?;
                let at = EmptyElement::at((ratio, top - f64::midpoint(from, to)));
                let figure = Text::new(format!("{ratio:.2}"), (4, 0), beside(HPos::Left));
                chart.draw_series([at + figure])?;
            }
            let at = EmptyElement::at((least, top - 0.5));
            chart.draw_series([at + Text::new(bar.name.clone(), (-6, 0), beside(HPos::Right))])?;
        }
        chart.draw_series([PathElement::new([(1.0, 0.0), (1.0, rows)], BLACK)])?;
        legend(area, &["the tier mount".to_owned(), self.other.to_owned()], 1)
    }
}

/// The lines of each workload.
fn workloads(lines: &[Line]) -> Vec<Vec<&Line>> {
    let mut found: Vec<Vec<&Line>> = Vec::new();
    for line in lines {
        match found.last_mut().filter(|last| last[0].workload == line.workload) {
            Some(last) => last.push(line),
            None => found.push(vec![line]),
        }
    }
    found
}

fn draw_curves(area: &Area<'_>, lines: &[&Line]) -> DrawResult {
    let mut names: Vec<String> = lines[0].moved.iter().map(|(name, _)| name.clone()).collect();
    let mut curves: Vec<Vec<(f64, f64)>> = (0..names.len())
        .map(|policy| lines.iter().map(|line| (line.ratio, float(line.moved[policy].1))).collect())
        .collect();
    if lines.iter().all(|line| line.optimum.is_some()) {
        names.push("the optimum".to_owned());
        let least = |line: &&Line| (line.ratio, float(line.optimum.unwrap_or_default()));
        curves.push(lines.iter().map(least).collect());
    }
    let most = curves.iter().flatten().map(|point| point.1).fold(1.0, f64::max) * 1.05;
    let (first, last) = (lines[0].ratio, lines[lines.len() - 1].ratio);
    let mut chart = ChartBuilder::on(area)
        .caption(format!("policies: {}", lines[0].workload), ("sans-serif", 14))
        .margin(10)
        .margin_bottom(LEGEND + 12)
        .x_label_area_size(40)
        .y_label_area_size(80)
        .build_cartesian_2d((first..last).log_scale(), 0.0..most)?;
    chart
        .configure_mesh()
        .max_light_lines(0)
        .x_labels(0)
        .x_desc("working set over SSD")
        .y_desc("MB from and to the disk")
        .y_label_formatter(&|value| text::tick(*value))
        .draw()?;
    for line in lines {
        let style = beside(HPos::Center);
        let at = EmptyElement::at((line.ratio, 0.0));
        chart.draw_series([at + Text::new(format!("{}", line.ratio), (0, 12), style)])?;
    }
    for (series, points) in curves.into_iter().enumerate() {
        // Earlier lines are wider, so that they remain visible behind later ones that coincide with them.
        let width = 6_u32.saturating_sub(2 * count(series)).max(2);
        let dots: Vec<_> =
            points.iter().map(|at| Circle::new(*at, 3, colour(series).filled())).collect();
        chart.draw_series([PathElement::new(points, colour(series).stroke_width(width))])?;
        chart.draw_series(dots)?;
    }
    legend(area, &names, 0)
}

/// One line of swatches at the bottom of an area, with colours from `first` on.
fn legend(area: &Area<'_>, names: &[String], first: usize) -> DrawResult {
    let top = i32::try_from(area.dim_in_pixel().1)? - LEGEND;
    let mut left = 60;
    for (index, name) in names.iter().enumerate() {
        let swatch = [(left, top), (left + 12, top + 12)];
        area.draw(&Rectangle::new(swatch, colour(first + index).filled()))?;
        let style = ("sans-serif", 12).into_font().color(&BLACK);
        area.draw(&Text::new(name.clone(), (left + 18, top), style))?;
        left += 40 + 8 * i32::try_from(name.len())?;
    }
    Ok(())
}

/// Small text whose middle is beside a point.
fn beside(side: HPos) -> TextStyle<'static> {
    ("sans-serif", 11).into_font().color(&BLACK).pos(Pos::new(side, VPos::Center))
}

#[expect(clippy::cast_precision_loss, reason = "megabytes")]
const fn float(value: u64) -> f64 {
    value as f64
}
