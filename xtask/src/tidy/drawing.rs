//! The drawing in `ARCHITECTURE.md` is what the manifests say: every crate has a box, an arrow between two boxes stands for
//! a dependency of a crate in the first on one in the second, and every dependency is an arrow or a way along several.
//!
//! Boxes have corners and joints of `+`. A box of crates begins with their names: `cache:`, or `sim, plan:`; any other box
//! is not looked at. Lines of `|` and `-` leave a box at a joint in its bottom, meet at a `+`, cross without one, and end
//! in a `v` above a box.

use std::collections::{BTreeMap, BTreeSet};

use super::layers::{Dependencies, TABLE, crate_of};
use super::{Finding, Source};

/// Finds what the drawing and the manifests do not agree on.
pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    let Some(page) = sources.iter().find(|source| source.path == TABLE) else {
        return Vec::new();
    };
    let uses: BTreeMap<&str, BTreeSet<String>> = sources
        .iter()
        .filter_map(|source| {
            let read = Dependencies::read(&source.text).ok()?;
            Some((crate_of(&source.path)?, read.used))
        })
        .collect();
    let drawing = Drawing::read(&page.text);
    let mut findings = Vec::new();
    let mut say = |line: usize, what: String| findings.push(Finding::new(page, line + 1, what));
    for (line, column) in &drawing.loose_ends {
        say(*line, format!("the line that ends at column {} leads to no box", column + 1));
    }
    let mut box_of: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, drawn) in drawing.boxes.iter().enumerate() {
        for name in &drawn.crates {
            if !uses.contains_key(name.as_str()) {
                say(drawn.top, format!("a box has the crate {name}, which has no manifest"));
            }
            if *box_of.entry(name).or_insert(index) != index {
                say(drawn.top, format!("the crate {name} has two boxes"));
            }
        }
    }
    for (from, to) in &drawing.arrows {
        let (from, to) = (&drawing.boxes[*from], &drawing.boxes[*to]);
        let is_used = |name: &String| {
            uses.get(name.as_str()).is_some_and(|used| to.crates.iter().any(|to| used.contains(to)))
        };
        if !from.crates.is_empty() && !to.crates.is_empty() && !from.crates.iter().any(is_used) {
            let (from_names, to_names) = (from.crates.join(", "), to.crates.join(", "));
            say(from.top, format!("an arrow says that {from_names} uses {to_names}: it does not"));
        }
    }
    for (name, used) in &uses {
        let Some(&from) = box_of.get(name) else {
            say(
                0,
                format!("no box has the crate {name}: draw one, or write it into one (`a, b:`)"),
            );
            continue;
        };
        let reached = drawing.reached_from(from);
        for other in used {
            if box_of.get(other.as_str()).is_some_and(|to| !reached.contains(to)) {
                let what = format!("{name} uses {other}, and no arrows lead from one to the other");
                say(drawing.boxes[from].top, what);
            }
        }
    }
    findings
}

/// The boxes of a page, and the arrows between them.
#[derive(Debug, Default)]
struct Drawing {
    boxes: Vec<DrawnBox>,
    /// From one box to another, by their index.
    arrows: BTreeSet<(usize, usize)>,
    /// Line and column of lines that end in no arrow above a box.
    loose_ends: BTreeSet<(usize, usize)>,
}

#[derive(Debug)]
struct DrawnBox {
    top: usize,
    bottom: usize,
    left: usize,
    right: usize,
    /// Their names; empty for a box of something else.
    crates: Vec<String>,
}

