//! Many small files moved together.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::{fmt, fs};

use parking_lot::Mutex;

use halocline_api::control::{Controlled, Progress, RuleChange};
use halocline_os::error::Result;
use halocline_tier::{Chore, Handle, TierOptions, Watcher};
use halocline_vfs::Engine;

use crate::fixture::{CALLER, Fixture, limited};

/// Files of the tests.
const COUNT: usize = 40;

/// Room that a copy needs besides its data.
const COPY_SLACK: u64 = 16 << 10;

fn names() -> Vec<String> {
    (0..COUNT).map(|number| format!("file{number:02}")).collect()
}

/// A tier with some files on the SSD.
fn with_files(options: TierOptions) -> Fixture {
    let fixture = Fixture::quick(options);
    for name in names() {
        fixture.write(&name, name.as_bytes());
    }
    fixture
}

/// What is called before each step, in the thread that makes it.
type StepWatcher = dyn Fn(usize, &'static str) + Send + Sync;

/// Counts the steps of each kind, and has somebody look at each; batches keep their threads.
struct Counted {
    counts: Mutex<HashMap<&'static str, usize>>,
    seen: Box<StepWatcher>,
}

impl fmt::Debug for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.counts.fmt(f)
    }
}

impl Watcher for Counted {
    fn before(&self, tier: usize, what: &'static str) -> Result<()> {
        *self.counts.lock().entry(what).or_default() += 1;
        (self.seen)(tier, what);
        Ok(())
    }
}

impl Counted {
    fn of(&self, what: &str) -> usize {
        self.counts.lock().get(what).copied().unwrap_or(0)
    }
}

