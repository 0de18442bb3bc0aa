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
    pub(crate) name: Name,
    pub(crate) attributes: Attributes,
    /// Device and inode number on the disk: those of several names may be the same.
    pub(crate) key: (u64, u64),
}

/// All names that they may have on the shared disk.
pub(super) fn names(builder: &Builder<'_>) -> BTreeSet<NameIn> {
    let plain = plain_names(builder).into_iter();
    let plain = plain.map(|(at, name)| (builder.above(at), name));
    let own = builder.of_kind(0, Kind::is_other).into_iter();
    own.map(|at| (builder.above(at), name_of(builder.item(at)))).chain(plain).collect()
}

/// The names without the numbers that were appended when they were made, because files lay there that have other names.
fn plain_names(builder: &Builder<'_>) -> BTreeMap<At, Name> {
    let numbered = builder.of_kind(0, Kind::is_other).into_iter();
    let mut plain: BTreeMap<At, Name> =
        numbered.filter_map(|at| Some((at, without_number(builder, at)?))).collect();
    let place = |at: At, name: &[u8]| (builder.item(at).above, name.to_vec());
    // One pass over all items, since anybody may make many such names.
    let mut beside: BTreeMap<_, bool> =
        plain.iter().map(|(at, name)| (place(*at, name.as_bytes()), false)).collect();
    if !beside.is_empty() {
        for at in builder.of_kind(0, |kind| kind == Kind::File) {
            let item = builder.item(at);
            if item.number.is_some()
                && let Some(is_there) = beside.get_mut(&place(at, item.name.as_bytes()))
            {
                *is_there = true;
            }
        }
    }
    plain.retain(|at, name| beside[&place(*at, name.as_bytes())]);
    plain
}

/// The name without the number at its end, if it is one that may have been appended.
fn without_number(builder: &Builder<'_>, at: At) -> Option<Name> {
    let name = name_of(builder.item(at));
    let mut parts = name.as_bytes().rsplitn(2, |byte| *byte == b'~');
    let number: u64 = std::str::from_utf8(parts.next()?).ok()?.parse().ok()?;
    let plain = Name::from(parts.next()?);
    let is_numbered = builder.is_given(number) && candidates(&plain, number)[1] == name;
    // A sound store says what it is called.
    let is_its_own = || builder.view.names.contains(&(builder.above(at), name.clone()));
    (is_numbered && !is_its_own()).then_some(plain)
}

/// Adds them. All files have their names.
pub(super) fn add(builder: &mut Builder<'_>) {
    let mut plain = plain_names(builder);
    for at in builder.of_kind(0, Kind::is_other) {
        let (item, directory) = (builder.item(at), builder.above(at));
        let is_free = |name: &Name| !builder.taken.contains_key(&(directory, name.clone()));
        let name = plain.remove(&at).filter(is_free).unwrap_or_else(|| name_of(item));
        if !is_free(&name) {
            builder.told(at, "something else has its name; it is left alone");
            continue;
        }
        builder.taken.insert((directory, name.clone()), None);
        let (attributes, key) = (item.attributes.clone(), item.key);
        builder.found.others.push(FoundOther { at, directory, name, attributes, key });
    }
    for disk in 1..builder.disks.len() {
        for at in builder.of_kind(disk, Kind::is_other) {
            builder.told(at, "only files belong on an SSD of a shared tier; it is left alone");
        }
    }
}
