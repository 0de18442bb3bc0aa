//! Operation without the metadata store (D11), which refuses changes after a write to it failed.
//!
//! What must hold then:
//! - writes to dirty extents go to the cache as before: their records need no change;
//! - a write over clean bytes goes to the origin, after the mapping was abandoned: no later mount trusts it (I1);
//! - dirty bytes are flushed file by file, and the file's mappings abandoned (I3, I7);
//! - if single invalidations can no longer be recorded, one that covers everything is;
//! - records that only speed things up (names, stamps, wanted ranges) are not updated: the next mount determines them
//!   again. A stamp that says at rest while the file changes makes that mount drop the file's clean extents; a file
//!   with dirty ones is already stamped as being written.

use std::collections::HashSet;
use std::sync::Arc;

use bon::Builder;
use halocline_model::request::{ByteRange, index};
use parking_lot::Mutex;

use crate::counters::Counters;
use crate::damage::Damage;
use crate::extent::file::{CachedFile, WHOLE};
use crate::extent::store::ExtentStore;
use crate::external_changes::ExternalChanges;
use crate::known_files::KnownFiles;
use crate::mappings::Mappings;
use crate::modification_times::ModificationTimes;
use crate::own_changes::OwnChanges;
use crate::repair::Repair;
use crate::settings::Settings;
use crate::status_notes::Notes;
use halocline_meta::{Extent, FileId, FileRecord};
use halocline_os::error::{Error, Result};
use halocline_storage::volume::origin::OriginFile;

/// What still works while the store refuses changes, and what can no longer be recorded.
#[derive(Debug, Builder)]
pub(crate) struct DegradedMode {
    store: Arc<ExtentStore>,
    damage: Arc<Damage>,
    counters: Arc<Counters>,
    notes: Arc<Notes>,
    settings: Arc<Settings>,
    mappings: Arc<Mappings>,
    repair: Arc<Repair>,
    own: Arc<OwnChanges>,
    external: Arc<ExternalChanges>,
    known: Arc<KnownFiles>,
    times: Arc<ModificationTimes>,
    /// Removed files for which no invalidation could be recorded.
    #[builder(skip)]
    pub(crate) removed: Mutex<HashSet<FileId>>,
    /// Held while the whole cache is abandoned.
    #[builder(skip)]
    giving_up: Mutex<()>,
}

/// How often work is repeated because the lease of the node ended under it.
const LAPSES: u32 = 4;

/// Dirty extents already copied to the origin, with their generations.
type Copied = HashSet<(FileId, ByteRange, u64)>;

impl DegradedMode {
    /// Does `work`, which may have to record invalidations. If these can no longer be recorded, because there are too
    /// many or because no medium takes them, the whole cache is given up and the work repeated, so that programs see
    /// no failure (D11). It is repeated, too, if the node's lease ended while it was under way: it begins with a permit,
    /// for which it waits until the node has a lease again. The caller holds no lock of a file, and `work` can be
    /// repeated.
    pub(crate) fn retry_after_giving_up<T>(
        &self,
        mut work: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        for _ in 0..LAPSES {
            let (unstated, refused) = (self.mappings.unstated(), self.own.refused());
            let error = match work() {
                Err(error) => error,
                done => return done,
            };
            if self.mappings.unstated() != unstated {
                if let Err(stuck) = self.give_up() {
                    self.notes.note(format!("the cache cannot be given up: {stuck}"));
                    return Err(error);
                }
                return work();
            }
            if !matches!(error, Error::Cluster { .. }) || self.own.refused() == refused {
                return Err(error);
            }
        }
        work()
    }

    /// Copies all dirty bytes of a file to the origin, makes them durable there, and abandons its mappings. For a
    /// store that refuses changes, in which they cannot be marked clean.
    pub(crate) fn bring_to_origin(&self, file: &CachedFile, id: FileId) -> Result<u64> {
        // One invalidation line per whole file, so programs wait: one page of lines must suffice for all files.
        let _range = file.range.exclusive(WHOLE);
        // A flush that began before the store failed may still be writing older bytes to the origin.
        let _writeback = file.writeback.exclusive(WHOLE);
        let mut copied = Copied::new();
        let bytes = self.copy_to_origin(file, id, &mut copied)?;
        if bytes > 0 {
            self.let_go(id, bytes)?;
        }
        Ok(bytes)
    }

