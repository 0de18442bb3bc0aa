//! Users rename their files past the mount, all the time, while a volume's files are moved and checked.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use halocline_testkit::program;
use halocline_testkit::sandbox::said;
use halocline_testkit::scratch::Scratch;

use super::{content, on_server, on_servers, planned};

/// Where users have their files; as many as a walk takes some time for.
const DIRECTORIES: usize = 40;

fn bytes_of(user: usize) -> Vec<u8> {
    content()[user * 1000..][..100_000].to_vec()
}

/// Renames a user's file from directory to directory until all is over, and puts it into the first one.
fn wander(tree: &Path, user: usize, is_over: &AtomicBool, renames: &AtomicUsize) {
    let at = |turn: usize| tree.join(format!("d{}/u{user}", turn % DIRECTORIES));
    let mut turn = 0;
    while !is_over.load(Ordering::Relaxed) || turn % DIRECTORIES != 0 {
        // Back and forth: whichever way a walk goes, it meets some that go the other way.
        let next = turn + if user % 2 == 0 { 7 } else { DIRECTORIES - 7 };
        fs::rename(at(turn), at(next)).unwrap();
        turn = next;
        renames.fetch_add(1, Ordering::Relaxed);
    }
}

/// Regression: of a file that its owner moved while objects without a name were looked for none was found, and its data
/// was removed within three rounds. Here moves are killed so that there is something to look for, and checks repair.
#[test]
fn who_renames_files_all_the_time_loses_nothing() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let file = planned(&scratch);
    for dir in 0..DIRECTORIES {
        fs::create_dir(scratch.path(&format!("mnt/d{dir}"))).unwrap();
    }
    for user in 0..4 {
        fs::write(scratch.path(&format!("mnt/d0/u{user}")), bytes_of(user)).unwrap();
    }
    scratch.succeed(&["umount", "mnt"]);
    let plan = fs::read_to_string(scratch.path("plan.toml")).unwrap();
    let tree = scratch.path("volume/namespace");
    let (mut killed, mut unchecked, renames) = (0, 0, AtomicUsize::new(0));
    for round in 0..20 {
        fs::write(scratch.path("plan.toml"), on_server(&plan, round % 2)).unwrap();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for user in 0..4 {
                let (tree, is_over, renames) = (&tree, &is_over, &renames);
                scope.spawn(move || wander(tree, user, is_over, renames));
            }
            let before = on_servers(&scratch);
            let mut apply = scratch.command(&["apply", "plan.toml", "volume"]);
            let apply = apply.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
            let apply = apply.map(|mut apply| {
                while on_servers(&scratch) == before && matches!(apply.try_wait(), Ok(None)) {}
                thread::sleep(Duration::from_micros(100 << (round % 6)));
                apply.kill().and_then(|()| apply.wait()).is_ok_and(|status| !status.success())
            });
            let repaired = scratch.halocline(&["fsck", "cache", "--repair"]);
            let again = scratch.halocline(&["apply", "plan.toml", "volume"]);
            is_over.store(true, Ordering::Relaxed);
            killed += usize::from(apply.unwrap());
            unchecked += usize::from(said(&repaired).contains("names changed"));
            unchecked += usize::from(super::written(&repaired).contains("names changed"));
            assert!(again.status.success(), "round {round}: {}", said(&again));
        });
        scratch.succeed(&["unstripe", "volume", "out"]);
        let read = |name: &str| fs::read(scratch.path("out").join(name)).unwrap();
        assert!(read(&file) == content(), "round {round}");
        for user in 0..4 {
            assert!(read(&format!("d0/u{user}")) == bytes_of(user), "round {round}, user {user}");
        }
        fs::remove_dir_all(scratch.path("out")).unwrap();
        // Of the moves nothing is left, though no walk found the tree still: one file has 2 MiB.
        assert!(on_servers(&scratch) < 3 << 20, "round {round}: {}", on_servers(&scratch));
    }
    let renames = renames.into_inner();
    assert!(killed > 3 && unchecked > 3 && renames > 1000, "{killed} {unchecked} {renames}");
    scratch.succeed(&["fsck", "cache"]);
    scratch.succeed(&["verify", "plan.toml", "volume"]);
}
