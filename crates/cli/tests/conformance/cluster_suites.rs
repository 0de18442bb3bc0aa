//! The suites on mounts that are nodes: what tokens, direct reads and locks on the origin change must not show, on one
//! node or with the calls spread over two.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use halocline_testkit::redis_server::RedisServer;

use crate::mount::{self, IO_URING, Mount};
use crate::source_tree::{self, Checkout};
use crate::{differential, fsx, pjdfstest, programs, sqlite};

/// Shared mappings are refused on a node, and most of fsx's calls are to be others than `close` and `open`.
pub(crate) fn weights(close_open: u32) -> String {
    fsx::CONFIG
        .replace("mapread = 5", "mapread = 0")
        .replace("mapwrite = 5", "mapwrite = 0")
        .replace("invalidate = 1", "invalidate = 0")
        .replace("close_open = 1", &format!("close_open = {close_open}"))
}

/// Seeds of the differential tests, or those from `HALOCLINE_CLUSTER_SEED` on, `HALOCLINE_CLUSTER_SEEDS` of them.
fn seeds(first: u64, count: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let first = number("HALOCLINE_CLUSTER_SEED").unwrap_or(first);
    first..first + number("HALOCLINE_CLUSTER_SEEDS").unwrap_or(count)
}

#[test]
fn calls_answer_as_on_a_directory_on_a_node() {
    let Some(store) = RedisServer::start(&[]) else { return };
    let url = store.url();
    let node = ["--cluster", &url];
    seeds(700, 2).for_each(|seed| differential::compare(seed, &node));
    if mount::ring_obstacle().is_none() {
        differential::compare(702, &[&node[..], &[IO_URING]].concat());
    }
}

/// Each call on one of two nodes, while what the other one opened, wrote and named is in use.
#[test]
fn i11_calls_answer_as_on_a_directory_by_turns_on_two_nodes() {
    let Some(store) = RedisServer::start(&[]) else { return };
    let url = store.url();
    let node = ["--cluster", &url];
    seeds(710, 2).for_each(|seed| differential::compare_on_two_nodes(seed, &node));
    if mount::ring_obstacle().is_none() {
        differential::compare_on_two_nodes(712, &[&node[..], &[IO_URING]].concat());
    }
}

#[test]
fn fsx_on_a_node_seed_21() {
    if let Some(reason) = fsx::obstacle() {
        return programs::skip(reason);
    }
    let Some(store) = RedisServer::start(&[]) else { return };
    let mut mount = Mount::new(&[&fsx::SMALL[..], &["--cluster", &store.url()]].concat());
    fsx::run("21", &fsx::operations(), &weights(1), &mount.path().join("file"));
    let status = mount.status();
    assert!(status["report"]["admitted"]["requests"].as_u64() > Some(1000), "{status}");
    ends_with_all_on_the_origin(&mut [&mut mount]);
}

/// The file is opened on one node or the other, as a link says that changes all the time.
#[test]
fn i11_fsx_by_turns_on_two_nodes_seed_22() {
    if let Some(reason) = fsx::obstacle() {
        return programs::skip(reason);
    }
    let Some(store) = RedisServer::start(&[]) else { return };
    let url = store.url();
    let options = [&fsx::SMALL[..], &["--cluster", &url]].concat();
    let mut one = Mount::new(&options);
    let mut other = Mount::beside(&one, &options);
    fsx_by_turns("22", &[one.path(), other.path()]);
    for mount in [&one, &other] {
        let status = mount.status();
        assert!(status["report"]["write"]["requests"].as_u64() > Some(500), "{status}");
        assert!(status["report"]["cluster"]["handovers"].as_u64() > Some(100), "{status}");
    }
    ends_with_all_on_the_origin(&mut [&mut one, &mut other]);
}

/// Opens the file at either of two places, as a link says that changes all the time.
pub(crate) fn fsx_by_turns(seed: &str, places: &[PathBuf; 2]) {
    let aside = tempfile::tempdir().expect("scratch");
    let link = aside.path().join("file");
    symlink(places[0].join("file"), &link).expect("link");
    // Whatever changes nodes is brought to the origin, so each takes longer.
    let operations = fsx::operations().parse::<u64>().expect("a number") / 3;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for turn in (0..2).cycle().take_while(|_| !is_over.load(Ordering::SeqCst)) {
                let next = aside.path().join("next");
                symlink(places[turn].join("file"), &next).expect("link");
                fs::rename(&next, &link).expect("rename");
                thread::sleep(Duration::from_millis(1));
            }
        });
        let ended = std::panic::catch_unwind(|| {
            fsx::run(seed, &operations.to_string(), &weights(8), &link);
        });
        is_over.store(true, Ordering::SeqCst);
        ended.unwrap_or_else(|failure| std::panic::resume_unwind(failure));
    });
}

