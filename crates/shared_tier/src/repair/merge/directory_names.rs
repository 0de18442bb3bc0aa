//! What directories on the shared disk are called, whose names there end with their numbers.

use halocline_model::namespace::Name;

use super::{At, Builder, TwoNames, name_of};
use crate::entry_names::may_name;
use crate::places::own_xattrs::NotedKind;
use crate::places::tree::candidates;
use crate::places::tree::directory_names::without_number;
use crate::repair::scan::Item;

/// The name of a directory that has its number, in the directory `parent`.
///
/// A sound store says it, or else the directory. Where neither does, the number was appended, if the name without it is one
/// that programs may use: users could give directories such names before those were recorded.
pub(super) fn name_of_numbered(
    builder: &Builder<'_>,
    at: At,
    (parent, number): (u64, u64),
) -> Name {
    let item = builder.item(at);
    let shown = name_of(item);
    let Some(plain) = without_number(shown.as_bytes(), number) else { return shown };
    if builder.view.has_directory_at(number, parent, &shown)
        && let Some((_, stored)) = builder.view.directories.get(&number)
    {
        return stored.clone();
    }
    let recorded = item.directory_name.as_ref();
    let recorded =
        recorded.filter(|(of, name)| *of == number && candidates(name, number).contains(&shown));
    let name = recorded.map_or_else(|| Name::from(plain), |(_, name)| name.clone());
    let is_free =
        name != shown && may_name(parent, &name) && is_free(builder, item, (parent, &name));
    if is_free { name } else { shown }
}

/// Whether a name beside a directory is free: a file that lies there may have other names only, or be about to exchange it
/// for the directory's.
fn is_free(builder: &Builder<'_>, directory: &Item, (parent, name): (u64, &Name)) -> bool {
    let it = (parent, name.clone());
    let leaves = |of: &TwoNames| of.kind == NotedKind::Exchanges && of.from == it;
    let has_it = |other: &Item| {
        let is_listed = other.names.is_empty() || other.names.contains(&it);
        is_listed && !other.renaming.as_ref().is_some_and(leaves)
    };
    !builder.disks[0].scanned.beside(directory, name).is_some_and(has_it)
}

#[cfg(test)]
mod tests;
