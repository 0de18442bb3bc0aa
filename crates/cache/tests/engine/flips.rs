//! Bits that flip on the cache's devices: found when dirty bytes go to the origin, when programs read, and
//! never passed on. A block that is damaged costs itself and nothing beside it.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use halocline_api::config::{Config, OptionSpec, VolumeKind};
use halocline_api::control::{Controlled, MoveReport};
use proptest::prelude::*;

use crate::fixture::{Fixture, still};
use crate::truth::{at, pattern};

const KIB: u64 = 1 << 10;
const BLOCK: u64 = 4 * KIB;

fn verifying(verify_reads: bool) -> Config {
    Config { verify_reads, ..still(1 << 20, "always") }
}

/// The local files of the cache's objects.
fn objects(fixture: &Fixture) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![fixture.cache.path().to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.ancestors().any(|dir| dir.ends_with("objects")) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn flip(object: &PathBuf, offset: u64) {
    let file = File::options().read(true).write(true).open(object).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], offset).unwrap();
}

/// Flips a bit of the only object.
fn flip_at(fixture: &Fixture, offset: u64) {
    let objects = objects(fixture);
    assert_eq!(objects.len(), 1);
    flip(&objects[0], offset);
}

fn on_origin(fixture: &Fixture, name: &str) -> Vec<u8> {
    fs::read(fixture.origin.path().join(name)).unwrap()
}

fn reasons(report: &MoveReport) -> String {
    format!("{:?}", report.skipped)
}

/// A file of 64 KiB on the origin, of which the cache then has all but the first and last block newer.
fn overwritten(config: Config) -> (Fixture, Vec<u8>, Vec<u8>) {
    let fixture = Fixture::new(config);
    let old = pattern(1, 0, 64 * KIB);
    fs::write(fixture.origin.path().join("file"), &old).unwrap();
    let newer = pattern(2, BLOCK, 56 * KIB);
    fixture.write("file", BLOCK, &newer);
    let mut new = old.clone();
    new[at(BLOCK)..at(60 * KIB)].copy_from_slice(&newer);
    (fixture, old, new)
}

/// What the flush of [`overwritten`] does when its block at 20 KiB is damaged.
fn flushes_all_but_one(fixture: &Fixture, old: &[u8], new: &[u8]) {
    for turn in 0..2 {
        let report = fixture.flush();
        assert_eq!(report.left_bytes, BLOCK, "turn {turn}: {report:?}");
        let said = reasons(&report);
        assert!(said.contains("file") && said.contains("4096 bytes at 20480"), "{said}");
        let mut want = new.to_vec();
        let bad = at(20 * KIB)..at(24 * KIB);
        want[bad.clone()].copy_from_slice(&old[bad]);
        assert!(on_origin(fixture, "file") == want, "turn {turn}");
        let damaged = fixture.try_read("file", 20 * KIB + 100, 8).unwrap_err();
        assert_eq!(damaged.errno(), libc::EIO);
        assert_eq!(fixture.read("file", 0, 20 << 10), new[..20 << 10]);
        assert_eq!(fixture.read("file", 24 * KIB, 40 << 10), new[24 << 10..]);
    }
    let status = fixture.engine().status();
    assert_eq!((status.dirty_bytes, status.damaged_bytes), (BLOCK, BLOCK));
    assert!(fixture.engine().status().notes.iter().any(|note| note.contains("damaged")));
}

#[test]
fn i3_a_damaged_dirty_block_is_not_flushed_and_the_rest_is() {
    for verify_reads in [true, false] {
        let (mut fixture, old, mut new) = overwritten(verifying(verify_reads));
        flip_at(&fixture, 22 * KIB + 5);
        flushes_all_but_one(&fixture, &old, &new);
        // Half of it is written anew: the other half stays what it is.
        fixture.write("file", 20 * KIB, &[7; 2048]);
        assert_eq!(fixture.flush().left_bytes, 2048);
        assert_eq!(fixture.try_read("file", 22 * KIB, 8).unwrap_err().errno(), libc::EIO);
        fixture.write("file", 22 * KIB, &[8; 2048]);
        new[20 << 10..22 << 10].fill(7);
        new[22 << 10..24 << 10].fill(8);
        assert_eq!(fixture.flush().left_bytes, 0);
        assert_eq!(fixture.read("file", 0, 64 << 10), new);
        assert!(on_origin(&fixture, "file") == new);
        fixture.close();
    }
}

#[test]
fn i3_a_flip_while_nothing_is_mounted_is_found_by_the_next_flush() {
    for killed in [true, false] {
        let (mut fixture, old, new) = overwritten(verifying(true));
        if killed {
            fixture.crash();
        } else {
            fixture.close_dirty();
        }
        flip_at(&fixture, 20 * KIB);
        fixture.open();
        flushes_all_but_one(&fixture, &old, &new);
        // The kept block is kept on.
        fixture.close_dirty();
        fixture.open();
        flushes_all_but_one(&fixture, &old, &new);
        fixture.truncate("file", 10);
        assert_eq!(fixture.flush().left_bytes, 0);
        fixture.close();
    }
}

