//! Data of removed files and old copies: gone once nothing could bring their names back.

use std::path::Path;

use super::crash::point;
use super::intents::Removal;
use super::{Core, PRIVATE};
use crate::error::Result;
use crate::namespace::Node;

impl Core {
    /// Removes the data of files whose names are gone, once that is durable.
    pub(crate) fn finish_removals(&self) -> Result<()> {
        let removals = self.intents.take_removals();
        self.sync_parents(&removals)?;
        point("syncing removed names");
        for removal in &removals {
            let intent = removal.intent();
            let side = &self.sides[intent.tier];
            let gone = match removal {
                Removal::Wanted(..) => side.remove(&intent.place),
                Removal::Done(_) => Ok(()),
            };
            point("removing a removed file's data");
            match gone.and_then(|()| side.sync_parent(&intent.place)) {
                Ok(()) => {
                    self.intents.clear(intent);
                    point("clearing an intent");
                    self.drop_empty_directories(intent.tier, &intent.place);
                }
                Err(error) => tracing::warn!(%error, "removed at the next mount"),
            }
        }
        Ok(())
    }

    /// Makes durable that the names are gone.
    fn sync_parents(&self, removals: &[Removal]) -> Result<()> {
        let mut synced: Vec<&Node> = Vec::new();
        for removal in removals {
            let Removal::Wanted(_, parent) = removal else { continue };
            if !synced.contains(&parent) {
                // A directory that is gone itself took its names with it.
                let _ = self.sync_directory(parent);
                synced.push(parent);
            }
        }
        if synced.is_empty() { Ok(()) } else { self.intents.sync() }
    }

    /// Removes directories on a lower tier that are empty and that the tree does not have.
    fn drop_empty_directories(&self, tier: usize, place: &Path) {
        for dir in place.ancestors().skip(1).take_while(|dir| *dir != Path::new("")) {
            if dir.starts_with(PRIVATE) || self.walk(dir).is_some() {
                return;
            }
            if std::fs::remove_dir(self.sides[tier].path.join(dir)).is_err() {
                return;
            }
        }
    }
}
