//! Data of removed files and old copies: it is removed once nothing can bring their names back.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;

use super::leftover_intents::{LeftoverIntent, LeftoverIntents, Removal};
use super::residents::Resident;
use super::stamp::Stamp;
use super::tiers::Tiers;
use super::wakeups::Wakeups;
use halocline_api::control::{MoveReport, Skipped};
use halocline_os::error::Result;
use halocline_vfs::namespace::{Vnode, stat_descriptor};

/// A moved file's old copy: it is gone from its place, but its blocks and cached pages are freed only when it
/// is closed, which takes a third of the time that copying it takes.
#[derive(Debug)]
pub(super) struct OldCopy {
    pub(super) file: Arc<File>,
    /// Its account, if it was on the SSD, which counts it until its blocks are free (I5).
    pub(super) resident: Option<Arc<Resident>>,
}

/// What moves and removals leave behind, until it is gone.
#[derive(Debug)]
pub(super) struct Leftovers {
    old_copies: Mutex<Vec<OldCopy>>,
    tiers: Arc<Tiers>,
    intents: Arc<LeftoverIntents>,
    wakeups: Arc<Wakeups>,
}

impl Leftovers {
    /// None yet; `wakeups` wakes the thread that removes them.
    pub(super) fn new(
        tiers: &Arc<Tiers>,
        intents: &Arc<LeftoverIntents>,
        wakeups: &Arc<Wakeups>,
    ) -> Self {
        Self {
            old_copies: Mutex::default(),
            tiers: tiers.clone(),
            intents: intents.clone(),
            wakeups: wakeups.clone(),
        }
    }

    /// Leaves an old copy to the background.
    pub(super) fn free_later(&self, old: OldCopy) {
        self.old_copies.lock().push(old);
        self.wakeups.wake_reaper();
    }

    /// The same for several, at once.
    pub(super) fn free_all_later(&self, old: Vec<OldCopy>) {
        self.old_copies.lock().extend(old);
        self.wakeups.wake_reaper();
    }

    /// Frees old copies now; returns whether there were any.
    pub(super) fn free_old_copies(&self) -> bool {
        let old_copies = std::mem::take(&mut *self.old_copies.lock());
        let any = !old_copies.is_empty();
        for OldCopy { file, resident } in old_copies {
            drop(file);
            if let Some(resident) = resident {
                resident.dropped();
            }
        }
        any
    }

    /// Removes the data of files whose names are gone, once that is durable. What fails is tried again at the next
    /// call.
    pub(super) fn finish(&self) -> Result<()> {
        self.free_old_copies();
        let removals = self.intents.take_removals();
        if let Err(error) = sync_parents(&self.tiers, &removals) {
            for removal in removals {
                self.intents.later(removal);
            }
            return Err(error);
        }
        let mut left: VecDeque<_> = removals.into_iter().map(Removal::without_name).collect();
        while let Some(first) = left.pop_front() {
            // One sync for all that are in one directory.
            let mut some = vec![first];
            while left.front().is_some_and(|next| is_beside(next.intent(), some[0].intent())) {
                some.extend(left.pop_front());
            }
            if let Err(error) = self.finish_some(some, &mut left) {
                for removal in left {
                    self.intents.later(removal);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Finishes removals in one directory. One that fails is queued in `left`.
    fn finish_some(&self, some: Vec<Removal>, left: &mut VecDeque<Removal>) -> Result<()> {
        let (mut removed, mut failed) = (Vec::new(), Ok(()));
        for removal in some {
            match remove_for_now(&self.tiers, &removal) {
                Ok(()) => removed.push(removal),
                Err(error) => {
                    left.push_back(removal);
                    failed = Err(error);
                }
            }
        }
        let Some(first) = removed.first().map(Removal::intent) else { return failed };
        let synced =
            self.tiers.dirs()[first.tier].sync_parent("syncing what is removed", &first.place);
        for removal in removed {
            match synced {
                Ok(()) => finished(&self.tiers, &self.intents, removal.intent()),
                // The place may belong to another file by now.
                Err(_) => left.push_back(removal.into_done()),
            }
        }
        synced.and(failed)
    }

    /// The same for a flush, whose failure would keep a mount from ending: leftovers that cannot be removed now,
    /// because a tier is read-only or fails, keep their intents, so that the next mount removes them. Reports these.
    pub(super) fn finish_what_goes(&self) -> MoveReport {
        let mut report = MoveReport::default();
        let Err(error) = self.finish() else { return report };
        if let Err(error) = self.intents.sync() {
            tracing::warn!(%error, "intents are not durable yet");
        }
        for (tier, count) in self.intents.waiting() {
            let what = format!("data of {count} removed or moved files stays for now ({error})");
            let reason = format!("{what}: it goes when that is possible, or at the next mount");
            report.skipped.push(Skipped { path: self.tiers.dirs()[tier].path.clone(), reason });
        }
        report
    }

    /// Removes a file's old place, once the cutover in `parent` is durable.
    pub(super) fn drop_old(&self, old: LeftoverIntent, parent: &Vnode) {
        self.intents.later(match self.tiers.dirs()[old.tier].remove(&old.place) {
            // It is gone for the tier's users; the intent is removed once that is durable.
            Ok(()) => Removal::Done(old),
            Err(error) => {
                tracing::warn!(%error, "an old copy is removed later");
                Removal::Wanted(old, parent.clone())
            }
        });
    }
}

/// Removes what is to be removed, not durably yet.
fn remove_for_now(tiers: &Tiers, removal: &Removal) -> Result<()> {
    let intent = removal.intent();
    match removal {
        Removal::Done(_) => Ok(()),
        Removal::Copy(_, stamp) => remove_copy(tiers, intent, stamp),
        Removal::Wanted(..) | Removal::Nameless(_) => {
            tiers.dirs()[intent.tier].remove(&intent.place)
        }
    }
}

fn finished(tiers: &Tiers, intents: &LeftoverIntents, intent: &LeftoverIntent) {
    intents.clear(intent);
    if let Some(dir) = intent.place.parent() {
        tiers.drop_empty_directories(intent.tier, dir);
    }
}

/// Makes durable that the names are gone.
fn sync_parents(tiers: &Tiers, removals: &[Removal]) -> Result<()> {
    let mut synced: Vec<&Vnode> = Vec::new();
    let mut gone = false;
    for removal in removals {
        let Removal::Wanted(_, parent) = removal else { continue };
        if synced.contains(&parent) {
            continue;
        }
        match tiers.tree().open_dir(parent) {
            Ok(dir) => tiers.ssd().steps.sync("syncing removed names", &dir)?,
            // Somebody removed the directory together with its names.
            Err(_) => gone = true,
        }
        synced.push(parent);
    }
    if gone { tiers.ssd().sync_all() } else { Ok(()) }
}

/// Removes a copy that is no longer clean, unless somebody changed it, in which case it is theirs.
pub(super) fn remove_copy(tiers: &Tiers, intent: &LeftoverIntent, stamp: &Stamp) -> Result<()> {
    let tier_dir = &tiers.dirs()[intent.tier];
    match tier_dir.look(&intent.place) {
        Ok(fd) if stamp.is_or_closed(&stat_descriptor(&fd)?) => tier_dir.remove(&intent.place),
        Ok(_) => {
            let path = tier_dir.path.join(&intent.place);
            tracing::warn!("{}: was changed past the mount and stays", path.display());
            Ok(())
        }
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether two places are in one directory.
fn is_beside(one: &LeftoverIntent, other: &LeftoverIntent) -> bool {
    (one.tier, one.place.parent()) == (other.tier, other.place.parent())
}
