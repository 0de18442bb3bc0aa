//! Which byte is where, durable: the data mapping table (DMT) and the critical data table (CDT).
//!
//! The contract is [`Dmt`]; [`local`] keeps it in memory as range maps over an embedded
//! log-structured store. A second implementation over a distributed store can follow (D6).

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use halocline_model::layout::Placement;
use halocline_model::request::ByteRange;

use self::checksums::Checksums;
use crate::error::Result;

mod batch;
mod cdt;
pub mod checksums;
mod distrust;
mod files;
mod footprint;
mod journal;
pub mod lease;
pub mod local;
mod mapping;
mod marks;
mod order;
pub mod owner;
mod rangemap;
mod record;
pub mod recover;
mod ring;
mod space;
mod upkeep;
mod verify;

/// Space on the cache is counted and discarded in blocks of this many bytes.
pub const BLOCK: u64 = 4096;

/// Identity of a file in the cache; never reused within one cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u64);

/// Identity of a file on the origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OriginKey {
    /// Inode number.
    pub inode: u64,
    /// Birth time in nanoseconds where the file system has one, else 0: tells a reused inode.
    pub born_ns: u64,
}

/// What the origin's file looked like when Halocline last touched it (I9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stamp {
    /// Halocline is changing it: nobody knows how it looks after a crash ([`lease`]).
    Writing,
    /// What it looked like when Halocline had last changed it.
    Closed {
        /// Size in bytes.
        size: u64,
        /// Modification time in nanoseconds since the epoch.
        mtime_ns: i64,
        /// Change time in nanoseconds since the epoch.
        ctime_ns: i64,
    },
}

impl Stamp {
    /// That of a file at rest.
    pub fn of(found: &Metadata) -> Self {
        let ns =
            |seconds: i64, rest: i64| seconds.saturating_mul(1_000_000_000).saturating_add(rest);
        Self::Closed {
            size: found.len(),
            mtime_ns: ns(found.mtime(), found.mtime_nsec()),
            ctime_ns: ns(found.ctime(), found.ctime_nsec()),
        }
    }

    /// Whether both are of a file at rest with the same size and modification time: then its bytes are
    /// the same, as far as times tell.
    pub fn same_bytes(self, other: Self) -> bool {
        match (self, other) {
            (
                Self::Closed { size, mtime_ns, .. },
                Self::Closed { size: other_size, mtime_ns: other_mtime_ns, .. },
            ) => (size, mtime_ns) == (other_size, other_mtime_ns),
            _ => false,
        }
    }
}

/// A file the cache knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileRecord {
    /// Identity in the cache.
    pub id: FileId,
    /// Identity on the origin.
    pub key: OriginKey,
    /// Path below the origin's root, as last seen.
    pub path: PathBuf,
    /// What the origin's file looked like.
    pub stamp: Stamp,
}

/// A mapped extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Bytes of the file.
    pub range: ByteRange,
    /// Where they lie on the cache volume.
    pub placement: Placement,
    /// `D_flag`: the cache holds the only newest copy.
    pub dirty: bool,
    /// Changes with every write to the extent; a flush marks clean only what did not change.
    pub generation: u64,
    /// When it became dirty, in milliseconds since the epoch; 0 when clean.
    pub dirty_since_ms: u64,
    /// Last read, write or fill, in milliseconds since the epoch.
    pub last_use_ms: u64,
}

/// A maximal part of a request that is wholly mapped by one extent or wholly missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// The part of the request.
    pub range: ByteRange,
    /// The extent that holds it, or `None` when the origin does.
    pub extent: Option<Extent>,
}

/// An entry of the critical data table whose bytes are wanted on the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// The file.
    pub file: FileId,
    /// The range.
    pub range: ByteRange,
    /// Where its bytes shall go.
    pub placement: Placement,
}

/// Bytes and numbers of a cache, kept up to date, cheap to read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes on disk that mapped extents occupy, in whole blocks, plus what is reserved and what
    /// is unmapped but not yet discarded (I5).
    pub used: u64,
    /// File bytes mapped.
    pub mapped: u64,
    /// File bytes mapped and dirty.
    pub dirty: u64,
    /// File bytes mapped and clean that cannot be evicted yet, because they are recorded as dirty
    /// together with neighbours that are.
    pub held: u64,
    /// Number of extents.
    pub extents: u64,
    /// Number of dirty extents.
    pub dirty_extents: u64,
}

