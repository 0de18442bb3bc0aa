//! Nodes over a real network file system: `GlusterFS`, mounted once for each node. Its clients keep pages and
//! attributes of files that others change.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use halocline_testkit::gluster::Gluster;
use halocline_testkit::hostile::Random;
use halocline_testkit::nodes::{self, NODES, Nodes};
use halocline_testkit::program;
use halocline_testkit::redis_server::RedisServer;
use halocline_testkit::sandbox::said;
use halocline_testkit::scratch::Scratch;
use halocline_testkit::waiting::{SetOnDrop, eventually};
use rustix::fs::{FlockOperation, flock};

/// Names that others change are looked up anew, as docs/CLUSTER.md has it.
const NAMES: [&str; 2] = ["--entry-timeout=0", "--attribute-timeout=0"];

/// Bytes that are written at once.
const PIECE: usize = 4096;
/// Pieces of each node.
const PIECES: usize = 64;

/// Two nodes, each with a client of its own, and the volume, which is dropped after them: what a pattern names last is
/// dropped first.
fn nodes(client: &[&str]) -> Option<(Gluster, Nodes)> {
    let scratch = Scratch::with_mountpoints(program!(), &NODES)?;
    let store = RedisServer::start(&[])?;
    let mut gluster = Gluster::start()?;
    let origins = [gluster.mount(client), gluster.mount(client)];
    let nodes = Nodes::over(scratch, origins, store, &["--size", "16M"]);
    Some((gluster, nodes))
}

/// The clients of the file system would have served old bytes and sizes: also with all that they do by default.
#[test]
fn i11_nodes_over_clients_of_glusterfs_see_each_others_changes_at_once() {
    for client in [&[][..], &["--direct-io-mode=enable"]] {
        let Some((gluster, nodes)) = nodes(client) else { return };
        let files = nodes.open("file");
        println!("clients with {client:?}");
        let model = nodes::see_each_others_changes(&files, 5);
        drop(files);
        for node in NODES {
            nodes.succeed(&["umount", node]);
        }
        assert!(fs::read(gluster.on_brick("file")).unwrap() == model);
    }
}

/// Who has a file open when another node removes it goes on with it, or is told that it is gone, as the client has it;
/// nothing of it is the next file's with its name.
#[test]
fn i11_a_removed_file_that_is_open_mixes_with_no_other() {
    let Some((gluster, nodes)) = nodes(&NAMES) else { return };
    let [one, other] = nodes.open("file");
    one.write_all_at(&[1; 10_000], 0).unwrap();
    let mut found = [0; 10_000];
    other.read_exact_at(&mut found, 0).unwrap();
    assert!(found == [1; 10_000]);
    one.write_all_at(&[2; 10_000], 0).unwrap();
    fs::remove_file(nodes.path("other/file")).unwrap();
    let [_, new] = nodes.open("file");
    new.write_all_at(b"the next one", 0).unwrap();
    for file in [&one, &other] {
        let mut found = [0; 10_000];
        let read = file.read_exact_at(&mut found, 0).and_then(|()| file.write_all_at(&[3; 100], 0));
        match read {
            Ok(()) => assert!(found[100..] == [2; 9_900]),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{error}"),
        }
    }
    drop((one, other, new));
    assert_eq!(fs::read(nodes.path("one/file")).unwrap(), b"the next one");
    for node in NODES {
        nodes.succeed(&["umount", node]);
    }
    assert_eq!(fs::read(gluster.on_brick("file")).unwrap(), b"the next one");
}

/// A client's own caches, which nothing here can drop, would have kept what other nodes write over.
#[test]
fn i11_clients_of_glusterfs_with_caches_of_their_own_are_refused() {
    let Some((mut gluster, nodes)) = nodes(&NAMES) else { return };
    let origin = gluster.mount_with_caches();
    let url = nodes.store.url();
    fs::create_dir_all(nodes.path("third")).unwrap();
    fs::create_dir_all(nodes.path("cache3")).unwrap();
    let mounted =
        nodes.halocline(&["mount", &origin, "third", "--cache", "cache3", "--cluster", &url]);
    let what = said(&mounted);
    assert!(!mounted.status.success() && what.contains("io-cache, write-behind"), "{what}");
    assert!(what.contains("gluster volume set"), "{what}");
    let told = |origin: &str| {
        let doctor = nodes.halocline(&["doctor", "--origin", origin, "--cache", "cache3"]);
        String::from_utf8_lossy(&doctor.stdout).into_owned()
    };
    assert!(told(&origin).contains("io-cache, write-behind"), "{}", told(&origin));
    let plain = gluster.mount(&NAMES);
    assert!(told(&plain).contains("without caches of its own"), "{}", told(&plain));
}