impl DrawnBox {
    /// The box whose corner is the `+` at this place, if one is.
    fn at(cells: &Cells, top: usize, left: usize) -> Option<Self> {
        let is_edge = |cell: char| cell == '-' || cell == '+';
        let is_side = |line: usize, column: usize| matches!(cells.at(line, column), '|' | '+');
        let width = cells.0[top].len();
        let length = (left + 1..width).take_while(|column| is_edge(cells.at(top, *column))).count();
        let right = (left + 1..=left + length).rev().find(|column| {
            cells.at(top, *column) == '+' && is_side(top + 1, left) && is_side(top + 1, *column)
        })?;
        let height = (top + 1..cells.0.len())
            .take_while(|line| is_side(*line, left) && is_side(*line, right))
            .find(|line| (left..=right).all(|column| is_edge(cells.at(*line, column))))?;
        let text: String = (left + 1..right).map(|column| cells.at(top + 1, column)).collect();
        let names = text.split_once(':').map_or("", |(names, _)| names);
        let is_name = |name: &str| {
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
        };
        let names: Vec<&str> = names.split(',').map(str::trim).collect();
        let crates = if names.iter().all(|name| is_name(name)) { names } else { Vec::new() };
        let crates = crates.into_iter().map(str::to_owned).collect();
        Some(Self { top, bottom: height, left, right, crates })
    }
}

/// The characters of a page, by line and column.
struct Cells(Vec<Vec<char>>);

