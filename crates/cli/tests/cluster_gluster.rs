//! Nodes over a real network file system: GlusterFS, mounted once for each node. Its clients keep pages and attributes of
//! files that others change.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::{Duration, Instant};

use halocline_testkit::gluster::Gluster;
use halocline_testkit::hostile::Random;
use halocline_testkit::nodes::{NODES, Nodes};
use halocline_testkit::program;
use halocline_testkit::redis_server::RedisServer;
use halocline_testkit::scratch::Scratch;
use halocline_testkit::waiting::eventually;
use rustix::fs::{FlockOperation, flock};

/// Names that others change are looked up anew, as docs/CLUSTER.md has it.
const NAMES: [&str; 2] = ["--entry-timeout=0", "--attribute-timeout=0"];

/// Two nodes, each with a client of its own. The volume is dropped after them.
fn nodes(client: &[&str]) -> Option<(Nodes, Gluster)> {
    let scratch = Scratch::with_mountpoints(program!(), &NODES)?;
    let store = RedisServer::start(&[])?;
    let mut gluster = Gluster::start()?;
    let origins = [gluster.mount(client), gluster.mount(client)];
    Some((Nodes::over(scratch, origins, store, &["--size", "16M"]), gluster))
}

/// The clients of the file system would have served old bytes and sizes: also with all that they do by default.
#[test]
fn i11_nodes_over_clients_of_glusterfs_see_each_others_changes_at_once() {
    for client in [&[][..], &NAMES, &["--direct-io-mode=enable"]] {
        let Some((nodes, gluster)) = nodes(client) else { return };
        let files = nodes.open("file");
        let (mut model, mut random) = (Vec::new(), Random(5));
        for step in 0..200_usize {
            let writer = random.below(2);
            let (offset, length) = (random.below(200_000), random.below(20_000) + 1);
            let bytes = vec![u8::try_from(step % 251 + 1).unwrap(); length];
            if step % 16 == 15 {
                files[writer].set_len(offset as u64).unwrap();
                model.resize(offset, 0);
            } else {
                files[writer].write_all_at(&bytes, offset as u64).unwrap();
                model.resize(model.len().max(offset + length), 0);
                model[offset..offset + length].copy_from_slice(&bytes);
            }
            let reader = &files[1 - writer];
            assert_eq!(reader.metadata().unwrap().len(), model.len() as u64, "step {step}");
            let offset = random.below(model.len() + 1);
            let mut found = vec![0; (model.len() - offset).min(30_000)];
            reader.read_exact_at(&mut found, offset as u64).unwrap();
            assert!(
                found == model[offset..offset + found.len()],
                "{client:?}, step {step} at {offset}"
            );
        }
        drop(files);
        for node in NODES {
            nodes.succeed(&["umount", node]);
        }
        assert!(fs::read(gluster.on_brick("file")).unwrap() == model);
    }
}

#[test]
fn locks_hold_over_clients_of_glusterfs_and_waits_for_them_end() {
    let Some((nodes, _gluster)) = nodes(&NAMES) else { return };
    let [one, other] = nodes.open("file");
    flock(one.as_fd(), FlockOperation::LockExclusive).unwrap();
    let tries = || flock(other.as_fd(), FlockOperation::NonBlockingLockExclusive);
    assert_eq!(tries(), Err(rustix::io::Errno::WOULDBLOCK));
    // Who waits is ended by a signal, and has nothing afterwards.
    let begun = Instant::now();
    let waits = Command::new("timeout")
        .args(["1", "flock", "--exclusive"])
        .arg(nodes.path("other/file"))
        .arg("true")
        .status()
        .unwrap();
    assert_eq!(waits.code(), Some(124));
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    flock(one.as_fd(), FlockOperation::Unlock).unwrap();
    eventually("the lock is free", || tries().is_ok());
    // A node that dies leaves none.
    flock(other.as_fd(), FlockOperation::Unlock).unwrap();
    flock(one.as_fd(), FlockOperation::LockExclusive).unwrap();
    nodes.kill("one");
    eventually("its lock is gone", || tries().is_ok());
}

/// Nothing that was acknowledged goes with a brick: it is on a node's cache until the brick is back.
#[test]
fn i4_a_brick_that_dies_loses_no_acknowledged_write() {
    const PIECE: usize = 4096;
    const PIECES: usize = 64;
    let Some((nodes, mut gluster)) = nodes(&NAMES) else { return };
    let mut files = nodes.open("file");
    files[0].set_len((2 * PIECES * PIECE) as u64).unwrap();
    // Each piece's byte as it was acknowledged last; node `one` has the even ones, `other` the odd ones.
    let mut acknowledged = vec![0; 2 * PIECES];
    let mut possible = vec![Vec::new(); 2 * PIECES];
    let mut random = Random(9);
    let mut failed = 0;
    for round in 1..=6_u8 {
        if round % 2 == 0 {
            gluster.kill_brick();
        }
        for step in 0..40 {
            let node = random.below(2);
            let piece = random.below(PIECES) + node * PIECES;
            let byte = round * 40 + step % 40;
            match files[node].write_all_at(&[byte; PIECE], (piece * PIECE) as u64) {
                Ok(()) => {
                    acknowledged[piece] = byte;
                    possible[piece].clear();
                }
                Err(error) => {
                    assert_eq!(round % 2, 0, "the brick is there: {error}");
                    possible[piece].push(byte);
                    failed += 1;
                }
            }
        }
        if round % 2 == 0 {
            gluster.revive_brick();
            // What was open may be of no use any more, as programs find.
            files = nodes.open("file");
        }
        for reader in &files {
            let mut found = vec![0; 2 * PIECES * PIECE];
            eventually("the file can be read", || reader.read_exact_at(&mut found, 0).is_ok());
            for (piece, bytes) in found.chunks(PIECE).enumerate() {
                let may_be = |byte| byte == acknowledged[piece] || possible[piece].contains(&byte);
                assert!(bytes.iter().all(|byte| may_be(*byte)), "round {round}, piece {piece}");
            }
        }
    }
    println!("{failed} writes were refused while the brick was away");
    drop(files);
    for node in NODES {
        nodes.succeed(&["umount", node]);
    }
    let found = fs::read(gluster.on_brick("file")).unwrap();
    for (piece, bytes) in found.chunks(PIECE).enumerate() {
        let may_be = |byte| byte == acknowledged[piece] || possible[piece].contains(&byte);
        assert!(bytes.iter().all(|byte| may_be(*byte)), "piece {piece} on the brick");
    }
}
