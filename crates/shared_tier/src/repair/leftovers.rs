//! Files of a sound store that an earlier repair has set aside on their SSDs: names were built again from another shared disk, which
//! had none of theirs, and the right one is back. A repair puts them back.
//!
//! What must hold: what is put back is the file that the store has, by number, owner, size and time; nothing else with its number
//! is on any disk, and no move has left or brought it. What only has the number may be an older state (`copies/older.rs`): where it
//! lies is told.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;

use halocline_cluster::names::NameStore;
use halocline_cluster::names::attributes::{Attributes, Kind};
use halocline_model::namespace::Name;
use halocline_os::beneath;
use halocline_os::error::{Error, Result};
use halocline_os::private::PrivateDir;
use halocline_os::rename_new::rename_new;
use halocline_os::shown_name::shown_name;
use rustix::fs::OFlags;

use super::disks::{Disk, Disks};
use super::of_store;
use super::refused::line;
use super::scan::describe;
use super::stored_attributes::is_same_time;
use super::view::{StoredFile, View};
use crate::entry_names::os;
use crate::places::own_xattrs;
use crate::places::ssd_directories::find_or_make;
use crate::places::tree::{LEFTOVERS, candidates};

/// A file that was set aside.
#[derive(Debug)]
pub(super) struct Leftover {
    /// The disk.
    disk: usize,
    name: Name,
    /// Whether it certainly is the file.
    is_it: bool,
}

/// Files of the store that are nowhere but among the leftovers of their SSDs, by their numbers.
pub(super) type Leftovers = BTreeMap<u64, Leftover>;

/// The leftovers of a disk, and their names; none are made, because the disk may be read only.
fn of_disk(disk: &Disk) -> Result<Option<(PrivateDir, Vec<Name>)>> {
    match PrivateDir::look(&disk.tree.private.path().join(LEFTOVERS)) {
        Err(error) if error.errno() == libc::ENOENT => Ok(None),
        dir => {
            let dir = dir?;
            let names = dir.names()?;
            Ok(Some((dir, names.iter().map(|name| Name::from(name.as_encoded_bytes())).collect())))
        }
    }
}

