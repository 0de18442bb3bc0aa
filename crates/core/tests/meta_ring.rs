//! The ring of changes ahead of the metadata store, as a kill and as a power loss can leave it (I4).

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use halocline_core::error::Error;
use halocline_core::meta::owner::{CACHE_FILE, Owner};
use halocline_core::meta::table::{ExtentTable, Options, STORE_DIR};
use halocline_core::meta::{BLOCK, FileId, OriginKey};
use halocline_model::evict::Lru;
use halocline_model::layout::{Layout, Placement};
use halocline_model::request::ByteRange;
use halocline_testkit::copying::copy;

const HERE: Placement = Placement { layout: Layout::OneDh, group: 0 };
const SLOT: usize = 256;

fn open(dir: &Path, boot: &str) -> Result<ExtentTable, Error> {
    let options = Options::new(1 << 30, Box::<Lru>::default(), 8);
    ExtentTable::open_on_boot(dir, options, boot).map(|(dmt, _)| dmt)
}

fn register(dmt: &ExtentTable, number: u64) -> FileId {
    let key = OriginKey { inode: number, born_ns: 1 };
    dmt.register(key, Path::new(&number.to_string())).unwrap()
}

fn map(dmt: &ExtentTable, file: FileId, number: u64) {
    let range = ByteRange::at(number * 2 * BLOCK, BLOCK);
    assert!(dmt.reserve(file, range, HERE));
    dmt.map(file, range, HERE, true).unwrap();
}

fn ring(dir: &Path) -> PathBuf {
    dir.join(STORE_DIR).join("ring")
}

/// The slots in use: their changes' numbers and where they lie, in order.
fn slots(dir: &Path) -> Vec<(u64, u64)> {
    let bytes = fs::read(ring(dir)).unwrap();
    let number = |slot: &[u8]| u64::from_le_bytes(slot[8..16].try_into().unwrap());
    let mut slots: Vec<_> = bytes
        .chunks_exact(SLOT)
        .enumerate()
        .map(|(at, slot)| (number(slot), (at * SLOT) as u64))
        .filter(|&(number, _)| number > 0)
        .collect();
    slots.sort_unstable();
    slots
}

/// Overwrites the end of what is in a slot.
fn tear(dir: &Path, at: u64) {
    let ring = File::options().write(true).open(ring(dir)).unwrap();
    ring.write_all_at(&[0xff; 8], at + 60).unwrap();
}

/// The files that a cache knows, by the inode they had.
fn known(dmt: &ExtentTable) -> Vec<u64> {
    dmt.files().iter().map(|file| file.key.inode).collect()
}

#[test]
fn i4_a_torn_slot_is_the_change_that_a_kill_cut_short_or_damage() {
    let scratch = tempfile::tempdir().unwrap();
    let (live, image) = (scratch.path().join("live"), scratch.path().join("image"));
    let dmt = open(&live, "boot").unwrap();
    let file = register(&dmt, 1);
    // Around the ring more than once: most slots were written again.
    (0..650).for_each(|number| map(&dmt, file, number));
    // Opened again, the store has these; it is told to get the next ones where a quarter of the ring
    // ends, which none of them does: nobody knows when it would have got them.
    drop(dmt);
    let dmt = open(&live, "boot").unwrap();
    (650..700).for_each(|number| map(&dmt, file, number));
    let slots = slots(&live);
    assert_eq!(slots.len(), 256);
    assert!(slots[256 - 50..].iter().all(|(number, _)| number % 64 != 0));
    for (torn, left) in [(None, Some(700)), (Some(1), Some(699)), (Some(2), None), (Some(40), None)]
    {
        copy(&live, &image);
        if let Some(torn) = torn {
            tear(&image, slots[slots.len() - torn].1);
        }
        let found = open(&image, "boot").map(|dmt| dmt.extents(file).len());
        match left {
            Some(left) => assert_eq!(found.unwrap(), left, "I4: {torn:?} from the end"),
            None => assert!(matches!(found, Err(Error::Store { .. })), "{torn:?} from the end"),
        }
        fs::remove_dir_all(&image).unwrap();
    }
    // What the store has is not looked for in the ring.
    copy(&live, &image);
    tear(&image, slots[0].1);
    assert_eq!(open(&image, "boot").unwrap().extents(file).len(), 700);
}

#[test]
fn i4_a_ring_that_is_gone_is_damage() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("cache");
    let dmt = open(&dir, "boot").unwrap();
    register(&dmt, 1);
    drop(dmt);
    let moved = scratch.path().join("moved");
    fs::rename(ring(&dir), &moved).unwrap();
    open(&dir, "boot").unwrap_err();
    fs::rename(&moved, ring(&dir)).unwrap();
    assert_eq!(known(&open(&dir, "boot").unwrap()), [1]);
}

#[test]
fn i4_what_a_power_loss_left_behind_a_gap_never_comes_back() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("cache");
    let dmt = open(&dir, "boot").unwrap();
    register(&dmt, 100);
    dmt.persist().unwrap();
    let synced = slots(&dir).len();
    for number in 0..10 {
        register(&dmt, number);
    }
    drop(dmt);
    let unsynced = slots(&dir).split_off(synced);
    let each = unsynced.len() / 10;
    tear(&dir, unsynced[4 * each].1);

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

/// A ring full of changes of nothing was never handed over: the next change waited for ever.
#[test]
fn renames_of_what_is_not_cached_take_no_slots() {
    let scratch = tempfile::tempdir().unwrap();
    let dmt = open(scratch.path(), "boot").unwrap();
    let file = register(&dmt, 1);
    let before = slots(scratch.path());
    let rename = || dmt.rename(Path::new("a"), Path::new("b")).unwrap();
    rename();
    assert_eq!(slots(scratch.path()), before);
    (0..2 * 256).for_each(|_| rename());
    map(&dmt, file, 0);
    assert_eq!(dmt.extents(file).len(), 1);
}

/// A program from before there were rings would go on from what the store has, and leave the ring to
/// be replayed over what it did.
#[test]
fn i4_programs_that_do_not_know_the_ring_refuse_a_cache_that_has_one() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("cache");
    let format = || {
        let text = fs::read_to_string(dir.join(CACHE_FILE)).unwrap();
        text.lines().find_map(|line| line.strip_prefix("format = ")).unwrap().to_owned()
    };
    drop(Owner::take(&dir).unwrap());
    assert_eq!(format(), "1", "what such a program made");
    for _ in 0..2 {
        drop(open(&dir, "boot").unwrap());
        // 2 has the ring, 3 the checksums, too.
        assert_eq!(format(), "3");
    }
}
