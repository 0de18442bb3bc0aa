//! A node whose SSD dies: the file system that its cache lies on is a mount whose process is killed, so that all that is
//! asked of it fails from then on, also what is open.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use halocline_testkit::nodes::Nodes;
use halocline_testkit::program;
use halocline_testkit::redis_server::RedisServer;
use halocline_testkit::sandbox::{said, written};
use halocline_testkit::scratch::Scratch;
use halocline_testkit::waiting::{SetOnDrop, eventually};
use rustix::process::{Signal, kill_process};

const DISK: &str = "disk";
const CACHE: &str = "disk/cache";
/// Writes of each node before its SSD dies, and after it.
const WRITES: u64 = 30;

/// Two nodes; the cache of the first is on a disk of its own.
fn nodes(options: &[&str]) -> Option<Nodes> {
    let scratch = Scratch::with_mountpoints(program!(), &["one", "other", DISK])?;
    let store = RedisServer::start(&[])?;
    for dir in ["behind", "cache3"] {
        fs::create_dir_all(scratch.path(dir)).unwrap();
    }
    let disk = ["mount", "behind", DISK, "--cache", "cache3", "--policy", "never"];
    scratch.succeed(&[&disk[..], &["--attr-timeout=0s"]].concat());
    fs::create_dir(scratch.path(CACHE)).unwrap();
    let nodes = Nodes::over(scratch, ["origin"; 2].map(str::to_owned), store, options);
    nodes.succeed(&["umount", "one"]);
    let mounted = nodes.mount_with("one", CACHE, options);
    assert!(mounted.status.success(), "{}", said(&mounted));
    Some(nodes)
}

fn kill_the_disk(nodes: &Nodes) {
    kill_process(nodes.pid(DISK), Signal::KILL).unwrap();
    eventually("it is dead", || fs::read_dir(nodes.path(DISK)).is_err());
}

/// Writes numbers to one place of a file, and sees that the other's number is not older than what was acknowledged.
fn count_up(file: &File, own: usize, done: &[AtomicU64; 2], is_over: &AtomicBool) {
    let offset = |node: usize| node as u64 * 65_536;
    while !is_over.load(Ordering::SeqCst) {
        let next = done[own].load(Ordering::SeqCst) + 1;
        file.write_all_at(&next.to_le_bytes(), offset(own)).unwrap();
        done[own].store(next, Ordering::SeqCst);
        let least = done[1 - own].load(Ordering::SeqCst);
        let mut found = [0; 8];
        file.read_exact_at(&mut found, offset(1 - own)).unwrap();
        assert!(u64::from_le_bytes(found) >= least, "node {own} reads what is older");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Where nothing is dirty, no program on any node hears of it.
#[test]
fn i13_a_cache_without_dirty_bytes_that_dies_under_load_costs_no_program_anything() {
    let Some(nodes) = nodes(&["--mode", "write-through"]) else { return };
    let files = nodes.open("file");
    for file in &files {
        file.set_len(1 << 20).unwrap();
    }
    let (done, is_over): ([AtomicU64; 2], _) = (Default::default(), AtomicBool::new(false));
    let after = |least: [u64; 2]| {
        let counts = || [0, 1].map(|node| done[node].load(Ordering::SeqCst));
        eventually("both go on", || {
            counts().iter().zip(least).all(|(count, least)| *count >= least)
        });
        counts()
    };
    thread::scope(|scope| {
        let _over = SetOnDrop(&is_over);
        for (own, file) in files.iter().enumerate() {
            let (done, is_over) = (&done, &is_over);
            scope.spawn(move || count_up(file, own, done, is_over));
        }
        let before = after([WRITES; 2]);
        kill_the_disk(&nodes);
        after(before.map(|count| count + WRITES));
    });
    drop(files);
    for (node, last) in done.iter().enumerate() {
        let mut found = [0; 8];
        let origin = File::open(nodes.path("origin/file")).unwrap();
        origin.read_exact_at(&mut found, node as u64 * 65_536).unwrap();
        assert_eq!(u64::from_le_bytes(found), last.load(Ordering::SeqCst));
    }
}

/// What only it had is an error for all, and never something else, until somebody gives it up; everything else goes on.
#[test]
fn i13_what_a_dead_cache_had_alone_is_an_error_until_it_is_given_up() {
    let Some(nodes) = nodes(&[]) else { return };
    let [one, other] = ["one", "other"].map(|node| nodes.path(node));
    fs::write(one.join("lost"), "lost").unwrap();
    fs::write(one.join("clean"), "clean").unwrap();
    nodes.succeed(&["flush", "one/clean"]);
    kill_the_disk(&nodes);
    let error = fs::read(one.join("lost")).unwrap_err();
    assert!(error.raw_os_error().is_some_and(|errno| errno != libc::ENOENT), "{error}");
    // The node lives and has its lease. Others need not wait for what it cannot do: a wait would end after 120 s.
    let begun = Instant::now();
    let refused = fs::read(other.join("lost")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EIO), "{refused}");
    assert!(begun.elapsed() < Duration::from_secs(100), "it waited: {:?}", begun.elapsed());
    let why = nodes.halocline(&["explain", "other/lost", "0", "4"]);
    assert!(written(&why).contains("cannot read from its cache"), "{}", said(&why));
    let fsck = nodes.cluster("fsck", &[]);
    assert!(!fsck.status.success(), "{}", said(&fsck));
    assert!(written(&fsck).contains("one has 4 B that it could not read"), "{}", written(&fsck));
    assert_eq!(fs::read_to_string(one.join("clean")).unwrap(), "clean");
    assert_eq!(fs::read_to_string(other.join("clean")).unwrap(), "clean");
    for (writes, reads) in [(&one, &other), (&other, &one)] {
        fs::write(writes.join("new"), "new").unwrap();
        assert_eq!(fs::read_to_string(reads.join("new")).unwrap(), "new");
        fs::write(writes.join("clean"), "newer").unwrap();
        assert_eq!(fs::read_to_string(reads.join("clean")).unwrap(), "newer");
    }
    nodes.halocline(&["umount", "--force", "one"]);
    // Others hear that it is gone when its lease is over.
    eventually("it is gone", || {
        let fsck = nodes.cluster("fsck", &[]);
        !fsck.status.success() && written(&fsck).contains("one is gone and holds 1 file alone")
    });
    let refused = nodes.cluster("recover", &["one"]);
    assert_eq!(refused.status.code(), Some(2));
    let told = said(&refused);
    assert!(told.contains(CACHE) && told.contains("cluster forget"), "{told}");
    let error = fs::read(other.join("lost")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    let forgotten = nodes.cluster("forget", &["one"]);
    assert!(forgotten.status.success(), "{}", said(&forgotten));
    assert!(said(&forgotten).contains("origin/lost"), "{}", said(&forgotten));
    fs::write(other.join("lost"), "again").unwrap();
    assert_eq!(fs::read_to_string(other.join("lost")).unwrap(), "again");
    nodes.succeed(&["umount", "other"]);
    assert_eq!(nodes.listed(), [""; 0]);
}
