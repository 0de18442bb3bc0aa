//! The log of the metadata store as a kill and as a power loss can leave it, seen from the tables (I4).

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use halocline_meta::identity::CACHE_FILE;
use halocline_meta::owner::Owner;
use halocline_meta::table::{ExtentTable, Options, STORE_DIR};
use halocline_meta::{BLOCK, FileId, OriginKey};
use halocline_model::evict::Lru;
use halocline_model::layout::{Layout, Placement};
use halocline_model::request::ByteRange;
use halocline_os::error::Error;
use halocline_testkit::copying::copy;

const HERE: Placement = Placement { layout: Layout::OneDh, group: 0 };

fn open(dir: &Path, boot: &str) -> Result<ExtentTable, Error> {
    let options = Options::new(1 << 30, Box::<Lru>::default(), 8);
    ExtentTable::open_on_boot(dir, options, boot).map(|(dmt, _)| dmt)
}

fn register(dmt: &ExtentTable, number: u64) -> FileId {
    let key = OriginKey { inode: number, born_ns: 1 };
    dmt.files().register(key, Path::new(&number.to_string())).unwrap()
}

fn map(dmt: &ExtentTable, file: FileId, number: u64) {
    let range = ByteRange::at(number * 2 * BLOCK, BLOCK);
    assert!(dmt.blocks().reserve(file, range, HERE));
    dmt.changes().map(file, range, HERE, true).unwrap();
}

/// Bytes before the first change.
const HEAD: u64 = 64;

/// The file of the log that was written last, and how far.
fn log(dir: &Path) -> (PathBuf, u64) {
    let files = fs::read_dir(dir.join(STORE_DIR)).unwrap().map(|entry| entry.unwrap().path());
    let written = files.filter_map(|path| {
        let is_log = path.file_name()?.to_str()?.starts_with("log-");
        let bytes = if is_log { fs::read(&path).unwrap() } else { Vec::new() };
        let end = bytes.iter().rposition(|&byte| byte != 0)? as u64 + 1;
        (end > HEAD).then_some((path, end))
    });
    written.max().unwrap()
}

/// Where each change begins in a file of the log, in order.
fn places(path: &Path) -> Vec<u64> {
    let bytes = fs::read(path).unwrap();
    let (mut places, mut at) = (Vec::new(), usize::try_from(HEAD).unwrap());
    while let Some(&[a, b, c, d]) = bytes.get(at + 4..at + 8).and_then(<[u8]>::first_chunk) {
        let len = usize::try_from(u32::from_le_bytes([a, b, c, d])).unwrap();
        if len == 0 {
            break;
        }
        places.push(at as u64);
        at += (20 + len + 1).next_multiple_of(8);
    }
    places
}

/// Overwrites some of a change.
fn tear(path: &Path, at: u64) {
    let log = File::options().write(true).open(path).unwrap();
    log.write_all_at(&[0xff; 8], at + 30).unwrap();
}

/// The files that a cache knows, by the inode they had.
fn known(dmt: &ExtentTable) -> Vec<u64> {
    dmt.files().all().iter().map(|file| file.key.inode).collect()
}

#[test]
fn i4_a_torn_change_is_the_one_that_a_kill_cut_short_or_damage() {
    let scratch = tempfile::tempdir().unwrap();
    let (live, image) = (scratch.path().join("live"), scratch.path().join("image"));
    let dmt = open(&live, "boot").unwrap();
    let file = register(&dmt, 1);
    (0..700).for_each(|number| map(&dmt, file, number));
    for (torn, left) in [(None, Some(700)), (Some(1), Some(699)), (Some(2), None), (Some(40), None)]
    {
        copy(&live, &image);
        let (path, _) = log(&image);
        let places = places(&path);
        assert!(places.len() > 700);
        if let Some(torn) = torn {
            tear(&path, places[places.len() - torn]);
        }
        let found = open(&image, "boot").map(|dmt| dmt.index().extents(file).len());
        if let Some(left) = left {
            assert_eq!(found.unwrap(), left, "I4: {torn:?} from the end");
        } else {
            let told = found.unwrap_err().to_string();
            let place = format!("at byte {}", places[places.len() - torn.unwrap()]);
            let name = path.file_name().unwrap().to_str().unwrap();
            assert!(told.contains(name) && told.contains(&place), "{told}");
        }
        fs::remove_dir_all(&image).unwrap();
    }
}

#[test]
fn i4_a_log_that_is_gone_is_damage() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("cache");
    let open = || open(&dir, "boot");
    let dmt = open().unwrap();
    // More than a file of 1 MiB has.
    let all: Vec<u64> = (0..15_000).collect();
    for number in &all {
        register(&dmt, *number);
    }
    drop(dmt);
    let log = |number: u64| dir.join(STORE_DIR).join(format!("log-{number:016x}"));
    assert!(log(1).exists() && log(2).exists());
    let moved = scratch.path().join("moved");
    fs::rename(log(1), &moved).unwrap();
    let told = open().unwrap_err().to_string();
    assert!(told.contains("log-0000000000000001 is missing"), "{told}");
    fs::rename(&moved, log(1)).unwrap();
    assert_eq!(known(&open().unwrap()), all);
}

#[test]
fn i4_what_a_power_loss_left_behind_a_gap_never_comes_back() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("cache");
    let dmt = open(&dir, "boot").unwrap();
    register(&dmt, 100);
    dmt.changes().persist().unwrap();
    let synced = places(&log(&dir).0).len();
    for number in 0..10 {
        register(&dmt, number);
    }
    drop(dmt);
    let (path, _) = log(&dir);
    let unsynced = places(&path).split_off(synced);
    assert_eq!(unsynced.len(), 10);
    tear(&path, unsynced[4]);

    let dmt = open(&dir, "next boot").unwrap();
    assert_eq!(known(&dmt), [100, 0, 1, 2, 3], "a prefix");
    // As many changes as close the gap: what lay behind it is not taken for what follows.
    for number in 50..52 {
        register(&dmt, number);
    }
    for boot in ["next boot", "the one after"] {
        let image = scratch.path().join(boot);
        copy(&dir, &image);
        assert_eq!(known(&open(&image, boot).unwrap()), [100, 0, 1, 2, 3, 50, 51], "{boot}");
    }
}

#[test]
fn renames_of_what_is_not_cached_take_no_room() {
    let scratch = tempfile::tempdir().unwrap();
    let dmt = open(scratch.path(), "boot").unwrap();
    let file = register(&dmt, 1);
    let before = log(scratch.path());
    (0..10).for_each(|_| dmt.files().rename(Path::new("a"), Path::new("b")).unwrap());
    assert_eq!(log(scratch.path()), before);
    map(&dmt, file, 0);
    assert_ne!(log(scratch.path()), before);
}

/// A program from before there was a log would find no records, and one from before there were rings
/// would not look for them.
#[test]
fn i4_programs_that_do_not_know_the_log_refuse_a_cache_that_has_one() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("cache");
    let format = || {
        let text = fs::read_to_string(dir.join(CACHE_FILE)).unwrap();
        text.lines().find_map(|line| line.strip_prefix("format = ")).unwrap().to_owned()
    };
    drop(Owner::take(&dir).unwrap());
    assert_eq!(format(), "1", "what the first programs made");
    for _ in 0..2 {
        drop(open(&dir, "boot").unwrap());
        // 2 has the ring, 3 the checksums, 4 the log.
        assert_eq!(format(), "4");
    }
}
