//! Changes that the disks did not follow, because a node died between the store's change and theirs: names that are
//! recorded with files, second places of files, and removed directories.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use halocline_cluster::names::attributes::{Kind, Location};
use halocline_model::namespace::{Name, ROOT};
use halocline_os::error::Result;
use halocline_vfs::namespace::stat_descriptor;
use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::disks::{Disk, Disks};
use super::links_and_devices;
use super::merge::{At, FoundNames, is_in};
use super::refused::Refused;
use super::view::View;
use crate::places::own_xattrs::{self, NameIn};

/// What must be put right.
#[derive(Debug, Default)]
pub(super) struct UnfinishedChanges {
    /// Files whose recorded names differ from the store, and the right names.
    pub(super) relisted: Vec<(At, Vec<(u64, Name)>)>,
    /// Second places of files, which the bytes have left.
    pub(super) places: Vec<At>,
    /// Further paths of files, which the tier of one node or somebody by hand gave to each name: a file has one, and all its
    /// names are listed with it.
    pub(super) paths: Vec<(At, NameIn)>,
    /// Links and special files that have no name in the store, under their own or with a number appended.
    pub(super) others: Vec<At>,
    /// Directories that the store does not know and in which nothing is left; contents come before their directory.
    pub(super) directories: Vec<At>,
}

/// Finds it. `gone` are items that will be removed, so they keep no directory.
pub(super) fn unfinished_changes(
    disks: &Disks,
    (view, is_rebuilt): (&View, bool),
    found: &FoundNames,
    gone: impl Iterator<Item = At>,
) -> UnfinishedChanges {
    let mut all = UnfinishedChanges::default();
    for file in &found.files {
        let stored = view.files.get(&file.number);
        if stored.is_none() && !file.is_numbered {
            // It gets its names now, which are those of its paths.
            let others = file.paths.iter().zip(&file.names).filter(|(at, _)| **at != file.at);
            all.paths.extend(others.map(|(at, name)| (*at, name.clone())));
            continue;
        }
        let place = match stored {
            Some(stored) => stored.attributes.location.as_ref(),
            None if is_rebuilt => file.attributes.location.as_ref(),
            None => None,
        };
        let is_there = |at: &&At| place.is_some_and(|place| is_at(disks, **at, place, found));
        let Some(at) = file.paths.iter().find(is_there) else { continue };
        let names = stored.map_or(&file.names, |stored| &stored.names);
        // On the shared disk, bytes stay only in a directory in which the file has a name.
        let may_stay = place.is_some_and(|place| {
            let is_its = |(directory, _): &NameIn| *directory == place.base;
            place.node.is_some() || place.base == ROOT.0 || names.iter().any(is_its)
        });
        for other in file.paths.iter().filter(|other| *other != at) {
            match names.iter().find(|name| is_name(disks, *other, name, found)) {
                Some(name) if may_stay => all.paths.push((*other, name.clone())),
                Some(_) => {}
                None => all.places.push(*other),
            }
        }
        if let Some(stored) = stored {
            let mut names = stored.names.clone();
            names.sort();
            if listed(disks, *at, found) != Some(names.clone()) {
                all.relisted.push((*at, names));
            }
        }
    }
    if !is_rebuilt {
        all.others = links_and_devices::without_name(view, found);
        let gone = gone.chain(all.places.iter().chain(&all.others).copied()).collect();
        let all_disks = (0..disks.all.len()).flat_map(|disk| directories(disks, disk, view, &gone));
        all.directories = all_disks.collect();
    }
    all
}

fn above(at: At, disks: &Disks, found: &FoundNames) -> Option<u64> {
    match disks.all[at.0].scanned.items[at.1].above {
        None => Some(ROOT.0),
        Some(above) => found.directory_of.get(&(at.0, above)).copied(),
    }
}

/// Whether an item is at a place.
pub(super) fn is_at(disks: &Disks, at: At, place: &Location, found: &FoundNames) -> bool {
    let disk = &disks.all[at.0];
    let is_above = || disk.node.is_some() || above(at, disks, found) == Some(place.base);
    disk.node == place.node && disk.is_path(at.1, &place.path) && is_above()
}

/// Whether something with a number is at a place.
pub(super) fn lies_at(disks: &Disks, place: &Location, number: u64, found: &FoundNames) -> bool {
    let Some(disk) = disks.all.iter().find(|disk| disk.node == place.node) else { return false };
    disk.scanned.with_number(number).iter().any(|at| {
        let above = disk.scanned.items[*at].above;
        disk.is_path(*at, &place.path) && (place.node.is_some() || is_in(above, place.base, found))
    })
}

/// Whether an item is at a name.
fn is_name(disks: &Disks, at: At, (directory, name): &NameIn, found: &FoundNames) -> bool {
    let last = &disks.all[at.0].scanned.items[at.1].name;
    above(at, disks, found) == Some(*directory) && name == last
}

/// The names that a scan attributes to the file at a place.
fn listed(disks: &Disks, at: At, found: &FoundNames) -> Option<Vec<(u64, Name)>> {
    let item = &disks.all[at.0].scanned.items[at.1];
    if item.names.is_empty() {
        return Some(vec![(above(at, disks, found)?, item.name.clone())]);
    }
    Some(item.names.clone())
}

