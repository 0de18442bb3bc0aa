//! Users rename their files past the mount, all the time, while a volume's files are moved and checked.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use halocline_testkit::program;
use halocline_testkit::sandbox::{said, written};
use halocline_testkit::scratch::Scratch;

use super::{content, on_server, on_servers, planned};

/// Where users have their files; as many as a walk takes some time for.
const DIRECTORIES: usize = 40;

fn bytes_of(user: usize) -> Vec<u8> {
    content()[user * 1000..][..100_000].to_vec()
}

/// Renames a file from place to place until all is over, and puts it into the first one.
fn wander(places: &[PathBuf], stride: usize, is_over: &AtomicBool, renames: &AtomicUsize) {
    let mut at = 0;
    while !is_over.load(Ordering::Relaxed) || at != 0 {
        let next = (at + stride) % places.len();
        fs::rename(&places[at], &places[next]).unwrap();
        at = next;
        renames.fetch_add(1, Ordering::Relaxed);
    }
}

/// Begins to move the file, and is killed; whether it was.
fn killed(scratch: &Scratch, round: usize) -> bool {
    let before = on_servers(scratch);
    let mut apply = scratch.command(&["apply", "plan.toml", "volume"]);
    let mut apply = apply.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while on_servers(scratch) == before && apply.try_wait().unwrap().is_none() {}
    thread::sleep(Duration::from_micros(100 << (round % 6)));
    apply.kill().unwrap();
    !apply.wait().unwrap().success()
}

/// What a walk tells while names change; whether it did.
fn checked(scratch: &Scratch) -> bool {
    let repaired = scratch.halocline(&["fsck", "cache", "--repair"]);
    assert!([Some(0), Some(1)].contains(&repaired.status.code()), "{}", said(&repaired));
    !written(&repaired).contains("names changed while objects without one were looked for")
}

/// Regression: of a file that its owner moved while objects without a name were looked for none was found, and its data
/// was removed within three rounds. Here moves are killed so that there is something to look for, of a file that begins to be
/// renamed then, and checks repair.
#[test]
fn who_renames_files_all_the_time_loses_nothing() {
    let Some(scratch) = Scratch::new(program!()) else { return };
    let file = planned(&scratch);
    let names: Vec<_> = (0..DIRECTORIES).map(|dir| format!("d{dir}")).collect();
    for dir in &names {
        fs::create_dir(scratch.path("mnt").join(dir)).unwrap();
    }
    for user in 0..4 {
        fs::write(scratch.path(&format!("mnt/d0/u{user}")), bytes_of(user)).unwrap();
    }
    fs::write(scratch.path("mnt/stays"), bytes_of(4)).unwrap();
    scratch.succeed(&["umount", "mnt"]);
    let plan = fs::read_to_string(scratch.path("plan.toml")).unwrap();
    let path = format!("path = \"{file}\"");
    assert!(plan.contains(&path), "{plan}");
    let tree = scratch.path("volume/namespace");
    let places = |name: &str| names.iter().map(|dir| tree.join(dir).join(name)).collect::<Vec<_>>();
    let users: Vec<_> = (0..4).map(|user| places(&format!("u{user}"))).collect();
    let home = [&[tree.join(&file)][..], &places("planned")].concat();
    let (mut kills, mut unchecked, renames) = (0, 0, AtomicUsize::new(0));
    for round in 0..20 {
        let on_server = on_server(&plan, round % 2);
        fs::write(scratch.path("other.toml"), on_server.replace(&path, "path = \"stays\""))
            .unwrap();
        fs::write(scratch.path("plan.toml"), on_server).unwrap();
        let (is_over, is_back) = (AtomicBool::new(false), AtomicBool::new(false));
        let applied = thread::scope(|scope| {
            for (places, stride) in users.iter().zip([7, 33, 11, 29]) {
                let (is_over, renames) = (&is_over, &renames);
                scope.spawn(move || wander(places, stride, is_over, renames));
            }
            // What fails is told after the threads have ended.
            let ended = catch_unwind(AssertUnwindSafe(|| {
                kills += usize::from(killed(&scratch, round));
                thread::scope(|scope| {
                    scope.spawn(|| wander(&home, 7, &is_back, &renames));
                    let ended = catch_unwind(AssertUnwindSafe(|| {
                        unchecked += usize::from(!checked(&scratch));
                        scratch.halocline(&["apply", "other.toml", "volume"])
                    }));
                    is_back.store(true, Ordering::Relaxed);
                    ended
                })
            }));
            is_over.store(true, Ordering::Relaxed);
            ended
        });
        let applied = applied.unwrap_or_else(|panic| resume_unwind(panic)).unwrap();
        assert!(applied.status.success(), "round {round}: {}", said(&applied));
        scratch.succeed(&["unstripe", "volume", "out"]);
        let read = |name: &str| fs::read(scratch.path("out").join(name)).unwrap();
        assert!(read(&file) == content(), "round {round}");
        for user in 0..4 {
            assert!(read(&format!("d0/u{user}")) == bytes_of(user), "round {round}, user {user}");
        }
        assert!(read("stays") == bytes_of(4), "round {round}");
        fs::remove_dir_all(scratch.path("out")).unwrap();
        // Of the moves nothing is left: one file has 2 MiB.
        scratch.succeed(&["apply", "plan.toml", "volume"]);
        assert!(on_servers(&scratch) < 3 << 20, "round {round}: {}", on_servers(&scratch));
    }
    let renames = renames.into_inner();
    assert!(kills > 3 && unchecked > 3 && renames > 1000, "{kills} {unchecked} {renames}");
    scratch.succeed(&["fsck", "cache"]);
    scratch.succeed(&["verify", "plan.toml", "volume"]);
}