/// The data mapping table with its space accounting and eviction order.
///
/// The caller guarantees that it holds the file's range lock over every range it passes (shared
/// for `lookup` and `touch`, exclusive otherwise), and that data is on the cache before `map`.
/// An implementation MUST have handed every change to the operating system when the call
/// returns (it survives `kill -9`), MUST recover a consistent prefix after power loss, and MUST
/// be atomic per call.
pub trait Dmt: Send + Sync + std::fmt::Debug {
    /// The file with this origin identity, registered under `path` if it is new.
    fn register(&self, key: OriginKey, path: &Path) -> Result<FileId>;
    /// The file with this origin identity, if the cache knows it.
    fn find(&self, key: OriginKey) -> Option<FileId>;
    /// All files the cache knows.
    fn files(&self) -> Vec<FileRecord>;
    /// One file's record.
    fn file(&self, file: FileId) -> Option<FileRecord>;
    /// Records what the origin's file looks like now.
    fn stamp(&self, file: FileId, stamp: Stamp) -> Result<()>;
    /// Renames `from`, and everything below it if it is a directory, to `to`.
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;
    /// Exchanges the paths `a` and `b`, with everything below each.
    fn exchange(&self, a: &Path, b: &Path) -> Result<()>;
    /// Forgets a file without extents.
    fn forget(&self, file: FileId) -> Result<()>;
    /// Whether the cache knows a file and has nothing of it: no extent, no block, no critical range.
    fn is_hollow(&self, file: FileId) -> bool;
    /// All such files.
    fn hollow_files(&self) -> Vec<FileId>;

    /// Splits `range` into maximal segments by coverage, in order, into `out` (cleared first).
    fn lookup(&self, file: FileId, range: ByteRange, out: &mut Vec<Segment>);
    /// Marks the extents under `range` as just used.
    fn touch(&self, file: FileId, range: ByteRange);
    /// Publishes `range`, whose data is on the cache at `placement`. The range MUST be unmapped.
    fn map(&self, file: FileId, range: ByteRange, placement: Placement, dirty: bool) -> Result<()>;
    /// Sets `D_flag` on the mapped bytes of `range`, splitting clean extents at its bounds, and
    /// gives them a new generation; extents already dirty stay whole.
    fn mark_dirty(&self, file: FileId, range: ByteRange) -> Result<()>;
    /// Cuts dirty extents at the bounds of `range`, so that what is inside can be flushed or kept
    /// apart from the rest; whether there was one to cut.
    fn cut_dirty(&self, file: FileId, range: ByteRange) -> Result<bool>;
    /// Clears `D_flag` of every extent inside `range` whose generation equals the one given;
    /// returns the bytes cleared. They become evictable at the next `barrier`.
    fn mark_clean(&self, file: FileId, extents: &[(ByteRange, u64)]) -> Result<u64>;
    /// Unmaps all of `range`, dirty or not, and queues its space for discarding.
    fn unmap(&self, file: FileId, range: ByteRange) -> Result<()>;

    /// Dirty extents of `file` inside `range` in offset order, at most `limit`.
    fn dirty(&self, file: FileId, range: ByteRange, limit: usize) -> Vec<Extent>;
    /// Bytes of all dirty extents of `file`.
    fn dirty_bytes(&self, file: FileId) -> u64;
    /// Whether a barrier has covered a dirty extent under `range`: it survives power loss, so what
    /// replaces it must be durable before it is unmapped (I4).
    fn promised(&self, file: FileId, range: ByteRange) -> bool;
    /// Files with dirty extents, with the time of their oldest in milliseconds since the epoch.
    fn dirty_files(&self) -> Vec<(FileId, u64)>;
    /// All extents of a file in offset order.
    fn extents(&self, file: FileId) -> Vec<Extent>;

