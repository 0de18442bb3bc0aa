//! What is compiled for tests or fuzzing alone: no rule about the product asks for it.

use std::collections::BTreeSet;

use syn::Token;
use syn::punctuated::Punctuated;

use super::Source;

/// Whether an item with these attributes is compiled for tests or fuzzing alone, or only where the whole crate is.
pub(super) fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
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

/// The modules, and crates, of which all files are compiled for tests or fuzzing alone.
pub(super) struct TestModules(BTreeSet<String>);

impl TestModules {
    /// Those of `sources`.
    pub(super) fn of(sources: &[Source]) -> Self {
        let mut modules = BTreeSet::new();
        for source in sources {
            let Some(tree) = &source.tree else { continue };
            let (dir, name) = source.path.rsplit_once('/').unwrap_or(("", &source.path));
            if is_for_tests(&tree.attrs) && name == "lib.rs" {
                modules.insert(dir.to_owned());
            }
            let own = match name {
                "lib.rs" | "main.rs" => dir,
                _ => source.path.trim_end_matches(".rs"),
            };
            for item in &tree.items {
                if let syn::Item::Mod(item) = item
                    && item.content.is_none()
                    && is_for_tests(&item.attrs)
                {
                    modules.insert(format!("{own}/{}", item.ident));
                }
            }
        }
        Self(modules)
    }

    /// Whether a source belongs to one of them.
    pub(super) fn have(&self, source: &Source) -> bool {
        self.0.iter().any(|module| {
            let inner = source.path.strip_prefix(&**module);
            inner.is_some_and(|inner| inner == ".rs" || inner.starts_with('/'))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_for_tests_have_their_files_and_those_below() {
        let sources = [
            ("crates/a/src/lib.rs", "mod b; #[cfg(test)] mod only;"),
            ("crates/a/src/b.rs", "#[cfg(any(test, fuzzing))] mod fuzzing; #[cfg(unix)] mod c;"),
            ("crates/f/src/lib.rs", "#![cfg(fuzzing)]"),
        ]
        .map(|(path, text)| Source::new(path, text));
        let modules = TestModules::of(&sources);
        let has = |path: &str| modules.have(&Source::new(path, ""));
        for path in ["a/src/only.rs", "a/src/only/below.rs", "a/src/b/fuzzing.rs", "f/src/x.rs"] {
            assert!(has(&format!("crates/{path}")), "{path}");
        }
        for path in ["a/src/only_too.rs", "a/src/b.rs", "a/src/b/c.rs", "a/src/lib.rs"] {
            assert!(!has(&format!("crates/{path}")), "{path}");
        }
    }
}
