//! Files in use: opening, reading, writing, emptying, and moving them down if the SSD has no room.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use parking_lot::RwLock;
use rustix::fs::{fallocate, ftruncate};
use rustix::io::Errno;

use super::archive_queue::ArchiveQueue;
use super::catalog::Catalog;
use super::clean_copies::CleanCopies;
use super::dir_times::DirTimes;
use super::executor::Executor;
use super::foundation::Foundation;
use super::inode::{Inode, Opened, Place, Table, Vnode};
use super::inode_numbers::InodeNumbers;
use super::inodes::Inodes;
use super::leftovers::Leftovers;
use super::migrate::{Manner, Migrator};
use super::mirror;
use super::mirror::ACL;
use super::not_moved::{NotMoved, ROOM_FOR_NAMES};
use super::pending_syncs::PendingSyncs;
use super::permissions;
use super::permissions::Permissions;
use super::planner::Planner;
use super::residents::Residents;
use super::steps::Steps;
use super::tiers::Tiers;
use super::wakeups::Wakeups;
use super::watermarks::Watermarks;
use halocline_api::file_tier::{Counters, History, Opening};
use halocline_api::jobs::Ahead;
use halocline_os::error::{Error, Result};
use halocline_vfs::Allocate;
use halocline_vfs::namespace::statx::set_attr_on;
use halocline_vfs::namespace::{self, stat_descriptor};
use halocline_vfs::{Maker, SetAttr, Stat};

/// An open regular file; dropping it closes it.
#[derive(Debug)]
pub struct Handle(pub(super) Arc<Opened>);

/// Opens, reads, writes and changes files.
#[derive(Debug)]
pub(super) struct Files {
    tiers: Arc<Tiers>,
    table: Arc<Table>,
    inode_numbers: Arc<InodeNumbers>,
    residents: Arc<Residents>,
    catalog: Arc<Catalog>,
    leftovers: Arc<Leftovers>,
    pending_syncs: Arc<PendingSyncs>,
    dir_times: Arc<DirTimes>,
    names: Arc<RwLock<()>>,
    planner: Arc<Planner>,
    watermarks: Watermarks,
    counters: Arc<Counters>,
    history: Arc<History>,
    wakeups: Arc<Wakeups>,
    archive_queue: Arc<ArchiveQueue>,
    clean: Arc<CleanCopies>,
    permissions: Arc<Permissions>,
    inodes: Arc<Inodes>,
    migrator: Arc<Migrator>,
    executor: Arc<Executor>,
}

impl Files {
    /// Built over the components that it uses.
    pub(super) fn new(
        base: &Foundation,
        archive_queue: &Arc<ArchiveQueue>,
        clean: &Arc<CleanCopies>,
        permissions: &Arc<Permissions>,
        inodes: &Arc<Inodes>,
        migrator: &Arc<Migrator>,
        executor: &Arc<Executor>,
    ) -> Self {
        Self {
            tiers: base.tiers.clone(),
            table: base.table.clone(),
            inode_numbers: base.inode_numbers.clone(),
            residents: base.residents.clone(),
            catalog: base.catalog.clone(),
            leftovers: base.leftovers.clone(),
            pending_syncs: base.pending_syncs.clone(),
            dir_times: base.dir_times.clone(),
            names: base.names.clone(),
            planner: base.planner.clone(),
            watermarks: base.watermarks,
            counters: base.counters.clone(),
            history: base.history.clone(),
            wakeups: base.wakeups.clone(),
            archive_queue: archive_queue.clone(),
            clean: clean.clone(),
            permissions: permissions.clone(),
            inodes: inodes.clone(),
            migrator: migrator.clone(),
            executor: executor.clone(),
        }
    }

