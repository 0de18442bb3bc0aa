//! The store's own files under attack (I5): very many changes on a store that may take little, and
//! kills while snapshots replace its log (I4).

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write, stdout};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use halocline_meta::load::Shutdown;
use halocline_meta::table::{ExtentTable, Options, STORE_DIR};
use halocline_meta::{BLOCK, FileId, OriginKey};
use halocline_model::evict::Lru;
use halocline_model::layout::{Layout, Placement};
use halocline_model::request::ByteRange;

const PLACEMENT: Placement = Placement { layout: Layout::OneDh, group: 0 };
const SET_ASIDE: u64 = 512 << 10;
const EXTENTS: u64 = 500;
const ROUNDS: u64 = 60;

fn open(dir: &Path) -> (ExtentTable, Shutdown) {
    let options =
        Options { records_bytes: SET_ASIDE, ..Options::new(1 << 30, Box::<Lru>::default(), 8) };
    let (dmt, recovery) = ExtentTable::open(dir, options).unwrap();
    (dmt, recovery.last_shutdown)
}

/// What `du` would say of each file.
fn blocks(dir: &Path) -> BTreeMap<PathBuf, u64> {
    let mut bytes = BTreeMap::new();
    for path in fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()) {
        match path.symlink_metadata() {
            Ok(found) if found.is_dir() => bytes.extend(blocks(&path)),
            Ok(found) => drop(bytes.insert(path, found.blocks() * 512)),
            Err(_) => (),
        }
    }
    bytes
}

/// Bytes of the store, and those that are counted; `None` where a file was removed or renamed meanwhile: it need not
/// have been there together with all others, and is not counted any more.
fn measured(store: &Path, dmt: &ExtentTable) -> Option<(u64, u64)> {
    let (found, counted) = (blocks(store), dmt.space().records_bytes());
    let all_are_there = found.keys().all(|path| path.symlink_metadata().is_ok());
    all_are_there.then(|| (found.values().sum(), counted))
}

fn range(number: u64) -> ByteRange {
    ByteRange::at(number * 2 * BLOCK, 100)
}

/// Maps and unmaps every extent again and again: 60,000 changes, some megabytes of log.
fn churn(dmt: &ExtentTable, file: FileId) {
    for round in 0..ROUNDS {
        for number in 0..EXTENTS {
            if round > 0 {
                dmt.changes().unmap(file, range(number)).unwrap();
            }
            dmt.changes().map(file, range(number), PLACEMENT, round % 2 == 1).unwrap();
        }
        dmt.barrier().unwrap();
        for due in dmt.blocks().take_discards() {
            dmt.blocks().discarded(&due);
        }
    }
}

#[test]
fn i5_a_log_is_replaced_before_it_outgrows_its_share() {
    let dir = tempfile::tempdir().unwrap();
    let (dmt, _) = open(dir.path());
    let file = dmt.files().register(OriginKey { inode: 1, born_ns: 1 }, Path::new("f")).unwrap();
    let store = dir.path().join(STORE_DIR);
    let (over, most) = (AtomicBool::new(false), AtomicU64::new(0));
    let uncounted = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                if let Some((found, counted)) = measured(&store, &dmt) {
                    most.fetch_max(found, Ordering::Relaxed);
                    uncounted.fetch_max(found.saturating_sub(counted), Ordering::Relaxed);
                }
                thread::sleep(std::time::Duration::from_millis(1));
            }
        });
        churn(&dmt, file);
        over.store(true, Ordering::Relaxed);
    });
    let most = most.into_inner();
    assert!(most <= SET_ASIDE, "I5: the store took {most} bytes");
    assert_eq!(uncounted.into_inner(), 0, "I5: bytes of the store that were not counted");
    assert!(dmt.space().records_bytes() <= 2 * SET_ASIDE, "what is counted is near the truth");

    // Dropped as a kill leaves it: everything acknowledged is there.
    let extents = dmt.index().extents(file);
    assert_eq!(extents.len() as u64, EXTENTS);
    drop(dmt);
    let (dmt, left) = open(dir.path());
    assert_eq!(left, Shutdown::Crashed);
    let found = dmt.index().extents(file);
    assert!(found.iter().zip(&extents).all(|(found, was)| found.range == was.range));
    assert_eq!((found.len(), dmt.index().usage().dirty_extents), (extents.len(), EXTENTS), "I4");
}

const DIRECTORY: &str = "HALOCLINE_TEST_STORE";
const KILLS: u64 = 12;

/// The process that is killed: maps one extent after another, and says so after each.
#[test]
#[ignore = "run by i4_a_kill_while_a_snapshot_is_written_loses_nothing"]
fn child() {
    let dir = std::env::var(DIRECTORY).expect("the parent names a directory");
    let (dmt, _) = open(Path::new(&dir));
    let file = dmt.files().register(OriginKey { inode: 1, born_ns: 1 }, Path::new("f")).unwrap();
    let first = dmt.index().extents(file).len() as u64;
    for number in first.. {
        dmt.changes().map(file, range(number), PLACEMENT, true).unwrap();
        writeln!(stdout(), "mapped {}", number + 1).unwrap();
    }
}

#[test]
fn i4_a_kill_while_a_snapshot_is_written_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut begun = 0;
    for kill in 1..=KILLS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["child", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env(DIRECTORY, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let counts = lines.map_while(Result::ok).filter_map(|line| {
            line.rsplit_once("mapped ").and_then(|(_, count)| count.parse::<u64>().ok())
        });
        // Some kills hit a snapshot that is being written: a file of the log holds 800 maps.
        let (mut counts, target) = (counts, 3_500 + 113 * kill);
        let mut made = counts.by_ref().take(usize::try_from(target).unwrap()).last().unwrap();
        child.kill().unwrap();
        made = counts.last().unwrap_or(made);
        child.wait().unwrap();
        let (dmt, _) = open(dir.path());
        let file = dmt.files().find(OriginKey { inode: 1, born_ns: 1 }).unwrap();
        let found = dmt.index().extents(file).len() as u64;
        assert!(found >= made, "I4: {made} extents were acknowledged, {found} are there");
        let files = fs::read_dir(dir.path().join(STORE_DIR)).unwrap().flatten();
        let newest = files.filter_map(|entry| {
            let number = entry.file_name().to_str()?.strip_prefix("snapshot-")?.to_owned();
            u64::from_str_radix(&number, 16).ok()
        });
        begun = begun.max(newest.max().unwrap());
    }
    assert!(begun > KILLS, "snapshots were written: the last is number {begun}");
}
