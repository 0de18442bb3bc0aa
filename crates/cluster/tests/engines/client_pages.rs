//! Pages that the client of a network file system keeps of the origin's files (I11).

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use halocline_cache::ExtentEngine;
use halocline_cache::coherence::{Coherence, FileTokens, Grant, LocalCache, SharedFile, Want};
use halocline_model::request::ByteRange;
use halocline_os::client_pages;
use halocline_os::error::Result;
use halocline_testkit::fuse_device;
use halocline_testkit::skipping::skip;
use halocline_testkit::stalling_server::{Stalled, StallingServer};
use halocline_testkit::waiting::eventually;
use halocline_vfs::namespace::Vnode;
use halocline_vfs::{Engine, SetAttr, SetTime};

use super::{ME, without_rebuild};

/// Tokens that are always new, and let bytes be cached or not.
#[derive(Debug, Clone, Copy)]
struct New {
    caches: bool,
}

impl Coherence for New {
    fn attach(&self, _: Weak<dyn LocalCache>) {}

    fn tokens(&self, _: SharedFile) -> Result<Arc<dyn FileTokens>> {
        Ok(Arc::new(*self))
    }

    fn leave(&self) -> Result<()> {
        Ok(())
    }

    fn check_lease(&self) -> Result<()> {
        Ok(())
    }
}

impl FileTokens for New {
    fn begin(&self, want: Want) -> Result<Grant> {
        Ok(Grant {
            caches: self.caches,
            renewed: true,
            fresh: if self.caches { want.range } else { ByteRange::new(0, 0) },
            ticket: 0,
        })
    }

    fn begin_at_once(&self, want: Want) -> Option<Grant> {
        self.begin(want).ok()
    }

    fn try_begin(&self, _: Want) -> Option<Grant> {
        None
    }

    fn end(&self, _: Grant) {}
}

fn engine(origin: &Path, cache: &Path, tokens: New) -> ExtentEngine {
    let coherence: Arc<dyn Coherence> = Arc::new(tokens);
    super::engine(origin, cache, &coherence, &without_rebuild())
}

/// Regression: a page that was being read when another node wrote, and was still locked when this node dropped its
/// pages, stayed; this node's next read waited for it and had the old bytes. Of a file system mounted below the origin
/// no pages were dropped at all, because the origin's root decided that for all files.
#[test]
fn i11_a_page_that_is_being_read_while_others_write_is_not_read_afterwards() {
    if let Some(obstacle) = fuse_device::obstacle() {
        return skip(obstacle);
    }
    for (caches, is_root) in [(false, true), (true, true), (false, false), (true, false)] {
        let [place, cache] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let (data, served) = (place.path().join("data"), place.path().join("served"));
        let origin = if is_root { served.as_path() } else { place.path() };
        fs::create_dir(&data).unwrap();
        fs::write(data.join("file"), [1; 8192]).unwrap();
        let stalling = StallingServer::mount_with_pages(&data, &served);
        let engine = engine(origin, cache.path(), New { caches });
        let find = |parent: &Vnode, name: &str| engine.lookup(parent, OsStr::new(name)).unwrap().0;
        let root = if is_root { engine.root() } else { find(&engine.root(), "served") };
        let vnode = find(&root, "file");
        let handle = engine.open(&vnode, libc::O_RDWR, ME).unwrap();
        let beside = File::open(served.join("file")).unwrap();
        if client_pages::are_gone(&beside, 0, 0).unwrap().is_none() {
            return skip("this kernel does not say which pages it has");
        }
        stalling.stall(Stalled::Read);
        let read = thread::scope(|scope| {
            let ahead =
                scope.spawn(|| -> io::Result<()> { beside.read_exact_at(&mut [0; 4096], 0) });
            eventually("the page is being read", || stalling.waiting() == 1);
            // Another node's, acknowledged before this node's read begins.
            fs::write(data.join("file"), [2; 8192]).unwrap();
            let read = scope.spawn(|| {
                let mut bytes = [0; 4096];
                engine.read(&handle, 0, &mut bytes, ME).unwrap();
                bytes
            });
            thread::sleep(Duration::from_millis(300));
            stalling.go_on();
            ahead.join().unwrap().unwrap();
            read.join().unwrap()
        });
        assert!(read == [2; 4096], "old bytes: cached {caches}, at the root {is_root}");
        drop((handle, vnode, root, beside));
        engine.close().unwrap();
        drop(engine);
    }
}

