//! The limit of the cache under attack (I5): many writers, a flush, evictions and fetches at once.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use halocline_api::config::Config;
use halocline_api::control::Controlled;
use halocline_vfs::Engine;

use crate::fixture::{Fixture, ME, still};
use crate::truth::{at, pattern};

const KIB: u64 = 1 << 10;
const LIMIT: u64 = 256 * KIB;
const WRITERS: u64 = 4;
const FILE: u64 = 160 * KIB;

/// Blocks of the file system's own that find the blocks of a sparse object: at most one for each
/// object at this size. `sides::limit_bytes` sets room aside for them.
const INDEX: u64 = (WRITERS + 1) * 4096;

#[test]
fn i5_concurrent_writers_never_pass_the_limit_on_disk() {
    let config = Config { flush_workers: 2, ..still(LIMIT, "always") };
    let mut fixture = Fixture::new(config);
    let names: Vec<String> = (0..WRITERS).map(|number| format!("f{number}")).collect();
    let done = AtomicBool::new(false);
    let truths: Vec<Vec<u8>> = thread::scope(|scope| {
        let watch = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let used = fixture.engine().status().used_bytes;
                assert!(used <= LIMIT, "I5: {used} bytes are counted");
                // Object by object: what one frees and another takes during a look is in both.
                let looks = std::iter::repeat_with(|| fixture.cache_blocks()).take(4);
                let blocks = looks.min().expect("four looks");
                assert!(blocks <= LIMIT + INDEX, "I5: {blocks} bytes are on disk");
            }
        });
        let flush_handle = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                fixture.flush();
                fixture.engine().fetch_wanted().unwrap();
            }
        });
        let writers: Vec<_> = (1..)
            .zip(&names)
            .map(|(seed, name)| {
                scope.spawn({
                    let fixture = &fixture;
                    move || write_at_random(fixture, name, seed)
                })
            })
            .collect();
        let truths = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        done.store(true, Ordering::Relaxed);
        watch.join().unwrap();
        flush_handle.join().unwrap();
        truths
    });
    for (name, truth) in names.iter().zip(&truths) {
        assert!(fixture.read(name, 0, at(FILE) + 1) == *truth, "I1: {name}");
    }
    fixture.close();
    for (name, truth) in names.iter().zip(&truths) {
        assert!(std::fs::read(fixture.origin.path().join(name)).unwrap() == *truth, "I7: {name}");
    }
}

fn write_at_random(fixture: &Fixture, name: &str, seed: u64) -> Vec<u8> {
    let handle = fixture.handle(name);
    let mut truth = vec![0; at(FILE)];
    fixture.engine().write(&handle, 0, &truth, ME).unwrap();
    let mut random = seed;
    let mut below = |bound: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed | 1);
        (random >> 33) % bound
    };
    for round in 0..250 {
        let offset = below(FILE - 1);
        let len = (1 + below(12 * KIB)).min(FILE - offset);
        let (start, end) = (at(offset), at(offset + len));
        if round % 4 == 3 {
            let mut found = vec![0; end - start];
            fixture.engine().read(&handle, offset, &mut found, ME).unwrap();
            assert!(found == truth[start..end], "I1: {name} at {offset}");
        } else {
            let data = pattern(u8::try_from(below(256)).unwrap(), offset, len);
            fixture.engine().write(&handle, offset, &data, ME).unwrap();
            truth[start..end].copy_from_slice(&data);
        }
    }
    truth
}

/// Tiny writes all over a file: each takes a block and a record, and blocks run out.
#[test]
fn i5_a_cache_of_tiny_extents_stays_within_its_size_with_its_records() {
    let mut random = 7_u64;
    let anywhere = |_| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % ((8 << 20) - 64)
    };
    write_tiny(40_000, 40, anywhere);
}

/// Every other byte: two thousand records describe one block, so that records run out.
#[test]
fn i5_a_cache_of_records_stays_within_its_size() {
    write_tiny(30_000, 1, |round| round * 2);
}

/// Makes `count` writes of `len` bytes on a cache of 2 MiB and compares it with `du`.
fn write_tiny(count: u64, len: usize, mut place: impl FnMut(u64) -> u64) {
    let size = 2 << 20;
    let fixture = Fixture::new(Config { flush_workers: 1, ..still(size, "always") });
    let handle = fixture.handle("f");
    let done = AtomicBool::new(false);
    let mut truth = vec![0; at(8 << 20)];
    fixture.engine().write(&handle, 0, &truth, ME).unwrap();
    let most = thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most = 0;
            while !done.load(Ordering::Relaxed) {
                most = most.max(disk_use(fixture.cache.path()));
                thread::sleep(Duration::from_millis(1));
            }
            most
        });
        let flush_handle = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                fixture.flush();
                thread::sleep(Duration::from_millis(20));
            }
        });
        for round in 0..count {
            let offset = place(round);
            let data = vec![u8::try_from(round % 251).unwrap(); len];
            fixture.engine().write(&handle, offset, &data, ME).unwrap();
            truth[at(offset)..at(offset) + len].copy_from_slice(&data);
        }
        done.store(true, Ordering::Relaxed);
        flush_handle.join().unwrap();
        watch.join().unwrap()
    });
    let status = fixture.engine().status();
    assert!(most <= size, "I5: du says {most} bytes, records take {}", status.records_bytes);
    assert!(status.extents > 0, "the cache was in use");
    assert!(fixture.read("f", 0, truth.len()) == truth, "I1");
}

/// What `du` says of a directory at one moment at least: of each file what two looks in a row agree on. One
/// look goes from file to file, and what one frees and another takes meanwhile is in both.
fn disk_use(dir: &Path) -> u64 {
    let (before, after) = (blocks_below(dir), blocks_below(dir));
    let of_both = before.iter().filter_map(|(path, bytes)| Some(*after.get(path)?.min(bytes)));
    of_both.sum()
}

/// Bytes of the blocks of a directory and of all below it.
fn blocks_below(dir: &Path) -> BTreeMap<PathBuf, u64> {
    let own = dir.metadata().map_or(0, |found| found.blocks() * 512);
    let mut blocks = BTreeMap::from([(dir.to_owned(), own)]);
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.path().symlink_metadata() {
            Ok(found) if found.is_dir() => blocks.extend(blocks_below(&entry.path())),
            Ok(found) => drop(blocks.insert(entry.path(), found.blocks() * 512)),
            Err(_) => {}
        }
    }
    blocks
}
