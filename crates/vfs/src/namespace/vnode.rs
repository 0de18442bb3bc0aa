//! One inode of the tree, and the table of the live ones.

pub(super) mod descriptors;

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use rustc_hash::FxHasher;

use crate::Stat;

use descriptors::Descriptors;

/// Longest chain of names that is followed upwards; a loop of stale names ends here.
pub(super) const DEPTH_MAX: usize = 1 << 16;

/// A file, directory, link or special file of a [`super::Namespace`]; cheap to clone.
#[derive(Clone)]
pub struct Vnode(pub(super) Arc<Inode>);

/// The state of a vnode. It holds its parents, never its children.
pub(super) struct Inode {
    pub(super) key: (u64, u64),
    /// Whether it was used since the descriptor cache last examined it.
    pub(super) used: AtomicBool,
    /// Fingerprint of size and times at the last call of [`Vnode::note_seen`]; 0 before that.
    seen: AtomicU64,
    pub(super) state: Mutex<State>,
    table: Weak<VnodeTable>,
}

#[derive(Default)]
pub(super) struct State {
    /// Names under which the vnode was seen; several for hard links, one for a directory.
    pub(super) links: Vec<Link>,
    pub(super) fd: Option<Arc<OwnedFd>>,
    /// Whether the descriptor cache counts `fd`.
    pub(super) counted: bool,
    /// Number of handles that keep `fd` open.
    pub(super) pins: usize,
}

impl State {
    /// Whether `fd` must stay: an open handle needs it, or there is no name by which to find the vnode.
    pub(super) fn must_stay(&self) -> bool {
        self.pins > 0 || self.links.is_empty()
    }
}

/// A name in a directory.
#[derive(Clone)]
pub(super) struct Link {
    pub(super) parent: Vnode,
    pub(super) name: OsString,
}

impl Link {
    fn is(&self, parent: &Vnode, name: &OsStr) -> bool {
        self.parent == *parent && self.name == name
    }
}

impl PartialEq for Vnode {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Vnode {}

impl fmt::Debug for Vnode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({:?} at {})", self.0.key, self.path().display())
    }
}

impl Vnode {
    /// Device and inode number.
    pub fn key(&self) -> (u64, u64) {
        self.0.key
    }

    /// Notes size and times of the inode; returns whether they are unchanged since the last call, or this is the first.
    pub fn note_seen(&self, raw: &libc::stat64) -> bool {
        let mut hasher = FxHasher::default();
        let times = (raw.st_mtime, raw.st_mtime_nsec, raw.st_ctime, raw.st_ctime_nsec);
        (raw.st_size, times).hash(&mut hasher);
        let now = hasher.finish().max(1);
        let before = self.0.seen.swap(now, Ordering::Relaxed);
        before == now || before == 0
    }

    /// A directory and a name in it under which the vnode is known; `None` once it has lost all names.
    pub fn known_as(&self) -> Option<(Vnode, OsString)> {
        self.link().map(|link| (link.parent, link.name))
    }

    /// All directories, and names in them, under which the vnode is known.
    pub fn names(&self) -> Vec<(Vnode, OsString)> {
        let state = self.0.state.lock();
        state.links.iter().map(|link| (link.parent.clone(), link.name.clone())).collect()
    }

    /// A name under which the vnode is known.
    pub(super) fn link(&self) -> Option<Link> {
        self.0.state.lock().links.first().cloned()
    }

    /// Adds a name: a directory has one, a file may have several.
    pub(super) fn add_link(&self, parent: &Vnode, name: &OsStr, directory: bool) {
        let link = Link { parent: parent.clone(), name: name.to_owned() };
        let mut dropped = Vec::new();
        let mut state = self.0.state.lock();
        if state.links.iter().any(|known| known.is(parent, name)) {
            return;
        }
        if directory {
            dropped.append(&mut state.links);
        }
        state.links.push(link);
        debug_assert!(!directory || state.links.len() == 1, "a directory has one name");
        drop(state);
    }

    /// Removes a name; the descriptor stays if that was the last one.
    pub(super) fn remove_link(&self, parent: &Vnode, name: &OsStr) {
        let mut state = self.0.state.lock();
        let at = state.links.iter().position(|known| known.is(parent, name));
        let dropped = at.map(|at| state.links.swap_remove(at));
        debug_assert!(
            !state.links.iter().any(|known| known.is(parent, name)),
            "a name is known once"
        );
        drop(state);
        drop(dropped);
    }

    pub(super) fn path(&self) -> PathBuf {
        let mut names = Vec::new();
        let mut link = self.link();
        while let Some(Link { parent, name }) = link {
            if names.len() > DEPTH_MAX {
                break;
            }
            names.push(name);
            link = parent.link();
        }
        names.iter().rev().collect()
    }
}

