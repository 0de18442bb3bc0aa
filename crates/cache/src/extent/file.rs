//! What the engine knows of one file while it is open or has dirty bytes.
//!
//! Locks, in the order in which they are taken:
//! 1. `range` over the bytes of a request: shared to read, exclusive to change;
//! 2. `growth` to make the file longer or shorter;
//! 3. `writeback` over bytes that go to the origin: shared by writers, exclusive by a flush that rewrites a region
//!    and must not overwrite a write to the gaps between its extents;
//! 4. `last_seen`, briefly.
//!
//! A flush takes `writeback` first; it must therefore only *try* `range`.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use halocline_model::request::ByteRange;
use halocline_model::streams::Streams;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use crate::coherence::FileTokens;
use crate::extent::flush_handle::FlushHandle;
use crate::extent::last_seen::LastSeen;
use crate::peer_copies::PeerCopies;
use crate::range_lock::RangeLock;
use halocline_meta::{FileId, OriginKey, Stamp};
use halocline_os::clock::Clock;
use halocline_vfs::namespace::Vnode;

/// All bytes from `start` on.
pub(crate) const fn tail(start: u64) -> ByteRange {
    ByteRange::new(start, u64::MAX)
}

/// The whole file.
pub(crate) const WHOLE: ByteRange = tail(0);

/// What a program's hint asked for on one file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FileHint {
    /// Size of the communicator that opened it: p.
    pub(crate) processes: Option<u32>,
    /// `halocline_cache`: `Some(false)` admits nothing.
    pub(crate) cache: Option<bool>,
    /// `halocline_policy`: name of the admission policy.
    pub(crate) policy: Option<String>,
    /// Each read call is passed on as a request of its own.
    pub(crate) direct: bool,
}

/// The hint given for a file, if any: most files have none, and their requests take no lock to find that out.
#[derive(Debug, Default)]
pub(crate) struct GivenHint {
    given: AtomicBool,
    hint: RwLock<FileHint>,
}

impl GivenHint {
    /// The hint, if one was given that asks for something.
    pub(crate) fn get(&self) -> Option<RwLockReadGuard<'_, FileHint>> {
        self.given.load(Ordering::Acquire).then(|| self.hint.read())
    }

    /// Replaces it.
    pub(crate) fn give(&self, hint: FileHint) {
        let mut kept = self.hint.write();
        self.given.store(hint != FileHint::default(), Ordering::Release);
        *kept = hint;
    }
}

/// No modification time is held back from the origin.
const NO_TIME: i64 = i64::MIN;

/// One file of the origin.
#[derive(Debug)]
pub(crate) struct CachedFile {
    /// Identity on the origin.
    pub(crate) key: OriginKey,
    id: OnceLock<FileId>,
    /// Guards bytes against overlapping changes (I1, I2).
    pub(crate) range: Arc<RangeLock>,
    /// Guards the origin's bytes against being rewritten by a flush (I3).
    pub(crate) writeback: RangeLock,
    /// Held while the file's size changes.
    pub(crate) growth: Mutex<()>,
    size: AtomicU64,
    /// Access streams of the processes that use this file.
    pub(crate) streams: Mutex<Streams>,
    /// A writable descriptor, opened at the first admission and kept while bytes are dirty: bytes that could not be
    /// flushed are never admitted.
    pub(crate) flush_handle: Mutex<Option<FlushHandle>>,
    /// Failed syncs through `flush_handle`. The system reports each failure once: what other threads wrote through it
    /// before may be lost, too, and must be written again.
    pub(crate) syncs_failed: AtomicU64,
    /// The vnode, which leads to the file's name.
    pub(crate) vnode: RwLock<Vnode>,
    /// Open handles.
    pub(crate) opens: AtomicU32,
    /// Those of them that can write.
    pub(crate) writers: AtomicU32,
    /// Hints of the programs that have it open.
    pub(crate) hint: GivenHint,
    /// Whether a glob keeps it from the cache.
    pub(crate) excluded: AtomicBool,
    /// Whether programs may read or map the origin's bytes without us: the cache then has nothing newer and admits
    /// nothing. Set and cleared with all of `range` held.
    pub(crate) read_below: AtomicBool,
    /// Whether its last name is gone.
    pub(crate) unlinked: AtomicBool,
    /// Whether the cache has since forgotten it.
    pub(crate) forgotten: AtomicBool,
    /// The state of the origin's file after our last change (I9).
    pub(crate) last_seen: Mutex<LastSeen>,
    mtime_held_ns: AtomicI64,
    /// Held while the modification time of the origin's file is set.
    pub(crate) times: Mutex<()>,
    /// Serialises flushes of this file.
    pub(crate) flushing: Mutex<()>,
    /// Flushes that somebody waits for and that have not begun, because another one is running.
    pub(crate) awaited_flushes: AtomicU32,
    /// Those of them that another node waits for.
    pub(crate) awaited_hand_overs: AtomicU32,
    /// The file's tokens, if other nodes use the origin, too.
    pub(crate) tokens: OnceLock<Arc<dyn FileTokens>>,
    /// What other nodes' caches have of the file, as those nodes said.
    pub(crate) peer_copies: PeerCopies,
    /// Held shared by requests that use the kernel's pages of the origin's file where these may be stale, and
    /// exclusively while the pages are dropped. Taken after a permit and before `range`.
    pub(crate) pages: RwLock<()>,
}

