//! The meaning of the numbers in the output of `--json` and `--report`: one table, from which `docs/METRICS.md` is
//! generated.
//!
//! Keys, units and meanings are an interface that scripts rely on. A key may be added, but none changes its meaning.
//! Tests compare the table with the output, in both directions.

mod admission;
mod advise;
mod benched_advice;
mod benched_cluster;
mod benched_metadata;
mod cluster_fsck;
mod offline;
mod placement;
mod plan;
mod sections;
mod simulate;
mod table;
mod tokens;
mod trace;

use std::fmt::Write as _;

use serde_json::Value;

pub use sections::SECTIONS;

/// One key.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// Its place: names joined by dots, `[]` for each element of a list.
    pub key: &'static str,
    /// Unit, or the kind of value.
    pub unit: &'static str,
    /// What it says.
    pub meaning: &'static str,
}

/// The answer of one command.
#[derive(Debug, Clone, Copy)]
pub struct Section {
    /// The commands.
    pub commands: &'static str,
    /// What the answer is, and when it is requested.
    pub about: &'static str,
    /// Its keys.
    pub metrics: &'static [Metric],
    /// Keys of other sections that it includes, each under a prefix.
    pub within: &'static [(&'static str, &'static [Metric])],
}

const HEAD: &str = "\
# Metrics

<!-- Generated from crates/api/src/control/metrics by `halocline docs --pages-only docs`; do not edit. -->

What commands answer with `--json`, and what `halocline run --report FILE` writes. Keys are joined by dots, `[]` stands
for each element of a list. Keys, units and meanings stay as they are from version to version; keys may be added. Bytes are
bytes, never blocks or multiples; counters begin at 0 with the mount and only grow, gauges say how it is now. A path that is
not UTF-8 is a list of its bytes instead of a text.

`halocline model` answers in JSON lines, see [MODEL.md](MODEL.md); `halocline jobs make` prints a job file, see
[JOBS.md](JOBS.md).
";

/// The whole of `docs/METRICS.md`.
pub fn markdown() -> String {
    let mut out = HEAD.to_owned();
    for section in SECTIONS {
        let _ = write!(out, "\n## {}\n\n{}\n\n", section.commands, section.about);
        out.push_str("| key | unit | meaning |\n| --- | --- | --- |\n");
        for Metric { key, unit, meaning } in section.metrics {
            let _ = writeln!(out, "| `{key}` | {unit} | {meaning} |");
        }
    }
    out
}

impl Section {
    /// The section for the answers of `command`.
    pub fn find(command: &str) -> Option<&'static Self> {
        SECTIONS.iter().find(|section| section.commands.contains(command))
    }

    /// Keys of `answer` that the section does not describe.
    pub fn undescribed(&self, answer: &Value) -> Vec<String> {
        let described = self.keys();
        let stands_for_object = |key: &str| {
            let inside = format!("{key}.");
            described.iter().any(|key| key.starts_with(&inside))
        };
        let unknown = |(key, is_null): &(String, bool)| {
            !(described.contains(key) || *is_null && stands_for_object(key))
        };
        keys_of(answer).into_iter().filter(unknown).map(|(key, _)| key).collect()
    }

    /// All keys, those of other sections under their prefixes.
    fn keys(&self) -> Vec<String> {
        let own = self.metrics.iter().map(|metric| metric.key.to_owned());
        let within = self.within.iter().flat_map(|(prefix, metrics)| {
            metrics.iter().map(move |metric| format!("{prefix}{}", metric.key))
        });
        own.chain(within).collect()
    }
}

/// The paths of the values in `answer`, each once, and whether they are null.
fn keys_of(answer: &Value) -> Vec<(String, bool)> {
    let mut keys = Vec::new();
    add_keys(answer, "", &mut keys);
    keys.sort();
    keys.dedup();
    keys
}

fn add_keys(value: &Value, key: &str, keys: &mut Vec<(String, bool)>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                let dot = if key.is_empty() { "" } else { "." };
                add_keys(field, &format!("{key}{dot}{name}"), keys);
            }
        }
        Value::Array(elements) => {
            for element in elements {
                add_keys(element, &format!("{key}[]"), keys);
            }
        }
        _ => keys.push((key.to_owned(), value.is_null())),
    }
}

#[cfg(test)]
mod tests;
