//! Methods stand with the fields that they work on: an `impl` of a type stands in the file that defines the type, or in a
//! file below that one. Implementations of traits may stand elsewhere. A type has its methods in two files at most: what
//! needs more is several components, each with fields of its own.

use std::collections::{BTreeMap, BTreeSet};

use syn::spanned::Spanned;

use super::{Finding, Source};

/// Where the list below stands.
const LIST: &str = "xtask/src/tidy/ownership.rs";
/// Files that may have methods of one type.
const FILES_MAX: usize = 2;

/// A type whose methods stand in more files, because they share one state.
struct Spread {
    /// The file that defines it.
    defined_in: &'static str,
    name: &'static str,
    /// Files that have its methods: no more, and where there are fewer, this says so.
    files: usize,
    /// What they share. Shown where a file too many has some.
    shares: &'static str,
}

/// Add none: make a component instead. What ARCHITECTURE.md says of each is what stands here.
const SPREAD: &[Spread] = &[
    Spread {
        defined_in: "crates/meta/src/table.rs",
        name: "ExtentTable",
        files: 6,
        shares: "each change of extents is planned, recorded and applied under one order of locks",
    },
    Spread {
        defined_in: "crates/vfs/src/namespace.rs",
        name: "Namespace",
        files: 5,
        shares: "it has no state that changes but the table of nodes, which is a component",
    },
    Spread {
        defined_in: "crates/storage/src/volume/origin.rs",
        name: "Origin",
        files: 4,
        shares: "none of its fields changes once it is open",
    },
    Spread {
        defined_in: "crates/cluster/src/agent/file.rs",
        name: "File",
        files: 6,
        shares: "the tokens of one file are under one lock",
    },
];

/// Finds `impl` blocks that stand apart from their types, and types whose methods stand in too many files.
pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    let mut crates: BTreeMap<&str, Vec<(&Source, &syn::File)>> = BTreeMap::new();
    for source in sources {
        if let (Some((root, _)), Some(tree)) = (source.path.split_once("/src/"), &source.tree) {
            crates.entry(root).or_default().push((source, tree));
        }
    }
    let mut found: Vec<_> = crates.values().flat_map(|files| of_crate(files, SPREAD)).collect();
    found.extend(without_type(sources, SPREAD));
    found
}

/// Entries of the list whose type was renamed, moved or removed: the exception would wait for a type of that name.
fn without_type(sources: &[Source], spread: &[Spread]) -> Vec<Finding> {
    let Some(list) = sources.iter().find(|source| source.path == LIST) else { return Vec::new() };
    let is_there = |listed: &Spread| {
        let file = sources.iter().find(|source| source.path == listed.defined_in);
        let tree = file.and_then(|file| file.tree.as_ref());
        tree.is_some_and(|tree| tree.items.iter().filter_map(defined).any(|it| it == listed.name))
    };
    let stale = spread.iter().filter(|listed| !is_there(listed)).map(
        |Spread { defined_in, name, .. }| {
            let what = format!("{defined_in} defines no {name}: correct the list of this rule");
            Finding::new(list, 1, what)
        },
    );
    stale.collect()
}

fn of_crate(files: &[(&Source, &syn::File)], spread: &[Spread]) -> Vec<Finding> {
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
        found.extend(of_file.filter_map(|((_, name), at)| too_many(file, name, at.len(), spread)));
    }
    found
}

/// What is wrong with methods of the type `name` of `file` in so many `files`.
fn too_many(file: &Source, name: &str, files: usize, spread: &[Spread]) -> Option<Finding> {
    let listed =
        spread.iter().find(|listed| (listed.defined_in, listed.name) == (&*file.path, name));
    let what = match listed {
        None if files > FILES_MAX => format!(
            "methods of {name} stand in {files} files, {FILES_MAX} are allowed: make components of \
             it that own their fields"
        ),
        Some(listed) if files > listed.files => format!(
            "methods of {name} stand in {files} files, {} are accepted since {}",
            listed.files, listed.shares
        ),
        Some(_) if files <= FILES_MAX => {
            format!("methods of {name} stand in {files} files: take it off the list of this rule")
        }
        Some(listed) if files < listed.files => {
            format!("methods of {name} stand in {files} files: write that in the list of this rule")
        }
        _ => return None,
    };
    Some(Finding::new(file, 1, what))
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

    /// A type of `a.rs` with methods in `files` files; what `accepted` of them are says the list.
    fn in_files(files: usize, accepted: Option<usize>) -> usize {
        let below = |at: usize| format!("crates/tier/src/a/b{at}.rs");
        let mut sources =
            vec![Source::new("crates/tier/src/a.rs", "struct A; impl A {} impl A {}")];
        sources.extend((1..files).map(|at| Source::new(below(at), "impl A {}")));
        // Of another type of the same name, whose file is nearer.
        sources.push(Source::new(below(0), "enum A {} impl A {}"));
        let files: Vec<_> = sources
            .iter()
            .map(|source| (source, source.tree.as_ref().expect("it parses")))
            .collect();
        let (defined_in, name, shares) = ("crates/tier/src/a.rs", "A", "a lock");
        let spread = accepted.map(|files| Spread { defined_in, name, files, shares });
        of_crate(&files, spread.as_slice()).len()
    }

    #[test]
    fn methods_in_many_files_are_found() {
        assert_eq!([1, 2, 3, 4].map(|files| in_files(files, None)), [0, 0, 1, 1]);
    }

    #[test]
    fn a_listed_type_may_not_grow_and_leaves_the_list_when_it_can() {
        assert_eq!([2, 3, 4, 5].map(|files| in_files(files, Some(4))), [1, 1, 0, 1]);
    }

    /// Regression: a type that was renamed stayed on the list, and nobody saw that the exception was for nothing.
    #[test]
    fn an_entry_of_the_list_without_its_type_is_found() {
        let of = |path: &str, text: &str| [Source::new(LIST, ""), Source::new(path, text)];
        let (defined_in, name) = ("crates/tier/src/a.rs", "A");
        let spread = [Spread { defined_in, name, files: 4, shares: "a lock" }];
        assert_eq!(without_type(&of(defined_in, "struct A; impl A {}"), &spread), []);
        assert_eq!(without_type(&of(defined_in, "enum A {}"), &spread), []);
        for (path, text) in [
            (defined_in, "struct B; impl A {}"),
            ("crates/tier/src/b.rs", "struct A;"),
            (defined_in, "not Rust"),
        ] {
            assert_eq!(without_type(&of(path, text), &spread).len(), 1, "{path}: {text}");
        }
        // Of every entry of the list itself, `cargo x tidy` finds out.
        assert_eq!(check(&of(defined_in, "struct A;")).len(), SPREAD.len());
    }
}
