//! The kernel's vnode numbers and the engine's vnodes.
//!
//! A vnode's number is the origin's inode number, so that `stat` and `readdir` agree with the origin; if that number is
//! taken (by another file system below the origin) or reserved, a number above 2^63 is invented. The root is 1. An
//! entry lives while the kernel has looked it up more often than forgotten it; a number that is reused later has
//! another generation.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::RwLock;

use super::locks::Locks;
use super::served_by::ServedBy;
use super::set_id_check::SetIdCheck;
use super::stale_pages::Pages;

/// Number of the root.
pub(super) const ROOT: u64 = 1;
/// Invented numbers start here.
const SYNTHETIC: u64 = 1 << 63;

/// What the kernel knows under one number.
#[derive(Debug)]
pub(super) struct Inode<N> {
    /// The engine's vnode.
    pub(super) vnode: N,
    /// The kernel's number.
    pub(super) number: u64,
    /// Distinguishes successive uses of one number.
    pub(super) generation: u64,
    /// Whether it is known to have neither set-id bits nor file capabilities: then a write needs no check.
    pub(super) set_id_check: SetIdCheck,
    /// Whether the kernel serves, or served, handles that can map the file for writing: such a mapping changes its size
    /// and times without notice.
    pub(super) mapped: AtomicBool,
    /// Who serves its open handles.
    pub(super) served_by: ServedBy,
    /// Whether the kernel's pages of it may be older than direct writes.
    pub(super) pages: Pages,
    /// Whether the kernel may have been told, since the last change of this directory, that it may keep the attributes.
    pub(super) kept_briefly: AtomicBool,
    /// Locks of programs, if they are held on the origin's file.
    pub(super) locks: Locks,
    lookups: AtomicU64,
}

/// Everything that the kernel knows.
#[derive(Debug)]
pub(super) struct InodeTable<N> {
    maps: RwLock<Maps<N>>,
    generation: AtomicU64,
}

#[derive(Debug)]
struct Maps<N> {
    by_number: HashMap<u64, Arc<Inode<N>>>,
    by_key: HashMap<(u64, u64), u64>,
    synthetic: u64,
}

impl<N> InodeTable<N> {
    /// A table with the root, which is never forgotten.
    pub(super) fn new(key: (u64, u64), root: N) -> Self {
        let table = Self {
            maps: RwLock::new(Maps {
                by_number: HashMap::new(),
                by_key: HashMap::new(),
                synthetic: SYNTHETIC,
            }),
            generation: AtomicU64::new(0),
        };
        table.insert(&mut table.maps.write(), key, ROOT, root);
        table
    }

    /// The inode of a number.
    pub(super) fn get(&self, number: u64) -> Option<Arc<Inode<N>>> {
        self.maps.read().by_number.get(&number).cloned()
    }

    /// The inode of a vnode, if it is known.
    pub(super) fn find(&self, key: (u64, u64)) -> Option<Arc<Inode<N>>> {
        let maps = self.maps.read();
        maps.by_key.get(&key).and_then(|number| maps.by_number.get(number)).cloned()
    }

    /// Counts a lookup that is about to be answered, and gives the inode its number.
    pub(super) fn remember(&self, key: (u64, u64), vnode: N) -> Arc<Inode<N>> {
        let mut maps = self.maps.write();
        if let Some(inode) = maps.by_key.get(&key).and_then(|number| maps.by_number.get(number)) {
            inode.lookups.fetch_add(1, Ordering::Relaxed);
            return inode.clone();
        }
        let mut number = key.1;
        if number <= ROOT || number >= SYNTHETIC || maps.by_number.contains_key(&number) {
            maps.synthetic += 1;
            number = maps.synthetic;
        }
        self.insert(&mut maps, key, number, vnode)
    }

    /// Subtracts `count` lookups. Whether none is left, so that the inode is forgotten.
    pub(super) fn forget(
        &self,
        number: u64,
        count: u64,
        key: impl FnOnce(&N) -> (u64, u64),
    ) -> bool {
        let mut maps = self.maps.write();
        let Some(inode) = maps.by_number.get(&number).filter(|_| number != ROOT) else {
            return false;
        };
        // The count only changes under the write lock.
        let left = inode.lookups.load(Ordering::Relaxed).saturating_sub(count);
        inode.lookups.store(left, Ordering::Relaxed);
        if left == 0 {
            let key = key(&inode.vnode);
            maps.by_key.remove(&key);
            let gone = maps.by_number.remove(&number);
            drop(maps);
            drop(gone);
        }
        left == 0
    }

    fn insert(&self, maps: &mut Maps<N>, key: (u64, u64), number: u64, vnode: N) -> Arc<Inode<N>> {
        let inode = Arc::new(Inode {
            vnode,
            number,
            generation: self.generation.fetch_add(1, Ordering::Relaxed),
            set_id_check: SetIdCheck::default(),
            mapped: AtomicBool::new(false),
            served_by: ServedBy::default(),
            pages: Pages::default(),
            kept_briefly: AtomicBool::new(false),
            locks: Locks::default(),
            lookups: AtomicU64::new(1),
        });
        maps.by_key.insert(key, number);
        maps.by_number.insert(number, inode.clone());
        inode
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_origins_unless_taken() {
        let table = InodeTable::new((1, 100), "root");
        assert_eq!(table.remember((1, 100), "root").number, ROOT);
        assert_eq!(table.remember((1, 7), "a").number, 7);
        assert_eq!(table.remember((1, 7), "a").number, 7);
        assert!(table.remember((2, 7), "other file system").number > SYNTHETIC);
        assert!(table.remember((1, 1), "reserved").number > SYNTHETIC);
    }

    #[test]
    fn forgotten_numbers_come_back_with_another_generation() {
        let table = InodeTable::new((1, 100), "root");
        let first = table.remember((1, 7), "a").generation;
        table.remember((1, 7), "a");
        table.forget(7, 1, |_| (1, 7));
        assert!(table.get(7).is_some());
        table.forget(7, 1, |_| (1, 7));
        assert!(table.get(7).is_none());
        assert_ne!(table.remember((1, 7), "b").generation, first);
        table.forget(ROOT, 99, |_| (1, 100));
        assert!(table.get(ROOT).is_some());
    }
}
