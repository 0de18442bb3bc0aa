//! What a policy of a file tier is told about files when it decides: their sizes, and what jobs announce of them.

use std::cmp::Ordering;
use std::collections::HashMap;

use halocline_model::tier::{FileId, Outlook};

use super::job::Ahead;

/// What is known about files.
#[derive(Debug, Default)]
pub struct FileFacts {
    /// Bytes of each file.
    pub sizes: HashMap<FileId, u64>,
    /// Announced references to come of files that jobs name.
    pub ahead: HashMap<FileId, Ahead>,
    /// Whether the file in question is one of these.
    pub announced: bool,
}

impl Outlook for FileFacts {
    fn size(&self, file: FileId) -> u64 {
        self.sizes.get(&file).copied().unwrap_or(0)
    }

    fn is_known(&self) -> bool {
        self.announced
    }

    fn later(&self, file: FileId, horizon: u64) -> u64 {
        self.ahead.get(&file).map_or(0, |ahead| ahead.later(horizon))
    }

    fn next(&self, file: FileId) -> Option<u64> {
        self.ahead.get(&file)?.next()
    }

    fn by_name(&self, one: FileId, other: FileId) -> Ordering {
        one.cmp(&other)
    }
}
