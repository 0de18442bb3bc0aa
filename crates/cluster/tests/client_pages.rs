//! Pages that the client of a network file system keeps of the origin's files (I11).

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use halocline_api::config::{CacheSize, Config};
use halocline_cache::coherence::{Coherence, FileTokens, Grant, LocalCache, SharedFile, Want};
use halocline_cache::{Decorations, ExtentEngine};
use halocline_os::client_pages;
use halocline_os::error::Result;
use halocline_testkit::fuse_device;
use halocline_testkit::skipping::skip;
use halocline_testkit::stalling_server::{Stalled, StallingServer};
use halocline_testkit::waiting::eventually;
use halocline_vfs::{Caller, Engine};

const ME: Caller = Caller { uid: 0, gid: 0, pid: 1 };

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
    fn begin(&self, _: Want) -> Result<Grant> {
        Ok(Grant { caches: self.caches, renewed: true, ticket: 0 })
    }

    fn begin_at_once(&self, want: Want) -> Option<Grant> {
        self.begin(want).ok()
    }

    fn try_begin(&self, _: Want) -> Option<Grant> {
        None
    }

    fn end(&self, _: Grant) {}
}

/// Regression: a page that was being read when another node wrote, and was still locked when this node dropped its
/// pages, stayed; this node's next read waited for it and had the old bytes.
#[test]
fn i11_a_page_that_is_being_read_while_others_write_is_not_read_afterwards() {
    if let Some(obstacle) = fuse_device::obstacle() {
        return skip(obstacle);
    }
    for caches in [false, true] {
        let [place, cache] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let (data, origin) = (place.path().join("data"), place.path().join("served"));
        fs::create_dir(&data).unwrap();
        fs::write(data.join("file"), [1; 8192]).unwrap();
        let server = StallingServer::mount_with_pages(&data, &origin);
        let coherence: Arc<dyn Coherence> = Arc::new(New { caches });
        let config = Config {
            size: CacheSize::Bytes(64 << 20),
            policy: "always".to_owned(),
            rebuild: false,
            ..Config::default()
        };
        let around = Decorations { coherence: Some(&coherence), ..Decorations::NONE };
        let engine = ExtentEngine::open_decorated(&origin, cache.path(), &config, around).unwrap();
        let (node, _) = engine.lookup(&engine.root(), OsStr::new("file")).unwrap();
        let handle = engine.open(&node, libc::O_RDWR, ME).unwrap();
        let beside = File::open(origin.join("file")).unwrap();
        if client_pages::are_gone(&beside, 0, 0).unwrap().is_none() {
            return skip("this kernel does not say which pages it has");
        }
        server.stall(Stalled::Read);
        let read = thread::scope(|scope| {
            let ahead =
                scope.spawn(|| -> io::Result<()> { beside.read_exact_at(&mut [0; 4096], 0) });
            eventually("the page is being read", || server.waiting() == 1);
            // Another node's, acknowledged before this node's read begins.
            fs::write(data.join("file"), [2; 8192]).unwrap();
            let read = scope.spawn(|| {
                let mut bytes = [0; 4096];
                engine.read(&handle, 0, &mut bytes, ME).unwrap();
                bytes
            });
            thread::sleep(Duration::from_millis(300));
            server.go_on();
            ahead.join().unwrap().unwrap();
            read.join().unwrap()
        });
        assert!(read == [2; 4096], "old bytes, with tokens that let it cache: {caches}");
        drop((handle, node, beside));
        engine.close().unwrap();
        drop(engine);
    }
}
