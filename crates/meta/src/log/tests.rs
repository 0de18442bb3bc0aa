//! Logs after kills, power losses and interrupted snapshots.

mod damage;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;

use super::files::{FRESH_LOG, LOG, SNAPSHOT};
use super::log_file::batch_at;
use super::*;
use crate::records::contract::{Records, scanned};

/// No snapshots except those that a test asks for.
const QUIET: Pace = Pace { segment_bytes: 4096, log_bytes: 1 << 30 };

fn open(dir: &Path, torn: bool) -> Result<Log> {
    if !dir.exists() {
        Log::create(dir).unwrap();
    }
    Log::open(PrivateDir::open(dir).unwrap(), torn, QUIET)
}

/// Changes at random, the same in every run.
struct Story {
    random: u64,
    now: Records,
}

impl Story {
    fn new(seed: u64) -> Self {
        Self { random: seed, now: Records::new() }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040);
        (self.random >> 33) % bound
    }

    /// Commits a batch; returns the records after it.
    fn step(&mut self, log: &Log) -> Records {
        let mut batch = Batch::default();
        for _ in 0..=self.below(4) {
            let key = self.below(30).to_be_bytes();
            if self.below(4) == 0 {
                batch.remove(&key);
                self.now.remove(&key[..]);
            } else {
                let len = usize::try_from(self.below(80)).unwrap();
                let value = vec![u8::try_from(self.below(256)).unwrap(); len];
                batch.put(&key, &value);
                self.now.insert(key.to_vec(), value);
            }
        }
        log.commit(&batch).unwrap();
        self.now.clone()
    }

    fn steps(&mut self, log: &Log, count: usize) -> Vec<Records> {
        (0..count).map(|_| self.step(log)).collect()
    }
}

/// The files of a directory. The background thread of a log may rename one while they are read.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    loop {
        let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
        let named = entries.map(|entry| (entry.file_name().into_string().unwrap(), entry.path()));
        let read: io::Result<_> =
            named.map(|(name, path)| fs::read(path).map(|bytes| (name, bytes))).collect();
        match read {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => return other.unwrap(),
        }
    }
}

/// A directory with these files.
fn put(dir: &Path, files: &BTreeMap<String, Vec<u8>>) {
    let _ = fs::remove_dir_all(dir);
    fs::create_dir(dir).unwrap();
    for (name, bytes) in files {
        fs::write(dir.join(name), bytes).unwrap();
    }
}

/// In memory where that exists: there are thousands of openings.
fn scratch() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let fast = Path::new("/dev/shm");
    let builder = tempfile::Builder::new();
    let dir = if fast.is_dir() { builder.tempdir_in(fast) } else { builder.tempdir() }.unwrap();
    let (live, image) = (dir.path().join("live"), dir.path().join("image"));
    (dir, live, image)
}

/// The files of the log, in order.
fn logs(files: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
    files.keys().filter(|name| name.starts_with(LOG)).cloned().collect()
}

fn generation(files: &BTreeMap<String, Vec<u8>>) -> u64 {
    let log = &files[&logs(files)[0]];
    u64::from_le_bytes(*log[16..].first_chunk().unwrap())
}

/// Where the batches of a file begin, and where the last ends.
fn places(bytes: &[u8], generation: u64) -> Vec<usize> {
    let mut places = vec![HEAD];
    while let Some(batch) = batch_at(bytes, *places.last().unwrap(), generation) {
        places.push(batch.end);
    }
    places
}

/// A log with a snapshot and several files since, the last of which is in use.
fn written(live: &Path) -> (BTreeMap<String, Vec<u8>>, Vec<Records>) {
    let log = open(live, false).unwrap();
    let mut story = Story::new(1);
    let mut states = vec![Records::new()];
    states.extend(story.steps(&log, 30));
    log.shared.rewrite().unwrap();
    states.extend(story.steps(&log, 90));
    assert_eq!(scanned(&log).unwrap(), *states.last().unwrap());
    let found = files(live);
    assert!(logs(&found).len() > 2, "several files: {:?}", found.keys());
    (found, states)
}

/// A file that a kill left before it got its name.
#[test]
fn i4_a_file_that_was_being_made_at_a_kill_is_no_damage() {
    let (_dir, live, image) = scratch();
    let (whole, states) = written(&live);
    let last = logs(&whole).pop().unwrap();
    for left in [Vec::new(), vec![0; 4096], whole[&last][..HEAD].to_vec(), vec![7; 100]] {
        let mut files = whole.clone();
        files.insert(FRESH_LOG.to_owned(), left);
        put(&image, &files);
        let log = open(&image, false).unwrap();
        assert_eq!(scanned(&log).unwrap(), *states.last().unwrap());
    }
}

