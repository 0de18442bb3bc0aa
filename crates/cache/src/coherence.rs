//! The seam between an engine and the other nodes that cache files of the same origin (I11 to I14).
//!
//! An engine that was given a [`Coherence`] holds a permit of the file's [`FileTokens`] over the bytes of
//! each request, and of each background move; the node's agent behind it gets the tokens from the shared
//! store. When another node wants bytes, the agent lets no new permit begin there, waits for those that are
//! under way, has the [`Holder`] (the engine) bring the bytes to the origin and drop them, and gives the token up.
//! An engine that was given none is alone with its origin.
//!
//! What must hold:
//! - A permit is taken before any lock of the file and dropped after all of them: whoever waits for a
//!   token holds nothing that giving one up needs.
//! - A [`Holder`] takes no permit of the range that it gives up.

use std::fmt::Debug;
use std::sync::{Arc, Weak};

use halocline_api::control::TokenCounts;
use halocline_model::request::{ByteRange, Direction};

use halocline_os::error::Result;

pub use halocline_storage::volume::origin::REGISTRY;

/// A file of the origin as every node that has it mounted knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SharedFile {
    /// Inode number.
    pub inode: u64,
    /// When it was made, in nanoseconds since 1970, which tells two files apart that had one inode number one
    /// after the other; 0 where the file system does not say.
    pub born_ns: i64,
}

/// What a request wants to do with bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Want {
    /// Read them, or change them.
    pub direction: Direction,
    /// Which.
    pub range: ByteRange,
    /// Alone, however often others want them: a change of the file's size, or an append, which no two nodes
    /// may make side by side.
    pub alone: bool,
}

/// A permit under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "it is to be ended"]
pub struct Grant {
    /// Whether bytes may be kept, on the cache or by the kernel. Otherwise everything goes to the origin, and
    /// nothing that is known of the file (its size, too) outlives the permit.
    pub caches: bool,
    /// Whether others may have changed the file's bytes in the range, or its size, since this node had a permit
    /// there.
    pub renewed: bool,
    /// Tells this permit from others of the file; for the agent.
    pub ticket: u64,
}

/// The agent of a node.
pub trait Coherence: Debug + Send + Sync {
    /// Says who gives up what other nodes ask for. Called once, before the first permit.
    fn attach(&self, holder: Weak<dyn Holder>);

    /// The tokens of a file: the same ones for the same file, while anybody keeps them.
    ///
    /// # Errors
    /// If the store of tokens cannot be reached.
    fn tokens(&self, file: SharedFile) -> Result<Arc<dyn FileTokens>>;

    /// Gives all tokens back and ends this node's session: the engine asks for nothing any more. Nothing is dirty.
    ///
    /// # Errors
    /// If something of it is left: its session must be recovered then.
    fn leave(&self) -> Result<()>;

    /// What was counted of the node's tokens; `None` from one that keeps none.
    fn counts(&self) -> Option<TokenCounts> {
        None
    }

    /// Whether this node may change the origin and serve what it has cached (I12).
    ///
    /// # Errors
    /// Says since when it may not, and what to do.
    fn check_lease(&self) -> Result<()>;
}

/// The tokens of one file on this node.
pub trait FileTokens: Debug + Send + Sync {
    /// Waits for a token that allows `want` and holds it until [`end`](Self::end).
    ///
    /// # Errors
    /// `EIO` if a node that is gone may have newer bytes there, or if there is no valid lease; after a
    /// bounded time.
    fn begin(&self, want: Want) -> Result<Grant>;

    /// The same for background work, which is put off instead of waiting: `None` unless the node holds the
    /// token already and nobody else wants it.
    fn try_begin(&self, want: Want) -> Option<Grant>;

    /// Ends a permit.
    fn end(&self, grant: Grant);

    /// Why a request would wait for other nodes, or go to the origin because of them; `None` if it would not. Changes
    /// nothing, but may ask the store.
    fn explain(&self, _want: Want) -> Option<String> {
        None
    }
}

/// What gives up bytes that other nodes want: the engine.
pub trait Holder: Send + Sync {
    /// Brings what is dirty of a range to the origin, durably; drops what is cached there, the kernel's pages included,
    /// unless `keeps_clean`. No permit is under way in the range, and none begins before this returns.
    ///
    /// # Errors
    /// The bytes are not all on the origin: the token stays here, and it is tried again.
    fn give_up(&self, file: SharedFile, range: ByteRange, keeps_clean: bool) -> Result<()>;

    /// Which ranges of which files are dirty: what a node says that it holds after the store forgot it.
    fn dirty(&self) -> Vec<(SharedFile, ByteRange)>;
}

/// A permit, ended when it is dropped.
#[derive(Debug)]
pub struct Permit<'a> {
    tokens: &'a dyn FileTokens,
    grant: Grant,
}

impl<'a> Permit<'a> {
    /// Waits for it.
    ///
    /// # Errors
    /// As [`FileTokens::begin`].
    pub fn wait(tokens: &'a dyn FileTokens, want: Want) -> Result<Self> {
        Ok(Self { tokens, grant: tokens.begin(want)? })
    }

    /// Takes it, if that needs no waiting.
    pub(crate) fn try_take(tokens: &'a dyn FileTokens, want: Want) -> Option<Self> {
        Some(Self { tokens, grant: tokens.try_begin(want)? })
    }

    /// What was granted.
    pub const fn grant(&self) -> Grant {
        self.grant
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.tokens.end(self.grant);
    }
}
