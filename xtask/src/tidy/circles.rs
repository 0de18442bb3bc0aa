//! Files of a component use each other one way: none uses one that uses it, directly or through
//! others. Nested files count as the one that they are below; tests may use whatever they test.

use std::collections::{BTreeMap, BTreeSet};

use super::direction::{module_of, places};
use super::{Finding, Source};

const ROOT: &str = "crates/core/src/";

/// Components where the rule holds.
const SCOPES: [&str; 3] = ["device", "extent", "tier"];

/// Finds files that use each other in a circle, one for each component.
pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    SCOPES.iter().filter_map(|scope| circle(scope, sources)).collect()
}

fn circle(scope: &str, sources: &[Source]) -> Option<Finding> {
    let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut homes: BTreeMap<String, &Source> = BTreeMap::new();
    for source in sources {
        let Some(module) = source.path.strip_prefix(ROOT).map(module_of) else { continue };
        let (Some(tree), [top, file, ..]) = (&source.tree, &module[..]) else { continue };
        if top != scope || module.iter().any(|name| name == "tests") {
            continue;
        }
        let file = file.clone();
        let used = places(module, tree.items.iter().filter(|item| !is_tests(item)));
        let beside = used.into_iter().filter(|(_, place)| place[0] == scope);
        let beside = beside.filter_map(|(_, place)| place.into_iter().nth(1));
        graph.entry(file.clone()).or_default().extend(beside.filter(|to| *to != file));
        homes.insert(file, source);
    }
    // What uses nothing that is left is in no circle.
    loop {
        let left: BTreeSet<String> = graph.keys().cloned().collect();
        graph.retain(|_, to| to.iter().any(|name| left.contains(name)));
        if graph.len() == left.len() {
            break;
        }
    }
    let mut way = vec![graph.keys().next()?.clone()];
    loop {
        let next = graph[way.last()?].iter().find(|name| graph.contains_key(*name))?.clone();
        if let Some(begin) = way.iter().position(|name| *name == next) {
            way.drain(..begin);
            way.push(next);
            break;
        }
        way.push(next);
    }
    let what = format!("files of {scope} use each other in a circle: {}", way.join(" -> "));
    Some(Finding::new(homes[&way[0]], 1, what))
}

fn is_tests(item: &syn::Item) -> bool {
    matches!(item, syn::Item::Mod(module) if module.ident == "tests")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(sources: &[(&str, &str)]) -> Vec<String> {
        let path = |name: &str| format!("crates/core/src/tier/{name}");
        let sources: Vec<Source> =
            sources.iter().map(|(name, text)| Source::new(path(name), *text)).collect();
        check(&sources).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn one_way_passes() {
        let way = [("a.rs", "use super::b::B;"), ("b.rs", "use super::c;"), ("c.rs", "")];
        assert_eq!(findings(&way), [""; 0]);
        let nested = [("a.rs", "mod b;"), ("a/b.rs", "use super::A; use super::super::c::C;")];
        assert_eq!(findings(&nested), [""; 0]);
        let tested = [("a.rs", "mod tests { use super::super::b::B; }"), ("b.rs", "use super::a;")];
        assert_eq!(findings(&tested), [""; 0]);
    }

    #[test]
    fn circles_are_found_in_every_form() {
        let of_three =
            [("a.rs", "use super::b::B;"), ("b.rs", "use super::c;"), ("c.rs", "use super::a::A;")];
        let told = "files of tier use each other in a circle: a -> b -> c -> a";
        assert_eq!(findings(&of_three), [format!("crates/core/src/tier/a.rs:1: {told}")]);
        let nested = [("a/b.rs", "use crate::tier::c::C;"), ("c.rs", "fn f(x: super::a::A) {}")];
        assert_eq!(findings(&nested).len(), 1);
        let above =
            [("a.rs", "use super::b;"), ("b.rs", "use super::c;"), ("c.rs", "use super::b;")];
        assert!(findings(&above)[0].ends_with("b -> c -> b"), "{:?}", findings(&above));
    }
}
