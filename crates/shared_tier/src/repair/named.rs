//! What a check says of files and directories that get names, which of all others is not so; and of older states that get none.

use std::collections::BTreeSet;

use super::Repair;
use super::conflicts::conflict;
use super::findings::{About, Finding, Findings, note};
use super::merge::{At, FoundNames};

/// Tells of those that get another name than they should have, and of directories that only SSDs have.
pub(super) fn tell(repair: &Repair<'_>, found: &FoundNames, findings: &mut Findings) {
    let directories = || repair.directories.iter().map(|at| &found.directories[*at]);
    let files = repair.files.iter().map(|at| found.files[*at].number);
    let named: BTreeSet<u64> = directories().map(|one| one.number).chain(files).collect();
    let of_named = |all: &'_ [(u64, Finding)], list: &mut Vec<Finding>| {
        let all = all.iter().filter(|(number, _)| named.contains(number));
        all.for_each(|(_, finding)| note(list, finding.clone()));
    };
    of_named(&found.conflicts, &mut findings.conflicts);
    of_named(&found.told_if_named, &mut findings.told);
    // Directories that somebody made on the shared disk by hand.
    let place_is_taken = |parent, name| repair.view.names.contains(&(parent, name));
    for one in directories().filter(|one| place_is_taken(one.parent, one.name.clone())) {
        let Some(at) = one.at else { continue };
        let line = conflict(&repair.path(at), &one.name, one.number);
        note(&mut findings.conflicts, Finding::new(About::item(repair.item(at)), line));
    }
}

/// What is added of something that is set aside because a sound store has the file with its number elsewhere.
pub(super) fn where_its_file_is(
    repair: &Repair<'_>,
    (at, number): (At, u64),
    found: &FoundNames,
) -> String {
    let stored = repair.view.files.get(&number);
    let stored = stored.filter(|_| repair.leads_elsewhere(at, number, found));
    let place = stored.and_then(|file| Some((file, file.attributes.location.as_ref()?)));
    place.map_or_else(String::new, |(file, place)| {
        let path = repair.view.path(file.directory, &file.name);
        format!(", an older state of {path}, which is {}", repair.view.place(place))
    })
}
