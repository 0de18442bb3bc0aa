//! Files that are not where the records say, with dirty bytes that no descriptor leads to: as after a mount that found
//! more dirty files than may be open for flushing.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use tempfile::TempDir;

use super::*;
use crate::Decorations;
use crate::coherence::Coherence;
use crate::coherence::granting::Granting;
use crate::engine::ExtentEngine;
use crate::extent::file::tail;
use halocline_api::config::Config;
use halocline_api::control::Controlled;
use halocline_storage::device::Device;
use halocline_storage::device::fault::{Effect, Faults, FaultyDevice, Operation, When};
use halocline_testkit::waiting::eventually;
use halocline_vfs::{Caller, Engine, Maker};

const ME: Caller = Caller { uid: 0, gid: 0, pid: 1 };
const NAME: &str = "file";

/// A node with 4 KiB of dirty bytes of a file in one of two directories, which it must look up by name.
struct Node {
    engine: ExtentEngine,
    id: FileId,
    file: SharedFile,
    sides: [TempDir; 2],
}

impl Node {
    fn new() -> Self {
        Self::over(&Arc::default())
    }

    /// The same over an origin with these faults.
    fn over(faults: &Arc<Faults>) -> Self {
        let sides = [(); 2].map(|()| TempDir::new().unwrap());
        for dir in ["a", "b"] {
            fs::create_dir(sides[0].path().join(dir)).unwrap();
        }
        let config = Config { policy: "always".to_owned(), rebuild: false, ..Config::default() };
        let coherence: Arc<dyn Coherence> = Arc::new(Granting);
        let with_faults = |_: usize, device| -> Arc<dyn Device> {
            Arc::new(FaultyDevice::new(device, Arc::clone(faults)))
        };
        let around = Decorations {
            origin: &with_faults,
            data_bytes: Some(1 << 20),
            coherence: Some(&coherence),
            ..Decorations::NONE
        };
        let [origin, cache] = sides.each_ref().map(TempDir::path);
        let engine = ExtentEngine::open_decorated(origin, cache, &config, around).unwrap();
        let (root, by) = (engine.root(), Maker { caller: ME, umask: 0 });
        let made = engine.create((&root, OsStr::new(NAME)), 0o644, libc::O_RDWR, by);
        let (vnode, _, handle) = made.unwrap();
        engine.write(&handle, 0, &[7; 4096], ME).unwrap();
        let file = Arc::clone(&handle.file);
        drop((vnode, handle));
        *file.flush_handle.lock() = None;
        file.let_mtime_go(None);
        engine.components.known.forget_idle(&file);
        let id = file.id().unwrap();
        assert!(engine.base.files.by_id(id).is_none());
        let file = crate::permits::shared(&file);
        Self { engine, id, file, sides }
    }

    fn path(&self, below: &str) -> std::path::PathBuf {
        self.sides[0].path().join(below)
    }

    fn give_up(&self) -> Result<()> {
        self.engine.components.revocation.give_up(self.file, WHOLE, false)
    }

    fn dirty(&self) -> u64 {
        self.engine.status().dirty_bytes
    }
}

#[test]
fn i11_dirty_bytes_of_a_renamed_file_that_is_not_open_are_searched_for() {
    let node = Node::new();
    fs::rename(node.path(NAME), node.path("b/other")).unwrap();
    node.give_up().unwrap();
    assert_eq!(node.dirty(), 0);
    assert_eq!(fs::read(node.path("b/other")).unwrap(), [7; 4096]);
    assert!(node.engine.base.store.dmt.index().extents(node.id).is_empty());
}

/// The file may be moving from one directory to another, or be where nobody can look.
#[test]
fn i11_dirty_bytes_that_cannot_be_flushed_are_not_given_up() {
    let node = Node::new();
    let elsewhere = TempDir::new_in(node.sides[0].path().parent().unwrap()).unwrap();
    let kept = elsewhere.path().join("kept");
    fs::rename(node.path(NAME), &kept).unwrap();
    // Names change so often that the file is never judged gone.
    let changes = AtomicU32::new(0);
    let all = [node.id];
    let look = || {
        let number = changes.fetch_add(1, Ordering::Relaxed);
        fs::write(node.path(&format!("new-{number}")), "").unwrap();
        true
    };
    let obstacle = node.engine.components.recoverer.search_missing(&all, &look).unwrap();
    assert!(obstacle.unwrap().to_string().contains("change all the time"));
    assert_eq!(node.dirty(), 4096);
    fs::rename(&kept, node.path("a/back")).unwrap();
    node.give_up().unwrap();
    assert_eq!(fs::read(node.path("a/back")).unwrap(), [7; 4096]);
}

