//! Puts directories on the shared disk where the store has them: makes missing ones, and completes the renames of
//! nodes that died; then makes missing links and special files.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use halocline_cluster::names::NameStore;
use halocline_cluster::names::coding::decode_attributes;
use halocline_model::namespace::{Answer, InodeNumber, Name, Script, Slot};
use halocline_os::beneath;
use halocline_os::error::{Error, Result};
use halocline_vfs::SetAttr;
use halocline_vfs::namespace::stat_descriptor;
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

use super::disks::Disk;
use super::merge::FoundNames;
use super::refused::Refused;
use super::view::View;
use super::{links_and_devices, of_store};
use crate::entry_names::os;
use crate::places::DirectoryStep;
use crate::places::own_xattrs::{self, owner_permissions::set_attr};
use crate::places::tree::{Owner, Tree, candidates, directory_names};

/// The directories of the shared disk as they were scanned, while some of them are renamed: none is kept open.
struct OnDisk<'a> {
    shared: &'a Disk,
    view: &'a View,
    /// The items that were renamed, which are where the store has the directories with these numbers.
    renamed: BTreeMap<usize, u64>,
}

impl OnDisk<'_> {
    /// The directory that a scanned one is in now. Those above it may have been renamed since.
    fn parent_of(&self, item: usize) -> Result<OwnedFd> {
        let (tree, items) = (&self.shared.tree, &self.shared.scanned.items);
        let (mut names, mut above) = (Vec::new(), items[item].above);
        let top = loop {
            let Some(at) = above else { break tree.look(None)? };
            if let Some(number) = self.renamed.get(&at) {
                break tree.find(&self.view.steps(*number))?.ok_or(Errno::NOENT)?.0;
            }
            names.push(items[at].name.as_bytes());
            above = items[at].above;
        };
        names.reverse();
        let path = names.join(&b'/');
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let path = Path::new(OsStr::from_bytes(&path));
        Ok(beneath::open(&top, path, flags, Mode::empty())?)
    }
}

/// Puts all directories where the store has them.
pub(super) fn directories(
    shared: &Disk,
    found: &FoundNames,
    store: &dyn NameStore,
    refused: &mut Refused,
) -> Result<()> {
    let view = View::read(store).map_err(of_store)?;
    let tree = &shared.tree;
    // Those that are elsewhere, or nowhere.
    let mut wrong: BTreeMap<u64, Option<usize>> = BTreeMap::new();
    let on_disk: BTreeMap<u64, _> = found.directories.iter().map(|one| (one.number, one)).collect();
    for number in view.directories.keys() {
        let at = on_disk.get(number).and_then(|one| Some((one.parent, one.at?.1)));
        let shown = |item: usize| &shared.scanned.items[item].name;
        if !at.is_some_and(|(parent, item)| view.has_directory_at(*number, parent, shown(item))) {
            wrong.insert(*number, at.map(|(_, item)| item));
        } else if let (Some((_, item)), Some((_, name))) = (at, view.directories.get(number)) {
            let shown = shown(item).as_bytes();
            if directory_names::without_number(shown, *number).is_some() {
                let step = DirectoryStep { number: *number, name: name.clone() };
                let fd = shared.look(item).map_err(Error::from);
                let recorded = fd.and_then(|fd| directory_names::record(tree, &fd, &step, shown));
                let what = "its name cannot be recorded with it";
                refused.is_made((&shared.shown(item), *number), what, recorded.map(drop))?;
            }
        }
    }
    // Parents come first; what is then renamed to below another directory is found there.
    let mut order: Vec<u64> = wrong.keys().copied().collect();
    order.sort_by_cached_key(|number| view.steps(*number).len());
    let mut on_disk = OnDisk { shared, view: &view, renamed: BTreeMap::new() };
    for number in order {
        let steps = view.steps(number);
        let Some((last, above)) = steps.split_last() else { continue };
        let item = wrong.remove(&number).flatten();
        let mut put = || {
            let Some(above) = tree.find(above)? else { return Ok(()) };
            let Some(item) = item else { return make(tree, &above, last, store) };
            let from = on_disk.parent_of(item)?;
            rename(tree, (&from, &shared.scanned.items[item].name), &above, last)?;
            on_disk.renamed.insert(item, number);
            Ok(())
        };
        let put = put();
        let stored = view.directories.get(&number);
        let path = stored.map_or_else(String::new, |(parent, name)| view.path(*parent, name));
        let what = "it cannot be put where the store has it on the shared disk";
        refused.is_made((&path, number), what, put)?;
    }
    for name in tree.private.sub("renaming")?.names()? {
        tree.private.sub("renaming")?.remove(&name)?;
    }
    links_and_devices::make(shared, &view, found, refused)
}

/// What is said of a file whose move is over, but not on its disk.
pub(super) const STILL_MOVING: &str =
    "its disk still says that it is moved, so other copies of it stay";

/// Removes the attributes of moves and renames from the copies that stay: nobody moves or renames them any more, and
/// they are the only ones from now on.
pub(super) fn clear_move_xattrs(
    disks: &[Disk],
    found: &FoundNames,
    refused: &mut Refused,
) -> Result<()> {
    for file in &found.files {
        let disk = &disks[file.at.0];
        let item = &disk.scanned.items[file.at.1];
        // What says which clean copy was made last is no move.
        let is_leaving = item.leaving.is_some() && !item.is_only_copied;
        if !is_leaving && item.arriving.is_none() && item.renaming.is_none() {
            continue;
        }
        let clear = || {
            let fd = disk.look(file.at.1)?;
            if stat_descriptor(&fd)?.key() != item.key {
                return Ok(());
            }
            disk.tree.step("taking the attributes of a move away", || {
                own_xattrs::clear_renaming(&fd)?;
                own_xattrs::clear(&fd, own_xattrs::LEAVING)?;
                own_xattrs::clear(&fd, own_xattrs::ARRIVING)?;
                own_xattrs::clear_from(&fd)
            })
        };
        let cleared = clear();
        refused.is_made((&disk.shown(file.at.1), file.number), STILL_MOVING, cleared)?;
    }
    Ok(())
}

fn rename(
    tree: &Tree,
    (from, name): (&OwnedFd, &Name),
    above: &crate::places::tree::FoundDirectory,
    step: &DirectoryStep,
) -> Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = openat(from, os(name), flags, Mode::empty())?;
    for to in candidates(&step.name, step.number) {
        directory_names::record(tree, &fd, step, to.as_bytes())?;
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
    set_attr(&fd, &SetAttr { mode: Some(attributes.mode), ..SetAttr::default() }).map(drop)
}
