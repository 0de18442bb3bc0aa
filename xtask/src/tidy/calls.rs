//! What sources call outside their tests, for rules about what may be called where.

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::for_tests::is_for_tests;

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

struct OutsideTests<'r, R>(&'r mut R);

impl<'ast, R: Calls> Visit<'ast> for OutsideTests<'_, R> {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !is_for_tests(&module.attrs) {
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
