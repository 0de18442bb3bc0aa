//! Every option has an effect: each field of `Config` is read somewhere outside the table, the
//! file reader and the documentation that all only pass it on.

use std::collections::BTreeSet;

use syn::visit::{self, Visit};

use super::{Finding, Source};

/// Where the fields stand.
const CONFIG: &str = "crates/api/src/config.rs";
/// What passes options on without obeying them.
const CARRIERS: &str = "crates/api/src/config/";

/// Finds options that nothing obeys.
pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    let Some(config) = sources.iter().find(|source| source.path == CONFIG) else {
        return Vec::new();
    };
    let mut reads = Reads::default();
    let readers = sources.iter().filter(|source| !source.path.starts_with(CARRIERS));
    for source in readers {
        reads.base = if source.path == CONFIG { "self" } else { "config" };
        if let Some(tree) = &source.tree {
            reads.visit_file(tree);
        }
    }
    let dead = fields(config).filter(|(name, _)| !reads.names.contains(name));
    dead.map(|(name, line)| {
        let what = format!("nothing reads the option {name}: give it an effect or take it out");
        Finding::new(config, line, what)
    })
    .collect()
}

/// The fields of `Config` with their lines.
fn fields(config: &Source) -> impl Iterator<Item = (String, usize)> {
    let items = config.tree.iter().flat_map(|tree| &tree.items);
    let named = items.filter_map(|item| match item {
        syn::Item::Struct(item) if item.ident == "Config" => Some(&item.fields),
        _ => None,
    });
    named.flatten().filter_map(|field| {
        let name = field.ident.as_ref()?;
        Some((name.to_string(), name.span().start().line))
    })
}

/// Names of the fields that are read from something called `base`.
#[derive(Default)]
struct Reads {
    base: &'static str,
    names: BTreeSet<String>,
}

impl<'ast> Visit<'ast> for Reads {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if item.ident != "tests" {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_expr_field(&mut self, access: &'ast syn::ExprField) {
        let base = match &*access.base {
            syn::Expr::Path(path) => path.path.get_ident().map(ToString::to_string),
            syn::Expr::Field(field) => match &field.member {
                syn::Member::Named(name) => Some(name.to_string()),
                syn::Member::Unnamed(_) => None,
            },
            _ => None,
        };
        if let (true, syn::Member::Named(name)) =
            (base.is_some_and(|base| base == self.base), &access.member)
        {
            self.names.insert(name.to_string());
        }
        visit::visit_expr_field(self, access);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "pub struct Config { pub size: u64, pub health_retry: u64 }";

    fn findings(reader: &str) -> Vec<String> {
        let sources = [
            Source::new(CONFIG, TABLE),
            Source::new("crates/api/src/config/options.rs", "fn f() { config.health_retry; }"),
            Source::new("crates/cache/src/health.rs", reader),
        ];
        check(&sources).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn an_option_that_is_only_passed_on_is_found() {
        let found = findings("fn f() { self.around.config.size; other.health_retry; }");
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("health_retry"), "{found:?}");
        assert_eq!(findings("mod tests { fn f() { config.size; } }").len(), 2);
    }

    #[test]
    fn options_that_are_obeyed_pass() {
        assert!(
            findings("fn f() { config.size; self.parts.around.config.health_retry; }").is_empty()
        );
    }
}
