//! Changes of names by programs: linking, renaming and removing them.
//!
//! `names` is held shared here, so that no cutover changes what a name stands for meanwhile; no
//! `place` is taken while it is held.

use std::ffi::OsStr;
use std::sync::Arc;

use parking_lot::RwLock;
use rustix::io::Errno;

use super::archive_queue::ArchiveQueue;
use super::clean_copies::CleanCopies;
use super::foundation::Foundation;
use super::hard_links::HardLinks;
use super::inode::{Away, Inode, Table};
use super::inodes::Inodes;
use super::leftover_intents::{LeftoverIntent, LeftoverIntents, Removal};
use super::link_owner;
use super::link_owner::ParsedLink;
use super::linked_vnodes::LinkedVnodes;
use super::lost_files::LostFiles;
use super::pending_syncs::PendingSyncs;
use super::permissions::Permissions;
use super::place_repair::PlaceRepair;
use super::planner::Planner;
use super::residents::{Resident, Residents};
use super::tiers::{Entry, Tiers};
use super::wakeups::Wakeups;
use halocline_api::file_tier::History;
use halocline_os::error::Result;
use halocline_vfs::Stat;
use halocline_vfs::namespace::{self, Removed};

/// Links, renames and removes names.
#[derive(Debug)]
pub(super) struct NameChanges {
    tiers: Arc<Tiers>,
    table: Arc<Table>,
    residents: Arc<Residents>,
    linked_vnodes: Arc<LinkedVnodes>,
    intents: Arc<LeftoverIntents>,
    pending_syncs: Arc<PendingSyncs>,
    lost_files: Arc<LostFiles>,
    names: Arc<RwLock<()>>,
    planner: Arc<Planner>,
    history: Arc<History>,
    wakeups: Arc<Wakeups>,
    archive_queue: Arc<ArchiveQueue>,
    clean: Arc<CleanCopies>,
    permissions: Arc<Permissions>,
    inodes: Arc<Inodes>,
    hard_links: Arc<HardLinks>,
    repair: Arc<PlaceRepair>,
}

impl NameChanges {
    /// Built over the components that it uses.
    pub(super) fn new(
        base: &Foundation,
        archive_queue: &Arc<ArchiveQueue>,
        clean: &Arc<CleanCopies>,
        permissions: &Arc<Permissions>,
        inodes: &Arc<Inodes>,
        hard_links: &Arc<HardLinks>,
        repair: &Arc<PlaceRepair>,
    ) -> Self {
        Self {
            tiers: base.tiers.clone(),
            table: base.table.clone(),
            residents: base.residents.clone(),
            linked_vnodes: base.linked_vnodes.clone(),
            intents: base.intents.clone(),
            pending_syncs: base.pending_syncs.clone(),
            lost_files: base.lost_files.clone(),
            names: base.names.clone(),
            planner: base.planner.clone(),
            history: base.history.clone(),
            wakeups: base.wakeups.clone(),
            archive_queue: archive_queue.clone(),
            clean: clean.clone(),
            permissions: permissions.clone(),
            inodes: inodes.clone(),
            hard_links: hard_links.clone(),
            repair: repair.clone(),
        }
    }

    /// Makes a hard link; if a file is on a lower tier, a hard link of its link.
    pub(super) fn link(
        &self,
        inode: &Arc<Inode>,
        parent: &namespace::Vnode,
        name: &OsStr,
    ) -> Result<Stat> {
        if self.tiers.is_private(parent, name) {
            return Err(Errno::PERM.into());
        }
        loop {
            let (entry, away) = {
                let place = inode.place.read();
                (place.entry.clone(), place.away.clone())
            };
            if away.as_ref().is_some_and(|away| !away.shared) {
                self.hard_links.share(inode)?;
                continue;
            }
            let names = self.names.read();
            let counted = self.linked_vnodes.count();
            // The file may have moved since.
            if self.table.find(entry.key()).is_some_and(|now| Arc::ptr_eq(&now, inode)) {
                if away.is_some() && entry.known_as().is_none() {
                    // Its data is removed with its last name.
                    return Err(Errno::NOENT.into());
                }
                self.clean.give_up(entry.key())?;
                let _changing = inode.changing()?;
                let link = || self.tiers.tree().link(&entry, parent, name);
                let stat = inode.show(self.tiers.ssd().steps.step("linking", link)?);
                self.linked_vnodes.keep(&entry);
                drop((counted, names));
                return if away.is_some() { self.hard_links.touched(inode) } else { Ok(stat) };
            }
        }
    }

