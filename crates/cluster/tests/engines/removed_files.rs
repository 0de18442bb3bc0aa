//! Files that lose their last name while several nodes use them (I11, I13).

use std::ffi::OsStr;
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak};

use halocline_api::control::Controlled;
use halocline_cache::ExtentEngine;
use halocline_cache::coherence::{Coherence, FileTokens, Grant, LocalCache, SharedFile, Want};
use halocline_cluster::store::Store;
use halocline_cluster::store::memory::MemoryStore;
use halocline_model::request::ByteRange;
use halocline_os::error::Result;
use halocline_vfs::Engine;
use rustix::fs::{CWD, RenameFlags};

use super::{Cluster, ME, Node, without_rebuild};

const NAME: &str = "file";

fn engine(origin: &Path, cache: &Path, coherence: &Arc<dyn Coherence>) -> ExtentEngine {
    super::engine(origin, cache, coherence, &without_rebuild())
}

fn open(engine: &ExtentEngine, name: &str) -> <ExtentEngine as Engine>::Handle {
    let (vnode, _) = engine.lookup(&engine.root(), OsStr::new(name)).unwrap();
    engine.open(&vnode, libc::O_RDWR, ME).unwrap()
}

fn read(engine: &ExtentEngine, handle: &<ExtentEngine as Engine>::Handle) -> Vec<u8> {
    let mut bytes = vec![0xee; 20_000];
    let count = engine.read(handle, 0, &mut bytes, ME).unwrap();
    bytes.truncate(count);
    bytes
}

/// Whether the origin says that a cache has newer bytes.
fn is_marked(origin: &Path) -> bool {
    let mut names = vec![0; 1 << 16];
    let length = rustix::fs::listxattr(origin, &mut names).unwrap();
    String::from_utf8_lossy(&names[..length]).contains("halocline.dirty")
}

/// Grants everything, and notes what the file has when a permit over all of it ends.
#[derive(Debug)]
struct Watching {
    path: PathBuf,
    at_end: Arc<Mutex<Vec<Option<Vec<u8>>>>>,
    /// Whether the origin said that a cache has newer bytes, each time that a session left.
    marked: Arc<Mutex<Vec<bool>>>,
}

impl Watching {
    fn again(&self) -> Self {
        let (at_end, marked) = (Arc::clone(&self.at_end), Arc::clone(&self.marked));
        Self { path: self.path.clone(), at_end, marked }
    }
}

impl Coherence for Watching {
    fn attach(&self, _: Weak<dyn LocalCache>) {}

    fn tokens(&self, _: SharedFile) -> Result<Arc<dyn FileTokens>> {
        Ok(Arc::new(self.again()))
    }

    fn leave(&self) -> Result<()> {
        self.marked.lock().unwrap().push(is_marked(self.path.parent().unwrap()));
        Ok(())
    }

    fn check_lease(&self) -> Result<()> {
        Ok(())
    }
}

impl FileTokens for Watching {
    fn begin(&self, want: Want) -> Result<Grant> {
        let is_whole = want.alone && want.range.start == 0;
        Ok(Grant {
            caches: true,
            renewed: false,
            fresh: ByteRange::new(0, 0),
            ticket: u64::from(is_whole),
        })
    }

    fn begin_at_once(&self, want: Want) -> Option<Grant> {
        self.begin(want).ok()
    }

    fn try_begin(&self, want: Want) -> Option<Grant> {
        self.begin(want).ok()
    }

    fn end(&self, grant: Grant) {
        if grant.ticket == 1 {
            self.at_end.lock().unwrap().push(fs::read(&self.path).ok());
        }
    }
}

/// Regression: the permit ended before the name was gone, so that another node could make the file dirty again in
/// between, and had dirty bytes of a file that nobody could find any more.
#[test]
fn i11_others_get_a_file_back_only_after_its_name_is_gone() {
    let [origin, cache] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    fs::write(origin.path().join(NAME), "old").unwrap();
    fs::write(origin.path().join("other"), "new").unwrap();
    let at_end = Arc::default();
    let (path, marked) = (origin.path().join(NAME), Arc::default());
    let watching = Watching { path, at_end: Arc::clone(&at_end), marked };
    let coherence: Arc<dyn Coherence> = Arc::new(watching);
    let engine = engine(origin.path(), cache.path(), &coherence);
    let root = engine.root();
    let (from, to) = (OsStr::new("other"), OsStr::new(NAME));
    engine.rename((&root, from), (&root, to), 0, ME).unwrap();
    assert_eq!(std::mem::take(&mut *at_end.lock().unwrap()), [Some(b"new".to_vec())]);
    engine.unlink(&root, to, ME).unwrap();
    assert_eq!(*at_end.lock().unwrap(), [None]);
}