/// What is saved of a conflict was taken for sound.
#[test]
fn i9_a_conflict_with_a_damaged_block_is_saved_and_names_it() {
    let (mut fixture, _, new) = overwritten(verifying(true));
    fixture.others = true;
    flip_at(&fixture, 22 * KIB + 5);
    let theirs = fixture.origin.path().join("file");
    File::options().write(true).open(&theirs).unwrap().write_all_at(b"theirs", 0).unwrap();
    let report = fixture.flush();
    assert_eq!((report.left_bytes, report.conflicts.len()), (0, 1), "{report:?}");
    let said = &report.conflicts[0].reason;
    assert!(said.contains("4096 bytes at 20480 were damaged"), "{said}");
    let dir = fs::read_dir(fixture.cache.path().join("conflicts")).unwrap();
    let files: Vec<PathBuf> = dir.map(|entry| entry.unwrap().path()).collect();
    let json = files.iter().find(|path| path.extension().is_some()).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    assert_eq!(json["damaged"], serde_json::json!([[20480, 4096]]));
    let saved = files.iter().find(|path| path.extension().is_none()).unwrap();
    let mut want = new[at(BLOCK)..at(60 * KIB)].to_vec();
    want[at(18 * KIB) + 5] ^= 0x10;
    assert!(fs::read(saved).unwrap()[at(BLOCK)..] == want, "all of it is saved, as it is");
    fixture.close();
}

#[test]
fn i1_damaged_dirty_bytes_are_an_error_and_never_read() {
    let (fixture, _, new) = overwritten(verifying(true));
    flip_at(&fixture, 9 * KIB);
    for (offset, len) in [(8 * KIB, 4096), (9 * KIB + 1, 1), (8 * KIB, 1), (0, 64 << 10)] {
        let damaged = fixture.try_read("file", offset, len).unwrap_err();
        assert_eq!(damaged.errno(), libc::EIO, "{len} bytes at {offset}");
    }
    assert_eq!(fixture.read("file", 0, 8 << 10), new[..8 << 10]);
    assert_eq!(fixture.read("file", 12 * KIB, 52 << 10), new[12 << 10..]);
}

#[test]
fn i1_damaged_clean_bytes_come_from_the_origin() {
    let (mut fixture, _, new) = overwritten(verifying(true));
    fixture.flush();
    fixture.warm("file");
    let cached = fixture.engine().status().mapped_bytes;
    for offset in [0, 9 * KIB, 63 * KIB] {
        flip_at(&fixture, offset);
        assert_eq!(
            fixture.read("file", offset / BLOCK * BLOCK, 8),
            new[at(offset / BLOCK * BLOCK)..][..8]
        );
        assert_eq!(fixture.read("file", 0, 64 << 10), new);
    }
    assert_eq!(fixture.engine().status().repaired_bytes, 3 * 8, "what programs were given");
    // They are off the cache, and may come back.
    assert!(fixture.engine().status().mapped_bytes < cached);
    fixture.warm("file");
    assert_eq!(fixture.engine().status().mapped_bytes, cached);
    assert_eq!(fixture.read("file", 0, 64 << 10), new);
    fixture.close();
}

/// Extents that begin and end anywhere, and what is appended.
#[test]
fn i3_parts_of_blocks_have_checksums_too() {
    for cut in [1, 100, 4095, 4097, 10_000] {
        let mut fixture = Fixture::new(verifying(true));
        let want = pattern(3, 0, 3 * cut);
        for part in 0..3 {
            fixture.write("file", part * cut, &want[at(part * cut)..at((part + 1) * cut)]);
        }
        fixture.crash();
        flip_at(&fixture, 2 * cut + cut / 2);
        fixture.open();
        let report = fixture.flush();
        assert!((1..=BLOCK).contains(&report.left_bytes), "appends of {cut}: {report:?}");
        let flushed = on_origin(&fixture, "file");
        let wrong = flushed.iter().zip(&want).filter(|(got, want)| got != want && **got != 0);
        assert_eq!(wrong.count(), 0, "appends of {cut}");
        fixture.truncate("file", 0);
        fixture.close();
    }
}

