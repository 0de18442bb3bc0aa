//! Attributes of files and directories: those of the store are compared with those of the disks.
//!
//! Each change of them is made on the disk first, and then in the store. So where both differ, the store has missed the
//! change: its node died before it told the store, or the store came back without its last changes. What the disk has
//! is right then, unless it is much older than what the store has: then somebody has restored the disk.

use std::collections::BTreeMap;

use halocline_cluster::names::attributes::{Attributes, Kind};
use halocline_cluster::names::coding::{decode_attributes, encode_attributes};
use halocline_cluster::names::directory_entries::shard_of;
use halocline_cluster::names::{NameStore, NamesError, Result};
use halocline_model::namespace::{
    Answer, Change, Entry, EntryName, InodeNumber, Links, ROOT, Script, Slot,
};

use super::Repair;
use super::findings::{About, Finding, Findings, note};
use super::links_and_devices::keeps_acls;
use super::merge::{At, FoundNames};
use super::scan::shown;
use super::unfinished_changes::is_at;
use super::view::{StoredFile, View};
use crate::acl::{ACCESS, Acl, DEFAULT};
use crate::places::users_xattrs::CAPABILITY;
use crate::stat_conversion::split;

/// A disk whose last change of attributes is that much older than the store's was restored: clocks do not differ as much.
const RESTORED_NS: i64 = 3600 * 1_000_000_000;
/// Units in which file systems keep times.
const TIME_UNITS_NS: [i64; 5] = [100, 1_000, 1_000_000, 1_000_000_000, 2_000_000_000];

/// Something whose attributes the store is to get from its disk.
#[derive(Debug)]
pub(super) struct Differing {
    number: u64,
    kind: Kind,
    on_disk: Attributes,
    keeps_acls: bool,
    /// Whether only size and time of the content are taken.
    is_restored: bool,
}

