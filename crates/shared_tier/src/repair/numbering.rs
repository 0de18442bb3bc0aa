//! Gives what gets names its numbers, and lists its names with it, on the disks: before it gets them.
//!
//! What must hold: what cannot be given a number gets no name, and neither does anything in a directory without one. A check says so
//! before a repair tries. A rebuild that would lose names so is refused.

use std::collections::BTreeSet;

use halocline_cluster::names::attributes::{Attributes, Kind};
use halocline_model::namespace::Name;
use halocline_os::error::{Error, Result};
use halocline_os::process_user::own_uid;
use halocline_os::shown_name::shown_name;
use halocline_vfs::namespace::stat_descriptor;
use rustix::io::Errno;

use super::copies::StandIn;
use super::disks::{Disk, Disks};
use super::findings::{About, Finding, Findings, note};
use super::merge::{At, FoundDirectory, FoundFile, FoundNames, merge};
use super::numbers::Shown;
use super::refused::{Refused, error_of, line};
use super::scan::Item;
use super::view::View;
use super::{Repair, stored_attributes, unfinished_changes};
use crate::places::own_xattrs;
use crate::places::refused_changes::{is_above_owners, of_attributes};

/// What is said of a file without a number.
const NO_FILE: &str = "it can be given no number, so it gets no name";
/// And of a directory.
const NO_DIRECTORY: &str = "it can be given no number, so it and what is in it get no names";

/// What gets no name, because a disk refuses its number.
#[derive(Debug, Default)]
pub(super) struct Unnamed {
    /// The numbers that directories would have got.
    directories: BTreeSet<u64>,
    /// What is said of the first directory that refused.
    why: Option<String>,
    /// Files and directories in them that have numbers, and may have had names.
    known: Vec<(Option<At>, Name)>,
}

impl Unnamed {
    /// Whether a directory gets no name.
    pub(super) fn has(&self, directory: u64) -> bool {
        self.directories.contains(&directory)
    }
}

/// Whether only root could make a directory like this one, of an SSD, on the shared disk.
fn is_of_another(directory: &Attributes) -> bool {
    directory.uid != own_uid() && !is_above_owners()
}

/// Why a disk would refuse an attribute, as far as that is known before.
pub(super) fn refusal(disk: &Disk, at: usize) -> Option<Errno> {
    disk.look(at).ok().and_then(|fd| of_attributes(&fd))
}

/// Leaves out the files that certainly can be given no number, and tells them.
pub(super) fn leave_out_files(
    repair: &mut Repair<'_>,
    found: &FoundNames,
    findings: &mut Findings,
) {
    for at in std::mem::take(&mut repair.files) {
        let file = &found.files[at];
        let refused =
            if file.is_numbered { None } else { refusal(repair.disk(file.at), file.at.1) };
        let Some(errno) = refused else {
            repair.files.push(at);
            continue;
        };
        let line = line(&repair.path(file.at), NO_FILE, &errno.into());
        note(&mut findings.told, Finding::new(About::item(repair.item(file.at)), line));
    }
}

/// The same for directories, with what is in them.
pub(super) fn leave_out_directories(
    repair: &mut Repair<'_>,
    found: &FoundNames,
    findings: &mut Findings,
) -> Result<()> {
    leave_out(repair, found, &mut |repair, one, at| {
        let on_ssd = || {
            let mut all = found.directory_of.iter();
            all.find(|(_, number)| **number == one.number).map(|(at, _)| *at)
        };
        let Some(at) = at.or_else(on_ssd) else { return Ok(None) };
        let refused = match one.at {
            Some(_) => refusal(repair.disk(at), at.1),
            None => is_of_another(&one.attributes).then_some(Errno::PERM),
        };
        let Some(errno) = refused else { return Ok(None) };
        let line = line(&repair.path(at), NO_DIRECTORY, &errno.into());
        note(&mut findings.told, Finding::new(About::item(repair.item(at)), line.clone()));
        Ok(Some(line))
    })
}