    /// Removes a name that is not a directory.
    pub(super) fn unlink(&self, parent: &namespace::Vnode, name: &OsStr) -> Result<()> {
        if self.tiers.is_private(parent, name) {
            return Err(Errno::NOENT.into());
        }
        let names = self.names.read();
        let mut seen = self.tiers.tree().before_removal(parent, name)?;
        let counted = self.linked_vnodes.count_before(&seen.stat);
        if counted.is_some() {
            seen = self.tiers.tree().before_removal(parent, name)?;
        }
        let link = link_owner::parsed_from(&self.tiers, seen.descriptor(), || {
            self.tiers.tree().path_of(parent).join(name)
        })?;
        let link = link.filter(|link| link.ours);
        let stays = link
            .as_ref()
            .is_some_and(|link| link.away.shared && !self.hard_links.is_last(&link.stat));
        let steps = &self.tiers.ssd().steps;
        let Some(ParsedLink { away, .. }) = link.filter(|_| !stays) else {
            self.clean.give_up(seen.key)?;
            let unlink = || self.tiers.tree().unlink_seen(seen, parent, name);
            let removed = steps.step("unlinking", unlink)?;
            self.gone(&removed, (parent, name), None);
            drop((counted, names));
            if stays {
                self.hard_links.touch(removed.key);
            }
            return Ok(());
        };
        // The link becomes the intent: that is one change, and even a full SSD has room for it. The kernel prevents
        // others from changing the name meanwhile.
        let id = format!("{}-gone", self.tiers.fresh_name());
        let to = (self.intents.dir(), OsStr::new(&id));
        let unlink = || self.tiers.tree().take_out(seen, (parent, name), to);
        let removed = steps.step("unlinking", unlink)?;
        let intent = LeftoverIntent { name: id, tier: away.tier, place: away.path };
        self.gone(&removed, (parent, name), Some(intent));
        Ok(())
    }

    /// Renames an entry.
    pub(super) fn rename(
        &self,
        from: (&namespace::Vnode, &OsStr),
        to: (&namespace::Vnode, &OsStr),
        flags: u32,
    ) -> Result<()> {
        if self.tiers.is_private(from.0, from.1) || self.tiers.is_private(to.0, to.1) {
            return Err(Errno::PERM.into());
        }
        let names = self.names.read();
        let exchange = flags & libc::RENAME_EXCHANGE != 0;
        let (moved, moved_stat) = self.tiers.tree().lookup(from.0, from.1)?;
        let mut other = self.tiers.tree().lookup(to.0, to.1).ok();
        let counted = other.as_ref().and_then(|(_, stat)| self.linked_vnodes.count_before(stat));
        if counted.is_some() {
            other = self.tiers.tree().lookup(to.0, to.1).ok();
        }
        let replaces = flags & (libc::RENAME_EXCHANGE | libc::RENAME_NOREPLACE) == 0;
        let leaving = match &other {
            Some((other, stat)) if replaces && *other != moved => {
                self.clean.give_up(other.key())?;
                self.leaving(to.0, to.1, stat)?
            }
            _ => None,
        };
        let rename = || self.tiers.tree().rename(from, to, flags, None);
        let mut one_of_many = None;
        match self.tiers.ssd().steps.step("renaming", rename) {
            Ok(Some(removed)) => {
                let others = self.gone(&removed, to, leaving);
                one_of_many = others.then_some(removed.key);
            }
            Ok(None) => self.stays(leaving),
            Err(error) => {
                self.stays(leaving);
                return Err(error);
            }
        }
        let mut astray = vec![self.renamed((&moved, &moved_stat), to)];
        let mut strayed = vec![self.inodes.meaning(to.0, to.1, &moved, &moved_stat)];
        let mut of_many = moved_stat.kind() == libc::S_IFDIR;
        if let Some((other, stat)) = other.filter(|_| exchange) {
            of_many |= stat.kind() == libc::S_IFDIR;
            astray.push(self.renamed((&other, &stat), from));
            strayed.push(self.inodes.meaning(from.0, from.1, &other, &stat));
        }
        drop((counted, names));
        for (entry, resident) in astray.into_iter().flatten() {
            self.permissions.close_astray(entry, &resident);
        }
        if of_many {
            self.archive_queue.all_strayed();
        }
        if let Some(key) = one_of_many {
            self.hard_links.touch(key);
        }
        if of_many && self.planner.goes_by_names() {
            self.planner.changed_for_many();
        }
        for (inode, here) in strayed.into_iter().flatten() {
            if !here {
                self.repair.repair(&inode);
                inode.show_real_ctime();
            }
        }
        Ok(())
    }

