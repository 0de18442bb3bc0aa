//! Reads from another node's cache (`--peers`): from its SSD where they can be, and right wherever they come from.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use halocline_testkit::hostile::Random;
use halocline_testkit::nodes::Nodes;
use halocline_testkit::program;
use halocline_testkit::sandbox::{said, written};
use halocline_testkit::standstill::Standstill;
use halocline_testkit::waiting::{SetOnDrop, WAIT_LIMIT, eventually};
use serde_json::Value;

const BLOCK: usize = 4096;
const PART: usize = 1 << 20;

fn two_nodes(options: &[&str]) -> Option<Nodes> {
    Nodes::new(program!(), &[&["--peers", "{cache}"], options].concat())
}

/// What a node counted.
fn report(nodes: &Nodes, node: &str) -> Value {
    let status: Value =
        serde_json::from_str(&written(&nodes.halocline(&["status", node, "--json"]))).unwrap();
    status["report"].clone()
}

fn peer_bytes(nodes: &Nodes, node: &str) -> u64 {
    report(nodes, node)["cluster"]["peer_bytes"].as_u64().unwrap()
}

fn pattern(seed: u8) -> Vec<u8> {
    (0..PART).map(|at| u8::try_from((at / 7 + at / BLOCK) % 251).unwrap() ^ seed).collect()
}

/// Each node writes its part of a file, and all of it is on the origin.
fn write_parts(nodes: &Nodes) -> ([File; 2], [Vec<u8>; 2]) {
    let files = nodes.open("file");
    let parts = [pattern(1), pattern(2)];
    for (node, (file, part)) in files.iter().zip(&parts).enumerate() {
        file.write_all_at(part, (node * PART) as u64).unwrap();
    }
    for node in ["one", "other"] {
        nodes.succeed(&["flush", node]);
    }
    (files, parts)
}

fn read_part(file: &File, part: usize, step: usize) -> Vec<u8> {
    let mut found = vec![0; PART];
    for (at, piece) in found.chunks_mut(step).enumerate() {
        file.read_exact_at(piece, (part * PART + at * step) as u64).unwrap();
    }
    found
}

fn shifted_reads_come_from_the_other_cache(options: &[&str]) {
    let Some(nodes) = two_nodes(options) else { return };
    let (files, parts) = write_parts(&nodes);
    for round in 0..2_u64 {
        for (node, file) in ["one", "other"].iter().zip(&files).map(|(node, file)| (*node, file)) {
            let other = usize::from(node == "one");
            // A machine that is so busy that an answer comes too late reads from the origin for some time.
            eventually("a round of reads from the other cache", || {
                let before = peer_bytes(&nodes, node);
                assert!(read_part(file, other, 8192) == parts[other], "round {round}");
                let report = report(&nodes, node);
                let bytes = report["cluster"]["peer_bytes"].as_u64().unwrap();
                // What another node has is not cached twice.
                let is_twice = report["filled_bytes"] != 0;
                assert!(
                    !is_twice || report["cluster"]["peer_failures"] != 0 || bytes < PART as u64,
                    "{report}"
                );
                (bytes - before) * 100 >= PART as u64 * 95 || is_twice
            });
        }
    }
    let explained =
        written(&nodes.halocline(&["explain", "one/file", "1M", "64K", "--direction", "read"]));
    assert!(explained.contains("node other has 65536 bytes of it"), "{explained}");
    let status = written(&nodes.halocline(&["status", "one"]));
    assert!(status.contains("read from other nodes' caches"), "{status}");
    // What was read there changes: nobody reads it any more.
    files[1].write_all_at(&[9; 3 * BLOCK], (PART + 5 * BLOCK) as u64).unwrap();
    let mut expected = parts[1].clone();
    expected[5 * BLOCK..8 * BLOCK].fill(9);
    assert!(read_part(&files[0], 1, 8192) == expected);
    // By the reader, too, and both see it.
    files[0].write_all_at(&[8; 3 * BLOCK + 1], (PART + 6 * BLOCK) as u64).unwrap();
    expected[6 * BLOCK..=9 * BLOCK].fill(8);
    for file in &files {
        assert!(read_part(file, 1, 8192) == expected);
    }
    files[1].set_len((PART + 100) as u64).unwrap();
    files[1].set_len(2 * PART as u64).unwrap();
    expected[100..].fill(0);
    assert!(read_part(&files[0], 1, 8192) == expected);
}

#[test]
fn shifted_reads_come_from_the_ssd_of_the_other_node() {
    shifted_reads_come_from_the_other_cache(&[]);
}

#[test]
fn shifted_reads_come_from_striped_ssds_of_the_other_node() {
    let striped = ["--cache-volume", "striped", "--cache-servers", "4", "--cache-stripe", "16K"];
    shifted_reads_come_from_the_other_cache(&striped);
}