    /// Reserves blocks for `range` before its data is written; `false` when the limit does not
    /// allow it even though nothing was evicted. `map` turns the reservation into use.
    fn reserve(&self, file: FileId, range: ByteRange, placement: Placement) -> bool;
    /// Gives a reservation back. Its blocks may have been written: they are queued for discarding
    /// and count as used until then.
    fn release(&self, file: FileId, range: ByteRange, placement: Placement);
    /// Unmaps clean, durable, unpinned extents in the policy's order until `bytes` are freed,
    /// never one that overlaps `keep`, and returns what the caller now discards and tells
    /// `discarded`. `lock` is asked for the whole blocks of each extent, never twice for the same
    /// byte, and must not wait: `false` skips the extent. The caller holds what `lock` locked
    /// until it has discarded, so readers in flight are never cut off (I2). If the evictable bytes
    /// are not enough, evicts nothing and returns an empty list.
    fn evict(
        &self,
        bytes: u64,
        keep: Option<(FileId, ByteRange)>,
        lock: &mut dyn FnMut(FileId, ByteRange) -> bool,
    ) -> Result<Vec<Discard>>;
    /// Keeps a file's extents from eviction, or lets them go again. Not durable: the engine
    /// applies its globs anew at each mount.
    fn pin(&self, file: FileId, pinned: bool);
    /// Takes the queued ranges whose unmapping is durable. The caller locks each exclusively,
    /// asks `still_due` what of it is to be freed, frees that, then tells `discarded`.
    fn take_discards(&self) -> Vec<Discard>;
    /// The parts of a taken range that nobody claimed since. Not the same as what `lookup` shows
    /// as unmapped: what was mapped again, made durable by a barrier and unmapped again since
    /// would come back after a power loss, and find its data gone.
    fn still_due(&self, discard: &Discard) -> Vec<Discard>;
    /// Tells that a range was discarded: its blocks are free again.
    fn discarded(&self, discard: &Discard);
    /// Begins a barrier: what is mapped or dirtied from now on belongs to the next one. Call it
    /// before syncing data, or data written during the sync would count as synced.
    fn cut(&self);
    /// Makes all changes before the last `cut` durable against power loss (and before this call,
    /// if there was no `cut` since the last barrier). The caller has synced the data of these, and
    /// lets one barrier pass from `cut` to `barrier` at a time.
    fn barrier(&self) -> Result<()>;
    /// Fails when the store refuses changes since a write to it failed, with that failure. Look-ups
    /// and writes to dirty extents go on; nothing can be mapped, cleaned or unmapped.
    fn usable(&self) -> Result<()>;
    /// For a store that is not [`usable`](Self::usable): unmaps `range` in memory, after making
    /// sure by other means that no later opening trusts what its records say of these bytes. An
    /// error says that no means was left; nothing is changed then.
    fn abandon(&self, file: FileId, range: ByteRange) -> Result<()>;
    /// For a store that is not [`usable`](Self::usable), and of which nothing dirty is needed any
    /// more: makes sure that no later opening trusts anything. From then on
    /// [`abandon`](Self::abandon) only changes memory. An error says that no means was left to
    /// tell a later opening.
    fn give_up(&self) -> Result<()>;
    /// Tells that nothing lies on the cache but what the extents need: the trim that recovery
    /// asked for is done. Until then every clean close passes the duty on (I5).
    fn trimmed(&self);
    /// Makes all records so far durable, and calls no data so: not a barrier.
    fn persist(&self) -> Result<()>;
    /// Marks the store as cleanly closed. The caller has synced all data. Afterwards every change
    /// is refused.
    fn close(&self) -> Result<()>;

    /// Notes a critical range; `fetch` sets `C_flag` (docs/ALGORITHMS.md, section 4.2).
    fn note_critical(&self, wanted: Wanted, fetch: bool);
    /// Entries with `C_flag` in the order in which it was set, at most `limit`.
    fn wanted(&self, limit: usize) -> Vec<Wanted>;
    /// Clears `C_flag` of an entry.
    fn fetched(&self, file: FileId, range: ByteRange);
    /// Drops the entries of `file` that share a byte with `range`.
    fn drop_critical(&self, file: FileId, range: ByteRange);

    /// Bytes and numbers.
    fn usage(&self) -> Usage;
    /// The limit of data in bytes on disk: what was given at the opening, less what the records
    /// take beyond what is set aside for them.
    fn limit(&self) -> u64;
    /// Checksums of what is cached.
    fn checksums(&self) -> &Checksums;
    /// Bytes that the records themselves take on the cache's device, at most.
    fn records_bytes(&self) -> u64;
}

/// A byte range of a cache object whose blocks are to be freed: whole blocks only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Discard {
    /// The file.
    pub file: FileId,
    /// Block-aligned range.
    pub range: ByteRange,
    /// The object the range lies in.
    pub placement: Placement,
}