impl CachedFile {
    /// A file of `size` bytes with the stamp `look`, known to the cache as `id`, if at all.
    pub(crate) fn new(
        key: OriginKey,
        id: Option<FileId>,
        (size, seen): (u64, Stamp),
        vnode: Vnode,
        peer_copies: PeerCopies,
    ) -> Self {
        let known = OnceLock::new();
        if let Some(id) = id {
            known.set(id).expect("a new cell is empty");
        }
        Self {
            key,
            id: known,
            range: Arc::default(),
            writeback: RangeLock::default(),
            growth: Mutex::default(),
            size: AtomicU64::new(size),
            streams: Mutex::default(),
            flush_handle: Mutex::default(),
            syncs_failed: AtomicU64::new(0),
            vnode: RwLock::new(vnode),
            opens: AtomicU32::new(0),
            writers: AtomicU32::new(0),
            hint: GivenHint::default(),
            excluded: AtomicBool::new(false),
            read_below: AtomicBool::new(false),
            unlinked: AtomicBool::new(false),
            forgotten: AtomicBool::new(false),
            last_seen: Mutex::new(LastSeen::new(seen)),
            mtime_held_ns: AtomicI64::new(NO_TIME),
            times: Mutex::default(),
            flushing: Mutex::default(),
            awaited_flushes: AtomicU32::new(0),
            awaited_hand_overs: AtomicU32::new(0),
            tokens: OnceLock::new(),
            peer_copies,
            pages: RwLock::default(),
        }
    }

    /// Identity in the cache, once any of the file was cached or noted.
    pub(crate) fn id(&self) -> Option<FileId> {
        self.id.get().copied()
    }

    /// Remembers the identity; all callers got the same one from the store.
    pub(crate) fn set_id(&self, id: FileId) {
        let kept = self.id.get_or_init(|| id);
        assert_eq!(*kept, id, "one origin file has one identity in the cache");
    }

    /// Size in bytes; the origin's file always has the same.
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Sets the size. The caller holds `growth`.
    pub(crate) fn set_size(&self, size: u64) {
        debug_assert!(self.growth.is_locked(), "the size changes only under `growth`");
        self.size.store(size, Ordering::Release);
    }

    /// The modification time still to be set on the origin's file, in nanoseconds.
    pub(crate) fn held_mtime_ns(&self) -> Option<i64> {
        let held = self.mtime_held_ns.load(Ordering::Acquire);
        (held != NO_TIME).then_some(held)
    }

    /// Notes a write that ends now; returns the time if it was noted. A write that reached only the cache leaves the
    /// origin's time stale, so the time is held; one that went to the origin advances a held time. For others the
    /// finer clock is not read.
    pub(crate) fn note_write(&self, clock: &Clock, on_cache: bool) -> Option<i64> {
        let now_ns = (on_cache || self.held_mtime_ns().is_some()).then(|| clock.now_ns())?;
        self.mtime_held_ns.store(now_ns, Ordering::Release);
        Some(now_ns)
    }

    /// Holds `mtime_ns` unless a time is already held: called before a flush, whose writes would otherwise show as
    /// modifications.
    pub(crate) fn hold_mtime(&self, mtime_ns: i64) {
        let _ = self.mtime_held_ns.compare_exchange(
            NO_TIME,
            mtime_ns,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
    }

    /// Holds `mtime_ns` instead of any held time: a program chose it.
    pub(crate) fn choose_mtime(&self, mtime_ns: i64) {
        self.mtime_held_ns.store(mtime_ns, Ordering::Release);
    }

    /// The origin's time was set to `given_ns`, or a program set it (`None`): no time is held any longer, unless a
    /// later write came in between.
    pub(crate) fn let_mtime_go(&self, given_ns: Option<i64>) {
        match given_ns {
            Some(given) => {
                let _ = self.mtime_held_ns.compare_exchange(
                    given,
                    NO_TIME,
                    Ordering::AcqRel,
                    Ordering::Acquire,
                );
            }
            None => self.mtime_held_ns.store(NO_TIME, Ordering::Release),
        }
    }

    /// Whether nothing of the file may enter the cache.
    pub(crate) fn is_kept_out(&self) -> bool {
        self.excluded.load(Ordering::Relaxed)
            || self.read_below.load(Ordering::Acquire)
            || self.forgotten.load(Ordering::Relaxed)
    }

    /// Whether programs have the file open.
    pub(crate) fn is_open(&self) -> bool {
        self.opens.load(Ordering::SeqCst) > 0
    }
}