/// Says why a directory has no number, if it has none.
type Refuses<'a> =
    &'a mut dyn FnMut(&Repair<'_>, &FoundDirectory, Option<At>) -> Result<Option<String>>;

/// Leaves out the directories without numbers that refuse them, and what is in them. Parents come first.
fn leave_out(repair: &mut Repair<'_>, found: &FoundNames, refuses: Refuses<'_>) -> Result<()> {
    for at in std::mem::take(&mut repair.directories) {
        let one = &found.directories[at];
        let is_below = repair.unnamed.has(one.parent);
        let why = if one.is_numbered || is_below { None } else { refuses(repair, one, one.at)? };
        if !is_below && why.is_none() {
            repair.directories.push(at);
            continue;
        }
        repair.unnamed.directories.insert(one.number);
        repair.unnamed.why = repair.unnamed.why.take().or(why);
        if one.is_numbered {
            repair.unnamed.known.push((one.at, one.name.clone()));
        }
    }
    for at in std::mem::take(&mut repair.files) {
        let file = &found.files[at];
        if !file.names.iter().any(|(directory, _)| repair.unnamed.has(*directory)) {
            repair.files.push(at);
        } else if file.is_numbered {
            let name = repair.item(file.at).name.clone();
            repair.unnamed.known.push((Some(file.at), name));
        }
    }
    let unnamed = &repair.unnamed;
    repair.others.retain(|at| !unnamed.has(found.others[*at].directory));
    Ok(())
}

/// Refuses a rebuild that would lose names.
fn refuse_lost(repair: &Repair<'_>, stand_ins: &[StandIn]) -> Result<()> {
    let Unnamed { why: Some(why), known, .. } = &repair.unnamed else { return Ok(()) };
    let known = known
        .iter()
        .map(|(at, name)| at.map_or_else(|| shown_name(name.as_bytes()), |at| repair.path(at)));
    let copied = stand_ins.iter().filter(|one| repair.unnamed.has(one.name.0));
    let copied = copied.map(|one| shown_name(one.name.1.as_bytes()));
    let mut lost = known.chain(copied);
    let Some(first) = lost.next().filter(|_| repair.is_rebuilt) else { return Ok(()) };
    let more = lost.count();
    Err(Error::invalid(
        format!(
            "{first}: its names would be lost with those of a directory above it ({more} more)"
        ),
        format!("repair again after this: {why}"),
    ))
}

/// Refuses a rebuild that would certainly lose names, before anything is changed.
pub(super) fn refuse_to_lose(disks: &Disks) -> Result<()> {
    // Claims that are not believed are rare, and found when numbers are given.
    let is_refused = |disk: &Disk, at: usize, item: &Item| {
        let is_unnumbered = item.attributes.kind == Kind::Directory && item.number.is_none();
        let refuses = || match disk.node {
            Some(_) => is_of_another(&item.attributes),
            None => refusal(disk, at).is_some(),
        };
        is_unnumbered && refuses()
    };
    let has_refused = |disk: &Disk| {
        let mut items = disk.scanned.items.iter().enumerate();
        items.any(|(at, item)| is_refused(disk, at, item))
    };
    if !disks.all.iter().any(has_refused) {
        return Ok(());
    }
    let found = merge(&disks.all, &View::default(), &mut Shown::new())?;
    let nobody = BTreeSet::new();
    let mut repair = Repair::new(disks, View::default(), (true, &nobody))?;
    repair.plan(&found)?;
    refuse_lost(&repair, &[])
}

/// The nodes whose files keep their numbers, and have got no names for now.
pub(super) fn nodes_to_wait_for(repair: &Repair<'_>) -> impl Iterator<Item = String> {
    let known = repair.unnamed.known.iter();
    known.filter_map(|(at, _)| at.and_then(|at| repair.disk(at).node.clone()))
}

