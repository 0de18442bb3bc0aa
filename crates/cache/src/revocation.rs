//! Gives up what other nodes want: brings bytes to the origin, durably, and drops what is cached of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bon::Builder;
use halocline_model::layout::Placement;
use halocline_model::request::ByteRange;
use parking_lot::Mutex;

use super::flush::{FlushedWhole, Sweeper};
use super::kernel_pages::KernelPages;
use super::known_files::KnownFiles;
use super::mappings::Mappings;
use super::modification_times::ModificationTimes;
use crate::coherence::{Blocks, Cached, LocalCache, SharedFile};
use crate::extent::file::{CachedFile, WHOLE};
use crate::extent::store::ExtentStore;
use crate::extent::table::FileTable;
use crate::recover::Recoverer;
use halocline_meta::{FileId, OriginKey};
use halocline_os::clock::Clock;
use halocline_os::error::{Error, Result};

/// Shortest time between two searches for files under other names.
const AGAIN: Duration = Duration::from_secs(1);

/// The engine as seen by the agent of its node.
#[derive(Debug, Builder)]
pub(crate) struct Revocation {
    store: Arc<ExtentStore>,
    files: Arc<FileTable>,
    known: Arc<KnownFiles>,
    times: Arc<ModificationTimes>,
    sweeper: Arc<Sweeper>,
    mappings: Arc<Mappings>,
    recoverer: Arc<Recoverer>,
    kernel_pages: Arc<KernelPages>,
    clock: Clock,
    /// When the last search for files under other names ended, and how long it took. Locked during a search.
    #[builder(skip)]
    searched: Mutex<Option<(Instant, Duration)>>,
}

impl Revocation {
    /// The file, if something of it is to be given up through its descriptors. If it is not in memory and cannot be
    /// reached by its name, its clean bytes are dropped here.
    ///
    /// # Errors
    /// If it has dirty bytes in `range` and is not found.
    fn reached(
        &self,
        key: OriginKey,
        range: ByteRange,
        keeps_clean: bool,
    ) -> Result<Option<Arc<CachedFile>>> {
        loop {
            if let Some(file) = self.files.by_key(key) {
                return Ok(Some(file));
            }
            let Some(id) = self.store.dmt.files().find(key) else { return Ok(None) };
            // Other nodes rename files without updating this node's record.
            if let Ok(Some(file)) = self.known.file_by_id(id) {
                return Ok(Some(file));
            }
            if self.is_dirty(id, range) {
                self.search(id)?;
            } else if keeps_clean || self.drop_unopened(key, id, range)? {
                return Ok(None);
            }
        }
    }

    /// Drops the clean bytes of a range of a file that is not in memory; `false` if the file is in memory by now.
    fn drop_unopened(&self, key: OriginKey, id: FileId, range: ByteRange) -> Result<bool> {
        let _alone = self.store.forgetting.lock();
        // While frozen no file enters the table, so nobody gets locks of this one's bytes.
        let frozen = self.files.freeze();
        if frozen.by_key(key).is_some() {
            return Ok(false);
        }
        self.mappings.unmap_clean(id, range).map(|()| true)
    }

    /// Searches the origin for dirty files that are not in memory and not under their names: those that an earlier
    /// session left, beyond the number of files that may be open for flushing. One search finds all of them; the next
    /// one begins some time later, because each walks the whole tree while other nodes wait.
    ///
    /// # Errors
    /// If `id` is not found.
    fn search(&self, id: FileId) -> Result<()> {
        // One search holds up one thread; others that give something up must not wait for it.
        let Some(mut last) = self.searched.try_lock() else {
            return Err(Error::invalid(
                "the origin is being searched for dirty files that other nodes renamed",
                "it is tried again",
            ));
        };
        let is_found = || self.files.by_id(id).is_some() || !self.is_dirty(id, WHOLE);
        if is_found() {
            return Ok(());
        }
        let is_due =
            |(ended, took): (Instant, Duration)| self.clock.elapsed(ended) >= AGAIN.max(took * 4);
        let mut obstacle = None;
        if last.is_none_or(is_due) {
            let begun = self.clock.instant();
            let dirty = self.store.dmt.index().dirty_files().into_iter().map(|(id, _)| id);
            let missing: Vec<_> = dirty.filter(|id| self.files.by_id(*id).is_none()).collect();
            let searched = self.recoverer.search_missing(&missing, &|| true);
            *last = Some((self.clock.instant(), self.clock.elapsed(begun)));
            obstacle = searched?;
            if is_found() {
                return Ok(());
            }
        }
        Err(obstacle.unwrap_or_else(|| {
            let path =
                self.store.dmt.files().record(id).map(|record| record.path).unwrap_or_default();
            Error::invalid(
                format!(
                    "{} has dirty bytes that another node wants, and is not found on the origin",
                    path.display()
                ),
                "it is searched for again; `halocline flush` says why it is not found",
            )
        }))
    }