#[test]
fn locks_hold_over_clients_of_glusterfs_and_waits_for_them_end() {
    let Some((_gluster, nodes)) = nodes(&NAMES) else { return };
    let [one, other] = nodes.open("file");
    flock(one.as_fd(), FlockOperation::LockExclusive).unwrap();
    let tries = || flock(other.as_fd(), FlockOperation::NonBlockingLockExclusive);
    assert_eq!(tries(), Err(rustix::io::Errno::WOULDBLOCK));
    // Who waits is ended by a signal, and has nothing afterwards.
    let waits = Command::new("timeout")
        .args(["--kill-after=300", "1", "flock", "--exclusive"])
        .arg(nodes.path("other/file"))
        .arg("true")
        .status()
        .unwrap();
    assert_eq!(waits.code(), Some(124), "137 if it had to be killed");
    flock(one.as_fd(), FlockOperation::Unlock).unwrap();
    eventually("the lock is free", || tries().is_ok());
    // A node that dies leaves none.
    flock(other.as_fd(), FlockOperation::Unlock).unwrap();
    flock(one.as_fd(), FlockOperation::LockExclusive).unwrap();
    nodes.kill("one");
    eventually("its lock is gone", || tries().is_ok());
}

/// Pieces of a file that one program writes, and what each may hold: what was acknowledged last, or came after that and
/// was refused.
struct Writer {
    file: File,
    start: usize,
    may_be: Vec<Vec<u8>>,
    refused: u32,
    /// How many were acknowledged, also for others to see.
    acknowledged: Arc<AtomicU64>,
}

impl Writer {
    fn write_until(&mut self, is_over: &AtomicBool, random: &mut Random) {
        while !is_over.load(Ordering::SeqCst) {
            let (piece, byte) =
                (random.below(PIECES), 1 + u8::try_from(random.below(255)).unwrap());
            let offset = (self.start + piece) * PIECE;
            if self.file.write_all_at(&[byte; PIECE], offset as u64).is_ok() {
                self.may_be[piece] = vec![byte];
                self.acknowledged.fetch_add(1, Ordering::SeqCst);
            } else {
                self.may_be[piece].push(byte);
                self.refused += 1;
                thread::sleep(Duration::from_millis(20));
            }
        }
    }

    fn check(&self, all: &[u8], when: &str) {
        let own = all.chunks(PIECE).skip(self.start).take(PIECES);
        for (piece, (bytes, may_be)) in own.zip(&self.may_be).enumerate() {
            assert!(bytes.iter().all(|byte| may_be.contains(byte)), "{when}, piece {piece}");
        }
    }
}

/// Waits for something that need not happen, for a slow machine.
fn wait_a_minute_at_most(happened: impl Fn() -> bool) {
    let begun = Instant::now();
    while !happened() && begun.elapsed() < Duration::from_mins(1) {
        thread::sleep(Duration::from_millis(20));
    }
}

fn bytes_once_readable(path: &Path) -> Vec<u8> {
    let mut all = Vec::new();
    eventually("the file can be read", || {
        fs::read(path).is_ok_and(|found| {
            all = found;
            true
        })
    });
    all
}

/// Nothing that was acknowledged goes with a brick: it is on a node's cache until the brick is back.
#[test]
fn i4_a_brick_that_dies_loses_no_acknowledged_write() {
    let Some((mut gluster, nodes)) = nodes(&NAMES) else { return };
    let files = nodes.open("file");
    files[0].set_len((2 * PIECES * PIECE) as u64).unwrap();
    let mut start = 0;
    let mut writers = files.map(|file| {
        start += PIECES;
        let (may_be, acknowledged) = (vec![vec![0]; PIECES], Arc::default());
        Writer { file, start: start - PIECES, may_be, refused: 0, acknowledged }
    });
    let counts = writers.each_ref().map(|writer| Arc::clone(&writer.acknowledged));
    let acknowledged = || counts.each_ref().map(|count| count.load(Ordering::SeqCst));
    let mut without_brick = 0;
    for round in 0..3_u64 {
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for (number, writer) in writers.iter_mut().enumerate() {
                let mut random = Random(10 * round + number as u64);
                let is_over = &is_over;
                scope.spawn(move || writer.write_until(is_over, &mut random));
            }
            // Or the scope would wait for its threads for ever.
            let _over = SetOnDrop(&is_over);
            thread::sleep(Duration::from_millis(300));
            gluster.kill_brick();
            let before = acknowledged();
            let since = || -> u64 {
                acknowledged().iter().zip(before).map(|(away, before)| away - before).sum()
            };
            thread::sleep(Duration::from_millis(500 + 700 * round));
            wait_a_minute_at_most(|| without_brick + since() > 0);
            without_brick += since();
            gluster.revive_brick();
            let back = acknowledged();
            eventually("both write on when the brick is back", || {
                acknowledged().iter().zip(back).all(|(now, back)| *now > back + 10)
            });
        });
        for node in NODES {
            let all = bytes_once_readable(&nodes.path(node).join("file"));
            for writer in &writers {
                writer.check(&all, &format!("round {round}, on {node}"));
            }
        }
    }
    for writer in &writers {
        println!("{} writes were refused while the brick was away", writer.refused);
    }
    println!("{without_brick} writes were acknowledged while the brick was away");
    assert!(without_brick > 0, "nothing that could be lost was tried");
    // What it has of a file that was open when the brick died is of no use any more, as without us.
    let ledger = writers.map(|Writer { start, may_be, .. }| (start, may_be));
    for node in NODES {
        nodes.succeed(&["umount", node]);
    }
    let all = fs::read(gluster.on_brick("file")).unwrap();
    let empty = || File::open(gluster.on_brick("file")).unwrap();
    for (start, may_be) in ledger {
        let acknowledged = Arc::default();
        Writer { file: empty(), start, may_be, refused: 0, acknowledged }
            .check(&all, "on the brick");
    }
}
