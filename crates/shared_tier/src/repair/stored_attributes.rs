//! Attributes of files and directories: those of the store are compared with those of the disks.
//!
//! Each change of them is made on the disk first, and then in the store. So where both differ, the store has missed the
//! change: its node died before it told the store, or the store came back without its last changes; or else somebody has put an
//! earlier state of the disk back. A disk that is much older than the store was restored: it gets what the store has. Otherwise
//! nobody knows: what must hold is that nobody gets a permission which one of both refuses. Owner, content and what grants nothing
//! are those of the disk, and both agree afterwards, so that a rebuild gives nothing back
//! (`docs/decisions/0093-attributes-of-disks-that-were-put-back.md`).

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use halocline_cluster::names::attributes::{Attributes, Kind};
use halocline_cluster::names::coding::{decode_attributes, encode_attributes};
use halocline_cluster::names::directory_entries::shard_of;
use halocline_cluster::names::{NameStore, NamesError, Result};
use halocline_model::namespace::{
    Answer, Change, Entry, EntryName, InodeNumber, Links, Opaque, ROOT, Script, Slot,
};
use halocline_os::error as os;
use halocline_vfs::SetAttr;
use halocline_vfs::namespace::stat_descriptor;
use rustix::io::Errno;

use super::Repair;
use super::disks::Disk;
use super::findings::{About, Finding, Findings, note};
use super::merge::{At, FoundFile, FoundNames};
use super::refused::Refused;
use super::scan::shown;
use super::unfinished_changes::is_at;
use super::view::{StoredFile, View};
use crate::acl::{ACCESS, Acl, DEFAULT};
use crate::narrower_attributes::narrower;
use crate::places::own_xattrs::{self, owner_permissions};
use crate::places::users_xattrs::CAPABILITY;
use crate::stat_conversion::split;

/// A disk whose last change of attributes is that much older than the store's was restored: clocks do not differ as much.
const RESTORED_NS: i64 = 3600 * 1_000_000_000;
/// Units in which file systems keep times.
const TIME_UNITS_NS: [i64; 5] = [100, 1_000, 1_000_000, 1_000_000_000, 2_000_000_000];
/// The first and the last time of file systems that keep 32 bits of seconds.
const TIME_LIMITS_NS: [i64; 2] =
    [-(1_i64 << 31) * 1_000_000_000, ((1_i64 << 31) - 1) * 1_000_000_000];

/// Something whose attributes the store is to get from its disk.
#[derive(Debug)]
pub(super) struct Differing {
    number: u64,
    /// Its path in the tier.
    path: String,
    kind: Kind,
    /// The disk, and the item of it; `None` is its root.
    at: (usize, Option<usize>),
    on_disk: Attributes,
    /// Mode, owner and extended attributes that both get.
    agreed: Attributes,
    keeps_acls: bool,
}

/// Compares everything that a sound store has with the disks that are reached, and tells what differs.
pub(super) fn compare(
    repair: &Repair<'_>,
    found: &FoundNames,
    findings: &mut Findings,
) -> Vec<Differing> {
    let mut comparison = Comparison {
        keeps_acls: repair.disks.all.iter().map(Disk::keeps_acls).collect(),
        findings,
        differing: Vec::new(),
    };
    let view = &repair.view;
    if let (Some(stored), Some(on_disk)) =
        (view.directory_attributes.get(&ROOT.0), repair.disks.all[0].scanned.root.as_ref())
    {
        comparison.add(ROOT.0, (0, None), (on_disk, stored), || "/".to_owned());
    }
    for one in &found.directories {
        let stored = view.directory_attributes.get(&one.number);
        if let (Some(stored), Some(at)) = (stored, one.at) {
            let path = || view.path(one.parent, &one.name);
            comparison.add(one.number, (at.0, Some(at.1)), (&one.attributes, stored), path);
        }
    }
    for file in &found.files {
        let Some(stored) = view.files.get(&file.number) else { continue };
        let Some(place) = &stored.attributes.location else { continue };
        let is_there = |at: &&At| is_at(repair.disks, **at, place, found);
        if let Some(at) = file.paths.iter().find(is_there) {
            let path = || view.path(stored.directory, &stored.name);
            let both = (&file.attributes, &stored.attributes);
            comparison.add(file.number, (at.0, Some(at.1)), both, path);
        }
    }
    comparison.differing
}

struct Comparison<'a> {
    /// Whether each disk keeps ACLs.
    keeps_acls: Vec<bool>,
    findings: &'a mut Findings,
    differing: Vec<Differing>,
}

