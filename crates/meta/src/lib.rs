//! Which byte is where, durably: the data mapping table (DMT) and the critical data table (CDT).
//!
//! [`table::ExtentTable`] keeps both in memory, as range maps, and writes every change of them to a store of records
//! (`records.rs`): the tables belong to this node, the records may be anywhere (D6).
//!
//! What programs see of it:
//! - [`table`] the tables in memory, and every change of them
//! - [`load`] the tables read again when a cache is opened, after a close, a crash or a power loss
//! - [`checksums`] sums of the bytes on the cache's devices
//! - [`owner`] who may use a cache directory, [`identity`] the file that says that it is one
//! - [`lease`] until when a session may have changed the origin
//! - [`origin_mark`] on an origin: a cache may hold newer bytes; [`cluster_mark`]: nodes share it
//!
//! In memory, below the tables:
//! - [`files`] by id, identity and path; [`rangemap`] the extents of one file
//! - [`cdt`] ranges worth caching; [`write_intent`] stretches recorded as dirty before they are
//! - [`block_accounting`] blocks of the cache; [`eviction_queue`] which extent leaves next
//!
//! On disk:
//! - [`records`] the interface of a store of records; [`record`] the form of one, [`batch`] of several together
//! - [`record_stores`] the kinds of stores, one row each
//! - [`log`] the default kind: a log with snapshots, through a [`mapped_file`]
//! - [`invalidations`] what must not be trusted although no record could be changed
//! - [`exit_time`] when a killed process ended; [`origin_attribute`] notes on other storage
//! - [`migrate`] caches of format 3 and earlier

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use halocline_model::layout::Placement;
use halocline_model::request::ByteRange;

mod batch;
mod block_accounting;
mod cdt;
pub mod checksums;
pub mod cluster_mark;
mod eviction_queue;
mod exit_time;
mod files;
#[cfg(any(test, fuzzing))]
mod fuzz_input;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod identity;
mod invalidations;
pub mod lease;
pub mod load;
mod log;
mod mapped_file;
mod migrate;
mod origin_attribute;
pub mod origin_mark;
pub mod owner;
mod rangemap;
mod record;
pub mod record_stores;
pub mod records;
pub mod table;
mod write_intent;

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
    /// Birth time in nanoseconds, or 0 if the file system reports none: detects a reused inode.
    pub born_ns: u64,
}

/// The state of the origin's file when Halocline last accessed it (I9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stamp {
    /// Halocline is changing it: after a crash its state is unknown ([`lease`]).
    Writing,
    /// An earlier session was changing it, until this time at most, in nanoseconds since the epoch, and no mount could
    /// examine it since.
    Unjudged {
        /// A later change was made by others.
        until_ns: i64,
    },
    /// Its state after Halocline's last change.
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
    /// The stamp of a file at rest.
    pub fn of(found: &Metadata) -> Self {
        Self::Closed {
            size: found.len(),
            mtime_ns: in_nanoseconds(found.mtime(), found.mtime_nsec()),
            ctime_ns: in_nanoseconds(found.ctime(), found.ctime_nsec()),
        }
    }

    /// The same from a `stat` result.
    pub fn of_stat(raw: &libc::stat64) -> Self {
        Self::Closed {
            size: raw.st_size.cast_unsigned(),
            mtime_ns: in_nanoseconds(raw.st_mtime, raw.st_mtime_nsec),
            ctime_ns: in_nanoseconds(raw.st_ctime, raw.st_ctime_nsec),
        }
    }

    /// Whether both are of a file at rest with the same size and modification time: then its bytes are the same, as far
    /// as the times reveal.
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

/// A time in nanoseconds since the epoch, saturating at the ends of `i64`: anyone may give a file a time beyond the
/// year 2262.
pub const fn in_nanoseconds(seconds: i64, nanoseconds: i64) -> i64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds)
}

/// What programs did about the last name of a file. So that a session that is killed leaves no bytes for a file that a
/// program removed: these would be taken for those of a file that others removed (I9).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Removal {
    /// Nothing, as far as is known.
    #[default]
    None,
    /// A program is removing it. If the session was killed, the file may be gone or not.
    Begun,
    /// It is gone for good; programs only have the file open.
    Done,
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
    /// The state of the origin's file.
    pub stamp: Stamp,
    /// What became of its last name.
    pub removal: Removal,
    /// Root of the mount below the origin's root that has the file; `None` for a file on the file system of the
    /// origin's root itself.
    pub mount: Option<OriginKey>,
}

/// A mapped extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Bytes of the file.
    pub range: ByteRange,
    /// Their placement on the cache volume.
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
    /// The extent that holds it, or `None` if only the origin has it.
    pub extent: Option<Extent>,
}

/// An entry of the critical data table whose bytes are wanted on the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CriticalRange {
    /// The file.
    pub file: FileId,
    /// The range.
    pub range: ByteRange,
    /// The placement for its bytes.
    pub placement: Placement,
}

/// Bytes and numbers of a cache, kept up to date so that reading them is cheap.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes on disk occupied by mapped extents, in whole blocks, plus blocks that are reserved, and blocks that are
    /// unmapped but not yet discarded (I5).
    pub used: u64,
    /// File bytes mapped.
    pub mapped: u64,
    /// File bytes mapped and dirty.
    pub dirty: u64,
    /// File bytes mapped and clean that cannot be evicted yet, because they are recorded as dirty together with dirty
    /// neighbours.
    pub held: u64,
    /// Number of extents.
    pub extents: u64,
    /// Number of dirty extents.
    pub dirty_extents: u64,
}

/// A byte range of a cache object whose blocks are to be freed: whole blocks only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Discard {
    /// The file.
    pub file: FileId,
    /// Block-aligned range.
    pub range: ByteRange,
    /// The object that contains the range.
    pub placement: Placement,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: such a file ended the mount process.
    #[test]
    fn times_that_do_not_fit_nanoseconds_are_taken() {
        // SAFETY: plain numbers, for which zero is a value.
        let mut raw: libc::stat64 = unsafe { std::mem::zeroed() };
        for seconds in [i64::MIN, -1, 0, 13_569_465_600, i64::MAX] {
            (raw.st_mtime, raw.st_mtime_nsec) = (seconds, 999_999_999);
            (raw.st_ctime, raw.st_ctime_nsec) = (seconds, 1);
            let Stamp::Closed { mtime_ns, ctime_ns, .. } = Stamp::of_stat(&raw) else { panic!() };
            assert_eq!((mtime_ns < 0, ctime_ns < 0), (seconds < 0, seconds < 0));
        }
    }
}
