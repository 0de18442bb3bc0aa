//! Unmapping without the store: what a store that refuses changes cannot record is listed beside it, and what an
//! earlier process listed is unmapped before anything is read.

use halocline_model::request::ByteRange;

use super::{Access, ExtentTable};
use crate::invalidations::Invalidation;
use crate::owner::LOCK_FILE;
use crate::{Extent, FileId};
use halocline_os::error::{Error, Result};

impl ExtentTable {
    /// For a store that is not [`usable`](Self::usable): unmaps `range` in memory, after ensuring by other means that
    /// no later opening trusts what its records say about these bytes. An error means that there was no such means;
    /// nothing is changed then.
    pub fn abandon(&self, file: FileId, range: ByteRange) -> Result<()> {
        debug_assert!(self.records.usable().is_err(), "a store that works records it");
        let state = self.files.known(file)?;
        let _change = state.change.lock();
        let (any, dirty) = {
            let mapped = state.mapped.read();
            let dirty = mapped.extents.dirty(range).any(|extent| extent.range.overlaps(range))
                // Bytes inside an intent are recorded as dirty, and stay so.
                || mapped.intents.overlapping(range).next().is_some();
            (mapped.extents.overlapping(range).next().is_some(), dirty)
        };
        if !any {
            return Ok(());
        }
        let what = if dirty { Invalidation::Bytes(file, range) } else { Invalidation::Clean };
        // Durable before the caller may change the bytes, because the records contradict this (I1).
        if !self.owner.invalidations().is_given_up() {
            self.invalidate(what)?;
        }
        let (plan, gone) = Self::plan_unmap(&state, range, range);
        state.mapped.write().intents.cut(range);
        self.apply_unmap(&state, plan, gone, self.epochs.current());
        Ok(())
    }

    /// For a store that is not [`usable`](Self::usable), and whose dirty bytes are no longer needed: ensures that no
    /// later opening trusts anything. From then on [`abandon`](Self::abandon) only changes memory. An error means that
    /// there was no means to inform a later opening.
    pub fn give_up(&self) -> Result<()> {
        debug_assert!(self.records.usable().is_err(), "a store that works records it");
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
                Invalidation::Bytes(file, range) if self.files.state(file).is_some() => {
                    self.unmap(file, range)?;
                }
                Invalidation::Bytes(..) => {}
                Invalidation::Clean => self.unmap_all(|extent| !extent.dirty)?,
                Invalidation::All => self.unmap_all(|_| true)?,
            }
        }
        if access != Access::Change {
            return Ok(());
        }
        self.records.sync()?;
        let lock = || Error::at(self.owner.dir().join(LOCK_FILE), "clear the list in");
        self.owner.invalidations().clear().map_err(lock())
    }

    fn unmap_all(&self, doomed: impl Fn(&Extent) -> bool) -> Result<()> {
        let states = self.files.states();
        for state in states {
            let extents: Vec<_> = state.mapped.read().extents.all().collect();
            for extent in extents.iter().filter(|extent| doomed(extent)) {
                self.unmap(state.id, extent.range)?;
            }
        }
        Ok(())
    }
}
