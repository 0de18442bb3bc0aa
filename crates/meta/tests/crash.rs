//! Crash images of the metadata store: the directory copied after each operation, its log cut at any
//! byte, and bytes flipped. What is recovered is a consistent prefix of what was done, or a
//! clear error; never a panic, never a mixture (I4, D6).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use halocline_meta::load::{Recovery, Shutdown};
use halocline_meta::owner::{LOCK_FILE, Owner};
use halocline_meta::table::{ExtentTable, Options};
use halocline_meta::{CriticalRange, FileId, FileRecord, OriginKey, Stamp};
use halocline_model::evict::Lru;
use halocline_model::layout::{Layout, Placement};
use halocline_model::request::ByteRange;
use halocline_os::error::Error;
use halocline_testkit::copying::copy;

const HERE: Placement = Placement { layout: Layout::OneDh, group: 0 };
/// A size of the log that no story here reaches.
const LOG_ONLY: u64 = 64 << 20;
const ALL: ByteRange = ByteRange::new(0, u64::MAX);

fn open(dir: &Path, boot: &str) -> Result<(ExtentTable, Recovery), Error> {
    open_with(dir, boot, LOG_ONLY)
}

/// The same with a size of the log at which a snapshot replaces it, so that a short story reaches some.
fn open_with(dir: &Path, boot: &str, log_bytes: u64) -> Result<(ExtentTable, Recovery), Error> {
    static CLOCK: AtomicU64 = AtomicU64::new(1_000_000);
    let options = Options {
        clock: Box::new(|| CLOCK.fetch_add(300, Relaxed)),
        ..Options::new(1 << 30, Box::<Lru>::default(), 64)
    };
    ExtentTable::open_tuned(dir, options, boot, log_bytes)
}

/// What a program can see of the tables.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Dump {
    files: Vec<FileRecord>,
    extents: Vec<(FileId, ByteRange, Placement, bool)>,
    wanted: Vec<CriticalRange>,
}

fn dump(dmt: &ExtentTable) -> Dump {
    let files = dmt.files().all();
    let of = |id| dmt.index().extents(id).into_iter().map(move |extent| (id, extent));
    let all = files.iter().flat_map(|file| of(file.id));
    let extents = all.map(|(file, extent)| (file, extent.range, extent.placement, extent.dirty));
    let extents = extents.collect();
    Dump { files, extents, wanted: dmt.critical().wanted(usize::MAX) }
}

/// What is recorded of them, and is there after a crash: no byte that is dirty is recorded as
/// clean, and none is mapped elsewhere (I4).
fn recorded(dmt: &ExtentTable) -> Dump {
    let shown = dump(dmt);
    let recorded = shown.files.iter().flat_map(|file| {
        let extents = dmt.index().recorded(file.id).into_iter();
        extents.map(move |(range, place, dirty)| (file.id, range, place, dirty.is_some()))
    });
    let recorded: Vec<_> = recorded.collect();
    for &(file, range, place, dirty) in &shown.extents {
        let holder = recorded.iter().find(|other| other.0 == file && other.1.contains(range));
        let &(_, _, recorded_at, recorded_dirty) = holder.expect("each extent is in a record");
        assert!(recorded_at == place && (recorded_dirty || !dirty), "I4: {range:?} of {file:?}");
    }
    let bytes = |extents: &[(FileId, ByteRange, Placement, bool)]| -> u64 {
        extents.iter().map(|extent| extent.1.len()).sum()
    };
    assert_eq!(bytes(&recorded), bytes(&shown.extents), "nothing else is recorded");
    Dump { extents: recorded, ..shown }
}

/// In memory where that exists: each case opens a store, and each open syncs.
fn scratch() -> tempfile::TempDir {
    let fast = Path::new("/dev/shm");
    let builder = tempfile::Builder::new();
    if fast.is_dir() { builder.tempdir_in(fast) } else { builder.tempdir() }.unwrap()
}

/// A small deterministic generator: the same story in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn range(&mut self) -> ByteRange {
        let start = self.below(60) * 1000;
        ByteRange::at(start, 1 + self.below(9) * 1000)
    }
}

