//! Clean copies in a check: which of them stand, and for what (`docs/decisions/0081-clean-copies-that-nodes-share.md`).
//!
//! What must hold: a copy is removed only if its file is found with the same or a newer content. After a repair, each other
//! copy with its final name has its mark in the store, or belongs to a file on an SSD that is not reached, or is told.

mod older;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::Path;

use halocline_cluster::names::attributes::{Attributes, CleanCopy, Kind, Location};
use halocline_model::namespace::ROOT;
use halocline_os::error::Result;
use halocline_vfs::Stat;

use super::Repair;
use super::disks::Disks;
use super::findings::{About, Finding, Findings, note};
use super::merge::{FoundFile, FoundNames, Numbers};
use super::refused::Refused;
use super::scan::describe;
use super::view::{View, path};
use crate::places::SSD;
use crate::places::copies::{Copies, CopyName, Version, mark};
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
        let (mut attributes, _) = describe(fd)?;
        let mark = mark(name.number, stat);
        attributes.mtime_ns = mark.mtime_ns;
        let (names, place) = (own_xattrs::names(fd), own_xattrs::from(fd));
        Ok(Self { name, attributes, mark, names, place })
    }

    /// Whether its file was found with the same or a newer content. Others' claims to its number are not believed.
    fn is_seen_in(&self, file: &FileOnDisk<'_>) -> bool {
        let of = &self.attributes;
        let copied = Some(self.name.number);
        let copy = Version { size: of.size, mtime_ns: of.mtime_ns, copied };
        file.attributes.uid == of.uid && file.version.has(copy)
    }
}

/// A file that was found on a disk.
#[derive(Debug)]
struct FileOnDisk<'a> {
    attributes: &'a Attributes,
    version: Version,
}

impl<'a> FileOnDisk<'a> {
    fn new(disks: &Disks, file: &'a FoundFile) -> Self {
        let attributes = &file.attributes;
        let copied = disks.all[file.at.0].scanned.items[file.at.1].copied;
        let version = Version { size: attributes.size, mtime_ns: attributes.mtime_ns, copied };
        Self { attributes, version }
    }
}

/// A file that is on no disk that is reached, and whose copy says which name it had.
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
    /// Copies that go: their files are found.
    gone: Vec<CopyName>,
    /// Copies without a use that may be all that is left of their files.
    aside: Vec<CopyName>,
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
    // The last one of a file is its newest.
    all.sort_by_key(|copy| (copy.name.inode, copy.name.number));
    Ok(all)
}

impl CleanCopies {
    /// Reads all copies, and gives files that were found the marks of theirs.
    pub(super) fn read(
        disks: &Disks,
        (found, view): (&mut FoundNames, &View),
        is_rebuilt: bool,
        numbers: &dyn Numbers,
    ) -> Result<Self> {
        let Some(shared) = disks.all.first() else { return Ok(Self::default()) };
        let all = read(&shared.tree)?;
        mark_files(&all, disks, found);
        let ends = shared.missed.iter().filter(|note| note.change == MissedChange::Gone);
        let removed = ends.map(|note| note.number).collect();
        let stand_ins = if is_rebuilt {
            stand_ins(&all, disks, (found, &removed), numbers)?
        } else {
            older::set_aside_in_sound_store(&all, disks, (found, view))?;
            Vec::new()
        };
        Ok(Self { all, stand_ins, gone: Vec::new(), aside: Vec::new() })
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
        let is_missing = |node: &str| repair.disks.missing.iter().any(|(one, _)| one == node);
        let may_wait = |node: &str| is_missing(node) && repair.is_missed(node);
        let on_disk = found.files.iter();
        let on_disk: BTreeMap<u64, FileOnDisk<'_>> =
            on_disk.map(|file| (file.number, FileOnDisk::new(repair.disks, file))).collect();
        // Somebody has changed one of the two past the mounts, or died while he changed both.
        let differs = |copy: &FoundCopy| {
            let of = |of: &Attributes| (of.size, of.mtime_ns, of.mode, of.uid, of.gid);
            let file = on_disk.get(&copy.name.inode);
            file.is_some_and(|file| of(file.attributes) != of(&copy.attributes))
        };
        let marks =
            self.stand_ins.iter().filter_map(|one| Some((one.number, one.attributes.copy?)));
        let newest: BTreeMap<u64, u64> =
            marks.map(|(number, mark)| (number, mark.number)).collect();
        let unmarked = without_mark(&self.all, &repair.view, &named, may_wait);
        let unmarked: BTreeSet<&CopyName> = unmarked.collect();
        for copy in self.all.iter().filter(|copy| differs(copy) || unmarked.contains(&copy.name)) {
            let CopyName { node, inode, number, is_final } = &copy.name;
            let line = unused(&copy.name);
            let file = on_disk.get(inode);
            // A newer copy of the same file has its final name and stays.
            let has_newer = newest.get(inode).is_some_and(|newest| newest > number);
            if file.is_some_and(|file| copy.is_seen_in(file)) || has_newer {
                self.gone.push(copy.name.clone());
                // One without its final name may be under way.
                if *is_final {
                    note(&mut findings.left_copies, Finding::new(About::Numbered(*inode, 0), line));
                }
            } else if is_missing(node) || file.is_none() && repair.view.files.contains_key(inode) {
                if *is_final {
                    let line = format!("{line}, but may be all that is left of it");
                    note(&mut findings.told, Finding::new(About::Numbered(*inode, 0), line));
                }
            } else {
                self.aside.push(copy.name.clone());
                note(&mut findings.set_aside, Finding::new(About::Numbered(*inode, 0), line));
            }
        }
        self.tell_of_stand_ins(repair, found, findings);
        tell_of_lost_copies(repair, found, findings);
        findings.named[1] += self.stand_ins.len() as u64;
        self.tell_of_missing(findings);
    }