    /// Abandons a file's mappings, of whose dirty bytes the origin has `brought`, durably. The caller holds `range` and
    /// `writeback` of the whole file.
    fn let_go(&self, id: FileId, brought: u64) -> Result<()> {
        self.check_brought(id, brought);
        self.mappings.unmap(id, WHOLE)?;
        self.check_brought(id, 0);
        Ok(())
    }

    /// # Panics
    /// If more of a file is dirty than `brought`.
    fn check_brought(&self, id: FileId, brought: u64) {
        let dirty = self.store.dmt.index().dirty_bytes(id);
        assert!(dirty <= brought, "I7: the origin lacks {} dirty bytes", dirty - brought);
    }

    /// Copies dirty bytes of a file to the origin, except extents that `copied` has in their current generation, and
    /// makes them durable there. The caller holds `range` and `writeback` of the whole file.
    fn copy_to_origin(&self, file: &CachedFile, id: FileId, copied: &mut Copied) -> Result<u64> {
        let mut dirty = self.store.dmt.index().dirty(id, WHOLE, usize::MAX);
        dirty.retain(|extent| !copied.contains(&(id, extent.range, extent.generation)));
        if dirty.is_empty() {
            return Ok(0);
        }
        let flush_handle = self.known.flush_handle_of(file)?;
        self.times.hold_origin_time(file)?;
        let changing = self.own.changing_bytes(file, &flush_handle)?;
        if changing.external {
            drop(changing);
            let _growth = file.growth.lock();
            return self.external.resolve_locked(file).map(|()| 0);
        }
        // Readable bytes go to the origin even if others cannot be read: no more can be saved.
        let mut sum = Ok(0);
        for extent in &dirty {
            let here = self.bring_extent(&flush_handle, (file, id), extent);
            sum = sum.and_then(|sum: u64| here.map(|()| sum + extent.range.len()));
        }
        let bytes = sum?;
        flush_handle.sync(true)?;
        copied.extend(dirty.iter().map(|extent| (id, extent.range, extent.generation)));
        self.counters.flushed(bytes);
        Ok(bytes)
    }

    /// Flushes all dirty bytes and records that nothing of the cache is to be trusted: for a store that refuses
    /// changes, when single invalidations no longer fit. Programs wait only for the bytes that changed while most
    /// were copied.
    pub(crate) fn give_up(&self) -> Result<()> {
        let _one = self.giving_up.lock();
        let mut copied = Copied::new();
        for (id, file) in self.dirty_or_err()? {
            let _range = file.range.exclusive(WHOLE);
            let _writeback = file.writeback.exclusive(WHOLE);
            self.copy_to_origin(&file, id, &mut copied)?;
        }
        loop {
            let files = self.dirty_or_err()?;
            // Held until the invalidation is recorded: if we were killed, the next mount would overwrite what was
            // written to the origin in between and lost its mapping (I1, I4).
            let guards: Vec<_> = files
                .iter()
                .map(|(_, file)| (file.range.exclusive(WHOLE), file.writeback.exclusive(WHOLE)))
                .collect();
            for (id, file) in &files {
                self.copy_to_origin(file, *id, &mut copied)?;
            }
            let dirty = self.store.dmt.index().dirty_files();
            let gone = self.removed.lock().clone();
            let ours = |id| files.iter().any(|(file, _)| *file == id) || gone.contains(&id);
            if !dirty.iter().all(|(id, _)| ours(*id)) {
                // Another file became dirty meanwhile.
                drop(guards);
                continue;
            }
            if let Err(error) = self.store.dmt.untrusted().give_up() {
                self.notes.note(format!(
                    "{error}; the origin has all data, but the next mount cannot know: remove the \
                     directory {} before you mount with it again",
                    self.settings.cache_dir.display()
                ));
            }
            for (id, _) in &dirty {
                self.store.dmt.untrusted().abandon(*id, WHOLE)?;
                self.damage.heal(*id, WHOLE);
            }
            drop(guards);
            for (_, file) in &files {
                self.times.give_time(file)?;
            }
            return Ok(());
        }
    }

