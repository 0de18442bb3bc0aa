//! Repository checks: `cargo x check` is what CI runs; `cargo x tidy` is its quickest part.

use std::process::ExitCode;

mod check;
mod fuzz;
mod test_binaries;
mod tidy;

const USAGE: &str = "usage: cargo x check          everything: tidy, fmt, clippy, docs, tests
       cargo x tidy           the rules of CONTRIBUTING.md that are programs
       cargo x tidy --shrink  lower xtask/ratchet.toml to today's sizes
       cargo x figures [DIR]  figures of the structure, of this checkout or another one
       cargo x fuzz [SECONDS] each fuzz target for that long, 60 where nothing is said";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["check"] => check::run(),
        ["tidy"] => tidy::run(),
        ["tidy", "--shrink"] => tidy::shrink(),
        ["figures"] => tidy::figures(None),
        ["figures", dir] => tidy::figures(Some(dir)),
        ["fuzz"] => fuzz::run(None),
        ["fuzz", seconds] => fuzz::run(Some(seconds)),
        _ => Err(USAGE.to_owned()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}
