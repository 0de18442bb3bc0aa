//! Methods stand with the fields that they work on: an `impl` of a type stands in the file that defines the type, or in a
//! file below that one. Implementations of traits may stand elsewhere.

use std::collections::BTreeMap;

use syn::spanned::Spanned;

use super::{Finding, Source};

/// Finds `impl` blocks that stand apart from their types.
pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    let mut crates: BTreeMap<&str, Vec<(&Source, &syn::File)>> = BTreeMap::new();
    for source in sources {
        if let (Some((root, _)), Some(tree)) = (source.path.split_once("/src/"), &source.tree) {
            crates.entry(root).or_default().push((source, tree));
        }
    }
    crates.values().flat_map(|files| of_crate(files)).collect()
}

fn of_crate(files: &[(&Source, &syn::File)]) -> Vec<Finding> {
    let mut homes: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (source, tree) in files {
        for item in &tree.items {
            let (syn::Item::Struct(syn::ItemStruct { ident, .. })
            | syn::Item::Enum(syn::ItemEnum { ident, .. })) = item
            else {
                continue;
            };
            homes.entry(ident.to_string()).or_default().push(&source.path);
        }
    }
    let found = files.iter().flat_map(|(source, tree)| {
        let apart = tree.items.iter().filter_map(|item| apart(item, &source.path, &homes));
        apart.map(|(line, name)| {
            let what = format!("methods of {name} belong into the file that defines it");
            Finding::new(source, line, what)
        })
    });
    found.collect()
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
        let module = home.trim_end_matches(".rs");
        let above = module.strip_suffix("lib").or(module.strip_suffix("main"));
        let above = above.filter(|above| above.ends_with('/'));
        *home == path || path.starts_with(above.unwrap_or(&format!("{module}/")))
    };
    let stands = homes.get(&name)?.iter().any(is_home);
    (!stands).then(|| (block.span().start().line, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(sources: &[(&str, &str)]) -> usize {
        let path = |name: &str| format!("crates/tier/src/{name}");
        let sources: Vec<Source> =
            sources.iter().map(|(name, text)| Source::new(path(name), *text)).collect();
        check(&sources).len()
    }

    #[test]
    fn methods_beside_their_fields_pass() {
        assert_eq!(findings(&[("a.rs", "struct A; impl A { fn f(&self) {} }")]), 0);
        assert_eq!(findings(&[("a.rs", "struct A;"), ("a/b.rs", "impl A {}")]), 0);
        assert_eq!(findings(&[("lib.rs", "struct A;"), ("b.rs", "impl A {}")]), 0);
        assert_eq!(findings(&[("a.rs", "struct A;"), ("b.rs", "impl Drop for A {}")]), 0);
        assert_eq!(findings(&[("a.rs", "struct A;"), ("b.rs", "struct A; impl A {}")]), 0);
        let other = [
            Source::new("crates/a/src/a.rs", "struct A;"),
            Source::new("crates/b/src/b.rs", "impl A {}"),
        ];
        assert_eq!(check(&other), []);
    }

    #[test]
    fn methods_in_another_file_are_found() {
        assert_eq!(findings(&[("a.rs", "struct A;"), ("b.rs", "impl A {}")]), 1);
        assert_eq!(findings(&[("a.rs", "struct A<'a>;"), ("b.rs", "impl A<'_> {}")]), 1);
        assert_eq!(findings(&[("a/b.rs", "enum A {}"), ("a.rs", "impl A {}")]), 1);
        assert_eq!(findings(&[("lib/a.rs", "enum A {}"), ("b.rs", "impl A {}")]), 1);
    }
}