/// Cut at every byte, with nothing or zeros after the cut: the result is a prefix that can be continued.
#[test]
fn i4_a_log_cut_at_every_byte_of_its_tail_is_a_prefix() {
    let (_dir, live, image) = scratch();
    let (whole, states) = written(&live);
    let last = logs(&whole)
        .into_iter()
        .rev()
        .find(|name| places(&whole[name], generation(&whole)).len() > 1);
    let last = last.unwrap();
    let end = *places(&whole[&last], generation(&whole)).last().unwrap();
    let mut reached = 0;
    for cut in HEAD..=end {
        for fill in [false, true] {
            let mut files = whole.clone();
            let bytes = files.get_mut(&last).unwrap();
            let len = bytes.len();
            bytes.truncate(cut);
            if fill {
                bytes.resize(len, 0);
            }
            // A file made ahead may be there or not.
            files.retain(|name, _| !name.starts_with(LOG) || *name <= last);
            put(&image, &files);
            let log = open(&image, false).unwrap();
            let found = scanned(&log).unwrap();
            let at = states[reached..].iter().position(|state| *state == found);
            reached += at.unwrap_or_else(|| panic!("cut at {cut}: no prefix"));
            let mut batch = Batch::default();
            batch.put(b"next", b"1");
            log.commit(&batch).unwrap();
            drop(log);
            let log = open(&image, false).unwrap();
            let mut expected = found;
            expected.insert(b"next".to_vec(), b"1".to_vec());
            assert_eq!(scanned(&log).unwrap(), expected, "cut at {cut}: gone on");
        }
    }
    assert_eq!(states[reached], *states.last().unwrap());
}

/// Repeatedly: after the last sync each sector of each file is either old or new, in any combination. The result is a
/// prefix with everything that was synced, and can be continued.
#[test]
fn i4_any_sectors_that_a_power_loss_leaves_are_a_prefix() {
    let (_dir, live, _) = scratch();
    let mut story = Story::new(5);
    let (mut between, mut lives) = (0, 0);
    let mut synced = Records::new();
    // Which sectors differ depends on when the background thread made its files: repeated until enough losses took some
    // and left some.
    while lives < 120 || between <= 10 && lives < 2_000 {
        lives += 1;
        let log = open(&live, true).unwrap();
        assert_eq!(scanned(&log).unwrap(), synced, "life {lives}");
        // A table syncs the log when it is opened.
        story.now = synced.clone();
        let mut states = vec![story.step(&log)];
        log.sync().unwrap();
        let mut durable = files(&live);
        for _ in 0..story.below(80) {
            states.push(story.step(&log));
            let syncs = story.below(30) == 0;
            if syncs {
                log.sync().unwrap();
            }
            // A snapshot is as good as a sync of its contents.
            let snaps = story.below(40) == 0;
            if snaps {
                log.shared.rewrite().unwrap();
            }
            if syncs || snaps {
                states.drain(..states.len() - 1);
                durable = files(&live);
            }
        }
        drop(log);
        lose_power(&live, &durable, &mut story);
        let log = open(&live, true).unwrap();
        let found = scanned(&log).unwrap();
        let at = states.iter().rposition(|state| *state == found);
        let at = at.unwrap_or_else(|| panic!("life {lives}: no prefix"));
        between += usize::from(at > 0 && at + 1 < states.len());
        synced = found;
    }
    assert!(between > 10, "only {between} losses took some and left some");
}

/// Puts old sectors in the place of new ones.
fn lose_power(live: &Path, durable: &BTreeMap<String, Vec<u8>>, story: &mut Story) {
    let most = 1 + story.below(4);
    for (name, now) in files(live) {
        let Some(old) = durable.get(&name) else { continue };
        let file = File::options().write(true).open(live.join(&name)).unwrap();
        let sectors = now.chunks(512).zip(old.chunks(512)).enumerate();
        for (sector, _) in sectors.clone().filter(|(_, (now, old))| now != old) {
            if story.below(most) > 0 {
                let at = sector * 512;
                let end = old.len().min(at + 512);
                file.write_all_at(&old[at..end], at as u64).unwrap();
            }
        }
    }
}

