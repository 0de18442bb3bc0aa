//! Documents name source files that exist: `` `cache/redirect.rs` `` is a file of the crate `cache`, `` `flush/sweep.rs` ``
//! the end of a path of the repository, and `` `cache::redirect` `` a module of a crate, or an item of one. Also outside of
//! code letters, a path from the root (`bench/overhead.py`) leads to a file or a directory.
//!
//! Decision records name what is there today, too; of what is gone they say where it was then: `` then in `ring.rs` ``. The
//! changelog tells of the past and is left alone.

use std::collections::BTreeSet;
use std::path::Path;

use super::{Finding, Source};

const CHANGELOG: &str = "CHANGELOG.md";
const DECISIONS: &str = "docs/decisions/";
/// What stands before the name of a file that is gone, in a decision record.
const GONE: [&str; 2] = ["then ", "then in "];
/// Stands for a name in a recipe.
const PLACEHOLDER: &str = "NAME";

/// Finds names of files and modules that are not there.
pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    let paths: BTreeSet<&str> = sources.iter().map(|source| source.path.as_str()).collect();
    let is_document = |source: &&Source| {
        let path = source.path.as_str();
        Path::new(path).extension().is_some_and(|end| end == "md") && path != CHANGELOG
    };
    let tops: BTreeSet<&str> =
        paths.iter().filter_map(|path| Some(path.split_once('/')?.0)).collect();
    let mut findings = Vec::new();
    for source in sources.iter().filter(is_document) {
        let tells_of_the_past = source.path.starts_with(DECISIONS);
        let is_gone =
            |before: &str| tells_of_the_past && GONE.iter().any(|gone| before.ends_with(gone));
        for (index, line) in source.text.lines().enumerate() {
            for word in line.split_whitespace() {
                let before = &line[..word.as_ptr().addr() - line.as_ptr().addr()];
                let Some(path) = from_root(&tops, word).filter(|_| !is_gone(before)) else {
                    continue;
                };
                let inside = format!("{path}/");
                if !paths.iter().any(|there| *there == path || there.starts_with(&inside)) {
                    let what = format!("there is no {path} in the repository");
                    findings.push(Finding::new(source, index + 1, what));
                }
            }
            let parts: Vec<&str> = line.split('`').collect();
            for part in parts.chunks_exact(2).filter(|part| !is_gone(part[0])) {
                if let Some(what) = missing(&paths, part[1]) {
                    findings.push(Finding::new(source, index + 1, what));
                }
            }
        }
    }
    findings
}

/// The path from the root that a word of a document is. Sources are left to the other rules, and so are paths with a
/// placeholder, in capitals or brackets, and documents, whose names are in capitals.
fn from_root<'a>(tops: &BTreeSet<&str>, word: &'a str) -> Option<&'a str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    let path = word.trim_matches(|c: char| !is_part(c)).trim_end_matches(['/', '.']);
    let (top, rest) = path.split_once('/')?;
    let has_capitals = rest.as_bytes().windows(2).any(|two| two.iter().all(u8::is_ascii_uppercase));
    let is_plain = rest.chars().all(is_part) && !has_capitals;
    let is_source = Path::new(path).extension().is_some_and(|end| end == "rs");
    (tops.contains(top) && is_plain && !is_source).then_some(path)
}

/// What is wrong with a word in code letters, if it names a source.
fn missing(paths: &BTreeSet<&str>, code: &str) -> Option<String> {
    // A test as `file.rs::function` is another rule's.
    let is_file = Path::new(code).extension().is_some_and(|end| end == "rs")
        && code.bytes().all(|b| b.is_ascii_alphanumeric() || b"/_-.".contains(&b))
        && !code.contains(PLACEHOLDER);
    if is_file {
        let end = format!("/{code}");
        let short = code.split_once('/').map(|(krate, file)| format!("crates/{krate}/src/{file}"));
        let there = paths.contains(code)
            || short.is_some_and(|path| paths.contains(&*path))
            || paths.iter().any(|path| path.ends_with(&end));
        return (!there).then(|| format!("there is no {code}"));
    }
    let mut parts = code.split("::");
    let krate = parts.next()?;
    let inside: Vec<&str> = parts.collect();
    let root = format!("crates/{krate}/src");
    let is_crate = ["lib", "main"].iter().any(|top| paths.contains(&*format!("{root}/{top}.rs")));
    if !is_crate || inside.is_empty() || inside.contains(&"") {
        return None;
    }
    let file = |parts: &[&str]| format!("{root}/{}.rs", parts.join("/"));
    let module = paths.contains(file(&inside).as_str());
    let item = inside.len() > 1 && paths.contains(file(&inside[..inside.len() - 1]).as_str());
    (!module && !item).then(|| format!("there is no module or item {code}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> usize {
        let sources = [
            Source::new("crates/cache/src/lib.rs", ""),
            Source::new("crates/cache/src/components.rs", ""),
            Source::new("bench/measure.py", ""),
            Source::new(path, text),
        ];
        check(&sources).len()
    }

    #[test]
    fn what_is_there_may_be_named() {
        let text = "`cache/components.rs`, `src/components.rs`, `crates/cache/src/lib.rs`, `cache::components::let_go`, \
                    `cache::components`, `admit/NAME.rs`, `a.rs::test`, `Config::load`, `*.rs`, \
                    `bench/measure.py --all`, (crates/cache/src), `bench/NAME.py`, crates/, other/file, and/or, `crates/{a,b}`";
        assert_eq!(findings("ARCHITECTURE.md", text), 0);
    }

    #[test]
    fn what_is_not_there_is_found() {
        for text in [
            "Run bench/other.py.",
            "`crates/room --x`",
            "`cache/room.rs`",
            "`omponents.rs`",
            "`cache::room`",
            "`cache::tier::a::b`",
        ] {
            assert_eq!(findings("docs/INVARIANTS.md", text), 1, "{text}");
            assert_eq!(findings("docs/decisions/0001-a.md", text), 1, "{text}");
            assert_eq!(findings("CHANGELOG.md", text), 0, "{text}");
        }
    }

    #[test]
    fn a_decision_says_where_something_was_then() {
        let text = "It is in a ring (then in `ring.rs`, and then `cache/room.rs`), in what was then `crates/room`.";
        assert_eq!(findings("docs/decisions/0001-a.md", text), 0);
        assert_eq!(findings("docs/DESIGN.md", text), 3);
        assert_eq!(findings("docs/decisions/0001-a.md", "then `cache::room`, `cache/room.rs`"), 1);
    }
}