    /// Tells of files that SSDs which are reached have lost.
    fn tell_of_stand_ins(&self, repair: &Repair<'_>, found: &FoundNames, findings: &mut Findings) {
        let above = found.directories.iter().map(|one| (one.number, (one.parent, &one.name)));
        let above: BTreeMap<u64, _> = above.collect();
        for StandIn { number, name: (directory, name), attributes } in &self.stand_ins {
            let node = attributes.location.as_ref().and_then(|place| place.node.as_deref());
            let is_missing = |node: &&str| repair.disks.missing.iter().any(|(one, _)| one == node);
            let Some(node) = node.filter(|node| !is_missing(node)) else { continue };
            let path = path(&|number| above.get(&number).copied(), above.len(), (*directory, name));
            let line = format!(
                "{path}: it is not on the SSD of node {node}; the shared disk has its copy, which `halocline cluster drain {node}`, \
                 run on a mount of the tier, makes the file"
            );
            note(&mut findings.told, Finding::new(About::Numbered(*number, 0), line));
        }
    }

    /// Adds to why SSDs are missing what the shared disk has of their files.
    fn tell_of_missing(&self, findings: &mut Findings) {
        let gone: BTreeSet<&CopyName> = self.gone.iter().collect();
        for (node, why) in &mut findings.missing {
            let is_kept = |copy: &&FoundCopy| {
                copy.name.is_final && copy.name.node == *node && !gone.contains(&copy.name)
            };
            let kept = self.all.iter().filter(is_kept).count();
            if kept > 0 {
                *why = format!(
                    "{why}. The shared disk has copies of {kept} of its files: if that SSD is lost, `halocline cluster drain \
                     {node}`, run on a mount of the tier, makes them the files, and names those that have none"
                );
            }
        }
    }

    /// Removes those that go. No node uses the names yet.
    pub(super) fn clear_away(&self, disks: &Disks, refused: &mut Refused) -> Result<()> {
        let Some(shared) = disks.all.first() else { return Ok(()) };
        let copies = Copies::on(&shared.tree);
        let aside = self.aside.iter().map(|copy| (copy, copies.set_aside(copy)));
        for (copy, done) in aside.chain(self.gone.iter().map(|copy| (copy, copies.remove(copy)))) {
            refused.is_made((&unused(copy), copy.inode), "it stays", done)?;
        }
        Ok(())
    }
}

/// A copy that no file uses, for people.
fn unused(CopyName { node, inode, number, .. }: &CopyName) -> String {
    format!("the unused copy {number} of file {inode} of node {node}")
}

/// Gives files that are to get names the marks of their copies, if the copies have their sizes and times.
fn mark_files(copies: &[FoundCopy], disks: &Disks, found: &mut FoundNames) {
    let nodes: Vec<_> = disks.all.iter().map(|disk| disk.node.as_deref()).collect();
    let finals = copies.iter().filter(|copy| copy.name.is_final);
    let by_file: BTreeMap<u64, &FoundCopy> = finals.map(|copy| (copy.name.inode, copy)).collect();
    for file in &mut found.files {
        let Some(copy) = by_file.get(&file.number) else { continue };
        let (of, is) = (&file.attributes, &copy.attributes);
        let is_same = (of.size, of.mtime_ns) == (is.size, is.mtime_ns)
            && copy.is_seen_in(&FileOnDisk::new(disks, file));
        let is_its_node = nodes.get(file.at.0).copied().flatten() == Some(&*copy.name.node);
        if is_same && is_its_node && file.is_numbered && file.names.len() == 1 {
            file.attributes.copy = Some(copy.mark);
        }
    }
}

