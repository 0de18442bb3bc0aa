//! Holes, data and blocks of files whose newest bytes are on the cache only.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};

use halocline_vfs::{Engine, Seek};

use crate::fixture::{Fixture, still};

const LIMIT: u64 = 64 << 20;
const MIB: u64 = 1 << 20;

fn seek(fixture: &Fixture, name: &str, offset: u64, what: Seek) -> Result<u64, i32> {
    let handle = fixture.handle(name);
    fixture.engine().seek(&handle, offset, what).map_err(|error| error.errno())
}

fn blocks(fixture: &Fixture, name: &str) -> u64 {
    let stat = fixture.engine().stat(&fixture.vnode(name), None).unwrap();
    stat.raw.st_blocks.unsigned_abs()
}

/// The parts of a file that are data, found as a program that copies sparse files finds them.
fn data(fixture: &Fixture, name: &str) -> Vec<(u64, u64)> {
    let (mut found, mut at) = (Vec::new(), 0);
    loop {
        match seek(fixture, name, at, Seek::Data) {
            Ok(start) => {
                assert!(start >= at, "data at {start}, before {at}");
                at = seek(fixture, name, start, Seek::Hole).expect("data ends at a hole");
                assert!(at > start, "data at {start} ends at {at}");
                found.push((start, at));
            }
            Err(errno) => {
                assert_eq!(errno, libc::ENXIO);
                return found;
            }
        }
    }
}

/// `bsdtar` dropped the last, unflushed, mebibyte of a file and exited with 0: the hole behind it
/// was looked for past the end of what the origin had, which answered ENXIO.
#[test]
fn i1_unflushed_bytes_at_the_end_are_data() {
    let fixture = Fixture::new(still(LIMIT, "always"));
    std::fs::write(fixture.origin.path().join("f"), vec![1; usize::try_from(MIB).unwrap()])
        .unwrap();
    fixture.write("f", MIB, &vec![2; 1 << 20]);
    assert_eq!(data(&fixture, "f"), [(0, 2 * MIB)]);
    assert_eq!(seek(&fixture, "f", MIB + 5, Seek::Hole), Ok(2 * MIB));
    assert_eq!(seek(&fixture, "f", 2 * MIB, Seek::Hole), Err(libc::ENXIO));
    fixture.write("g", 0, &[3; 4096]);
    assert_eq!(data(&fixture, "g"), [(0, 4096)]);
    fixture.write("h", 8 * MIB, &[4; 4096]);
    assert_eq!(data(&fixture, "h"), [(8 * MIB, 8 * MIB + 4096)]);
    fixture.truncate("h", 16 * MIB);
    assert_eq!(seek(&fixture, "h", 8 * MIB, Seek::Hole), Ok(8 * MIB + 4096));
    assert_eq!(seek(&fixture, "h", 9 * MIB, Seek::Data), Err(libc::ENXIO));
}

/// Data and holes on both sides in any order: what is not zero lies in data.
#[test]
fn i1_whatever_side_bytes_are_on_they_are_data() {
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let mut below = |limit: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % limit
    };
    for round in 0..40 {
        let mut fixture = Fixture::in_memory(still(LIMIT, "always"));
        let origin = File::create(fixture.origin.path().join("f")).unwrap();
        origin.set_len(below(64) * 4096 + 1).unwrap();
        for _ in 0..below(6) {
            origin.write_all_at(&[1; 8192], below(64) * 4096).unwrap();
        }
        for _ in 0..below(8) {
            fixture.write(
                "f",
                below(96) * 4096 + below(2) * 77,
                &vec![2; 1 + usize::try_from(below(20_000)).unwrap()],
            );
            if below(5) == 0 {
                fixture.flush();
            }
        }
        let size = fixture.size("f");
        let (found, bytes) =
            (data(&fixture, "f"), fixture.read("f", 0, usize::try_from(size).unwrap()));
        for at in (0..size).filter(|at| bytes[usize::try_from(*at).unwrap()] != 0) {
            let is_data = found.iter().any(|(start, end)| (*start..*end).contains(&at));
            assert!(is_data, "round {round}: byte {at} of {size} is in a hole of {found:?}");
        }
        assert!(blocks(&fixture, "f") > 0 || found.is_empty(), "round {round}");
        fixture.close();
    }
}

/// `du` said 1 TiB of a file with 6 bytes on the cache.
#[test]
fn blocks_are_those_of_both_sides() {
    let mut fixture = Fixture::new(still(LIMIT, "always"));
    fixture.write("far", 1 << 40, b"6 here");
    assert_eq!(blocks(&fixture, "far"), 8);
    // Over the origin's own blocks nothing is added, into its holes what is written.
    let origin = File::create(fixture.origin.path().join("f")).unwrap();
    origin.set_len(64 * MIB).unwrap();
    origin.write_all_at(&vec![1; 1 << 20], 8 * MIB).unwrap();
    origin.sync_all().unwrap();
    let own = origin.metadata().unwrap().blocks();
    fixture.write("f", 8 * MIB, &[2; 4096]);
    assert_eq!(blocks(&fixture, "f"), own);
    fixture.write("f", 32 * MIB, &[2; 4096]);
    fixture.write("f", 32 * MIB + 4096, &[2; 100]);
    assert_eq!(blocks(&fixture, "f"), own + 16);
    fixture.close();
    fixture.open();
    assert_eq!(blocks(&fixture, "f"), own + 16);
    drop(origin);
}
