//! Changes of names that SSDs have missed: the shared disk has notes of them, which only nodes can have written.

use std::collections::BTreeMap;

use halocline_model::namespace::ROOT;

use super::{At, Builder, name_of, precedence};
use crate::places::missed::MissedChange;
use crate::places::own_xattrs::NameIn;
use crate::repair::disks::Disk;

/// The changes, by the numbers of files.
#[derive(Debug, Default)]
pub(super) struct MissedChanges(BTreeMap<u64, Vec<MissedChange>>);

impl MissedChanges {
    pub(super) fn of(disks: &[Disk]) -> Self {
        let mut all: BTreeMap<u64, Vec<MissedChange>> = BTreeMap::new();
        for note in disks.iter().flat_map(|disk| &disk.missed) {
            all.entry(note.number).or_default().push(note.change.clone());
        }
        Self(all)
    }

    fn of_file(&self, number: u64) -> &[MissedChange] {
        self.0.get(&number).map_or(&[], Vec::as_slice)
    }
}

/// Whether a file has lost its last name. What a sound store has is not gone.
pub(super) fn is_gone(builder: &Builder<'_>, number: u64) -> bool {
    builder.missed.of_file(number).contains(&MissedChange::Gone)
        && !builder.view.files.contains_key(&number)
}

/// The names of a file, of which its disk has missed some changes, in directories that are there; `None` if none of its
/// names is known to have changed.
pub(super) fn names(
    builder: &Builder<'_>,
    number: Option<u64>,
    paths: &[At],
) -> Option<Vec<NameIn>> {
    let number = number.filter(|number| !builder.view.files.contains_key(number))?;
    let changes = builder.missed.of_file(number);
    if changes.is_empty() {
        return None;
    }
    let item = builder.item(paths[0]);
    let mut names: Vec<NameIn> = if item.names.is_empty() {
        vec![(directory(builder, paths[0]), name_of(item))]
    } else {
        let listed = item.names.iter().filter(|name| builder.is_believed(paths, name.0));
        listed.cloned().collect()
    };
    for change in changes {
        match change {
            MissedChange::Lost(lost) => names.retain(|name| name != lost),
            MissedChange::Has(name) if !names.contains(name) => names.push(name.clone()),
            MissedChange::Has(_) | MissedChange::Gone => {}
        }
    }
    names.retain(|name| builder.owners.contains_key(&name.0));
    Some(names).filter(|names| !names.is_empty())
}

/// The number of the directory in which a file lies, also of one that is gone from the shared disk.
fn directory(builder: &Builder<'_>, at: At) -> u64 {
    let Some(above) = builder.item(at).above.map(|above| (at.0, above)) else { return ROOT.0 };
    let known = builder.directory_of.get(&above).copied();
    known.or(builder.item(above).number).unwrap_or(ROOT.0)
}

/// Whether a file on an SSD may have no other name than that in its directory there.
pub(super) fn needs_its_directory(builder: &Builder<'_>, at: At) -> bool {
    let item = builder.item(at);
    let Some(number) = item.number else { return true };
    if is_gone(builder, number) || names(builder, Some(number), &[at]).is_some() {
        return false;
    }
    let is_stored = builder.is_stored_file(number, &[at]);
    !(is_stored && precedence::has_names_elsewhere(item, &builder.owners))
}
