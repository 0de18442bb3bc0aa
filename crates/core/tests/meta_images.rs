//! Crash images of the metadata store: what `kill -9` leaves after each operation, what a power
//! loss leaves of the journal, what a broken disk makes of it. A prefix of the operations or a
//! clear error, never anything else, never a panic (I4).

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use halocline_core::error::Error;
use halocline_core::meta::local::{LocalDmt, Options, STORE_DIR, system_clock};
use halocline_core::meta::recover::{Left, Recovery};
use halocline_core::meta::{BLOCK, Dmt, FileId, OriginKey};
use halocline_model::evict::Lru;
use halocline_model::layout::{Layout, Placement};
use halocline_model::request::ByteRange;

const HERE: Placement = Placement { layout: Layout::OneDh, group: 0 };

fn open(dir: &Path, boot: &str) -> Result<(LocalDmt, Recovery), Error> {
    let options = Options {
        limit_bytes: 1 << 30,
        eviction: Box::<Lru>::default(),
        cdt_entries: 8,
        clock: system_clock(),
    };
    LocalDmt::open_on_boot(dir, options, boot)
}

/// All that a table shows, but for times and generations.
type Shown = BTreeMap<(PathBuf, u64), (u64, bool)>;

fn shown(table: &LocalDmt) -> Shown {
    let mut shown = Shown::new();
    for file in table.files() {
        for extent in table.extents(file.id) {
            let at = (file.path.clone(), extent.range.start);
            shown.insert(at, (extent.range.end, extent.dirty));
        }
    }
    shown
}

/// Copies a directory without the zeros that journals end with.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            let file = fs::File::open(entry.path()).unwrap();
            let copy = fs::File::create(to).unwrap();
            copy.set_len(file.metadata().unwrap().len()).unwrap();
            copy.write_all_at(&used(&file), 0).unwrap();
        }
    }
}

/// The bytes of a file up to the zeros at its end.
fn used(file: &fs::File) -> Vec<u8> {
    let (mut bytes, mut part) = (Vec::new(), vec![0; 1 << 16]);
    // A store's file holds no such long run of zeros but at its end.
    loop {
        let got = file.read_at(&mut part, bytes.len() as u64).unwrap();
        if part[..got].iter().all(|&byte| byte == 0) {
            break;
        }
        bytes.extend_from_slice(&part[..got]);
    }
    bytes.truncate(bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1));
    bytes
}

fn files_below(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            files_below(&entry.path(), found);
        } else {
            found.push(entry.path());
        }
    }
    found.sort();
}

fn journal(cache: &Path) -> PathBuf {
    let mut found = Vec::new();
    files_below(&cache.join(STORE_DIR), &mut found);
    found.into_iter().rfind(|path| path.extension().is_some_and(|end| end == "jnl")).unwrap()
}

/// Runs operations of every kind; after each, `seen` gets the directory and what the table shows.
fn run(dir: &Path, seen: &mut dyn FnMut(&LocalDmt)) -> FileId {
    let (table, _) = open(dir, "boot-1").unwrap();
    seen(&table);
    let file = table.register(OriginKey { inode: 1, born_ns: 1 }, Path::new("a")).unwrap();
    let map = |start: u64, dirty| {
        let range = ByteRange::at(start * BLOCK, BLOCK);
        assert!(table.reserve(file, range, HERE));
        table.map(file, range, HERE, dirty).unwrap();
    };
    for step in 0..4 {
        map(step * 4, true);
        seen(&table);
        map(step * 4 + 1, false);
        seen(&table);
    }
    table.barrier().unwrap();
    table.mark_dirty(file, ByteRange::new(BLOCK + 100, BLOCK + 200)).unwrap();
    seen(&table);
    let dirty = table.dirty(file, ByteRange::new(0, 8 * BLOCK), usize::MAX);
    let list: Vec<_> = dirty.iter().map(|extent| (extent.range, extent.generation)).collect();
    assert!(table.mark_clean(file, &list).unwrap() > 0);
    seen(&table);
    table.unmap(file, ByteRange::new(100, 5 * BLOCK + 100)).unwrap();
    seen(&table);
    table.rename(Path::new("a"), Path::new("b/c")).unwrap();
    seen(&table);
    let evicted = table.evict(BLOCK, None, &mut |_, _| true).unwrap();
    assert!(!evicted.is_empty());
    seen(&table);
    map(2, true);
    seen(&table);
    file
}

#[test]
fn i4_every_acknowledged_change_is_in_the_image_that_a_kill_leaves() {
    let (dir, images) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut expected = Vec::new();
    run(dir.path(), &mut |table| {
        copy(dir.path(), &images.path().join(expected.len().to_string()));
        expected.push(shown(table));
    });
    for (step, expected) in expected.iter().enumerate() {
        let (table, recovery) = open(&images.path().join(step.to_string()), "boot-1").unwrap();
        assert_eq!(&shown(&table), expected, "after operation {step}");
        assert_eq!(recovery.left, Left::Crashed);
        assert!(recovery.dropped.is_empty() && recovery.trim);
    }
}

