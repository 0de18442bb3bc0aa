//! What an engine does under tokens that are new, or that end while a request waits (I11, I12).

use std::ffi::OsStr;
use std::fs;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use halocline_api::control::Controlled;
use halocline_cache::ExtentEngine;
use halocline_cache::coherence::{Coherence, FileTokens, Grant, LocalCache, SharedFile, Want};
use halocline_model::request::ByteRange;
use halocline_os::error::{Error, Result};
use halocline_vfs::Engine;

use super::{ME, engine, without_rebuild};

const WHOLE: ByteRange = ByteRange::new(0, u64::MAX);

/// Grants everything, as it is told to.
#[derive(Debug, Default)]
struct Tokens {
    /// Bytes must not be cached.
    direct: AtomicBool,
    /// The next permit is the first under a new token for the whole file.
    new: AtomicBool,
    /// The lease ends as soon as the next permit was given.
    ends: AtomicBool,
    over: AtomicBool,
}

#[derive(Debug)]
struct Node(Arc<Tokens>);

impl Coherence for Node {
    fn attach(&self, _: Weak<dyn LocalCache>) {}

    fn tokens(&self, _: SharedFile) -> Result<Arc<dyn FileTokens>> {
        Ok(Arc::new(Self(Arc::clone(&self.0))))
    }

    fn leave(&self) -> Result<()> {
        Ok(())
    }

    fn check_lease(&self) -> Result<()> {
        if self.0.over.load(Ordering::SeqCst) {
            return Err(Error::invalid("the lease is over", ""));
        }
        Ok(())
    }
}

impl FileTokens for Node {
    fn begin(&self, _: Want) -> Result<Grant> {
        let Tokens { direct, new, ends, over } = &*self.0;
        let new = new.swap(false, Ordering::SeqCst);
        if ends.swap(false, Ordering::SeqCst) {
            over.store(true, Ordering::SeqCst);
        }
        let fresh = if new { WHOLE } else { ByteRange::new(0, 0) };
        let direct = direct.load(Ordering::SeqCst);
        Ok(Grant { caches: !direct, renewed: new || direct, fresh, ticket: 0 })
    }

    fn begin_at_once(&self, want: Want) -> Option<Grant> {
        self.begin(want).ok()
    }

    fn try_begin(&self, want: Want) -> Option<Grant> {
        self.begin(want).ok()
    }

    fn end(&self, _: Grant) {}
}

struct Mounted {
    engine: ExtentEngine,
    handle: Option<<ExtentEngine as Engine>::Handle>,
    tokens: Arc<Tokens>,
    origin: tempfile::TempDir,
    _cache: tempfile::TempDir,
}

impl Mounted {
    fn new() -> Self {
        let [origin, cache] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        fs::write(origin.path().join("file"), [0; 10_000]).unwrap();
        let tokens = Arc::<Tokens>::default();
        let coherence: Arc<dyn Coherence> = Arc::new(Node(Arc::clone(&tokens)));
        let engine = engine(origin.path(), cache.path(), &coherence, &without_rebuild());
        let (vnode, _) = engine.lookup(&engine.root(), OsStr::new("file")).unwrap();
        let handle = Some(engine.open(&vnode, libc::O_RDWR, ME).unwrap());
        Self { engine, handle, tokens, origin, _cache: cache }
    }

    fn write(&self, byte: u8) -> Result<()> {
        self.engine.write(self.handle.as_ref().unwrap(), 0, &[byte; 10_000], ME)
    }

    fn flush(&self) -> bool {
        let report =
            Controlled::flush(&self.engine, None, false, &mut |_| ControlFlow::Continue(()));
        report.unwrap().skipped.is_empty()
    }

    fn origin(&self) -> Vec<u8> {
        let mut bytes = fs::read(self.origin.path().join("file")).unwrap();
        bytes.dedup();
        bytes
    }
}

/// A new token counts as known as soon as one permit has looked, so everything under it must be.
#[test]
fn i11_nothing_that_was_cached_before_a_new_token_is_read_under_it() {
    let mounted = Mounted::new();
    mounted.write(1).unwrap();
    assert!(mounted.flush());
    // As another node would that had the token meanwhile.
    fs::write(mounted.origin.path().join("file"), [2; 10_000]).unwrap();
    mounted.tokens.new.store(true, Ordering::SeqCst);
    for (start, length) in [(0, 4096), (8192, 1808)] {
        let mut bytes = vec![0; length];
        let handle = mounted.handle.as_ref().unwrap();
        mounted.engine.read(handle, start, &mut bytes, ME).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 2), "old bytes from {start} on");
    }
}

/// A write that waits between its permit and its system call (for a lock, for a flush, for the processor) may wait longer
/// than the lease: other nodes may have got the range meanwhile.
#[test]
fn i12_a_write_does_not_reach_the_origin_after_the_lease_has_ended() {
    let mounted = Mounted::new();
    mounted.tokens.direct.store(true, Ordering::SeqCst);
    mounted.write(1).unwrap();
    assert_eq!(mounted.origin(), [1]);
    mounted.tokens.ends.store(true, Ordering::SeqCst);
    mounted.write(2).unwrap_err();
    assert_eq!(mounted.origin(), [1]);
}

#[test]
fn i12_dirty_bytes_are_not_flushed_after_the_lease_has_ended() {
    let mounted = Mounted::new();
    mounted.write(1).unwrap();
    mounted.tokens.over.store(true, Ordering::SeqCst);
    assert!(!mounted.flush());
    assert_eq!(mounted.origin(), [0]);
    mounted.tokens.over.store(false, Ordering::SeqCst);
    assert!(mounted.flush());
    assert_eq!(mounted.origin(), [1]);
}
