//! Options of the cache as a whole.

use super::{OptionSpec, option};
use crate::config::bounds::ENTRIES;
use crate::config::scope::Scope;
use crate::config::shares::SIZE_MIN;
use crate::config::units::{Kind, format_duration, parse_duration};
use crate::config::values::{
    count, globs, mode, mode_text, name, put, record_store, size, size_text,
};

const MODES: &[&str] = &["write-back", "write-through", "read-only"];

/// In the order of the documentation.
pub(super) const ROWS: &[OptionSpec] = &[
    option!(
        "size",
        Cache,
        Kind::Size(SIZE_MIN),
        |c| size_text(c.size),
        |c, v| put(&mut c.size, size(v, SIZE_MIN)),
        "Limit of the cache on disk, at least 1M. Bytes, or a share of the cache's file system. It \
         is never passed: space is reserved before it is written, and a full cache sends writes to \
         the origin. The records of what is cached count too: a 32nd part, from 512K to 256M, is set \
         aside for them, and where they need more, data gets less."
    ),
    option!(
        "mode",
        Cache,
        Kind::Word(MODES),
        |c| mode_text(c.mode).into(),
        |c, v| put(&mut c.mode, mode(v)),
        "When a write is on the origin. `write-back`: later, admitted writes go to the cache and \
         are flushed in the background. `write-through`: at once, so that losing the cache loses \
         nothing. `read-only`: writes bypass the cache and only reads are cached."
    ),
    option!(
        "policy",
        Cache,
        Kind::Admission,
        |c| c.policy.clone(),
        |c, v| name(&mut c.policy, v, Kind::Admission),
        "Admission policy: which requests deserve the cache. The papers' policies are there for \
         comparison, as are `always` and `never`. With `mount --tier`: which files are kept on \
         the SSD, `foresight` (the default there), `heuristic`, `lru` or `lfu`."
    ),
    option!(
        "eviction",
        Cache,
        Kind::Eviction,
        |c| c.eviction.clone(),
        |c, v| name(&mut c.eviction, v, Kind::Eviction),
        "Eviction policy: which clean extent leaves first."
    ),
    option!(
        "record_store",
        Cache,
        Kind::RecordStore,
        |c| c.record_store.clone(),
        |c, v| record_store(&mut c.record_store, v),
        "What keeps the records of what is cached; an unknown name is refused with those that there \
         are. A cache keeps the one that it was made with, and a mount that names another is refused."
    ),
    option!(
        "pin",
        Cache,
        Kind::Globs,
        |c| c.pin.join("\n"),
        |c, v| globs(&mut c.pin, v),
        "Globs of files that are never evicted. They match paths below the mount. A file is not \
         fetched by being pinned; `halocline warm` does that."
    ),
    option!(
        "exclude",
        Cache,
        Kind::Globs,
        |c| c.exclude.join("\n"),
        |c, v| globs(&mut c.exclude, v),
        "Globs of files that are never cached. They match paths below the mount."
    ),
    option!(
        "cdt_entries",
        Cache,
        Kind::Count(ENTRIES),
        |c| c.cdt_entries.to_string(),
        |c, v| put(&mut c.cdt_entries, count(v, ENTRIES)),
        "Most entries of the critical data table. It remembers ranges worth fetching; each takes \
         about 100 bytes of memory."
    ),
    option!(
        "checksums",
        Cache,
        Kind::Bool,
        |c| c.checksums.to_string(),
        |c, v| put(&mut c.checksums, v.parse().ok()),
        "Keep a checksum of each block of cached data. Dirty data is compared with it before it is \
         flushed, and what does not agree is kept and reported, never written over the origin; \
         `halocline fsck` compares all. Without it what earlier mounts kept is forgotten."
    ),
    option!(
        "verify_reads",
        Cache,
        Kind::Bool,
        |c| c.verify_reads.to_string(),
        |c, v| put(&mut c.verify_reads, v.parse().ok()),
        "Compare what programs read from the cache with its checksums. Clean data that does not \
         agree comes from the origin instead; dirty data is an error (EIO), never wrong bytes."
    ),
    option!(
        "health_retry",
        Cache,
        Kind::Duration,
        |c| format_duration(c.health_retry),
        |c, v| put(&mut c.health_retry, parse_duration(v)),
        "How long a cache device that failed is not given new data. Then it is tried again; the \
         time doubles while it goes on failing. Programs run at the origin's speed meanwhile."
    ),
];