/// Whether anything was set aside on an SSD.
///
/// # Errors
/// If that cannot be found out.
fn are_any(disks: &Disks) -> Result<bool> {
    for disk in disks.all.iter().filter(|disk| disk.node.is_some()) {
        if !of_disk(disk)?.is_none_or(|(_, names)| names.is_empty()) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Finds them.
///
/// # Errors
/// If the leftovers of an SSD cannot be listed.
pub(super) fn find(disks: &Disks, view: &View) -> Result<Leftovers> {
    let mut found = Leftovers::new();
    for (at, disk) in disks.all.iter().enumerate().filter(|(_, disk)| disk.node.is_some()) {
        let Some((dir, names)) = of_disk(disk)? else { continue };
        for name in names {
            let Some((number, fd)) = numbered(&dir, &name) else { continue };
            let Some(stored) = view.files.get(&number) else { continue };
            let is_elsewhere = || {
                let mut all = disks.all.iter();
                all.any(|disk| !disk.scanned.with_number(number).is_empty())
            };
            let place = stored.attributes.location.as_ref();
            if place.is_none_or(|place| place.node != disk.node) || is_elsewhere() {
                continue;
            }
            let (of, _) = describe(&fd)?;
            let is_it = is_stored(&fd, &of, &stored.attributes);
            let known = found.get(&number).is_some_and(|known| known.is_it);
            if !known {
                found.insert(number, Leftover { disk: at, name, is_it });
            }
        }
    }
    Ok(found)
}

fn numbered(dir: &PrivateDir, name: &Name) -> Option<(u64, OwnedFd)> {
    let fd = beneath::open_entry(dir, os(name), OFlags::PATH).ok()?;
    Some((own_xattrs::number(&fd, own_xattrs::INODE)?, fd))
}

/// Whether a file is the one that the store has.
fn is_stored(fd: &OwnedFd, found: &Attributes, stored: &Attributes) -> bool {
    let moves = [own_xattrs::LEAVING, own_xattrs::ARRIVING];
    (found.kind, found.size) == (Kind::File, stored.size)
        && (found.uid, found.gid) == (stored.uid, stored.gid)
        && is_same_time(found.mtime_ns, stored.mtime_ns)
        && moves.iter().all(|what| own_xattrs::number(fd, what).is_none())
}

/// What a check says of a file that a repair puts back.
pub(super) fn told(disks: &Disks, view: &View, number: u64, leftover: &Leftover) -> Option<String> {
    let file = view.files.get(&number).filter(|_| leftover.is_it)?;
    let place = file.attributes.location.as_ref()?;
    Some(format!(
        "{}: its bytes should be {}, and are at {}",
        view.path(file.directory, &file.name),
        view.place(place),
        path(&disks.all[leftover.disk], leftover)
    ))
}

/// What is added to what is said of a file that is lost.
pub(super) fn where_it_may_be(disks: &Disks, all: &Leftovers, number: u64) -> String {
    all.get(&number).map_or_else(String::new, |leftover| {
        format!(
            "; {} has its number, but not its size, time or owner: look whether that is the file, and copy it into the mount then",
            path(&disks.all[leftover.disk], leftover)
        )
    })
}

fn path(disk: &Disk, leftover: &Leftover) -> String {
    let dir = disk.tree.private.path().join(LEFTOVERS);
    format!("{}/{}", dir.display(), shown_name(leftover.name.as_bytes()))
}

/// What became of them in a repair.
#[derive(Debug, Default)]
pub(super) struct PutBack {
    /// What is said of each that is where its SSD has it now.
    pub(super) done: Vec<String>,
    /// What is said of each that a disk has refused.
    pub(super) refused: Vec<String>,
}

/// Puts them back in a sound store, and reads the disks again.
///
/// # Errors
/// If the store does not answer, or a disk cannot be read.
pub(super) fn put_back(
    (root, peers): (&Path, Option<&str>),
    disks: Disks,
    store: &dyn NameStore,
    is_sound: bool,
) -> Result<(Disks, PutBack)> {
    if !is_sound || !are_any(&disks)? {
        return Ok((disks, PutBack::default()));
    }
    let view = View::read(store).map_err(of_store)?;
    let back = put_all(&disks, &view, &find(&disks, &view)?);
    let disks = if back.done.is_empty() { disks } else { Disks::read(root, peers)? };
    Ok((disks, back))
}

/// Puts the files back, each beside the others of its directory on the SSD.
fn put_all(disks: &Disks, view: &View, all: &Leftovers) -> PutBack {
    let mut back = PutBack::default();
    for (number, leftover) in all {
        let Some(told) = told(disks, view, *number, leftover) else { continue };
        let Some(file) = view.files.get(number) else { continue };
        match put(&disks.all[leftover.disk], (*number, file), view, leftover) {
            Ok(()) => back.done.push(told),
            Err(error) => back.refused.push(line(&told, "it stays there", &error)),
        }
    }
    back
}

fn put(
    disk: &Disk,
    (number, file): (u64, &StoredFile),
    view: &View,
    leftover: &Leftover,
) -> Result<()> {
    let dir = disk.tree.private.sub(LEFTOVERS)?;
    let above = find_or_make(&disk.tree, &view.steps(file.directory))?;
    let last = candidates(&file.name, number);
    for name in last {
        let named = disk.tree.step("putting a file back", || {
            rename_new(&dir, os(&leftover.name), &above.0, os(&name))
        });
        match named {
            Err(error) if error.errno() == libc::EEXIST => {}
            named => return named,
        }
    }
    Err(Error::from(rustix::io::Errno::EXIST))
}
