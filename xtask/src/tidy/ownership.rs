//! Methods stand with the fields that they work on: an `impl` of a type stands in the file that defines the type, or in a
//! file below that one. Implementations of traits may stand elsewhere. A type has its methods in two files at most: what
//! needs more is several components, each with fields of its own.

use std::collections::{BTreeMap, BTreeSet};

use syn::spanned::Spanned;

use super::{Finding, Source};

/// Files that may have methods of one type.
const FILES_MAX: usize = 2;

/// Finds `impl` blocks that stand apart from their types, and types whose methods stand in too many files.
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
    let mut definitions: BTreeMap<String, Vec<&Source>> = BTreeMap::new();
    for (source, tree) in files {
        for name in tree.items.iter().filter_map(defined) {
            definitions.entry(name.to_string()).or_default().push(source);
        }
    }
    let mut found = Vec::new();
    // By the type's file and name: the files that have methods of it.
    let mut with_methods: BTreeMap<(&str, String), BTreeSet<&str>> = BTreeMap::new();
    for (source, tree) in files {
        for (line, name) in tree.items.iter().filter_map(methods) {
            // A macro makes some types: those are at no place.
            let Some(definitions) = definitions.get(&name) else { continue };
            // Several types may have the name: the nearest file above is meant.
            let above =
                definitions.iter().filter(|file| may_have_methods_of(&file.path, &source.path));
            if let Some(file) = above.max_by_key(|file| file.path.len()) {
                with_methods.entry((&file.path, name)).or_default().insert(&source.path);
            } else {
                let what = format!("methods of {name} belong into the file that defines it");
                found.push(Finding::new(source, line, what));
            }
        }
    }
    for file in files.iter().map(|(source, _)| *source) {
        let of_file = with_methods.iter().filter(|((path, _), _)| *path == file.path);
        found.extend(of_file.filter(|(_, at)| at.len() > FILES_MAX).map(|((_, name), at)| {
            let what = format!(
                "methods of {name} stand in {} files, {FILES_MAX} are allowed: make components of it that own their fields",
                at.len()
            );
            Finding::new(file, 1, what)
        }));
    }
    found
}

/// Whether a type of the file `file` may have methods in the file `path`.
fn may_have_methods_of(file: &str, path: &str) -> bool {
    let module = file.trim_end_matches(".rs");
    let above = module.strip_suffix("lib").or(module.strip_suffix("main"));
    let above = above.filter(|above| above.ends_with('/'));
    file == path || path.starts_with(above.unwrap_or(&format!("{module}/")))
}

/// The type that an item defines.
fn defined(item: &syn::Item) -> Option<&syn::Ident> {
    match item {
        syn::Item::Struct(syn::ItemStruct { ident, .. })
        | syn::Item::Enum(syn::ItemEnum { ident, .. }) => Some(ident),
        _ => None,
    }
}

/// The line and the type of an inherent `impl`.
fn methods(item: &syn::Item) -> Option<(usize, String)> {
    let syn::Item::Impl(block) = item else { return None };
    let (None, syn::Type::Path(of)) = (&block.trait_, &*block.self_ty) else { return None };
    let name = of.path.segments.last()?.ident.to_string();
    Some((block.span().start().line, name))
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

    /// A type of `a.rs` with methods in `files` files, and two others of its name: one in a file below, one beside it.
    fn in_files(files: usize) -> usize {
        let below = |at: usize| format!("a/b{at}.rs");
        let mut sources = vec![("a.rs".to_owned(), "struct A; impl A {} impl A {}")];
        sources.extend((1..files).map(|at| (below(at), "impl A {}")));
        sources.push((below(0), "enum A {} impl A {}"));
        sources.push(("c.rs".to_owned(), "struct A; impl A {}"));
        sources.push(("c/d.rs".to_owned(), "impl A {}"));
        let sources: Vec<_> = sources.iter().map(|(name, text)| (&**name, *text)).collect();
        findings(&sources)
    }

    #[test]
    fn methods_in_many_files_are_found() {
        assert_eq!([1, 2, 3, 4].map(in_files), [0, 0, 1, 1]);
    }
}