thread_local! {
    /// The names of vnodes that this thread is dropping; `None` if it drops none.
    static DROPPED: Cell<Option<Vec<Link>>> = const { Cell::new(None) };
}

/// Drops names, and the directories that nothing else holds. Not by recursion: a deep tree would take all of the stack.
fn drop_links(mut links: Vec<Link>) {
    // At the end of a thread there is no list any more.
    let Ok(dropping) = DROPPED.try_with(Cell::take) else { return };
    if let Some(mut dropped) = dropping {
        // The loop below, in a caller, goes on with them.
        dropped.append(&mut links);
        DROPPED.set(Some(dropped));
        return;
    }
    DROPPED.set(Some(Vec::new()));
    while let Some(link) = links.pop() {
        drop(link);
        links.append(&mut DROPPED.take().unwrap_or_default());
        DROPPED.set(Some(Vec::new()));
    }
    DROPPED.set(None);
}

impl Drop for Inode {
    fn drop(&mut self) {
        self.forget();
        drop_links(std::mem::take(&mut self.state.get_mut().links));
    }
}

impl Inode {
    /// Takes a vnode that is dropped out of the table.
    fn forget(&mut self) {
        let Some(table) = self.table.upgrade() else { return };
        table.forget(self);
        if self.state.get_mut().counted {
            table.descriptors.uncount();
        }
    }
}

/// Keeps a vnode's descriptor open; see [`super::Namespace::pin`].
#[derive(Debug)]
pub struct Pin {
    pub(super) vnode: Vnode,
    pub(super) held: bool,
}

impl Drop for Pin {
    fn drop(&mut self) {
        if self.held {
            self.vnode.0.state.lock().pins -= 1;
            if let Some(table) = self.vnode.0.table.upgrade() {
                table.descriptors.unpin();
            }
        }
    }
}

/// The live vnodes by inode, and their descriptors.
pub(super) struct VnodeTable {
    vnodes: Mutex<HashMap<(u64, u64), Weak<Inode>>>,
    root: OnceLock<(u64, u64)>,
    pub(super) descriptors: Descriptors,
}

impl fmt::Debug for VnodeTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VnodeTable")
            .field("live", &self.vnodes.lock().len())
            .finish_non_exhaustive()
    }
}

impl VnodeTable {
    pub(super) fn new(descriptors: Descriptors) -> Self {
        Self { vnodes: Mutex::default(), root: OnceLock::new(), descriptors }
    }

    /// Makes the root's vnode: it has no name, so its descriptor stays forever.
    pub(super) fn root(self: &Arc<Self>, stat: &Stat, fd: OwnedFd) -> Vnode {
        let vnode = self.vnode(stat.key());
        vnode.0.state.lock().fd = Some(Arc::new(fd));
        assert_eq!(*self.root.get_or_init(|| vnode.key()), vnode.key(), "a tree has one root");
        vnode
    }

    /// The vnode of an inode that was just seen as `name` in `parent`.
    pub(super) fn intern(self: &Arc<Self>, stat: &Stat, parent: &Vnode, name: &OsStr) -> Vnode {
        let vnode = self.vnode(stat.key());
        // The root, seen through a bind mount below itself, stays the root without a name.
        if self.root.get() != Some(&vnode.key()) {
            let directory = stat.kind() == libc::S_IFDIR;
            vnode.add_link(parent, name, directory);
        }
        vnode
    }

    pub(super) fn find(&self, key: (u64, u64)) -> Option<Vnode> {
        self.vnodes.lock().get(&key).and_then(Weak::upgrade).map(Vnode)
    }

    fn vnode(self: &Arc<Self>, key: (u64, u64)) -> Vnode {
        let mut vnodes = self.vnodes.lock();
        if let Some(live) = vnodes.get(&key).and_then(Weak::upgrade) {
            assert_eq!(live.key, key, "a node never stands for another inode");
            return Vnode(live);
        }
        let inode = Arc::new(Inode {
            key,
            used: AtomicBool::new(false),
            seen: AtomicU64::new(0),
            state: Mutex::default(),
            table: Arc::downgrade(self),
        });
        vnodes.insert(key, Arc::downgrade(&inode));
        Vnode(inode)
    }

    /// Called from the vnode's own drop: removes its entry unless a newer vnode has taken the key.
    fn forget(&self, inode: &Inode) {
        let mut vnodes = self.vnodes.lock();
        if vnodes.get(&inode.key).is_some_and(|entry| std::ptr::eq(entry.as_ptr(), inode)) {
            vnodes.remove(&inode.key);
        }
    }
}

impl Inode {
    /// The descriptor if it is open, marking it as used.
    pub(super) fn cached(&self) -> Option<Arc<OwnedFd>> {
        let fd = self.state.lock().fd.clone();
        if fd.is_some() && !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
        fd
    }
}
