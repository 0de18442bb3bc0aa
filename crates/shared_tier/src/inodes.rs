//! The inodes that programs on this node refer to: by their numbers in the store, with the names under which they
//! were seen.
//!
//! The store finds things by name only. So an inode remembers some of its names; each is looked up again before use,
//! and forgotten if it leads to something else by now.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Weak};

use halocline_cluster::names::attributes::Attributes;
use halocline_model::namespace::{EntryName, InodeNumber, ROOT};
use halocline_os::shown_name::shown_name;
use halocline_vfs::Counted;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// The most names that are remembered of an inode.
const NAMES_MAX: usize = 16;

/// Something that a program refers to.
#[derive(Debug, Clone)]
pub struct Vnode(pub(crate) Arc<Inode>);

/// An inode that is in use on this node.
#[derive(Debug)]
pub(crate) struct Inode {
    /// Its number, which the store never gives again.
    pub(crate) number: InodeNumber,
    pub(crate) is_directory: bool,
    /// Whether it is a directory that had the sticky bit when its attributes were last shown.
    pub(crate) is_sticky: AtomicBool,
    /// The names under which it was seen, the most recent first.
    names: Mutex<VecDeque<EntryName>>,
    /// The name that it lost last.
    lost: Mutex<Option<EntryName>>,
    /// How many renames of it are under way on this node: it may have none of its names for a moment.
    pub(crate) renames: AtomicUsize,
    /// What programs here have open of it. Locked while that is noted in the store.
    pub(crate) noting: Mutex<Noting>,
    /// How to reach it without a name; never locked for long.
    pub(crate) without_name: Mutex<WithoutName>,
    table: Weak<Table>,
}

/// What programs on this node have open of a file, and what the store knows of that.
#[derive(Debug, Default)]
pub(crate) struct Noting {
    /// Open handles.
    pub(crate) handles: usize,
    /// Whether this node's open is noted in the store: if so, whether for writing, and after how many lapses of the
    /// node's lease.
    pub(crate) noted: Option<(bool, u64)>,
    /// Whether the store also has a note that the kernel may serve it ([`crate::passthrough`]).
    pub(crate) by_kernel: bool,
    /// Whether the kernel has taken a handle since.
    pub(crate) is_passed: bool,
    /// Whether all handles are closed, and that is noted in the store later ([`crate::closes`]).
    pub(crate) closes_later: bool,
    /// The file, kept after all handles are closed while the kernel may still serve mappings; it counts for the user
    /// whose handle was closed last.
    pub(crate) kept: Option<(Arc<File>, Option<Counted>)>,
}

/// How to reach an open file after its last name is gone.
#[derive(Debug, Default)]
pub(crate) struct WithoutName {
    /// One of the open files, as long as there are any.
    pub(crate) file: Option<Arc<File>>,
    /// The last known attributes; of a directory since it was first shown.
    pub(crate) last: Option<Attributes>,
    /// Whether only a look-up has it open ([`crate::recent_lookups`]), and no program.
    pub(crate) is_only_looked_up: bool,
}

/// All inodes in use, by number.
#[derive(Debug, Default)]
pub(crate) struct Table {
    inodes: Mutex<FxHashMap<u64, Weak<Inode>>>,
}

impl Table {
    /// The inode of a number that was seen under a name.
    pub(crate) fn intern(
        self: &Arc<Self>,
        number: InodeNumber,
        is_directory: bool,
        name: Option<EntryName>,
    ) -> Vnode {
        let mut inodes = self.inodes.lock();
        let live = inodes.get(&number.0).and_then(Weak::upgrade);
        let inode = live.unwrap_or_else(|| {
            let inode = Arc::new(Inode {
                number,
                is_directory,
                is_sticky: AtomicBool::new(false),
                names: Mutex::default(),
                lost: Mutex::default(),
                renames: AtomicUsize::new(0),
                noting: Mutex::default(),
                without_name: Mutex::default(),
                table: Arc::downgrade(self),
            });
            inodes.insert(number.0, Arc::downgrade(&inode));
            inode
        });
        drop(inodes);
        if let Some(name) = name.filter(|_| number != ROOT) {
            inode.add_name(name);
        }
        Vnode(inode)
    }

