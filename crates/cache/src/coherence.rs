//! The seam between an engine and the other nodes that cache files of the same origin (I11 to I14).
//!
//! An engine that was given a [`Coherence`] holds a permit of the file's [`FileTokens`] over the bytes of each
//! request and of each background transfer; the node's agent gets the tokens from the shared store. When another node
//! wants bytes, the agent admits no new permit there, waits for those in progress, has the [`LocalCache`] (the engine)
//! bring the bytes to the origin and drop them, and gives the token up. An engine without one has its origin to
//! itself.
//!
//! What must hold:
//! - A permit is taken before any lock of the file and dropped after all of them: a thread that waits for a token
//!   holds no lock that giving one up needs.
//! - A [`LocalCache`] takes no permit for the range that it gives up.

#[cfg(test)]
pub(crate) mod granting;

use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use halocline_api::control::TokenCounts;
use halocline_model::background::{Share, Use};
use halocline_model::layout::{CacheGeometry, Placement};
use halocline_model::request::{ByteRange, Direction};

use halocline_os::error::Result;

pub use halocline_meta::BLOCK;
pub use halocline_storage::volume::origin::REGISTRY;

/// How long to wait for a node that was asked what its cache has: far longer than a working node takes.
pub const ANSWER_LIMIT: Duration = Duration::from_millis(500);

/// A file of the origin, identified alike on every node that mounts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SharedFile {
    /// Inode number.
    pub inode: u64,
    /// Creation time in nanoseconds since 1970, which distinguishes files that reuse an inode number; 0 if the file
    /// system does not report it.
    pub born_ns: i64,
}

/// What a request wants to do with bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Want {
    /// Whether to read or to change them.
    pub direction: Direction,
    /// The bytes over which it needs the token.
    pub range: ByteRange,
    /// The bytes of it that the request reads or changes. One that changes the size, or reads past the end, needs a
    /// token without an end, but uses none of the bytes far beyond: those can be given to others at no cost.
    pub touches: ByteRange,
    /// Exclusively, even if others often want these bytes: for a change of the file's size or an append, which no two
    /// nodes may make concurrently.
    pub alone: bool,
}

/// A permit in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "it is to be ended"]
pub struct Grant {
    /// Whether bytes may be cached, by us or by the kernel. Otherwise everything goes to the origin, and nothing
    /// known about the file (including its size) outlives the permit.
    pub caches: bool,
    /// Whether others may have changed the file's bytes in the range, or its size, since this node last looked. Whoever
    /// ends the permit leaves this set only after looking: this node then knows the current state.
    pub renewed: bool,
    /// The whole range of the permit's tokens that are new to this node and allow caching, from the first to the last:
    /// all of it counts as known once somebody has looked. Empty if there are none.
    pub fresh: ByteRange,
    /// Identifies this permit among those of the file; for the agent.
    pub ticket: u64,
}

/// Consecutive blocks of a file that a node's cache has, clean.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocks {
    /// The file's number in that cache.
    pub file: u64,
    /// Where they are on the cache's servers.
    pub placement: Placement,
    /// The number of the first block: its offset in the file in blocks of 4 KiB.
    pub first: u64,
    /// The checksum of each block.
    pub sums: Vec<u32>,
}

impl Blocks {
    /// The bytes of the file.
    #[must_use]
    pub const fn range(&self) -> ByteRange {
        ByteRange::at(self.first.saturating_mul(BLOCK), self.sums.len() as u64 * BLOCK)
    }
}

/// What a node's cache has of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cached {
    /// How its servers are arranged.
    pub geometry: CacheGeometry,
    /// In the order of the file, without overlaps.
    pub blocks: Vec<Blocks>,
}

/// The cache of another node, as this one reaches it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerCache {
    /// The node's name.
    pub node: String,
    /// The path at which it is reached here.
    pub dir: PathBuf,
    /// The id of the cache that must be there.
    pub cache_id: String,
}

/// What the caches of other nodes have of a file.
#[derive(Debug, Clone)]
pub struct Copies {
    /// Each cache with its copies.
    pub all: Vec<(Arc<PeerCache>, Cached)>,
    /// Whether all nodes that were asked have stated everything; otherwise it is useful to ask again soon.
    pub are_all: bool,
}

impl Default for Copies {
    fn default() -> Self {
        Self { all: Vec::new(), are_all: true }
    }
}

/// The agent of a node.
pub trait Coherence: Debug + Send + Sync {
    /// Registers this node's cache, which gives up what other nodes ask for. Called once, before the first permit.
    fn attach(&self, local_cache: Weak<dyn LocalCache>);

    /// The tokens of a file: the same object for the same file, as long as a reference to it is held.
    ///
    /// # Errors
    /// If the store of tokens cannot be reached.
    fn tokens(&self, file: SharedFile) -> Result<Arc<dyn FileTokens>>;

    /// Returns all tokens and ends this node's session. The engine makes no more requests, and nothing is dirty.
    ///
    /// # Errors
    /// If part of it remains: the session must then be recovered.
    fn leave(&self) -> Result<()>;

