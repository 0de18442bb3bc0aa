//! Methods stand with the fields that they work on: in the extent engine and in the file tier an
//! `impl` of a type stands in the file that defines the type, or in a file below that one.
//! Implementations of traits may stand elsewhere. [`EXEMPT`] lists what is left; it may only shrink.

use std::collections::BTreeMap;

use syn::spanned::Spanned;

use super::{Finding, Source};

/// Where the rule holds.
const SCOPES: [&str; 3] = ["crates/cache/src/", "crates/cache/src/extent/", "crates/tier/src/"];

/// Files with so many `impl` blocks of types that other files define.
const EXEMPT: [(&str, usize); 4] = [
    ("crates/cache/src/movers.rs", 1),
    ("crates/cache/src/open.rs", 1),
    ("crates/cache/src/operate.rs", 1),
    ("crates/cache/src/sides.rs", 1),
];

/// Finds `impl` blocks that stand apart from their types.
pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    let scoped = || {
        let within = |source: &&Source| SCOPES.iter().any(|dir| source.path.starts_with(dir));
        sources.iter().filter(within).filter_map(|source| Some((source, source.tree.as_ref()?)))
    };
    let mut homes: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (source, tree) in scoped() {
        for item in &tree.items {
            let (syn::Item::Struct(syn::ItemStruct { ident, .. })
            | syn::Item::Enum(syn::ItemEnum { ident, .. })) = item
            else {
                continue;
            };
            homes.entry(ident.to_string()).or_default().push(&source.path);
        }
    }
    let mut findings = Vec::new();
    for (source, tree) in scoped() {
        let apart = tree.items.iter().filter_map(|item| apart(item, &source.path, &homes));
        let apart: Vec<Finding> = apart
            .map(|(line, name)| {
                let what = format!("methods of {name} belong into the file that defines it");
                Finding::new(source, line, what)
            })
            .collect();
        let exempt = EXEMPT.iter().find(|(path, _)| *path == source.path);
        let allowed = exempt.map_or(0, |(_, count)| *count);
        if apart.len() > allowed {
            findings.extend(apart);
        } else if apart.len() < allowed {
            let what = format!("has {} such blocks: lower {allowed} in EXEMPT", apart.len());
            findings.push(Finding::new(source, 1, what));
        }
    }
    findings
}

/// The line and the type of an inherent `impl` in `path` whose type other files define.
fn apart(
    item: &syn::Item,
    path: &str,
    homes: &BTreeMap<String, Vec<&str>>,
) -> Option<(usize, String)> {
    let syn::Item::Impl(block) = item else { return None };
    let (None, syn::Type::Path(of)) = (&block.trait_, &*block.self_ty) else { return None };
    let name = of.path.segments.last()?.ident.to_string();
    let is_home = |home: &&str| {
        *home == path || path.starts_with(&format!("{}/", home.trim_end_matches(".rs")))
    };
    let stands = homes.get(&name)?.iter().any(is_home);
    (!stands).then(|| (block.span().start().line, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(sources: &[(&str, &str)]) -> usize {
        findings_in("engine", sources)
    }

    fn findings_in(part: &str, sources: &[(&str, &str)]) -> usize {
        let path = |name: &str| format!("crates/core/src/{part}/{name}");
        let sources: Vec<Source> =
            sources.iter().map(|(name, text)| Source::new(path(name), *text)).collect();
        check(&sources).len()
    }

    #[test]
    fn methods_beside_their_fields_pass() {
        assert_eq!(findings(&[("a.rs", "struct A; impl A { fn f(&self) {} }")]), 0);
        assert_eq!(findings(&[("a.rs", "struct A;"), ("a/b.rs", "impl A {}")]), 0);
        assert_eq!(findings(&[("a.rs", "struct A;"), ("b.rs", "impl Drop for A {}")]), 0);
        assert_eq!(findings(&[("a.rs", "struct A;"), ("b.rs", "struct A; impl A {}")]), 0);
    }

    #[test]
    fn methods_in_another_file_are_found() {
        assert_eq!(findings(&[("a.rs", "struct A;"), ("b.rs", "impl A {}")]), 1);
        assert_eq!(findings(&[("a.rs", "struct A<'a>;"), ("b.rs", "impl A<'_> {}")]), 1);
        assert_eq!(findings(&[("a/b.rs", "enum A {}"), ("a.rs", "impl A {}")]), 1);
        assert_eq!(findings_in("tier", &[("a.rs", "struct A;"), ("b.rs", "impl A {}")]), 1);
    }

    #[test]
    fn an_exemption_that_is_not_needed_is_found() {
        assert_eq!(findings(&[("open.rs", "struct A; impl A {}")]), 1);
    }
}