    /// Writes the dirty bytes of a range to the origin, and drops what is cached of it unless `keeps_clean`.
    fn bring_to_origin(&self, key: OriginKey, range: ByteRange, keeps_clean: bool) -> Result<()> {
        let mut is_first = true;
        let file = loop {
            let Some(file) = self.reached(key, range, keeps_clean)? else { return Ok(()) };
            let Some(id) = file.id().filter(|id| self.is_dirty(*id, range)) else { break file };
            // Dirty bytes are nowhere else, whatever happened to the file's names.
            let mut flushed = self.sweeper.flush_given(&file, range)?;
            if flushed != FlushedWhole::Removed && self.is_dirty(id, range) {
                // Programs write to extents that reach beyond the range. The bytes of an extent become clean together,
                // so the part in the range is cut off and flushed by itself.
                self.mappings.advisory(self.store.dmt.changes().cut_dirty(id, range).map(drop))?;
                flushed = self.sweeper.flush_given(&file, range)?;
            }
            if !self.is_dirty(id, range) {
                break file;
            }
            if flushed != FlushedWhole::Removed || !std::mem::take(&mut is_first) {
                return Err(Error::invalid(
                    "bytes that another node wants could not all be brought to the origin",
                    "`halocline flush` says why",
                ));
            }
            // It was no longer under its name, and not open for flushing: it is searched for.
            self.known.forget_idle(&file);
        };
        // Other nodes must see the modification time together with the bytes.
        self.times.give_time(&file)?;
        // Bytes that bypassed the cache may so far be only in the memory of the origin's file system.
        self.known.sync(&file)?;
        if !keeps_clean {
            file.peer_copies.drop_range(range);
            self.kernel_pages.drop_range(&file, range);
        }
        if !keeps_clean && let Some(id) = file.id() {
            // A read that is filling the cache right now finds that the range was held meanwhile.
            let _range = file.range.exclusive(range);
            self.mappings.unmap(id, range)?;
        }
        self.known.forget_idle(&file);
        Ok(())
    }

    /// Whether bytes of `range` are dirty.
    fn is_dirty(&self, id: FileId, range: ByteRange) -> bool {
        !self.store.dmt.index().dirty(id, range, 1).is_empty()
    }
}

impl LocalCache for Revocation {
    fn give_up(&self, shared: SharedFile, range: ByteRange, keeps_clean: bool) -> Result<()> {
        self.bring_to_origin(key_of(shared), range, keeps_clean)?;
        // Including earlier flushes. If the store refuses changes, it is recorded elsewhere which of its records are
        // not to be trusted.
        self.mappings.advisory(self.store.dmt.changes().persist_cleaned())
    }

    fn caches(&self, shared: SharedFile) -> bool {
        self.store
            .dmt
            .files()
            .find(key_of(shared))
            .is_some_and(|id| !self.store.dmt.files().is_empty(id))
    }

    fn cached(&self, shared: SharedFile, range: ByteRange) -> Option<Cached> {
        let id = self.store.dmt.files().find(key_of(shared))?;
        let mut segments = Vec::new();
        self.store.dmt.index().lookup(id, range, &mut segments);
        let clean = segments.into_iter().filter_map(|segment| {
            let extent = segment.extent.filter(|extent| !extent.dirty)?;
            Some((extent.placement, segment.range))
        });
        let mut places: Vec<(Placement, ByteRange)> = clean.collect();
        places.dedup_by(|(placement, next), (kept_in, kept)| {
            let together = placement == kept_in && next.start == kept.end;
            if together {
                kept.end = next.end;
            }
            together
        });
        let mut blocks: Vec<Blocks> = Vec::new();
        for (placement, part) in places {
            for (number, sum) in self.store.dmt.checksums().whole_blocks(id, placement, part) {
                match blocks.last_mut() {
                    Some(last)
                        if last.placement == placement
                            && last.first + last.sums.len() as u64 == number =>
                    {
                        last.sums.push(sum);
                    }
                    _ => blocks.push(Blocks {
                        file: id.0,
                        placement,
                        first: number,
                        sums: vec![sum],
                    }),
                }
            }
        }
        // Another node is about to use them.
        self.store.dmt.index().touch(id, range);
        Some(Cached { geometry: self.store.geometry, blocks })
    }
}

/// The file's identity on the origin.
fn key_of(shared: SharedFile) -> OriginKey {
    OriginKey { inode: shared.inode, born_ns: shared.born_ns.cast_unsigned() }
}

#[cfg(test)]
mod tests;
