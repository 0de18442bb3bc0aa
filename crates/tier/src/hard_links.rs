//! Files with several names (hard links): all names move together, and the data once.
//!
//! The SSD's tree has the names, so it has the hard links, too: of the file itself if it is on the SSD, of its link
//! if it is below. The link of such a file has a form of its own ([`super::tier_links`]), because a second name of any
//! other link is not believed.
//!
//! What must hold: while some names stand for the file and others for its copy, nobody changes either, and hard links
//! to both in the directory of intents, `ID-from` and `ID-to`, record which is which. A mount that finds both gives the
//! remaining names to `ID-to`, so that is always the file that programs continued to use. Either note is removed only
//! once all names are durably cut over, or durably restored.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::RwLock;
use rustix::fs::{AtFlags, linkat, unlinkat};
use rustix::io::Errno;

use super::dir_times::DirTimes;
use super::foundation::Foundation;
use super::inode::{Inode, Place, Table};
use super::inodes::Inodes;
use super::leftover_intents::LeftoverIntents;
use super::linked_vnodes::{LinkedVnodes, Name};
use super::listed_names;
use super::not_moved::{NAMES_MAX, NotMoved};
use super::staged_copy::Source;
use super::tiers::{Entry, Tiers};
use halocline_os::error::Result;
use halocline_vfs::namespace::statx::{set_attr_on, stat_at, system_time};
use halocline_vfs::namespace::{Vnode, stat_descriptor};
use halocline_vfs::{SetAttr, SetTime, Stat};

/// The names of an ID's hard links in the directory of intents.
struct Notes {
    from: String,
    to: String,
}

impl Notes {
    fn of(id: &str) -> Self {
        Self { from: format!("{id}-from"), to: format!("{id}-to") }
    }
}

/// The temporary name that becomes the `at`th name of a file.
pub(super) fn temporary_name(first: &str, at: usize) -> String {
    if at == 0 { first.to_owned() } else { format!("{first}-{at}") }
}

/// Moves all names of a file together, and finds them.
#[derive(Debug)]
pub(super) struct HardLinks {
    tiers: Arc<Tiers>,
    table: Arc<Table>,
    linked_vnodes: Arc<LinkedVnodes>,
    intents: Arc<LeftoverIntents>,
    dir_times: Arc<DirTimes>,
    names: Arc<RwLock<()>>,
    inodes: Arc<Inodes>,
}

impl HardLinks {
    /// Built over the components that it uses.
    pub(super) fn new(base: &Foundation, inodes: &Arc<Inodes>) -> Self {
        Self {
            tiers: base.tiers.clone(),
            table: base.table.clone(),
            linked_vnodes: base.linked_vnodes.clone(),
            intents: base.intents.clone(),
            dir_times: base.dir_times.clone(),
            names: base.names.clone(),
            inodes: inodes.clone(),
        }
    }

    /// Whether an inode with these attributes has no other name in the tree. The caller has held
    /// `names` since before they were read.
    pub(super) fn is_last(&self, stat: &Stat) -> bool {
        let live = self.table.find(stat.key());
        let own = live.map_or(0, |inode| inode.own_links.load(Ordering::Acquire));
        stat.raw.st_nlink <= 1 + own
    }

    /// All `count` names of an entry.
    ///
    /// # Errors
    /// [`NotMoved::HardLinked`] if the mount does not know all of them, or if there are more than [`NAMES_MAX`].
    pub(super) fn all_names(&self, entry: &Vnode, count: u64) -> Result<Vec<Name>, NotMoved> {
        if count > NAMES_MAX {
            return Err(NotMoved::HardLinked { names: count, known: NAMES_MAX });
        }
        let mut names = entry.names();
        // Somebody may have changed some of them behind the mount.
        names.retain(|(parent, name)| {
            let there = self.tiers.tree().descriptor(parent);
            let there = there.and_then(|dir| stat_at(dir.as_fd(), name));
            there.is_ok_and(|stat| stat.key() == entry.key())
        });
        let known = names.len() as u64;
        if known == count { Ok(names) } else { Err(NotMoved::HardLinked { names: count, known }) }
    }