impl Fixture {
    /// Counts the steps from now on.
    fn count(&self, seen: impl Fn(usize, &'static str) + Send + Sync + 'static) -> Arc<Counted> {
        let counted = Arc::new(Counted { counts: Mutex::default(), seen: Box::new(seen) });
        self.watch(counted.clone());
        counted
    }
}

#[test]
fn i10_a_batch_moves_each_file_whole() {
    let fixture = with_files(limited(4 << 20));
    let handles: Vec<Handle> =
        names().iter().map(|name| fixture.open_file(name, libc::O_RDWR)).collect();
    for tier in [1, 0, 1] {
        let steps = fixture.count(|_, _| ());
        let report = if tier == 0 { fixture.warm("") } else { fixture.demote("") };
        assert_eq!((report.files, report.skipped.len()), (COUNT as u64, 0), "to {tier}");
        assert_eq!((steps.of("syncing copies"), steps.of("syncing a copy")), (1, 0), "{steps:?}");
        for name in names() {
            assert_eq!(fixture.where_is(&name), tier);
            assert_eq!(fixture.content(&name).unwrap(), name.as_bytes());
        }
        let steps = fixture.count(|_, _| ());
        for handle in &handles {
            fixture.tier().fsync(handle, true).unwrap();
        }
        assert_eq!(steps.of("syncing"), COUNT);
        assert_eq!(steps.of("syncing a cutover"), 0, "all is durable");
        fixture.check_places();
    }
}

/// A file that somebody else moves, that changes while it is copied, that has other names, that has grown
/// large or whose place is taken: none of them keeps the others.
#[test]
fn i10_a_file_that_a_batch_cannot_move_leaves_it_alone() {
    let fixture = with_files(limited(4 << 20));
    let root = fixture.tier().root();
    let linked = fixture.vnode("file00").unwrap();
    fixture.tier().link(&linked, &root, "twin".as_ref()).unwrap();
    let grows = fixture.open_file("file01", libc::O_WRONLY);
    // It goes first, and alone.
    fixture.write("_large", &vec![1; 1 << 20]);
    fs::write(fixture.hdd("file02"), "somebody's").unwrap();
    let busy = fixture.open_file("file04", libc::O_WRONLY);
    let ((begins, begun), (ends, end)) = (mpsc::channel(), mpsc::channel());
    let (end, own, copied) = (Mutex::new(end), thread::current().id(), AtomicBool::new(false));
    let moved = Arc::new(Mutex::new(Vec::new()));
    let (ssd, seen) = (fixture.ssd(""), Arc::clone(&moved));
    // Whoever else moves a file is held at its first step until the batch has made its last.
    let steps = fixture.count(move |_, what| {
        let is_other = thread::current().name() == Some("other");
        if is_other && what == "creating a copy" {
            begins.send(()).unwrap();
            end.lock().recv().unwrap();
        }
        if thread::current().id() != own {
            return;
        }
        if what == "syncing copies" {
            copied.store(true, Ordering::Release);
        }
        let mut seen = seen.lock();
        if copied.load(Ordering::Acquire) && what == "syncing a cutover" && seen.is_empty() {
            let is_away = |name: &String| ssd.join(name).is_symlink();
            seen.extend(names().iter().map(is_away));
            ends.send(()).unwrap();
        }
    });
    let report = thread::scope(|scope| {
        let fixture = &fixture;
        let other = thread::Builder::new().name("other".into());
        let other = other.spawn_scoped(scope, || fixture.demote("file03").files).unwrap();
        begun.recv().unwrap();
        let (mut grew, mut wrote) = (false, false);
        let sink = &mut |now: Progress| {
            if now.path == Path::new("_large") && !grew {
                fixture.tier().write(&grows, 0, &vec![1; 2 << 20], CALLER).unwrap();
                grew = true;
            }
            if now.path == Path::new("file04") && !wrote {
                fixture.tier().write(&busy, 0, b"FILE", CALLER).unwrap();
                wrote = true;
            }
            ControlFlow::Continue(())
        };
        let report = fixture.tier().evict(Path::new(""), false, sink).unwrap();
        assert_eq!((other.join().unwrap(), grew, wrote), (1, true, true));
        report
    });
    fixture.unwatch();
    let moved = moved.lock();
    assert_eq!(moved[..5], [false; 5], "{steps:?}");
    assert_eq!(moved[5..], [true; COUNT - 5], "{steps:?}");
    // Those are moved all the same, one by one.
    assert_eq!(
        (report.files, report.already_files, report.skipped.len()),
        (40, 1, 0),
        "{report:?}"
    );
    assert_eq!(fixture.content("file04").unwrap(), b"FILE04");
    assert_eq!(fs::read(fixture.hdd("file02")).unwrap(), b"somebody's");
    fs::remove_file(fixture.hdd("file02")).unwrap();
    fixture.check_places();
}

/// The program that is told of each file ends a command within its batch.
#[test]
fn a_batch_tells_of_each_file_and_is_stopped() {
    let fixture = with_files(limited(4 << 20));
    let told = AtomicUsize::new(0);
    let report = fixture.tier().evict(Path::new(""), false, &mut |now| {
        told.fetch_add(1, Ordering::Relaxed);
        assert_eq!(now.total_bytes, 6 * COUNT as u64);
        ControlFlow::Continue(())
    });
    assert_eq!((report.unwrap().files, told.into_inner()), (COUNT as u64, COUNT));
    let stop = &mut |_| ControlFlow::Break(());
    let report = fixture.tier().warm(&[PathBuf::new()], false, stop).unwrap();
    assert!(report.files < COUNT as u64 && report.skipped.is_empty(), "{report:?}");
    fixture.check_places();
}

/// Bytes that files below a directory have on disk.
fn blocks_below(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let bytes = |path: PathBuf| match path.symlink_metadata() {
        Ok(meta) if meta.is_dir() => blocks_below(&path),
        Ok(meta) if meta.is_file() => meta.blocks() * 512,
        // It may be gone by now.
        _ => 0,
    };
    entries.map(bytes).sum()
}

/// I5: room on the SSD is reserved for each file of a batch, whatever was free when it began.
#[test]
fn i5_a_batch_brings_no_more_than_fits() {
    let mut fixture = with_files(limited(4 << 20));
    assert_eq!(fixture.demote("").files, COUNT as u64);
    let limit = COUNT as u64 * (4096 + COPY_SLACK) + (64 << 10);
    fixture.options = TierOptions { high: 100.0, ..limited(limit) };
    fixture.open();
    let fixture = Arc::new(fixture);
    fixture.tier().change_rules(&RuleChange::Pin("greedy".into())).unwrap();
    let greedy = fixture.create("greedy");
    let (watched, taken) = (Arc::downgrade(&fixture), Mutex::new(false));
    // Somebody takes the room when the first copy of the batch is made. The other threads that copy wait for that: if
    // they took the room first, the greedy file would go on on the disk, and leave room for all.
    let steps = fixture.count(move |tier, what| {
        let Some(fixture) = watched.upgrade() else { return };
        if (tier, what) == (0, "creating a copy") {
            let mut taken = taken.lock();
            let left = if *taken { 0 } else { (limit - (160 << 10)) >> 16 };
            for at in 0..left {
                fixture.tier().write(&greedy, at << 16, &vec![1; 64 << 10], CALLER).unwrap();
            }
            *taken = true;
        }
        let used = blocks_below(&fixture.ssd(""));
        assert!(used <= limit, "{used} bytes before {what}");
    });
    let report = fixture.warm("");
    fixture.unwatch();
    let moved = report.files;
    assert!(moved > 0 && moved < COUNT as u64, "{report:?}");
    assert_eq!(steps.of("syncing copies"), 1, "{steps:?}");
    assert!(fixture.used() <= limit);
    assert_eq!(fixture.where_is("greedy"), 0);
    fixture.check_places();
}

/// The background has room made in batches, too, and writes that are synchronous are durable with
/// the move that went before.
#[test]
fn i4_a_synchronous_write_makes_its_files_batched_move_durable() {
    let watermarks = TierOptions { high: 0.0, low: 0.0, ..limited(4 << 20) };
    let fixture = Arc::new(with_files(watermarks));
    let handle = fixture.open_file("file30", libc::O_WRONLY | libc::O_DSYNC);
    let (watched, copied) = (Arc::downgrade(&fixture), AtomicBool::new(false));
    let cutovers: Arc<Mutex<Vec<Option<String>>>> = Arc::default();
    let seen = Arc::clone(&cutovers);
    // Between the cutover and the end of the batch somebody writes.
    let steps = fixture.count(move |_, what| {
        if what == "syncing copies" {
            copied.store(true, Ordering::Release);
        }
        // The first few go alone.
        if what != "syncing a cutover" || !copied.load(Ordering::Acquire) {
            return;
        }
        seen.lock().push(thread::current().name().map(str::to_owned));
        let Some(fixture) = watched.upgrade().filter(|_| seen.lock().len() == 1) else { return };
        let write = || fixture.tier().write(&handle, 0, b"FILE", CALLER).unwrap();
        thread::scope(|scope| {
            let writer = thread::Builder::new().name("writer".into());
            writer.spawn_scoped(scope, write).unwrap().join().unwrap();
        });
    });
    assert!(fixture.work(Chore::Demote));
    fixture.unwatch();
    assert_eq!((steps.of("syncing copies"), steps.of("writing")), (1, 1), "{steps:?}");
    let cutovers = cutovers.lock();
    let by_writer = cutovers.iter().filter(|by| by.as_deref() == Some("writer")).count();
    assert_eq!((cutovers.len(), by_writer), (2, 1), "the move is durable with the write");
    assert_eq!(fixture.where_is("file30"), 1);
    assert_eq!(fixture.content("file30").unwrap(), b"FILE30");
    fixture.check_places();
}
