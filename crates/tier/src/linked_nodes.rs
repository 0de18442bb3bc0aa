//! What has several names in the tree (hard links), as far as the mount knows it.

use std::ffi::OsString;

use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxHashMap;

use super::tiers::Entry;
use halocline_vfs::Stat;
use halocline_vfs::namespace::Node;

/// A directory and a name in it.
pub(super) type Name = (Node, OsString);

/// What has several names in the tree; its node knows the names as long as somebody holds it.
#[derive(Debug, Default)]
pub(super) struct LinkedNodes {
    nodes: Mutex<FxHashMap<Entry, Node>>,
    /// Held while a name is added to or removed from something that has others, or may have: if two threads remove the
    /// last two names, one of them must know that it removes the last.
    counted: Mutex<()>,
}

impl LinkedNodes {
    /// Notes that an entry has several names.
    pub(super) fn keep(&self, entry: &Node) {
        self.nodes.lock().insert(entry.key(), entry.clone());
    }

    /// Called when the names stand for another entry, or for nothing.
    pub(super) fn forget(&self, entry: Entry) {
        let forgotten = self.nodes.lock().remove(&entry);
        drop(forgotten);
    }

    /// The node of something that has several names; the node knows them.
    pub(super) fn node(&self, entry: Entry) -> Option<Node> {
        self.nodes.lock().get(&entry).cloned()
    }

    /// Prevents others from changing how many names anything has until the guard is dropped. The caller holds `names`
    /// shared.
    pub(super) fn count(&self) -> MutexGuard<'_, ()> {
        self.counted.lock()
    }

    /// The same before a name of something with these attributes is removed, if that matters: then the attributes must
    /// be read again.
    pub(super) fn count_before(&self, stat: &Stat) -> Option<MutexGuard<'_, ()>> {
        let may_have_others = match stat.kind() {
            libc::S_IFDIR => false,
            libc::S_IFLNK => true,
            _ => stat.raw.st_nlink > 1,
        };
        may_have_others.then(|| self.count())
    }
}