    /// Why a file with several names cannot move, if it cannot.
    pub(super) fn why_linked(&self, inode: &Inode) -> Option<NotMoved> {
        let place = inode.place.read();
        let count = inode.count_names(&self.tiers, &place).ok().filter(|count| *count > 1)?;
        self.all_names(&place.entry, count).err()
    }

    /// Lets the link of a file on a lower tier have several names.
    pub(super) fn share(&self, inode: &Arc<Inode>) -> Result<()> {
        let _moving = inode.moving.lock();
        let mut place = inode.place.write();
        let Some(away) = place.away.clone().filter(|away| !away.shared) else { return Ok(()) };
        let name = place.entry.known_as().filter(|_| !away.path.as_os_str().is_empty());
        let name = name.ok_or(Errno::NOENT)?;
        let target = self.tiers.links().to_shared(away.tier, &away.path);
        self.inodes.replace_own_link(
            inode,
            &mut place,
            &name,
            (&self.tiers.fresh_name(), &target),
        )?;
        if let Some(away) = &mut place.away {
            away.shared = true;
        }
        Ok(())
    }

    /// Called when the names of a file on a lower tier have changed: the time of its last change must change too, and
    /// that tier does not do it.
    pub(super) fn touch(&self, entry: Entry) {
        if let Some(inode) = self.table.find(entry)
            && let Err(error) = self.touched(&inode)
        {
            tracing::debug!(%error, "a file keeps its time of last change");
        }
    }

    /// The same; returns the file's attributes.
    pub(super) fn touched(&self, inode: &Inode) -> Result<Stat> {
        {
            let place = inode.place.read();
            if place.away.is_some() && inode.kept.lock().is_none() {
                let _changing = inode.changing()?;
                let fd = inode.physical(&self.tiers, &place)?;
                let raw = stat_descriptor(&*fd)?.raw;
                let at = system_time((raw.st_atime, raw.st_atime_nsec));
                let same = SetAttr { atime: Some(SetTime::At(at)), ..SetAttr::default() };
                let touch = || set_attr_on(&*fd, &same).map(drop);
                if let Err(error) = self.tiers.steps(place.tier()).step("setting attributes", touch)
                {
                    tracing::debug!(%error, "a file keeps its time of last change");
                }
            }
        }
        self.inodes.stat(inode)
    }
}

impl HardLinks {
    /// Creates more temporary names for what `first` names, `count` in all.
    pub(super) fn make_names(&self, first: &str, count: usize) -> Result<()> {
        let tier_dir = &self.tiers.ssd();
        (1..count).try_for_each(|at| {
            let name = temporary_name(first, at);
            tier_dir.steps.step("making a name", || {
                Ok(linkat(tier_dir.tmp(), first, tier_dir.tmp(), name, AtFlags::empty())?)
            })
        })
    }

    /// Cuts all names of a file over to what has the temporary names that [`Self::make_names`] made
    /// of `first`. The caller holds `place` and `names` exclusively. Returns what they stand for,
    /// and the directories to be synced, the last to be changed first.
    pub(super) fn replace_all(
        &self,
        (inode, place): (&Inode, &Place),
        source: &Source,
        (id, first): (&str, &str),
    ) -> Result<(Vnode, Stat, Vec<Vnode>), NotMoved> {
        let names = self.all_names(&source.entry, inode.count_names(&self.tiers, place)?)?;
        if names.len() != source.names {
            return Err(NotMoved::Changed);
        }
        let notes = Notes::of(id);
        let tmp = self.tiers.ssd().tmp().as_fd();
        let dir = self.tiers.tree().descriptor(&names[0].0)?;
        self.note((tmp, first.as_ref()), &notes.to)?;
        if let Err(error) = self.note((dir.as_fd(), names[0].1.as_os_str()), &notes.from) {
            self.drop_note(&notes.to)?;
            return Err(error.into());
        }
        let expected = source.entry.key();
        let mut replaced = None;
        for (at, (parent, name)) in names.iter().enumerate() {
            let temporary = temporary_name(first, at);
            let from = (tmp, OsStr::new(&temporary));
            match self.dir_times.replace_unseen(
                &self.tiers,
                "cutting a name over",
                from,
                (parent, name.as_os_str()),
                expected,
            ) {
                Ok(now) => replaced = Some(now),
                Err(error) => {
                    let to = replaced.map(|(entry, _)| entry.key());
                    self.undo_cutover(inode, &names[..at], &notes, (expected, to));
                    return Err(error.into());
                }
            }
        }
        let (entry, mut stat) = replaced.ok_or(NotMoved::Gone)?;
        inode.own_links.store(1, Ordering::Release);
        self.linked_vnodes.keep(&entry);
        stat.raw.st_nlink = names.len() as u64;
        let mut parents: Vec<Vnode> = Vec::new();
        for (parent, _) in names.into_iter().rev() {
            if !parents.contains(&parent) {
                parents.push(parent);
            }
        }
        Ok((entry, stat, parents))
    }