/// Reads the other node's part on `one` until the other cache could not be read once. On a busy machine an answer comes too
/// late; then the part is read from the origin, and cached here as long as nobody evicts it.
fn read_until_it_fails(nodes: &Nodes, file: &File, part: &[u8]) {
    eventually("it is tried", || {
        assert!(read_part(file, 1, 65_536) == part);
        let is_tried = report(nodes, "one")["cluster"]["peer_failures"].as_u64().unwrap() > 0;
        if !is_tried {
            nodes.halocline(&["evict", "one/file"]);
        }
        is_tried
    });
}

/// Reads the other node's part on `one` until bytes came from the other cache.
fn read_until_it_comes(nodes: &Nodes, file: &File, part: &[u8]) {
    eventually("the other cache is read", || {
        assert!(read_part(file, 1, 65_536) == part);
        let is_read = peer_bytes(nodes, "one") > 0;
        if !is_read {
            nodes.halocline(&["evict", "one/file"]);
        }
        is_read
    });
}

/// What can go wrong with the other cache costs speed, and no byte.
#[test]
fn a_cache_that_is_not_as_it_was_told_is_not_believed() {
    let Some(nodes) = two_nodes(&[]) else { return };
    let (files, parts) = write_parts(&nodes);
    read_until_it_comes(&nodes, &files[0], &parts[1]);
    let before = peer_bytes(&nodes, "one");

    // Its bytes are damaged, or others than it told.
    for object in objects(&nodes.path("cache2")) {
        let file = File::options().write(true).open(object).unwrap();
        let len = file.metadata().unwrap().len();
        file.write_all_at(&vec![0xee; usize::try_from(len).unwrap()], 0).unwrap();
    }
    read_until_it_fails(&nodes, &files[0], &parts[1]);
    let report = report(&nodes, "one");
    assert_eq!(report["cluster"]["peer_bytes"], before, "{report}");
}

#[test]
fn a_cache_that_was_moved_or_replaced_by_a_link_is_not_read() {
    for with_link in [false, true] {
        let Some(nodes) = two_nodes(&[]) else { return };
        let (files, parts) = write_parts(&nodes);
        let away = nodes.path("away");
        fs::rename(nodes.path("cache2"), &away).unwrap();
        if with_link {
            symlink(&away, nodes.path("cache2")).unwrap();
        }
        read_until_it_fails(&nodes, &files[0], &parts[1]);
        assert_eq!(peer_bytes(&nodes, "one"), 0);
        if with_link {
            fs::remove_file(nodes.path("cache2")).unwrap();
        }
        fs::rename(&away, nodes.path("cache2")).unwrap();
    }
}

#[test]
fn a_file_system_between_the_nodes_that_hangs_costs_a_moment() {
    let Some(nodes) = Nodes::new(program!(), &[]) else { return };
    for dir in ["caches/one", "caches/other", "far", "cache3"] {
        fs::create_dir_all(nodes.path(dir)).unwrap();
    }
    let far =
        ["mount", "caches", "far", "--cache", "cache3", "--policy", "never", "--attr-timeout=0s"];
    nodes.succeed(&far);
    let pattern = format!("{}/{{node}}", nodes.path("far").display());
    for node in ["one", "other"] {
        nodes.succeed(&["umount", node]);
        let mounted = nodes.mount_with(node, &format!("caches/{node}"), &["--peers", &pattern]);
        assert!(mounted.status.success(), "{}", said(&mounted));
    }
    let (files, parts) = write_parts(&nodes);
    read_until_it_comes(&nodes, &files[0], &parts[1]);
    {
        let _stopped = Standstill::of(nodes.pid("far"));
        // Far less than a wait for each request, and far more than a slow machine needs for all of them.
        let begun = Instant::now();
        for _ in 0..4 {
            assert!(read_part(&files[0], 1, 8192) == parts[1]);
        }
        assert!(begun.elapsed() < Duration::from_secs(100), "{:?}", begun.elapsed());
        read_until_it_fails(&nodes, &files[0], &parts[1]);
    }
    drop(files);
    for node in ["one", "other", "far"] {
        nodes.succeed(&["umount", node]);
    }
}

/// The files with cached bytes.
fn objects(cache: &std::path::Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for dir in fs::read_dir(cache.join("objects")).unwrap() {
        for object in fs::read_dir(dir.unwrap().path()).unwrap() {
            found.push(object.unwrap().path());
        }
    }
    assert!(!found.is_empty());
    found
}

/// A ledger of one block: the versions whose writes were begun, and acknowledged.
#[derive(Debug)]
struct Ledger {
    begun: AtomicU32,
    acknowledged: AtomicU32,
}

/// A block in every word of which is its version.
fn block_of(version: u32) -> Vec<u8> {
    version.to_le_bytes().repeat(BLOCK / 4)
}

