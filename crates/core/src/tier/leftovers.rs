//! Data of removed files and old copies: gone once nothing could bring their names back.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use super::intents::{Intent, Removal};
use super::migrate::Source;
use super::residents::Resident;
use super::{Core, PRIVATE};
use crate::control::{MoveReport, Skipped};
use crate::error::Result;
use crate::namespace::Node;

/// What a file was before it moved: gone from its place, but its blocks and cached pages are freed
/// only when it is closed, which takes a third of the time that copying it takes.
#[derive(Debug)]
pub(super) struct OldCopy {
    pub(super) source: Source,
    /// Its account, if it was on the SSD: it counts until its blocks are free (I5).
    pub(super) resident: Option<Arc<Resident>>,
}

impl Core {
    /// Leaves an old copy to the background.
    pub(super) fn free_later(&self, old: OldCopy) {
        self.old_copies.lock().push(old);
        self.wake_reaper();
    }

    /// The same of several, at once.
    pub(super) fn free_all_later(&self, old: Vec<OldCopy>) {
        self.old_copies.lock().extend(old);
        self.wake_reaper();
    }

    /// Frees old copies now; whether there were any.
    pub(super) fn free_old_copies(&self) -> bool {
        let old_copies = std::mem::take(&mut *self.old_copies.lock());
        let any = !old_copies.is_empty();
        for OldCopy { source, resident } in old_copies {
            drop(source);
            if let Some(resident) = resident {
                resident.dropped();
            }
        }
        any
    }

    /// Removes the data of files whose names are gone, once that is durable. What fails is tried
    /// again when this is called next.
    pub(crate) fn finish_removals(&self) -> Result<()> {
        self.free_old_copies();
        let removals = self.intents.take_removals();
        if let Err(error) = self.sync_parents(&removals) {
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

    /// Finishes removals in one directory. One that fails comes after `left`.
    fn finish_some(&self, some: Vec<Removal>, left: &mut VecDeque<Removal>) -> Result<()> {
        let (mut removed, mut failed) = (Vec::new(), Ok(()));
        for removal in some {
            match self.remove_for_now(&removal) {
                Ok(()) => removed.push(removal),
                Err(error) => {
                    left.push_back(removal);
                    failed = Err(error);
                }
            }
        }
        let Some(first) = removed.first().map(Removal::intent) else { return failed };
        let synced = self.sides[first.tier].sync_parent("syncing what is removed", &first.place);
        for removal in removed {
            match synced {
                Ok(()) => self.finished(removal.intent()),
                // The place may belong to another file by now.
                Err(_) => left.push_back(removal.into_done()),
            }
        }
        synced.and(failed)
    }

    /// The same where nothing may stand in the way of an end: what cannot be removed now, because a
    /// tier is read-only or fails, keeps its intents, by which the next mount removes it. Tells of it.
    pub(super) fn finish_what_goes(&self) -> MoveReport {
        let mut report = MoveReport::default();
        let Err(error) = self.finish_removals() else { return report };
        if let Err(error) = self.intents.sync() {
            tracing::warn!(%error, "intents are not durable yet");
        }
        for (tier, count) in self.intents.waiting() {
            let what = format!("data of {count} removed or moved files stays for now ({error})");
            let reason = format!("{what}: it goes when that is possible, or at the next mount");
            report.skipped.push(Skipped { path: self.sides[tier].path.clone(), reason });
        }
        report
    }

    /// Removes what there is to remove, not durably yet.
    fn remove_for_now(&self, removal: &Removal) -> Result<()> {
        let intent = removal.intent();
        match removal {
            Removal::Done(_) => Ok(()),
            Removal::Copy(_, stamp) => self.remove_copy(intent, stamp),
            Removal::Wanted(..) | Removal::Nameless(_) => {
                self.sides[intent.tier].remove(&intent.place)
            }
        }
    }

    fn finished(&self, intent: &Intent) {
        self.intents.clear(intent);
        if let Some(dir) = intent.place.parent() {
            self.drop_empty_directories(intent.tier, dir);
        }
    }

    /// Makes durable that the names are gone.
    fn sync_parents(&self, removals: &[Removal]) -> Result<()> {
        let mut synced: Vec<&Node> = Vec::new();
        let mut gone = false;
        for removal in removals {
            let Removal::Wanted(_, parent) = removal else { continue };
            if synced.contains(&parent) {
                continue;
            }
            match self.namespace.open_dir(parent) {
                Ok(dir) => self.sides[0].steps.sync("syncing removed names", &dir)?,
                // Somebody removed it, with its names.
                Err(_) => gone = true,
            }
            synced.push(parent);
        }
        if gone { self.sides[0].sync_all() } else { Ok(()) }
    }

    /// The directory at `dir` was removed: so is its mirror on lower tiers. Where data of removed
    /// files is still in it, it goes with the last of them.
    pub(super) fn directory_gone(&self, dir: &Path) {
        for tier in 1..self.sides.len() {
            self.drop_empty_directories(tier, dir);
        }
    }

    /// Removes `dir` and those above it from a lower tier as far as they are empty and the tree does
    /// not have them.
    pub(super) fn drop_empty_directories(&self, tier: usize, dir: &Path) {
        for dir in dir.ancestors().take_while(|dir| *dir != Path::new("")) {
            if dir.starts_with(PRIVATE) || self.walk(dir).is_some() {
                return;
            }
            if self.sides[tier].remove_dir(dir).is_err() {
                return;
            }
        }
    }
}

/// Whether two places are in one directory.
fn is_beside(one: &Intent, other: &Intent) -> bool {
    (one.tier, one.place.parent()) == (other.tier, other.place.parent())
}
