//! Whoever writes a file must not choose how much memory reading it takes: what is read whole is read through
//! `crates/os/src/bounded.rs`, or through `take`.

use super::calls::{self, Calls};
use super::{Finding, Source, needless_exceptions};

/// Functions of the standard library, by the last two parts of their paths.
const FUNCTIONS: [[&str; 2]; 3] =
    [["fs", "read"], ["fs", "read_to_string"], ["io", "read_to_string"]];
/// Methods of one argument that read to the end.
const METHODS: [&str; 2] = ["read_to_end", "read_to_string"];

/// Where this list stands.
const LIST: &str = "xtask/src/tidy/reads.rs";
/// They read what the kernel or the machine's administrator writes.
const EXEMPT: [&str; 9] = [
    "crates/cli/src/command/doctor.rs",
    "crates/storage/src/calibrate/rotational.rs",
    "crates/api/src/control/mount.rs",
    "crates/meta/src/identity.rs",
    "crates/os/src/boot_id.rs",
    "crates/meta/src/owner/lock_holder.rs",
    "crates/os/src/private.rs",
    "crates/fuse/src/transport/uring.rs",
    "crates/trace/src/record/writing.rs",
];

/// Finds files and streams that are read without a bound.
pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    let in_scope = |source: &&Source| {
        source.path.starts_with("crates/")
            && source.path.contains("/src/")
            && !source.path.starts_with("crates/testkit/")
            && !source.path.contains("/tests")
            && !EXEMPT.contains(&source.path.as_str())
    };
    let mut findings: Vec<_> = sources.iter().filter(in_scope).flat_map(reads_in).collect();
    findings.extend(needless_exceptions(sources, LIST, &EXEMPT, reads_in));
    findings
}

fn reads_in(source: &Source) -> Vec<Finding> {
    let mut reads = Reads { source, findings: Vec::new() };
    if let Some(tree) = &source.tree {
        calls::outside_tests(tree, &mut reads);
    }
    reads.findings
}

struct Reads<'a> {
    source: &'a Source,
    findings: Vec<Finding>,
}

impl Reads<'_> {
    fn found(&mut self, at: proc_macro2::Span, what: &str) {
        let what = format!("{what} reads without a bound: use halocline_os::bounded");
        self.findings.push(Finding::new(self.source, at.start().line, what));
    }
}

impl Calls for Reads<'_> {
    fn path(&mut self, of: &str, name: &str, at: proc_macro2::Span) {
        if FUNCTIONS.contains(&[of, name]) {
            self.found(at, &format!("{of}::{name}"));
        }
    }

    fn method(&mut self, call: &syn::ExprMethodCall) {
        let reads_all = METHODS.iter().any(|name| call.method == name) && call.args.len() == 1;
        if reads_all && !is_bounded(&call.receiver) {
            self.found(call.method.span(), &format!(".{}()", call.method));
        }
    }
}

/// Whether what is read was cut off by `take`.
fn is_bounded(receiver: &syn::Expr) -> bool {
    match receiver {
        syn::Expr::MethodCall(call) => call.method == "take" || is_bounded(&call.receiver),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> usize {
        check(&[Source::new(path, text)]).len()
    }

    #[test]
    fn reads_without_a_bound_are_found() {
        let path = "crates/cli/src/a.rs";
        assert_eq!(findings(path, "fn f() { let a = std::fs::read(path)?; }"), 1);
        assert_eq!(findings(path, "fn f() { let a = fs::read_to_string(path); }"), 1);
        assert_eq!(findings(path, "fn f() { file.read_to_end(&mut bytes)?; }"), 1);
    }

    #[test]
    fn bounded_ones_and_tests_are_not() {
        let path = "crates/cli/src/a.rs";
        assert_eq!(findings(path, "fn f() { bounded::read_to_string(path, MAX)?; }"), 0);
        assert_eq!(findings(path, "fn f() { file.take(MAX).read_to_end(&mut bytes)?; }"), 0);
        assert_eq!(findings(path, "#[cfg(test)] mod tests { fn f() { fs::read(path); } }"), 0);
        assert_eq!(findings("crates/cli/tests/a.rs", "fn f() { fs::read(path); }"), 0);
    }
}
