//! pjdfstest on a caching mount. Each case that is skipped or fails stands with its reason in
//! `pjdfstest-expected.toml`; any other difference, better or worse, fails the test.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde::Deserialize;

use crate::mount::{self, Mount};
use crate::programs;

const CONFIG: &str = "
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.02
allow_remount = ALLOWED
[dummy_auth]
entries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]
";

/// Case to reason.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    skipped: BTreeMap<String, String>,
    #[serde(default)]
    failing: BTreeMap<String, String>,
    /// Cases whose outcome is a matter of luck on any FUSE mount.
    #[serde(default)]
    either: BTreeMap<String, String>,
}

/// Outcome of each case, from lines such as `chmod::eloop      ok`.
fn outcomes(output: &str) -> BTreeMap<String, String> {
    output
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(name, rest)| (name.to_owned(), rest.trim().to_owned()))
        .filter(|(_, outcome)| ["ok", "skipped", "FAILED"].contains(&outcome.as_str()))
        .collect()
}

/// Runs the cases whose names contain `pattern`, with more in the environment of the suite.
fn run(
    mount: &Mount,
    aside: &Path,
    pattern: &str,
    remount: bool,
    more: &[(&str, &OsStr)],
) -> String {
    let suite = programs::suite("pjdfstest").expect("found before");
    let config = aside.join("pjdfstest.toml");
    fs::write(&config, CONFIG.replace("ALLOWED", &remount.to_string())).expect("configuration");
    let mut command = Command::new(suite);
    command.envs(more.iter().copied());
    if remount {
        command.env("PATH", path_with_plain_mount(aside));
    }
    command.arg("-c").arg(&config).arg("-p").arg(mount.path()).arg("-s").arg(aside).arg(pattern);
    let output = command.output().expect("pjdfstest starts");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The suite remounts read-only with `mount -o remount,ro PATH`, which mount(8) would hand to the
/// helper of FUSE mounts, which mounts anew; this asks the kernel, for this mount point.
fn path_with_plain_mount(folder: &Path) -> String {
    let path = std::env::var("PATH").unwrap_or_default();
    let script = format!("#!/bin/sh\nPATH='{path}' exec mount -i -o \"bind,$2\" \"$3\"\n");
    let file = folder.join("mount");
    fs::write(&file, script).expect("script");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("permissions");
    format!("{}:{path}", folder.display())
}

/// Why the suite cannot run here, if so.
pub(crate) fn obstacle() -> Option<&'static str> {
    let missing = programs::suite("pjdfstest").is_none();
    mount::obstacle().or(missing.then_some("pjdfstest is not installed; make test installs it"))
}

#[test]
fn pjdfstest_as_expected() {
    if let Some(reason) = obstacle() {
        return programs::skip(reason);
    }
    let mount = Mount::new(&["--policy", "always", "--size", "64M", "--allow-other=true"]);
    passes_as_expected(&mount);
}

#[test]
fn pjdfstest_through_io_uring_as_expected() {
    if let Some(reason) = obstacle().map(str::to_owned).or_else(mount::ring_obstacle) {
        return programs::skip(&reason);
    }
    let always = ["--policy", "always", "--size", "64M", "--allow-other=true", mount::IO_URING];
    passes_as_expected(&Mount::new(&always));
}

/// Runs all cases on a mount and holds the outcomes against what is expected.
pub(crate) fn passes_as_expected(mount: &Mount) {
    passes_but_for(mount, &[]);
}

/// The cases that do not pass, with more that fail: each with its reason.
fn expected_with(failing: &[(&str, &str)]) -> Expected {
    let mut expected: Expected =
        toml::from_str(include_str!("pjdfstest-expected.toml")).expect("pjdfstest-expected.toml");
    let failing = failing.iter().map(|(case, why)| (case.to_string(), why.to_string()));
    expected.failing.extend(failing);
    expected
}

