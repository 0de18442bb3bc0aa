//! Methods stand with the fields that they work on: each `impl` of a type stands in the file that defines the type, under the
//! name that it has there. Implementations of traits may stand elsewhere. What is too much for one file is several
//! components, each with fields of its own.

use std::collections::BTreeSet;

use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::{Finding, Source};

/// Finds `impl` blocks that stand apart from their types, except in folders of tests.
pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    sources.iter().filter(|source| source.path.contains("/src/")).flat_map(of_file).collect()
}

fn of_file(source: &Source) -> Vec<Finding> {
    let Some(tree) = &source.tree else { return Vec::new() };
    let mut file = OfFile::default();
    file.visit_file(tree);
    let apart = file
        .methods
        .iter()
        .filter(|methods| methods.is_from_elsewhere || !file.defined.contains(&methods.name));
    let found = apart.map(|Methods { name, line, .. }| {
        let what = format!(
            "methods of {name} belong into the file that defines it: make a component of what they need"
        );
        Finding::new(source, *line, what)
    });
    found.collect()
}

/// An inherent `impl`.
struct Methods {
    name: String,
    line: usize,
    /// Whether its path leads out of the file.
    is_from_elsewhere: bool,
}

/// What a file defines, also in modules and functions, and the methods that stand in it.
#[derive(Default)]
struct OfFile {
    defined: BTreeSet<String>,
    methods: Vec<Methods>,
    /// How many modules of the file are around what is visited.
    depth: usize,
}

impl OfFile {
    fn define(&mut self, name: &syn::Ident) {
        self.defined.insert(name.to_string());
    }

    /// A macro makes some types: any word in it may be one.
    fn define_words(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Ident(word) => self.define(&word),
                TokenTree::Group(group) => self.define_words(group.stream()),
                _ => {}
            }
        }
    }
}

impl<'ast> Visit<'ast> for OfFile {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.define(&item.ident);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.define(&item.ident);
    }

    fn visit_item_union(&mut self, item: &'ast syn::ItemUnion) {
        self.define(&item.ident);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.define(&item.ident);
        visit::visit_item_trait(self, item);
    }

    fn visit_item_macro(&mut self, item: &'ast syn::ItemMacro) {
        self.define_words(item.mac.tokens.clone());
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        self.depth += 1;
        visit::visit_item_mod(self, module);
        self.depth -= 1;
    }

    fn visit_item_impl(&mut self, block: &'ast syn::ItemImpl) {
        if let (None, Some(path)) = (&block.trait_, path_of(&block.self_ty))
            && let Some(last) = path.segments.last()
        {
            let begins = |word: &str| path.segments.first().is_some_and(|part| part.ident == word);
            let leads_out = path.segments.len() > 1 && (begins("super") || begins("crate"));
            self.methods.push(Methods {
                name: last.ident.to_string(),
                line: block.span().start().line,
                is_from_elsewhere: leads_out && self.depth == 0,
            });
        }
        visit::visit_item_impl(self, block);
    }
}