/// Reads some blocks: what is read is never older than what was acknowledged before, nor newer than what was begun. The
/// origin's file system may mix two versions where it is used directly.
fn check_some(file: &File, ledger: &[Ledger], random: &mut Random) {
    let first = random.below(ledger.len());
    let ledger = &ledger[first..(first + 1 + random.below(4)).min(ledger.len())];
    let least: Vec<u32> =
        ledger.iter().map(|block| block.acknowledged.load(Ordering::SeqCst)).collect();
    let mut found = vec![0; ledger.len() * BLOCK];
    file.read_exact_at(&mut found, (first * BLOCK) as u64).unwrap();
    for ((block, least), words) in ledger.iter().zip(least).zip(found.chunks(BLOCK)) {
        let most = block.begun.load(Ordering::SeqCst);
        for word in words.chunks(4) {
            let version = u32::from_le_bytes(word.try_into().unwrap());
            assert!((least..=most).contains(&version), "version {version}, not {least} to {most}");
        }
    }
}

/// I1, I11: readers on both nodes, while either rewrites and evicts the same bytes. What a node wrote before the other
/// one did stays on its SSD for a while, with the checksums that it stated.
#[test]
fn i11_what_is_evicted_and_rewritten_meanwhile_is_never_read_as_something_else() {
    /// So many that none changes hands so often that it is contended.
    const FILES: usize = 12;
    const BLOCKS: usize = 64;
    let Some(nodes) = two_nodes(&[]) else { return };
    let files: Vec<[File; 2]> =
        (0..FILES).map(|number| nodes.open(&format!("file{number}"))).collect();
    let new = || Ledger { begun: AtomicU32::new(1), acknowledged: AtomicU32::new(1) };
    let ledgers: Vec<Vec<Ledger>> =
        (0..FILES).map(|_| (0..BLOCKS).map(|_| new()).collect()).collect();
    for [writer, _] in &files {
        writer.write_all_at(&block_of(1).repeat(BLOCKS), 0).unwrap();
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for seed in 0..2 {
            let (files, ledgers, stop) = (&files, &ledgers, &stop);
            scope.spawn(move || {
                let mut random = Random(100 + seed);
                while !stop.load(Ordering::Relaxed) {
                    let number = random.below(FILES);
                    let file = &files[number][random.below(2)];
                    check_some(file, &ledgers[number], &mut random);
                }
            });
        }
        scope.spawn(|| {
            let mut random = Random(7);
            while !stop.load(Ordering::Relaxed) {
                let (node, number) = (["one", "other"][random.below(2)], random.below(FILES));
                nodes.halocline(&["evict", &format!("{node}/file{number}")]);
            }
        });
        let (mut random, mut version) = (Random(3), 1);
        // Or the scope would wait for its threads for ever.
        let _stop = SetOnDrop(&stop);
        let begun = Instant::now();
        let peer_requests =
            |node: &&str| report(&nodes, node)["cluster"]["peer_requests"].as_u64().unwrap();
        let enough = || ["one", "other"].iter().all(|node| peer_requests(node) > 50);
        for number in (0..FILES).cycle() {
            if number == 0 && begun.elapsed() > Duration::from_secs(15) && enough() {
                break;
            }
            assert!(begun.elapsed() < WAIT_LIMIT, "few reads come from the other cache");
            version += 1;
            let file = &files[number][random.below(2)];
            for _ in 0..random.below(12) {
                let at = random.below(BLOCKS);
                let block = &ledgers[number][at];
                block.begun.store(version, Ordering::SeqCst);
                file.write_all_at(&block_of(version), (at * BLOCK) as u64).unwrap();
                block.acknowledged.store(version, Ordering::SeqCst);
            }
            thread::sleep(Duration::from_millis(110));
        }
    });
}

/// What a session left clean on its cache is not covered by a token until the next one has one: the rest of a file
/// whose first bytes the next session read counted as held all the time.
#[test]
fn i11_what_an_earlier_session_left_clean_is_not_read_after_others_changed_it() {
    let Some(nodes) = two_nodes(&[]) else { return };
    let [one, other] = nodes.open("file");
    one.write_all_at(&vec![1; PART], 0).unwrap();
    drop(one);
    nodes.kill("one");
    let again = nodes.mount("one", "cache");
    assert!(again.status.success());
    // In the other's memory at most, and then on the origin.
    other.write_all_at(&vec![2; PART], 0).unwrap();
    let one = File::open(nodes.path("one/file")).unwrap();
    let mut found = vec![0; PART];
    for (at, piece) in found.chunks_mut(BLOCK).enumerate() {
        one.read_exact_at(piece, (at * BLOCK) as u64).unwrap();
    }
    let old = found.iter().filter(|byte| **byte != 2).count();
    assert_eq!(old, 0, "bytes of before");
}
