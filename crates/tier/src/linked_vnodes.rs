//! What has several names in the tree (hard links), as far as the mount knows it.

use std::ffi::OsString;

use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxHashMap;

use super::tiers::Entry;
use halocline_vfs::Stat;
use halocline_vfs::namespace::Vnode;

/// A directory and a name in it.
pub(super) type Name = (Vnode, OsString);

/// What has several names in the tree; its vnode knows the names as long as somebody holds it.
#[derive(Debug, Default)]
pub(super) struct LinkedVnodes {
    vnodes: Mutex<FxHashMap<Entry, Vnode>>,
    /// Held while a name is added to or removed from something that has others, or may have: if two threads remove the
    /// last two names, one of them must know that it removes the last.
    counted: Mutex<()>,
}

impl LinkedVnodes {
    /// Notes that an entry has several names.
    pub(super) fn keep(&self, entry: &Vnode) {
        self.vnodes.lock().insert(entry.key(), entry.clone());
    }

    /// Called when the names stand for another entry, or for nothing.
    pub(super) fn forget(&self, entry: Entry) {
        let forgotten = self.vnodes.lock().remove(&entry);
        drop(forgotten);
    }

    /// The vnode of something that has several names; the vnode knows them.
    pub(super) fn vnode(&self, entry: Entry) -> Option<Vnode> {
        self.vnodes.lock().get(&entry).cloned()
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
