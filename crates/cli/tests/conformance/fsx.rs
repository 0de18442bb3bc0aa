//! fsx: tens of thousands of random operations a seed, every byte checked, on a cache smaller than
//! the file, so that admission, eviction, flush and fetch all run under it.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::mount::{self, IO_URING, Mount};
use crate::programs;

/// Operations for each seed, unless `HALOCLINE_FSX_OPERATIONS` has another number. 100,000 take
/// two minutes for each of a dozen seeds.
const OPERATIONS: &str = "30000";

/// A file of 2 MiB over a cache of 1 MiB. Sizes are checked by fsx after each operation.
pub(crate) const CONFIG: &str = "
flen = 2097152
[opsize]
max = 65536
[weights]
close_open = 1
read = 10
write = 10
mapread = 5
mapwrite = 5
invalidate = 1
truncate = 3
fsync = 0.2
fdatasync = 0.2
posix_fallocate = 1
punch_hole = 2
sendfile = 1
posix_fadvise = 1
copy_file_range = 2
";

/// Operations for each seed, in decimal.
pub(crate) fn operations() -> String {
    env::var("HALOCLINE_FSX_OPERATIONS").unwrap_or_else(|_| OPERATIONS.to_owned())
}

/// The flags of a cache that is smaller than the file.
pub(crate) const SMALL: [&str; 6] =
    ["--policy", "always", "--size", "1M", "--max-dirty-age", "300ms"];

/// Why the suite cannot run here, if so.
pub(crate) fn obstacle() -> Option<&'static str> {
    let missing = programs::suite("fsx").is_none();
    mount::obstacle().or(missing.then_some("fsx is not installed; make test installs it"))
}

/// Runs the suite on a file.
pub(crate) fn run(seed: &str, operations: &str, weights: &str, file: &Path) {
    let aside = tempfile::tempdir().expect("scratch");
    let config = aside.path().join("fsx.toml");
    fs::write(&config, weights).expect("configuration");
    programs::run(
        Command::new(programs::suite("fsx").expect("found before"))
            .args(["-q", "-N", operations, "-S", seed, "-f"])
            .arg(&config)
            .arg("-P")
            .arg(aside.path())
            .arg(file),
    );
}

fn exercise(seed: &str, options: &[&str]) {
    if let Some(reason) = obstacle() {
        return programs::skip(reason);
    }
    let mut mount = Mount::new(&[&SMALL, options].concat());
    run(seed, &operations(), CONFIG, &mount.path().join("file"));
    let status = mount.status();
    let report = &status["report"];
    assert!(report["admitted"]["requests"].as_u64() > Some(1000), "not cached: {status}");
    assert!(status["used_bytes"].as_u64() <= Some(1 << 20), "I5: {status}");
    let shown = fs::read(mount.path().join("file")).expect("the file through the mount");
    mount.unmount();
    let kept = fs::read(mount.origin().join("file")).expect("the file on the origin");
    assert!(shown == kept, "I7: the origin alone holds everything after unmount");
}

#[test]
fn fsx_write_back_seed_1() {
    exercise("1", &[]);
}

#[test]
fn fsx_write_back_seed_2() {
    exercise("2", &["--eviction", "lru"]);
}

#[test]
fn fsx_direct_seed_3() {
    exercise("3", &["--direct=true"]);
}

#[test]
fn fsx_write_through_seed_4() {
    exercise("4", &["--mode", "write-through"]);
}

#[test]
fn fsx_io_uring_seed_5() {
    if let Some(reason) = mount::ring_obstacle() {
        return programs::skip(&reason);
    }
    exercise("5", &[IO_URING]);
}

#[test]
fn fsx_io_uring_direct_seed_6() {
    if let Some(reason) = mount::ring_obstacle() {
        return programs::skip(&reason);
    }
    exercise("6", &[IO_URING, "--direct=true"]);
}
