//! State while a rename is under way: inodes that have none of their known names for a moment, and directories that
//! are not yet where the store has them.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use halocline_cluster::names::attributes::{Attributes, Kind, Location};
use halocline_cluster::names::namespace::{self, Failure};
use halocline_model::namespace::{Entry, EntryName, InodeNumber};
use halocline_os::error::{Error, Result};
use rustix::io::Errno;

use crate::base::Base;
use crate::entry_names::os;
use crate::errors::of_names;
use crate::inodes::Vnode;
use crate::places::own_xattrs::{self, NotedKind, TwoNames};
use crate::places::shared_disk;
use crate::places::{DirectoryStep, Places, RenameNotes, SHARED};

/// Guard: while it lives, an inode may have none of its names for a moment.
pub(crate) struct Renaming(Option<Vnode>);

impl Renaming {
    pub(crate) fn of(vnode: Option<Vnode>) -> Self {
        if let Some(vnode) = &vnode {
            vnode.0.renames.fetch_add(1, Ordering::SeqCst);
        }
        Self(vnode)
    }
}

impl Drop for Renaming {
    fn drop(&mut self) {
        if let Some(vnode) = &self.0 {
            vnode.0.renames.fetch_sub(1, Ordering::SeqCst);
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

/// What a disk refused, which keeps the rest of a rename from nothing, if the store still has the names.
///
/// # Errors
/// That of the store: then the disks stay as they are.
pub(crate) fn of_disk(base: &Base, error: Error) -> Result<Error> {
    base.names.check().map_err(of_names)?;
    Ok(error)
}

/// What was renamed over what: links, pipes, sockets and devices are "others".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replaces {
    /// An other one over another one, which had no other name: then the rename on the shared disk takes away what is
    /// replaced, so that the name leads to one of the two at each moment.
    OtherByOther,
    /// An other one over a file.
    FileByOther,
    /// Anything else.
    Another,
}

/// What the store has renamed over what was there; `old` is what was at the old name before.
pub(crate) fn replaces(
    old: Option<&namespace::StoredInode>,
    moved: Option<&Entry>,
    replaced: &namespace::StoredInode,
) -> Replaces {
    let is_moved = |old: &&namespace::StoredInode| moved.is_some_and(|it| it.inode() == old.inode);
    let kind = replaced.attributes.kind;
    if !old.filter(is_moved).is_some_and(|old| old.attributes.kind.is_other()) {
        Replaces::Another
    } else if kind == Kind::File {
        Replaces::FileByOther
    } else if kind.is_other() && replaced.links == 0 {
        Replaces::OtherByOther
    } else {
        Replaces::Another
    }
}

/// Whether both were links, pipes, sockets or devices before their exchange.
pub(crate) fn are_others(both: [Option<&namespace::StoredInode>; 2]) -> bool {
    both.iter().all(|of| of.is_some_and(|of| of.attributes.kind.is_other()))
}

/// Notes on a file, whose attributes from before are given, that the store has renamed it over something else, or
/// something else over it, or has exchanged the two. A failure to note it is no error: then names rebuilt at this moment
/// may be between before and after.
fn note_two(
    places: &Places,
    of: Option<&namespace::StoredInode>,
    (from, to): (&EntryName, &EntryName),
    kind: NotedKind,
) -> Option<OwnedFd> {
    let of = of.filter(|of| of.attributes.kind == Kind::File)?;
    let [from, to] = [from, to].map(|name| (name.directory.0, name.name.clone()));
    let renaming = TwoNames { kind, from, to };
    let place = of.attributes.location.as_ref()?;
    let noted = places.listed_names().note_renaming(place, of.inode.0, &renaming);
    noted.inspect_err(|error| tracing::debug!(%error, "rename: it is not noted on a file")).ok()
}

/// Notes on both of two, if they are files, that they have changed names, or on the first one that it has replaced the
/// other one.
pub(crate) fn note_both(
    places: &Places,
    (old, other): (&Option<namespace::StoredInode>, &Option<namespace::StoredInode>),
    (from, to): (&EntryName, &EntryName),
    is_exchange: bool,
) -> [Option<OwnedFd>; 2] {
    let kind = if is_exchange { NotedKind::Exchanges } else { NotedKind::Replaces };
    let other = other.as_ref().filter(|_| is_exchange);
    [note_two(places, old.as_ref(), (from, to), kind), note_two(places, other, (to, from), kind)]
}

/// Remembers the new name of something.
pub(crate) fn has_name(base: &Base, moved: Option<&Entry>, (from, to): (&EntryName, &EntryName)) {
    if let Some(vnode) = moved.and_then(|moved| base.table.find(moved.inode())) {
        vnode.0.add_name(to.clone());
        vnode.0.remove_name(from);
    }
}

/// Whether the bytes of a file with one name, or none, lie at a name on the shared disk.
fn lie_at(of: &namespace::StoredInode, name: &EntryName) -> bool {
    let place = of.attributes.location.as_ref();
    of.links <= 1
        && place.is_some_and(|place| {
            (place.tier, place.base) == (SHARED, name.directory.0)
                && place.path.as_bytes() == name.name.as_bytes()
        })
}

/// A link or device has replaced a file in the store, and is to get its name on the shared disk, before the file is
/// removed or loses that name: so names rebuilt meanwhile are those of before or after. Returns the file, with where its
/// bytes are by now; `None` if that is not possible: then the file goes first.
pub(crate) fn give_way(
    base: &Base,
    replaced: &namespace::StoredInode,
    (from, to): (&EntryName, &EntryName),
) -> Option<namespace::StoredInode> {
    note_two(&base.places, Some(replaced), (from, to), NotedKind::IsReplaced)?;
    let mut left = replaced.clone();
    if left.links == 0 && lie_at(replaced, to) {
        let place = replaced.attributes.location.as_ref()?;
        let beside = base.near(to.directory).and_then(|near| {
            let beside =
                base.places.listed_names().link_beside(place, left.inode.0, &near, &to.name)?;
            base.places.remove(place, left.inode.0)?;
            Ok(beside)
        });
        let failed = |error: &Error| tracing::debug!(%error, "rename: a file stays where it is");
        left.attributes.location = Some(beside.inspect_err(failed).ok()?);
    }
    Some(left)
}

/// Two were exchanged in the store. If one of them is a file, and the other one is not, the other one follows first on
/// the shared disk; if the file lies at its name, it goes to a place beside that. Returns whether the first one is that
/// file.
///
/// # Errors
/// Those of the store. If the disk refuses, the other one gets another name there, by which it is found, too.
pub(crate) fn give_way_in_exchange(
    base: &Base,
    (old, other): (&Option<namespace::StoredInode>, &Option<namespace::StoredInode>),
    (from, to): (&EntryName, &EntryName),
) -> Result<bool> {
    let (Some(old), Some(other)) = (old, other) else { return Ok(false) };
    let [is_first, is_second] = [old, other].map(|of| of.attributes.kind == Kind::File);
    let (file, was, is) = if is_first { (old, from, to) } else { (other, to, from) };
    let place = file.attributes.location.as_ref().filter(|_| lie_at(file, was));
    if let Some(place) = place.filter(|_| is_first != is_second) {
        follow("rename", is, go_beside(base, (file.inode, place), (was, is)))?;
    }
    Ok(is_first && !is_second)
}

/// Moves a file from its name on the shared disk to a place beside it. In the store it has another name by now.
fn go_beside(
    base: &Base,
    (number, place): (InodeNumber, &Location),
    (was, is): (&EntryName, &EntryName),
) -> Result<()> {
    let near = base.near(was.directory)?;
    let beside = base.places.listed_names().link_beside(place, number.0, &near, &was.name)?;
    match set_place(base, (is, number), place, &beside) {
        Ok(_) => base.places.remove(place, number.0),
        Err(error) => {
            // If the store's answer was lost, it may have the new place.
            if error.errno() != libc::EIO {
                base.places.remove(&beside, number.0)?;
            }
            Err(error)
        }
    }
}

/// Changes the place of a file in the store, if it is the old one.
///
/// # Errors
/// `ESTALE` if it is another one, or the name leads to something else.
pub(crate) fn set_place(
    base: &Base,
    (name, number): (&EntryName, InodeNumber),
    old: &Location,
    new: &Location,
) -> Result<namespace::StoredInode> {
    let now_ns = base.now_ns();
    let swap = |attributes: &mut Attributes| {
        if attributes.location.as_ref() != Some(old) {
            return Err(Failure::Refused(Errno::STALE));
        }
        attributes.location = Some(new.clone());
        // A move that was announced from the old place ends there. Its node may not find the name by which to say so.
        attributes.writer = None;
        attributes.ctime_ns = attributes.ctime_ns.max(now_ns);
        Ok(())
    };
    base.names.attributes().update_of((name, number), swap).map_err(of_names)
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
    let exchanged = one.and_then(|one| shared_disk::exchange(places.shared(), &one, &other?));
    if let Err(error) = exchanged {
        tracing::debug!(%error, "two directories are renamed one after the other");
    }
}

/// As [`follow`] after a new name was made; but if the disk has refused it, takes it away again.
///
/// # Errors
/// That of the store, or of the disk that refused it.
pub(crate) fn follow_or_take_back(
    base: &Base,
    (name, number): (&EntryName, InodeNumber),
    made: Result<()>,
) -> Result<()> {
    let is_refused =
        |error: &Error| !matches!(error, Error::Cluster { .. }) && error.errno() != libc::EBUSY;
    match made {
        // If others have given the name to something else by now, that stays.
        Err(error)
            if is_refused(&error)
                && base.names.unlink_of(name, number).map_err(of_names)?.is_some() =>
        {
            Err(error)
        }
        made => follow("make", name, made),
    }
}

/// Begins a rename: if a name is a directory's, notes on the shared disk where that may be. Also returns what the name
/// leads to.
///
/// # Errors
/// If the disk refuses that: other nodes would not find the directory after a rename.
pub(crate) fn begin(
    base: &Base,
    name: &EntryName,
    may_be: &EntryName,
) -> Result<(Option<namespace::StoredInode>, Option<RenameNotes>)> {
    let Ok(found) = base.names.lookup(name) else { return Ok((None, None)) };
    let is_directory = found.attributes.kind == Kind::Directory;
    let noted = is_directory.then(|| note(&base.places, found.inode, name, may_be));
    Ok((Some(found), noted.transpose()?))
}

/// Notes on the shared disk where a directory may be during its rename.
///
/// # Errors
/// If the disk refuses it.
pub(crate) fn note(
    places: &Places,
    of: InodeNumber,
    from: &EntryName,
    to: &EntryName,
) -> Result<RenameNotes> {
    let [was, is] = [from, to].map(|name| (name.directory.0, &name.name));
    let noted = places.begin_rename(of.0, was, is);
    noted.inspect_err(|error| tracing::warn!(%error, "rename: it is not noted on the shared disk"))
}

/// Removes the notes of renames that the store refused. If they may have been made, settles the directories and keeps
/// the notes.
pub(crate) fn not_made(places: &Places, failure: &Failure, noted: &[RenameNotes]) {
    if !failure.is_doubtful() {
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
