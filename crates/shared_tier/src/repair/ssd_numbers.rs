//! Numbers for directories on SSDs that have none.
//!
//! What must hold: once something was renamed on a mount, no directory with files on an SSD is known by its name there alone.
//! So they get their numbers before the store gets names: at an adoption, and where somebody has put one there by hand.

use std::collections::BTreeSet;

use halocline_cluster::names::attributes::Kind;
use halocline_os::error::Result;
use halocline_vfs::namespace::stat_descriptor;
use rustix::io::Errno;

use super::disks::{Disk, Disks};
use super::merge::{At, FoundNames};
use super::numbering::Unnamed;
use super::refused::Refused;
use crate::places::ssd_directories::number_by_hand;

/// The directories on SSDs that have files in them, but not their numbers, and these.
pub(super) fn missing((disks, unnamed): (&Disks, &Unnamed), found: &FoundNames) -> Vec<(At, u64)> {
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

/// Gives them their numbers. What a disk refuses is told: the names are right as long as nobody renames the directory.
pub(super) fn give(disks: (&Disks, &Unnamed), found: &FoundNames, refused: &mut Refused) {
    for (at, number) in missing(disks, found) {
        let disk = &disks.0.all[at.0];
        if let Err(error) = give_one(disk, (at.1, number)) {
            let why = "this directory got no number, so a rebuild would give its files the name that it has there; demote them \
                       before you rename it";
            let path = disk.shown(at.1);
            refused.tell(format!("{path}: {error}: {why}"));
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