/// What a table shows after a power loss that left the records of `before`: dirty extents of
/// which a barrier knew, nothing else.
fn is_some_prefix(shown_now: &Shown, history: &[Shown]) -> bool {
    let dirty = |all: &Shown| -> Shown {
        all.iter().filter(|(_, (_, dirty))| *dirty).map(|(k, v)| (k.clone(), *v)).collect()
    };
    history.iter().any(|then| {
        let then = dirty(then);
        shown_now.iter().all(|(at, extent)| then.get(at) == Some(extent))
    })
}

#[test]
fn a_journal_cut_anywhere_is_a_prefix() {
    let (dir, images) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut history = Vec::new();
    run(dir.path(), &mut |table| history.push(shown(table)));
    let path = journal(dir.path());
    let whole = used(&fs::File::open(&path).unwrap());
    for (number, length) in (0..=whole.len()).step_by(37).enumerate() {
        let image = images.path().join(number.to_string());
        copy(dir.path(), &image);
        let torn = fs::OpenOptions::new().write(true).open(journal(&image)).unwrap();
        torn.set_len(length as u64).unwrap();
        match open(&image, "boot-1") {
            Ok((table, _)) => {
                let now = shown(&table);
                assert!(now.is_empty() || history.contains(&now), "cut at {length}: {now:?}");
            }
            Err(error) => assert!(matches!(error, Error::Store { .. }), "{length}: {error}"),
        }
        fs::remove_dir_all(image).unwrap();
    }
}

/// After a power loss the pages behind the last sync may be there in any choice: a page that
/// never reached the disk reads as zeros, with later ones behind it. This MUST open: the fsynced
/// dirty data is reachable only through it.
#[test]
fn a_power_loss_that_tears_the_unsynced_end_of_the_journal_loses_nothing_that_was_synced() {
    let dir = tempfile::tempdir().unwrap();
    let (table, _) = open(dir.path(), "boot-1").unwrap();
    let file = table.register(OriginKey { inode: 1, born_ns: 1 }, Path::new("a")).unwrap();
    let map = |block: u64| {
        let range = ByteRange::at(block * BLOCK, BLOCK);
        assert!(table.reserve(file, range, HERE));
        table.map(file, range, HERE, true).unwrap();
    };
    (0..4).for_each(|block| map(block * 2));
    table.barrier().unwrap();
    let synced = shown(&table);
    let path = journal(dir.path());
    let from = used(&fs::File::open(&path).unwrap()).len();
    (4..400).for_each(|block| map(block * 2));
    let whole = used(&fs::File::open(&path).unwrap());
    drop(table);
    let images = tempfile::tempdir().unwrap();
    for (number, hole) in (from..whole.len()).step_by(977).enumerate() {
        let image = images.path().join(number.to_string());
        copy(dir.path(), &image);
        let torn = fs::OpenOptions::new().write(true).open(journal(&image)).unwrap();
        torn.write_all_at(&[0; 512][..512.min(whole.len() - hole)], hole as u64).unwrap();
        let (table, recovery) = open(&image, "boot-2")
            .unwrap_or_else(|error| panic!("a hole at {hole} of {from}..{}: {error}", whole.len()));
        assert_eq!(recovery.left, Left::PowerLost);
        assert_eq!(shown(&table), synced, "a hole at {hole}");
        drop(table);
        fs::remove_dir_all(image).unwrap();
    }
}

#[test]
fn broken_bytes_are_refused_or_a_prefix_and_never_a_panic() {
    let (dir, images) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut history = Vec::new();
    run(dir.path(), &mut |table| history.push(shown(table)));
    // Opened once more, part of the records is in tables, not in the journal.
    drop(open(dir.path(), "boot-1").unwrap());
    let mut files = Vec::new();
    files_below(dir.path(), &mut files);
    let mut number = 0;
    for file in files {
        let name = file.strip_prefix(dir.path()).unwrap();
        let bytes = used(&fs::File::open(&file).unwrap());
        for at in (0..bytes.len()).step_by(bytes.len() / 24 + 1) {
            number += 1;
            let image = images.path().join(number.to_string());
            copy(dir.path(), &image);
            let broken = fs::OpenOptions::new().write(true).open(image.join(name)).unwrap();
            broken.write_all_at(&[!bytes[at]], at as u64).unwrap();
            match open(&image, "boot-2") {
                Ok((table, _)) => {
                    let now = shown(&table);
                    let known = is_some_prefix(&now, &history);
                    assert!(known, "byte {at} of {}: {now:?}", name.display());
                }
                Err(Error::Store { remedy, .. } | Error::Invalid { remedy, .. }) => {
                    assert!(!remedy.is_empty());
                }
                Err(error) => panic!("byte {at} of {}: {error:?}", name.display()),
            }
            fs::remove_dir_all(image).unwrap();
        }
    }
}
