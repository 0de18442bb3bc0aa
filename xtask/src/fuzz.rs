//! `cargo x fuzz [SECONDS]`: every fuzz target, one after another (docs/TESTING.md, fuzz targets).

use std::path::Path;
use std::process::{Command, Stdio};
use std::{env, fs};

use crate::tidy;

/// How long each target runs where nothing is said.
const SECONDS: u64 = 60;

/// How cargo-fuzz is called.
struct Compiler {
    environment: Vec<(&'static str, &'static str)>,
    /// Finds wrong use of memory; `none` where the compiler has none.
    sanitizer: &'static str,
}

impl Compiler {
    /// `cargo fuzz COMMAND`.
    fn fuzz(&self, command: &str) -> Command {
        let mut fuzz = Command::new("cargo");
        fuzz.args(["fuzz", command, "--sanitizer", self.sanitizer]);
        // The toolchain of this program is not that of the targets.
        fuzz.envs(self.environment.iter().copied()).env_remove("CARGO").current_dir(tidy::root());
        fuzz
    }
}

/// Builds all targets, runs them for `seconds` each, and names those that found something.
pub(crate) fn run(seconds: Option<&str>) -> Result<(), String> {
    let seconds = match seconds.map(str::parse::<u64>) {
        None => SECONDS,
        Some(Ok(seconds @ 1..)) => seconds,
        Some(_) => return Err("seconds are a whole number, 1 or more".to_owned()),
    };
    let compiler = compiler()?;
    let targets = targets(&tidy::root().join("fuzz/fuzz_targets"))?;
    let started = |error| format!("cargo fuzz cannot be started: {error}");
    if !compiler.fuzz("build").status().map_err(started)?.success() {
        return Err("fuzz: the targets cannot be built; nothing was run".to_owned());
    }
    let mut failed = Vec::new();
    for target in &targets {
        eprintln!("fuzz: {target} for {seconds} s");
        // Found inputs are kept from run to run; the seeds are only read.
        let corpus = tidy::root().join("fuzz/corpus").join(target);
        fs::create_dir_all(&corpus).map_err(|error| format!("{}: {error}", corpus.display()))?;
        let mut fuzz = compiler.fuzz("run");
        fuzz.arg(target).arg(&corpus).arg(tidy::root().join("fuzz/seeds").join(target));
        fuzz.args(["--", &format!("-max_total_time={seconds}"), "-max_len=65536", "-timeout=30"]);
        fuzz.args(["-rss_limit_mb=2048", "-print_final_stats=1"]);
        if !fuzz.status().map_err(started)?.success() {
            failed.push(target.as_str());
        }
    }
    if failed.is_empty() {
        eprintln!("fuzz: {} targets found nothing", targets.len());
        return Ok(());
    }
    let failed = failed.join(", ");
    Err(format!("fuzz: something was found by {failed}; inputs are in fuzz/artifacts"))
}

/// The names of the targets.
fn targets(dir: &Path) -> Result<Vec<String>, String> {
    let at = |error| format!("{}: {error}", dir.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(at)? {
        let path = entry.map_err(at)?.path();
        names.extend(path.file_stem().and_then(|name| name.to_str()).map(str::to_owned));
    }
    names.sort_unstable();
    Ok(names)
}

/// A compiler that can instrument: a nightly one, or the usual one without the address sanitizer; or what is missing.
fn compiler() -> Result<Compiler, String> {
    if !answers(&["fuzz", "--version"], &[]) {
        return Err("cargo-fuzz is not installed: cargo install cargo-fuzz --locked".to_owned());
    }
    let with_sanitizer = |environment| Compiler { environment, sanitizer: "address" };
    if env::var_os("RUSTUP_TOOLCHAIN")
        .is_some_and(|name| name.to_string_lossy().contains("nightly"))
    {
        return Ok(with_sanitizer(Vec::new()));
    }
    let nightly = vec![("RUSTUP_TOOLCHAIN", "nightly")];
    if answers(&["--version"], &nightly) {
        return Ok(with_sanitizer(nightly));
    }
    eprintln!(
        "fuzz: there is no nightly compiler, which the address sanitizer needs (rustup toolchain install nightly --profile \
         minimal): coverage and assertions only"
    );
    Ok(Compiler { environment: vec![("RUSTC_BOOTSTRAP", "1")], sanitizer: "none" })
}

fn answers(arguments: &[&str], environment: &[(&str, &str)]) -> bool {
    let mut command = Command::new("cargo");
    command.args(arguments).envs(environment.iter().copied());
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A target that is not a binary of the manifest, or has no seeds, is not run by anybody.
    #[test]
    fn each_target_is_built_and_has_seeds() {
        let manifest = fs::read_to_string(tidy::root().join("fuzz/Cargo.toml")).unwrap();
        let targets = targets(&tidy::root().join("fuzz/fuzz_targets")).unwrap();
        assert!(targets.len() > 30, "{targets:?}");
        for target in targets {
            assert!(manifest.contains(&format!("path = \"fuzz_targets/{target}.rs\"")), "{target}");
            let seeds = tidy::root().join("fuzz/seeds").join(&target);
            assert!(fs::read_dir(seeds).is_ok_and(|mut seeds| seeds.next().is_some()), "{target}");
        }
    }
}
