//! `cargo x fuzz [SECONDS]`: every fuzz target, one after another (docs/TESTING.md, fuzz targets).

use std::path::Path;
use std::process::{Command, Stdio};
use std::{env, fs};

use crate::tidy;

/// How long each target runs where nothing is said.
const SECONDS: u64 = 60;

/// Runs all targets for `seconds` each, and names those that found something.
pub(crate) fn run(seconds: Option<&str>) -> Result<(), String> {
    let seconds = match seconds.map(str::parse::<u64>) {
        None => SECONDS,
        Some(Ok(seconds @ 1..)) => seconds,
        Some(_) => return Err("seconds are a whole number, 1 or more".to_owned()),
    };
    let compiler = compiler()?;
    let targets = targets(&tidy::root().join("fuzz/fuzz_targets"))?;
    let mut failed = Vec::new();
    for target in &targets {
        eprintln!("fuzz: {target} for {seconds} s");
        // Found inputs are kept from run to run; the seeds are only read.
        let corpus = tidy::root().join("fuzz/corpus").join(target);
        fs::create_dir_all(&corpus).map_err(|error| format!("{}: {error}", corpus.display()))?;
        let status = Command::new("cargo")
            .args(["fuzz", "run", target])
            .arg(&corpus)
            .arg(tidy::root().join("fuzz/seeds").join(target))
            .args(["--", &format!("-max_total_time={seconds}"), "-max_len=65536", "-timeout=30"])
            .args(["-rss_limit_mb=2048", "-print_final_stats=1"])
            .envs(compiler.iter().copied())
            // The toolchain of this program is not that of the targets.
            .env_remove("CARGO")
            .current_dir(tidy::root())
            .status()
            .map_err(|error| format!("cargo fuzz cannot be started: {error}"))?;
        if !status.success() {
            failed.push(target.as_str());
        }
    }
    if failed.is_empty() {
        eprintln!("fuzz: {} targets found nothing", targets.len());
        return Ok(());
    }
    let failed = failed.join(", ");
    Err(format!(
        "fuzz: something was found, or it could not be built: {failed}; inputs are in fuzz/artifacts"
    ))
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

/// What has cargo use a compiler that can instrument, or what is missing.
fn compiler() -> Result<Vec<(&'static str, &'static str)>, String> {
    if !answers(&["fuzz", "--version"], &[]) {
        return Err("cargo-fuzz is not installed: cargo install cargo-fuzz --locked".to_owned());
    }
    if env::var_os("RUSTUP_TOOLCHAIN")
        .is_some_and(|name| name.to_string_lossy().contains("nightly"))
    {
        return Ok(Vec::new());
    }
    let nightly = vec![("RUSTUP_TOOLCHAIN", "nightly")];
    if answers(&["--version"], &nightly) {
        return Ok(nightly);
    }
    Err("the address sanitizer needs a nightly compiler: rustup toolchain install nightly --profile minimal; or, with \
         the usual one and without the sanitizer, RUSTC_BOOTSTRAP=1 cargo fuzz run -s none TARGET"
        .to_owned())
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

    /// A target that is no binary of the manifest, or has no seeds, is not run by anybody.
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
