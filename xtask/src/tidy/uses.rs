//! What Rust sources use of their own crate: paths below its root, in `use` items, in code and in the arguments of macros.

use std::collections::BTreeSet;

use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

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

    /// Macro arguments are not a syntax tree: look for `crate :: name` among the tokens.
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
