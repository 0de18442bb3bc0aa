//! Unmapping without the store: what a store that refuses changes cannot record is listed beside it, and what an
//! earlier process listed is unmapped before anything is read.

use std::sync::Arc;

use halocline_model::request::ByteRange;

use super::Access;
use super::change::ExtentChanges;
use super::extent_index::ExtentIndex;
use crate::invalidations::Invalidation;
use crate::owner::{LOCK_FILE, Owner};
use crate::{Extent, FileId};
use halocline_os::error::{Error, Result};

/// What the records say although it is not so.
#[derive(Debug)]
pub struct Untrusted {
    changes: Arc<ExtentChanges>,
    index: Arc<ExtentIndex>,
    owner: Arc<Owner>,
}

impl Untrusted {
    pub(super) fn new(
        changes: &Arc<ExtentChanges>,
        index: &Arc<ExtentIndex>,
        owner: &Arc<Owner>,
    ) -> Self {
        let (changes, index) = (Arc::clone(changes), Arc::clone(index));
        Self { changes, index, owner: Arc::clone(owner) }
    }

    /// For a store that is not [`usable`](super::change::ExtentChanges::usable): unmaps `range` in memory, after ensuring by other means that
    /// no later opening trusts what its records say about these bytes. An error means that there was no such means;
    /// nothing is changed then.
    pub fn abandon(&self, file: FileId, range: ByteRange) -> Result<()> {
        self.changes.unmap_unrecorded(file, range, |dirty| {
            let what = if dirty { Invalidation::Bytes(file, range) } else { Invalidation::Clean };
            if self.owner.invalidations().is_given_up() { Ok(()) } else { self.invalidate(what) }
        })
    }

    /// For a store that is not [`usable`](super::change::ExtentChanges::usable), and whose dirty bytes are no longer needed: ensures that no
    /// later opening trusts anything. From then on [`abandon`](Self::abandon) only changes memory. An error means that
    /// there was no means to inform a later opening.
    pub fn give_up(&self) -> Result<()> {
        debug_assert!(self.changes.usable().is_err(), "a store that works records it");
        let said = self.invalidate(Invalidation::All);
        self.owner.invalidations().give_up();
        said
    }

    fn invalidate(&self, what: Invalidation) -> Result<()> {
        self.owner.invalidations().add(what).map_err(|error| {
            let lock = self.owner.dir().join(LOCK_FILE);
            Error::at(lock, "note that cached bytes are outdated, here or on the origin, in")(error)
        })
    }

    /// Durably unmaps what an earlier process listed and clears the list, unless the cache is opened read-only. It does
    /// so without a barrier, which would declare durable what a killed process had written and no one had synced.
    pub(super) fn honour(&self, invalidated: &[Invalidation], access: Access) -> Result<()> {
        if invalidated.is_empty() {
            return Ok(());
        }
        tracing::warn!(
            "the store had failed in the last session; cached bytes that it could not forget are \
             dropped"
        );
        for &what in invalidated {
            match what {
                Invalidation::Bytes(file, range) if self.index.files().state(file).is_some() => {
                    self.changes.unmap(file, range)?;
                }
                Invalidation::Bytes(..) => {}
                Invalidation::Clean => self.unmap_all(|extent| !extent.dirty)?,
                Invalidation::All => self.unmap_all(|_| true)?,
            }
        }
        if access != Access::Change {
            return Ok(());
        }
        self.changes.persist()?;
        let lock = || Error::at(self.owner.dir().join(LOCK_FILE), "clear the list in");
        self.owner.invalidations().clear().map_err(lock())
    }

    fn unmap_all(&self, doomed: impl Fn(&Extent) -> bool) -> Result<()> {
        let states = self.index.files().states();
        for state in states {
            let extents: Vec<_> = state.mapped().extents.all().collect();
            for extent in extents.iter().filter(|extent| doomed(extent)) {
                self.changes.unmap(state.id, extent.range)?;
            }
        }
        Ok(())
    }
}
