//! What may not stand in the repository: unfinished code, drawers without a label, paths of the
//! machine somebody worked on.

use std::path::Path;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::{Finding, Source};

const MACROS: [&str; 3] = ["dbg", "todo", "unimplemented"];
const STEMS: [&str; 6] = ["utils", "util", "common", "helpers", "helper", "misc"];
/// Written in two halves so that this file does not find itself.
const MACHINE_PATHS: [&str; 3] =
    [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];

/// Finds forbidden macros, file names and paths.
pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    sources
        .iter()
        .flat_map(|source| {
            let mut findings = Vec::from_iter(unparsed(source));
            findings.extend(macros(source));
            findings.extend(hidden_skips(source));
            findings.extend(prints(source));
            findings.extend(name(source));
            findings.extend(machine_paths(source));
            findings
        })
        .collect()
}

fn is_rust(source: &Source) -> bool {
    Path::new(&source.path).extension().is_some_and(|end| end == "rs")
}

fn is_test(source: &Source) -> bool {
    source.path.contains("/tests/") || source.path.ends_with("/tests.rs")
}

/// The other rules are blind in a file that does not parse.
fn unparsed(source: &Source) -> Option<Finding> {
    (is_rust(source) && source.tree.is_none())
        .then(|| Finding::new(source, 1, "does not parse as Rust"))
}

struct Macros<'a> {
    source: &'a Source,
    findings: Vec<Finding>,
}

impl<'ast> Visit<'ast> for Macros<'_> {
    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        if let Some(last) = call.path.segments.last()
            && MACROS.iter().any(|name| last.ident == name)
            // A test double says so of what it does not stand in for.
            && !(last.ident == "unimplemented" && is_test(self.source))
        {
            let line = call.path.span().start().line;
            let what = format!("{}! is for work in progress", last.ident);
            self.findings.push(Finding::new(self.source, line, what));
        }
        visit::visit_macro(self, call);
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        let runs_elsewhere = matches!(
            &attribute.meta,
            syn::Meta::NameValue(syn::MetaNameValue {
                value: syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(reason), .. }),
                ..
            }) if reason.value().starts_with("run by ")
        );
        if attribute.path().is_ident("ignore") && !runs_elsewhere {
            let line = attribute.span().start().line;
            let what = "an ignored test tests nothing: let it print SKIP with the reason, or say \
                        which test starts it with `#[ignore = \"run by ...\"]`";
            self.findings.push(Finding::new(self.source, line, what));
        }
    }
}

fn macros(source: &Source) -> Vec<Finding> {
    let mut macros = Macros { source, findings: Vec::new() };
    if let Some(tree) = &source.tree {
        macros.visit_file(tree);
    }
    macros.findings
}

/// The test harness captures what `eprintln!` prints: nobody would see that a test did not run.
fn hidden_skips(source: &Source) -> Vec<Finding> {
    let hidden = concat!("println!(\"SK", "IP");
    let lines = source.text.lines().enumerate().filter(|(_, line)| line.contains(hidden));
    lines
        .map(|(index, _)| {
            let what = "write SKIP lines with writeln!(io::stderr(), \"SKIP test: reason\"): \
                        eprintln! is captured";
            Finding::new(source, index + 1, what)
        })
        .collect()
}

/// Other people's words are escaped in one place, which all text on a terminal goes through; the other
/// files here write for programs.
const WRITERS: [&str; 7] = [
    "crates/cli/src/print.rs",
    "crates/cli/src/log.rs",
    "crates/cli/src/progress.rs",
    "crates/cli/src/mount_lookup.rs",
    "crates/cli/src/command/model.rs",
    "crates/cli/src/command/mount.rs",
    "crates/cli/src/command/bench/worker.rs",
];
const PRINTS: [&str; 4] = ["println!(", "print!(", "io::stdout", "io::stderr"];

