//! fsx, pjdfstest and random calls on a file tier whose files move all the time.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use halocline_testkit::waiting::WAIT_LIMIT;

use crate::mount::{self, IO_URING, Mount};
use crate::tier_migrations::Migrations;
use crate::{differential, fsx, pjdfstest, programs};

/// Every file is served by the mount process, so that open files move too.
const MOVING: [&str; 2] = ["--passthrough=false", "--allow-other=true"];

/// Not every seed will do: 13 asks `posix_fallocate` for no bytes (at operation 99,364), which is
/// EINVAL on any directory, and fsx ends there.
fn exercise(seed: &str, options: &[&str], at_least: u64) {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    exercise_on(Mount::tier(options), fsx::CONFIG, None, seed, at_least);
}

/// The same on a mount with other weights, of which `held` may be an open file.
fn exercise_on(mut mount: Mount, weights: &str, held: Option<fs::File>, seed: &str, at_least: u64) {
    let Some(suite) = programs::suite("fsx") else {
        return programs::skip("fsx is not installed; make test installs it");
    };
    let migrations = Migrations::start(&mount);
    let aside = tempfile::tempdir().expect("scratch");
    let config = aside.path().join("fsx.toml");
    fs::write(&config, weights).expect("configuration");
    // Again where other work leaves the migrations little time.
    for _ in 0..10 {
        programs::run(
            Command::new(&suite)
                .args(["-q", "-N", &fsx::operations(), "-S", seed, "-f"])
                .arg(&config)
                .arg("-P")
                .arg(aside.path())
                .arg(mount.path().join("file")),
        );
        if migrations.count() >= at_least {
            break;
        }
    }
    let count = migrations.stop();
    assert!(count >= at_least, "the file moved only {count} times");
    drop(held);
    mount.unmount();
    programs::run(programs::halocline().arg("fsck").arg(mount.root()));
}

#[test]
fn fsx_on_a_tier_seed_11() {
    exercise("11", &MOVING, 20);
}

#[test]
fn fsx_on_a_tier_seed_12() {
    exercise("12", &[&MOVING[..], &["--policy", "lru"]].concat(), 20);
}

/// The file is twice as large as the SSD: it spills while it is written.
#[test]
fn fsx_on_a_tier_that_is_too_small_seed_15() {
    exercise("15", &[&MOVING[..], &["--ssd-limit", "1M"]].concat(), 0);
}

/// The kernel serves the file by itself.
#[test]
fn fsx_on_a_tier_with_passthrough_seed_14() {
    exercise_beside("14", true, fsx::CONFIG);
}

/// The kernel serves a reader of the file, and mappings, while writes come to the mount. There
/// `sendfile` and `copy_file_range` are refused, and fsx does not `read` instead
/// (`warm_passthrough.rs` does).
#[test]
fn fsx_on_a_tier_beside_a_reader_seed_17() {
    let weights = fsx::CONFIG.replace("sendfile = 1", "sendfile = 0");
    exercise_beside("17", false, &weights.replace("copy_file_range = 2", "copy_file_range = 0"));
}

/// Whoever opens a file is served as those are who have it open: fsx makes its file grow, and would
/// have it served by the mount.
fn exercise_beside(seed: &str, writes: bool, weights: &str) {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let writes_too = format!("--passthrough-writes={writes}");
    let mount = Mount::tier(&["--allow-other=true", &writes_too]);
    let file = mount.path().join("file");
    fs::write(&file, vec![0; 1 << 20]).expect("write");
    // The kernel tells of the close above when it likes: until then the file is one that grows.
    let deadline = Instant::now() + WAIT_LIMIT;
    let held = loop {
        let held = fs::File::options().read(true).write(writes).open(&file).expect("open");
        let status = mount.status();
        let passthrough = &status["tier"]["passthrough"];
        if passthrough["works"] == false || passthrough["files"][0] == "file" {
            break held;
        }
        assert!(Instant::now() < deadline, "{passthrough}");
        drop(held);
        thread::sleep(Duration::from_millis(20));
    };
    exercise_on(mount, weights, Some(held), seed, 0);
}

#[test]
fn fsx_on_a_tier_through_io_uring_seed_16() {
    if let Some(reason) = mount::ring_obstacle() {
        return programs::skip(&reason);
    }
    exercise("16", &[&MOVING[..], &[IO_URING]].concat(), 20);
}

#[test]
fn pjdfstest_on_a_tier_whose_files_move() {
    if let Some(reason) = pjdfstest::obstacle() {
        return programs::skip(reason);
    }
    let mount = Mount::tier(&MOVING);
    let migrations = Migrations::start(&mount);
    pjdfstest::passes_as_expected(&mount);
    assert!(migrations.stop() > 0, "nothing moved");
}

#[test]
fn pjdfstest_on_a_tier_with_passthrough() {
    if let Some(reason) = pjdfstest::obstacle() {
        return programs::skip(reason);
    }
    pjdfstest::passes_as_expected(&Mount::tier(&["--allow-other=true"]));
}

#[test]
fn calls_on_a_tier_whose_files_move_answer_as_on_a_directory() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    for (seed, options) in [
        (400, &MOVING[..]),
        (401, &["--passthrough=false", "--allow-other=true", "--ssd-limit", "256K"]),
        (402, &["--allow-other=true"]),
        (403, &["--allow-other=true", IO_URING]),
    ] {
        if let Some(reason) = mount::ring_obstacle().filter(|_| options.contains(&IO_URING)) {
            programs::skip(&reason);
            continue;
        }
        let mut mount = Mount::tier(options);
        let migrations = Migrations::start(&mount);
        let plain = differential::compare_on(seed, &mount);
        drop(migrations);
        mount.unmount();
        programs::run(programs::halocline().arg("fsck").arg(mount.root()));
        mount.start();
        let when = format!("seed {seed}: after the next mount");
        differential::assert_same_tree(&mount.path(), plain.path(), &when);
    }
}
