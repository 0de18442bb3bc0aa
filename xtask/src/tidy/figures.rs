//! Figures of the structure: what is spread over many files, what is public for nobody, what is asserted. `cargo x figures`
//! prints them, of another checkout with `cargo x figures DIR`: some that a rule bounds by now are for older checkouts.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};

use super::for_tests::{TestModules, is_for_tests};
use super::{Source, circles};

/// How many of the largest are named.
const NAMED: usize = 3;

/// The figures of these sources as lines.
pub(super) fn of(sources: &[Source]) -> Vec<String> {
    let for_tests = TestModules::of(sources);
    let product = sources.iter().filter(|source| is_product(source) && !for_tests.have(source));
    let product: Vec<&Source> = product.collect();
    let types = types(&product);
    let mut lines = Vec::new();
    let mut largest = |what: &str, size: &dyn Fn(&Type) -> usize| {
        let mut all: Vec<_> = types.iter().map(|((.., name), found)| (size(found), name)).collect();
        all.sort_unstable_by(|one, other| other.cmp(one));
        let named = all.iter().take(NAMED).map(|(size, name)| format!("{name} {size}"));
        lines.push(format!("{what}: {}", named.collect::<Vec<_>>().join(", ")));
    };
    largest("fields of a struct that other files see, but no other crate", &|it| it.fields);
    largest("files with methods of a type", &|it| it.files.len());
    largest("methods of a type", &|it| it.methods);
    largest("methods of a type outside its own file", &|it| it.elsewhere);
    lines.push(format!("circles of files: {}", circles::check(sources).len()));
    let (all, unnamed) = public_items(sources, &product);
    lines.push(format!("public items of libraries: {all}, named nowhere outside: {unnamed}"));
    for (root, (asserted, size)) in assertions(&product) {
        lines.push(format!("{root}: {asserted} assertions in {size} lines"));
    }
    lines
}

/// Whether a source is part of a program or a library, and not of their tests.
fn is_product(source: &Source) -> bool {
    let inner = source.path.strip_prefix("crates/").and_then(|path| path.split_once("/src/"));
    inner.is_some_and(|(name, inner)| {
        let inner = format!("/{inner}");
        source.tree.is_some()
            && name != "testkit"
            && !inner.contains("/tests")
            && !inner.contains("tests.rs")
            && !inner.contains("fuzzing")
    })
}

/// The crate's directory of a source.
fn root(source: &Source) -> &str {
    source.path.split_once("/src/").map_or("", |(root, _)| root)
}

/// What is known of a type.
#[derive(Debug, Default)]
struct Type<'s> {
    fields: usize,
    files: BTreeSet<&'s str>,
    methods: usize,
    elsewhere: usize,
}

/// Types by crate, file and name.
type Types<'s> = BTreeMap<(&'s str, &'s str, String), Type<'s>>;

fn types<'s>(sources: &[&'s Source]) -> Types<'s> {
    let mut types = Types::new();
    for (source, item) in items(sources) {
        let (name, fields) = match item {
            syn::Item::Struct(item) => (item.ident.to_string(), restricted(&item.fields)),
            syn::Item::Enum(item) => (item.ident.to_string(), 0),
            _ => continue,
        };
        let found = types.entry((root(source), &source.path, name)).or_default();
        found.fields = fields;
    }
    for (source, item) in items(sources) {
        let syn::Item::Impl(block) = item else { continue };
        let (None, syn::Type::Path(of)) = (&block.trait_, &*block.self_ty) else { continue };
        let Some(name) = of.path.segments.last().map(|last| last.ident.to_string()) else {
            continue;
        };
        let methods = block.items.iter().filter(|item| matches!(item, syn::ImplItem::Fn(_)));
        // Of several types of the name, the one whose file has the most of this path.
        let alike =
            |path: &str| path.bytes().zip(source.path.bytes()).take_while(|(a, b)| a == b).count();
        let candidates =
            types.keys().filter(|(of, _, other)| *of == root(source) && *other == name);
        let nearest = candidates.max_by_key(|(_, path, _)| alike(path)).cloned();
        if let Some(found) =
            nearest.and_then(|nearest| types.get_mut(&nearest).zip(Some(nearest.1)))
        {
            let (found, path) = found;
            let count = methods.count();
            found.files.insert(&source.path);
            found.methods += count;
            found.elsewhere += if path == source.path { 0 } else { count };
        }
    }
    types
}

/// Fields that are visible to other files of the crate alone.
fn restricted(fields: &syn::Fields) -> usize {
    fields.iter().filter(|field| matches!(field.vis, syn::Visibility::Restricted(_))).count()
}

/// All items of files that are not for tests.
fn items<'s>(sources: &[&'s Source]) -> impl Iterator<Item = (&'s Source, &'s syn::Item)> {
    let of = |source: &'s Source| source.tree.iter().flat_map(|tree| &tree.items);
    sources.iter().flat_map(move |source| of(source).map(move |item| (*source, item)))
}

