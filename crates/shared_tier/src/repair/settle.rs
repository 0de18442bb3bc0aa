//! Puts directories on the shared disk where the store has them: makes missing ones, and completes the renames of
//! nodes that died; then makes missing links and special files.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use halocline_cluster::names::NameStore;
use halocline_cluster::names::attributes::RelativePath;
use halocline_cluster::names::coding::decode_attributes;
use halocline_model::namespace::{Answer, InodeNumber, Name, Script, Slot};
use halocline_os::error::Result;
use halocline_vfs::SetAttr;
use halocline_vfs::namespace::stat_descriptor;
use halocline_vfs::namespace::statx::set_attr_on;
use rustix::io::Errno;

use super::disks::Disk;
use super::merge::{At, FoundDirectory, FoundNames, name_of};
use super::view::View;
use super::{links_and_devices, of_store};
use crate::places::DirectoryStep;
use crate::places::own_xattrs;
use crate::places::tree::{Owner, Tree, candidates};

/// Where a directory is on the disk: its parent, and its path.
type OnDisk = (OwnedFd, RelativePath);

/// Puts all directories where the store has them.
pub(super) fn directories(shared: &Disk, found: &FoundNames, store: &dyn NameStore) -> Result<()> {
    let view = View::read(store).map_err(of_store)?;
    let tree = &shared.tree;
    let mut wrong: BTreeMap<u64, Option<OnDisk>> = BTreeMap::new();
    let on_disk: BTreeMap<u64, _> = found.directories.iter().map(|one| (one.number, one)).collect();
    for (number, (parent, name)) in &view.directories {
        let one = on_disk.get(number);
        let is_in_place = |one: &FoundDirectory, at: At| {
            // Beside its name, if something else is there.
            let is_beside =
                || candidates(name, *number).contains(&name_of(&shared.scanned.items[at.1]));
            one.parent == *parent && (one.name == *name || is_beside())
        };
        if one.is_some_and(|one| one.at.is_some_and(|at| is_in_place(one, at))) {
            continue;
        }
        let path = one.and_then(|one| one.at).map(|at| shared.scanned.path(at.1));
        let place = match path {
            // Opened now, because its parents may be renamed first.
            Some(path) => Some((tree.parent_of(&path)?, path)),
            None => None,
        };
        wrong.insert(*number, place);
    }
    // Parents come first; what is then renamed to below another directory is found there.
    let mut order: Vec<u64> = wrong.keys().copied().collect();
    order.sort_by_cached_key(|number| view.steps(*number).len());
    for number in order {
        let steps = view.steps(number);
        let Some((last, above)) = steps.split_last() else { continue };
        let Some(above) = tree.find(above)? else { continue };
        match wrong.remove(&number).flatten() {
            Some((from, path)) => rename(tree, (&from, &Name::from(path.last())), &above, last)?,
            None => make(tree, &above, last, store)?,
        }
    }
    for name in tree.private.sub("renaming")?.names()? {
        tree.private.sub("renaming")?.remove(&name)?;
    }
    links_and_devices::make(shared, &view, found)
}

/// Removes the attributes of moves and renames from the copies that stay: nobody moves or renames them any more, and
/// they are the only ones from now on.
pub(super) fn clear_move_xattrs(disks: &[Disk], found: &FoundNames) -> Result<()> {
    for file in &found.files {
        let disk = &disks[file.at.0];
        let item = &disk.scanned.items[file.at.1];
        if item.leaving.is_none() && item.arriving.is_none() && item.renaming.is_none() {
            continue;
        }
        let fd = disk.look(file.at.1)?;
        if stat_descriptor(&fd)?.key() == item.key {
            disk.tree.step("taking the attributes of a move away", || {
                own_xattrs::clear_renaming(&fd)?;
                own_xattrs::clear(&fd, own_xattrs::LEAVING)?;
                own_xattrs::clear(&fd, own_xattrs::ARRIVING)?;
                own_xattrs::clear_from(&fd)
            })?;
        }
    }
    Ok(())
}

fn rename(
    tree: &Tree,
    (from, name): (&OwnedFd, &Name),
    above: &crate::places::tree::FoundDirectory,
    step: &DirectoryStep,
) -> Result<()> {
    for to in candidates(&step.name, step.number) {
        match tree.rename_between((from, name), (&above.0, &to)) {
            Err(error) if error.errno() == libc::EEXIST => {}
            done => return done,
        }
    }
    Err(Errno::EXIST.into())
}

/// Makes a directory that is missing on the shared disk.
fn make(
    tree: &Tree,
    above: &crate::places::tree::FoundDirectory,
    step: &DirectoryStep,
    store: &dyn NameStore,
) -> Result<()> {
    let read = Script::Read(Slot::Attributes);
    let Answer::Attributes(value, _) =
        store.run(InodeNumber(step.number), &read).map_err(of_store)?
    else {
        return Ok(());
    };
    let attributes = decode_attributes(&value).map_err(of_store)?;
    let owner = Owner { mode: attributes.mode, uid: attributes.uid, gid: attributes.gid };
    let (fd, _) = tree.make_directory(above, step, owner)?;
    for (name, value) in &attributes.xattrs {
        own_xattrs::set_users(&fd, name, value)?;
    }
    set_attr_on(&fd, &SetAttr { mode: Some(attributes.mode), ..SetAttr::default() }).map(drop)
}