/// Does one random change that the store must remember.
fn step(dmt: &ExtentTable, random: &mut Random, number: u64) {
    let files = dmt.files();
    let file = FileId(1 + random.below(3));
    let range = random.range();
    match random.below(12) {
        0..=4 => {
            let mut segments = Vec::new();
            dmt.index().lookup(file, range, &mut segments);
            let hole = segments.iter().find(|segment| segment.extent.is_none());
            if let Some(hole) = hole {
                assert!(dmt.blocks().reserve(file, hole.range, HERE));
                dmt.changes().map(file, hole.range, HERE, random.below(2) == 0).unwrap();
            }
        }
        5 | 6 => dmt.changes().mark_dirty(file, range).unwrap(),
        7 => {
            let dirty = dmt.index().dirty(file, ALL, 4);
            let list: Vec<_> =
                dirty.iter().map(|extent| (extent.range, extent.generation)).collect();
            dmt.changes().mark_clean(file, &list).unwrap();
        }
        8 => dmt.changes().unmap(file, range).unwrap(),
        9 => dmt.critical().note(CriticalRange { file, range, placement: HERE }, true),
        10 if number.is_multiple_of(2) => {
            let all = files.all();
            files.exchange(&all[0].path, &all[2].path).unwrap();
        }
        10 => files.rename(Path::new("d"), Path::new(&format!("d{number}"))).unwrap(),
        _ => files.stamp(file, Stamp::Closed { size: number, mtime_ns: 1, ctime_ns: 2 }).unwrap(),
    }
}

fn begin(dir: &Path, log_bytes: u64) -> ExtentTable {
    let (dmt, recovery) = open_with(dir, "boot", log_bytes).unwrap();
    assert_eq!(recovery.last_shutdown, Shutdown::Never);
    for (inode, path) in [(1, "d/a"), (2, "d/b"), (3, "c")] {
        dmt.files().register(OriginKey { inode, born_ns: 9 }, Path::new(path)).unwrap();
    }
    dmt
}

/// Bytes before the first change in a file of the log.
const HEAD: u64 = 64;

/// The files of the log, in order.
fn logs(dir: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(dir.join("meta")).unwrap().map(|entry| entry.unwrap().path());
    let is_log = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("log-");
    let mut logs: Vec<_> = files.filter(is_log).collect();
    logs.sort();
    logs
}

/// The file of the log that was written last: one may be ready behind it.
fn log(dir: &Path) -> PathBuf {
    logs(dir).into_iter().rfind(|log| written(log) > HEAD).unwrap()
}

/// Bytes of a file that were written: it is made larger than it is used.
fn written(file: &Path) -> u64 {
    let bytes = fs::read(file).unwrap();
    bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last as u64 + 1)
}

#[test]
fn i4_a_killed_process_loses_nothing_at_any_operation() {
    let dir = scratch();
    let (live, image) = (dir.path().join("live"), dir.path().join("image"));
    let dmt = begin(&live, LOG_ONLY);
    let mut random = Random(7);
    for number in 0..150 {
        step(&dmt, &mut random, number);
        if number % 3 == 0 {
            copy(&live, &image);
            let (copied, recovery) = open(&image, "boot").unwrap();
            assert_eq!((recovery.last_shutdown, recovery.trim), (Shutdown::Crashed, true));
            assert_eq!(dump(&copied), recorded(&dmt), "after operation {number}");
            drop(copied);
            fs::remove_dir_all(&image).unwrap();
        }
    }
}

/// A story with what the tables looked like after each operation.
fn story(dir: &Path, steps: u64, log_bytes: u64) -> Vec<Dump> {
    let dmt = begin(dir, log_bytes);
    let mut random = Random(11);
    let mut dumps = vec![Dump { files: Vec::new(), extents: Vec::new(), wanted: Vec::new() }];
    for file in dmt.files().all() {
        let mut dump = dumps.last().unwrap().clone();
        dump.files.push(file);
        dumps.push(dump);
    }
    for number in 0..steps {
        step(&dmt, &mut random, number);
        dumps.push(recorded(&dmt));
        if number % 16 == 15 {
            dmt.cut();
            dmt.barrier().unwrap();
        }
    }
    dumps
}

