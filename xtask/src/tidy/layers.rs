//! The table of crates in `ARCHITECTURE.md` is what the manifests say: each crate stands there once, below all that it
//! uses, and its row names exactly the crates of this repository among its dependencies. The compiler refuses uses that no
//! manifest names, so that the drawing and the code are one thing. What only tests use is not drawn.

use std::collections::{BTreeMap, BTreeSet};

use super::{Finding, Source};

const DRAWING: &str = "ARCHITECTURE.md";

/// Finds what the table and the manifests do not agree on.
pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    let Some(drawing) = sources.iter().find(|source| source.path == DRAWING) else {
        return Vec::new();
    };
    let rows: Vec<Row> = drawing.text.lines().enumerate().filter_map(Row::read).collect();
    let mut drawn: BTreeMap<&str, &Row> = BTreeMap::new();
    let mut findings = Vec::new();
    for row in &rows {
        for used in row.uses.iter().filter(|used| !drawn.contains_key(*used)) {
            let what = format!("{} uses {used}, which must stand in a row above it", row.name);
            findings.push(Finding::new(drawing, row.line, what));
        }
        if drawn.insert(row.name, row).is_some() {
            let what = format!("{} stands here twice", row.name);
            findings.push(Finding::new(drawing, row.line, what));
        }
    }
    for manifest in sources {
        let Some(name) = crate_of(&manifest.path) else { continue };
        let used = dependencies(&manifest.text);
        match drawn.remove(name) {
            Some(row) if row.uses == used => {}
            Some(row) => {
                let what = format!("{name} uses {used:?} by its manifest, and {:?} here", row.uses);
                findings.push(Finding::new(drawing, row.line, what));
            }
            None => findings.push(Finding::new(manifest, 1, format!("{DRAWING} has no row of it"))),
        }
    }
    findings.extend(drawn.values().map(|row| {
        Finding::new(drawing, row.line, format!("there is no manifest of crates/{}", row.name))
    }));
    findings
}

/// A crate in the table: its first cell is its directory, its second the crates that it uses.
struct Row<'a> {
    line: usize,
    name: &'a str,
    uses: BTreeSet<&'a str>,
}

impl<'a> Row<'a> {
    fn read((index, line): (usize, &'a str)) -> Option<Self> {
        let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
        let name = cells.next()?.strip_prefix("`crates/")?.strip_suffix('`')?;
        let uses = cells.next()?.split('`').skip(1).step_by(2).collect();
        Some(Self { line: index + 1, name, uses })
    }
}

fn crate_of(path: &str) -> Option<&str> {
    let name = path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml")?;
    (!name.contains('/')).then_some(name)
}

/// The crates of this repository in the section `[dependencies]`.
fn dependencies(manifest: &str) -> BTreeSet<&str> {
    let section = manifest.split("\n[").find(|part| part.starts_with("dependencies]"));
    let lines = section.unwrap_or_default().lines();
    lines
        .filter_map(|line| line.strip_prefix("halocline-")?.split([' ', '.', '=']).next())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOW: &str = "[package]\n\n[dependencies]\ncsv = \"1\"\n";
    const HIGH: &str = "[package]\n\n[dependencies]\nhalocline-low = { workspace = true }\n\n\
                        [dev-dependencies]\nhalocline-testkit = { workspace = true }\n";

    fn findings(table: &str, manifests: &[(&str, &str)]) -> usize {
        let mut sources = vec![Source::new(DRAWING, table)];
        sources.extend(
            manifests
                .iter()
                .map(|(name, text)| Source::new(format!("crates/{name}/Cargo.toml"), *text)),
        );
        check(&sources).len()
    }

    #[test]
    fn a_table_that_says_what_the_manifests_say_passes() {
        let table =
            "| crate | uses | holds |\n| `crates/low` | | a |\n| `crates/high` | `low` | b |";
        assert_eq!(findings(table, &[("low", LOW), ("high", HIGH)]), 0);
    }

    #[test]
    fn what_they_do_not_agree_on_is_found() {
        let both = [("low", LOW), ("high", HIGH)];
        let silent = "| `crates/low` | | a |\n| `crates/high` | | b |";
        assert_eq!(findings(silent, &both), 1);
        let upside_down = "| `crates/high` | `low` | b |\n| `crates/low` | | a |";
        assert_eq!(findings(upside_down, &both), 1);
        let too_much = "| `crates/low` | | a |\n| `crates/other` | | c |\n| `crates/high` | `low`, `other` | b |";
        assert_eq!(findings(too_much, &both), 2);
        assert_eq!(findings("| `crates/high` | `low` | b |", &both), 2);
        assert_eq!(findings("| `crates/low` | | a |", &both), 1);
        let twice = "| `crates/low` | | a |\n| `crates/low` | | a |\n| `crates/high` | `low` | b |";
        assert_eq!(findings(twice, &both), 1);
    }
}
