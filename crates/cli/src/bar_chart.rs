//! Charts shared by reports and benchmarks: rows of bars with their names and values.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// The area in which a figure is drawn.
pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The result of drawing.
pub(crate) type DrawResult = Result<(), Box<dyn std::error::Error>>;

/// Colours that people with any colour vision can distinguish (Okabe and Ito); grey is the origin.
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
/// Pixels for names left of the bars, and for values right of them.
const NAMES: i32 = 132;
const VALUES: i32 = 104;
/// Characters that fit beside a bar.
const LETTERS: usize = 21;

/// One row.
#[derive(Debug)]
pub(crate) struct Bar {
    /// Its name; a long one is cut.
    pub(crate) name: String,
    /// Its length, not negative.
    pub(crate) value: f64,
    /// The text after it.
    pub(crate) text: String,
    /// Its colour; the name must make sense without it.
    pub(crate) series: usize,
}

/// Rows of bars with a common scale from 0.
#[derive(Debug)]
pub(crate) struct Bars {
    /// From top to bottom.
    pub(crate) rows: Vec<Bar>,
    /// The largest value of the scale; `None`: that of the rows.
    pub(crate) most: Option<f64>,
}

impl Bars {
    /// Pixels from top to bottom.
    pub(crate) fn height(&self) -> u32 {
        ROW * u32::try_from(self.rows.len().max(1)).unwrap_or(1)
    }

    /// Draws them from the top of `area`.
    #[expect(clippy::cast_possible_truncation, reason = "pixels")]
    pub(crate) fn draw(&self, area: &Area<'_>) -> DrawResult {
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

/// The colour of a series; the first is for the baseline.
pub(crate) fn colour(series: usize) -> RGBColor {
    COLOURS[series % COLOURS.len()]
}

/// Text of 12 pixels, vertically centred beside a point.
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
