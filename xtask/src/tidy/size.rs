//! Files of at most 500 lines, functions of at most 70. The few exceptions stand in a ratchet
//! file with their size of today; they may only shrink.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::{Finding, Source};

/// The ratchet's path below the repository's root.
pub(crate) const RATCHET: &str = "xtask/ratchet.toml";
const FILE_LINES_MAX: usize = 500;
const FUNCTION_LINES_MAX: usize = 70;
const HEADER: &str =
    "# Sizes in lines above the limits (500 a file, 70 a function) that are accepted for now.
# They may only shrink: `cargo x tidy --shrink`. Add no entry; split the file or function.
";

/// Accepted sizes above the limits, in lines.
#[derive(Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Ratchet {
    /// By path.
    #[serde(default)]
    files: BTreeMap<String, usize>,
    /// By `path::function`.
    #[serde(default)]
    functions: BTreeMap<String, usize>,
}

impl Ratchet {
    /// Reads the ratchet; a missing file is an empty one.
    pub(crate) fn load(path: &Path) -> Result<Self, String> {
        if !path.exists() {
            return Ok(Self::default());
        }
        fs::read_to_string(path)
            .map_err(|error| error.to_string())
            .and_then(|text| toml::from_str(&text).map_err(|error| error.to_string()))
            .map_err(|error| format!("{}: {error}", path.display()))
    }

    /// The same entries at today's size where that is smaller; entries within the limit go.
    pub(crate) fn shrunk(&self, sources: &[Source]) -> Self {
        let sizes = Sizes::of(sources);
        let lower =
            |old: &BTreeMap<String, usize>, now: &BTreeMap<String, Measured>, limit: usize| {
                old.iter()
                    .filter_map(|(name, size)| {
                        let size = now.get(name)?.lines.min(*size);
                        (size > limit).then(|| (name.clone(), size))
                    })
                    .collect()
            };
        Self {
            files: lower(&self.files, &sizes.files, FILE_LINES_MAX),
            functions: lower(&self.functions, &sizes.functions, FUNCTION_LINES_MAX),
        }
    }

    /// The ratchet's text.
    pub(crate) fn to_toml(&self) -> String {
        let body = toml::to_string(self).unwrap_or_default();
        format!("{HEADER}{body}")
    }
}

/// One file or function: its source's index, its first line, its length.
#[derive(Debug, Clone, Copy)]
struct Measured {
    source: usize,
    line: usize,
    lines: usize,
}

#[derive(Debug, Default)]
struct Sizes {
    files: BTreeMap<String, Measured>,
    functions: BTreeMap<String, Measured>,
}

impl Sizes {
    fn of(sources: &[Source]) -> Self {
        let mut sizes = Self::default();
        for (index, source) in sources.iter().enumerate() {
            let Some(tree) = &source.tree else { continue };
            let lines = source.text.lines().count();
            sizes.files.insert(source.path.clone(), Measured { source: index, line: 1, lines });
            Functions { path: &source.path, index, sizes: &mut sizes.functions }.visit_file(tree);
        }
        sizes
    }
}

/// Measures functions from the line of `fn` to the closing brace.
struct Functions<'a> {
    path: &'a str,
    index: usize,
    sizes: &'a mut BTreeMap<String, Measured>,
}

impl Functions<'_> {
    fn measure(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let line = signature.span().start().line;
        let lines = block.span().end().line + 1 - line;
        let name = format!("{}::{}", self.path, signature.ident);
        let measured = Measured { source: self.index, line, lines };
        // Methods of two types may share a name: the longest counts.
        let longest = self.sizes.entry(name).or_insert(measured);
        if longest.lines < lines {
            *longest = measured;
        }
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.measure(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.measure(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.measure(&item.sig, block);
        }
        visit::visit_trait_item_fn(self, item);
    }
}

/// Finds files and functions above their limit, and ratchet entries above today's size.
pub(crate) fn check(sources: &[Source], ratchet: &Ratchet) -> Vec<Finding> {
    let sizes = Sizes::of(sources);
    let mut findings = Vec::new();
    let kinds = [
        ("file", &sizes.files, &ratchet.files, FILE_LINES_MAX),
        ("function", &sizes.functions, &ratchet.functions, FUNCTION_LINES_MAX),
    ];
    for (kind, sizes, accepted, limit) in kinds {
        for (name, measured) in sizes {
            let allowed = accepted.get(name).copied().unwrap_or(limit);
            let lines = measured.lines;
            let source = &sources[measured.source];
            if lines > allowed {
                let short = name.rsplit("::").next().unwrap_or(name);
                let what = format!("{kind} {short} has {lines} lines, {allowed} are allowed");
                findings.push(Finding::new(source, measured.line, what));
            } else if accepted.contains_key(name) && lines < allowed {
                let what = format!("{kind} {name} has shrunk to {lines}: cargo x tidy --shrink");
                findings.push(Finding::new(source, measured.line, what));
            }
        }
        for name in accepted.keys().filter(|name| !sizes.contains_key(*name)) {
            let gone = Source::new(RATCHET, "");
            findings.push(Finding::new(&gone, 1, format!("{name} is gone: cargo x tidy --shrink")));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function_of(lines: usize) -> String {
        format!("fn long() {{\n{}}}\n", "    work();\n".repeat(lines - 2))
    }

    #[test]
    fn a_function_of_71_lines_is_found() {
        let at_limit = Source::new("a.rs", function_of(70));
        assert_eq!(check(&[at_limit], &Ratchet::default()), []);
        let above = Source::new("a.rs", format!("impl A {{\n{}}}", function_of(71)));
        let findings = check(&[above], &Ratchet::default());
        assert_eq!(findings[0].to_string(), "a.rs:2: function long has 71 lines, 70 are allowed");
    }

    #[test]
    fn a_file_of_501_lines_is_found() {
        let above = Source::new("a.rs", "// line\n".repeat(501));
        assert_eq!(check(&[above], &Ratchet::default()).len(), 1);
        let text_file = Source::new("a.md", "line\n".repeat(501));
        assert_eq!(check(&[text_file], &Ratchet::default()), []);
    }

    #[test]
    fn the_ratchet_accepts_today_and_only_shrinks() {
        let sources = [Source::new("a.rs", function_of(80))];
        let ratchet = |size| Ratchet {
            functions: BTreeMap::from([("a.rs::long".to_owned(), size)]),
            ..Ratchet::default()
        };
        assert_eq!(check(&sources, &ratchet(80)), []);
        assert_eq!(check(&sources, &ratchet(79)).len(), 1);
        assert_eq!(check(&sources, &ratchet(81)).len(), 1);
        assert_eq!(ratchet(90).shrunk(&sources), ratchet(80));
        assert_eq!(ratchet(75).shrunk(&sources), ratchet(75));
        let small = [Source::new("a.rs", function_of(10))];
        assert_eq!(ratchet(80).shrunk(&small), Ratchet::default());
        assert_eq!(check(&[], &ratchet(80)).len(), 1);
    }
}