/// Regression: the next node, which believes marks of caches that are not in the list, was refused while the cache of a node
/// that had left was closed.
#[test]
fn a_node_leaves_only_when_the_origin_is_no_longer_marked() {
    let [origin, cache] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    fs::write(origin.path().join(NAME), "old").unwrap();
    let (path, marked) = (origin.path().join(NAME), Arc::default());
    let watching = Watching { path, at_end: Arc::default(), marked: Arc::clone(&marked) };
    let coherence: Arc<dyn Coherence> = Arc::new(watching);
    let engine = engine(origin.path(), cache.path(), &coherence);
    let file = open(&engine, NAME);
    engine.write(&file, 0, b"new", ME).unwrap();
    assert!(is_marked(origin.path()));
    drop(file);
    Controlled::flush(&engine, None, false, &mut |_| ControlFlow::Continue(())).unwrap();
    engine.close().unwrap();
    assert_eq!(*marked.lock().unwrap(), [false]);
}

fn nodes(origin: &Path, registry: &Path) -> [Node; 2] {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(1));
    [0, 1].map(|number| Cluster::node(number, (origin, registry), &store, &without_rebuild()))
}

/// What programs have open without a name they can go on to read and write, on all nodes; none of it stays dirty on a
/// cache, where it would be found again after a kill as whatever has its inode by then, and none of it gets into the
/// file that has the name now.
#[test]
fn i11_removed_files_that_are_open_on_several_nodes_mix_with_no_others() {
    let [origin, registry] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    fs::write(origin.path().join(NAME), "").unwrap();
    let nodes = nodes(origin.path(), registry.path());
    let [one, other] = &nodes;
    let dirty = || nodes.each_ref().map(|node| node.engine.status().dirty_bytes);
    let [kept, also] = nodes.each_ref().map(|node| open(&node.engine, NAME));
    one.engine.write(&kept, 0, &[1; 10_000], ME).unwrap();
    assert_eq!(dirty(), [10_000, 0]);
    other.engine.unlink(&other.engine.root(), OsStr::new(NAME), ME).unwrap();
    assert_eq!(dirty(), [0, 0], "it was brought to the origin before the name went");
    fs::write(origin.path().join(NAME), "").unwrap();
    let [news, new] = nodes.each_ref().map(|node| open(&node.engine, NAME));
    for step in 2_u8..6 {
        let (node, old) = if step % 2 == 0 { (one, &kept) } else { (other, &also) };
        node.engine.write(old, 0, &[step; 10_000], ME).unwrap();
        node.engine.write(old, 10_000 + u64::from(step), &[step; 100], ME).unwrap();
        assert_eq!(dirty(), [0, 0], "step {step}");
        assert_eq!(read(&one.engine, &kept)[..10_000], [step; 10_000]);
        assert_eq!(read(&other.engine, &also), read(&one.engine, &kept));
        assert_eq!(read(&other.engine, &new), b"");
    }
    one.engine.write(&news, 0, b"of the new one", ME).unwrap();
    assert_eq!(read(&other.engine, &new), b"of the new one");
    drop((kept, also, news, new));
    for node in &nodes {
        assert_eq!(node.engine.status().notes, Vec::<String>::new());
        node.agent.leave().unwrap();
    }
    assert_eq!(fs::read(origin.path().join(NAME)).unwrap(), b"of the new one");
}

/// Who removes the name of what it has open itself keeps no dirty bytes of it either.
#[test]
fn i11_a_removed_file_that_is_open_goes_to_the_origin() {
    let [origin, registry] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    fs::write(origin.path().join(NAME), "").unwrap();
    let nodes = nodes(origin.path(), registry.path());
    let engine = &nodes[0].engine;
    let kept = open(engine, NAME);
    engine.write(&kept, 0, &[1; 10_000], ME).unwrap();
    engine.unlink(&engine.root(), OsStr::new(NAME), ME).unwrap();
    assert_eq!(engine.status().dirty_bytes, 0);
    engine.write(&kept, 5_000, &[2; 10_000], ME).unwrap();
    assert_eq!(engine.status().dirty_bytes, 0);
    assert_eq!(read(engine, &kept), [vec![1; 5_000], vec![2; 10_000]].concat());
    drop(kept);
    for node in &nodes {
        node.agent.leave().unwrap();
    }
}

