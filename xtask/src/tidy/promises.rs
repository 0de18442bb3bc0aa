//! `docs/SEMANTICS.md` and `docs/INVARIANTS.md` promise nothing that no test executes: each row
//! of their tables names at least one test as `path/of/file.rs::function`, and each test that
//! they name exists.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};

use super::{Finding, Source};

const DOCUMENTS: [&str; 2] = ["docs/SEMANTICS.md", "docs/INVARIANTS.md"];

/// Finds promises without a test, and named tests that do not exist.
pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    let tests: BTreeMap<&str, BTreeSet<String>> = sources
        .iter()
        .filter_map(|source| Some((source.path.as_str(), tests_in(source.tree.as_ref()?))))
        .collect();
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| DOCUMENTS.contains(&source.path.as_str())) {
        for (index, line) in source.text.lines().enumerate() {
            let named = named_tests(line);
            for (file, function) in &named {
                if !tests.get(file).is_some_and(|names| names.contains(*function)) {
                    let what = format!("there is no test {file}::{function}");
                    findings.push(Finding::new(source, index + 1, what));
                }
            }
            if named.is_empty() && is_row(source, index, line) {
                findings.push(Finding::new(source, index + 1, "a promise without a test"));
            }
        }
    }
    findings
}

/// A row of a table, neither its head nor the rule below the head.
fn is_row(source: &Source, index: usize, line: &str) -> bool {
    let rule = |line: &str| line.starts_with('|') && line.chars().all(|c| "|-: ".contains(c));
    let next = source.text.lines().nth(index + 1).unwrap_or_default();
    line.starts_with('|') && !rule(line) && !rule(next)
}

/// `` `a/b.rs::name` `` parts of a line.
fn named_tests(line: &str) -> Vec<(&str, &str)> {
    line.split('`')
        .skip(1)
        .step_by(2)
        .filter_map(|code| {
            code.split_once(".rs::").map(|(file, name)| (&code[..file.len() + 3], name))
        })
        .collect()
}

struct Tests(BTreeSet<String>);

impl<'ast> Visit<'ast> for Tests {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if item.attrs.iter().any(|attribute| attribute.path().is_ident("test")) {
            self.0.insert(item.sig.ident.to_string());
        }
        visit::visit_item_fn(self, item);
    }

    /// Property tests are functions inside a macro's braces.
    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        if call.path.segments.last().is_some_and(|last| last.ident == "proptest") {
            let mut tokens = call.tokens.clone().into_iter().peekable();
            while let Some(token) = tokens.next() {
                if token.to_string() == "fn"
                    && let Some(name) = tokens.peek()
                {
                    self.0.insert(name.to_string());
                }
            }
        }
    }
}

fn tests_in(tree: &syn::File) -> BTreeSet<String> {
    let mut tests = Tests(BTreeSet::new());
    tests.visit_file(tree);
    tests.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "| promise | test |\n| --- | --- |\n";

    fn findings(row: &str) -> usize {
        let code = "mod tests { #[test] fn reads_newest() {} fn no_test() {}
            proptest! { #[test] fn any_order(x in 0..9u8) {} } }";
        check(&[
            Source::new("docs/SEMANTICS.md", format!("{HEAD}{row}")),
            Source::new("crates/cache/src/extent.rs", code),
        ])
        .len()
    }

    #[test]
    fn promises_with_tests_pass() {
        assert_eq!(findings("| newest | `crates/cache/src/extent.rs::reads_newest` |"), 0);
        assert_eq!(findings("| order | `crates/cache/src/extent.rs::any_order` |"), 0);
    }

    #[test]
    fn promises_without_tests_are_found() {
        assert_eq!(findings("| newest | none yet |"), 1);
        assert_eq!(findings("| newest | `crates/cache/src/extent.rs::gone` |"), 1);
        assert_eq!(findings("| newest | `crates/cache/src/extent.rs::no_test` |"), 1);
        assert_eq!(findings("| newest | `crates/tier/src/lib.rs::reads_newest` |"), 1);
    }
}