#[test]
fn a_log_cut_anywhere_is_a_prefix() {
    let dir = scratch();
    let (whole, image) = (dir.path().join("whole"), dir.path().join("image"));
    let dumps = story(&whole, 60, LOG_ONLY);
    let end = written(&log(&whole));
    let mut reached = 0;
    for cut in (HEAD..=end).step_by(3).chain([end]) {
        for fill in [false, true] {
            copy(&whole, &image);
            // What was synced cannot be missing, and is told: nothing of this was.
            fs::remove_file(image.join("meta/synced")).unwrap();
            let path = log(&image);
            let file = File::options().write(true).open(&path).unwrap();
            let full = file.metadata().unwrap().len();
            file.set_len(cut).unwrap();
            if fill {
                file.set_len(full).unwrap();
            }
            drop(file);
            let (dmt, _) = open(&image, "boot").unwrap();
            let found = dump(&dmt);
            let at = dumps[reached..].iter().position(|dump| *dump == found);
            reached += at.unwrap_or_else(|| panic!("cut at {cut}: no prefix has {found:?}"));
            drop(dmt);
            fs::remove_dir_all(&image).unwrap();
        }
    }
    assert_eq!(reached, dumps.iter().position(|dump| dump == dumps.last().unwrap()).unwrap());
}

#[test]
fn a_power_loss_keeps_what_a_barrier_covered_and_lists_the_rest() {
    let dir = scratch();
    let dmt = begin(dir.path(), LOG_ONLY);
    let map = |start, dirty| {
        let range = ByteRange::at(start, 4096);
        assert!(dmt.blocks().reserve(FileId(1), range, HERE));
        dmt.changes().map(FileId(1), range, HERE, dirty).unwrap();
    };
    map(0, true);
    map(8192, false);
    dmt.cut();
    // Written while the caller syncs: the sync may have missed it.
    map(16384, true);
    dmt.barrier().unwrap();
    // Dirty before and after: it stays covered.
    dmt.changes().mark_dirty(FileId(1), ByteRange::at(0, 10)).unwrap();
    dmt.changes().mark_dirty(FileId(1), ByteRange::at(8192, 100)).unwrap();
    drop(dmt);

    let (dmt, recovery) = open(dir.path(), "next boot").unwrap();
    assert_eq!((recovery.last_shutdown, recovery.trim), (Shutdown::PowerLost, true));
    assert_eq!(recovery.dropped.len(), 1);
    let dropped = &recovery.dropped[0];
    assert_eq!(dropped.path, Path::new("d/a"));
    // Of the clean extent all was recorded as dirty by the write to some of it: never too little.
    assert_eq!((dropped.clean_bytes, dropped.dirty_bytes), (0, 8192), "I6: the loss is listed");
    assert_eq!(dump(&dmt).extents, [(FileId(1), ByteRange::at(0, 4096), HERE, true)]);
    drop(dmt);
    let (dmt, recovery) = open(dir.path(), "next boot").unwrap();
    assert_eq!((recovery.last_shutdown, recovery.dropped.len()), (Shutdown::Crashed, 0));
    assert_eq!(dmt.index().usage().used, 4096);
}

#[test]
fn bytes_flipped_in_a_log_are_an_error_or_a_prefix() {
    flip(30, LOG_ONLY);
}

#[test]
fn bytes_flipped_in_a_snapshot_are_an_error_or_a_prefix() {
    flip(120, 2048);
}

fn flip(steps: u64, log_bytes: u64) {
    let dir = scratch();
    let (whole, image) = (dir.path().join("whole"), dir.path().join("image"));
    let dumps = story(&whole, steps, log_bytes);
    fs::create_dir(&image).unwrap();
    let mut victims = Vec::new();
    list(&whole.join("meta"), &mut victims);
    let mut errors = 0;
    for victim in victims {
        let name = victim.strip_prefix(&whole).unwrap();
        let path = image.join(name);
        let name = name.display();
        let end = written(&victim);
        let step = if end > 2000 { 7 } else { 1 };
        let tail = end.saturating_sub(300)..end;
        for at in (0..tail.start).step_by(step).chain(tail) {
            fs::remove_dir_all(&image).unwrap();
            copy(&whole, &image);
            let file = File::options().read(true).write(true).open(&path).unwrap();
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ (1 << (at % 8))], at).unwrap();
            drop(file);
            match open(&image, "boot") {
                Ok((dmt, _)) => {
                    let found = dump(&dmt);
                    assert!(dumps.contains(&found), "{name} byte {at}: a mixture: {found:?}");
                }
                Err(Error::Store { path, remedy, .. }) => {
                    assert!(path.starts_with(&image) && !remedy.is_empty());
                    errors += 1;
                }
                Err(other) => panic!("{name} byte {at}: unclear: {other}"),
            }
        }
    }
    assert!(errors > 0, "some damage is beyond recovery");
}

