//! Files that lie elsewhere on their SSDs than a sound store has them, because a state of an SSD from before their renames was put
//! back. The store gets the place where they are: on an SSD, any path may be that of any name.

use halocline_cluster::names::NameStore;
use halocline_cluster::names::attributes::{Attributes, Location};
use halocline_os::error::Result;

use super::Repair;
use super::disks::Disks;
use super::findings::{Finding, Findings, note};
use super::merge::{At, FoundFile, FoundNames};
use super::refused::Refused;
use super::view::View;
use super::{of_store, stored_attributes};
use crate::places::SSD;
use crate::places::copies::{Copies, CopyName};

/// A file that lies elsewhere.
#[derive(Debug)]
pub(super) struct FoundElsewhere {
    number: u64,
    at: At,
    /// Where the store has it.
    from: Location,
    to: Location,
}

/// Finds such files: with their number and owner, and on the same SSD. From now on, the view has them where they are.
pub(super) fn follow(disks: &Disks, view: &mut View, found: &FoundNames) -> Vec<FoundElsewhere> {
    let mut all = Vec::new();
    for file in &found.files {
        let Some(stored) = view.files.get_mut(&file.number) else { continue };
        let place = place_of((disks, file), &stored.attributes);
        let Some(to) = place.filter(|to| stored.attributes.location.as_ref() != Some(to)) else {
            continue;
        };
        if let Some(from) = stored.attributes.location.replace(to.clone()) {
            all.push(FoundElsewhere { number: file.number, at: file.at, from, to });
        }
    }
    all
}

/// Where a file certainly is: not one that a move left or brought, nor one at whose place in the store something with its number
/// is, too.
fn place_of((disks, file): (&Disks, &FoundFile), of: &Attributes) -> Option<Location> {
    let (disk, place) = (&disks.all[file.at.0], of.location.as_ref()?);
    let item = &disk.scanned.items[file.at.1];
    let is_moved = item.arriving.is_some() || item.leaving.is_some() && !item.is_only_copied;
    let is_its = file.is_numbered
        && (of.uid, of.gid) == (file.attributes.uid, file.attributes.gid)
        && (place.tier, &place.node) == (SSD, &disk.node);
    let is_there = || {
        let mut items = disk.scanned.with_number(file.number).iter();
        items.any(|at| disk.is_path(*at, &place.path))
    };
    if !is_its || is_moved || disk.is_too_far(file.at.1) || is_there() {
        return None;
    }
    file.attributes.location.clone()
}

/// Tells of them.
pub(super) fn tell(all: &[FoundElsewhere], repair: &Repair<'_>, findings: &mut Findings) {
    for one in all {
        let Some(file) = repair.view.files.get(&one.number) else { continue };
        let (path, at) = (repair.view.path(file.directory, &file.name), repair.path(one.at));
        let should = repair.view.place(&one.from);
        let line = format!("{path}: its bytes should be {should}, and are at {at}");
        let about = repair.view.about(one.number);
        note(&mut findings.attributes, Finding::of_older_store(about, line));
    }
}

/// Gives the store their places, and those of their copies.
pub(super) fn write(
    all: &[FoundElsewhere],
    disks: &Disks,
    (store, view): (&dyn NameStore, &View),
    refused: &mut Refused,
) -> Result<()> {
    for one in all {
        let Some(file) = view.files.get(&one.number) else { continue };
        let moved = |mut attributes: Attributes| {
            if attributes.location.as_ref() == Some(&one.from) {
                attributes.location = Some(one.to.clone());
            }
            stored_attributes::opaque(&attributes)
        };
        stored_attributes::change_file(store, (one.number, file), &moved).map_err(of_store)?;
        if let Some(copy) = CopyName::of(&file.attributes, one.number) {
            let name = (file.directory, file.name.clone());
            let renamed = Copies::on(&disks.all[0].tree).renamed(&copy, &name, &one.to);
            let path = disks.all[one.at.0].shown(one.at.1);
            refused.is_made(
                (&path, one.number),
                "its copy on the shared disk keeps its old place",
                renamed,
            )?;
        }
    }
    Ok(())
}