/// What all nodes show is what the origin has without them (I7).
fn ends_with_all_on_the_origin(mounts: &mut [&mut Mount]) {
    let show = |mount: &Mount| fs::read(mount.path().join("file")).expect("the file");
    let shown = show(mounts[0]);
    assert!(mounts.iter().all(|mount| show(mount) == shown), "I11");
    for mount in mounts.iter_mut() {
        mount.unmount();
    }
    assert!(fs::read(mounts[0].origin().join("file")).expect("on the origin") == shown, "I7");
}

#[test]
fn pjdfstest_on_a_node() {
    if let Some(reason) = pjdfstest::obstacle() {
        return programs::skip(reason);
    }
    let Some(store) = RedisServer::start(&[]) else { return };
    let options = ["--policy", "always", "--size", "64M", "--allow-other=true"];
    let one = Mount::new(&[&options[..], &["--cluster", &store.url()]].concat());
    let _other = Mount::beside(&one, &[&options[..], &["--cluster", &store.url()]].concat());
    pjdfstest::passes_as_expected(&one);
}

/// A database with a rollback journal, by turns and at once on two nodes: its locks are on the origin.
#[test]
fn i11_sqlite_on_two_nodes_loses_no_transaction() {
    const ROWS: u64 = 60;
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    if !programs::is_installed("sqlite3") {
        return programs::skip("sqlite3 is not installed");
    }
    let Some(store) = RedisServer::start(&[]) else { return };
    let url = store.url();
    let options = [&fsx::SMALL[..], &["--cluster", &url]].concat();
    let mut one = Mount::new(&options);
    let mut other = Mount::beside(&one, &options);
    let plain = tempfile::tempdir().expect("scratch");
    for place in [plain.path(), &one.path()] {
        sqlite::query(&place.join("alone"), &sqlite::fill("delete"));
    }
    let dump = |place: &Path, name: &str| sqlite::query(&place.join(name), ".dump");
    assert!(dump(plain.path(), "alone") == dump(&other.path(), "alone"), "the dumps differ");
    let database = |mount: &Mount| mount.path().join("shared");
    sqlite::query(&database(&one), "create table t(node text, number integer)");
    thread::scope(|scope| {
        for (mount, node) in [(&one, "one"), (&other, "other")] {
            scope.spawn(move || {
                for number in 0..ROWS {
                    let insert = format!("insert into t values ('{node}', {number})");
                    programs::run(
                        Command::new("sqlite3")
                            .args(["-cmd", ".timeout 60000"])
                            .arg(database(mount))
                            .arg(insert),
                    );
                }
            });
        }
    });
    for mount in [&one, &other] {
        let count = "select count(distinct node || number) from t; pragma integrity_check";
        assert_eq!(sqlite::query(&database(mount), count), format!("{}\nok\n", 2 * ROWS));
    }
    one.unmount();
    other.unmount();
    assert_eq!(
        sqlite::query(&one.origin().join("shared"), "select count(*) from t"),
        format!("{}\n", 2 * ROWS)
    );
}

/// One node clones, the other one builds, both check and run what is there.
#[test]
fn i11_a_source_tree_made_on_two_nodes_is_whole_on_both() {
    if let Some(reason) = mount::obstacle() {
        return programs::skip(reason);
    }
    let Some(store) = RedisServer::start(&[]) else { return };
    let url = store.url();
    let options =
        ["--policy", "always", "--size", "8M", "--max-dirty-age", "200ms", "--cluster", &url];
    let mut one = Mount::new(&options);
    let mut other = Mount::beside(&one, &options);
    let clone = Checkout::new(one.path().join("clone"));
    let seen = Checkout::seen_at(other.path().join("clone"));
    source_tree::assert_runs(&seen.build_project());
    clone.commit_project();
    seen.git(&["fsck", "--full"]);
    assert!(seen.git(&["status", "--porcelain"]).stdout.is_empty());
    source_tree::assert_runs(&one.path().join("clone/project"));
    one.unmount();
    other.unmount();
    source_tree::assert_runs(&one.origin().join("clone/project"));
}