/// Compares everything that a sound store has with the disks that are reached, and tells what differs.
pub(super) fn compare(
    repair: &Repair<'_>,
    found: &FoundNames,
    findings: &mut Findings,
) -> Vec<Differing> {
    let mut comparison = Comparison {
        keeps_acls: repair.disks.all.iter().map(keeps_acls).collect(),
        findings,
        differing: Vec::new(),
    };
    let view = &repair.view;
    if let (Some(stored), Some(on_disk)) =
        (view.directory_attributes.get(&ROOT.0), repair.disks.all[0].scanned.root.as_ref())
    {
        comparison.add(ROOT.0, 0, (on_disk, stored), || "/".to_owned());
    }
    for one in &found.directories {
        let stored = view.directory_attributes.get(&one.number);
        if let (Some(stored), Some(at)) = (stored, one.at) {
            let path = || view.path(one.parent, &one.name);
            comparison.add(one.number, at.0, (&one.attributes, stored), path);
        }
    }
    for file in &found.files {
        let Some(stored) = view.files.get(&file.number) else { continue };
        let Some(place) = &stored.attributes.location else { continue };
        let is_there = |at: &&At| is_at(repair.disks, **at, place, found);
        if let Some(at) = file.paths.iter().find(is_there) {
            let path = || view.path(stored.directory, &stored.name);
            comparison.add(file.number, at.0, (&file.attributes, &stored.attributes), path);
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
        disk: usize,
        (on_disk, stored): (&Attributes, &Attributes),
        path: impl FnOnce() -> String,
    ) {
        let of_inode = differences(on_disk, stored, self.keeps_acls[disk]);
        let of_content = content_differences(on_disk, stored);
        if of_inode.is_empty() && of_content.is_empty() {
            return;
        }
        let is_restored = on_disk.ctime_ns < stored.ctime_ns.saturating_sub(RESTORED_NS);
        let (path, about) = (path(), About::Numbered(number, stored.ctime_ns));
        if is_restored && !of_inode.is_empty() {
            let what = of_inode.join(", ");
            let line = format!(
                "{path}: {what}; the disk was changed before the store, as if it was restored: set what is right on a mount \
                 (chmod, chown, setfacl, setfattr)"
            );
            note(&mut self.findings.told, Finding::of_older_store(about, line));
        }
        let taken = if is_restored { of_content } else { [of_inode, of_content].concat() };
        if !taken.is_empty() {
            let line = format!("{path}: {}", taken.join(", "));
            note(&mut self.findings.attributes, Finding::of_older_store(about, line));
            let (kind, keeps_acls) = (stored.kind, self.keeps_acls[disk]);
            let on_disk = on_disk.clone();
            self.differing.push(Differing { number, kind, on_disk, keeps_acls, is_restored });
        }
    }
}

/// How mode, owner and extended attributes differ.
fn differences(on_disk: &Attributes, stored: &Attributes, keeps_acls: bool) -> Vec<String> {
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

/// Whether a disk has a time of the store, as exactly as it keeps times.
fn is_same_time(on_disk: i64, stored: i64) -> bool {
    let is_rounded =
        |unit: &i64| on_disk % unit == 0 && stored.abs_diff(on_disk) < unit.unsigned_abs();
    on_disk == stored || TIME_UNITS_NS.iter().any(is_rounded)
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

/// Gives the store what the disks have. Nobody else uses it.
pub(super) fn take(store: &dyn NameStore, view: &View, all: &[Differing]) -> Result<()> {
    all.iter().try_for_each(|one| match one.kind {
        Kind::Directory => take_directory(store, one),
        _ => view.files.get(&one.number).map_or(Ok(()), |file| take_file(store, file, one)),
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

fn take_file(store: &dyn NameStore, file: &StoredFile, one: &Differing) -> Result<()> {
    let (directory, name) = (InodeNumber(file.directory), file.name.clone());
    let directory = shard_of(store, &EntryName { directory, name: name.clone() })?;
    match store.run(directory, &Script::Read(Slot::Name(name.clone())))? {
        Answer::Name(Some(Entry::Single(inode, from)), _) if inode.0 == one.number => {
            let to = Entry::Single(inode, one.taken(decode_attributes(&from)?)?);
            let from = Entry::Single(inode, from);
            change(store, directory, Change::Name(name, Some(from), Some(to)))
        }
        Answer::Name(Some(Entry::Linked(inode, shard)), _) if inode.0 == one.number => {
            let Answer::Links(from) = store.run(shard, &Script::Read(Slot::Whole))? else {
                return Ok(());
            };
            let attributes = one.taken(decode_attributes(&from.attributes)?)?;
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

impl Differing {
    /// What the store gets.
    fn taken(&self, mut stored: Attributes) -> Result<halocline_model::namespace::Opaque> {
        let is = &self.on_disk;
        if !self.is_restored {
            (stored.mode, stored.uid, stored.gid) = (is.mode, is.uid, is.gid);
            stored.xattrs = self.xattrs(&stored.xattrs);
        }
        if self.kind == Kind::File && !stored.is_written() {
            (stored.size, stored.mtime_ns) = (is.size, is.mtime_ns);
        }
        stored.ctime_ns = stored.ctime_ns.max(is.ctime_ns);
        let what = "attributes that are too long for the store";
        encode_attributes(&stored).ok_or_else(|| NamesError::Unusable(what.to_owned()))
    }

    /// The disk's extended attributes, with those that are not compared as the store has them.
    fn xattrs(&self, stored: &BTreeMap<Vec<u8>, Vec<u8>>) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let is_compared = |name: &[u8]| is_compared(name, self.keeps_acls);
        let kept = stored.iter().filter(|(name, _)| !is_compared(name));
        let taken = self.on_disk.xattrs.iter().filter(|(name, _)| is_compared(name));
        kept.chain(taken).map(|(name, value)| (name.clone(), value.clone())).collect()
    }
}