/// The public items of the libraries, and how many of them no source outside of their crate names.
fn public_items(all: &[Source], product: &[&Source]) -> (usize, usize) {
    let libraries: BTreeSet<&str> = product
        .iter()
        .filter(|source| source.path.ends_with("/src/lib.rs"))
        .map(|source| root(source))
        .collect();
    let mut named_in: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for source in all.iter().filter(|source| source.tree.is_some()) {
        let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
        for word in source.text.split(|letter| !is_word(letter)) {
            named_in.entry(word).or_default().insert(root(source));
        }
    }
    let names: Vec<(&str, String)> = items(product)
        .filter(|(source, _)| libraries.contains(root(source)))
        .filter_map(|(source, item)| Some((root(source), public(item)?)))
        .collect();
    let is_unnamed = |(root, name): &&(&str, String)| {
        named_in.get(&**name).is_none_or(|roots| roots.iter().all(|other| other == root))
    };
    (names.len(), names.iter().filter(is_unnamed).count())
}

/// The name of an item that is public.
fn public(item: &syn::Item) -> Option<String> {
    let (visibility, name) = match item {
        syn::Item::Fn(item) => (&item.vis, &item.sig.ident),
        syn::Item::Struct(item) => (&item.vis, &item.ident),
        syn::Item::Enum(item) => (&item.vis, &item.ident),
        syn::Item::Trait(item) => (&item.vis, &item.ident),
        syn::Item::Const(item) => (&item.vis, &item.ident),
        syn::Item::Static(item) => (&item.vis, &item.ident),
        syn::Item::Type(item) => (&item.vis, &item.ident),
        _ => return None,
    };
    matches!(visibility, syn::Visibility::Public(_)).then(|| name.to_string())
}

/// Assertions outside tests, and lines, by crate.
fn assertions<'s>(sources: &[&'s Source]) -> BTreeMap<&'s str, (usize, usize)> {
    let mut by_crate: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for source in sources {
        let mut count = Assertions(0);
        source.tree.iter().for_each(|tree| count.visit_file(tree));
        let (asserted, lines) = by_crate.entry(root(source)).or_default();
        *asserted += count.0;
        *lines += source.text.lines().count();
    }
    by_crate
}

struct Assertions(usize);

impl<'ast> Visit<'ast> for Assertions {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        let name = item.path.segments.last().map(|last| last.ident.to_string());
        let name = name.unwrap_or_default();
        self.0 += usize::from(name.trim_start_matches("debug_").starts_with("assert"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(sources: &[(&str, &str)], begin: &str) -> String {
        let sources: Vec<Source> =
            sources.iter().map(|(path, text)| Source::new(*path, *text)).collect();
        let line = of(&sources).into_iter().find(|line| line.starts_with(begin));
        line.map_or_else(String::new, |line| line[begin.len()..].to_owned())
    }

    #[test]
    fn types_of_one_name_are_counted_apart() {
        let sources = [
            ("crates/a/src/lib.rs", "mod b; mod c;"),
            (
                "crates/a/src/b.rs",
                "struct Run { pub(crate) x: u8, pub y: u8 } impl Run { fn f() {} fn g() {} }",
            ),
            (
                "crates/a/src/c.rs",
                "struct Run { pub(super) x: u8, pub(crate) y: u8 } impl Run { fn f() {} }",
            ),
            ("crates/a/src/c/d.rs", "impl super::Run { fn g() {} fn h() {} }"),
        ];
        let fields =
            told(&sources, "fields of a struct that other files see, but no other crate: ");
        assert_eq!(fields, "Run 2, Run 1");
        assert_eq!(told(&sources, "files with methods of a type: "), "Run 2, Run 1");
        assert_eq!(told(&sources, "methods of a type: "), "Run 3, Run 2");
        assert_eq!(told(&sources, "methods of a type outside its own file: "), "Run 2, Run 0");
    }

    #[test]
    fn public_items_and_assertions_are_counted_outside_tests() {
        let sources = [
            (
                "crates/a/src/lib.rs",
                "pub fn used() { assert!(true); } pub struct Unused; fn own() {}",
            ),
            ("crates/b/src/main.rs", "fn main() { a::used(); debug_assert_eq!(1, 1); }"),
            ("crates/b/src/main/tests.rs", "fn t() { assert!(true); }"),
            ("crates/b/src/c.rs", "#[cfg(test)] mod tests { fn t() { assert!(true); } }"),
            ("crates/b/src/d.rs", "#[cfg(test)] mod explored; #[cfg(any(test, fuzzing))] mod f;"),
            ("crates/b/src/d/explored.rs", "fn t() { assert!(true); }"),
            ("crates/b/src/d/f.rs", "fn t() { assert!(true); }"),
            ("crates/b/src/e.rs", "#[cfg(any(test, fuzzing))] fn fuzz() { assert!(true); }"),
            ("crates/s/src/lib.rs", "#![cfg(test)] mod x;"),
            ("crates/s/src/x.rs", "fn t() { assert!(true); }"),
        ];
        assert_eq!(told(&sources, "public items of libraries: "), "2, named nowhere outside: 1");
        assert_eq!(told(&sources, "crates/a: "), "1 assertions in 1 lines");
        assert_eq!(told(&sources, "crates/b: "), "1 assertions in 4 lines");
        assert_eq!(told(&sources, "crates/s: "), "");
    }
}
