//! Nodes that make one file longer, each by its part of it.

use std::thread;

use halocline_api::config::{Config, VolumeKind, VolumeShape};
use halocline_testkit::hostile::Random;
use halocline_testkit::waiting::eventually;
use halocline_vfs::Engine;

use super::{Cluster, ME};

/// Regression: a write past the end took everything behind the end from others, though it uses none of it. Nodes that
/// begin parts of one file at the same time took its end from each other so.
#[test]
fn who_makes_a_file_longer_takes_nothing_from_who_is_behind() {
    const FAR: u64 = 40 << 20;
    const NEAR: u64 = 20 << 20;
    let cluster = Cluster::with(2, &Config { rebuild: false, ..Config::default() });
    let [one, other] = [0, 1].map(|number| &cluster.nodes[number]);
    let [first, second] = [one, other].map(|node| node.open(libc::O_RDWR));
    one.engine.write(&first, 0, &[1; 100], ME).unwrap();
    // It has all from there on, and relies on where the file ends.
    let mut read = [0; 200];
    assert_eq!(other.engine.read(&second, FAR, &mut read, ME).unwrap(), 0);
    let given = || (one.agent.counts().handovers, other.agent.counts().handovers);
    eventually("it is counted", || given().0 > 0);
    assert_eq!(given(), (1, 0));
    one.engine.write(&first, NEAR, &[2; 100], ME).unwrap();
    assert_eq!((other.size(), one.size()), (NEAR + 100, NEAR + 100));
    assert_eq!(other.engine.read(&second, FAR, &mut read, ME).unwrap(), 0);
    assert_eq!(given(), (1, 0), "nothing was taken away");
    // Whoever has the rest makes the file longer by setting its size, and one shorter write undoes nothing.
    other.engine.write(&second, FAR, &[3; 100], ME).unwrap();
    one.engine.write(&first, NEAR + 200, &[4; 100], ME).unwrap();
    assert_eq!((other.size(), one.size()), (FAR + 100, FAR + 100));
    assert_eq!(given().1, 0);
    assert_eq!(one.engine.read(&first, NEAR + 50, &mut read, ME).unwrap(), 200);
    assert_eq!((read[0], read[100], read[199]), (2, 0, 4));
    for node in &cluster.nodes {
        node.agent.leave().unwrap();
    }
    let file = std::fs::read(cluster.origin.path().join("file")).unwrap();
    let byte = |at: u64| file[usize::try_from(at).unwrap()];
    assert_eq!((byte(0), byte(NEAR), byte(NEAR + 250), byte(FAR)), (1, 2, 4, 3));
    assert_eq!(file.len() as u64, FAR + 100);
}

/// Nodes make one file longer in turn and at the same time, by writes, appends and changes of its size: no write that was
/// acknowledged is cut off.
#[test]
fn i11_nodes_that_make_a_file_longer_cut_off_nothing() {
    for kind in [VolumeKind::Plain, VolumeKind::Striped] {
        let servers = if kind == VolumeKind::Plain { 1 } else { 4 };
        let origin = VolumeShape { kind, servers, stripe: 64 << 10 };
        make_longer(&Config { origin, ..Config::default() });
    }
}

fn make_longer(config: &Config) {
    const BLOCK: u64 = 8 << 10;
    const BLOCKS: u64 = 96;
    let cluster = Cluster::with(3, config);
    for round in 1..=12_u8 {
        cluster.nodes[0].truncate(0);
        thread::scope(|scope| {
            for (at, node) in cluster.nodes.iter().enumerate() {
                scope.spawn(move || {
                    let handle = node.open(libc::O_RDWR);
                    let mut random = Random(u64::from(round) * 10 + at as u64);
                    let mut mine: Vec<u64> = (at as u64..BLOCKS).step_by(3).collect();
                    for last in (1..mine.len()).rev().filter(|_| round % 2 == 0) {
                        mine.swap(last, random.below(last + 1));
                    }
                    for block in mine {
                        node.engine.write(&handle, block * BLOCK, &[round; 8 << 10], ME).unwrap();
                        // Beside the writes, somebody who relies on the size.
                        if random.below(8) == 0 {
                            assert!(node.size() >= (block + 1) * BLOCK);
                            let mut read = [0; 100];
                            node.engine
                                .read(&handle, block * BLOCK + 8192 - 50, &mut read, ME)
                                .unwrap();
                            assert_eq!(read[..50], [round; 50]);
                        }
                    }
                });
            }
        });
        for node in &cluster.nodes {
            assert_eq!(node.size(), BLOCKS * BLOCK, "round {round}");
            let mut read = vec![0; usize::try_from(BLOCKS * BLOCK).unwrap()];
            let handle = node.open(libc::O_RDWR);
            node.engine.read(&handle, 0, &mut read, ME).unwrap();
            assert!(read.iter().all(|byte| *byte == round), "round {round}");
        }
    }
    for node in &cluster.nodes {
        node.agent.leave().unwrap();
    }
}

/// Each node writes its part of a new file in random order, all at once: each caches all of its part, after few
/// requests to the store.
#[test]
fn nodes_that_write_parts_of_a_new_file_part_it_for_good() {
    const BLOCK: u64 = 8 << 10;
    const BLOCKS: u64 = 512;
    let cluster = Cluster::new(4);
    let handles: Vec<_> = cluster.nodes.iter().map(|node| node.open(libc::O_RDWR)).collect();
    // All nodes have one store.
    let requests = || cluster.nodes[0].agent.counts().round_trips;
    let before = requests();
    let write = |at: usize| {
        let (node, handle) = (&cluster.nodes[at], &handles[at]);
        let mut blocks: Vec<u64> = (0..BLOCKS).map(|block| at as u64 * BLOCKS + block).collect();
        let mut random = Random(at as u64);
        for last in (1..blocks.len()).rev() {
            blocks.swap(last, random.below(last + 1));
        }
        for block in blocks {
            let bytes = vec![u8::try_from(block % 251).unwrap(); 8 << 10];
            node.engine.write(handle, block * BLOCK, &bytes, ME).unwrap();
        }
    };
    thread::scope(|scope| {
        for at in 0..cluster.nodes.len() {
            let write = &write;
            scope.spawn(move || write(at));
        }
    });
    let counts: Vec<_> = cluster.nodes.iter().map(|node| node.agent.counts()).collect();
    let contended: u64 = counts.iter().map(|counts| counts.direct).sum();
    let handovers: u64 = counts.iter().map(|counts| counts.handovers).sum();
    println!("{handovers} handovers, {} requests to the store", requests() - before);
    assert_eq!(contended, 0, "{counts:?}");
    assert!(handovers < 24, "{handovers}: {counts:?}");
    drop(handles);
    for node in &cluster.nodes {
        node.agent.leave().unwrap();
    }
    let written = std::fs::read(cluster.origin.path().join("file")).unwrap();
    let right =
        |(block, bytes): (usize, &[u8])| bytes.iter().all(|byte| usize::from(*byte) == block % 251);
    assert!(written.chunks(8 << 10).enumerate().all(right));
    assert_eq!(written.len() as u64, 4 * BLOCKS * BLOCK);
}