fn list(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { list(&path, files) } else { files.push(path) }
    }
}

/// The lock file is not synced: a power loss can take what it says of the boot. An opening that
/// ends before it reaches the store must not pass for one on this boot.
#[test]
fn a_power_loss_is_no_crash_because_the_first_opening_after_it_ended_early() {
    let dir = scratch();
    let dmt = begin(dir.path(), LOG_ONLY);
    dmt.barrier().unwrap();
    let (synced, from) = (dump(&dmt), written(&log(dir.path())));
    (0..300).for_each(|number| step(&dmt, &mut Random(number), number));
    drop(dmt);
    let torn = File::options().write(true).open(log(dir.path())).unwrap();
    torn.write_all_at(&[0; 512], from).unwrap();
    File::create(dir.path().join(LOCK_FILE)).unwrap();
    drop(Owner::take(dir.path()).unwrap());
    let (dmt, recovery) = open(dir.path(), &boot_id()).unwrap();
    assert_eq!((dump(&dmt), recovery.last_shutdown), (synced, Shutdown::PowerLost));
}

/// The boot that the lock file names when nobody says otherwise.
fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim().to_owned()
}

/// After a power loss the pages behind the last sync may be there in any choice: a sector that
/// never reached the disk reads as zeros, with later ones behind it. This must open: the fsynced
/// dirty data is reachable only through it. After a crash the same hole is damage, as what lies
/// behind it was acknowledged.
#[test]
fn a_hole_in_the_unsynced_log_is_the_end_after_a_power_loss_and_damage_otherwise() {
    holes(400, map);
}

/// The same where the whole hole lies in one record: all parts of its batch are in their places.
#[test]
fn a_hole_in_a_long_record_is_the_end_after_a_power_loss_and_damage_otherwise() {
    holes(40, |dmt, number| {
        let path = format!("{number}{}", "/long".repeat(600));
        dmt.files().register(OriginKey { inode: number, born_ns: 1 }, Path::new(&path)).unwrap();
    });
}

fn map(dmt: &ExtentTable, number: u64) {
    let range = ByteRange::at(number * 8192, 4096);
    assert!(dmt.blocks().reserve(FileId(1), range, HERE));
    dmt.changes().map(FileId(1), range, HERE, true).unwrap();
}

/// Makes holes between the changes that follow a barrier.
fn holes(changes: u64, change: impl Fn(&ExtentTable, u64)) {
    let dir = scratch();
    let (whole, image) = (dir.path().join("whole"), dir.path().join("image"));
    let dmt = begin(&whole, LOG_ONLY);
    (0..4).for_each(|number| map(&dmt, number));
    dmt.barrier().unwrap();
    let synced = dump(&dmt).extents;
    let from = written(&log(&whole));
    (4..changes).for_each(|number| change(&dmt, number));
    drop(dmt);
    let end = written(&log(&whole));
    // Not in the last change: a kill may have cut that short.
    for hole in (from..end - 4096).step_by(977) {
        for (boot, left) in [("next boot", Some(Shutdown::PowerLost)), ("boot", None)] {
            copy(&whole, &image);
            let torn = File::options().write(true).open(log(&image)).unwrap();
            torn.write_all_at(&[0; 512], hole).unwrap();
            let opened =
                open(&image, boot).map(|(dmt, found)| (dump(&dmt).extents, found.last_shutdown));
            match left {
                Some(left) => assert_eq!(opened.unwrap(), (synced.clone(), left), "at {hole}"),
                None => assert!(matches!(opened, Err(Error::Store { .. })), "at {hole}"),
            }
            fs::remove_dir_all(&image).unwrap();
        }
    }
}