/// Directories on a disk that the store no longer knows, and in which nothing stays.
fn directories(disks: &Disks, disk: usize, view: &View, gone: &BTreeSet<At>) -> Vec<At> {
    let items = &disks.all[disk].scanned.items;
    let (mut left, mut kept) = (Vec::new(), BTreeSet::new());
    // Contents come after their directory, so go backwards.
    for (at, item) in items.iter().enumerate().rev() {
        let is_gone = if item.attributes.kind == Kind::Directory {
            let is_unknown = |number| !view.directories.contains_key(&number);
            let is_left = item.number.is_some_and(is_unknown) && !kept.contains(&at);
            if is_left {
                left.push((disk, at));
            }
            is_left
        } else {
            gone.contains(&(disk, at))
        };
        if let Some(above) = item.above.filter(|_| !is_gone) {
            kept.insert(above);
        }
    }
    left
}

impl UnfinishedChanges {
    /// Paths that are told: those of files that were known before. What somebody put there by hand gets its names.
    pub(super) fn left_paths(&self, disks: &Disks) -> impl Iterator<Item = At> {
        let is_known = move |at: &At| disks.all[at.0].scanned.items[at.1].number.is_some();
        let paths = self.paths.iter().map(|(at, _)| *at).filter(is_known);
        self.places.iter().copied().chain(paths)
    }

    /// Puts it right.
    pub(super) fn put_right(&self, disks: &Disks, refused: &mut Refused) -> Result<()> {
        let about = |at: &At| {
            let disk = &disks.all[at.0];
            (disk.shown(at.1), disk.scanned.items[at.1].number.unwrap_or(0))
        };
        for (at, names) in &self.relisted {
            let (path, number) = about(at);
            let listed = relist(&disks.all[at.0], *at, names, refused);
            refused.is_made((&path, number), NOT_LISTED, listed)?;
        }
        for at in &self.places {
            let (path, number) = about(at);
            // Where its names could not be listed, its paths are all that tells of them.
            if refused.has(number) {
                refused.add_path(path);
                continue;
            }
            let removed = disks.all[at.0].remove(at.1);
            refused.is_made((&path, number), LEFT_PATH, removed)?;
        }
        for (at, name) in &self.paths {
            let (disk, (path, number)) = (&disks.all[at.0], about(at));
            let Ok(fd) = disk.look(at.1) else { continue };
            // Where there is no room to list a name, its path is all that tells of it.
            let is_same = stat_descriptor(&fd)?.key() == disk.scanned.items[at.1].key;
            if is_same && own_xattrs::names(&fd).contains(name) {
                refused.is_made((&path, number), LEFT_PATH, disk.remove(at.1))?;
            }
        }
        for at in &self.others {
            let (disk, (path, number)) = (&disks.all[at.0], about(at));
            let aside = disk.set_aside(at.1, at.1 as u64);
            refused.is_made((&path, number), super::STAYS, aside)?;
        }
        for at in &self.directories {
            let (disk, (path, number)) = (&disks.all[at.0], about(at));
            match disk.tree.unlink(&disk.scanned.path(at.1), AtFlags::REMOVEDIR) {
                Err(error)
                    if matches!(error.errno(), libc::ENOENT | libc::ENOTEMPTY | libc::EEXIST) => {}
                removed => {
                    refused.is_made((&path, number), "the directory stays", removed)?;
                }
            }
        }
        Ok(())
    }
}

/// What is said of a file whose names could not be listed with it.
pub(super) const NOT_LISTED: &str =
    "its names cannot be recorded with it, and if the store loses them, it gets those that are";
/// And of a path that could not be removed.
const LEFT_PATH: &str = "a second path of a file stays";

/// Lists the names of a file with it. More names than its file system keeps, or a full one, keep nobody from the rest
/// of the tier: that is only told.
pub(super) fn list(
    disk: &Disk,
    (fd, at): (&OwnedFd, usize),
    names: &[(u64, Name)],
    refused: &mut Refused,
) -> Result<()> {
    match disk.tree.step("listing a file's names", || own_xattrs::set_names(fd, names)) {
        Err(error) if own_xattrs::is_without_room(&error) => {
            let (path, count) = (disk.shown(at), names.len());
            let line = format!(
                "{path}: there is no room to list its {count} names with it, and if the store loses them, some are lost; \
                 free some of its disk, or remove names or extended attributes of the file"
            );
            refused.tell(line);
            refused.add_path(path);
            Ok(())
        }
        listed => listed,
    }
}

fn relist(disk: &Disk, at: At, names: &[(u64, Name)], refused: &mut Refused) -> Result<()> {
    let item = &disk.scanned.items[at.1];
    let fd = disk.look(at.1)?;
    // Nobody may have replaced it since it was read.
    if stat_descriptor(&fd)?.key() != item.key {
        return Err(Errno::STALE.into());
    }
    list(disk, (&fd, at.1), names, refused)
}
