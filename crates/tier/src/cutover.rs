//! Turns a copy into the file.
//!
//! What must hold (I10): the place changes by one rename on the SSD, while `place` is held exclusively and the copy is
//! known to be identical to the file. The SSD directory is durable before `place` is released, or else before anything
//! is reported durable at the new place (`pending_syncs`).

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::{RwLock, RwLockWriteGuard};

use super::archive_queue::ArchiveQueue;
use super::clean_copies::CleanCopies;
use super::dir_times::DirTimes;
use super::foundation::Foundation;
use super::hard_links::{HardLinks, temporary_name};
use super::inode::{Away, Inode, Place, Table};
use super::leftover_intents::{LeftoverIntent, LeftoverIntents};
use super::leftovers::Leftovers;
use super::linked_vnodes::LinkedVnodes;
use super::not_moved::NotMoved;
use super::pending_syncs::PendingSyncs;
use super::planner::Planner;
use super::residents::{Resident, Residents};
use super::staged_copy::{Source, StagedCopy};
use super::tiers::Tiers;
use halocline_vfs::Stat;
use halocline_vfs::namespace::{Vnode, stat_descriptor};

/// How long a batch waits for a request to a file to end.
pub(super) const WAIT_LIMIT: Duration = Duration::from_millis(20);

/// What a completed cutover leaves behind.
pub(super) struct CutoverResult {
    /// The account of the file on the SSD that it replaces.
    pub(super) resident: Option<Arc<Resident>>,
    /// The old place on a lower tier.
    pub(super) old: Option<LeftoverIntent>,
    /// The directories that it changed, beginning with the one that was changed last.
    pub(super) parents: Vec<Vnode>,
}

/// What a cutover needs and leaves behind.
struct CutoverPlan {
    /// What replaces the name's entry on the SSD, in the directory of temporary names.
    new_name: String,
    /// How many names the file has; each has a temporary one of its own.
    names: usize,
    /// The old place on a lower tier.
    old: Option<LeftoverIntent>,
}

/// Cuts names over to copies.
#[derive(Debug)]
pub(super) struct Cutover {
    tiers: Arc<Tiers>,
    table: Arc<Table>,
    residents: Arc<Residents>,
    linked_vnodes: Arc<LinkedVnodes>,
    intents: Arc<LeftoverIntents>,
    leftovers: Arc<Leftovers>,
    pending_syncs: Arc<PendingSyncs>,
    dir_times: Arc<DirTimes>,
    names: Arc<RwLock<()>>,
    planner: Arc<Planner>,
    archive_queue: Arc<ArchiveQueue>,
    clean: Arc<CleanCopies>,
    hard_links: Arc<HardLinks>,
}

impl Cutover {
    /// Built over the components that it uses.
    pub(super) fn new(
        base: &Foundation,
        archive_queue: &Arc<ArchiveQueue>,
        clean: &Arc<CleanCopies>,
        hard_links: &Arc<HardLinks>,
    ) -> Self {
        Self {
            tiers: base.tiers.clone(),
            table: base.table.clone(),
            residents: base.residents.clone(),
            linked_vnodes: base.linked_vnodes.clone(),
            intents: base.intents.clone(),
            leftovers: base.leftovers.clone(),
            pending_syncs: base.pending_syncs.clone(),
            dir_times: base.dir_times.clone(),
            names: base.names.clone(),
            planner: base.planner.clone(),
            archive_queue: archive_queue.clone(),
            clean: clean.clone(),
            hard_links: hard_links.clone(),
        }
    }

