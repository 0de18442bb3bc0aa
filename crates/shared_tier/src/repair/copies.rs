//! Clean copies in a check: which of them stand, and for what (`docs/decisions/0081-clean-copies-that-nodes-share.md`).
//!
//! What must hold: before nodes use the names again, each copy with its final name has its mark in the store, or belongs to
//! a file without a name on an SSD that is not reached.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::Path;

use halocline_cluster::names::attributes::{Attributes, CleanCopy, Location};
use halocline_model::namespace::ROOT;
use halocline_os::error::Result;
use halocline_vfs::Stat;

use super::Repair;
use super::disks::Disks;
use super::findings::{About, Finding, Findings, note};
use super::merge::{FoundNames, Numbers};
use super::scan::describe;
use super::view::View;
use crate::places::SSD;
use crate::places::copies::{Copies, CopyName, mark};
use crate::places::missed::MissedChange;
use crate::places::own_xattrs::{self, NameIn};
use crate::places::steps::Steps;
use crate::places::tree::Tree;

/// A copy on the shared disk.
#[derive(Debug)]
pub(crate) struct FoundCopy {
    pub(crate) name: CopyName,
    attributes: Attributes,
    mark: CleanCopy,
    names: Vec<NameIn>,
    place: Option<Location>,
}

impl FoundCopy {
    fn new(name: CopyName, (fd, stat): &(OwnedFd, Stat)) -> Result<Self> {
        let (attributes, _) = describe(fd)?;
        let mark = mark(name.number, stat);
        let (names, place) = (own_xattrs::names(fd), own_xattrs::from(fd));
        Ok(Self { name, attributes, mark, names, place })
    }
}

/// A file whose SSD is not reached, and whose copy says which name it had.
#[derive(Debug)]
pub(crate) struct StandIn {
    pub(crate) number: u64,
    pub(crate) name: NameIn,
    pub(crate) attributes: Attributes,
}

/// All copies, and what becomes of them.
#[derive(Debug, Default)]
pub(super) struct CleanCopies {
    all: Vec<FoundCopy>,
    /// Files that get names.
    pub(super) stand_ins: Vec<StandIn>,
    /// Copies that go.
    gone: Vec<CopyName>,
}

/// Reads all copies.
fn read(shared: &Tree) -> Result<Vec<FoundCopy>> {
    let copies = Copies::on(shared);
    let mut all = Vec::new();
    for name in copies.all(None)? {
        // What has gone since, or is no copy, is nothing.
        if let Some(found) = copies.look(&name)? {
            all.push(FoundCopy::new(name, &found)?);
        }
    }
    Ok(all)
}

impl CleanCopies {
    /// Reads all copies, and gives files that were found the marks of theirs.
    pub(super) fn read(
        disks: &Disks,
        found: &mut FoundNames,
        is_rebuilt: bool,
        numbers: &dyn Numbers,
    ) -> Result<Self> {
        let Some(shared) = disks.all.first() else { return Ok(Self::default()) };
        let all = read(&shared.tree)?;
        let nodes: Vec<_> = disks.all.iter().map(|disk| disk.node.as_deref()).collect();
        mark_files(&all, &nodes, found);
        let is_missing = |node: &str| disks.missing.iter().any(|(missing, _)| missing == node);
        let ends = shared.missed.iter().filter(|note| note.change == MissedChange::Gone);
        let removed = ends.map(|note| note.number).collect();
        let stand_ins = if is_rebuilt {
            stand_ins(&all, is_missing, (found, &removed), numbers)
        } else {
            Vec::new()
        };
        Ok(Self { all, stand_ins, gone: Vec::new() })
    }

    /// Plans which of them go, and tells of those that stand for files of SSDs that are not reached.
    pub(super) fn plan(
        &mut self,
        repair: &Repair<'_>,
        found: &FoundNames,
        findings: &mut Findings,
    ) {
        let files = repair.files.iter().map(|at| &found.files[*at]);
        let files = files.map(|file| (file.number, &file.attributes));
        let stand_ins = self.stand_ins.iter().map(|one| (one.number, &one.attributes));
        let named: BTreeMap<u64, &Attributes> = files.chain(stand_ins).collect();
        let missing = &repair.disks.missing;
        let may_wait =
            |node: &str| missing.iter().any(|(one, _)| one == node) && repair.is_missed(node);
        let gone = without_mark(&self.all, &repair.view, &named, may_wait);
        let on_disk: BTreeMap<u64, &Attributes> =
            found.files.iter().map(|file| (file.number, &file.attributes)).collect();
        // Somebody has changed one of the two past the mounts, or died while he changed both.
        let differs = |copy: &&FoundCopy| {
            let of = |of: &Attributes| (of.size, of.mtime_ns, of.mode, of.uid, of.gid);
            on_disk.get(&copy.name.inode).is_some_and(|file| of(file) != of(&copy.attributes))
        };
        let old = self.all.iter().filter(differs).map(|copy| &copy.name);
        self.gone = gone.chain(old).cloned().collect();
        // One without its final name may be under way.
        for copy in self.gone.iter().filter(|copy| copy.is_final) {
            let CopyName { node, inode, number, .. } = copy;
            let line =
                format!("the copy {number} of file {inode} of node {node}, which is not in use");
            note(&mut findings.left_copies, Finding::new(About::Numbered(*inode, 0), line));
        }
        findings.named[1] += self.stand_ins.len() as u64;
        for (node, why) in &mut findings.missing {
            let is_kept = |copy: &&FoundCopy| {
                copy.name.is_final && copy.name.node == *node && !self.gone.contains(&copy.name)
            };
            let kept = self.all.iter().filter(is_kept).count();
            if kept > 0 {
                *why = format!(
                    "{why}. The shared disk has copies of {kept} of its files: if that SSD is lost, `halocline cluster drain \
                     {node}` makes them the files, and names those that have none"
                );
            }
        }
    }

