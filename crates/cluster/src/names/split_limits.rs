//! From how many entries on the directories of a tier are split.

use std::collections::BTreeMap;

use halocline_model::namespace::InodeNumber;
use parking_lot::RwLock;

/// The most directories with a limit of their own that are remembered.
const SPARED_MAX: usize = 4096;

/// The limits of a node.
#[derive(Debug, Default)]
pub(super) struct SplitLimits {
    /// `None`: no directory is split.
    entries: Option<u64>,
    /// Directories that could not be split, and have other limits.
    spared: RwLock<BTreeMap<InodeNumber, u64>>,
}

impl SplitLimits {
    pub(super) fn new(entries: Option<u64>) -> Self {
        Self { entries: entries.map(|entries| entries.max(1)), spared: RwLock::default() }
    }

    /// From how many entries on a directory is split.
    pub(super) fn of(&self, directory: InodeNumber) -> Option<u64> {
        let entries = self.entries?;
        Some(self.spared.read().get(&directory).map_or(entries, |spared| entries.max(*spared)))
    }

    pub(super) fn spare(&self, directory: InodeNumber, entries: u64) {
        let mut spared = self.spared.write();
        if spared.len() >= SPARED_MAX {
            spared.clear();
        }
        spared.insert(directory, entries);
    }
}