    /// Called when all names that [`Self::replace_all`] cut over are durable. The caller holds `place` exclusively.
    pub(super) fn forget_notes(&self, inode: &Inode, id: &str) {
        let notes = Notes::of(id);
        let _names = self.names.write();
        match self.drop_note(&notes.from).and_then(|()| self.drop_note(&notes.to)) {
            Ok(()) => inode.own_links.store(0, Ordering::Release),
            Err(error) => tracing::debug!(%error, "an intent stays until the next mount"),
        }
    }

    /// Restores `names`, which were cut over from `old` to `new`, if any were. If that fails, the next mount finishes the
    /// cutover.
    fn undo_cutover(
        &self,
        inode: &Inode,
        names: &[Name],
        notes: &Notes,
        (old, new): (Entry, Option<Entry>),
    ) {
        let restored = new.map_or(Ok(()), |new| self.put_back(names, notes, new));
        let restored = restored.and_then(|()| self.drop_note(&notes.from));
        if let Err(error) = restored.and_then(|()| self.intents.sync()) {
            tracing::warn!(%error, "the next mount cuts over the names of a file");
            // From now on the file is found by whichever name it is looked up.
            for entry in new.into_iter().chain([old]) {
                self.table.set_number(entry, inode.number);
            }
            self.table.tear(inode.number);
        } else if let Err(error) = self.drop_note(&notes.to) {
            tracing::debug!(%error, "a copy stays until the next mount");
        }
    }

    /// Restores names to what they stood for before.
    fn put_back(&self, names: &[Name], notes: &Notes, expected: Entry) -> Result<()> {
        names.iter().try_for_each(|name| self.give(&notes.from, name, expected))
    }

    /// Makes a name that stands for `expected` a name of what a note links to.
    fn give(&self, note: &str, (parent, name): &Name, expected: Entry) -> Result<()> {
        let (tier_dir, temporary) = (&self.tiers.ssd(), self.tiers.fresh_name());
        let dir = self.intents.dir();
        tier_dir.steps.step("making a name", || {
            Ok(linkat(dir, note, tier_dir.tmp(), &temporary, AtFlags::empty())?)
        })?;
        let from = (tier_dir.tmp().as_fd(), OsStr::new(&temporary));
        self.dir_times
            .replace_unseen(
                &self.tiers,
                "cutting a name over",
                from,
                (parent, name.as_os_str()),
                expected,
            )
            .map(drop)
    }