    /// The inode of a number, if it is in use.
    pub(crate) fn find(&self, number: InodeNumber) -> Option<Vnode> {
        self.inodes.lock().get(&number.0).and_then(Weak::upgrade).map(Vnode)
    }
}

impl Inode {
    /// Whether a program here has it open.
    pub(crate) fn is_open(&self) -> bool {
        self.without_name.lock().file.is_some()
    }

    /// The names under which it was seen, the most recent first.
    pub(crate) fn names(&self) -> Vec<EntryName> {
        self.names.lock().iter().cloned().collect()
    }

    /// What it is called in messages: its name, if one is known, and its number.
    pub(crate) fn told(&self) -> String {
        let number = self.number.0;
        self.name().map_or_else(
            || format!("inode {number}"),
            |known| format!("{} (inode {number})", shown_name(known.name.as_bytes())),
        )
    }

    /// The name under which it was seen most recently.
    pub(crate) fn name(&self) -> Option<EntryName> {
        self.names.lock().front().cloned()
    }

    /// Records a name under which it was seen. A directory then has no other name.
    pub(crate) fn add_name(&self, name: EntryName) {
        let mut names = self.names.lock();
        if names.front() == Some(&name) {
            return;
        }
        if self.is_directory {
            names.clear();
        }
        names.retain(|known| *known != name);
        names.push_front(name);
        names.truncate(NAMES_MAX);
    }

    /// Whether the kernel may hold a handle or mapping of it. Does not wait: whoever is opening it may wait for the store, for a
    /// move, or for a lock that the caller holds. Then the answer is yes, as for a mapping.
    pub(crate) fn is_served_by_kernel(&self) -> bool {
        self.noting
            .try_lock()
            .is_none_or(|noting| noting.is_passed && (noting.handles > 0 || noting.kept.is_some()))
    }

    /// Forgets a name that no longer leads to it.
    pub(crate) fn remove_name(&self, name: &EntryName) {
        let mut names = self.names.lock();
        let before = names.len();
        names.retain(|known| known != name);
        if names.len() < before {
            *self.lost.lock() = Some(name.clone());
        }
    }

    /// The name under which it was seen, or had been until it lost it.
    pub(crate) fn last_name(&self) -> Option<EntryName> {
        self.name().or_else(|| self.lost.lock().clone())
    }
}

impl Drop for Inode {
    fn drop(&mut self) {
        let Some(table) = self.table.upgrade() else { return };
        let mut inodes = table.inodes.lock();
        if inodes.get(&self.number.0).is_some_and(|entry| std::ptr::eq(entry.as_ptr(), self)) {
            inodes.remove(&self.number.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use halocline_model::namespace::Name;

    use super::*;

    fn name(directory: u64, name: &str) -> EntryName {
        EntryName { directory: InodeNumber(directory), name: Name::from(name) }
    }

    #[test]
    fn an_inode_is_one_while_it_is_used_and_knows_its_latest_names() {
        let table = Arc::new(Table::default());
        let one = table.intern(InodeNumber(5), false, Some(name(1, "a")));
        let again = table.intern(InodeNumber(5), false, Some(name(1, "b")));
        assert!(Arc::ptr_eq(&one.0, &again.0));
        assert_eq!(one.0.names(), [name(1, "b"), name(1, "a")]);
        (0..100).for_each(|at| one.0.add_name(name(2, &at.to_string())));
        assert_eq!(one.0.names().len(), NAMES_MAX);
        one.0.remove_name(&name(2, "99"));
        assert_eq!(one.0.name(), Some(name(2, "98")));
        drop((one, again));
        assert!(table.find(InodeNumber(5)).is_none() && table.inodes.lock().is_empty());
        let directory = table.intern(InodeNumber(6), true, Some(name(1, "d")));
        directory.0.add_name(name(1, "e"));
        assert_eq!(directory.0.names(), [name(1, "e")]);
        assert!(table.intern(ROOT, true, Some(name(1, "x"))).0.name().is_none());
    }
}