fn prints(source: &Source) -> Vec<Finding> {
    let is_program = source.path.contains("crates/") && source.path.contains("/src/");
    let for_tests = source.path.contains("crates/testkit/") || is_test(source);
    let writes = WRITERS.iter().any(|writer| source.path.ends_with(writer));
    if !is_rust(source) || !is_program || for_tests || writes {
        return Vec::new();
    }
    let program = source.text.lines().take_while(|line| !line.starts_with("#[cfg(test)]"));
    let is_one = |line: &&str| {
        let comment = line.trim_start().starts_with("//");
        !comment && PRINTS.iter().any(|print| line.contains(print))
    };
    let prints = program.enumerate().filter(|(_, line)| is_one(line));
    let what =
        "text for people goes through say! and tell! (crates/cli/src/print.rs), which escape it";
    prints.map(|(index, _)| Finding::new(source, index + 1, what)).collect()
}

fn name(source: &Source) -> Option<Finding> {
    let stem = Path::new(&source.path).file_stem()?.to_str()?;
    let code = is_rust(source) || Path::new(&source.path).extension().is_some_and(|e| e == "c");
    (code && STEMS.contains(&stem))
        .then(|| Finding::new(source, 1, format!("a file named {stem} has no subject")))
}

fn machine_paths(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in source.text.lines().enumerate() {
        for path in MACHINE_PATHS {
            let absolute = line.match_indices(path).any(|(at, _)| {
                // Inside a longer path it is a relative part: `tests/work/`, `$DIR/home/`.
                let before = line[..at].chars().next_back();
                !before.is_some_and(|c| c.is_alphanumeric() || "._-~}*)/".contains(c))
            });
            if absolute {
                findings.push(Finding::new(
                    source,
                    index + 1,
                    format!("path of a machine: {path}"),
                ));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> usize {
        check(&[Source::new(path, text)]).len()
    }

    #[test]
    fn unfinished_code_is_found() {
        assert_eq!(findings("a.rs", "fn f() { todo!() }"), 1);
        assert_eq!(findings("a.rs", "fn f() { let x = std::dbg!(1); }"), 1);
        assert_eq!(findings("a.rs", "fn f() -> u8 { unimplemented!(\"later\") }"), 1);
        assert_eq!(findings("a/tests.rs", "fn f() { todo!() }"), 1);
        assert_eq!(findings("a/tests.rs", "fn f() { unimplemented!() }"), 0);
        assert_eq!(findings("a.rs", "fn f() { println!(\"todo!()\") }"), 0);
    }

    #[test]
    fn ignored_tests_are_found() {
        assert_eq!(findings("a.rs", "#[test] #[ignore = \"slow\"] fn f() {}"), 1);
        assert_eq!(findings("a.rs", "#[test] #[ignore] fn f() {}"), 1);
        assert_eq!(findings("a.rs", "#[test] #[ignore = \"run by g\"] fn f() {}"), 0);
    }

    #[test]
    fn hidden_skips_are_found() {
        let line = concat!("fn f() { eprintln!(\"SK", "IP: no FUSE\") }");
        assert_eq!(findings("a.rs", line), 1);
    }

    #[test]
    fn other_ways_to_print_are_found() {
        let line = "fn f() { eprintln!(\"x\") }";
        assert_eq!(findings("crates/cli/src/a.rs", line), 1);
        assert_eq!(findings("crates/os/src/a/b.rs", "fn f() { print!(\"x\") }"), 1);
        assert_eq!(findings("crates/cli/src/a.rs", "fn f() { let _ = std::io::stdout(); }"), 1);
        assert_eq!(findings("crates/cli/src/print.rs", line), 0);
        assert_eq!(findings("crates/cli/tests/a.rs", line), 0);
        let test = format!("#[cfg(test)]\nmod tests {{ {line} }}");
        assert_eq!(findings("crates/cli/src/a.rs", &test), 0);
    }

    #[test]
    fn drawers_are_found() {
        assert_eq!(findings("crates/os/src/utils.rs", ""), 1);
        assert_eq!(findings("crates/os/src/common.rs", ""), 1);
        assert_eq!(findings("crates/storage/src/volume.rs", ""), 0);
    }

    #[test]
    fn machine_paths_are_found() {
        let path = MACHINE_PATHS[0];
        assert_eq!(findings("a.md", &format!("see {path}notes")), 1);
        assert_eq!(findings("a.sh", &format!("cd \"{path}main\"")), 1);
        assert_eq!(findings("a.sh", &format!("cd $OUT{path}x ./target{path}x")), 0);
    }

    #[test]
    fn broken_rust_is_found() {
        assert_eq!(findings("a.rs", "fn f( {"), 1);
    }
}
