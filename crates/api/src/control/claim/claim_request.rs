//! What a mount wants to use, and how.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::names::Access;

/// What a mount wants to use.
#[derive(Debug, Clone, Copy)]
pub struct ClaimRequest<'a> {
    /// The directories whose files it changes: absolute paths without links.
    pub dirs: &'a [&'a Path],
    /// The cache, or what identifies the user instead.
    pub cache: &'a Path,
    /// How it uses them.
    pub use_as: UseAs,
}

/// How a mount uses the directories that it claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UseAs {
    /// It never changes files: it conflicts only with mounts that do.
    Reader,
    /// It changes files, and must be their only user.
    OnlyUser,
    /// It changes files and coordinates with others that do (`crates/cache/src/coherence.rs`), each with a cache of its
    /// own.
    Node,
}

impl ClaimRequest<'_> {
    pub(super) fn access(&self) -> Access {
        match self.use_as {
            UseAs::Reader => Access::Read,
            UseAs::OnlyUser => Access::Change,
            // A missing cache cannot belong to anyone else.
            UseAs::Node => Access::Share(
                fs::metadata(self.cache).map_or((0, 0), |cache| (cache.dev(), cache.ino())),
            ),
        }
    }
}