    fn note(&self, (dir, name): (BorrowedFd<'_>, &OsStr), note: &str) -> Result<()> {
        let to = self.intents.dir();
        let make = || Ok(linkat(dir, name, to, note, AtFlags::empty())?);
        self.tiers.ssd().steps.step("noting an intent", make)
    }

    fn drop_note(&self, note: &str) -> Result<()> {
        let drop = || Ok(unlinkat(self.intents.dir(), note, AtFlags::empty())?);
        self.tiers.ssd().steps.step("clearing an intent", drop)
    }
}

impl HardLinks {
    /// Finishes the cutover of names that a mount left at their old file; without `mend`, only lists them. The cutover
    /// is durable before its notes are removed.
    pub(super) fn finish_torn(&self, mend: bool) -> Result<Vec<PathBuf>> {
        let (dir, mut torn, mut files) = (self.intents.dir(), HashMap::new(), Vec::new());
        for note in self.intents.names()? {
            let Ok(note) = note.into_string() else { continue };
            let Some(stat) = listed_names::stat_of(dir, note.as_ref())? else { continue };
            if stat.kind() == libc::S_IFREG {
                files.push(note.clone());
            }
            let Some(notes) = note.strip_suffix("-from").map(Notes::of) else { continue };
            if stat_at(dir, notes.to.as_ref()).is_ok() {
                torn.insert(stat.key(), notes);
            }
        }
        let mut found = Vec::new();
        let mut dirs = if torn.is_empty() { Vec::new() } else { vec![self.tiers.tree().root()] };
        while let Some(dir) = dirs.pop() {
            let fd = self.tiers.tree().descriptor(&dir)?;
            for entry in self.tiers.tree().entries(&dir)? {
                if self.tiers.is_private(&dir, &entry.name) {
                    continue;
                }
                // Its notes are dropped below, and it would keep the old file.
                let stat = listed_names::stat_of(fd.as_fd(), &entry.name)?;
                let Some(stat) = stat else { continue };
                if stat.kind() == libc::S_IFDIR {
                    dirs.push(self.tiers.tree().lookup(&dir, &entry.name)?.0);
                } else if let Some(notes) = torn.get(&stat.key()) {
                    found.push(self.tiers.tree().path_of(&dir).join(&entry.name));
                    if mend {
                        self.give(&notes.to, &(dir.clone(), entry.name), stat.key())?;
                    }
                }
            }
        }
        if mend && !(torn.is_empty() && files.is_empty()) {
            self.tiers.ssd().sync_all()?;
            for note in files {
                self.drop_note(&note)?;
            }
        }
        Ok(found)
    }

    /// Takes names of the tree that are separate links to one file, and makes them hard links of one of those links, or
    /// of a new link with `target`.
    pub(super) fn join(&self, names: &[(Name, Entry)], target: Option<&OsStr>) -> Result<()> {
        let Some(((parent, name), first)) = names.first() else { return Ok(()) };
        let (tier_dir, temporary) = (&self.tiers.ssd(), self.tiers.fresh_name());
        let mut one = *first;
        if let Some(target) = target {
            self.tiers.make_link(&temporary, target, self.table.number(one))?;
            let from = (tier_dir.tmp().as_fd(), OsStr::new(&temporary));
            let to = (parent, name.as_os_str());
            let new = self
                .dir_times
                .replace_unseen(&self.tiers, "replacing a link", from, to, one)?
                .0
                .key();
            self.renumber(one, new);
            one = new;
        }
        let dir = self.tiers.tree().descriptor(parent)?;
        for ((to_dir, to), other) in names.iter().skip(1).filter(|(_, other)| *other != one) {
            tier_dir.steps.step("making a name", || {
                Ok(linkat(&*dir, name, tier_dir.tmp(), &temporary, AtFlags::empty())?)
            })?;
            let from = (tier_dir.tmp().as_fd(), OsStr::new(&temporary));
            self.dir_times.replace_unseen(
                &self.tiers,
                "replacing a link",
                from,
                (to_dir, to.as_os_str()),
                *other,
            )?;
            self.renumber(*other, one);
        }
        Ok(())
    }

    /// Updates what is known when one of our links replaces another.
    pub(super) fn renumber(&self, old: Entry, new: Entry) {
        if let Some(number) = self.table.number(old) {
            self.table.removed(old);
            self.table.set_number(new, number);
        }
    }

    /// Notes the names of an entry that has several.
    pub(super) fn learn_name(&self, dir: &Vnode, name: &OsStr, stat: &Stat) {
        let many = 2..=NAMES_MAX + 1;
        if many.contains(&stat.raw.st_nlink)
            && let Ok((vnode, _)) = self.tiers.tree().lookup(dir, name)
            && vnode.key() == stat.key()
        {
            self.linked_vnodes.keep(&vnode);
        }
    }
}
