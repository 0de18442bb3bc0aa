//! What sources call outside their tests, for rules about what may be called where.

use proc_macro2::Span;
use syn::Token;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// What a rule is told of a source.
pub(super) trait Calls {
    /// A path in an expression, by its last two parts.
    fn path(&mut self, of: &str, name: &str, at: Span);
    /// A call of a method.
    fn method(&mut self, call: &syn::ExprMethodCall);
}

/// Tells `rule` of all that stands in `tree`, but not of what is compiled for tests or fuzzing alone.
pub(super) fn outside_tests(tree: &syn::File, rule: &mut impl Calls) {
    OutsideTests(rule).visit_file(tree);
}

/// Whether an item with these attributes is compiled for tests alone.
pub(super) fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"))
    })
}

/// Whether an item with these attributes is compiled for tests or fuzzing alone, or only where the whole crate is.
pub(super) fn is_left_out(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args().is_ok_and(|condition| is_test_or_fuzzing(&condition))
    })
}

fn is_test_or_fuzzing(condition: &syn::Meta) -> bool {
    match condition {
        syn::Meta::Path(path) => path.is_ident("test") || path.is_ident("fuzzing"),
        syn::Meta::List(list) if list.path.is_ident("any") => {
            let all = list.parse_args_with(Punctuated::<syn::Meta, Token![,]>::parse_terminated);
            all.is_ok_and(|all| all.iter().all(is_test_or_fuzzing))
        }
        _ => false,
    }
}

struct OutsideTests<'r, R>(&'r mut R);

impl<'ast, R: Calls> Visit<'ast> for OutsideTests<'_, R> {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !is_left_out(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_expr_path(&mut self, path: &'ast syn::ExprPath) {
        let mut names = path.path.segments.iter().rev().map(|part| part.ident.to_string());
        if let (Some(last), Some(before)) = (names.next(), names.next()) {
            self.0.path(&before, &last, path.span());
        }
        visit::visit_expr_path(self, path);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        self.0.method(call);
        visit::visit_expr_method_call(self, call);
    }
}