impl Comparison<'_> {
    fn add(
        &mut self,
        number: u64,
        at: (usize, Option<usize>),
        (on_disk, stored): (&Attributes, &Attributes),
        path: impl FnOnce() -> String,
    ) {
        let keeps_acls = self.keeps_acls[at.0];
        let of_inode = differences(on_disk, stored, keeps_acls);
        let of_content = content_differences(on_disk, stored);
        if of_inode.is_empty() && of_content.is_empty() {
            return;
        }
        let is_restored = on_disk.ctime_ns < stored.ctime_ns.saturating_sub(RESTORED_NS);
        let agreed =
            if is_restored { stored.clone() } else { narrower(on_disk, stored, keeps_acls) };
        let result = if is_restored && !of_inode.is_empty() {
            "; the disk was changed before the store, as if it was restored, and gets the store's mode, owner and attributes"
                .to_owned()
        } else if differences(on_disk, &agreed, keeps_acls).is_empty() {
            String::new()
        } else {
            let mode = agreed.mode;
            format!("; which is newer is not known, so both get what both grant: mode {mode:o}")
        };
        // Nothing brings back bytes that only the store knows of; but it has not forgotten them.
        let is_older = !of_content.is_empty() && is_older(on_disk, stored);
        let what = [of_inode, of_content].concat().join(", ");
        let path = path();
        let line = format!("{path}: {what}{result}");
        let about = About::Numbered(number, stored.ctime_ns);
        if is_older {
            note(&mut self.findings.older, Finding::new(about, line));
        } else {
            note(&mut self.findings.attributes, Finding::of_older_store(about, line));
        }
        let (kind, on_disk) = (stored.kind, on_disk.clone());
        self.differing.push(Differing { number, path, kind, at, on_disk, agreed, keeps_acls });
    }
}

/// How mode, owner and extended attributes differ.
pub(super) fn differences(
    on_disk: &Attributes,
    stored: &Attributes,
    keeps_acls: bool,
) -> Vec<String> {
    let mut all = Vec::new();
    if on_disk.mode != stored.mode {
        all.push(format!("mode {:o} on the disk, {:o} in the store", on_disk.mode, stored.mode));
    }
    if (on_disk.uid, on_disk.gid) != (stored.uid, stored.gid) {
        let [disk, store] = [on_disk, stored].map(|of| format!("{}:{}", of.uid, of.gid));
        all.push(format!("owner {disk} on the disk, {store} in the store"));
    }
    let names = on_disk
        .xattrs
        .keys()
        .chain(stored.xattrs.keys().filter(|name| !on_disk.xattrs.contains_key(*name)));
    for name in names.filter(|name| is_compared(name.as_slice(), keeps_acls)) {
        if !is_same_value(name, on_disk.xattrs.get(name), stored.xattrs.get(name)) {
            all.push(match name.as_slice() {
                acl if acl == ACCESS => "ACL".to_owned(),
                acl if acl == DEFAULT => "default ACL".to_owned(),
                name => format!("extended attribute {}", shown(&name.escape_ascii().to_string())),
            });
        }
    }
    all
}

/// How the content differs, if nobody may be writing it: then the store does not claim to know.
fn content_differences(on_disk: &Attributes, stored: &Attributes) -> Vec<String> {
    let mut all = Vec::new();
    if stored.kind != Kind::File || stored.is_written() {
        return all;
    }
    if on_disk.size != stored.size {
        all.push(format!("size {} on the disk, {} in the store", on_disk.size, stored.size));
    }
    if !is_same_time(on_disk.mtime_ns, stored.mtime_ns) {
        let [disk, store] = [on_disk, stored].map(|of| {
            let (seconds, ns) = split(of.mtime_ns);
            format!("{seconds}.{ns:09}")
        });
        all.push(format!("changed at {disk} on the disk, {store} in the store"));
    }
    all
}

/// Whether a disk has a file from before its last change in the store: an earlier state of the disk was put back, or the disk has lost
/// what was not yet durable.
fn is_older(on_disk: &Attributes, stored: &Attributes) -> bool {
    on_disk.mtime_ns < stored.mtime_ns && !is_same_time(on_disk.mtime_ns, stored.mtime_ns)
}

/// Whether a disk has a time of the store, as exactly as it keeps times: a file may have been moved to it.
pub(super) fn is_same_time(on_disk: i64, stored: i64) -> bool {
    let is_rounded =
        |unit: &i64| on_disk % unit == 0 && stored.abs_diff(on_disk) < unit.unsigned_abs();
    let [first, last] = TIME_LIMITS_NS;
    let is_cut = on_disk == first && stored < first || on_disk == last && stored > last;
    on_disk == stored || is_cut || TIME_UNITS_NS.iter().any(is_rounded)
}

