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
mod forbidden;
mod layers;
mod options;
mod ownership;
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

/// The repository's root directory.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Runs every rule; the error lists the findings, one a line.
pub(crate) fn run() -> Result<(), String> {
    let sources = sources()?;
    let ratchet = size::Ratchet::load(&root().join(size::RATCHET))?;
    let mut findings = layers::check(&sources);
    findings.extend(size::check(&sources, &ratchet));
    findings.extend(forbidden::check(&sources));
    findings.extend(clocks::check(&sources));
    findings.extend(reads::check(&sources));
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
    let ratchet = size::Ratchet::load(&path)?.shrunk(&sources()?);
    fs::write(&path, ratchet.to_toml()).map_err(|error| format!("{}: {error}", path.display()))
}

/// All text files that git knows or would add.
fn sources() -> Result<Vec<Source>, String> {
    let listing = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
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
            let text = String::from_utf8(fs::read(root().join(name)).ok()?).ok()?;
            Some(Source::new(name, text))
        })
        .collect())
}
