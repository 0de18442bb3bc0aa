//! Going on without the metadata store (D11): it refuses changes since a write to it failed.
//!
//! What must hold then:
//! - writes to dirty extents go to the cache as before: their records need no change;
//! - where clean bytes are cached a write goes home, after the mapping was abandoned: no later
//!   mount trusts it (I1);
//! - dirty bytes are brought home file by file, and the file's mappings abandoned (I3, I7);
//! - records that only speed things up (names, stamps, wishes) are let be: each is found out anew
//!   by the next mount. A stamp that stays at rest while the file changes makes that mount drop
//!   the file's clean extents; a file with dirty ones is stamped as being written already.

use std::sync::Arc;

use halocline_model::request::ByteRange;

use super::parts::Parts;
use crate::error::{Error, Result};
use crate::extent::file::{CachedFile, WHOLE};
use crate::meta::{Extent, FileId};
use crate::volume::origin::OriginFile;

impl Parts {
    /// Unmaps `range` before or after its bytes change on the origin, by whatever means are left.
    /// The caller holds the range exclusively.
    pub(crate) fn let_go(&self, id: FileId, range: ByteRange) -> Result<()> {
        match self.drop_range(id, range) {
            Err(error) if self.store.dmt.usable().is_err() => {
                self.cache_failed(&error);
                self.store.dmt.abandon(id, range)?;
                self.damage.heal(id, range);
                Ok(())
            }
            done => done,
        }
    }

    /// Marks what is cached of `range` dirty; where the store refuses that, clean bytes are let go.
    /// Either way no clean extent is left under `range`.
    pub(crate) fn claim_for_cache(&self, id: FileId, range: ByteRange) -> Result<()> {
        let Err(error) = self.store.dmt.mark_dirty(id, range) else { return Ok(()) };
        self.cache_failed(&error);
        let mut segments = Vec::new();
        self.store.dmt.lookup(id, range, &mut segments);
        for segment in segments {
            if segment.extent.is_some_and(|extent| !extent.dirty) {
                self.let_go(id, segment.range)?;
            }
        }
        Ok(())
    }

    /// Lets a failure pass that only means that a record stays behind the truth: the store is
    /// sick, and the next mount finds the truth by itself.
    pub(crate) fn advisory(&self, recorded: Result<()>) -> Result<()> {
        match recorded {
            Err(error) if self.store.dmt.usable().is_err() => {
                self.cache_failed(&error);
                Ok(())
            }
            done => done,
        }
    }

    /// Copies all dirty bytes of a file home, makes them durable there, and abandons its mappings.
    /// For a store that refuses changes: it cannot be told that they are clean.
    pub(crate) fn bring_home(&self, file: &CachedFile, id: FileId) -> Result<u64> {
        // One line for each whole file, so programs wait: a page of lines must do for all files.
        let _range = file.range.exclusive(WHOLE);
        // A flush that began before the store failed may still be writing home what was there then.
        let _home = file.home.exclusive(WHOLE);
        let dirty = self.store.dmt.dirty(id, WHOLE, usize::MAX);
        if dirty.is_empty() {
            return Ok(0);
        }
        let mover = self.mover_of(file)?;
        self.hold_origin_time(file)?;
        // What can be read goes home even if some of it cannot: that is all that can be saved.
        let mut copied = Ok(0);
        for extent in &dirty {
            let here = self.bring_extent(&mover, (file, id), extent);
            copied = copied.and_then(|sum: u64| here.map(|()| sum + extent.range.len()));
        }
        let bytes = copied?;
        mover.sync(true)?;
        self.store.dmt.abandon(id, WHOLE)?;
        self.counters.flushed(bytes);
        Ok(bytes)
    }