/// Whether both should have an extended attribute: file systems have some of their own, as the labels of security modules.
fn is_compared(name: &[u8], keeps_acls: bool) -> bool {
    name.starts_with(b"user.")
        || name == CAPABILITY
        || keeps_acls && (name == ACCESS || name == DEFAULT)
}

fn is_same_value(name: &[u8], one: Option<&Vec<u8>>, other: Option<&Vec<u8>>) -> bool {
    if one == other {
        return true;
    }
    let acl = |value: Option<&Vec<u8>>| value.and_then(|value| Acl::parse(value));
    (name == ACCESS || name == DEFAULT) && acl(one).is_some() && acl(one) == acl(other)
}

/// Gives the disks what they and the store shall have, as changes are made there first. Returns those that have it now.
pub(super) fn give_disks<'a>(
    repair: &'a Repair<'_>,
    refused: &mut Refused,
) -> os::Result<Vec<&'a Differing>> {
    let mut given = Vec::new();
    for one in &repair.differing {
        let disk = &repair.disks.all[one.at.0];
        let root = || disk.tree.path.display().to_string();
        let path = one.at.1.map_or_else(root, |at| disk.shown(at));
        let what = "its mode, owner and attributes cannot be set, so the store keeps its own";
        if refused.is_made((&path, one.number), what, one.give(disk))? {
            given.push(one);
        } else {
            refused.add_path(one.path.clone());
        }
    }
    Ok(given)
}

/// Gives a file that gets a name the mode and attributes with which it gets it, if its disk has others; whether it has them now.
pub(super) fn give_named(
    repair: &Repair<'_>,
    file: &FoundFile,
    refused: &mut Refused,
) -> os::Result<bool> {
    let (item, disk) = (repair.item(file.at), repair.disk(file.at));
    let (on_disk, agreed) = (&item.attributes, &file.attributes);
    if (on_disk.mode, &on_disk.xattrs) == (agreed.mode, &agreed.xattrs) {
        return Ok(true);
    }
    let path = repair.path(file.at);
    let one = Differing {
        number: file.number,
        path: path.clone(),
        kind: Kind::File,
        at: (file.at.0, Some(file.at.1)),
        on_disk: on_disk.clone(),
        agreed: agreed.clone(),
        keeps_acls: disk.keeps_acls(),
    };
    let what = "it cannot be closed to all but those whom another file with its number admits";
    refused.is_made((&path, file.number), what, one.give(disk))
}

/// Gives the store what the disks have. Nobody else uses it.
pub(super) fn take(store: &dyn NameStore, view: &View, all: &[&Differing]) -> Result<()> {
    all.iter().try_for_each(|one| match one.kind {
        Kind::Directory => take_directory(store, one),
        _ => view.files.get(&one.number).map_or(Ok(()), |file| {
            change_file(store, (one.number, file), &|attributes| one.taken(attributes))
        }),
    })
}

fn take_directory(store: &dyn NameStore, one: &Differing) -> Result<()> {
    let shard = InodeNumber(one.number);
    let Answer::Attributes(from, _) = store.run(shard, &Script::Read(Slot::Attributes))? else {
        return Ok(());
    };
    let to = one.taken(decode_attributes(&from)?)?;
    change(store, shard, Change::Attributes { from, to, sets_changed: false })
}

/// Changes the attributes that the store has of a file.
pub(super) fn change_file(
    store: &dyn NameStore,
    (number, file): (u64, &StoredFile),
    changed: &dyn Fn(Attributes) -> Result<Opaque>,
) -> Result<()> {
    let (directory, name) = (InodeNumber(file.directory), file.name.clone());
    let directory = shard_of(store, &EntryName { directory, name: name.clone() })?;
    match store.run(directory, &Script::Read(Slot::Name(name.clone())))? {
        Answer::Name(Some(Entry::Single(inode, from)), _) if inode.0 == number => {
            let to = Entry::Single(inode, changed(decode_attributes(&from)?)?);
            let from = Entry::Single(inode, from);
            change(store, directory, Change::Name(name, Some(from), Some(to)))
        }
        Answer::Name(Some(Entry::Linked(inode, shard)), _) if inode.0 == number => {
            let Answer::Links(from) = store.run(shard, &Script::Read(Slot::Whole))? else {
                return Ok(());
            };
            let attributes = changed(decode_attributes(&from.attributes)?)?;
            let to = Links { attributes, ..from.clone() };
            change(store, shard, Change::Links(from, to))
        }
        _ => Ok(()),
    }
}