/// The same, where more cases fail.
pub(crate) fn passes_but_for(mount: &Mount, failing: &[(&str, &str)]) {
    let expected = expected_with(failing);
    let aside = tempfile::tempdir_in("/dev/shm").expect("a second file system");
    // Some cases leave files open for writing, which forbids to remount read-only: the cases that
    // remount have a process of their own.
    let all = run(mount, aside.path(), "", false, &[]);
    let remounting = run(mount, aside.path(), "::erofs_", true, &[]);
    let mut found = outcomes(&all);
    found.extend(outcomes(&remounting));
    assert!(found.len() > 390, "pjdfstest did not run:\n{all}\n{remounting}");
    for told in [&all, &remounting] {
        told.lines().filter(|line| !line.ends_with(" ok")).for_each(|line| println!("{line}"));
    }
    assert_expected(found, &expected);
}

fn assert_expected(mut found: BTreeMap<String, String>, expected: &Expected) {
    found.retain(|name, _| !expected.either.contains_key(name));
    let names = |outcome: &str| -> Vec<&String> {
        found.iter().filter(|(_, seen)| *seen == outcome).map(|(name, _)| name).collect()
    };
    assert_eq!(names("skipped"), expected.skipped.keys().collect::<Vec<_>>());
    assert_eq!(names("FAILED"), expected.failing.keys().collect::<Vec<_>>());
}

/// The library that spreads calls over two directories; `None` where there is no C compiler.
fn spreading() -> Option<PathBuf> {
    static LIBRARY: OnceLock<Option<PathBuf>> = OnceLock::new();
    let built = || {
        programs::is_installed("cc").then(|| {
            let library = programs::target().join("libspread_calls.so");
            let fresh = library.with_extension(format!("{}", std::process::id()));
            let source = "crates/cli/tests/conformance/spread_calls.c";
            // What the suite hands over may be no pointer at all.
            let flags = ["-fno-delete-null-pointer-checks", "-Wno-nonnull-compare"];
            programs::run(
                Command::new("cc")
                    .args(["-std=gnu11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror"])
                    .args(flags)
                    .args(["-fPIC", "-shared", "-o"])
                    .arg(&fresh)
                    .arg(programs::repository().join(source))
                    .arg("-ldl"),
            );
            fs::rename(&fresh, &library).expect("rename");
            library
        })
    };
    LIBRARY.get_or_init(built).clone()
}

/// What is one kernel's, and depends on which of two mounts a call was made on.
const OF_ONE_KERNEL: [&str; 3] = [
    // What is mounted over a directory is seen by whoever mounted it.
    "rmdir::ebusy",
    // A program runs on one mount, and its file is written on the other: as on NFS, neither kernel knows of both.
    "open::etxtbsy",
    "truncate::etxtbsy",
];

/// Runs all cases but those that remount, each call on one of two mounts of the same tree, as a seed says.
pub(crate) fn passes_over(mounts: [&Mount; 2], seed: &str, failing: &[(&str, &str)]) {
    let Some(library) = spreading() else { return programs::skip("there is no C compiler") };
    let expected = expected_with(failing);
    let aside = tempfile::tempdir_in("/dev/shm").expect("a second file system");
    let (paths, counted) = (mounts.map(Mount::path), aside.path().join("counted"));
    let more = [
        ("LD_PRELOAD", library.as_os_str()),
        ("HALOCLINE_SPREAD_FIRST", paths[0].as_os_str()),
        ("HALOCLINE_SPREAD_SECOND", paths[1].as_os_str()),
        ("HALOCLINE_SPREAD_SEED", seed.as_ref()),
        ("HALOCLINE_SPREAD_COUNT", counted.as_os_str()),
    ];
    let all = run(mounts[0], aside.path(), "", false, &more);
    all.lines().filter(|line| !line.ends_with(" ok")).for_each(|line| println!("{line}"));
    let calls = fs::read_to_string(&counted).expect("how many calls there were");
    println!("seed {seed}: calls on each: {calls}");
    let calls: Vec<u64> = calls.split_whitespace().flat_map(str::parse).collect();
    assert!(calls.len() == 2 && calls.iter().all(|calls| *calls > 2000), "{calls:?}");
    let mut found = outcomes(&all);
    assert!(found.len() > 370, "pjdfstest did not run:\n{all}");
    found.retain(|name, _| !name.contains("::erofs_") && !OF_ONE_KERNEL.contains(&name.as_str()));
    assert_expected(found, &expected);
}
