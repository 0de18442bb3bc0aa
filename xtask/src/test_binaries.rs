//! Runs all test binaries of the workspace, several at once: most of them wait for leases, limits and servers rather than
//! for a processor, and one after the other they take twice as long.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use serde::Deserialize;

/// How many test binaries run at once, each with a thread per processor.
const LANES: usize = 3;

/// What is read of a message of `cargo test --message-format=json`.
#[derive(Deserialize)]
struct Message {
    executable: Option<PathBuf>,
    profile: Option<Profile>,
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

/// A test binary of a package.
#[derive(Debug, PartialEq, Eq)]
struct TestBinary {
    /// As in `halocline-cli conformance (test)`.
    name: String,
    executable: PathBuf,
    /// The package's directory, where Cargo runs its tests.
    package: PathBuf,
}

impl TestBinary {
    /// The test binary that a line of Cargo's tells of, if it is about one.
    fn told_by(line: &str) -> Option<Self> {
        let message: Message = serde_json::from_str(line).ok()?;
        let executable =
            message.executable.filter(|_| message.profile.is_some_and(|it| it.test))?;
        let (package, target) = (message.manifest_path?.parent()?.to_owned(), message.target?);
        let of = package.file_name()?.to_string_lossy();
        let name = format!("{of} {} ({})", target.name, target.kind.join(", "));
        Some(Self { name, executable, package })
    }

    /// Runs it to its end; its output is in the file `log`, for it must not mix with that of others.
    fn run(&self, log: &Path) -> std::io::Result<bool> {
        let output = File::create(log)?;
        let status = Command::new(&self.executable)
            .current_dir(&self.package)
            .env("CARGO_MANIFEST_DIR", &self.package)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .status()?;
        Ok(status.success())
    }
}

/// Builds all test binaries, runs them and the tests in documentation.
pub(crate) fn run(root: &Path) -> bool {
    let Some(binaries) = build(root) else { return false };
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let logs = target.join("test-output");
    if let Err(error) = fs::create_dir_all(&logs) {
        eprintln!("{} cannot be created: {error}", logs.display());
        return false;
    }
    let failed = run_all(&binaries, &logs);
    let documented = Command::new(env!("CARGO"))
        .args(["test", "--workspace", "--locked", "--no-fail-fast", "--doc"])
        .current_dir(root)
        .status()
        .is_ok_and(|status| status.success());
    for name in &failed {
        eprintln!("failed: {name}");
    }
    failed.is_empty() && documented
}

/// The test binaries of the workspace in the order in which Cargo finished them, or `None` if one could not be built.
fn build(root: &Path) -> Option<Vec<TestBinary>> {
    let output = Command::new(env!("CARGO"))
        .args(["test", "--workspace", "--locked", "--no-run"])
        .arg("--message-format=json-render-diagnostics")
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .ok()?;
    let lines = String::from_utf8_lossy(&output.stdout);
    let binaries: Vec<_> = lines.lines().filter_map(TestBinary::told_by).collect();
    (output.status.success() && !binaries.is_empty()).then_some(binaries)
}

/// Runs `binaries` in [`LANES`] lanes and prints the output of each when it ends; returns the names of those that failed.
fn run_all(binaries: &[TestBinary], logs: &Path) -> Vec<String> {
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| {
                while let Some(binary) = binaries.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let begun = Instant::now();
                    let log = logs.join(binary.name.replace(['/', ' '], "_"));
                    let outcome = binary.run(&log);
                    let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                    let verdict = match outcome {
                        Ok(true) => "ok".to_owned(),
                        Ok(false) => "FAILED".to_owned(),
                        Err(error) => format!("FAILED: {error}"),
                    };
                    print(&log);
                    let seconds = begun.elapsed().as_secs();
                    eprintln!("tests: {} {verdict} in {seconds} s", binary.name);
                    if verdict != "ok" {
                        failed.push(binary.name.clone());
                    }
                }
            });
        }
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Copies a file to standard output; what is no text of it, too.
fn print(log: &Path) {
    let copied =
        File::open(log).and_then(|mut log| std::io::copy(&mut log, &mut std::io::stdout()));
    if let Err(error) = copied {
        eprintln!("{} cannot be shown: {error}", log.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_binaries_are_told_from_the_rest() {
        let line = |is_test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/crates/cli/Cargo.toml",
                "target":{{"name":"bench","kind":["test"]}},"profile":{{"test":{is_test}}},"executable":{executable}}}"#
            )
        };
        let found = TestBinary::told_by(&line(true, r#""/t/bench-1""#)).unwrap();
        assert_eq!(found.name, "cli bench (test)");
        assert_eq!(found.executable, Path::new("/t/bench-1"));
        assert_eq!(found.package, Path::new("/w/crates/cli"));
        assert_eq!(TestBinary::told_by(&line(false, r#""/t/example""#)), None);
        assert_eq!(TestBinary::told_by(&line(true, "null")), None);
        assert_eq!(TestBinary::told_by(r#"{"reason":"build-finished","success":true}"#), None);
        assert_eq!(TestBinary::told_by("no message"), None);
    }

    #[test]
    fn a_binary_that_fails_is_named_and_all_others_run() {
        let logs = std::env::temp_dir().join(format!("halocline-lanes-{}", std::process::id()));
        fs::create_dir_all(&logs).unwrap();
        let binary = |name: &str| TestBinary {
            name: name.to_owned(),
            executable: PathBuf::from("/bin").join(name),
            package: logs.clone(),
        };
        let binaries = ["true", "false", "absent", "pwd"].map(binary);
        let mut failed = run_all(&binaries, &logs);
        failed.sort();
        assert_eq!(failed, ["absent", "false"]);
        let written = fs::read_to_string(logs.join("pwd")).unwrap();
        assert_eq!(Path::new(written.trim()).file_name(), logs.file_name());
        fs::remove_dir_all(logs).unwrap();
    }
}
