//! The table of options: everything that a configuration file or a flag can set.
//!
//! A new option is one field of [`Config`], one row here and one line in the default; help, man
//! pages and `docs/CONFIG.md` follow. Keys are written `with_underscores` in the file and
//! `--with-hyphens` as flags.

use super::Config;
use super::bounds::{BLOCK, ENTRIES, RATE, SERVERS, STRIPE, THREADS};
use super::scope::Scope;
use super::shares::SIZE_MIN;
use super::units::{Kind, format_bytes, format_duration, parse_bytes, parse_duration};
use super::values::{
    copies, copies_text, count, emulate, globs, hours, mode, mode_text, name, percent, put,
    single_thread, size, size_text, stripe, tiers, volume, volume_text,
};

/// One option. `set` gets text as a flag would give it, the values of a repeated flag one a line;
/// `get` writes the text that sets it.
#[derive(Debug)]
pub struct OptionSpec {
    /// Key in the configuration file.
    pub key: &'static str,
    /// What a value looks like.
    pub kind: Kind,
    /// What it is about.
    pub scope: Scope,
    /// What it does, in full sentences; the first is the short help.
    pub doc: &'static str,
    /// Writes the value of a configuration.
    pub get: fn(&Config) -> String,
    /// Sets the value; `None` when the text is not such a value.
    pub set: fn(&mut Config, &str) -> Option<()>,
}

impl OptionSpec {
    /// The flag, without its two hyphens.
    pub fn flag(&self) -> String {
        self.key.replace('_', "-")
    }

    /// The default as text.
    pub fn default_value(&self) -> String {
        (self.get)(&Config::default())
    }

    /// The option with this key.
    pub fn find(key: &str) -> Option<&'static Self> {
        OPTIONS.iter().find(|option| option.key == key)
    }

    /// Whether the option has an effect on a file tier (`tier`), or on a cache in front of an
    /// origin.
    pub fn has_effect_on(&self, tier: bool) -> bool {
        /// Of the others, those that are about any mount.
        const COMMON: [&str; 11] = [
            "policy",
            "pin",
            "exclude",
            "direct",
            "allow_other",
            "allow_suid",
            "allow_dev",
            "threads",
            "io_uring",
            "busy_poll",
            "single_thread",
        ];
        let own = self.scope == Scope::Tier;
        if tier { own || COMMON.contains(&self.key) } else { !own }
    }

    /// The first sentence of the documentation.
    pub fn short_doc(&self) -> &'static str {
        self.doc.split_inclusive(". ").next().unwrap_or(self.doc).trim_end()
    }
}

/// Makes one row of the table. `$get` and `$set` are closures over one value of the field.
macro_rules! option {
    ($key:literal, $scope:ident, $kind:expr, $get:expr, $set:expr, $doc:expr) => {
        OptionSpec { key: $key, kind: $kind, scope: Scope::$scope, doc: $doc, get: $get, set: $set }
    };
}

const MODES: &[&str] = &["write-back", "write-through", "read-only"];
const COPIES: &[&str] = &["none", "keep", "archive"];
const VOLUMES: &[&str] = &["plain", "striped"];

