//! The table of crates in `ARCHITECTURE.md` is what the manifests say: each crate stands there once, below all that it
//! uses, and its row names exactly the crates of this repository among its dependencies, those of its build script and of
//! single targets included. The compiler refuses uses that no manifest names, so that the table and the code are one
//! thing. What only tests use is not in it, but stands above, too: Cargo accepts circles of those.

use std::collections::{BTreeMap, BTreeSet};

use super::{Finding, Source};

pub(super) const TABLE: &str = "ARCHITECTURE.md";

/// Finds what the table and the manifests do not agree on.
pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    let Some(drawing) = sources.iter().find(|source| source.path == TABLE) else {
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
        let row = drawn.remove(name);
        let Dependencies { used, tested_with } = match Dependencies::read(&manifest.text) {
            Ok(read) => read,
            Err(error) => {
                findings.push(Finding::new(manifest, 1, format!("no manifest: {error}")));
                continue;
            }
        };
        for other in tested_with.iter().filter(|_| row.is_some()) {
            let is_above =
                |above: &&Row| above.name == other && Some(above.line) < row.map(|row| row.line);
            if !rows.iter().any(|above| is_above(&above)) {
                let what = format!(
                    "the tests of {name} use {other}, which must stand above it in {TABLE}"
                );
                findings.push(Finding::new(manifest, 1, what));
            }
        }
        match row {
            Some(row) if row.uses.iter().copied().eq(used.iter().map(String::as_str)) => {}
            Some(row) => {
                let what = format!("{name} uses {used:?} by its manifest, and {:?} here", row.uses);
                findings.push(Finding::new(drawing, row.line, what));
            }
            None => findings.push(Finding::new(manifest, 1, format!("{TABLE} has no row of it"))),
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

pub(super) fn crate_of(path: &str) -> Option<&str> {
    let name = path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml")?;
    (!name.contains('/')).then_some(name)
}

/// The crates of this repository that a manifest names, without the prefix of their names.
#[derive(Debug, Default)]
pub(super) struct Dependencies {
    /// By the crate, by its build script, or by either for some targets.
    pub(super) used: BTreeSet<String>,
    /// By its tests, benchmarks and examples only.
    tested_with: BTreeSet<String>,
}

impl Dependencies {
    pub(super) fn read(manifest: &str) -> Result<Self, toml::de::Error> {
        let manifest: toml::Table = toml::from_str(manifest)?;
        let mut found = Self::default();
        found.add(&manifest);
        let targets = manifest.get("target").and_then(toml::Value::as_table);
        for target in targets.into_iter().flat_map(toml::Table::values) {
            target.as_table().into_iter().for_each(|target| found.add(target));
        }
        Ok(found)
    }

    /// Adds those of a manifest's top level, or of one target. Cargo still reads the names with an underscore.
    fn add(&mut self, of: &toml::Table) {
        let named = |keys: &[&str]| -> Vec<String> {
            let tables = keys.iter().filter_map(|key| of.get(*key)?.as_table());
            tables.flatten().filter_map(own).collect()
        };
        self.used.extend(named(&["dependencies", "build-dependencies", "build_dependencies"]));
        self.tested_with.extend(named(&["dev-dependencies", "dev_dependencies"]));
    }
}

/// The crate of this repository that an entry means, which may give it another name.
fn own((key, value): (&String, &toml::Value)) -> Option<String> {
    let package = value.get("package").and_then(toml::Value::as_str).unwrap_or(key);
    package.strip_prefix("halocline-").map(|name| name.replace('-', "_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOW: &str = "[package]\n\n[dependencies]\ncsv = \"1\"\n";
    const HIGH: &str = "[package]\n\n[dependencies]\nhalocline-low = { workspace = true }\n\n\
                        [dev-dependencies]\nserde = \"1\"\n";

    fn findings(table: &str, manifests: &[(&str, &str)]) -> usize {
        let mut sources = vec![Source::new(TABLE, table)];
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
        assert_eq!(findings("| `crates/low` | | a |", &[("low", "[dependencies")]), 1);
        let twice = "| `crates/low` | | a |\n| `crates/low` | | a |\n| `crates/high` | `low` | b |";
        assert_eq!(findings(twice, &both), 1);
    }

    /// Regression: only `[dependencies]` was read, and all else could be used without being drawn.
    #[test]
    fn every_table_of_a_manifest_counts() {
        let table = |uses: &str| format!("| `crates/low` | | a |\n| `crates/high` | {uses} | b |");
        for high in [
            "build-dependencies.halocline-low.workspace = true",
            "[build_dependencies]\nhalocline-low = \"0\"",
            "[target.'cfg(fuzzing)'.dependencies]\nhalocline-low = { workspace = true }",
            "[target.x86_64-unknown-linux-gnu.build-dependencies.halocline-low]\npath = \"../low\"",
            "[dependencies.halocline-low]\npath = \"../low\"",
            "[dependencies]\nother = { package = \"halocline-low\", path = \"../low\" }",
        ] {
            let both = [("low", LOW), ("high", high)];
            assert_eq!(findings(&table("`low`"), &both), 0, "{high}");
            assert_eq!(findings(&table(""), &both), 1, "{high}");
        }
    }

    #[test]
    fn tests_use_what_stands_above() {
        let table = "| `crates/low` | | a |\n| `crates/high` | | b |";
        for section in ["dev-dependencies", "target.'cfg(unix)'.dev-dependencies"] {
            let with =
                |other: &str| format!("[{section}]\nhalocline-{other} = {{ workspace = true }}");
            let (low, high) = (with("low"), with("high"));
            assert_eq!(findings(table, &[("low", ""), ("high", &low)]), 0);
            assert_eq!(findings(table, &[("low", &high), ("high", "")]), 1);
            assert_eq!(findings(table, &[("low", ""), ("high", &high)]), 1);
        }
    }
}
