//! Files and directories with more extended attributes than the kernel lists. Whoever may write to one can give it so many on XFS and
//! tmpfs: past the mounts, which refuse it. Then nothing tells their names; only the value of a name that is known is returned.
//!
//! What must hold: one such file or directory keeps nothing from being checked and built again but its own further names and
//! attributes. What decides access, ACLs and capabilities, has known names, and is always read.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use halocline_cluster::names::attributes::{Attributes, Kind};
use halocline_model::namespace::ROOT;

use super::Repair;
use super::disks::{Disk, Disks};
use super::findings::Findings;
use super::scan::{Item, Scanned, tell};
use super::view::View;
use crate::places::own_xattrs::{self, owner_permissions};

/// Reads what a sound store has of them by its names.
pub(super) fn read_by_name(disks: &mut Disks, view: &View) {
    for disk in &mut disks.all {
        if disk.scanned.root_has_long_list
            && disk.node.is_none()
            && let Ok(root) = disk.tree.look(None)
        {
            let stored = view.directory_attributes.get(&ROOT.0);
            add_stored(&root, disk.scanned.root.as_mut().zip(stored));
        }
        for at in long(&disk.scanned).collect::<Vec<_>>() {
            if let Ok(fd) = disk.look(at) {
                read_item(&fd, &mut disk.scanned.items[at], view);
            }
        }
    }
}

/// The items with long lists.
fn long(scanned: &Scanned) -> impl Iterator<Item = usize> {
    let items = scanned.items.iter().enumerate();
    items.filter(|(_, item)| item.has_long_list).map(|(at, _)| at)
}

fn read_item(fd: &OwnedFd, item: &mut Item, view: &View) {
    let Some(number) = item.number else { return };
    if item.attributes.kind == Kind::Directory {
        add_stored(fd, Some(&mut item.attributes).zip(view.directory_attributes.get(&number)));
    } else if let Some(stored) = view.files.get(&number) {
        add_stored(fd, Some((&mut item.attributes, &stored.attributes)));
        let names = stored.names.iter();
        let listed = names.filter(|(directory, name)| own_xattrs::has_name(fd, *directory, name));
        item.names = listed.cloned().collect();
        item.names.sort();
    }
}

/// Adds the attributes that the store has, too.
fn add_stored(fd: &impl AsFd, of: Option<(&mut Attributes, &Attributes)>) {
    let Some((attributes, stored)) = of else { return };
    for name in stored.xattrs.keys() {
        if let Ok(value) = owner_permissions::get_on(fd, OsStr::from_bytes(name)) {
            attributes.xattrs.entry(name.clone()).or_insert(value);
        }
    }
}

/// Tells of them: in a sound store what a rebuild would lose, and in a rebuild what it does not give back.
pub(super) fn tell_all(repair: &Repair<'_>, findings: &mut Findings) {
    let what = if repair.is_rebuilt {
        "the names of its extended attributes take more than the 64 KiB that the kernel lists: those of programs are left out, and so \
         are its further names, if it has any (hard links); remove some of them on the disk (setfattr -x NAME), and repair again"
    } else {
        "the names of its extended attributes take more than the 64 KiB that the kernel lists: a rebuild from the disks would leave \
         those of programs out, and its further names, if it has any (hard links); remove some of them (setfattr -x NAME)"
    };
    let mut add = |path: &str| tell(&mut findings.not_rebuilt, format!("{path}: {what}"));
    for disk in &repair.disks.all {
        let Disk { tree, scanned, .. } = disk;
        if scanned.root_has_long_list {
            add(&tree.path.display().to_string());
        }
        long(scanned).for_each(|at| add(&disk.shown(at)));
    }
}