/// The path of a type with methods of its own, or of the first trait of an object.
fn path_of(of: &syn::Type) -> Option<&syn::Path> {
    match of {
        syn::Type::Path(of) => Some(&of.path),
        syn::Type::TraitObject(of) => of.bounds.iter().find_map(|bound| match bound {
            syn::TypeParamBound::Trait(bound) => Some(&bound.path),
            _ => None,
        }),
        syn::Type::Paren(of) => path_of(&of.elem),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(sources: &[(&str, &str)]) -> usize {
        let path = |name: &str| format!("crates/tier/src/{name}");
        let sources: Vec<Source> =
            sources.iter().map(|(name, text)| Source::new(path(name), *text)).collect();
        assert!(sources.iter().all(|source| source.tree.is_some()));
        check(&sources).len()
    }

    #[test]
    fn methods_beside_their_fields_pass() {
        let alone = |text| findings(&[("a.rs", text)]);
        assert_eq!(alone("struct A; impl A { fn f(&self) {} } impl A {}"), 0);
        assert_eq!(alone("enum A<T> { B(T) } impl<T> A<T> {}"), 0);
        assert_eq!(alone("union A { b: u8 } impl A {}"), 0);
        assert_eq!(alone("trait A {} impl dyn A {}"), 0);
        assert_eq!(alone("struct A; mod tests { impl super::A {} }"), 0);
        assert_eq!(alone("mod inner { pub struct A; } impl inner::A {}"), 0);
        assert_eq!(alone("fn f() { struct A; impl A {} }"), 0);
        assert_eq!(alone("make! { pub struct A(u32) } impl A {}"), 0, "a macro makes it");
    }

    #[test]
    fn traits_may_be_implemented_anywhere() {
        assert_eq!(findings(&[("a.rs", "struct A;"), ("b.rs", "impl Drop for A {}")]), 0);
        assert_eq!(findings(&[("a.rs", "struct A;"), ("a/b.rs", "impl Drop for super::A {}")]), 0);
    }

    #[test]
    fn types_of_one_name_have_their_methods_each_in_its_file() {
        assert_eq!(findings(&[("a.rs", "struct A;"), ("b.rs", "struct A; impl A {}")]), 0);
        assert_eq!(findings(&[("a.rs", "struct A;"), ("a/b.rs", "enum A {} impl A {}")]), 0);
        let above = "struct A; impl super::A {}";
        assert_eq!(findings(&[("a.rs", "struct A;"), ("a/b.rs", above)]), 1);
        assert_eq!(
            findings(&[("a.rs", "struct A;"), ("b.rs", "struct A; impl crate::a::A {}")]),
            1
        );
    }

    #[test]
    fn methods_in_another_file_are_found() {
        let apart = |one, other| findings(&[("a.rs", one), ("b.rs", other)]);
        assert_eq!(apart("struct A;", "impl A {}"), 1);
        assert_eq!(apart("struct A<'a>;", "impl A<'_> {} impl A<'_> {}"), 2);
        assert_eq!(apart("union A { b: u8 }", "impl A {}"), 1);
        assert_eq!(apart("trait A {}", "impl dyn A + Send {}"), 1);
        assert_eq!(apart("struct A;", "mod tests { impl crate::a::A {} }"), 1);
        assert_eq!(apart("struct A;", "fn f() { impl crate::a::A {} }"), 1);
        assert_eq!(apart("make! { pub struct A(u32) }", "impl A {}"), 1);
    }

    /// A file below was allowed one such block: a type's fields were then open to two files.
    #[test]
    fn methods_in_a_file_below_or_above_are_found() {
        assert_eq!(findings(&[("a.rs", "struct A; impl A {}"), ("a/b.rs", "impl A {}")]), 1);
        assert_eq!(findings(&[("a.rs", "enum A {}"), ("a/b.rs", "impl super::A {}")]), 1);
        assert_eq!(findings(&[("lib.rs", "struct A;"), ("b.rs", "impl A {}")]), 1);
        assert_eq!(findings(&[("a/b.rs", "enum A {}"), ("a.rs", "impl b::A {}")]), 1);
        assert_eq!(findings(&[("a.rs", "struct A;"), ("a/tests.rs", "impl A {}")]), 1);
    }

    #[test]
    fn methods_under_another_name_are_found() {
        assert_eq!(
            findings(&[("a.rs", "struct A;"), ("b.rs", "use super::a::A as B; impl B {}")]),
            1
        );
        assert_eq!(
            findings(&[("a.rs", "struct A;"), ("b.rs", "type B = crate::a::A; impl B {}")]),
            1
        );
    }

    /// What a fixture does for one subject may stand with the tests of that.
    #[test]
    fn folders_of_tests_are_left_out() {
        let below = |folder: &str| Source::new(format!("crates/tier/{folder}/t/b.rs"), "impl A {}");
        assert_eq!([below("tests"), below("src")].map(|source| check(&[source]).len()), [0, 1]);
    }
}
