//! What a policy may see: what is known in memory about the files on the SSD, namely which there are, their bytes and
//! their paths.

use std::path::PathBuf;

use super::linked_vnodes::LinkedVnodes;
use super::residents::{Resident, Residents};
use halocline_vfs::namespace::{Namespace, Vnode};

/// What a policy may see of the tiers. None of it requires a request to a disk.
#[derive(Debug, Clone, Copy)]
pub(super) struct PolicyView<'a> {
    /// The files on the SSD.
    pub(super) residents: &'a Residents,
    tree: &'a Namespace,
    linked_vnodes: &'a LinkedVnodes,
}

impl<'a> PolicyView<'a> {
    pub(super) const fn new(
        residents: &'a Residents,
        tree: &'a Namespace,
        linked_vnodes: &'a LinkedVnodes,
    ) -> Self {
        Self { residents, tree, linked_vnodes }
    }

    /// Paths of all names of a file that the mount knows; at least one.
    pub(super) fn paths_of(self, entry: &Vnode) -> Vec<PathBuf> {
        let known =
            self.linked_vnodes.vnode(entry.key()).map(|vnode| vnode.names()).unwrap_or_default();
        if known.len() < 2 {
            return vec![self.tree.path_of(entry)];
        }
        known.iter().map(|(parent, name)| self.tree.path_of(parent).join(name)).collect()
    }

    /// The same for a file on the SSD.
    pub(super) fn paths_of_resident(self, resident: &Resident) -> Vec<PathBuf> {
        let entry = self.residents.numbered(resident.number).map(|(entry, _)| entry);
        match entry.and_then(|entry| self.linked_vnodes.vnode(entry)) {
            Some(vnode) => self.paths_of(&vnode),
            None => vec![self.path_of(resident)],
        }
    }

    /// A path of a file on the SSD, relative to the root.
    pub(super) fn path_of(self, resident: &Resident) -> PathBuf {
        let (parent, name) = resident.name.lock().clone();
        self.tree.path_of(&parent).join(name)
    }
}