    /// Removes those that go. No node uses the names yet.
    pub(super) fn clear_away(&self, disks: &Disks) -> Result<()> {
        let Some(shared) = disks.all.first() else { return Ok(()) };
        self.gone.iter().try_for_each(|copy| Copies::on(&shared.tree).remove(copy))
    }
}

/// Gives files that are to get names the marks of their copies, if the copies have their sizes and times.
fn mark_files(copies: &[FoundCopy], nodes: &[Option<&str>], found: &mut FoundNames) {
    let finals = copies.iter().filter(|copy| copy.name.is_final);
    let by_file: BTreeMap<u64, &FoundCopy> = finals.map(|copy| (copy.name.inode, copy)).collect();
    for file in &mut found.files {
        let Some(copy) = by_file.get(&file.number) else { continue };
        let (of, is) = (&file.attributes, &copy.attributes);
        let is_same = (of.size, of.mtime_ns) == (is.size, is.mtime_ns);
        let is_its_node = nodes.get(file.at.0).copied().flatten() == Some(&*copy.name.node);
        if is_same && is_its_node && file.is_numbered && file.names.len() == 1 {
            file.attributes.copy = Some(copy.mark);
        }
    }
}

/// In a rebuild: files of SSDs that are not reached get the names that their copies carry, as before the loss of the names.
fn stand_ins(
    copies: &[FoundCopy],
    is_missing: impl Fn(&str) -> bool,
    (found, gone): (&FoundNames, &BTreeSet<u64>),
    numbers: &dyn Numbers,
) -> Vec<StandIn> {
    let files = found.files.iter().map(|file| file.number);
    let lost = found.never_arrived.iter().map(|(_, number)| *number);
    let mut known: BTreeSet<u64> = files.chain(lost).chain(gone.iter().copied()).collect();
    let directories: BTreeSet<u64> = found.directories.iter().map(|one| one.number).collect();
    let is_directory = |number: u64| number == ROOT.0 || directories.contains(&number);
    let mut all = Vec::new();
    for copy in copies.iter().filter(|copy| copy.name.is_final && is_missing(&copy.name.node)) {
        let [name] = copy.names.as_slice() else { continue };
        let is_its = |place: &&Location| {
            place.tier == SSD && place.node.as_deref() == Some(&*copy.name.node)
        };
        let Some(place) = copy.place.as_ref().filter(is_its) else { continue };
        let number = copy.name.inode;
        if !is_directory(name.0) || number >= numbers.first_unused() || !known.insert(number) {
            continue;
        }
        let mut attributes = copy.attributes.clone();
        (attributes.location, attributes.copy) = (Some(place.clone()), Some(copy.mark));
        all.push(StandIn { number, name: name.clone(), attributes });
    }
    all
}

/// Which copies must go. `named` are the files that get names now, with their attributes.
fn without_mark<'a>(
    copies: &'a [FoundCopy],
    view: &'a View,
    named: &'a BTreeMap<u64, &Attributes>,
    may_wait: impl Fn(&str) -> bool + 'a,
) -> impl Iterator<Item = &'a CopyName> {
    copies.iter().map(|copy| &copy.name).filter(move |name| {
        let stored = view.files.get(&name.inode).map(|file| &file.attributes);
        let of = named.get(&name.inode).copied().or(stored);
        let has_mark =
            of.and_then(|of| CopyName::of(of, name.inode)).is_some_and(|marked| marked == **name);
        let waits = name.is_final && of.is_none() && may_wait(&name.node);
        !has_mark && !waits
    })
}

/// Removes the copies without a mark from the shared disk of the tier at `root`, before a store is used that may have
/// forgotten some.
pub(super) fn sweep(root: &Path, view: &View) -> Result<()> {
    let shared = &Tree::open(&root.join("hdd"), Steps::default())?;
    let all = read(shared)?;
    let none = BTreeMap::new();
    for name in without_mark(&all, view, &none, |_| false) {
        Copies::on(shared).remove(name)?;
    }
    Ok(())
}
