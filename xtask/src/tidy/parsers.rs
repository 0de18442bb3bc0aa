//! Bytes that others may have written are decoded where a fuzz target gets (`fuzz/`): `fuzz/parsers.toml` names for each file that
//! decodes bytes or text the targets that reach it, or why nothing from outside gets there. So a new parser does not stay
//! without a target unnoticed. What parses without any of these functions is not seen.

use std::collections::{BTreeMap, BTreeSet};

use super::calls::{self, Calls};
use super::{Finding, Source};

/// The table.
const TABLE: &str = "fuzz/parsers.toml";
/// Where the targets are.
const TARGETS: &str = "fuzz/fuzz_targets/";
/// Functions that make values of bytes or text, by the last part of their paths, which have more parts than that.
const FUNCTIONS: [&str; 10] = [
    "from_be_bytes",
    "from_le_bytes",
    "from_redis_value",
    "from_slice",
    "from_str",
    "from_str_radix",
    "from_utf8",
    "parse_redis_value",
    "read_from_bytes",
    "read_from_prefix",
];

/// The content of the table: files by what is said of them.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    /// Files that a target reaches.
    targets: BTreeMap<String, Vec<String>>,
    /// Files that need none, by the reason.
    none: BTreeMap<String, Vec<String>>,
}

/// Finds parsers without a target, targets that are said to reach nothing, and rows for nothing.
pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    let Some(list) = sources.iter().find(|source| source.path == TABLE) else { return Vec::new() };
    let table: Table = match toml::from_str(&list.text) {
        Ok(table) => table,
        Err(error) => return vec![Finding::new(list, 1, error.to_string())],
    };
    let parsers: BTreeMap<&str, usize> = sources
        .iter()
        .filter(is_product)
        .filter_map(|source| Some((source.path.as_str(), first_in(source)?)))
        .collect();
    let told: BTreeSet<&str> =
        table.targets.values().chain(table.none.values()).flatten().map(String::as_str).collect();
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| !told.contains(source.path.as_str())) {
        if let Some(line) = parsers.get(source.path.as_str()) {
            let what = format!(
                "this decodes bytes or text: say in {TABLE} which fuzz target reaches it, or why nothing from outside does"
            );
            findings.push(Finding::new(source, *line, what));
        }
    }
    let mut wrong = |what: String| findings.push(Finding::new(list, 1, what));
    let exists = |path: &str| sources.iter().any(|source| source.path == path);
    for (target, files) in &table.targets {
        if !exists(&format!("{TARGETS}{target}.rs")) {
            wrong(format!("there is no fuzz target {target}"));
        }
        for file in files.iter().filter(|file| !exists(file)) {
            wrong(format!("there is no file {file}, which {target} is said to reach"));
        }
    }
    for file in table.none.values().flatten().filter(|file| !parsers.contains_key(file.as_str())) {
        wrong(format!("{file} decodes nothing: take it off the list"));
    }
    let targets =
        sources.iter().filter_map(|source| source.path.strip_prefix(TARGETS)?.strip_suffix(".rs"));
    for target in targets.filter(|target| !table.targets.contains_key(*target)) {
        wrong(format!("which file does the fuzz target {target} reach?"));
    }
    findings
}

fn is_product(source: &&Source) -> bool {
    let inner = source.path.strip_prefix("crates/").and_then(|path| path.split_once("/src/"));
    inner.is_some_and(|(name, inner)| {
        !["testkit", "schedules"].contains(&name)
            && !["tests", "fuzz"]
                .iter()
                .any(|part| format!("/{inner}").contains(&format!("/{part}")))
    })
}

/// The line of the first call that decodes something.
fn first_in(source: &Source) -> Option<usize> {
    let mut found = Found(None);
    calls::outside_tests(source.tree.as_ref()?, &mut found);
    found.0
}

struct Found(Option<usize>);

impl Calls for Found {
    fn path(&mut self, _: &str, name: &str, at: proc_macro2::Span) {
        if FUNCTIONS.contains(&name) {
            self.0.get_or_insert(at.start().line);
        }
    }

    fn method(&mut self, call: &syn::ExprMethodCall) {
        if call.method == "parse" && call.args.is_empty() {
            self.0.get_or_insert(call.method.span().start().line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The findings about a parser beside a table with these lines.
    fn findings(text: &str, targets: &str, none: &str) -> Vec<String> {
        let table = format!("[targets]\n{targets}\n[none]\n{none}\n");
        let sources = [
            Source::new(TABLE, table),
            Source::new(format!("{TARGETS}a_thing.rs"), ""),
            Source::new("crates/a/src/b.rs", text),
        ];
        check(&sources).into_iter().map(|finding| finding.to_string()).collect()
    }

    const REACHED: &str = "a_thing = [\"crates/a/src/b.rs\"]";
    const PARSER: &str = "fn f(a: &[u8]) -> u32 {\n    serde_json::from_slice(a).unwrap()\n}";

    #[test]
    fn a_parser_without_a_target_is_found() {
        let found = findings(PARSER, "a_thing = []", "");
        assert!(found.len() == 1 && found[0].starts_with("crates/a/src/b.rs:2: "), "{found:?}");
        for text in [
            "fn f(a: &str) -> Option<u32> { a.parse().ok() }",
            "fn f(a: [u8; 4]) -> u32 { u32::from_le_bytes(a) }",
            "fn f(a: &[u8]) -> Option<&str> { std::str::from_utf8(a).ok() }",
        ] {
            assert_eq!(findings(text, "a_thing = []", "").len(), 1, "{text}");
        }
        let for_tests = "#[cfg(any(test, fuzzing))]\nmod m { fn f(a: [u8; 4]) -> u32 { u32::from_le_bytes(a) } }";
        assert_eq!(findings(for_tests, "a_thing = []", ""), [""; 0]);
    }

    #[test]
    fn a_parser_that_a_target_reaches_or_that_needs_none_is_not() {
        assert_eq!(findings(PARSER, REACHED, ""), [""; 0]);
        assert_eq!(findings(PARSER, "a_thing = []", "\"ours\" = [\"crates/a/src/b.rs\"]"), [""; 0]);
    }

    #[test]
    fn rows_for_nothing_are_found() {
        assert_eq!(findings("", "a_thing = []", "\"ours\" = [\"crates/a/src/b.rs\"]").len(), 1);
        assert_eq!(findings("", "a_thing = [\"crates/a/src/c.rs\"]", "").len(), 1);
        assert_eq!(findings("", "a_thing = []\nother = []", "").len(), 1);
        assert_eq!(findings("", "", "").len(), 1, "a target of nothing");
        assert_eq!(findings("", "a_thing = 1", "").len(), 1, "no such table");
    }
}
