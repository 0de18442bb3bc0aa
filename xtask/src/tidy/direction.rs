//! Crates use only what lies below them ([`BELOW`]). In `crates/core`, modules use only what lies below them:
//! engine -> extent | tier -> meta -> volume | namespace -> device. Modules that are not named
//! here (errors, configuration, metrics) may be used by all, and so may the contract with front
//! ends: the types and the trait that stand in `engine.rs` itself, not in modules below it.

use std::collections::BTreeSet;

use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::{Finding, Source};

const ROOT: &str = "crates/core/src/";

/// Modules with their height; a module may use only lower ones, and itself.
const HEIGHTS: [(&str, u8); 7] = [
    ("engine", 5),
    ("extent", 4),
    ("tier", 4),
    ("meta", 3),
    ("volume", 2),
    ("namespace", 2),
    ("device", 1),
];

fn height(module: &str) -> Option<u8> {
    HEIGHTS.iter().find(|(name, _)| *name == module).map(|(_, height)| *height)
}

/// Crates that stand below others, with the crates that they must not use.
const BELOW: [(&str, &[&str]); 6] = [
    (
        "crates/model/",
        &[
            "halocline-trace",
            "halocline-sim",
            "halocline-core",
            "halocline-cluster",
            "halocline-fuse",
            "halocline-cli",
        ],
    ),
    (
        "crates/trace/",
        &[
            "halocline-sim",
            "halocline-core",
            "halocline-cluster",
            "halocline-fuse",
            "halocline-cli",
        ],
    ),
    ("crates/sim/", &["halocline-core", "halocline-cluster", "halocline-fuse", "halocline-cli"]),
    // An engine knows other nodes by its trait alone.
    ("crates/core/", &["halocline-cluster", "halocline-fuse", "halocline-cli"]),
    ("crates/cluster/", &["halocline-fuse", "halocline-cli"]),
    ("crates/fuse/", &["halocline-cluster", "halocline-cli"]),
];

/// Finds uses that go sideways or upward.
pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    sources
        .iter()
        .flat_map(|source| [check_source(source), check_manifest(source)].concat())
        .collect()
}

fn check_manifest(source: &Source) -> Vec<Finding> {
    let below = BELOW.iter().find(|(dir, _)| source.path == format!("{dir}Cargo.toml"));
    let Some((dir, above)) = below else { return Vec::new() };
    let uses = |line: &str| above.iter().find(|name| line.starts_with(*name)).copied();
    let lines = source.text.lines().enumerate();
    let found = lines.filter_map(|(index, line)| Some((index + 1, uses(line)?)));
    found
        .map(|(line, name)| Finding::new(source, line, format!("{dir} must not use {name}")))
        .collect()
}

fn check_source(source: &Source) -> Vec<Finding> {
    let (Some(inner), Some(tree)) = (source.path.strip_prefix(ROOT), &source.tree) else {
        return Vec::new();
    };
    let module = module_of(inner);
    let Some(from) = height(&module[0]) else { return Vec::new() };
    let own = module[0].clone();
    let is_contract = |place: &[String]| {
        let named = place.get(1).is_some_and(|name| name.starts_with(char::is_uppercase));
        named && place[0] == "engine"
    };
    let used: BTreeSet<(usize, String)> = places(module, &tree.items)
        .into_iter()
        .filter(|(_, place)| !is_contract(place))
        .map(|(line, mut place)| (line, place.swap_remove(0)))
        .collect();
    used.into_iter()
        .filter(|(_, to)| *to != own && height(to).is_some_and(|to| to >= from))
        .map(|(line, to)| {
            let what = format!(
                "{own} must not use {to}: engine -> extent|tier -> meta -> volume|namespace -> device"
            );
            Finding::new(source, line, what)
        })
        .collect()
}

/// The module path of a file, from its path below the crate's sources.
pub(super) fn module_of(inner: &str) -> Vec<String> {
    inner.trim_end_matches(".rs").split('/').map(str::to_owned).collect()
}

/// What items of a file with this module path use of the crate: paths below the crate's root, with
/// their lines.
pub(super) fn places<'a>(
    module: Vec<String>,
    items: impl IntoIterator<Item = &'a syn::Item>,
) -> BTreeSet<(usize, Vec<String>)> {
    let mut uses = Uses { module, found: BTreeSet::new() };
    for item in items {
        uses.visit_item(item);
    }
    uses.found
}

/// Collects every path below the crate root, with its line.
struct Uses {
    /// Where we are: the file's module path, and inline modules inside it.
    module: Vec<String>,
    found: BTreeSet<(usize, Vec<String>)>,
}

