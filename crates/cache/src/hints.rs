//! Hints from programs: ranks, communicator sizes, wishes for a file.
//!
//! A hint comes before the open that it is about, because direct I/O is chosen at open.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use crate::extent::file::{CachedFile, FileHint};
use halocline_vfs::Caller;

/// Limit of paths whose hints no open has claimed yet.
const PENDING_MAX: usize = 4096;

/// Hints by path, kept until the file is opened.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    pending: Mutex<HashMap<PathBuf, FileHint>>,
}

impl Hints {
    /// Notes a hint for a path below the origin.
    pub(crate) fn note(&self, path: &Path, hint: FileHint) {
        let mut pending = self.pending.lock();
        if pending.len() >= PENDING_MAX {
            pending.clear();
        }
        pending.insert(path.to_owned(), hint);
    }

    /// Applies the hint to a file that is being opened. Returns whether it asks for direct I/O.
    pub(crate) fn on_open(&self, path: &Path, _caller: Caller, file: &CachedFile) -> bool {
        let pending = self.pending.lock();
        let Some(hint) = pending.get(path) else {
            return file.hint.get().is_some_and(|hint| hint.direct);
        };
        file.hint.give(hint.clone());
        hint.direct
    }
}