/// Every state on the way from one snapshot to the next, after a kill or a power loss at each step, has the same
/// records.
#[test]
fn i4_a_snapshot_interrupted_at_each_step_loses_nothing() {
    let (_dir, live, image) = scratch();
    let log = open(&live, false).unwrap();
    let mut story = Story::new(3);
    story.steps(&log, 60);
    log.shared.rewrite().unwrap();
    let now = story.steps(&log, 60).pop().unwrap();
    log.sync().unwrap();
    // The snapshot covers the file that is being written: there must be a next file to continue in.
    while log.shared.tail.lock().next.is_none() {
        log.shared.make_next_file();
        thread::yield_now();
    }
    let before = files(&live);
    log.shared.rewrite().unwrap();
    let after = files(&live);
    drop(log);
    let snapshot = after.keys().find(|name| name.starts_with(SNAPSHOT)).unwrap();
    let gone: Vec<_> = before.keys().filter(|name| !after.contains_key(*name)).collect();
    assert!(gone.len() > 2 && !before.contains_key(snapshot), "{gone:?}");

    let mut states = Vec::new();
    for written in 0..=after[snapshot].len() {
        let mut state = before.clone();
        state.insert(FRESH.to_owned(), after[snapshot][..written].to_vec());
        states.push(state);
    }
    // The snapshot has its name, and the files that it replaces are removed in any order.
    for removed in 0..1_u32 << gone.len() {
        let mut state = before.clone();
        state.insert(snapshot.clone(), after[snapshot].clone());
        state.retain(|name, _| {
            gone.iter().position(|gone| *gone == name).is_none_or(|at| removed >> at & 1 == 0)
        });
        states.push(state);
    }
    for (step, state) in states.iter().enumerate() {
        for torn in [false, true] {
            put(&image, state);
            let log = open(&image, torn).unwrap();
            assert_eq!(scanned(&log).unwrap(), now, "step {step}");
            log.shared.rewrite().unwrap();
            assert_eq!(scanned(&log).unwrap(), now, "step {step}: the next one");
        }
    }
}

/// If no snapshot can be written the log continues, and the next try succeeds.
#[test]
fn d11_a_snapshot_that_cannot_be_written_stops_nothing() {
    let (_dir, live, _) = scratch();
    let log = open(&live, false).unwrap();
    let mut story = Story::new(4);
    story.steps(&log, 50);
    fs::create_dir(live.join(FRESH)).unwrap();
    log.shared.rewrite().unwrap_err();
    let now = story.steps(&log, 50).pop().unwrap();
    assert_eq!(scanned(&log).unwrap(), now);
    fs::remove_dir(live.join(FRESH)).unwrap();
    log.shared.rewrite().unwrap();
    assert_eq!(scanned(&log).unwrap(), now);
    drop(log);
    assert_eq!(scanned(&open(&live, false).unwrap()).unwrap(), now);
}

/// A log that reads back something other than it wrote stops while memory still has the truth.
#[test]
fn d11_damage_that_a_snapshot_finds_makes_the_log_refuse_changes() {
    let (_dir, live, _) = scratch();
    let log = open(&live, false).unwrap();
    let mut story = Story::new(6);
    story.steps(&log, 50);
    let name = log_name(1);
    let file = File::options().read(true).write(true).open(live.join(name)).unwrap();
    file.write_all_at(&[0xff; 4], (HEAD + 30) as u64).unwrap();
    log.shared.tail.lock().retry_at_bytes = 0;
    let mut pace_is_reached = Batch::default();
    pace_is_reached.put(b"k", b"v");
    log.commit(&pace_is_reached).unwrap();
    assert!(matches!(log.shared.rewrite(), Err(Error::Store { .. })));
}

/// The bytes counted are never fewer than those on disk (I5).
#[test]
fn i5_what_a_log_takes_is_counted_before_it_is_there() {
    use std::os::unix::fs::MetadataExt;
    let (_dir, live, _) = scratch();
    Log::create(&live).unwrap();
    let pace = Pace { segment_bytes: 16 << 10, log_bytes: 64 << 10 };
    let log = Log::open(PrivateDir::open(&live).unwrap(), false, pace).unwrap();
    let mut story = Story::new(8);
    for number in 0..20_000 {
        story.step(&log);
        if number % 50 == 0 {
            let before = log.bytes();
            let entries = fs::read_dir(&live).unwrap().flatten();
            let found: u64 =
                entries.filter_map(|entry| Some(entry.metadata().ok()?.blocks() * 512)).sum();
            let counted = before.max(log.bytes());
            assert!(found <= counted, "{found} bytes are there, {counted} are counted");
            assert!(counted < 16 * (64 << 10), "{counted}: snapshots keep it small");
        }
    }
    assert!(log.shared.tail.lock().snapshot.number > 10, "snapshots were written");
}

/// The background thread ended while others waited for the file that it was making.
#[test]
fn i4_a_thread_that_panics_ends_the_log_and_keeps_nobody_waiting() {
    let (_dir, live, _) = scratch();
    let panicking = |shared: &Shared| {
        shared.tail.lock().making = Some(4096);
        panic!("on purpose");
    };
    Log::create(&live).unwrap();
    let log = Log::open_with(PrivateDir::open(&live).unwrap(), false, QUIET, panicking).unwrap();
    let mut all = Records::new();
    let refused = (0_u32..).find_map(|number| {
        let mut batch = Batch::default();
        batch.put(&number.to_be_bytes(), &[7; 64]);
        let committed = log.commit(&batch);
        if committed.is_ok() {
            all.insert(number.to_be_bytes().to_vec(), vec![7; 64]);
        }
        committed.err()
    });
    assert!(refused.unwrap().to_string().contains("panicked"));
    assert!(log.usable().is_err());
    drop(log);
    let log = open(&live, false).unwrap();
    assert_eq!(scanned(&log).unwrap(), all, "all that was taken, and nothing else");
}