    /// Makes a regular file on the SSD known by its new name. Returns its account and key if it is now in another
    /// directory.
    fn renamed(
        &self,
        (entry, before): (&namespace::Vnode, &Stat),
        to: (&namespace::Vnode, &OsStr),
    ) -> Option<(Entry, Arc<Resident>)> {
        let resident = self.residents.get(entry.key())?;
        if let Ok(now) = self.tiers.tree().stat(entry) {
            self.clean.restamp_renamed(&resident, before, &now);
        }
        let name = (to.0.clone(), to.1.to_owned());
        let (was_in, _) = std::mem::replace(&mut *resident.name.lock(), name);
        if resident.clean.has_copy() {
            self.archive_queue.strayed(entry.key());
        }
        self.planner.changed(resident.number);
        (was_in.key() != to.0.key()).then(|| (entry.key(), resident))
    }

    /// If `name` stands for a file on a lower tier: notes that its data is about to have no link.
    fn leaving(
        &self,
        parent: &namespace::Vnode,
        name: &OsStr,
        entry: &Stat,
    ) -> Result<Option<LeftoverIntent>> {
        if entry.kind() != libc::S_IFLNK {
            return Ok(None);
        }
        let Some((Away { tier, path, shared }, _)) = link_owner::away(&self.tiers, parent, name)?
        else {
            return Ok(None);
        };
        if shared && !self.hard_links.is_last(entry) {
            return Ok(None);
        }
        self.intents.note(format!("{}-gone", self.tiers.fresh_name()), tier, &path).map(Some)
    }

    /// Called if a name was not removed after all.
    fn stays(&self, leaving: Option<LeftoverIntent>) {
        if let Some(intent) = leaving {
            self.intents.clear(&intent);
        }
    }

    /// Called when a name is gone: the file's blocks, or its data elsewhere, are freed once unused, unless there are
    /// other names. Returns whether there are.
    fn gone(
        &self,
        removed: &Removed,
        (parent, name): (&namespace::Vnode, &OsStr),
        leaving: Option<LeftoverIntent>,
    ) -> bool {
        let live = self.table.find(removed.key);
        let last = removed.last || self.hard_links.is_last(&removed.stat);
        if last {
            self.linked_vnodes.forget(removed.key);
        }
        if let Some(intent) = leaving {
            match (self.tiers.dirs()[intent.tier].look(&intent.place), &live) {
                (Ok(fd), Some(live)) => *live.kept.lock() = Some(Arc::new(fd)),
                (Err(Errno::NOENT | Errno::NOTDIR), _) => {
                    let path = self.tiers.tree().path_of(parent).join(name);
                    self.lost_files.removed(path, &intent.place);
                }
                _ => {}
            }
            self.intents.later(Removal::Wanted(intent, parent.clone()));
            self.wakeups.wake_reaper();
        }
        if last {
            self.residents.remove(removed.key, live.is_some());
            let number = self.table.number(removed.key).unwrap_or(removed.key.1);
            self.table.removed(removed.key);
            self.planner.removed(number);
            self.history.removed(number);
            self.pending_syncs.forget(number);
        } else if let (Some(resident), Some(vnode)) =
            (self.residents.get(removed.key), &removed.vnode)
            && let Some(name) = vnode.known_as()
        {
            *resident.name.lock() = name;
            self.planner.changed(resident.number);
            self.archive_queue.add(removed.key, &resident);
        }
        !last
    }
}
