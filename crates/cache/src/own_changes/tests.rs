//! A node whose lease ends while a request is under way.

use std::ffi::OsStr;
use std::fs;
use std::sync::Weak;
use std::sync::atomic::AtomicU32;

use tempfile::TempDir;

use super::*;
use crate::Decorations;
use crate::coherence::granting::Granting;
use crate::coherence::{FileTokens, LocalCache, SharedFile};
use crate::engine::ExtentEngine;
use halocline_api::config::Config;
use halocline_os::error::Error;
use halocline_vfs::{Caller, Engine, Maker};

const ME: Caller = Caller { uid: 0, gid: 0, pid: 1 };

/// Grants everything; the lease is over at some of the looks before a change of the origin, and back for each permit.
#[derive(Debug, Default)]
struct Lapsing(Arc<AtomicU32>);

impl Coherence for Lapsing {
    fn attach(&self, _: Weak<dyn LocalCache>) {}

    fn tokens(&self, _: SharedFile) -> Result<Arc<dyn FileTokens>> {
        Ok(Arc::new(Granting))
    }

    fn leave(&self) -> Result<()> {
        Ok(())
    }

    fn check_lease(&self) -> Result<()> {
        let lapsed =
            self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        let error = || Error::Cluster { what: "the lease is over".into(), remedy: "wait".into() };
        if lapsed.is_ok() { Err(error()) } else { Ok(()) }
    }
}

/// Regression: a request whose node's lease ended between its permit and its change of the origin failed at once, where
/// it should have waited for the lease like any other (D16).
#[test]
fn i12_a_request_whose_lease_ends_under_it_waits_for_the_next_one() {
    let sides = [(); 2].map(|()| TempDir::new().unwrap());
    let [origin, cache] = sides.each_ref().map(TempDir::path);
    let config = Config { policy: "never".to_owned(), rebuild: false, ..Config::default() };
    let lapses = Arc::<AtomicU32>::default();
    let coherence: Arc<dyn Coherence> = Arc::new(Lapsing(Arc::clone(&lapses)));
    let around = Decorations { coherence: Some(&coherence), ..Decorations::NONE };
    let engine = ExtentEngine::open_decorated(origin, cache, &config, around).unwrap();
    let (root, by) = (engine.root(), Maker { caller: ME, umask: 0 });
    let flags = libc::O_RDWR | libc::O_APPEND;
    let (_, _, appends) = engine.create((&root, OsStr::new("log")), 0o644, flags, by).unwrap();
    let (_, _, writes) =
        engine.create((&root, OsStr::new("file")), 0o644, libc::O_RDWR, by).unwrap();
    for count in 0..3_u32 {
        lapses.store(count, Ordering::SeqCst);
        engine.write(&appends, 0, b"line\n", ME).unwrap();
        assert_eq!(lapses.load(Ordering::SeqCst), 0, "the lease was over");
        lapses.store(count, Ordering::SeqCst);
        engine.write(&writes, u64::from(count) * 4, b"word", ME).unwrap();
    }
    assert_eq!(fs::read_to_string(origin.join("log")).unwrap(), "line\n".repeat(3));
    assert_eq!(fs::read_to_string(origin.join("file")).unwrap(), "word".repeat(3));
    // Without end it does not go on.
    lapses.store(u32::MAX, Ordering::SeqCst);
    let error = engine.write(&writes, 0, b"word", ME).unwrap_err();
    assert_eq!(error.errno(), libc::EIO, "{error}");
    lapses.store(0, Ordering::SeqCst);
}
