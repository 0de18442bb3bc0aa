//! Methods stand with the fields that they work on: an `impl` of a type stands in the file that defines the type, or in a
//! file below that one. Implementations of traits may stand elsewhere. A type has its methods in two files at most: what
//! needs more is several components, each with fields of its own.

use std::collections::{BTreeMap, BTreeSet};

use syn::spanned::Spanned;

use super::{Finding, Source};

/// Files that may have methods of one type.
const FILES_MAX: usize = 2;

/// A type whose methods stand in more files, because they share one state.
struct Spread {
    /// The file that defines it.
    home: &'static str,
    name: &'static str,
    /// Files that have its methods, at most.
    files: usize,
    /// What they share. Shown where a file too many has some.
    shares: &'static str,
}

/// Add none: make a component instead. What ARCHITECTURE.md says of each is what stands here.
const SPREAD: &[Spread] = &[
    Spread {
        home: "crates/meta/src/table.rs",
        name: "ExtentTable",
        files: 6,
        shares: "each change of extents is planned, recorded and applied under one order of locks",
    },
    Spread {
        home: "crates/vfs/src/namespace.rs",
        name: "Namespace",
        files: 5,
        shares: "it has no state that changes but the table of nodes, which is a component",
    },
    Spread {
        home: "crates/storage/src/volume/origin.rs",
        name: "Origin",
        files: 4,
        shares: "none of its fields changes once it is open",
    },
    Spread {
        home: "crates/cluster/src/agent/file.rs",
        name: "File",
        files: 7,
        shares: "the tokens of one file are under one lock",
    },
    Spread {
        home: "crates/cluster/src/agent.rs",
        name: "Shared",
        files: 5,
        shares: "the agent's threads and its files share one session in the store",
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
    crates.values().flat_map(|files| of_crate(files, SPREAD)).collect()
}

fn of_crate(files: &[(&Source, &syn::File)], spread: &[Spread]) -> Vec<Finding> {
    let mut homes: BTreeMap<String, Vec<&Source>> = BTreeMap::new();
    for (source, tree) in files {
        for item in &tree.items {
            let (syn::Item::Struct(syn::ItemStruct { ident, .. })
            | syn::Item::Enum(syn::ItemEnum { ident, .. })) = item
            else {
                continue;
            };
            homes.entry(ident.to_string()).or_default().push(source);
        }
    }
    let mut found = Vec::new();
    // By the type's file and name: the files that have methods of it.
    let mut with_methods: BTreeMap<(&str, String), BTreeSet<&str>> = BTreeMap::new();
    for (source, tree) in files {
        for (line, name) in tree.items.iter().filter_map(methods) {
            // A macro makes some types: those are at no place.
            let Some(homes) = homes.get(&name) else { continue };
            // Several types may have the name: the nearest file above is meant.
            let above = homes.iter().filter(|home| is_home(&home.path, &source.path));
            if let Some(home) = above.max_by_key(|home| home.path.len()) {
                with_methods.entry((&home.path, name)).or_default().insert(&source.path);
            } else {
                let what = format!("methods of {name} belong into the file that defines it");
                found.push(Finding::new(source, line, what));
            }
        }
    }
    for home in files.iter().map(|(source, _)| *source) {
        let of_home = with_methods.iter().filter(|((path, _), _)| *path == home.path);
        found.extend(of_home.filter_map(|((_, name), at)| too_many(home, name, at.len(), spread)));
    }
    found
}

/// What is wrong with methods of the type `name` of `home` in so many `files`.
fn too_many(home: &Source, name: &str, files: usize, spread: &[Spread]) -> Option<Finding> {
    let listed = spread.iter().find(|listed| (listed.home, listed.name) == (&*home.path, name));
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
        _ => return None,
    };
    Some(Finding::new(home, 1, what))
}

/// Whether a type of the file `home` may have methods in the file `path`.
fn is_home(home: &str, path: &str) -> bool {
    let module = home.trim_end_matches(".rs");
    let above = module.strip_suffix("lib").or(module.strip_suffix("main"));
    let above = above.filter(|above| above.ends_with('/'));
    home == path || path.starts_with(above.unwrap_or(&format!("{module}/")))
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
        let (home, name, shares) = ("crates/tier/src/a.rs", "A", "a lock");
        let spread = accepted.map(|files| Spread { home, name, files, shares });
        of_crate(&files, spread.as_slice()).len()
    }

    #[test]
    fn methods_in_many_files_are_found() {
        assert_eq!([1, 2, 3, 4].map(|files| in_files(files, None)), [0, 0, 1, 1]);
    }

    #[test]
    fn a_listed_type_may_not_grow_and_leaves_the_list_when_it_can() {
        assert_eq!([2, 3, 4, 5].map(|files| in_files(files, Some(4))), [1, 0, 0, 1]);
    }
}