/// A write past the end has two permits, each of which may have to wait for pages: not for those of its own thread.
#[test]
fn a_write_past_the_end_waits_for_pages_that_are_being_read() {
    if let Some(obstacle) = fuse_device::obstacle() {
        return skip(obstacle);
    }
    let [place, cache] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let (data, origin) = (place.path().join("data"), place.path().join("origin"));
    fs::create_dir(&data).unwrap();
    fs::write(data.join("file"), [1; 8192]).unwrap();
    let stalling = StallingServer::mount_with_pages(&data, &origin);
    let engine = Arc::new(engine(&origin, cache.path(), New { caches: false }));
    let (vnode, _) = engine.lookup(&engine.root(), OsStr::new("file")).unwrap();
    let handle = engine.open(&vnode, libc::O_RDWR, ME).unwrap();
    let beside = File::open(origin.join("file")).unwrap();
    stalling.stall(Stalled::Read);
    let ahead = thread::spawn(move || beside.read_at(&mut [0; 8192], 0));
    eventually("the pages are being read", || stalling.waiting() == 1);
    // Another node makes it shorter.
    fs::write(data.join("file"), [2; 2048]).unwrap();
    let (done, is_done) = std::sync::mpsc::channel();
    let writing = Arc::clone(&engine);
    let write = thread::spawn(move || {
        writing.write(&handle, 4096, &[3; 100], ME).unwrap();
        drop(handle);
        done.send(()).unwrap();
    });
    thread::sleep(Duration::from_millis(100));
    stalling.go_on();
    is_done.recv_timeout(Duration::from_mins(3)).expect("the write ends");
    write.join().unwrap();
    ahead.join().unwrap().unwrap();
    let found = fs::read(data.join("file")).unwrap();
    assert!(found == [vec![2; 2048], vec![0; 2048], vec![3; 100]].concat());
    drop(vnode);
    engine.close().unwrap();
}

/// Length of a file of many pages.
const LEN: u64 = 1 << 20;

/// Regression: whoever lost some bytes to another node read the whole file anew from the server.
#[test]
fn i11_pages_of_bytes_that_others_may_have_changed_are_dropped_and_no_others() {
    if let Some(obstacle) = fuse_device::obstacle() {
        return skip(obstacle);
    }
    let [place, cache] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let (data, origin) = (place.path().join("data"), place.path().join("origin"));
    fs::create_dir(&data).unwrap();
    let len = usize::try_from(LEN).unwrap();
    fs::write(data.join("file"), vec![1; len]).unwrap();
    let _server = StallingServer::mount_with_pages(&data, &origin);
    let engine = engine(&origin, cache.path(), New { caches: true });
    let (vnode, _) = engine.lookup(&engine.root(), OsStr::new("file")).unwrap();
    let handle = engine.open(&vnode, libc::O_RDWR, ME).unwrap();
    let beside = File::open(origin.join("file")).unwrap();
    // One page at a time, which the kernel does not keep together with others.
    rustix::fs::fadvise(&beside, 0, None, rustix::fs::Advice::Random).unwrap();
    for start in (0..LEN).step_by(4096) {
        beside.read_exact_at(&mut [0; 4096], start).unwrap();
    }
    let gone = |start| client_pages::are_gone(&beside, start, 4096).unwrap();
    if gone(0).is_none() {
        return skip("this kernel does not say which pages it has");
    }
    let far = [0, LEN / 4, LEN - 4096];
    assert_eq!(far.map(gone), [Some(false); 3]);
    // Another node's; the last page is wanted in part.
    let changed = File::options().write(true).open(data.join("file")).unwrap();
    changed.write_all_at(&[2; 10_000], LEN / 2).unwrap();
    let mut bytes = vec![0; 10_000];
    engine.read(&handle, LEN / 2, &mut bytes, ME).unwrap();
    assert!(bytes == [2; 10_000], "old bytes");
    assert_eq!(far.map(gone), [Some(false); 3], "nobody changed those");
    drop((handle, vnode));
    engine.close().unwrap();
}