    /// Prepares a file for writes by the kernel, which we do not see; or returns why there must be none.
    pub(super) fn ready_for_kernel(
        &self,
        inode: &Inode,
        place: &Place,
    ) -> Result<(), &'static str> {
        self.clean.will_change(place).map_err(|_| "its clean copy cannot be given up")?;
        // Synchronous writes that the kernel makes by itself must be durable at once (I4).
        let settled = self.pending_syncs.sync(inode.number, &self.tiers);
        settled.map_err(|_| "its last move cannot be made durable")
    }

    /// Calls `act` with the open file while the file stays where it is.
    pub(super) fn with_file<T>(
        &self,
        handle: &Opened,
        act: impl FnOnce(&Place, &File) -> Result<T>,
    ) -> Result<T> {
        let place = handle.inode.place.read();
        act(&place, &*handle.current(&self.tiers, &place)?)
    }

    pub(super) fn open_file(&self, inode: &Arc<Inode>, flags: i32, by: u32) -> Result<Handle> {
        if flags & libc::O_TRUNC != 0 {
            // Bytes that are discarded need not be copied: the file is emptied where it is, and then promoted.
            let change = SetAttr { size: Some(0), ..SetAttr::default() };
            self.set_attr(inode, None, &change)?;
        }
        self.used(inode, by);
        let place = inode.place.read();
        let file = inode.open_again(&self.tiers, &place, flags & !libc::O_TRUNC)?;
        Ok(Handle(Opened::new(inode, flags, file, place.moves)))
    }

    pub(super) fn set_attr(
        &self,
        inode: &Inode,
        handle: Option<&Handle>,
        change: &SetAttr,
    ) -> Result<Stat> {
        let place = inode.place.read();
        let _changing = inode.changing()?;
        let mut change = *change;
        if change.size.is_some() {
            self.clean.will_change(&place)?;
        }
        if let (Some(Handle(handle)), Some(size)) = (handle, change.size) {
            let file = handle.current(&self.tiers, &place)?;
            let cut = || Ok(ftruncate(&*file, size)?);
            self.tiers.steps(place.tier()).step("setting a length", cut)?;
            change.size = None;
        }
        let fd = inode.physical(&self.tiers, &place)?;
        let permissions = change.mode.is_some() || change.uid.is_some() || change.gid.is_some();
        // For a directory; only directories have mirrors.
        let before = match change.uid {
            Some(_) if place.may_be_directory() => Some(stat_descriptor(&*fd)?.raw.st_uid),
            _ => None,
        };
        let stat = {
            let _names = place.may_be_directory().then(|| self.names.read());
            let set = || set_attr_on(&*fd, &change);
            let step = || self.tiers.steps(place.tier()).step("setting attributes", set);
            let stat = if permissions {
                self.permissions.changing_permissions(&place, (&*fd, None), step)?
            } else {
                self.clean.restamping(&place, &*fd, step)?
            };
            self.dir_times.changed(stat.key());
            stat
        };
        if let Some(resident) = &place.resident {
            resident.settle(&*fd);
        }
        if permissions && stat.kind() == libc::S_IFDIR {
            mirror::permissions_changed(&self.tiers, &place, before.unwrap_or(stat.raw.st_uid))?;
        }
        Ok(inode.show_at(&self.tiers, &place, stat))
    }

    /// Changes the extended attribute `name` by calling `change` with the file; `what` is the step.
    pub(super) fn change_attribute(
        &self,
        inode: &Inode,
        (what, name): (&'static str, &OsStr),
        change: impl FnOnce(&OwnedFd) -> Result<()>,
    ) -> Result<()> {
        let place = inode.place.read();
        let _changing = inode.changing()?;
        let fd = inode.physical(&self.tiers, &place)?;
        {
            let _names = place.may_be_directory().then(|| self.names.read());
            let step = || self.tiers.steps(place.tier()).step(what, || change(&fd));
            if permissions::guards(name) {
                self.permissions.changing_permissions(&place, (&*fd, Some(name)), step)?;
            } else {
                self.clean.restamping(&place, &*fd, step)?;
            }
            self.dir_times.changed(place.entry.key());
        }
        if name == ACL {
            let stat = stat_descriptor(&*fd)?;
            if stat.kind() == libc::S_IFDIR {
                mirror::permissions_changed(&self.tiers, &place, stat.raw.st_uid)?;
            }
        }
        Ok(())
    }

    pub(super) fn create(
        &self,
        (parent, name): (&namespace::Vnode, &OsStr),
        mode: u32,
        flags: i32,
        by: Maker,
    ) -> Result<(Vnode, Stat, Handle)> {
        let names = self.names.read();
        // A file that somebody else created first may have a clean copy when it is emptied.
        let empties = flags & libc::O_EXCL == 0 && flags & libc::O_TRUNC != 0;
        let opens = if empties { flags & !libc::O_TRUNC } else { flags };
        let create = || self.tiers.tree().create((parent, name), mode, opens, by);
        let created = self.tiers.ssd().steps.step("creating a file", create);
        let (entry, mut stat, file) = match created {
            // Somebody else created it first, and it has moved since.
            Err(error) if error.errno() == libc::ELOOP && flags & libc::O_EXCL == 0 => {
                drop(names);
                let (vnode, _) = self.inodes.lookup(parent, name)?;
                let handle = self.open_file(&vnode.0, flags & !libc::O_CREAT, by.caller.pid)?;
                let stat = self.inodes.stat(&vnode.0)?;
                return Ok((vnode, stat, handle));
            }
            other => other?,
        };
        let inode = self.table.intern(&entry, || {
            let name = (parent.clone(), name.to_owned());
            let number = self.inode_numbers.here(&self.tiers, &entry, &stat);
            (number, None, Some(self.residents.add(entry.key(), number, name, stat.disk_bytes())))
        });
        drop(names);
        if empties && stat.raw.st_size > 0 {
            stat = self.set_attr(&inode, None, &SetAttr { size: Some(0), ..SetAttr::default() })?;
        }
        self.archive_queue.add_made(&inode);
        // A job file made from a trace includes the files that a job creates.
        self.follow_jobs(&inode, by.caller.pid);
        self.planner.created(inode.number);
        self.history.opened(inode.number);
        let handle = Handle(Opened::new(&inode, flags, file, 0));
        let full = self.residents.free() < ROOM_FOR_NAMES.min(self.residents.account.limit / 16);
        if full || self.planner.is_excluded(&inode, self.catalog.view()) {
            // Its bytes will not fit: it is better moved now, while it is empty.
            if let Err(why) = self.migrator.demote(&inode, Manner::Yielding, &mut |_| true) {
                tracing::debug!("a new file stays on the SSD: {why}");
            }
        }
        Ok((Vnode(inode), stat, handle))
    }

    pub(super) fn write(&self, handle: &Opened, offset: u64, data: &[u8]) -> Result<()> {
        let mut done = 0;
        loop {
            let (tier, outcome) = self.with_file(handle, |place, file| {
                let _changing = handle.inode.changing()?;
                self.clean.will_change(place)?;
                let (at, rest) = (offset + done as u64, &data[done..]);
                let place_of = (handle.flags & libc::O_APPEND == 0).then_some(at);
                let steps = self.tiers.steps(place.tier());
                let write = || write_some(steps, file, at, rest);
                let outcome = place.growing(file, place_of, rest.len() as u64, write);
                Ok((place.tier(), outcome))
            })?;
            match outcome {
                Some((count, Ok(()))) => {
                    debug_assert_eq!(done + count, data.len());
                    self.counters.written(tier, data.len());
                    if handle.flags & libc::O_DSYNC != 0 {
                        self.pending_syncs.sync(handle.inode.number, &self.tiers)?;
                    }
                    if self.watermarks.is_crowded(&self.residents) {
                        self.wakeups.wake_demoter();
                    }
                    return Ok(());
                }
                Some((count, Err(error))) if error.is_full() => {
                    done += count;
                    self.spill(&handle.inode, tier, error)?;
                }
                Some((_, Err(error))) => return Err(error),
                None => self.spill(&handle.inode, tier, Errno::NOSPC.into())?,
            }
        }
    }

    /// Tier `failed` has no room for what a program writes to a file there: the file moves down, or others do. `full`
    /// is the error to return if nothing helps.
    fn spill(&self, inode: &Arc<Inode>, failed: usize, full: Error) -> Result<()> {
        if failed == 0 && self.leftovers.free_old_copies() {
            // There may be room now.
            return Ok(());
        }
        if self.clean.give_way(failed, ROOM_FOR_NAMES) {
            return Ok(());
        }
        for tier in failed + 1..self.tiers.dirs().len() {
            if inode.place.read().tier() != failed {
                // Somebody has moved it meanwhile.
                return Ok(());
            }
            match self.migrator.migrate(inode, tier, Manner::Forcing, &mut |_| true) {
                Ok(bytes) => {
                    self.leftovers.free_old_copies();
                    tracing::debug!(bytes, number = inode.number, tier, "spilled");
                    self.wakeups.wake_demoter();
                    return Ok(());
                }
                Err(NotMoved::There) => return Ok(()),
                Err(why) => tracing::debug!(tier, "cannot spill: {why}"),
            }
        }
        let before = self.residents.free();
        if failed == 0 {
            self.executor.free_up(before + ROOM_FOR_NAMES, inode.number);
        }
        if self.residents.free() > before { Ok(()) } else { Err(full) }
    }

    pub(super) fn allocate(
        &self,
        handle: &Opened,
        offset: u64,
        len: u64,
        how: Allocate,
    ) -> Result<()> {
        let takes = how != Allocate::PunchHole;
        loop {
            let (tier, outcome) = self.with_file(handle, |place, file| {
                let _changing = handle.inode.changing()?;
                self.clean.will_change(place)?;
                let steps = self.tiers.steps(place.tier());
                let allocate = || Ok(fallocate(file, how.mode(), offset, len)?);
                let call = || steps.step("allocating", allocate);
                let outcome = place.growing(file, None, if takes { len } else { 0 }, call);
                Ok((place.tier(), outcome))
            })?;
            match outcome {
                Some(Ok(())) => return Ok(()),
                Some(Err(error)) if error.is_full() => self.spill(&handle.inode, tier, error)?,
                Some(Err(error)) => return Err(error),
                None => self.spill(&handle.inode, tier, Errno::NOSPC.into())?,
            }
        }
    }

    /// Called when a program opens a file: jobs and policy are told, and the policy brings it to the SSD if it is worth
    /// that (Algorithm 1).
    fn used(&self, inode: &Arc<Inode>, by: u32) {
        let ahead = self.follow_jobs(inode, by);
        self.history.opened(inode.number);
        let mut away = false;
        let bytes = self.bytes_on_disk(inode);
        self.planner.referenced(inode.number, bytes, || {
            let place = inode.place.read();
            away = place.away.is_some() && place.entry.known_as().is_some();
            place.away.is_none()
        });
        self.counters.opened(match away {
            false => Opening::Hit,
            true if self.executor.promote(inode, ahead) => Opening::Promoted,
            true => Opening::InPlace,
        });
    }

    /// Bytes of a file's blocks, wherever it is; 0 if unknown.
    fn bytes_on_disk(&self, inode: &Inode) -> u64 {
        let place = inode.place.read();
        if let Some(resident) = &place.resident {
            return resident.bytes();
        }
        let found = inode.physical(&self.tiers, &place).and_then(|fd| stat_descriptor(&*fd));
        found.map_or(0, |stat| stat.disk_bytes())
    }

    /// Tells jobs that thread `by` opens or creates a file. Returns the file's announced references after that, if this
    /// is a job's own use of it.
    fn follow_jobs(&self, inode: &Inode, by: u32) -> Option<Ahead> {
        if !self.planner.has_jobs() {
            return None;
        }
        let followed = self.planner.follow_jobs(self.catalog.view().paths_of(&inode.entry()), by);
        for skipped in followed.skipped {
            let entry = self.tiers.walk(&skipped).map(|vnode| vnode.key());
            if let Some(resident) = entry.and_then(|entry| self.residents.get(entry)) {
                self.planner.changed(resident.number);
            }
        }
        followed.ahead
    }
}

/// Writes as much as possible; returns how much, and why not more. An appending descriptor ignores `at`.
fn write_some(steps: &Steps, file: &File, at: u64, data: &[u8]) -> (usize, Result<()>) {
    let mut done = 0;
    while done < data.len() {
        let write = || Ok(file.write_at(&data[done..], at + done as u64)?);
        match steps.step("writing", write) {
            Ok(0) => return (done, Err(Errno::IO.into())),
            Ok(count) => done += count,
            Err(error) if error.errno() == libc::EINTR => {}
            Err(error) => return (done, Err(error)),
        }
    }
    (done, Ok(()))
}