/// What there was after a change: the tables, and the files of the log as far as they were written.
struct Moment {
    dump: Dump,
    logs: BTreeMap<PathBuf, Vec<u8>>,
}

impl Moment {
    fn now(dmt: &ExtentTable, dir: &Path) -> Self {
        let bytes = |log: &Path| {
            let mut bytes = fs::read(log).unwrap();
            bytes.truncate(usize::try_from(written(log)).unwrap());
            bytes
        };
        let logs = logs(dir).into_iter().map(|log| (log.clone(), bytes(&log))).collect();
        Self { dump: recorded(dmt), logs }
    }

    /// A sector of a file. Files are made durable before there is a change in them.
    fn sector(&self, log: &Path, at: usize, last: &[u8]) -> Vec<u8> {
        let head = &last[..last.len().min(usize::try_from(HEAD).unwrap())];
        let bytes = self.logs.get(log).map_or(head, Vec::as_slice);
        let mut sector: Vec<u8> = bytes.iter().skip(at).take(512).copied().collect();
        sector.resize(512, 0);
        sector
    }
}

/// Changes, small and large, with syncs and kills between them. What there was since the opening,
/// and from where on it is not synced.
fn live(dir: &Path, random: &mut Random) -> (Vec<Moment>, usize) {
    let mut dmt = open(dir, "boot").unwrap().0;
    // A table that is full records a wish as two changes.
    dmt.files().all().iter().for_each(|file| dmt.critical().drop_range(file.id, ALL));
    dmt.changes().persist().unwrap();
    let (mut moments, mut synced) = (vec![Moment::now(&dmt, dir)], 0);
    for number in 0..20 + random.below(200) {
        let mut syncs = false;
        match random.below(60) {
            0 => {
                dmt.barrier().unwrap();
                syncs = true;
            }
            1 => {
                drop(dmt);
                dmt = open(dir, "boot").unwrap().0;
                syncs = true;
            }
            2 => {
                let path = dmt.files().all()[0].path.clone();
                dmt.files().rename(&path, Path::new(&format!("{number}{:200}", "x"))).unwrap();
            }
            _ => step(&dmt, random, number),
        }
        moments.push(Moment::now(&dmt, dir));
        if syncs {
            synced = moments.len() - 1;
        }
    }
    (moments, synced)
}

/// Takes the power away: each sector of the log is of some time since the last sync. The lock file then
/// names another boot.
fn lose_power(dir: &Path, moments: &[Moment], synced: usize, random: &mut Random) {
    let last = moments.len() - 1;
    let times = 1 + random.below((last - synced) as u64 + 1);
    for (path, bytes) in &moments[last].logs {
        let Ok(log) = File::options().write(true).open(path) else { continue };
        for at in (0..bytes.len()).step_by(512) {
            let age = usize::try_from(random.below(times)).unwrap();
            let sector = moments[last - age].sector(path, at, bytes);
            log.write_all_at(&sector, at as u64).unwrap();
        }
    }
    let lock = dir.join(LOCK_FILE);
    let text = fs::read_to_string(&lock).unwrap();
    fs::write(&lock, text.replace(" boot boot ", " boot gone ")).unwrap();
}

/// Again and again. The state in the store names this boot, so nothing is dropped and prefixes can be
/// told apart.
#[test]
fn i4_any_sectors_of_the_log_behind_its_last_sync_are_a_prefix() {
    let dir = scratch();
    drop(begin(dir.path(), LOG_ONLY));
    let mut random = Random(5);
    let mut between = 0;
    for life in 0..30 {
        let (moments, synced) = live(dir.path(), &mut random);
        lose_power(dir.path(), &moments, synced, &mut random);
        let found = dump(&open(dir.path(), "boot").unwrap().0);
        let at = moments.iter().rposition(|moment| moment.dump == found);
        let at = at.unwrap_or_else(|| panic!("life {life}: no prefix has {found:?}"));
        assert!(at >= synced, "life {life}: {at} changes are there, {synced} were synced");
        between += usize::from(at > synced && at < moments.len() - 1);
    }
    assert!(between > 5, "only {between} losses took some changes and left some");
}