/// Regression: a file was judged gone that another node moved, during a search, to a directory already searched.
#[test]
fn i11_a_file_that_others_move_during_a_search_is_not_judged_gone() {
    let node = Node::new();
    // The walk goes into the last directory that it found first.
    let names: Vec<_> = fs::read_dir(node.sides[0].path()).unwrap().collect();
    let dirs = names.into_iter().map(|entry| entry.unwrap().path());
    let dirs: Vec<_> = dirs.filter(|path| path.is_dir()).collect();
    let [last, first] = &dirs[..] else { panic!("two directories: {dirs:?}") };
    let inode = fs::metadata(node.path(NAME)).unwrap().ino();
    let at = |dir: &Path| dir.join("moved");
    fs::rename(node.path(NAME), at(last)).unwrap();
    // Asked before each directory and each entry: the root and its two directories, then the first, then the last.
    let looks = AtomicU32::new(0);
    let look = || {
        if looks.fetch_add(1, Ordering::Relaxed) == 4 {
            fs::rename(at(last), at(first)).unwrap();
        }
        true
    };
    let searched = node.engine.components.recoverer.search_missing(&[node.id], &look);
    assert!(searched.unwrap().is_none());
    assert!(looks.into_inner() > 5, "one walk did not find it");
    assert_eq!((node.dirty(), node.engine.status().report.conflicts), (4096, 0));
    node.give_up().unwrap();
    assert_eq!(fs::metadata(at(first)).unwrap().ino(), inode);
    assert_eq!(fs::read(at(first)).unwrap(), [7; 4096]);
}

/// A file that no directory has while no names change is gone: its bytes are saved, and others continue.
#[test]
fn i9_dirty_bytes_of_a_file_that_is_gone_are_saved() {
    let node = Node::new();
    fs::remove_file(node.path(NAME)).unwrap();
    node.give_up().unwrap();
    assert_eq!((node.dirty(), node.engine.status().report.conflicts), (0, 1));
}

/// Regression: each file that was given up kept a descriptor, until the node could open no more.
#[test]
fn a_closed_file_that_is_given_up_is_forgotten() {
    let node = Node::new();
    for _ in 0..2 {
        node.engine.components.revocation.give_up(node.file, WHOLE, true).unwrap();
    }
    assert_eq!(node.dirty(), 0);
    assert!(node.engine.base.files.by_id(node.id).is_none());
}

/// Regression: the range to be given up was part of an extent to whose other bytes a program wrote all the time. An
/// extent becomes clean as a whole or not at all, so each time it was dirty again before the origin was synced, and the
/// other node's program got an error after two minutes.
#[test]
fn what_programs_write_beside_it_does_not_keep_a_range_from_being_given_up() {
    let faults = Arc::<Faults>::default();
    let node = Node::over(&faults);
    let (inode, _) = node.engine.lookup(&node.engine.root(), OsStr::new(NAME)).unwrap();
    let handle = node.engine.open(&inode, libc::O_RDWR, ME).unwrap();
    let sync = (Some(Operation::Sync), Effect::Stall, When::Always);
    faults.set(sync.0, sync.1, sync.2);
    thread::scope(|scope| {
        let giving =
            scope.spawn(|| node.engine.components.revocation.give_up(node.file, tail(2048), false));
        loop {
            eventually("a sync, or the end", || faults.stalled() > 0 || giving.is_finished());
            if giving.is_finished() {
                break;
            }
            node.engine.write(&handle, 0, &[8; 100], ME).unwrap();
            faults.clear_to(sync.0, sync.1, sync.2);
        }
        giving.join().unwrap().unwrap();
    });
    assert_eq!(node.dirty(), 2048, "what is beside it stays");
    faults.clear();
}
