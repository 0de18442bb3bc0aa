//! Figures that reports and benchmarks share: rows of bars that say their names and values.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Where a figure is drawn.
pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Whether it could be drawn.
pub(crate) type Drawn = Result<(), Box<dyn std::error::Error>>;

/// Colours that people with any colour vision tell apart (Okabe and Ito); grey is the origin.
const COLOURS: [RGBColor; 8] = [
    RGBColor(128, 128, 128),
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(213, 94, 0),
    RGBColor(86, 180, 233),
    RGBColor(204, 121, 167),
    RGBColor(240, 228, 66),
];

/// Pixels of a row.
const ROW: u32 = 24;
/// Pixels left of the bars, where their names stand, and right of them, where their values do.
const NAMES: i32 = 132;
const VALUES: i32 = 104;
/// Letters that fit beside a bar.
const LETTERS: usize = 21;

/// One row.
#[derive(Debug)]
pub(crate) struct Bar {
    /// What it is; a long name is cut.
    pub(crate) name: String,
    /// Its length, not negative.
    pub(crate) value: f64,
    /// What stands behind it.
    pub(crate) text: String,
    /// Its colour, for those who see it; nothing else says what the name does not.
    pub(crate) series: usize,
}

/// Rows of bars with one scale from 0.
#[derive(Debug)]
pub(crate) struct Bars {
    /// From the top.
    pub(crate) rows: Vec<Bar>,
    /// The value of the longest bar that there may be; by the rows if `None`.
    pub(crate) most: Option<f64>,
}

impl Bars {
    /// Pixels from top to bottom.
    pub(crate) fn height(&self) -> u32 {
        ROW * u32::try_from(self.rows.len().max(1)).unwrap_or(1)
    }

    /// Draws them from the top of `area`.
    #[expect(clippy::cast_possible_truncation, reason = "pixels")]
    pub(crate) fn draw(&self, area: &Area<'_>) -> Drawn {
        let room = (i32::try_from(area.dim_in_pixel().0)? - NAMES - VALUES).max(1);
        let largest = self.rows.iter().map(|row| row.value).fold(0.0, f64::max);
        let most = self.most.unwrap_or(largest).max(f64::MIN_POSITIVE);
        for (row, top) in self.rows.iter().zip((0..).step_by(ROW as usize)) {
            let share = (row.value / most).clamp(0.0, 1.0);
            let end = NAMES + (f64::from(room) * share).round() as i32;
            let middle = top + i32::try_from(ROW / 2)?;
            area.draw(&Text::new(shortened(&row.name), (NAMES - 8, middle), beside(HPos::Right)))?;
            let corners = [(NAMES, top + 3), (end.max(NAMES + 1), top + 21)];
            area.draw(&Rectangle::new(corners, colour(row.series).filled()))?;
            area.draw(&Text::new(row.text.clone(), (end + 6, middle), beside(HPos::Left)))?;
        }
        let bottom = i32::try_from(self.height())?;
        area.draw(&PathElement::new([(NAMES, 0), (NAMES, bottom)], BLACK))?;
        Ok(())
    }
}

/// The colour of a series; the first is for what others are compared with.
pub(crate) fn colour(series: usize) -> RGBColor {
    COLOURS[series % COLOURS.len()]
}

/// Text of 12 pixels whose middle is beside a point.
pub(crate) fn beside(side: HPos) -> TextStyle<'static> {
    ("sans-serif", 15).into_font().color(&BLACK).pos(Pos::new(side, VPos::Center))
}

/// The end of a name says more than its beginning.
fn shortened(name: &str) -> String {
    let letters = name.chars().count();
    if letters <= LETTERS {
        return name.to_owned();
    }
    let end: String = name.chars().skip(letters - LETTERS + 1).collect();
    format!("\u{2026}{end}")
}
