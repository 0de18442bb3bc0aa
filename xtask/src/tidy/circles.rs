//! Files use each other one way: of the files that stand side by side in a directory of modules none uses one that uses
//! it, directly or through others. What is below a file counts as that file; a file and what is below it may use each
//! other, and tests may use whatever they test. A name that a file passes on (`pub use child::Name`) counts as its child's.

use std::collections::{BTreeMap, BTreeSet};

use super::for_tests::{TestModules, is_for_tests};
use super::uses::{module_of, places};
use super::{Finding, Source};

/// Modules of a crate, by their paths below its root.
type Modules<'a> = BTreeMap<Vec<String>, &'a Source>;
/// Which files beside each other use which, and where the first such use stands.
type Graph = BTreeMap<String, BTreeMap<String, String>>;

/// Finds files that use each other in a circle, at most one circle a directory.
pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    let mut crates: BTreeMap<&str, Modules<'_>> = BTreeMap::new();
    let for_tests = TestModules::of(sources);
    for source in sources.iter().filter(|it| it.tree.is_some() && !for_tests.have(it)) {
        let Some((root, inner)) = source.path.split_once("/src/") else { continue };
        let mut module = module_of(inner);
        if module.iter().any(|name| name == "tests") || inner.starts_with("bin/") {
            continue;
        }
        if module == ["lib"] || module == ["main"] {
            module.clear();
        }
        crates.entry(root).or_default().insert(module, source);
    }
    crates.iter().flat_map(|(root, modules)| circles(root, modules)).collect()
}

fn circles(root: &str, modules: &Modules<'_>) -> Vec<Finding> {
    let passed_on = passed_on(modules);
    let mut graphs: BTreeMap<Vec<String>, Graph> = BTreeMap::new();
    for (module, source) in modules {
        let items = source.tree.iter().flat_map(|tree| &tree.items).filter(|item| !is_tests(item));
        for (line, place) in places(module.clone(), items) {
            let place = defined(place, &passed_on);
            let shared = module.iter().zip(&place).take_while(|(a, b)| a == b).count();
            let (Some(from), Some(to)) = (module.get(shared), place.get(shared)) else { continue };
            if modules.contains_key(&place[..=shared]) {
                let graph = graphs.entry(module[..shared].to_vec()).or_default();
                let used = graph.entry(from.clone()).or_default().entry(to.clone());
                let name = place.last().map_or("", String::as_str);
                used.or_insert_with(|| format!("{}:{line} {name}", source.path));
            }
        }
    }
    let found = graphs.into_iter().filter_map(|(above, graph)| {
        let way = circle(graph.clone())?;
        let first = [above.as_slice(), &way[..1]].concat();
        let at = [&[root.to_owned()], above.as_slice()].concat().join("/");
        let uses: Vec<&str> = way.windows(2).map(|hop| &*graph[&hop[0]][&hop[1]]).collect();
        let way = way.join(" -> ");
        let what =
            format!("files of {at} use each other in a circle: {way}\n  {}", uses.join("\n  "));
        Some(Finding::new(modules.get(&first)?, 1, what))
    });
    found.collect()
}

/// What modules pass on of their children: the path that is used, and the one where it is defined.
fn passed_on(modules: &Modules<'_>) -> BTreeMap<Vec<String>, Vec<String>> {
    let mut passed_on = BTreeMap::new();
    for (module, source) in modules {
        let items = source.tree.iter().flat_map(|tree| &tree.items);
        let exported = items.filter_map(|item| match item {
            syn::Item::Use(item) if !matches!(item.vis, syn::Visibility::Inherited) => Some(item),
            _ => None,
        });
        for item in exported {
            for names in names(&item.tree) {
                let relative = names.strip_prefix(&["self".to_owned()]).unwrap_or(&names);
                let place = [module.as_slice(), relative].concat();
                let child = &place[..=module.len()];
                if place.len() > child.len() && modules.contains_key(child) {
                    let used = [module.as_slice(), &place[place.len() - 1..]].concat();
                    passed_on.insert(used, place);
                }
            }
        }
    }
    passed_on
}

/// The paths that a `use` item names.
fn names(tree: &syn::UseTree) -> Vec<Vec<String>> {
    match tree {
        syn::UseTree::Path(path) => {
            let below = names(&path.tree).into_iter();
            below.map(|names| [vec![path.ident.to_string()], names].concat()).collect()
        }
        syn::UseTree::Group(group) => group.items.iter().flat_map(names).collect(),
        syn::UseTree::Name(syn::UseName { ident })
        | syn::UseTree::Rename(syn::UseRename { ident, .. }) => vec![vec![ident.to_string()]],
        syn::UseTree::Glob(_) => Vec::new(),
    }
}

