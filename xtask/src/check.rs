//! `cargo x check`: every check in the order of its cost; all run, so one look shows all findings.

use std::process::Command;
use std::time::Instant;

use crate::{test_binaries, tidy};

struct Step {
    name: &'static str,
    arguments: &'static [&'static str],
    environment: &'static [(&'static str, &'static str)],
}

const STEPS: [Step; 3] = [
    Step { name: "fmt", arguments: &["fmt", "--all", "--check"], environment: &[] },
    Step {
        name: "clippy",
        arguments: &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--all-features",
            "--locked",
            "--quiet",
            "--",
            "-D",
            "warnings",
        ],
        environment: &[],
    },
    Step {
        name: "docs",
        arguments: &[
            "doc",
            "--workspace",
            "--no-deps",
            "--document-private-items",
            "--locked",
            "--quiet",
        ],
        // The pages are for people who read the code: a link to a private item is right there.
        environment: &[("RUSTDOCFLAGS", "-D warnings -A rustdoc::private-intra-doc-links")],
    },
];

/// Runs tidy, then each cargo step, then the tests.
pub(crate) fn run() -> Result<(), String> {
    let mut failed = Vec::new();
    if let Err(findings) = tidy::run() {
        eprintln!("{findings}");
        failed.push("tidy");
    }
    for step in &STEPS {
        let passed = timed(step.name, || {
            Command::new(env!("CARGO"))
                .args(step.arguments)
                .envs(step.environment.iter().copied())
                .current_dir(tidy::root())
                .status()
                .is_ok_and(|status| status.success())
        });
        if !passed {
            failed.push(step.name);
        }
    }
    if !timed("tests", || test_binaries::run(&tidy::root())) {
        failed.push("tests");
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}

/// Says when a step begins, and how it ended.
fn timed(name: &str, step: impl FnOnce() -> bool) -> bool {
    let start = Instant::now();
    eprintln!("check: {name}");
    let passed = step();
    let verdict = if passed { "ok" } else { "FAILED" };
    eprintln!("check: {name} {verdict} in {:.0} s", start.elapsed().as_secs_f64());
    passed
}