/// Grants everything; while a node waits for a file, another one gives its name to `other` and back, so often.
#[derive(Debug)]
struct Swapping {
    origin: PathBuf,
    left: AtomicUsize,
    asked: Mutex<Vec<u64>>,
}

#[derive(Debug)]
struct SwappingFile(Arc<Swapping>, u64);

#[derive(Debug)]
struct SwappingNode(Arc<Swapping>);

impl Coherence for SwappingNode {
    fn attach(&self, _: Weak<dyn LocalCache>) {}

    fn tokens(&self, file: SharedFile) -> Result<Arc<dyn FileTokens>> {
        Ok(Arc::new(SwappingFile(Arc::clone(&self.0), file.inode)))
    }

    fn leave(&self) -> Result<()> {
        Ok(())
    }

    fn check_lease(&self) -> Result<()> {
        Ok(())
    }
}

impl FileTokens for SwappingFile {
    fn begin(&self, _: Want) -> Result<Grant> {
        let Swapping { origin, left, asked } = &*self.0;
        asked.lock().unwrap().push(self.1);
        if left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok() {
            let [name, other] = [NAME, "other"].map(|name| origin.join(name));
            let flags = RenameFlags::EXCHANGE;
            rustix::fs::renameat_with(CWD, name, CWD, other, flags).unwrap();
        }
        Ok(Grant { caches: true, renewed: false, fresh: ByteRange::new(0, 0), ticket: 0 })
    }

    fn begin_at_once(&self, want: Want) -> Option<Grant> {
        self.begin(want).ok()
    }

    fn try_begin(&self, _: Want) -> Option<Grant> {
        None
    }

    fn end(&self, _: Grant) {}
}

/// Regression: the permit was of the file that had the name before the wait; the one that lost it was taken from nobody.
#[test]
fn i11_a_file_that_gets_the_name_during_the_wait_is_taken_from_others_too() {
    for (swaps, removes) in [(0, true), (1, true), (2, true), (1000, false)] {
        let [origin, cache] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let [name, other, new] = [NAME, "other", "new"].map(|name| origin.path().join(name));
        for path in [&name, &other, &new] {
            fs::write(path, "").unwrap();
        }
        let (left, asked) = (AtomicUsize::new(swaps), Mutex::default());
        let swapping = Arc::new(Swapping { origin: origin.path().to_owned(), left, asked });
        let coherence: Arc<dyn Coherence> = Arc::new(SwappingNode(Arc::clone(&swapping)));
        let engine = engine(origin.path(), cache.path(), &coherence);
        let (root, target) = (engine.root(), OsStr::new(NAME));
        let removed = if swaps % 2 == 0 { &name } else { &other };
        let removed = fs::metadata(removed).unwrap().ino();
        let done = if swaps == 2 {
            engine.rename((&root, OsStr::new("new")), (&root, target), 0, ME)
        } else {
            engine.unlink(&root, target, ME)
        };
        let last = swapping.asked.lock().unwrap().last().copied();
        match done {
            Ok(()) => assert_eq!((last, removes), (Some(removed), true), "{swaps}"),
            Err(error) => assert_eq!((error.errno(), removes), (libc::EBUSY, false)),
        }
        assert_eq!(name.exists(), !removes || swaps == 2);
    }
}

/// Regression: what a node had dirty of a file whose last name it removed was dropped, although a program of another node had
/// the file open, and read zeros.
#[test]
fn i11_what_a_node_wrote_before_it_removed_a_file_is_there_for_who_has_it_open() {
    for replaces in [false, true] {
        let cluster = Cluster::with(2, &without_rebuild());
        let [one, other] = [0, 1].map(|number| &cluster.nodes[number]);
        let beside = other.open(libc::O_RDWR);
        let writer = one.open(libc::O_RDWR);
        one.engine.write(&writer, 0, &[7; 10_000], ME).unwrap();
        drop(writer);
        assert_eq!(one.engine.status().dirty_bytes, 10_000);
        let (root, name) = (one.engine.root(), OsStr::new(NAME));
        if replaces {
            fs::write(cluster.origin.path().join("new"), "new").unwrap();
            one.engine.rename((&root, OsStr::new("new")), (&root, name), 0, ME).unwrap();
        } else {
            one.engine.unlink(&root, name, ME).unwrap();
        }
        assert_eq!(one.engine.status().dirty_bytes, 0);
        assert!(read(&other.engine, &beside) == [7; 10_000], "replaced: {replaces}");
    }
}