    fn bring_extent(
        &self,
        mover: &OriginFile,
        (file, id): (&CachedFile, FileId),
        extent: &Extent,
    ) -> Result<()> {
        let Extent { range, placement, .. } = *extent;
        let length = usize::try_from(range.len()).expect("an extent fits in memory");
        let mut data = vec![0; length];
        let damaged = self.store.read_checked(id, placement, range.start, &mut data)?;
        let damaged: Vec<_> = damaged.iter().filter_map(|bad| bad.intersect(range)).collect();
        self.found_damaged(file, id, &damaged);
        let mut at = range.start;
        let damaged = self.damage.of(id, range);
        for bad in damaged.iter().copied().chain([ByteRange::new(range.end, range.end)]) {
            let good = index(at - range.start)..index(bad.start - range.start);
            mover.write_at(at, &data[good])?;
            at = bad.end;
        }
        if damaged.is_empty() { Ok(()) } else { Err(rustix::io::Errno::IO.into()) }
    }

    /// Brings every dirty file home; says once what became of it.
    pub(crate) fn drain(&self) -> Result<()> {
        let files = self.store.dmt.dirty_files();
        let mut failed = None;
        for (id, _) in &files {
            let drained = match self.file_by_id(*id)? {
                Some(file) => self.bring_home(&file, *id).and_then(|_| self.give_time(&file)),
                None => self.record_of_missing(*id).map_or(Ok(()), |record| {
                    Err(Error::invalid(
                        format!(
                            "{} is not there any more and has dirty bytes",
                            record.path.display()
                        ),
                        "mount again: it is searched for then",
                    ))
                }),
            };
            failed = failed.or(drained.err());
        }
        match failed {
            Some(error) => Err(error),
            None if files.is_empty() => Ok(()),
            None => {
                self.note(
                    "the metadata store failed: all dirty data is on the origin now; unmount, \
                     check the cache's device, and mount again to go on caching"
                        .to_owned(),
                );
                Ok(())
            }
        }
    }

    /// Makes what the cache holds of a file durable: on the cache, or, if its store is sick, at
    /// home.
    pub(crate) fn make_durable(&self, file: &Arc<CachedFile>, id: FileId) -> Result<()> {
        match self.barrier() {
            Err(error) if self.store.dmt.usable().is_err() => {
                self.cache_failed(&error);
                self.bring_home(file, id).map(drop)
            }
            done => done,
        }
    }

    /// A barrier. Objects that their device refused to sync are replaced first: a second sync
    /// that succeeds would not mean that their bytes are there. The caller holds no lock of a file.
    pub(crate) fn barrier(&self) -> Result<()> {
        let Err(error) = self.store.barrier() else { return Ok(()) };
        let unsyncable = self.store.objects.unsyncable();
        if unsyncable.is_empty() || self.store.dmt.usable().is_err() {
            return Err(error);
        }
        self.cache_failed(&error);
        for number in unsyncable {
            let id = FileId(number);
            if let Some(file) = self.file_by_id(id)? {
                self.replace_object(&file, id)?;
            }
        }
        self.store.barrier()
    }

    /// After a flush: what went home is recorded as clean, durably, and evictable. A device that
    /// cannot be synced keeps the second from happening and nothing else: the bytes are at home.
    pub(crate) fn settle_flush(&self) -> Result<()> {
        let settled = self.barrier().and_then(|()| self.discard_queued().map(drop));
        self.advisory(settled.or_else(|error| {
            self.cache_failed(&error);
            self.store.dmt.persist()
        }))
    }

    /// Brings a file's dirty bytes home, forgets all that is cached of it, and removes its objects.
    fn replace_object(&self, file: &Arc<CachedFile>, id: FileId) -> Result<()> {
        self.flush_file(file)?;
        let _range = file.range.exclusive(WHOLE);
        if !self.store.dmt.dirty(id, WHOLE, 1).is_empty() {
            return Err(Error::invalid(
                format!(
                    "{} was written while its cache object was replaced",
                    self.namespace.path_of(&file.node.read()).display()
                ),
                "sync again",
            ));
        }
        self.let_go(id, WHOLE)?;
        // Before the object goes: a record that came back would find nothing.
        self.store.dmt.persist()?;
        Ok(self.store.objects.remove(id.0)?)
    }
}

fn index(length: u64) -> usize {
    usize::try_from(length).expect("an extent fits in memory")
}
