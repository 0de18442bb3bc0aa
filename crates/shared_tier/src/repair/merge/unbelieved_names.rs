//! What a check says of names that a file lists, and that are not believed: whoever may write to the file may have listed them.

use halocline_model::namespace::Name;
use halocline_os::shown_name::shown_name;

use super::super::scan::{shown, tell};
use super::{At, Builder};

/// Tells of such names of a file. In a sound store those that it has are right, and nothing but a rebuild would lose them. A
/// rebuild does not give them back. `instead` is the name that a file gets which lists another, and not this one.
pub(super) fn tell_of(
    builder: &mut Builder<'_>,
    (at, number): (At, Option<u64>),
    (names, instead): (&[(u64, Name)], Option<&Name>),
) {
    let view = builder.view;
    let is_sound = !view.directory_attributes.is_empty();
    let stored = number.and_then(|number| view.files.get(&number));
    let has = |name: &(u64, Name)| stored.is_some_and(|file| file.names.contains(name));
    let mut is_told = false;
    for listed in names {
        let (directory, name) = listed;
        let is_there = builder.owners.contains_key(directory);
        if is_sound && has(listed) {
            let path = view.path(*directory, name);
            let file = builder.disks[at.0].shown(at.1);
            let line = format!(
                "{path}: a rebuild from the disks would not give this name back to {file}: not only the owner of its directory may \
                 write to that file"
            );
            tell(&mut builder.found.not_rebuilt, line);
        } else if !is_sound && is_there {
            let name = shown(&shown_name(name.as_bytes()));
            let file = builder.disks[at.0].shown(at.1);
            let line = format!(
                "{file}: it does not get its further name {name} back, in a directory of which not only the owner may write to it; \
                 if it is right, make it again (ln)"
            );
            tell(&mut builder.found.not_rebuilt, line);
        } else if !std::mem::replace(&mut is_told, true) {
            let what = "it lists names in directories that are not its owner's, or are gone";
            builder.told(at, what);
        }
    }
    // Whoever renamed it took it away from those who reach this name.
    if let Some(name) = instead.filter(|_| !is_sound) {
        let name = shown(&shown_name(name.as_bytes()));
        let file = builder.disks[at.0].shown(at.1);
        let line = format!(
            "{file}: it gets the name {name}, by which it lies there, though it lists only others: it may no longer have had that name, \
             and more users may reach it now; if so, rename it (mv)"
        );
        tell(&mut builder.found.not_rebuilt, line);
    }
}