/// A token of the whole file that is new until somebody has looked.
#[derive(Debug, Default, Clone)]
struct Held(Arc<AtomicBool>);

impl Held {
    /// Another node had the bytes meanwhile.
    fn renew(&self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

impl Coherence for Held {
    fn attach(&self, _: Weak<dyn LocalCache>) {}

    fn tokens(&self, _: SharedFile) -> Result<Arc<dyn FileTokens>> {
        Ok(Arc::new(self.clone()))
    }

    fn leave(&self) -> Result<()> {
        Ok(())
    }

    fn check_lease(&self) -> Result<()> {
        Ok(())
    }
}

impl FileTokens for Held {
    fn begin(&self, want: Want) -> Result<Grant> {
        let renewed = !self.0.load(Ordering::SeqCst);
        let fresh = if renewed { ByteRange::new(0, u64::MAX) } else { ByteRange::new(0, 0) };
        Ok(Grant { caches: true, renewed, fresh, ticket: want.range.start })
    }

    fn begin_at_once(&self, want: Want) -> Option<Grant> {
        self.begin(want).ok()
    }

    fn try_begin(&self, want: Want) -> Option<Grant> {
        self.begin(want).ok()
    }

    fn end(&self, grant: Grant) {
        if grant.renewed {
            self.0.store(true, Ordering::SeqCst);
        }
    }
}

/// Regression: of a file that this node's user may not open, the kernel was believed to have no pages. But programs that
/// had it open before `chmod 0` read them, and so did all once it was readable again.
#[test]
fn i11_pages_of_a_file_that_cannot_be_opened_any_more_are_dropped_or_not_believed() {
    if let Some(obstacle) = fuse_device::obstacle() {
        return skip(obstacle);
    }
    for is_open in [true, false] {
        let [place, cache] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let (data, origin) = (place.path().join("data"), place.path().join("origin"));
        fs::create_dir(&data).unwrap();
        fs::write(data.join("file"), [1; 8192]).unwrap();
        let server = StallingServer::mount_with_pages(&data, &origin);
        let tokens = Held::default();
        let coherence: Arc<dyn Coherence> = Arc::new(tokens.clone());
        let engine = super::engine(&origin, cache.path(), &coherence, &without_rebuild());
        let (vnode, _) = engine.lookup(&engine.root(), OsStr::new("file")).unwrap();
        let open = || engine.open(&vnode, libc::O_RDONLY, ME).unwrap();
        let read = |handle: &_| {
            let mut bytes = [0; 4096];
            engine.read(handle, 0, &mut bytes, ME).unwrap();
            bytes
        };
        let before = open();
        assert_eq!(read(&before), [1; 4096]);
        let before = is_open.then_some(before);
        // Pages of it, whatever the engine has.
        let beside = File::open(origin.join("file")).unwrap();
        beside.read_exact_at(&mut [0; 8192], 0).unwrap();
        drop(beside);
        // Another node's.
        server.refuse_to_open(true);
        tokens.renew();
        fs::write(data.join("file"), [2; 8192]).unwrap();
        if let Some(before) = &before {
            assert!(read(before) == [2; 4096], "old bytes by a file that is open");
        }
        // Takes a permit, and does not read; the server knows no times.
        let times = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
        tokens.renew();
        fs::write(data.join("file"), [3; 8192]).unwrap();
        assert_eq!(engine.set_attr(&vnode, None, &times, ME).unwrap_err().errno(), libc::ENOSYS);
        server.refuse_to_open(false);
        let after = open();
        assert!(read(&after) == [3; 4096], "old bytes, where it was open: {is_open}");
        drop((before, after, vnode));
        engine.close().unwrap();
    }
}
