//! The rules of the repository as programs. Each rule is one file below and a pure function from
//! the sources to findings, so that a canary source in its tests can prove that it barks.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

mod calls;
mod circles;
mod citations;
mod clocks;
mod drawing;
mod figures;
mod for_tests;
mod forbidden;
mod layers;
mod options;
mod ownership;
mod parsers;
mod promises;
mod reads;
mod records;
mod size;
mod source_paths;
mod uses;

/// A file of the repository.
pub(crate) struct Source {
    /// Path below the repository's root.
    pub(crate) path: String,
    /// Content.
    pub(crate) text: String,
    /// Syntax tree, for Rust sources.
    pub(crate) tree: Option<syn::File>,
}

impl Source {
    /// A source from its path and content; a Rust source that does not parse has no tree.
    pub(crate) fn new(path: impl Into<String>, text: impl Into<String>) -> Self {
        let (path, text) = (path.into(), text.into());
        let is_rust = Path::new(&path).extension().is_some_and(|end| end == "rs");
        let tree = if is_rust { syn::parse_file(&text).ok() } else { None };
        Self { path, text, tree }
    }
}

/// One broken rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    path: String,
    line: usize,
    what: String,
}

impl Finding {
    /// A finding; `line` counts from 1.
    pub(crate) fn new(source: &Source, line: usize, what: impl Into<String>) -> Self {
        Self { path: source.path.clone(), line, what: what.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// Exceptions of a rule, listed in the file `list`, from which nothing is excepted: the file is gone or has another name, or
/// the rule (`findings_in`) would find nothing there.
fn needless_exceptions(
    sources: &[Source],
    list: &str,
    exempt: &[&str],
    findings_in: fn(&Source) -> Vec<Finding>,
) -> Vec<Finding> {
    let Some(list) = sources.iter().find(|source| source.path == list) else { return Vec::new() };
    let needs_none = |path: &&&str| {
        let source = sources.iter().find(|source| source.path == **path);
        source.is_none_or(|source| findings_in(source).is_empty())
    };
    let found = exempt.iter().filter(needs_none).map(|path| {
        Finding::new(
            list,
            1,
            format!("{path} needs no exception from this rule: take it off the list"),
        )
    });
    found.collect()
}

/// The repository's root directory.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Runs every rule; the error lists the findings, one a line.
pub(crate) fn run() -> Result<(), String> {
    let sources = sources(&root())?;
    let ratchet = size::Ratchet::load(&root().join(size::RATCHET))?;
    let mut findings = layers::check(&sources);
    findings.extend(drawing::check(&sources));
    findings.extend(size::check(&sources, &ratchet));
    findings.extend(forbidden::check(&sources));
    findings.extend(clocks::check(&sources));
    findings.extend(reads::check(&sources));
    findings.extend(parsers::check(&sources));
    findings.extend(records::check(&sources));
    findings.extend(options::check(&sources));
    findings.extend(ownership::check(&sources));
    findings.extend(circles::check(&sources));
    findings.extend(promises::check(&sources));
    findings.extend(citations::check(&sources));
    findings.extend(source_paths::check(&sources));
    if findings.is_empty() {
        return Ok(());
    }
    let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
    Err(format!("{}\ntidy: {} findings", lines.join("\n"), findings.len()))
}

/// Lowers the ratchet to today's sizes; never raises it.
pub(crate) fn shrink() -> Result<(), String> {
    let path = root().join(size::RATCHET);
    let ratchet = size::Ratchet::load(&path)?.shrunk(&sources(&root())?);
    fs::write(&path, ratchet.to_toml()).map_err(|error| format!("{}: {error}", path.display()))
}

/// Prints figures of the structure, of this checkout or another one.
pub(crate) fn figures(dir: Option<&str>) -> Result<(), String> {
    let dir = dir.map_or_else(root, PathBuf::from);
    for line in figures::of(&sources(&dir)?) {
        println!("{line}");
    }
    Ok(())
}

/// All text files below a directory that git knows or would add.
fn sources(root: &Path) -> Result<Vec<Source>, String> {
    let listing = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .map_err(|error| format!("cannot run git: {error}; tidy needs a git checkout"))?;
    if !listing.status.success() {
        return Err("git ls-files failed; tidy needs a git checkout".to_owned());
    }
    let names = String::from_utf8_lossy(&listing.stdout);
    Ok(names
        .split_terminator('\0')
        .filter_map(|name| {
            // A deleted file is still listed; a binary file has no rules.
            let text = String::from_utf8(fs::read(root.join(name)).ok()?).ok()?;
            Some(Source::new(name, text))
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exception_for_nothing_is_found() {
        let breaks = |source: &Source| match source.text.as_str() {
            "wrong" => vec![Finding::new(source, 1, "wrong")],
            _ => Vec::new(),
        };
        let found = |list: &str, text: &str| {
            let sources = [Source::new("list.rs", ""), Source::new("a.txt", text)];
            needless_exceptions(&sources, list, &["a.txt"], breaks).len()
        };
        assert_eq!(found("list.rs", "wrong"), 0);
        assert_eq!(found("list.rs", "right"), 1);
        assert_eq!(found("none.rs", "right"), 0, "these are sources of a test");
        let renamed = [Source::new("list.rs", ""), Source::new("b.txt", "wrong")];
        assert_eq!(needless_exceptions(&renamed, "list.rs", &["a.txt"], breaks).len(), 1);
    }
}
