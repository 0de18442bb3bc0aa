//! What has several names in the tree (hard links), as far as the mount knows.

use std::ffi::OsString;

use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxHashMap;

use super::tiers::Entry;
use halocline_vfs::Stat;
use halocline_vfs::namespace::Node;

/// A directory and a name in it.
pub(super) type Name = (Node, OsString);

/// What has several names in the tree: its node knows them as long as somebody holds it.
#[derive(Debug, Default)]
pub(super) struct LinkedNodes {
    nodes: Mutex<FxHashMap<Entry, Node>>,
    /// Held while a name is added to or removed from what has others, or may have: of two threads
    /// that remove the last two names, one must know that it removes the last.
    counted: Mutex<()>,
}

impl LinkedNodes {
    /// An entry has several names.
    pub(super) fn keep(&self, entry: &Node) {
        self.nodes.lock().insert(entry.key(), entry.clone());
    }

    /// The names stand for another entry, or for nothing.
    pub(super) fn forget(&self, entry: Entry) {
        let forgotten = self.nodes.lock().remove(&entry);
        drop(forgotten);
    }

    /// The node of what has several names, which knows them.
    pub(super) fn node(&self, entry: Entry) -> Option<Node> {
        self.nodes.lock().get(&entry).cloned()
    }

    /// Nobody else changes how many names anything has until the guard is dropped. The caller holds
    /// `names` shared.
    pub(super) fn count(&self) -> MutexGuard<'_, ()> {
        self.counted.lock()
    }

    /// The same before a name goes that has these attributes, where that matters: then they must be
    /// looked at again.
    pub(super) fn count_before(&self, stat: &Stat) -> Option<MutexGuard<'_, ()>> {
        let may_have_others = match stat.kind() {
            libc::S_IFDIR => false,
            libc::S_IFLNK => true,
            _ => stat.raw.st_nlink > 1,
        };
        may_have_others.then(|| self.count())
    }
}
