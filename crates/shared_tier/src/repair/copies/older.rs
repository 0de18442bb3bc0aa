//! Files that are older than their copies, because an earlier state of their SSD was put back
//! (`docs/decisions/0091-ssds-that-were-put-back.md`, `docs/decisions/0093-attributes-of-disks-that-were-put-back.md`).
//!
//! What must hold: whoever changes a file, or its attributes, takes its copy away first (I13), and the numbers of copies only
//! grow. So where a file has no number of a copy, or a lower one than the copy that is there, the copy is newer, with its owner,
//! mode and attributes. The directory of the copies is closed to others; what a file says of its own number decides only about
//! that file.

use std::collections::{BTreeMap, BTreeSet};

use halocline_cluster::names::attributes::Attributes;
use halocline_os::clock::Clock;
use halocline_os::error::{Error, Result};
use halocline_os::leased_files::Patience;

use super::{FileOnDisk, FoundCopy};
use crate::places::copies::{Copies, CopyName};
use crate::repair::disks::{Disk, Disks};
use crate::repair::merge::{FoundFile, FoundNames};
use crate::repair::stored_attributes::differences;
use crate::repair::view::View;

/// How long this process, which has one command, still waits for leases of files that it compares.
static PATIENCE: Patience = Patience::new();

/// In a rebuild: whether a file that was found is what a copy's file was before: what a move left, or what was copied before the
/// copy had become the file, or what was put back. Where the times contradict the numbers, that is not sure; but no mount gave
/// a file another owner and left its copy.
pub(super) fn is_older((disks, file): (&Disks, &FoundFile), copy: &FoundCopy) -> Result<bool> {
    let (of, disk) = (&file.attributes, &disks.all[file.at.0]);
    if !is_before(disk, file, copy) {
        return Ok(false);
    }
    if of.uid != copy.attributes.uid {
        return Ok(true);
    }
    if of.mtime_ns > copy.attributes.mtime_ns {
        return Ok(false);
    }
    Ok(has_other_attributes((disks, file), copy) || has_other_bytes((disks, file), copy)?)
}

/// Whether the numbers say that a file is from before its copy. One without a number may be another's, unless it is on the copy's
/// own SSD.
fn is_before(disk: &Disk, file: &FoundFile, copy: &FoundCopy) -> bool {
    match disk.scanned.items[file.at.1].leaving {
        Some(number) => number < copy.name.number,
        None => is_its_node(disk, copy),
    }
}

fn is_its_node(disk: &Disk, copy: &FoundCopy) -> bool {
    disk.node.as_deref() == Some(&*copy.name.node)
}

/// Whether a file has another owner, mode, ACL or attribute than a copy, as far as both disks keep them.
fn has_other_attributes((disks, file): (&Disks, &FoundFile), copy: &FoundCopy) -> bool {
    let keep_acls = [file.at.0, 0].iter().all(|disk| disks.all[*disk].keeps_acls());
    !differences(&file.attributes, &copy.attributes, keep_acls).is_empty()
}

/// Whether a file has other bytes than a copy. If somebody has a lease of one of the two, nobody can tell, and it has not.
fn has_other_bytes((disks, file): (&Disks, &FoundFile), copy: &FoundCopy) -> Result<bool> {
    if file.attributes.size != copy.attributes.size {
        return Ok(true);
    }
    let fd = disks.all[file.at.0].look(file.at.1)?;
    let compare = || Copies::on(&disks.all[0].tree).has_bytes_of(&copy.name, &fd);
    let is_leased = |compared: &Result<bool>| compared.as_ref().is_err_and(Error::is_leased);
    match PATIENCE.wait(&Clock::MACHINE, compare, is_leased) {
        Err(error) if error.is_leased() => {
            tracing::warn!(%error, number = file.number, "a file is not compared with a clean copy of its number");
            Ok(false)
        }
        compared => Ok(!compared?),
    }
}

/// Files with these numbers are no files any more.
pub(super) fn set_aside(numbers: &BTreeSet<u64>, found: &mut FoundNames) {
    for file in found.files.extract_if(.., |file| numbers.contains(&file.number)) {
        found.never_arrived.extend(file.paths.iter().map(|path| (*path, file.number)));
    }
}

/// In a sound store: a file that is older than the copy which stands for it is set aside, as in a rebuild. The copy stays, as if the
/// SSD had lost the file.
pub(super) fn set_aside_in_sound_store(
    copies: &[FoundCopy],
    disks: &Disks,
    (found, view): (&mut FoundNames, &View),
) -> Result<()> {
    let finals = copies.iter().filter(|copy| copy.name.is_final);
    let by_file: BTreeMap<u64, &FoundCopy> = finals.map(|copy| (copy.name.inode, copy)).collect();
    let stands = |copy: &FoundCopy, of: &Attributes| {
        CopyName::of(of, copy.name.inode).as_ref() == Some(&copy.name)
            && of.copy == Some(copy.mark)
            && of.size == copy.attributes.size
    };
    let mut old = BTreeSet::new();
    for file in &found.files {
        let stored = view.files.get(&file.number).map(|stored| &stored.attributes);
        let Some((copy, of)) = by_file.get(&file.number).zip(stored) else { continue };
        let is_its = file.is_numbered && is_its_node(&disks.all[file.at.0], copy);
        if is_its && stands(copy, of) && is_older_than_marked((disks, file), copy, of)? {
            old.insert(file.number);
        }
    }
    set_aside(&old, found);
    Ok(())
}

/// Whether a file is older than the copy that stands for it, where a sound store has these attributes. Somebody may have changed
/// the copy's past the mounts: then only the content counts.
fn is_older_than_marked(
    (disks, file): (&Disks, &FoundFile),
    copy: &FoundCopy,
    of: &Attributes,
) -> Result<bool> {
    let has_attributes = (copy.attributes.uid, copy.attributes.gid, copy.attributes.mode)
        == (of.uid, of.gid, of.mode)
        && is_before(&disks.all[file.at.0], file, copy);
    if file.attributes.uid != copy.attributes.uid {
        return Ok(has_attributes);
    }
    if file.attributes.mtime_ns > copy.attributes.mtime_ns {
        return Ok(false);
    }
    let has_other_content = || -> Result<bool> {
        let is_seen = copy.is_seen_in(&FileOnDisk::new(disks, file));
        Ok(!is_seen && has_other_bytes((disks, file), copy)?)
    };
    Ok(has_attributes && has_other_attributes((disks, file), copy) || has_other_content()?)
}