    /// Counters of the node's tokens; `None` from an agent without tokens.
    fn counts(&self) -> Option<TokenCounts> {
        None
    }

    /// Whether the caches of other nodes can be read here ([`FileTokens::copies`]).
    fn reads_peers(&self) -> bool {
        false
    }

    /// What this node's low-priority work may use of the origin, now that the node does this with it. Asks nobody.
    fn share(&self, _own: Use) -> Share {
        Share::WHOLE
    }

    /// Whether this node may change the origin and serve what it has cached (I12).
    ///
    /// # Errors
    /// If it may not: since when, and what to do.
    fn check_lease(&self) -> Result<()>;
}

/// The tokens of one file on this node.
pub trait FileTokens: Debug + Send + Sync {
    /// Waits for a token that allows `want` and holds it until [`end`](Self::end).
    ///
    /// # Errors
    /// `EIO`, after a bounded time, if a failed node may have newer bytes there or if there is no valid lease.
    fn begin(&self, want: Want) -> Result<Grant>;

    /// The same, but asks nobody and does not wait: `None` unless the node holds the token already.
    fn begin_at_once(&self, _want: Want) -> Option<Grant> {
        None
    }

    /// The same for background work, which is postponed or left out rather than made to wait: `None` unless the node
    /// already holds the token and no other node wants it.
    fn try_begin(&self, want: Want) -> Option<Grant>;

    /// Whether this node holds all of `range` exclusively and knows its newest bytes, although it is giving it up. For
    /// the [`LocalCache`], which may rewrite unchanged bytes there until it returns.
    fn gives_alone(&self, _range: ByteRange) -> bool {
        false
    }

    /// Ends a permit.
    fn end(&self, grant: Grant);

    /// Asks the other nodes that may cache bytes of `range` which of them they have, and waits for their answers, at
    /// most for [`ANSWER_LIMIT`]. Each returned copy was clean on another node, under its token, after this call began,
    /// and lies in a range that this node has held shared ever since. So its bytes are the newest until this node gives
    /// up its token there, of which the [`LocalCache`] is told. The caller holds no permit.
    fn copies(&self, _range: ByteRange) -> Copies {
        Copies::default()
    }

    /// Why a request would wait for other nodes, or go to the origin because of them; `None` if it would not. Changes
    /// nothing, but may ask the store.
    fn explain(&self, _want: Want) -> Option<String> {
        None
    }
}

/// The cache of this node as its agent sees it: gives up bytes that other nodes want.
pub trait LocalCache: Send + Sync {
    /// Writes the dirty bytes of a range to the origin, durably; drops what is cached in it, including the kernel's
    /// pages, unless `keeps_clean`. No permit is in use in the range, and none begins before this returns.
    ///
    /// # Errors
    /// If not all bytes are on the origin: the token stays here, and the agent tries again.
    fn give_up(&self, file: SharedFile, range: ByteRange, keeps_clean: bool) -> Result<()>;

    /// Dirty bytes of a range that could not be given up, because they cannot be read from the cache. May name only
    /// some of them. Changes nothing.
    fn unreadable(&self, _file: SharedFile, _range: ByteRange) -> Vec<ByteRange> {
        Vec::new()
    }

    /// Whether anything of a file is cached, so that it costs something to give it up.
    fn caches(&self, _file: SharedFile) -> bool {
        true
    }

    /// Which blocks of a range are cached clean, with their checksums, so that another node can read them from this
    /// one's servers. The caller has a permit to read the range.
    fn cached(&self, _file: SharedFile, _range: ByteRange) -> Option<Cached> {
        None
    }
}

/// A permit, ended when it is dropped.
#[derive(Debug)]
pub struct Permit<'a> {
    tokens: &'a dyn FileTokens,
    grant: Grant,
    looked: bool,
}

impl<'a> Permit<'a> {
    /// Waits for a permit.
    ///
    /// # Errors
    /// As [`FileTokens::begin`].
    pub fn wait(tokens: &'a dyn FileTokens, want: Want) -> Result<Self> {
        Ok(Self { tokens, grant: tokens.begin(want)?, looked: false })
    }

    /// Takes a permit under a token that the node holds already.
    pub(crate) fn at_once(tokens: &'a dyn FileTokens, want: Want) -> Option<Self> {
        Some(Self { tokens, grant: tokens.begin_at_once(want)?, looked: false })
    }

    /// Takes a permit if that needs no waiting.
    pub(crate) fn try_take(tokens: &'a dyn FileTokens, want: Want) -> Option<Self> {
        Some(Self { tokens, grant: tokens.try_begin(want)?, looked: false })
    }

    /// What was granted.
    pub const fn grant(&self) -> Grant {
        self.grant
    }

    /// Notes that the engine has examined what others may have changed.
    pub const fn looked(&mut self) {
        self.looked = true;
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.tokens.end(Grant { renewed: self.grant.renewed && self.looked, ..self.grant });
    }
}