/// Gives the numbers, and leaves out what a disk refuses.
pub(super) fn number(
    repair: &mut Repair<'_>,
    (found, stand_ins): (&FoundNames, &[StandIn]),
    refused: &mut Refused,
) -> Result<()> {
    leave_out(repair, found, &mut |repair, directory, at| {
        // Those of SSDs are made on the shared disk later, with their numbers.
        let Some(at) = at else { return Ok(None) };
        let disk = repair.disk(at);
        let numbered = disk.look(at.1).map_err(Error::from).and_then(|fd| {
            disk.tree.step("numbering a directory", || {
                own_xattrs::set_number(&fd, own_xattrs::DIRECTORY, directory.number)
            })
        });
        let path = repair.path(at);
        let why = numbered.as_ref().err().map(|error| line(&path, NO_DIRECTORY, error));
        refused.is_made((&path, directory.number), NO_DIRECTORY, numbered)?;
        Ok(why)
    })?;
    refuse_lost(repair, stand_ins)?;
    for at in std::mem::take(&mut repair.files) {
        let file = &found.files[at];
        // First: with its number it would keep the mode that it has on its disk.
        let is_closed = stored_attributes::give_named(repair, file, refused)?;
        if (is_closed || file.is_numbered) && number_file(repair, file, refused)? {
            repair.files.push(at);
        }
    }
    Ok(())
}

/// Gives a file its number; whether it gets its names.
fn number_file(repair: &Repair<'_>, file: &FoundFile, refused: &mut Refused) -> Result<bool> {
    let disk = repair.disk(file.at);
    let item = repair.item(file.at);
    let (path, is_far) = (repair.path(file.at), disk.is_too_far(file.at.1));
    let about = (path.as_str(), file.number);
    let sorted = |names: &[(u64, Name)]| names.iter().cloned().collect::<BTreeSet<_>>();
    let is_at_name = matches!(file.names.as_slice(), [(_, name)] if *name == item.name)
        && item.names.is_empty()
        && !is_far;
    let is_listed = is_at_name || sorted(&item.names) == sorted(&file.names);
    let is_moved = item.leaving.is_some() && !item.is_only_copied || item.arriving.is_some();
    if file.is_numbered && is_listed && !is_moved && !is_far {
        return Ok(true);
    }
    let opened = disk.look(file.at.1).map_err(Error::from).and_then(|fd| {
        // Nobody may have replaced it since it was read.
        let is_same = stat_descriptor(&fd)?.key() == item.key;
        if is_same { Ok(fd) } else { Err(Errno::STALE.into()) }
    });
    let fd = match opened {
        // Its names would be lost.
        Err(error) if file.is_numbered => return Err(error_of(&path, "number the file", error)),
        opened => match refused.unless(about, NO_FILE, opened)? {
            Some(fd) => fd,
            None => return Ok(false),
        },
    };
    if !is_listed {
        let listed = unfinished_changes::list(disk, (&fd, file.at.1), &file.names, refused);
        let what = if file.is_numbered { unfinished_changes::NOT_LISTED } else { NO_FILE };
        if !refused.is_made(about, what, listed)? && !file.is_numbered {
            return Ok(false);
        }
    }
    // Last: until then its paths are believed.
    let set = |number| own_xattrs::set_number(&fd, own_xattrs::INODE, number);
    if !file.is_numbered {
        let numbered = disk.tree.step("numbering a file", || set(file.number));
        if !refused.is_made(about, NO_FILE, numbered)? {
            return Ok(false);
        }
    }
    if is_moved {
        let cleared = disk.tree.step("taking the attributes of a move away", || {
            own_xattrs::clear(&fd, own_xattrs::LEAVING)?;
            own_xattrs::clear(&fd, own_xattrs::ARRIVING)
        });
        refused.is_made(about, super::settle::STILL_MOVING, cleared)?;
    }
    if !is_far {
        return Ok(true);
    }
    match disk.bring_nearer(file.at.1, file.number) {
        Err(error) if file.is_numbered => Err(error_of(&path, "move the file", error)),
        Err(error) => {
            // With its number it would be taken for one that has lost its names.
            own_xattrs::clear(&fd, own_xattrs::INODE)?;
            refused.is_made(about, NO_FILE, Err(error))
        }
        Ok(()) => Ok(true),
    }
}