/// In a rebuild: files of SSDs that are not reached, or have lost them, get the names that their copies carry, as before the loss
/// of the names. Older versions that were found elsewhere are set aside.
fn stand_ins(
    copies: &[FoundCopy],
    disks: &Disks,
    (found, gone): (&mut FoundNames, &BTreeSet<u64>),
    numbers: &dyn Numbers,
) -> Result<Vec<StandIn>> {
    let files = found.files.iter().enumerate();
    let files: BTreeMap<u64, usize> = files.map(|(at, file)| (file.number, at)).collect();
    let lost = found.never_arrived.iter().map(|(_, number)| *number);
    let mut known: BTreeSet<u64> = lost.chain(gone.iter().copied()).collect();
    let directories: BTreeSet<u64> = found.directories.iter().map(|one| one.number).collect();
    let is_directory = |number: u64| number == ROOT.0 || directories.contains(&number);
    let (mut all, mut old) = (Vec::new(), BTreeSet::new());
    for copy in copies.iter().rev().filter(|copy| copy.name.is_final) {
        let [name] = copy.names.as_slice() else { continue };
        let is_its = |place: &&Location| {
            place.tier == SSD && place.node.as_deref() == Some(&*copy.name.node)
        };
        let Some(place) = copy.place.as_ref().filter(is_its) else { continue };
        let number = copy.name.inode;
        if !is_directory(name.0) || number >= numbers.first_unused() || !known.insert(number) {
            continue;
        }
        if let Some(at) = files.get(&number) {
            if !older::is_older((disks, &found.files[*at]), copy)? {
                continue;
            }
            old.insert(number);
        }
        let mut attributes = copy.attributes.clone();
        (attributes.location, attributes.copy) = (Some(place.clone()), Some(copy.mark));
        all.push(StandIn { number, name: name.clone(), attributes });
    }
    older::set_aside(&old, found);
    Ok(all)
}

/// In a rebuild: a file whose copy is gone may have been changed or moved since it was copied, and lie on an SSD that is not
/// reached. Of those that gave way nobody knows, either.
fn tell_of_lost_copies(repair: &Repair<'_>, found: &FoundNames, findings: &mut Findings) {
    if !repair.is_rebuilt || repair.disks.missing.is_empty() {
        return;
    }
    for file in found.files.iter().filter(|file| file.attributes.copy.is_none()) {
        if repair.disks.all[file.at.0].scanned.items[file.at.1].copied.is_some() {
            let line = format!(
                "{}: it may be an old version: the shared disk has no copy of it any more, and an SSD that is not reached may have \
                 a newer one",
                repair.path(file.at)
            );
            let item = &repair.disks.all[file.at.0].scanned.items[file.at.1];
            note(&mut findings.told, Finding::new(About::item(item), line));
        }
    }
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
/// forgotten some; only those whose files are found on disks that are reached, the others are told of by the next check.
pub(super) fn sweep(root: &Path, peers: Option<&str>, view: &View) -> Result<()> {
    let shared = &Tree::open(&root.join("hdd"), Steps::default())?;
    let all = read(shared)?;
    let none = BTreeMap::new();
    let unmarked: BTreeSet<&CopyName> = without_mark(&all, view, &none, |_| false).collect();
    if unmarked.is_empty() {
        return Ok(());
    }
    let disks = Disks::read(root, peers)?;
    let items = disks.all.iter().flat_map(|disk| &disk.scanned.items);
    let mut seen: BTreeMap<u64, Vec<FileOnDisk<'_>>> = BTreeMap::new();
    for item in items.filter(|item| item.attributes.kind == Kind::File) {
        let attributes = &item.attributes;
        let (size, mtime_ns, copied) = (attributes.size, attributes.mtime_ns, item.copied);
        let file = FileOnDisk { attributes, version: Version { size, mtime_ns, copied } };
        seen.entry(item.number.unwrap_or(0)).or_default().push(file);
    }
    for copy in all.iter().filter(|copy| unmarked.contains(&copy.name)) {
        let files = seen.get(&copy.name.inode).map_or(&[][..], Vec::as_slice);
        if files.iter().any(|file| copy.is_seen_in(file)) {
            Copies::on(shared).remove(&copy.name)?;
        }
    }
    Ok(())
}
