//! Links, pipes, sockets and devices: they are what their names say.

use std::collections::BTreeSet;

use halocline_cluster::names::attributes::Kind;
use halocline_model::namespace::Name;

use super::{At, Builder, FoundOther, name_of};
use crate::places::own_xattrs::NameIn;
use crate::places::tree::candidates;

fn is_other(kind: Kind) -> bool {
    !matches!(kind, Kind::File | Kind::Directory)
}

/// All names that they may have on the shared disk.
pub(super) fn names(builder: &Builder<'_>) -> BTreeSet<NameIn> {
    let names = builder.of_kind(0, is_other).into_iter().flat_map(|at| {
        let both = [Some(name_of(builder.item(at))), plain_name(builder, at)];
        both.into_iter().flatten().map(move |name| (builder.above(at), name))
    });
    names.collect()
}

/// The name without the number that was appended when it was made, because a file lay there that has other names.
fn plain_name(builder: &Builder<'_>, at: At) -> Option<Name> {
    let (item, name) = (builder.item(at), name_of(builder.item(at)));
    let mut parts = name.as_bytes().rsplitn(2, |byte| *byte == b'~');
    let number: u64 = std::str::from_utf8(parts.next()?).ok()?.parse().ok()?;
    let plain = Name::from(parts.next()?);
    let is_numbered = builder.is_given(number) && candidates(&plain, number)[1] == name;
    // A sound store says what it is called.
    let is_its_own = || builder.view.names.contains(&(builder.above(at), name.clone()));
    let is_beside = || {
        builder.disks[0].scanned.items.iter().any(|file| {
            file.above == item.above
                && file.attributes.kind == Kind::File
                && file.number.is_some()
                && file.path.last() == plain.as_bytes()
        })
    };
    (is_numbered && !is_its_own() && is_beside()).then_some(plain)
}

/// Adds them. All files have their names.
pub(super) fn add(builder: &mut Builder<'_>) {
    for at in builder.of_kind(0, is_other) {
        let (item, directory) = (builder.item(at), builder.above(at));
        let is_free = |name: &Name| !builder.taken.contains_key(&(directory, name.clone()));
        let name = plain_name(builder, at).filter(is_free).unwrap_or_else(|| name_of(item));
        if !is_free(&name) {
            builder.told(at, "something else has its name; it is left alone");
            continue;
        }
        builder.taken.insert((directory, name.clone()), None);
        let attributes = item.attributes.clone();
        builder.found.others.push(FoundOther { at, directory, name, attributes });
    }
    for disk in 1..builder.disks.len() {
        for at in builder.of_kind(disk, is_other) {
            builder.told(at, "only files belong on an SSD of a shared tier; it is left alone");
        }
    }
}