fn change(store: &dyn NameStore, shard: InodeNumber, change: Change) -> Result<()> {
    match store.run(shard, &Script::Alone(vec![change]))? {
        Answer::Done => Ok(()),
        answer => Err(NamesError::Unsound(format!("shard {shard:?}: {answer:?}"))),
    }
}

/// Attributes as the store keeps them.
pub(super) fn opaque(of: &Attributes) -> Result<Opaque> {
    let what = "attributes that are too long for the store";
    encode_attributes(of).ok_or_else(|| NamesError::Unusable(what.to_owned()))
}

impl Differing {
    /// Gives the disk what was agreed.
    fn give(&self, disk: &Disk) -> os::Result<()> {
        let (is, agreed) = (&self.on_disk, &self.agreed);
        if differences(is, agreed, self.keeps_acls).is_empty() {
            return Ok(());
        }
        let path = self.at.1.map(|at| disk.scanned.path(at));
        let fd = disk.tree.look(path.as_ref())?;
        // Nobody may have replaced it since it was read.
        let key = self.at.1.map(|at| disk.scanned.items[at].key);
        if key.is_some_and(|key| !stat_descriptor(&fd).is_ok_and(|stat| stat.key() == key)) {
            return Err(Errno::STALE.into());
        }
        let set = |change: &SetAttr| owner_permissions::set_attr(&fd, change).map(drop);
        disk.tree.step("setting attributes on which the store and the disk agree", || {
            // First: this takes set-id bits and capabilities away.
            if (is.uid, is.gid) != (agreed.uid, agreed.gid) {
                let (uid, gid) = (Some(agreed.uid), Some(agreed.gid));
                set(&SetAttr { uid, gid, ..SetAttr::default() })?;
            }
            self.give_xattrs(&fd)?;
            set(&SetAttr { mode: Some(agreed.mode), ..SetAttr::default() })
        })
    }

    fn give_xattrs(&self, fd: &OwnedFd) -> os::Result<()> {
        let [is, agreed] = [&self.on_disk, &self.agreed].map(|of| &of.xattrs);
        let is_compared = |name: &&Vec<u8>| is_compared(name, self.keeps_acls);
        for name in is.keys().filter(|name| !agreed.contains_key(*name)).filter(is_compared) {
            own_xattrs::clear(fd, OsStr::from_bytes(name))?;
        }
        let is_new = |(name, value): &(&Vec<u8>, &Vec<u8>)| {
            is_compared(name) && !is_same_value(name, is.get(*name), Some(*value))
        };
        let mut given = agreed.iter().filter(is_new);
        given.try_for_each(|(name, value)| own_xattrs::set_users(fd, name, value))
    }

    /// What the store gets.
    fn taken(&self, mut stored: Attributes) -> Result<Opaque> {
        let (is, agreed) = (&self.on_disk, &self.agreed);
        (stored.mode, stored.uid, stored.gid) = (agreed.mode, agreed.uid, agreed.gid);
        stored.xattrs = self.xattrs(&stored.xattrs);
        if let Some(acl) = stored.xattrs.get(ACCESS).and_then(|acl| Acl::parse(acl)) {
            stored.xattrs.insert(ACCESS.to_vec(), acl.with_mode(agreed.mode).to_value());
        }
        if self.kind == Kind::File && !stored.is_written() {
            (stored.size, stored.mtime_ns) = (is.size, is.mtime_ns);
        }
        stored.ctime_ns = stored.ctime_ns.max(is.ctime_ns);
        opaque(&stored)
    }

    /// Those that were agreed, with those that are not compared as the store has them.
    fn xattrs(&self, stored: &BTreeMap<Vec<u8>, Vec<u8>>) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let is_compared = |name: &[u8]| is_compared(name, self.keeps_acls);
        let kept = stored.iter().filter(|(name, _)| !is_compared(name));
        let taken = self.agreed.xattrs.iter().filter(|(name, _)| is_compared(name));
        kept.chain(taken).map(|(name, value)| (name.clone(), value.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_has_a_time_as_exactly_as_it_keeps_times() {
        const SECOND_NS: i64 = 1_000_000_000;
        let [first, last] = TIME_LIMITS_NS;
        for (on_disk, stored) in
            [(5, 5), (SECOND_NS, SECOND_NS + 7), (first, first - 7), (last, last + SECOND_NS)]
        {
            assert!(is_same_time(on_disk, stored), "{on_disk} {stored}");
        }
        for (on_disk, stored) in
            [(5, 6), (SECOND_NS + 7, SECOND_NS), (first + 7, first - 7), (last, last - SECOND_NS)]
        {
            assert!(!is_same_time(on_disk, stored), "{on_disk} {stored}");
        }
    }
}
