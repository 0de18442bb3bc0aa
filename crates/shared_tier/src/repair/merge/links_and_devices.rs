//! Links, pipes, sockets and devices: they are what their names say.

use std::collections::{BTreeMap, BTreeSet};

use halocline_cluster::names::attributes::{Attributes, Kind};
use halocline_model::namespace::Name;

use super::{At, Builder, name_of};
use crate::places::own_xattrs::NameIn;
use crate::places::tree::candidates;

/// Something without data and number: a symbolic link, pipe, socket or device.
#[derive(Debug)]
pub(crate) struct FoundOther {
    pub(crate) at: At,
    pub(crate) directory: u64,
    /// What it is called, though it may lie beside that.
    pub(crate) name: Name,
    pub(crate) attributes: Attributes,
    /// Device and inode number on the disk: those of several names may be the same.
    pub(crate) key: (u64, u64),
}

/// The name of something that lies beside it.
struct Plain {
    name: Name,
    /// Whether a sound store says so, or only a note.
    is_stored: bool,
}

/// All names that they may have on the shared disk.
pub(super) fn names(builder: &Builder<'_>) -> BTreeSet<NameIn> {
    let plain = plain_names(builder).into_iter();
    let plain = plain.map(|(at, plain)| (builder.above(at), plain.name));
    let own = builder.of_kind(0, Kind::is_other).into_iter();
    own.map(|at| (builder.above(at), name_of(builder.item(at)))).chain(plain).collect()
}

/// The names of those that lie beside them, with numbers behind their names. Programs may use such names, too: what a sound
/// store has says it, or else what is noted (`places::shared_disk::links_and_devices::beside`).
fn plain_names(builder: &Builder<'_>) -> BTreeMap<At, Plain> {
    let others = builder.of_kind(0, Kind::is_other).into_iter();
    let numbered = others.filter(|at| builder.item(*at).name.as_bytes().contains(&b'~'));
    let in_directory = |at: At| ((builder.above(at), name_of(builder.item(at))), at);
    let mut shown: BTreeMap<NameIn, At> = numbered.map(in_directory).collect();
    // A sound store says what is called so.
    shown.retain(|name, _| !builder.view.others.contains_key(name));
    let mut plain = BTreeMap::new();
    if shown.is_empty() {
        return plain;
    }
    let stored = builder.view.others.iter().map(|(name, (number, _))| (name, *number, true));
    let noted = builder.disks.first().into_iter().flat_map(|shared| &shared.beside);
    let noted = noted.map(|beside| (&beside.name, beside.number, false));
    for ((directory, name), number, is_stored) in stored.chain(noted) {
        let [_, beside] = candidates(name, number);
        if let Some(at) = shown.get(&(*directory, beside)) {
            plain.entry(*at).or_insert_with(|| Plain { name: name.clone(), is_stored });
        }
    }
    plain
}

/// The name that one gets, and what is told of it. `lies_beside` is what it is called if it lies beside that.
fn name_for(
    builder: &Builder<'_>,
    at: At,
    lies_beside: Option<Plain>,
    added: &BTreeSet<NameIn>,
) -> (Option<Name>, Option<String>) {
    let (shown, directory) = (name_of(builder.item(at)), builder.above(at));
    let is_new = |name: &Name| !added.contains(&(directory, name.clone()));
    let is_free = |name: &Name| !builder.taken.contains_key(&(directory, name.clone()));
    let mut told = None;
    if let Some(Plain { name, is_stored }) = lies_beside.filter(|plain| is_new(&plain.name)) {
        // Where a sound store has it, what is to leave its name may still be there.
        if is_stored || is_free(&name) {
            return (Some(name), None);
        }
        let name = name.as_bytes().escape_ascii();
        told = Some(format!("its name {name} is taken; it gets the name that it has here"));
    }
    if is_free(&shown) {
        return (Some(shown), told);
    }
    (None, Some("something else has its name; it is left alone".to_owned()))
}

/// Adds them. All files have their names.
pub(super) fn add(builder: &mut Builder<'_>) {
    let mut plain = plain_names(builder);
    // What is at its name comes before what lies beside that.
    let mut all = builder.of_kind(0, Kind::is_other);
    all.sort_by_key(|at| plain.contains_key(at));
    let mut added: BTreeSet<NameIn> = BTreeSet::new();
    for at in all {
        let directory = builder.above(at);
        let (name, told) = name_for(builder, at, plain.remove(&at), &added);
        if let Some(what) = told {
            builder.told(at, &what);
        }
        let Some(name) = name else { continue };
        builder.taken.insert((directory, name.clone()), None);
        added.insert((directory, name.clone()));
        let item = builder.item(at);
        let (attributes, key) = (item.attributes.clone(), item.key);
        builder.found.others.push(FoundOther { at, directory, name, attributes, key });
    }
    for disk in 1..builder.disks.len() {
        for at in builder.of_kind(disk, Kind::is_other) {
            builder.told(at, "only files belong on an SSD of a shared tier; it is left alone");
        }
    }
}