/// Every 4099th byte of every local file of every kind of cache.
#[test]
fn i3_no_flip_reaches_the_origin_whatever_the_cache_is_made_of() {
    let striped = |servers, groups| {
        let mut config = verifying(true);
        config.cache.servers = servers;
        config.cache.kind = VolumeKind::Striped;
        config.cache.stripe = 16 * KIB;
        config.groups = groups;
        config
    };
    let mut emulated = verifying(true);
    emulated.set(OptionSpec::find("emulate").unwrap(), "hdd+ssd").unwrap();
    for (kind, config) in
        [("one", verifying(true)), ("striped", striped(4, 2)), ("emulated", emulated)]
    {
        let mut flips = 0;
        for first in [0, 2000] {
            let mut fixture = Fixture::new(config.clone());
            let want = pattern(9, 0, 100 * KIB);
            fixture.write("file", 0, &want);
            fixture.close_dirty();
            for object in objects(&fixture) {
                for offset in (first..fs::metadata(&object).unwrap().len()).step_by(16 << 10) {
                    flip(&object, offset);
                    flips += 1;
                }
            }
            fixture.open();
            assert_eq!(fixture.try_read("file", 0, 1).unwrap_err().errno(), libc::EIO, "{kind}");
            let report = fixture.flush();
            assert_eq!(report.left_bytes, 7 * BLOCK, "{kind}: {report:?}");
            let flushed = on_origin(&fixture, "file");
            let other = flushed.iter().zip(&want).filter(|(got, want)| got != want && **got != 0);
            assert_eq!(other.count(), 0, "{kind}: neither what was written nor the hole before");
            fixture.truncate("file", 0);
            fixture.close();
        }
        assert_eq!(flips, 14, "{kind}");
    }
}

#[test]
fn without_checksums_nothing_is_compared_and_nothing_old_believed_later() {
    let config = Config { checksums: false, ..verifying(true) };
    let (mut fixture, _, mut new) = overwritten(verifying(true));
    fixture.crash();
    fixture.config = config;
    fixture.open();
    fixture.write("file", 8 * KIB, &[1; 4096]);
    new[8 << 10..12 << 10].fill(1);
    fixture.crash();
    fixture.config = verifying(true);
    fixture.open();
    assert_eq!(fixture.read("file", 0, 64 << 10), new);
    assert_eq!(fixture.flush().left_bytes, 0);
    assert!(on_origin(&fixture, "file") == new);
    fixture.close();
}

#[derive(Debug, Clone)]
enum Op {
    Write { offset: u64, len: u64, seed: u8 },
    Flush,
    Warm,
    Kill,
    Close,
    Flip { at: u64 },
}

fn op() -> impl Strategy<Value = Op> {
    let offset = prop_oneof![0..100 * KIB, (0..25u64).prop_map(|block| block * BLOCK)];
    let len = prop_oneof![1..64u64, 1..20_000u64, Just(4096), Just(8192)];
    prop_oneof![
        8 => (offset, len, any::<u8>()).prop_map(|(offset, len, seed)| Op::Write { offset, len, seed }),
        2 => Just(Op::Flush),
        1 => Just(Op::Warm),
        2 => Just(Op::Kill),
        1 => Just(Op::Close),
        2 => (0..120 * KIB).prop_map(|at| Op::Flip { at }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    /// Whole blocks are written, so every flip is in a block with a sum: no program ever sees one.
    /// Without a flip nothing is ever called damaged.
    #[test]
    fn i1_no_flip_is_read_and_nothing_else_is_called_damaged(
        ops in prop::collection::vec(op(), 1..40),
        whole in any::<bool>(),
        flips in any::<bool>(),
    ) {
        let mut fixture = Fixture::in_memory(verifying(true));
        let mut want: Vec<u8> = Vec::new();
        let mut flipped = false;
        for op in &ops {
            match *op {
                Op::Write { mut offset, mut len, seed } => {
                    if whole {
                        offset = offset / BLOCK * BLOCK;
                        len = len.next_multiple_of(BLOCK);
                    }
                    let data = pattern(seed, offset, len);
                    fixture.write("file", offset, &data);
                    want.resize(want.len().max(at(offset + len)), 0);
                    want[at(offset)..at(offset + len)].copy_from_slice(&data);
                }
                Op::Flush => {
                    let report = fixture.flush();
                    prop_assert!(flipped || report.left_bytes == 0, "{report:?}");
                }
                Op::Warm if fixture.exists("file") => drop(fixture.warm("file")),
                Op::Kill => {
                    fixture.crash();
                    fixture.open();
                }
                Op::Close => {
                    fixture.close_dirty();
                    fixture.open();
                }
                // Where blocks are written in part, a flip may lie where no sum is.
                Op::Flip { at } if flips && whole => {
                    for object in objects(&fixture) {
                        if fs::metadata(&object).unwrap().len() > at {
                            flip(&object, at);
                            flipped = true;
                        }
                    }
                }
                Op::Warm | Op::Flip { .. } => {}
            }
            for start in (0..want.len()).step_by(4096) {
                let end = want.len().min(start + 4096);
                match fixture.try_read("file", start as u64, end - start) {
                    Ok(found) => prop_assert!(found == want[start..end], "I1: at {start} after {op:?}"),
                    Err(error) => prop_assert!(flipped && error.errno() == libc::EIO, "{error} after {op:?}"),
                }
            }
        }
    }
}