/// Where what a path names is defined, followed through the modules that pass it on.
fn defined(mut place: Vec<String>, passed_on: &BTreeMap<Vec<String>, Vec<String>>) -> Vec<String> {
    for length in 1.. {
        if length > place.len() || length > 16 {
            break;
        }
        if let Some(child) = passed_on.get(&place[..length]) {
            place = [child.as_slice(), &place[length..]].concat();
        }
    }
    place
}

/// One circle of a graph, from a file to a file that uses it.
fn circle(mut graph: Graph) -> Option<Vec<String>> {
    // What uses nothing that is left is in no circle.
    loop {
        let left: BTreeSet<String> = graph.keys().cloned().collect();
        graph.retain(|_, to| to.keys().any(|name| left.contains(name)));
        if graph.len() == left.len() {
            break;
        }
    }
    let mut way = vec![graph.keys().next()?.clone()];
    loop {
        let next = graph[way.last()?].keys().find(|name| graph.contains_key(*name))?.clone();
        if let Some(begin) = way.iter().position(|name| *name == next) {
            way.drain(..begin);
            way.push(next);
            return Some(way);
        }
        way.push(next);
    }
}

fn is_tests(item: &syn::Item) -> bool {
    matches!(item, syn::Item::Mod(module) if is_for_tests(&module.attrs))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first line of each finding.
    fn findings(sources: &[(&str, &str)]) -> Vec<String> {
        let path = |name: &str| format!("crates/tier/src/{name}");
        let sources: Vec<Source> =
            sources.iter().map(|(name, text)| Source::new(path(name), *text)).collect();
        let first = |found: &Finding| found.to_string().lines().take(1).collect();
        check(&sources).iter().map(first).collect()
    }

    #[test]
    fn one_way_passes() {
        let way = [("a.rs", "use super::b::B;"), ("b.rs", "use super::c;"), ("c.rs", "")];
        assert_eq!(findings(&way), [""; 0]);
        let nested = [("a.rs", "mod b;"), ("a/b.rs", "use super::A; use super::super::c::C;")];
        assert_eq!(findings(&nested), [""; 0]);
        let tested = [
            ("a.rs", "#[cfg(test)] mod tests { use super::super::b::B; }"),
            ("b.rs", "use super::a;"),
        ];
        assert_eq!(findings(&tested), [""; 0]);
        let front =
            [("lib.rs", "pub use a::A;"), ("a.rs", "use crate::b;"), ("b.rs", "use crate::C;")];
        assert_eq!(findings(&front), [""; 0]);
    }

    #[test]
    fn circles_are_found_in_every_form() {
        let of_three =
            [("a.rs", "use super::b::B;"), ("b.rs", "use super::c;"), ("c.rs", "use super::a::A;")];
        let told = "files of crates/tier use each other in a circle: a -> b -> c -> a";
        assert_eq!(findings(&of_three), [format!("crates/tier/src/a.rs:1: {told}")]);
        let nested =
            [("a.rs", ""), ("a/b.rs", "use crate::c::C;"), ("c.rs", "fn f(x: super::a::A) {}")];
        assert_eq!(findings(&nested).len(), 1);
        let above =
            [("a.rs", "use super::b;"), ("b.rs", "use super::c;"), ("c.rs", "use super::b;")];
        assert!(findings(&above)[0].ends_with("b -> c -> b"), "{:?}", findings(&above));
        let below = [("a/b.rs", "use super::c::C;"), ("a/c.rs", "use crate::a::b;")];
        assert!(findings(&below)[0].contains("of crates/tier/a use"), "{:?}", findings(&below));
    }

    #[test]
    fn what_is_passed_on_counts_as_the_childs() {
        let front =
            [("lib.rs", "pub use a::A;"), ("a.rs", "use crate::b;"), ("b.rs", "use crate::A;")];
        assert!(findings(&front)[0].ends_with("a -> b -> a"), "{:?}", findings(&front));
        let inner = [
            ("a.rs", "pub(crate) use self::b::{B, c::C};"),
            ("a/b.rs", "use super::d::D;"),
            ("a/d.rs", "use crate::a::C;"),
        ];
        assert!(findings(&inner)[0].ends_with("b -> d -> b"), "{:?}", findings(&inner));
    }
}
