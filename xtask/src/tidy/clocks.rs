//! Time is handed in: in both engines, in what they stand on and in a node's agent nothing reads the machine's clock or
//! waits for it, so that a simulated clock (`crates/os/src/clock.rs`) can stand in its place.

use super::calls::{self, Calls};
use super::{Finding, Source, needless_exceptions};

/// Where the rule holds.
const SCOPES: [&str; 5] = [
    "crates/cache/src/",
    "crates/cluster/src/",
    "crates/meta/src/",
    "crates/storage/src/",
    "crates/tier/src/",
];
/// Where this list stands.
const LIST: &str = "xtask/src/tidy/clocks.rs";
/// Wait for another process or for a server on the network, which live in the machine's time.
const EXEMPT: [&str; 5] = [
    "crates/cluster/src/store/redis.rs",
    "crates/cluster/src/store/redis/cluster.rs",
    "crates/cluster/src/store/redis/partitions.rs",
    "crates/cluster/src/store/redis/routes.rs",
    "crates/meta/src/owner.rs",
];

/// Functions of the standard library, by the last two parts of their paths.
const FUNCTIONS: [[&str; 2]; 3] = [["Instant", "now"], ["SystemTime", "now"], ["thread", "sleep"]];
/// Methods, and how many arguments they take.
const METHODS: [(&str, usize); 7] = [
    ("elapsed", 0),
    ("recv_timeout", 1),
    ("wait_for", 2),
    ("wait_while_for", 3),
    ("wait_timeout", 2),
    ("wait_until", 2),
    ("wait_while_until", 3),
];

/// Finds uses of the machine's clock.
pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    let in_scope = |source: &&Source| {
        SCOPES.iter().any(|scope| source.path.starts_with(scope))
            && !EXEMPT.contains(&source.path.as_str())
            && !source.path.contains("/tests")
    };
    let mut findings: Vec<_> = sources.iter().filter(in_scope).flat_map(uses_in).collect();
    findings.extend(needless_exceptions(sources, LIST, &EXEMPT, uses_in));
    findings
}

fn uses_in(source: &Source) -> Vec<Finding> {
    let mut uses = Uses { source, findings: Vec::new() };
    if let Some(tree) = &source.tree {
        calls::outside_tests(tree, &mut uses);
    }
    uses.findings
}

struct Uses<'a> {
    source: &'a Source,
    findings: Vec<Finding>,
}

impl Uses<'_> {
    fn found(&mut self, at: proc_macro2::Span, what: &str) {
        let what = format!("{what} is the machine's time: ask the Clock that was handed in");
        self.findings.push(Finding::new(self.source, at.start().line, what));
    }
}

impl Calls for Uses<'_> {
    fn path(&mut self, of: &str, name: &str, at: proc_macro2::Span) {
        if FUNCTIONS.contains(&[of, name]) {
            self.found(at, &format!("{of}::{name}"));
        }
    }

    fn method(&mut self, call: &syn::ExprMethodCall) {
        let is = |(name, args): &(&str, usize)| call.method == name && call.args.len() == *args;
        if METHODS.iter().any(is) {
            self.found(call.method.span(), &format!(".{}()", call.method));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> usize {
        check(&[Source::new(path, text)]).len()
    }

    #[test]
    fn the_machines_time_is_found() {
        let path = "crates/cache/src/a.rs";
        assert_eq!(findings(path, "fn f() { let a = std::time::Instant::now(); }"), 1);
        assert_eq!(findings(path, "fn f() { x.map_or_else(Instant::now, g); }"), 1);
        assert_eq!(findings(path, "fn f() { thread::sleep(a); changed.wait_for(&mut b, a); }"), 2);
        assert_eq!(findings(path, "fn f() { if begun.elapsed() > LIMIT { } }"), 1);
        assert_eq!(findings(path, "fn f() { changed.wait_until(&mut b, deadline); }"), 1);
        assert_eq!(findings("crates/cluster/src/agent.rs", "fn f() { Instant::now(); }"), 1);
        assert_eq!(findings("crates/api/src/control/a.rs", "fn f() { Instant::now(); }"), 0);
    }

    #[test]
    fn what_was_handed_in_is_not() {
        let path = "crates/cache/src/a.rs";
        assert_eq!(
            findings(path, "fn f() { let a = self.clock.elapsed(begun); clock.sleep(a) }"),
            0
        );
        let test = "#[cfg(test)] mod tests { fn f() { thread::sleep(a) } }";
        assert_eq!(findings(path, test), 0);
    }
}
