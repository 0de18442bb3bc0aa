//! State while a rename is under way: inodes that have none of their known names for a moment, and directories that
//! are not yet where the store has them.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use halocline_cluster::names::attributes::{Attributes, Kind};
use halocline_cluster::names::namespace::{self, Failure};
use halocline_model::namespace::{Entry, EntryName, InodeNumber};
use halocline_os::error::{Error, Result};

use crate::entry_names::os;
use crate::inodes::Node;
use crate::places::own_xattrs::{self, TwoNames};
use crate::places::{DirectoryStep, Places, RenameNotes};

/// Guard: while it lives, an inode may have none of its names for a moment.
pub(crate) struct Renaming(Option<Node>);

impl Renaming {
    pub(crate) fn of(node: Option<Node>) -> Self {
        if let Some(node) = &node {
            node.0.renames.fetch_add(1, Ordering::SeqCst);
        }
        Self(node)
    }
}

impl Drop for Renaming {
    fn drop(&mut self) {
        if let Some(node) = &self.0 {
            node.0.renames.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Logs that a disk refused a change: the name there is stale, but its target is still found. Where the store failed,
/// the program gets no success: a store that forgot the change is rebuilt from the disks.
///
/// # Errors
/// That of the store.
pub(crate) fn follow(what: &'static str, name: &EntryName, done: Result<()>) -> Result<()> {
    let Err(error) = done else { return Ok(()) };
    let name = os(&name.name);
    tracing::warn!(?name, %error, "{what}: the names are changed, but not those on the disks");
    if matches!(error, Error::Cluster { .. }) { Err(error) } else { Ok(()) }
}

/// Whether the store has renamed a symbolic link, pipe, socket or device over another one, which had no other name: then
/// the rename on the shared disk takes away what is replaced, so that the name leads to one of the two at each moment.
pub(crate) fn is_of_others(
    old: Option<&namespace::Node>,
    moved: Option<&Entry>,
    replaced: &namespace::Node,
) -> bool {
    let is_other =
        |of: &namespace::Node| !matches!(of.attributes.kind, Kind::File | Kind::Directory);
    let is_moved = |old: &&namespace::Node| moved.is_some_and(|it| it.inode() == old.inode);
    old.filter(is_moved).is_some_and(is_other) && is_other(replaced) && replaced.links == 0
}

/// Notes on a file, whose attributes from before are given, that the store has renamed it over another one or
/// exchanged the two. A failure to note it is no error: then names rebuilt at this moment may be between before and
/// after.
pub(crate) fn note_two(
    places: &Places,
    of: Option<&namespace::Node>,
    (from, to): (&EntryName, &EntryName),
    is_exchange: bool,
) -> Option<OwnedFd> {
    let of = of.filter(|of| of.attributes.kind == Kind::File)?;
    let [from, to] = [from, to].map(|name| (name.directory.0, name.name.clone()));
    let renaming = TwoNames { is_exchange, from, to };
    let place = of.attributes.location.as_ref()?;
    let noted = places.listed_names().note_renaming(place, of.inode.0, &renaming);
    noted.inspect_err(|error| tracing::debug!(%error, "rename: it is not noted on a file")).ok()
}

/// Removes the notes: both files have their names on the disks.
pub(crate) fn forget_two(noted: impl Iterator<Item = OwnedFd>) {
    for file in noted {
        if let Err(error) = own_xattrs::clear_renaming(&file) {
            tracing::debug!(%error, "rename: a note of it stays on a file");
        }
    }
}

/// Exchanges two directories on the shared disk in one step; the steps are those from before. So names rebuilt
/// meanwhile are those of before or after. Where that is not possible, each directory is renamed there.
pub(crate) fn exchange(places: &Places, [one, other]: [Result<Vec<DirectoryStep>>; 2]) {
    let exchanged = one.and_then(|one| places.shared().exchange(&one, &other?));
    if let Err(error) = exchanged {
        tracing::debug!(%error, "two directories are renamed one after the other");
    }
}

/// Notes on the shared disk where a directory may be during its rename.
pub(crate) fn note(
    places: &Places,
    of: InodeNumber,
    from: &EntryName,
    to: &EntryName,
) -> Option<RenameNotes> {
    let [was, is] = [from, to].map(|name| (name.directory.0, &name.name));
    let noted = places.begin_rename(of.0, was, is);
    noted
        .inspect_err(|error| tracing::warn!(%error, "rename: it is not noted on the shared disk"))
        .ok()
}

/// Removes the notes of renames that the store refused. If its answer was lost, settles the directories and keeps the
/// notes.
pub(crate) fn not_made(places: &Places, failure: &Failure, noted: &[RenameNotes]) {
    if !matches!(failure, Failure::Unknown(_)) {
        return forget(places, noted);
    }
    for notes in noted {
        if let Err(error) = places.settle_directory(notes.number()) {
            tracing::debug!(%error, "a directory is put where the store has it later");
        }
    }
}

/// Removes the notes of directories that are where the store has them.
pub(crate) fn forget(places: &Places, noted: &[RenameNotes]) {
    for notes in noted {
        if let Err(error) = places.end_rename(notes) {
            tracing::warn!(%error, "rename: a note of it stays on the shared disk");
        }
    }
}

/// Sets the time at which the names of something changed.
pub(crate) fn changed_at(now_ns: i64) -> impl Fn(&mut Attributes) -> namespace::Result<()> {
    move |attributes| {
        attributes.ctime_ns = attributes.ctime_ns.max(now_ns);
        Ok(())
    }
}
