//! What is under way while something is renamed: names that are not known for a moment, and directories that are not where the
//! store has them.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use halocline_cluster::names::attributes::{Attributes, Kind};
use halocline_cluster::names::namespace::{self, Failure};
use halocline_model::namespace::{EntryName, InodeNumber};
use halocline_os::error::Result;

use crate::inodes::Node;
use crate::places::own_xattrs::{self, TwoNames};
use crate::places::{DirectoryStep, Places, RenameNotes};

/// While this lives, an inode may have none of its names for a moment.
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

/// Notes on a file, with its attributes from before, that the store has renamed it over another one or exchanged both. That it cannot be
/// noted is no error: then the names would be between those of before and after, if they were built again in this moment.
pub(crate) fn note_two(
    places: &Places,
    of: Option<&namespace::Node>,
    (from, to): (&EntryName, &EntryName),
    is_exchange: bool,
) -> Option<OwnedFd> {
    let of = of.filter(|of| of.attributes.kind == Kind::File)?;
    let [from, to] = [from, to].map(|name| (name.directory.0, name.name.clone()));
    let renaming = TwoNames { is_exchange, from, to };
    let noted = places.note_renaming(of.attributes.location.as_ref()?, of.inode.0, &renaming);
    noted.inspect_err(|error| tracing::debug!(%error, "rename: it is not noted on a file")).ok()
}

/// Both files have their names on the disks.
pub(crate) fn forget_two(noted: impl Iterator<Item = OwnedFd>) {
    for file in noted {
        if let Err(error) = own_xattrs::clear_renaming(&file) {
            tracing::debug!(%error, "rename: a note of it stays on a file");
        }
    }
}

/// Exchanges two directories, with the steps to each before, on the shared disk in one step: names that are built again in this moment are
/// those of before or after it. Where that is not possible, each is renamed there.
pub(crate) fn exchange(places: &Places, [one, other]: [Result<Vec<DirectoryStep>>; 2]) {
    let exchanged = one.and_then(|one| places.shared().exchange(&one, &other?));
    if let Err(error) = exchanged {
        tracing::debug!(%error, "two directories are renamed one after the other");
    }
}

/// Notes on the shared disk where a directory may be while it is renamed.
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

/// The store has not renamed directories, or it is not known whether it has, or will: then they stay noted.
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

/// Takes notes away of what is where the store has it.
pub(crate) fn forget(places: &Places, noted: &[RenameNotes]) {
    for notes in noted {
        if let Err(error) = places.end_rename(notes) {
            tracing::warn!(%error, "rename: a note of it stays on the shared disk");
        }
    }
}

/// A change of the names of something, at this time.
pub(crate) fn changed_at(now_ns: i64) -> impl Fn(&mut Attributes) -> namespace::Result<()> {
    move |attributes| {
        attributes.ctime_ns = attributes.ctime_ns.max(now_ns);
        Ok(())
    }
}