    /// Makes the copy the file. Returns the account of the one on the SSD that it replaces.
    pub(super) fn cut_over<'i>(
        &self,
        inode: &'i Arc<Inode>,
        source: &Source,
        copied: &StagedCopy,
        early: Option<RwLockWriteGuard<'i, Place>>,
    ) -> Result<Option<Arc<Resident>>, NotMoved> {
        let mut place = early.unwrap_or_else(|| inode.place.write());
        check_as_copied(inode, source)?;
        if source.name.is_none() {
            return self.cut_over_nameless(inode, &mut place, copied).map(|()| None);
        }
        let CutoverResult { resident, old, parents } =
            self.cut_over_names(inode, &mut place, source, copied)?;
        // Durable before anybody writes to the new place: a later fsync there must not be lost together with the link
        // (I4).
        let notes = (source.names > 1).then_some(copied.temporary.as_str());
        let durable = self.make_durable(inode, &parents, notes);
        self.follow(inode, &place, copied);
        let durable_old = old.as_ref().filter(|_| durable);
        let kept = self.keep_or_archive(&place, source, copied, durable_old);
        drop(place);
        self.planner.moved(inode.number, copied.tier == 0);
        if durable {
            self.clean_up(copied, old, (&parents[0], kept));
        }
        Ok(resident)
    }

    /// The same in a batch, for a file with one name, and not durably yet: its directory is synced before anything of
    /// the file is made durable (`pending_syncs`, I4). The batch cleans up.
    pub(super) fn cut_over_for_now(
        &self,
        inode: &Arc<Inode>,
        source: &Source,
        copied: &StagedCopy,
    ) -> Result<CutoverResult, NotMoved> {
        let mut place = inode.place.try_write_for(WAIT_LIMIT).ok_or(NotMoved::Changed)?;
        check_as_copied(inode, source)?;
        let result = self.cut_over_names(inode, &mut place, source, copied)?;
        self.pending_syncs.add(inode.number, result.parents[0].clone());
        self.follow(inode, &place, copied);
        self.keep_or_archive(&place, source, copied, None);
        drop(place);
        self.planner.moved(inode.number, copied.tier == 0);
        Ok(result)
    }

    /// Cuts all names of a file, which may be one or more, over to its copy.
    fn cut_over_names(
        &self,
        inode: &Arc<Inode>,
        place: &mut Place,
        source: &Source,
        copied: &StagedCopy,
    ) -> Result<CutoverResult, NotMoved> {
        let (parent, name) = source.name.as_ref().ok_or(NotMoved::Gone)?;
        let plan = self.prepare((inode.number, source.names), place, copied)?;
        let names = self.names.write();
        let replaced = if source.names > 1 {
            let id = (copied.temporary.as_str(), plan.new_name.as_str());
            self.hard_links.replace_all((inode, place), source, id)
        } else {
            self.replace((inode, place), source, (parent, name), &plan.new_name)
        };
        let (entry, stat, parents) = match replaced {
            Ok(replaced) => replaced,
            Err(why) => {
                drop(names);
                self.unprepare(&plan);
                return Err(why);
            }
        };
        self.table.moved(inode, source.entry.key(), entry.key());
        self.linked_vnodes.forget(source.entry.key());
        let left = self.residents.remove(source.entry.key(), true);
        place.resident = (copied.tier == 0).then(|| {
            let name = (parent.clone(), name.clone());
            self.residents.add(entry.key(), inode.number, name, stat.disk_bytes())
        });
        drop(names);
        place.entry = entry;
        place.away = copied.placed.as_ref().map(|(path, _)| Away {
            tier: copied.tier,
            path: path.clone(),
            shared: source.names > 1,
        });
        place.moves += 1;
        if let Ok(now) = stat_descriptor(&copied.file) {
            inode.keep_ctime(&source.stat, &now);
        }
        Ok(CutoverResult { resident: left, old: plan.old, parents })
    }

    /// Keeps what a promotion leaves behind, which `old` names, as a clean copy if that is wanted; otherwise the file
    /// waits to be archived.
    fn keep_or_archive(
        &self,
        place: &Place,
        source: &Source,
        copied: &StagedCopy,
        old: Option<&LeftoverIntent>,
    ) -> bool {
        let kept = copied.keep && self.clean.keep_old(place, source, (old, &copied.file));
        if let Some(resident) = place.resident.as_ref().filter(|_| !kept) {
            self.archive_queue.add(place.entry.key(), resident);
        }
        kept
    }

    /// Makes a cutover durable in `parents`, which begin with the one that was changed last, or notes that it is not
    /// durable. Once it is durable, the notes with this id on how to continue with several names are removed.
    fn make_durable(&self, inode: &Inode, parents: &[Vnode], notes: Option<&str>) -> bool {
        let durable = parents.iter().try_for_each(|parent| self.tiers.sync_directory(parent));
        if let Err(error) = &durable {
            tracing::warn!(%error, "a move is not durable yet: both copies are kept");
            // A sync of what was changed last covers the others.
            self.pending_syncs.add(inode.number, parents[0].clone());
        } else if let Some(notes) = notes {
            self.hard_links.forget_notes(inode, notes);
        }
        durable.is_ok()
    }

    /// Makes what the rename of the cutover needs, and notes what it will leave behind.
    fn prepare(
        &self,
        (number, names): (u64, usize),
        place: &Place,
        copied: &StagedCopy,
    ) -> Result<CutoverPlan, NotMoved> {
        let new_name = match &copied.placed {
            Some(_) => format!("{}-link", copied.temporary),
            None => copied.temporary.clone(),
        };
        let mut plan = CutoverPlan { new_name, names, old: None };
        assert_eq!(
            copied.placed.is_some(),
            copied.tier > 0,
            "I10: a copy below the SSD has a place of its own"
        );
        // From the cutover on, the old copy is a leftover.
        if let Some(away) = &place.away {
            let is_new = copied.placed.as_ref().is_some_and(|(path, _)| *path == away.path);
            assert!(!is_new || copied.tier != away.tier, "I10: the new copy is never a leftover");
            let name = format!("{}-old", copied.temporary);
            plan.old = Some(self.intents.note(name, away.tier, &away.path)?);
        }
        let made = match &copied.placed {
            Some((to, _)) => {
                let target = match names {
                    0..=1 => self.tiers.links().to(copied.tier, to),
                    _ => self.tiers.links().to_shared(copied.tier, to),
                };
                self.tiers.make_link(&plan.new_name, &target, Some(number))
            }
            None => Ok(()),
        };
        match made.and_then(|()| self.hard_links.make_names(&plan.new_name, names)) {
            Ok(()) => Ok(plan),
            Err(error) => {
                self.unprepare(&plan);
                Err(error.into())
            }
        }
    }

    /// Undoes the preparations. A temporary link is removed here, a temporary copy together with its migration.
    fn unprepare(&self, plan: &CutoverPlan) {
        for at in (0..plan.names.max(1)).rev() {
            self.tiers.ssd().drop_temporary(&temporary_name(&plan.new_name, at));
        }
        if let Some(old) = &plan.old {
            self.intents.clear(old);
        }
    }

    /// The rename that cuts over. The caller holds `names` exclusively.
    fn replace(
        &self,
        (inode, place): (&Inode, &Place),
        source: &Source,
        name: (&Vnode, &OsString),
        new_name: &str,
    ) -> Result<(Vnode, Stat, Vec<Vnode>), NotMoved> {
        // A hard link made since the check would keep the old inode.
        if inode.count_names(&self.tiers, place)? != 1 {
            return Err(NotMoved::Changed);
        }
        let from = (self.tiers.ssd().tmp().as_fd(), new_name.as_ref());
        let to = (name.0, name.1.as_os_str());
        let done = self.dir_times.replace_unseen(
            &self.tiers,
            "cutting a name over",
            from,
            to,
            source.entry.key(),
        );
        match done {
            Ok((entry, stat)) => Ok((entry, stat, vec![name.0.clone()])),
            Err(error) if matches!(error.errno(), libc::ESTALE | libc::ENOENT) => {
                Err(NotMoved::Gone)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Moves an open file that no longer has a name; only its handles refer to it.
    fn cut_over_nameless(
        &self,
        inode: &Arc<Inode>,
        place: &mut Place,
        copied: &StagedCopy,
    ) -> Result<(), NotMoved> {
        let tier_dir = &self.tiers.dirs()[copied.tier];
        if copied.tier == 0 {
            return Err(NotMoved::Gone);
        }
        *inode.kept.lock() = Some(Arc::new(copied.file.try_clone()?.into()));
        tier_dir.drop_temporary(&copied.temporary);
        place.away = Some(Away { tier: copied.tier, path: PathBuf::new(), shared: false });
        place.moves += 1;
        self.follow(inode, place, copied);
        if let Some(left) = place.resident.take() {
            left.loses_name();
            left.dropped();
        }
        Ok(())
    }

    /// Opens every handle at the new place; one that cannot be opened now is opened at its next use. A mount of an
    /// ordinary user may not open a file that a program made read-only and still writes (as `git` does): such a handle
    /// shares the open copy.
    fn follow(&self, inode: &Arc<Inode>, place: &Place, copied: &StagedCopy) {
        for handle in inode.handles() {
            let opened = handle.file(place.moves, |flags| {
                inode.open_again(&self.tiers, place, flags).or_else(|error| match error.errno() {
                    libc::EACCES => Ok(copied.file.try_clone()?),
                    _ => Err(error),
                })
            });
            if let Err(error) = opened {
                tracing::warn!(%error, "an open file is opened at its new place later");
            }
        }
    }

    /// After a durable cutover, removes what it left behind, and the intents for it. Before that, nobody knows which of
    /// the two copies a power loss would leave: the next mount decides. What a record keeps stays.
    pub(super) fn clean_up(
        &self,
        copied: &StagedCopy,
        old: Option<LeftoverIntent>,
        (parent, kept): (&Vnode, bool),
    ) {
        if let Some((_, intent)) = &copied.placed {
            self.intents.clear(intent);
        }
        match old {
            Some(old) if kept => self.intents.clear(&old),
            Some(old) => self.leftovers.drop_old(old, parent),
            None => {}
        }
    }
}

/// Whether the copy is identical to the file. The caller holds `place` exclusively.
fn check_as_copied(inode: &Inode, source: &Source) -> Result<(), NotMoved> {
    if inode.passed.load(Ordering::Acquire) > 0 {
        return Err(NotMoved::PassedThrough);
    }
    // It was not mapped when the copy began, and has not been handed to the kernel since, so nobody has stored anything
    // that leaves no trace in its times.
    if inode.was_passed.load(Ordering::Acquire)
        || inode.changes.load(Ordering::Acquire) != source.changes
        || differs(&source.stat, &stat_descriptor(&source.file)?)
    {
        return Err(NotMoved::Changed);
    }
    Ok(())
}

/// Whether a file changed between these two stats; reading does not count as a change.
pub(super) fn differs(before: &Stat, after: &Stat) -> bool {
    let of = |stat: &Stat| {
        let raw = &stat.raw;
        (
            raw.st_size,
            raw.st_mtime,
            raw.st_mtime_nsec,
            raw.st_ctime,
            raw.st_ctime_nsec,
            raw.st_nlink,
        )
    };
    of(before) != of(after)
}
