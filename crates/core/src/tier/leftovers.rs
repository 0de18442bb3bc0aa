//! Data of removed files and old copies: gone once nothing could bring their names back.

use std::path::Path;

use super::{Core, PRIVATE};
use crate::error::Result;
use crate::namespace::Node;

impl Core {
    /// Removes the data of files whose names are gone, once that is durable.
    pub(crate) fn finish_removals(&self) -> Result<()> {
        let removals = self.intents.take_removals();
        let mut synced: Vec<&Node> = Vec::new();
        for parent in removals.iter().filter_map(|removal| removal.parent.as_ref()) {
            if !synced.contains(&parent) {
                // A directory that is gone itself took its names with it.
                let _ = self.sync_directory(parent);
                synced.push(parent);
            }
        }
        if !synced.is_empty() {
            self.intents.sync()?;
        }
        for removal in &removals {
            let side = &self.sides[removal.intent.tier];
            let gone = side
                .remove(&removal.intent.place)
                .and_then(|()| side.sync_parent(&removal.intent.place));
            match gone {
                Ok(()) => {
                    self.intents.clear(&removal.intent);
                    self.drop_empty_directories(removal.intent.tier, &removal.intent.place);
                }
                Err(error) => tracing::warn!(%error, "removed at the next mount"),
            }
        }
        Ok(())
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