    /// The files with dirty bytes, except removed ones, whose bytes are not needed.
    fn dirty_or_err(&self) -> Result<Vec<(FileId, Arc<CachedFile>)>> {
        let gone = self.removed.lock().clone();
        let dirty = self.store.dmt.index().dirty_files();
        let needed = dirty.iter().filter(|(id, _)| !gone.contains(id));
        let found = needed.map(|(id, _)| match self.known.file_by_id(*id)? {
            Some(file) => Ok(Some((*id, file))),
            None => self
                .known
                .record_of_missing(*id)
                .map_or(Ok(None), |record| Err(missing_dirty(&record))),
        });
        found.filter_map(Result::transpose).collect()
    }

    fn bring_extent(
        &self,
        flush_handle: &OriginFile,
        (file, id): (&CachedFile, FileId),
        extent: &Extent,
    ) -> Result<()> {
        let Extent { range, placement, .. } = *extent;
        let length = usize::try_from(range.len()).expect("an extent fits in memory");
        let mut data = vec![0; length];
        let damaged = self.store.read_checked(id, placement, range.start, &mut data)?;
        let damaged: Vec<_> = damaged.iter().filter_map(|bad| bad.intersect(range)).collect();
        self.repair.found_damaged(file, id, &damaged);
        let mut at = range.start;
        let damaged = self.damage.of(id, range);
        for bad in damaged.iter().copied().chain([ByteRange::new(range.end, range.end)]) {
            let good = index(at - range.start)..index(bad.start - range.start);
            flush_handle.write_at(at, &data[good])?;
            at = bad.end;
        }
        if damaged.is_empty() { Ok(()) } else { Err(rustix::io::Errno::IO.into()) }
    }

    /// Flushes every dirty file; notes the outcome once.
    pub(crate) fn drain(&self) -> Result<()> {
        let files = self.store.dmt.index().dirty_files();
        let mut failed = None;
        for (id, _) in &files {
            let drained = match self.known.file_by_id(*id) {
                Err(error) => Err(error),
                Ok(Some(file)) => self
                    .retry_after_giving_up(|| self.bring_to_origin(&file, *id))
                    .and_then(|_| self.times.give_time(&file)),
                Ok(None) if self.removed.lock().contains(id) => Ok(()),
                Ok(None) => self
                    .known
                    .record_of_missing(*id)
                    .map_or(Ok(()), |record| Err(missing_dirty(&record))),
            };
            failed = failed.or(drained.err());
        }
        match failed {
            Some(error) => Err(error),
            None if files.is_empty() => Ok(()),
            None => {
                self.notes.note(
                    "the metadata store failed: all dirty data is on the origin now; unmount, \
                     check the cache's device, and mount again to go on caching"
                        .to_owned(),
                );
                Ok(())
            }
        }
    }
}

/// The error for a file with dirty bytes that are to be flushed, if the origin no longer has the file.
fn missing_dirty(record: &FileRecord) -> Error {
    Error::invalid(
        format!("{} is not there any more and has dirty bytes", record.path.display()),
        "mount again: it is searched for then",
    )
}

#[cfg(test)]
mod tests {
    use crate::test_engine::one_dirty_file;

    #[test]
    #[should_panic(expected = "I7: the origin lacks 4096 dirty bytes")]
    fn i7_bytes_that_the_origin_lacks_are_not_let_go_of() {
        let (engine, id, _dirs) = one_dirty_file();
        drop(engine.components.degraded_mode.let_go(id, 0));
    }

    #[test]
    #[should_panic(expected = "I7: the origin lacks 4096 dirty bytes")]
    fn i7_a_byte_that_is_dirty_after_all_were_brought_is_seen() {
        let (engine, id, _dirs) = one_dirty_file();
        let brought = engine.base.store.dmt.index().dirty_bytes(id);
        engine.components.degraded_mode.check_brought(id, brought);
        engine.components.degraded_mode.check_brought(id, 0);
    }
}
