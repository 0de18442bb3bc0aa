//! Time is handed in: nothing reads the machine's clock or waits by it but what is listed here, so that a simulated clock
//! (`crates/os/src/clock.rs`) can stand in its place. A crate that is new falls under the rule.

use super::calls::{self, Calls};
use super::{Finding, Source};

/// Where this list stands.
const LIST: &str = "xtask/src/tidy/clocks.rs";
/// Files and directories whose time is the machine's, and why no other clock could stand in its place.
const IN_MACHINE_TIME: [(&str, &str); 12] = [
    ("crates/api/src/control/", "waits for other processes: sockets, locks, claims"),
    ("crates/cli/src/", "measures, shows progress, and waits for processes"),
    ("crates/cluster/src/store/redis.rs", "waits for a server on the network"),
    ("crates/cluster/src/store/redis/cluster.rs", "waits for a server on the network"),
    ("crates/cluster/src/store/redis/partitions.rs", "waits for a server on the network"),
    ("crates/cluster/src/store/redis/routes.rs", "waits for a server on the network"),
    ("crates/fuse/src/", "waits for the kernel"),
    ("crates/meta/src/owner.rs", "waits for the process that has the cache"),
    ("crates/os/src/", "has the clock"),
    ("crates/schedules/src/", "replaces the primitives of threads"),
    ("crates/testkit/src/", "waits for processes that tests start"),
    ("crates/trace/src/record", "records when real requests were made"),
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

/// Finds uses of the machine's clock, and exceptions for nothing.
pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    let is_product = |source: &&Source| {
        let inner = source.path.strip_prefix("crates/").and_then(|path| path.split_once("/src/"));
        inner.is_some_and(|(_, inner)| !format!("/{inner}").contains("/tests"))
    };
    let mut findings = Vec::new();
    let mut needed = [false; IN_MACHINE_TIME.len()];
    for source in sources.iter().filter(is_product) {
        let found = uses_in(source);
        match IN_MACHINE_TIME.iter().position(|(path, _)| source.path.starts_with(path)) {
            Some(exception) => needed[exception] |= !found.is_empty(),
            None => findings.extend(found),
        }
    }
    if let Some(list) = sources.iter().find(|source| source.path == LIST) {
        let needless = IN_MACHINE_TIME.iter().zip(needed).filter(|(_, needed)| !needed);
        findings.extend(needless.map(|((path, why), _)| {
            let what = format!("{path} ({why}) uses no machine's time: take it off the list");
            Finding::new(list, 1, what)
        }));
    }
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
        assert_eq!(findings("crates/new/src/a.rs", "fn f() { Instant::now(); }"), 1);
        assert_eq!(findings("crates/api/src/control/a.rs", "fn f() { Instant::now(); }"), 0);
        assert_eq!(findings("crates/new/tests/a.rs", "fn f() { Instant::now(); }"), 0);
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

    #[test]
    fn an_exception_for_nothing_is_found() {
        let of = |text| [Source::new(LIST, ""), Source::new("crates/fuse/src/a.rs", text)];
        let all = IN_MACHINE_TIME.len();
        assert_eq!(check(&of("")).len(), all);
        assert_eq!(check(&of("fn f() { Instant::now(); }")).len(), all - 1);
    }
}
