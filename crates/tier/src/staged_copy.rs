//! A copy of a file on another tier, before it becomes the file.

use std::ffi::OsString;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use super::leftover_intents::{LeftoverIntent, LeftoverIntents};
use super::residents::Reserved;
use super::tiers::Tiers;
use halocline_vfs::Stat;
use halocline_vfs::namespace::Vnode;

/// A file as it was when the copy began.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) from: usize,
    pub(super) file: Arc<File>,
    pub(super) stat: Stat,
    pub(super) entry: Vnode,
    /// Its name; `None` for an open file that was removed.
    pub(super) name: Option<(Vnode, OsString)>,
    /// How many names it has.
    pub(super) names: usize,
    pub(super) changes: u64,
}

/// A copy that is durable but not yet the file.
pub(super) struct StagedCopy {
    pub(super) tier: usize,
    pub(super) temporary: String,
    pub(super) file: File,
    /// Its place on a lower tier.
    pub(super) placed: Option<(PathBuf, LeftoverIntent)>,
    /// What it leaves behind on a lower tier stays there as a clean copy, and is durable.
    pub(super) keep: bool,
    pub(super) _reserved: Option<Reserved>,
}

impl StagedCopy {
    /// Undoes the preparations of a migration that did not happen.
    pub(super) fn undo(&self, tiers: &Tiers, intents: &LeftoverIntents) {
        let tier_dir = &tiers.dirs()[self.tier];
        match &self.placed {
            None => tier_dir.drop_temporary(&self.temporary),
            Some((place, intent)) => {
                match tier_dir
                    .remove(place)
                    .and_then(|()| tier_dir.sync_parent("syncing a place", place))
                {
                    Ok(()) => intents.clear(intent),
                    Err(error) => tracing::warn!(%error, "a copy is removed at the next mount"),
                }
            }
        }
    }
}