impl Uses {
    fn note(&mut self, line: usize, segments: &[String]) {
        let mut place: Vec<String> = match segments.first().map(String::as_str) {
            Some("crate") => Vec::new(),
            Some("super" | "self") => self.module.clone(),
            _ => return,
        };
        for segment in segments {
            match segment.as_str() {
                "crate" | "self" => {}
                "super" => drop(place.pop()),
                name => place.push(name.to_owned()),
            }
        }
        if !place.is_empty() {
            self.found.insert((line, place));
        }
    }

    fn note_use(&mut self, before: &mut Vec<String>, tree: &syn::UseTree) {
        match tree {
            syn::UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.note_use(before, &path.tree);
                before.pop();
            }
            syn::UseTree::Group(group) => {
                for item in &group.items {
                    self.note_use(before, item);
                }
            }
            syn::UseTree::Name(syn::UseName { ident })
            | syn::UseTree::Rename(syn::UseRename { ident, .. }) => {
                before.push(ident.to_string());
                self.note(ident.span().start().line, before);
                before.pop();
            }
            syn::UseTree::Glob(glob) => self.note(glob.span().start().line, before),
        }
    }

    /// Macro arguments are no syntax tree: look for `crate :: name` among the tokens.
    fn note_tokens(&mut self, tokens: TokenStream) {
        let trees: Vec<TokenTree> = tokens.into_iter().collect();
        for (index, tree) in trees.iter().enumerate() {
            match tree {
                TokenTree::Group(group) => self.note_tokens(group.stream()),
                TokenTree::Ident(ident) if ident == "crate" => {
                    // crate :: a :: b is seven tokens, each `::` two of them.
                    let names = [index, index + 3, index + 6].map(|at| trees.get(at));
                    let path: Vec<String> =
                        names.into_iter().flatten().map(ToString::to_string).collect();
                    self.note(ident.span().start().line, &path);
                }
                _ => {}
            }
        }
    }
}

impl<'ast> Visit<'ast> for Uses {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.module.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.note_use(&mut Vec::new(), &item.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> =
            path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.note(path.span().start().line, &segments);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.note_tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_that_uses_one_above_is_found() {
        let manifest = "[dependencies]\ncsv = \"1\"\nhalocline-core = { workspace = true }\n";
        let findings = check(&[Source::new("crates/trace/Cargo.toml", manifest)]);
        assert_eq!(findings.len(), 1);
        assert_eq!(check(&[Source::new("crates/cli/Cargo.toml", manifest)]), []);
        let manifest = "[dependencies]\nhalocline-cluster = { workspace = true }\n";
        for below in ["core", "fuse", "sim"] {
            let path = format!("crates/{below}/Cargo.toml");
            assert_eq!(check(&[Source::new(&path, manifest)]).len(), 1, "{below}");
        }
    }

    fn findings(path: &str, text: &str) -> usize {
        check(&[Source::new(path, text)]).len()
    }

    #[test]
    fn downward_uses_pass() {
        let text = "use crate::meta::{Dmt, local}; fn f() { crate::device::Space::default(); }";
        assert_eq!(findings("crates/core/src/extent/read.rs", text), 0);
        assert_eq!(findings("crates/core/src/engine.rs", "use crate::extent::Cache;"), 0);
        assert_eq!(findings("crates/core/src/device.rs", "use crate::error::Result;"), 0);
    }

    #[test]
    fn the_contract_with_front_ends_is_for_all() {
        let text = "use crate::engine::{Caller, Stat}; fn f() { vec![crate::engine::Seek::Data] }";
        assert_eq!(findings("crates/core/src/namespace/node.rs", text), 0);
    }

    #[test]
    fn upward_uses_are_found_in_every_form() {
        let path = "crates/core/src/volume/striped.rs";
        for text in [
            "use crate::meta::Dmt;",
            "use crate::{error::Error, extent::Cache};",
            "use super::super::engine::redirect::Redirector;",
            "use crate::engine::*;",
            "fn f() { crate::engine::start() }",
            "fn f(x: &crate::meta::Extent) {}",
            "mod tests { use super::super::super::meta::Dmt; }",
            "fn f() { assert!(matches!(x, crate::meta::Stamp::Writing)) }",
        ] {
            assert_eq!(findings(path, text), 1, "{text}");
        }
    }

    #[test]
    fn extent_and_tier_never_use_each_other() {
        assert_eq!(findings("crates/core/src/extent.rs", "use crate::tier::Tier;"), 1);
        assert_eq!(findings("crates/core/src/tier/migrate.rs", "use crate::extent::Map;"), 1);
    }

    #[test]
    fn volume_and_namespace_are_beside_each_other() {
        assert_eq!(findings("crates/core/src/namespace.rs", "use crate::volume::Volume;"), 1);
    }
}