impl Cells {
    fn at(&self, line: usize, column: usize) -> char {
        self.0.get(line).and_then(|line| line.get(column)).copied().unwrap_or(' ')
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Heading {
    Down,
    Up,
    Left,
    Right,
}

impl Drawing {
    /// Reads the first code block of a page.
    fn read(page: &str) -> Self {
        let mut fences = 0;
        let lines = page.lines().map(|line| {
            fences += u32::from(line.starts_with("```"));
            if fences == 1 { line.chars().collect() } else { Vec::new() }
        });
        let cells = Cells(lines.collect());
        let mut drawing = Self::default();
        for (line, columns) in cells.0.iter().enumerate() {
            for column in (0..columns.len()).filter(|column| columns[*column] == '+') {
                drawing.boxes.extend(DrawnBox::at(&cells, line, column));
            }
        }
        for from in 0..drawing.boxes.len() {
            let DrawnBox { bottom, left, right, .. } = drawing.boxes[from];
            for column in (left + 1..right).filter(|column| cells.at(bottom, *column) == '+') {
                drawing.follow(&cells, from, column);
            }
        }
        drawing
    }

    /// Follows the lines that leave a box at a joint in its bottom.
    fn follow(&mut self, cells: &Cells, from: usize, column: usize) {
        let mut known = BTreeSet::new();
        let mut todo = vec![(self.boxes[from].bottom + 1, column, Heading::Down)];
        while let Some((line, column, heading)) = todo.pop() {
            if !known.insert((line, column, heading)) {
                continue;
            }
            let is_vertical = matches!(heading, Heading::Down | Heading::Up);
            let enters = |found: &DrawnBox| (found.left..=found.right).contains(&column);
            match cells.at(line, column) {
                // Up to a joint of another box, whose line joins this one.
                '+' if heading == Heading::Up
                    && self.boxes.iter().any(|found| found.bottom == line && enters(found)) => {}
                '|' | '-' => todo.push(next(line, column, heading)),
                '+' => {
                    let turns = [Heading::Down, Heading::Up, Heading::Left, Heading::Right];
                    let goes_on = |turn: &Heading| {
                        let (line, column, _) = next(line, column, *turn);
                        let cell = cells.at(line, column);
                        match turn {
                            Heading::Down => matches!(cell, '|' | '+' | 'v'),
                            Heading::Up => matches!(cell, '|' | '+'),
                            Heading::Left | Heading::Right => matches!(cell, '-' | '+'),
                        }
                    };
                    todo.extend(
                        turns.into_iter().filter(goes_on).map(|turn| next(line, column, turn)),
                    );
                }
                'v' if is_vertical => {
                    let below = |found: &DrawnBox| found.top == line + 1 && enters(found);
                    match self.boxes.iter().position(below) {
                        Some(to) => drop(self.arrows.insert((from, to))),
                        None => drop(self.loose_ends.insert((line, column))),
                    }
                }
                _ => drop(self.loose_ends.insert((line, column))),
            }
        }
    }

    /// The boxes to which arrows lead from one, over others too.
    fn reached_from(&self, from: usize) -> BTreeSet<usize> {
        let (mut reached, mut todo) = (BTreeSet::new(), vec![from]);
        while let Some(at) = todo.pop() {
            let next = self.arrows.iter().filter(|arrow| arrow.0 == at).map(|arrow| arrow.1);
            todo.extend(next.filter(|to| reached.insert(*to)));
        }
        reached
    }
}

fn next(line: usize, column: usize, heading: Heading) -> (usize, usize, Heading) {
    match heading {
        Heading::Down => (line + 1, column, heading),
        Heading::Up => (line.saturating_sub(1), column, heading),
        Heading::Left => (line, column.saturating_sub(1), heading),
        Heading::Right => (line, column + 1, heading),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `top` and `side` use `low` through one line, `top` uses `base`, whose line crosses that one.
    const DRAWING: &str = "
```text
  +-----------+     +--------+
  | top: text |     | side:  |
  +--+-----+--+     +---+----+
     |     |            |
     +-----|-------+----+
           |       v
           |   +-----------+
           |   | low, as:  |
           |   +-----------+
           v
      +-----------+   +------------+
      | base: all |   | Not a crate|
      +-----------+   +------------+
```
";
    const MANIFESTS: [(&str, &[&str]); 5] =
        [("top", &["low", "base"]), ("side", &["as"]), ("low", &[]), ("as", &[]), ("base", &[])];

    fn findings(drawing: &str, manifests: &[(&str, &[&str])]) -> Vec<String> {
        let mut sources = vec![Source::new(TABLE, drawing)];
        sources.extend(manifests.iter().map(|(name, uses)| {
            let uses: Vec<_> =
                uses.iter().map(|used| format!("halocline-{used} = \"1\"")).collect();
            let manifest = format!("[dependencies]\n{}", uses.join("\n"));
            Source::new(format!("crates/{name}/Cargo.toml"), manifest)
        }));
        check(&sources).iter().map(ToString::to_string).collect()
    }

    /// That one finding has these words.
    fn found(drawing: &str, manifests: &[(&str, &[&str])], words: &str) {
        let found = findings(drawing, manifests);
        assert!(found.len() == 1 && found[0].contains(words), "{words}: {found:?}");
    }

    #[test]
    fn a_drawing_of_the_manifests_passes() {
        assert_eq!(findings(DRAWING, &MANIFESTS), [""; 0]);
        // A way over another box is enough.
        let mut further = MANIFESTS;
        further[2].1 = &["base"];
        let with_arrow = DRAWING
            .replace("  |   +-----------+", "  |   +-+---------+")
            .replace("           v\n", "           |     |\n           +-----+\n           v\n");
        assert_eq!(findings(&with_arrow, &further), [""; 0]);
        further[1].1 = &["as", "base"];
        assert_eq!(findings(&with_arrow, &further).len(), 0, "side reaches base over low");
    }

    #[test]
    fn what_they_do_not_agree_on_is_found() {
        let mut other = MANIFESTS;
        other[0].1 = &["low"];
        found(DRAWING, &other, "an arrow says that top uses base");
        let mut other = MANIFESTS;
        other[1].1 = &["as", "base"];
        found(DRAWING, &other, "side uses base");
        found(&DRAWING.replace("side:", "Side: "), &MANIFESTS, "no box has the crate side");
        let more = [&MANIFESTS[..], &[("new", &["low"])]].concat();
        found(DRAWING, &more, "no box has the crate new");
        found(&DRAWING.replace("base: all", "base, x: "), &MANIFESTS, "which has no manifest");
        let twice = DRAWING.replace("Not a crate", "low: again ");
        found(
            &twice,
            &[MANIFESTS[1], MANIFESTS[0], MANIFESTS[3], MANIFESTS[4], ("low", &[])],
            "two boxes",
        );
    }

    #[test]
    fn a_line_must_lead_somewhere() {
        let cut = DRAWING.replace("           v\n      +--", "            \n      +--");
        let found = findings(&cut, &MANIFESTS);
        assert!(found.iter().any(|what| what.contains("leads to no box")), "{found:?}");
        assert!(found.iter().any(|what| what.contains("top uses base")), "{found:?}");
    }
}
