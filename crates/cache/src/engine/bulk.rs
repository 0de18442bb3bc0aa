//! Whole files brought to the cache and taken from it, as a person or a rule wants.

use super::ExtentEngine;
use crate::bulk::{BulkOperation, Walk};
use crate::extent::file::CachedFile;
use crate::fetch::Fetched;
use halocline_meta::Wanted;
use halocline_model::layout::Layout;
use halocline_model::request::ByteRange;
use halocline_os::error::{Error, Result};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes that `warm` fetches in one piece.
const WARM_PIECE_BYTES: u64 = 4 << 20;

impl ExtentEngine {
    pub(crate) fn mapped_bytes(&self, file: &CachedFile) -> u64 {
        let Some(id) = file.id() else { return 0 };
        self.components.store.dmt.extents(id).iter().map(|extent| extent.range.len()).sum()
    }

    pub(crate) fn missing_bytes(&self, file: &CachedFile) -> u64 {
        file.size().saturating_sub(self.mapped_bytes(file))
    }

    pub(crate) fn warm_one(
        &self,
        file: &Arc<CachedFile>,
        name: &Path,
        dry_run: bool,
        moving: &mut BulkOperation<'_>,
    ) -> Result<ControlFlow<()>> {
        let missing = self.missing_bytes(file);
        if missing == 0 {
            return Ok(moving.already());
        }
        if dry_run {
            return Ok(moving.file(name, missing));
        }
        if file.excluded.load(std::sync::atomic::Ordering::Relaxed) {
            moving.skip(name, "an exclude glob keeps it off the cache".to_owned(), missing);
            return Ok(ControlFlow::Continue(()));
        }
        let id = self.components.known.id_of(file)?;
        let placement = self.components.store.geometry.place(Layout::OneDh, 0);
        let mut start = 0;
        while start < file.size() {
            let range = ByteRange::at(start, WARM_PIECE_BYTES.min(file.size() - start));
            let wanted = Wanted { file: id, range, placement };
            match self.components.fetcher.fetch(&wanted, true) {
                Ok(Fetched::Bytes(bytes)) => {
                    if moving.shared(name).advance(bytes).is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
                Ok(Fetched::Gone) => break,
                Ok(Fetched::NoRoom) => {
                    let left = self.missing_bytes(file);
                    moving.skip(name, "the cache has no room for the rest".to_owned(), left);
                    return Ok(ControlFlow::Continue(()));
                }
                Err(error) => {
                    moving.skip(name, error.to_string(), self.missing_bytes(file));
                    return Ok(ControlFlow::Continue(()));
                }
            }
            start = range.end;
        }
        let why = "programs changed it meanwhile; warm it again";
        Ok(moving.end_file(name, self.missing_bytes(file), why))
    }

    pub(crate) fn evict_one(
        &self,
        file: &Arc<CachedFile>,
        name: &Path,
        dry_run: bool,
        moving: &mut BulkOperation<'_>,
    ) -> Result<ControlFlow<()>> {
        let Some(id) = file.id() else { return Ok(ControlFlow::Continue(())) };
        let mapped = self.mapped_bytes(file);
        if dry_run || mapped == 0 {
            return Ok(moving.file(name, mapped));
        }
        if let Err(error) = self.components.sweeper.flush_whole(file, &|_| true) {
            moving.skip(name, error.to_string(), mapped);
            return Ok(ControlFlow::Continue(()));
        }
        self.drop_clean(file, id)?;
        let left = self.mapped_bytes(file);
        if let Some(why) = self.components.repair.damage_left(id) {
            moving.skip(name, why, left);
            return Ok(ControlFlow::Continue(()));
        }
        let flow = moving.shared(name).advance(mapped.saturating_sub(left));
        let why = "programs used it meanwhile; evict it again";
        if moving.end_file(name, left, why).is_break() {
            Ok(ControlFlow::Break(()))
        } else {
            Ok(flow)
        }
    }

    /// Unmaps every clean extent of a file, each while nobody uses it.
    fn drop_clean(&self, file: &CachedFile, id: halocline_meta::FileId) -> Result<()> {
        // Dirty records of flushed extents may still be the durable ones (I4): a barrier first.
        self.components.barriers.barrier()?;
        for extent in self.components.store.dmt.extents(id) {
            let _guard = file.range.exclusive(extent.range);
            let mut segments = Vec::new();
            self.components.store.dmt.lookup(id, extent.range, &mut segments);
            for segment in segments {
                if segment.extent.is_some_and(|now| !now.dirty) {
                    self.components.mappings.drop_range(id, segment.range)?;
                    self.components.counters.evicted(segment.range.len());
                }
            }
        }
        Ok(())
    }

    /// Takes what a new exclude glob names off the cache.
    pub(crate) fn evict_excluded(&self) -> Result<()> {
        for record in self.components.store.dmt.files() {
            if !self.components.known.globs.read().excludes(&record.path) {
                continue;
            }
            match self.components.known.file_by_id(record.id) {
                Ok(Some(file)) => {
                    self.components.sweeper.flush_whole(&file, &|_| true)?;
                    self.drop_clean(&file, record.id)?;
                    self.components.known.forget_idle(&file);
                }
                Ok(None) => {}
                Err(error) => self.components.notes.note(format!(
                    "{} is excluded and stays on the cache: {error}",
                    record.path.display()
                )),
            }
        }
        self.components.barriers.barrier()?;
        self.components.discards.discard_queued().map(drop)
    }

    /// A pin that is larger than the cache could never be kept (USERS 8).
    pub(crate) fn check_pin(&self, glob: &str) -> Result<()> {
        let mut globs = crate::globs::Globs::default();
        globs.add_pin(glob)?;
        let limit = self.components.store.dmt.limit();
        let files = Walk::below(&self.components, &[PathBuf::new()])?;
        let pinned = files.found.iter().filter(|(path, _)| globs.pins(path));
        let bytes: u64 = pinned.map(|(_, file)| file.size()).sum();
        if bytes > limit {
            return Err(Error::invalid(
                format!("the files that {glob:?} pins have {bytes} bytes, the cache {limit}"),
                "pin fewer files or mount with a larger --size",
            ));
        }
        Ok(())
    }
}