/// All options, in the order of the documentation.
pub static OPTIONS: &[OptionSpec] = &[
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
    option!(
        "direct",
        Mount,
        Kind::Bool,
        |c| c.direct.to_string(),
        |c, v| put(&mut c.direct, v.parse().ok()),
        "Make every read reach the engine. The kernel's page cache is then not used for file data."
    ),
    option!(
        "allow_other",
        Mount,
        Kind::Bool,
        |c| c.allow_other.to_string(),
        |c, v| put(&mut c.allow_other, v.parse().ok()),
        "Let other users use the mount. The kernel checks the origin's permissions for each. \
         Without root it needs `user_allow_other` in /etc/fuse.conf. A file tier must then lie below a \
         directory that is closed to them (chmod 0700 ROOT), and the mount point outside it."
    ),
    option!(
        "allow_suid",
        Mount,
        Kind::Bool,
        |c| c.allow_suid.to_string(),
        |c, v| put(&mut c.allow_suid, v.parse().ok()),
        "Let set-id bits and file capabilities have their effect when a program on the mount is \
         started, as far as they have it on the origin. Only in mounts of root."
    ),
    option!(
        "allow_dev",
        Mount,
        Kind::Bool,
        |c| c.allow_dev.to_string(),
        |c, v| put(&mut c.allow_dev, v.parse().ok()),
        "Let device nodes on the mount be opened, as far as the origin lets them. Only in mounts of \
         root."
    ),
    option!(
        "threads",
        Mount,
        Kind::Count(THREADS),
        |c| c.threads.to_string(),
        |c, v| put(&mut c.threads, count(v, THREADS)),
        "Threads that serve the kernel. Calls wait for slow devices, so there are more of them than \
         processors; 0 is the built-in number."
    ),
    option!(
        "io_uring",
        Mount,
        Kind::Bool,
        |c| c.io_uring.to_string(),
        |c, v| put(&mut c.io_uring, v.parse().ok()),
        "Take requests from the kernel through io_uring where it offers that (Linux 6.14, module \
         parameter fuse.enable_uring): half the system calls, and no program waits for another \
         processor. Otherwise they come through /dev/fuse."
    ),
    option!(
        "busy_poll",
        Mount,
        Kind::Bool,
        |c| c.busy_poll.to_string(),
        |c, v| put(&mut c.busy_poll, v.parse().ok()),
        "With io_uring, look for a program's next request for up to 50 microseconds before sleeping, \
         as long as that mostly succeeds and nobody else wants the processor. Threads of a file tier \
         stay on a processor instead."
    ),
    option!(
        "attr_timeout",
        Mount,
        Kind::Duration,
        |c| format_duration(c.attr_timeout),
        |c, v| put(&mut c.attr_timeout, parse_duration(v)),
        "How long the kernel may keep names and attributes; for a file tier see \
         tier_attr_timeout. 0s where the origin is also changed behind the mount."
    ),
    option!(
        "origin_volume",
        Volumes,
        Kind::Word(VOLUMES),
        |c| volume_text(c.origin.kind).into(),
        |c, v| put(&mut c.origin.kind, volume(v)),
        "How the origin's servers are found. `plain`: one directory, a local disk or a mounted \
         parallel file system. `striped`: Halocline stripes over servers in sub-directories."
    ),
    option!(
        "origin_servers",
        Volumes,
        Kind::Count(SERVERS),
        |c| c.origin.servers.to_string(),
        |c, v| put(&mut c.origin.servers, count(v, SERVERS)),
        "Number of origin servers, M of the cost model. For a plain origin this is the server \
         count of the parallel file system mounted there."
    ),
    option!(
        "origin_stripe",
        Volumes,
        Kind::Bytes { bounds: STRIPE, step: BLOCK },
        |c| format_bytes(c.origin.stripe),
        |c, v| put(&mut c.origin.stripe, stripe(v)),
        "Stripe of the origin."
    ),
    option!(
        "cache_volume",
        Volumes,
        Kind::Word(VOLUMES),
        |c| volume_text(c.cache.kind).into(),
        |c, v| put(&mut c.cache.kind, volume(v)),
        "How the cache's servers are found. As for the origin."
    ),
    option!(
        "cache_servers",
        Volumes,
        Kind::Count(SERVERS),
        |c| c.cache.servers.to_string(),
        |c, v| put(&mut c.cache.servers, count(v, SERVERS)),
        "Number of cache servers, N of the cost model."
    ),
    option!(
        "cache_stripe",
        Volumes,
        Kind::Bytes { bounds: STRIPE, step: BLOCK },
        |c| format_bytes(c.cache.stripe),
        |c, v| put(&mut c.cache.stripe, stripe(v)),
        "Stripe of the cache."
    ),
    option!(
        "groups",
        Volumes,
        Kind::Count(SERVERS),
        |c| c.groups.to_string(),
        |c, v| put(&mut c.groups, count(v, SERVERS)),
        "Groups g of the 2-D layout. 2-D is a candidate only where g is more than 1, less than the \
         number of cache servers, and divides it."
    ),
    option!(
        "rebuild",
        Rebuilder,
        Kind::Bool,
        |c| c.rebuild.to_string(),
        |c, v| put(&mut c.rebuild, v.parse().ok()),
        "Flush and fetch in the background. Without it dirty data is flushed by `halocline flush` \
         and at unmount only."
    ),
    option!(
        "fill",
        Rebuilder,
        Kind::Bool,
        |c| c.fill.to_string(),
        |c, v| put(&mut c.fill, v.parse().ok()),
        "Put what programs read again on the cache, from the bytes they were given: it costs the \
         origin nothing, however busy it is. Only what the policy admits, and not more than an \
         eighth of what is read where something else has to leave for it."
    ),
    option!(
        "max_dirty_age",
        Rebuilder,
        Kind::Duration,
        |c| format_duration(c.max_dirty_age),
        |c, v| put(&mut c.max_dirty_age, parse_duration(v)),
        "Age at which dirty data is flushed, oldest first, whatever programs do."
    ),
    option!(
        "dirty_high",
        Rebuilder,
        Kind::Percent,
        |c| format!("{}%", c.dirty_high),
        |c, v| put(&mut c.dirty_high, percent(v)),
        "Share of the cache above which dirty data is flushed at once."
    ),
    option!(
        "flush_window",
        Rebuilder,
        Kind::Hours,
        |c| c.flush_window.map_or_else(|| "always".into(), |hours| hours.to_string()),
        |c, v| hours(&mut c.flush_window, v),
        "Hours of the local day in which dirty data is flushed. Outside them only what passes \
         `max_dirty_age` or `dirty_high` is."
    ),
    option!(
        "rebuild_rate",
        Rebuilder,
        Kind::Bytes { bounds: RATE, step: 1 },
        |c| format_bytes(c.rebuild_rate),
        |c, v| put(&mut c.rebuild_rate, parse_bytes(v)),
        "Bytes a second the rebuilder moves while programs use the origin. 0 is no limit: it then \
         only yields to programs."
    ),
    option!(
        "flush_workers",
        Rebuilder,
        Kind::Count(SERVERS),
        |c| c.flush_workers.to_string(),
        |c, v| put(&mut c.flush_workers, count(v, SERVERS)),
        "Regions of the origin that are flushed at the same time."
    ),
    option!(
        "ssd_limit",
        Tier,
        Kind::Size(1),
        |c| size_text(c.ssd_limit),
        |c, v| put(&mut c.ssd_limit, size(v, 1)),
        "Limit of the files on the SSD. Bytes on disk, or a share of its file system. Writes that \
         do not fit go to the next tier."
    ),
    option!(
        "tier_high",
        Tier,
        Kind::Percent,
        |c| format!("{}%", c.tier_high),
        |c, v| put(&mut c.tier_high, percent(v)),
        "Share of the limit above which files are demoted in the background."
    ),
    option!(
        "tier_low",
        Tier,
        Kind::Percent,
        |c| format!("{}%", c.tier_low),
        |c, v| put(&mut c.tier_low, percent(v)),
        "Share of the limit down to which files are demoted in the background."
    ),
    option!(
        "tier_attr_timeout",
        Tier,
        Kind::Duration,
        |c| format_duration(c.tier_attr_timeout),
        |c, v| put(&mut c.tier_attr_timeout, parse_duration(v)),
        "How long the kernel may keep names and attributes of a file tier. Only the mount changes \
         them. 0s where the directories are also changed behind it."
    ),
    option!(
        "tiers",
        Tier,
        Kind::Names,
        |c| c.tiers.join("\n"),
        |c, v| tiers(&mut c.tiers, v),
        "Names of the tiers' directories below the root, fastest first. The first holds the tree \
         of names."
    ),
    option!(
        "copies",
        Tier,
        Kind::Word(COPIES),
        |c| copies_text(c.copies).into(),
        |c, v| put(&mut c.copies, copies(v)),
        "Which copies of files on the SSD are kept on the disk. `none`: a file is on one tier. \
         `keep`: what is promoted keeps the disk's copy until it is changed, and a demote of it \
         moves no bytes. `archive`: besides, what is new or changed is copied in the background, \
         so that the loss of the SSD loses only what was changed last. Copies give way where the \
         disk is full."
    ),
    option!(
        "archive_after",
        Tier,
        Kind::Duration,
        |c| format_duration(c.archive_after),
        |c, v| put(&mut c.archive_after, parse_duration(v)),
        "With `copies = archive`: how long a file is left alone by writers before it is copied."
    ),
    option!(
        "passthrough",
        Tier,
        Kind::Bool,
        |c| c.passthrough.to_string(),
        |c, v| put(&mut c.passthrough, v.parse().ok()),
        "Let the kernel serve open files on the SSD by itself. It needs root and Linux 6.9; \
         otherwise, and where the SSD lacks room, the mount process serves them."
    ),
    option!(
        "passthrough_writes",
        Tier,
        Kind::Bool,
        |c| c.passthrough_writes.to_string(),
        |c, v| put(&mut c.passthrough_writes, v.parse().ok()),
        "Let the kernel also serve files that are opened for writing, while the SSD has ample \
         room: overwrites in place are faster. A file that grows nevertheless may pass the SSD's \
         limit, and fails with ENOSPC where the SSD is full."
    ),
    option!(
        "warm_passthrough",
        Mount,
        Kind::Bool,
        |c| c.warm_passthrough.to_string(),
        |c, v| put(&mut c.warm_passthrough, v.parse().ok()),
        "Let the kernel serve files by itself that are opened for reading and that memory holds \
         whole. It needs root, Linux 6.9 and a plain origin; reports do not count such reads."
    ),
    option!(
        "single_thread",
        Mount,
        Kind::Bool,
        |c| (c.threads == 1).to_string(),
        |c, v| single_thread(c, v),
        "Serve the kernel with one thread, as `threads = 1`. The papers' single-thread mode."
    ),
    option!(
        "emulate",
        Emulation,
        Kind::Emulation,
        |c| c.emulate.as_ref().map_or_else(|| "none".into(), ToString::to_string),
        |c, v| emulate(c, v),
        "Put emulated devices under origin and cache. `hdd+ssd`: one of each over plain files; \
         `8xhdd+4xssd`: striped servers in sub-directories; names other than hdd and ssd come from \
         [profile.NAME] tables of the configuration file. `none`: real devices."
    ),
];
