//! Numbers for directories on SSDs that have none.
//!
//! What must hold: once something was renamed on a mount, no directory with files on an SSD is known by its name there alone.
//! So they get their numbers before the store gets names: at an adoption, and where somebody has put one there by hand.

use std::collections::BTreeSet;

use halocline_cluster::names::attributes::Kind;
use halocline_os::error::Result;
use halocline_vfs::namespace::stat_descriptor;
use rustix::io::Errno;

use super::Repair;
use super::disks::{Disk, Disks};
use super::findings::{About, Finding, Findings, note};
use super::merge::{At, FoundNames};
use super::numbering::{self, Unnamed};
use super::refused::{Refused, line};
use crate::places::ssd_directories::number_by_hand;

/// The directories on SSDs that have files in them, but not their numbers, and these.
fn missing((disks, unnamed): (&Disks, &Unnamed), found: &FoundNames) -> Vec<(At, u64)> {
    let ssds = disks.all.iter().enumerate().skip(1);
    let with_files = ssds.flat_map(|(disk, of)| {
        let files = of.scanned.items.iter().filter(|item| item.attributes.kind == Kind::File);
        files.filter_map(move |file| Some((disk, file.above?)))
    });
    let with_files: BTreeSet<At> = with_files.collect();
    let numbers = with_files.into_iter().filter_map(|at| {
        let number = *found.directory_of.get(&at)?;
        let own = disks.all[at.0].scanned.items[at.1].number;
        (own != Some(number) && !unnamed.has(number)).then_some((at, number))
    });
    numbers.collect()
}

/// What is said of one that gets none: the names are right as long as nobody renames the directory.
const NO_NUMBER: &str = "this directory gets no number, so a rebuild would give its files the name that it has there (demote them before \
                         you rename it)";

/// Notes those that will get their numbers, and tells those that cannot. A rebuild numbers what it finds.
pub(super) fn plan(repair: &Repair<'_>, found: &FoundNames, findings: &mut Findings) {
    if repair.is_rebuilt {
        return;
    }
    for (at, _) in missing((repair.disks, &repair.unnamed), found) {
        match refusal(repair.disk(at), at.1) {
            None => repair.note(&mut findings.relisted, at),
            Some(line) => {
                let about = About::item(repair.item(at));
                note(&mut findings.told, Finding::new(about, line));
            }
        }
    }
}

/// What is to be said of one that certainly can be given no number, on this disk.
fn refusal(disk: &Disk, at: usize) -> Option<String> {
    let errno = numbering::refusal(disk, at)?;
    Some(line(&disk.shown(at), NO_NUMBER, &errno.into()))
}

/// Gives them their numbers. What a disk refuses is told, if that was not known before.
pub(super) fn give(disks: (&Disks, &Unnamed), found: &FoundNames, refused: &mut Refused) {
    for (at, number) in missing(disks, found) {
        let disk = &disks.0.all[at.0];
        if refusal(disk, at.1).is_some() {
            continue;
        }
        if let Err(error) = give_one(disk, (at.1, number)) {
            let path = disk.shown(at.1);
            refused.tell(line(&path, NO_NUMBER, &error));
            refused.add_path(path);
        }
    }
}

fn give_one(disk: &Disk, (at, number): (usize, u64)) -> Result<()> {
    let (fd, item) = (disk.look(at)?, &disk.scanned.items[at]);
    // Nobody may have replaced it since it was read.
    if stat_descriptor(&fd)?.key() != item.key {
        return Err(Errno::STALE.into());
    }
    number_by_hand(&disk.tree, &fd, number)
}
