//! Open files and directories, by the handle numbers that the kernel holds.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use fuser::FileHandle;
use halocline_os::error::Result;
use halocline_trace::record::FileNumber;
use halocline_vfs::{Caller, Engine};
use parking_lot::RwLock;
use rustc_hash::FxHashMap;

use super::inode_table::Inode;
use super::share::Share;
use super::user_limits::CountedOpen;

/// Number of locks among which handle numbers are distributed, so that threads seldom contend.
const SHARDS: u64 = 64;

/// A regular file that a program has open.
#[derive(Debug)]
pub(super) struct OpenFile<E: Engine> {
    pub(super) inode: Arc<Inode<E::Vnode>>,
    /// Dropped before the handle: while the kernel is noted as serving the file, a handle prevents the engine from
    /// moving it.
    pub(super) share: Share<E::Vnode>,
    pub(super) handle: E::Handle,
    /// Whether its reads and writes bypass the kernel's page cache.
    pub(super) direct: bool,
    /// Its number in the trace that is recorded.
    pub(super) traced: Option<FileNumber>,
    /// Whether it was opened with `O_APPEND`: the engine then writes at the end, whatever the offset.
    append: bool,
    /// Whether it was opened to read, to write, or both, as in `open(2)`.
    access: i32,
    /// Counts towards the limit of its user.
    _counted: Arc<CountedOpen>,
    /// A second handle: one that appends if the first one does not, and one that does not if it does.
    other: OnceLock<E::Handle>,
}

impl<E: Engine> OpenFile<E> {
    pub(super) fn new(
        inode: Arc<Inode<E::Vnode>>,
        handle: E::Handle,
        (share, counted): (Share<E::Vnode>, Arc<CountedOpen>),
        (flags, direct): (i32, bool),
    ) -> Self {
        let (append, access) = (flags & libc::O_APPEND != 0, flags & libc::O_ACCMODE);
        if direct {
            inode.pages.opened_direct();
        }
        let (traced, other) = (None, OnceLock::new());
        Self { inode, handle, direct, traced, append, access, other, share, _counted: counted }
    }

    /// The handle for a write that appends or not, which need not be as the file was opened: programs change `O_APPEND` of
    /// an open file (`fcntl(2)`), and the kernel writes pages of a shared mapping through any writable handle, even an
    /// appending one, at the pages' own offset.
    pub(super) fn to_write(&self, engine: &E, appends: bool, caller: Caller) -> Result<&E::Handle> {
        if appends == self.append {
            return Ok(&self.handle);
        }
        if let Some(handle) = self.other.get() {
            return Ok(handle);
        }
        let flags = if appends { libc::O_APPEND } else { 0 };
        let handle = engine.open(&self.inode.vnode, self.access | flags, caller)?;
        Ok(self.other.get_or_init(|| handle))
    }
}

impl<E: Engine> Drop for OpenFile<E> {
    fn drop(&mut self) {
        if self.direct {
            self.inode.pages.closed_direct();
        }
    }
}

/// Values by handle number.
#[derive(Debug)]
pub(super) struct Handles<T> {
    shards: Vec<RwLock<FxHashMap<u64, Arc<T>>>>,
    next: AtomicU64,
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        let shards = (0..SHARDS).map(|_| RwLock::default()).collect();
        Self { shards, next: AtomicU64::new(1) }
    }
}

impl<T> Handles<T> {
    pub(super) fn insert(&self, thing: T) -> FileHandle {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.shard(number).write().insert(number, Arc::new(thing));
        FileHandle(number)
    }

    pub(super) fn get(&self, handle: FileHandle) -> Option<Arc<T>> {
        self.shard(handle.0).read().get(&handle.0).cloned()
    }

    /// Removes a value; dropping it (outside the lock) closes it.
    pub(super) fn remove(&self, handle: FileHandle) -> Option<Arc<T>> {
        self.shard(handle.0).write().remove(&handle.0)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.read().is_empty())
    }

    fn shard(&self, number: u64) -> &RwLock<FxHashMap<u64, Arc<T>>> {
        let at = usize::try_from(number % SHARDS).expect("less than 64");
        &self.shards[at]
    }
}
