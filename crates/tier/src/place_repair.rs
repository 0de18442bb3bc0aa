//! Moving a file on a lower tier to the place of its present name.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use super::foundation::Foundation;
use super::inode::{Away, Inode, Place};
use super::inodes::Inodes;
use super::leftover_intents::{LeftoverIntent, LeftoverIntents};
use super::leftovers::Leftovers;
use super::mirror;
use super::pending_syncs::PendingSyncs;
use super::tiers::Tiers;
use super::wakeups::Wakeups;
use halocline_os::error::Result;
use halocline_vfs::namespace;
use halocline_vfs::namespace::stat_descriptor;

/// Gives files on lower tiers the places of their names.
#[derive(Debug)]
pub(super) struct PlaceRepair {
    tiers: Arc<Tiers>,
    intents: Arc<LeftoverIntents>,
    leftovers: Arc<Leftovers>,
    pending_syncs: Arc<PendingSyncs>,
    wakeups: Arc<Wakeups>,
    inodes: Arc<Inodes>,
}

impl PlaceRepair {
    /// Built over the components that it uses.
    pub(super) fn new(base: &Foundation, inodes: &Arc<Inodes>) -> Self {
        Self {
            tiers: base.tiers.clone(),
            intents: base.intents.clone(),
            leftovers: base.leftovers.clone(),
            pending_syncs: base.pending_syncs.clone(),
            wakeups: base.wakeups.clone(),
            inodes: inodes.clone(),
        }
    }

    /// Moves a file on a lower tier to the place of its present name, so that both trees look alike; if that fails, the
    /// link continues to name the old place.
    pub(super) fn repair(&self, inode: &Arc<Inode>) {
        if let Err(error) = self.try_repair(inode) {
            tracing::debug!(%error, "a file keeps its old place on the lower tier");
        }
    }

    fn try_repair(&self, inode: &Arc<Inode>) -> Result<()> {
        let _moving = inode.moving.lock();
        let mut place = inode.place.write();
        let Some(away) = place.away.clone().filter(|away| !away.path.as_os_str().is_empty()) else {
            return Ok(());
        };
        if place.names_of_link(&self.tiers) != 1 {
            return Ok(());
        }
        let Some(name) = place.entry.known_as() else { return Ok(()) };
        let path = self.tiers.tree().path_of(&place.entry);
        let stays = path == away.path || super::is_private_path(&path);
        if stays || !self.tiers.can_be_named(away.tier, &path) {
            return Ok(());
        }
        let tier_dir = &self.tiers.dirs()[away.tier];
        tier_dir.make_parents(&path, &mut |dir, made| mirror::directory(&self.tiers, dir, made))?;
        let file = tier_dir.find(&away.path)?;
        let before = stat_descriptor(&file)?;
        let new = self.intents.note_durably(
            format!("{}-new", self.tiers.fresh_name()),
            away.tier,
            &path,
        )?;
        if let Err(error) = tier_dir.link(&away.path, &path) {
            // Whatever is at this place is not ours.
            self.intents.clear(&new);
            return Err(error);
        }
        let done = tier_dir
            .sync_parent("syncing a place", &path)
            .and_then(|()| self.cut_over_place(inode, &mut place, &away, (&name, &path)));
        let old = match done {
            Ok(old) => old,
            Err(error) => {
                // As long as the second place may come back, its intent stays.
                tier_dir
                    .remove(&path)
                    .and_then(|()| tier_dir.sync_parent("syncing a place", &path))?;
                self.intents.clear(&new);
                return Err(error);
            }
        };
        if let Err(error) = self.tiers.sync_directory(&name.0) {
            // Both places stay until the next mount.
            self.pending_syncs.add(inode.number, name.0);
            return Err(error);
        }
        drop(place);
        self.intents.clear(&new);
        self.leftovers.drop_old(old, &name.0);
        if let Ok(now) = stat_descriptor(&file) {
            inode.keep_ctime(&before, &now);
        }
        self.wakeups.wake_reaper();
        Ok(())
    }

    /// Makes a file's link name its second place, not durably yet. Returns the intent by which the first place is left
    /// over from now on.
    fn cut_over_place(
        &self,
        inode: &Arc<Inode>,
        place: &mut Place,
        away: &Away,
        (name, path): (&(namespace::Vnode, OsString), &Path),
    ) -> Result<LeftoverIntent> {
        let id = self.tiers.fresh_name();
        let old = self.intents.note(format!("{id}-old"), away.tier, &away.path)?;
        let target = self.tiers.links().to(away.tier, path);
        self.inodes
            .replace_own_link(inode, place, name, (&id, &target))
            .inspect_err(|_| self.intents.clear(&old))?;
        place.away = Some(Away { tier: away.tier, path: path.to_owned(), shared: false });
        Ok(old)
    }
}
