//! What a mount is about to use, and as what.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::names::Access;

/// What a mount is about to use.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// The directories whose files it changes: absolute paths without links.
    pub dirs: &'a [&'a Path],
    /// The cache, or what stands for it.
    pub cache: &'a Path,
    /// What it does there.
    pub use_as: UseAs,
}

/// What a mount does with the directories that it claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UseAs {
    /// It never changes files by itself: it disturbs nobody who does not either.
    Reader,
    /// It changes files, and must be their only user.
    OnlyUser,
    /// It changes files, and knows of others that do so, too (`crates/cache/src/coherence.rs`), each with a cache of its own.
    Node,
}

impl Wanted<'_> {
    pub(super) fn access(&self) -> Access {
        match self.use_as {
            UseAs::Reader => Access::Read,
            UseAs::OnlyUser => Access::Change,
            // A missing cache belongs to nobody else.
            UseAs::Node => Access::Share(
                fs::metadata(self.cache).map_or((0, 0), |cache| (cache.dev(), cache.ino())),
            ),
        }
    }
}
