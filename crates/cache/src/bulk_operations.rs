//! Bulk operations: whole files are flushed, warmed or evicted, as a person or a rule requests.

mod progress;
mod tree_walk;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bon::Builder;
use halocline_model::layout::Layout;
use halocline_model::request::ByteRange;

use self::progress::BulkOperation;
use self::tree_walk::Walk;
use crate::barriers::Barriers;
use crate::counters::Counters;
use crate::defects::Defects;
use crate::discard::Discards;
use crate::extent::file::CachedFile;
use crate::extent::store::ExtentStore;
use crate::external_changes::ExternalChanges;
use crate::fetch::{Fetched, Fetcher};
use crate::flush::{FlushedWhole, Sweeper};
use crate::known_files::KnownFiles;
use crate::mappings::Mappings;
use crate::origin_access::OriginAccess;
use crate::recover::Recoverer;
use crate::repair::Repair;
use crate::status_notes::Notes;
use halocline_api::control::{MoveReport, ProgressSink};
use halocline_api::globs::Globs;
use halocline_meta::{CriticalRange, FileId};
use halocline_os::clock::Clock;
use halocline_os::error::{Error, Result};
use halocline_vfs::namespace::Namespace;

/// Bytes that `warm` fetches in one piece.
const WARM_PIECE_BYTES: u64 = 4 << 20;
/// Why the rest of a file does not come.
const NO_ROOM: &str = "the cache has no room for the rest: mount with more (--size), or make some with `halocline evict`";

/// Flushes, warms and evicts whole files.
#[derive(Debug, Builder)]
pub(crate) struct BulkOperations {
    namespace: Arc<Namespace>,
    origin: Arc<OriginAccess>,
    store: Arc<ExtentStore>,
    counters: Arc<Counters>,
    notes: Arc<Notes>,
    defects: Arc<Defects>,
    clock: Clock,
    mappings: Arc<Mappings>,
    external: Arc<ExternalChanges>,
    repair: Arc<Repair>,
    known: Arc<KnownFiles>,
    sweeper: Arc<Sweeper>,
    discards: Arc<Discards>,
    barriers: Arc<Barriers>,
    fetcher: Arc<Fetcher>,
    recoverer: Arc<Recoverer>,
}

impl BulkOperations {
    /// Flushes dirty files: those at or below `path`, or all.
    pub(crate) fn flush(
        &self,
        path: Option<&Path>,
        dry_run: bool,
        progress: ProgressSink<'_>,
    ) -> MoveReport {
        let mut moving =
            BulkOperation::new(&self.clock, progress, self.store.dmt.index().usage().dirty);
        let (dirty, obstacle) = self.dirty_files(path, dry_run);
        for id in dirty {
            let file = match self.known.file_by_id(id) {
                Ok(Some(file)) => file,
                Ok(None) => {
                    self.skip_missing(id, path, obstacle.as_ref(), &mut moving);
                    continue;
                }
                Err(error) => {
                    self.skip_missing(id, path, Some(&error), &mut moving);
                    continue;
                }
            };
            let name = self.namespace.path_of(&file.vnode.read());
            if path.is_some_and(|path| !name.starts_with(path)) {
                continue;
            }
            if self.flush_one(&file, &name, dry_run, &mut moving).is_break() {
                break;
            }
        }
        let settle = || self.barriers.settle_flush();
        if !dry_run && let Err(error) = self.defects.guard("barrier", settle) {
            // All bytes reported as flushed are durable on the origin; the next mount flushes them once more.
            self.notes.note(format!("what was flushed is not recorded as that: {error}"));
        }
        self.with_conflicts(moving.report(0), dry_run)
    }

    /// Fetches files below `paths` to the cache, as far as there is room.
    pub(crate) fn warm(
        &self,
        paths: &[PathBuf],
        dry_run: bool,
        progress: ProgressSink<'_>,
    ) -> Result<MoveReport> {
        let files = self.walk(paths)?;
        let total = files.found.iter().map(|(_, file)| self.missing_bytes(file)).sum();
        let mut moving = BulkOperation::new(&self.clock, progress, total);
        for (name, file) in &files.found {
            if self.warm_one(file, name, dry_run, &mut moving)?.is_break() {
                break;
            }
        }
        Ok(moving.report_with(&files.skipped))
    }

    /// Flushes the files below `path` and evicts them.
    pub(crate) fn evict(
        &self,
        path: &Path,
        dry_run: bool,
        progress: ProgressSink<'_>,
    ) -> Result<MoveReport> {
        let files = self.walk(&[path.to_owned()])?;
        let total = files.found.iter().map(|(_, file)| self.mapped_bytes(file)).sum();
        let mut moving = BulkOperation::new(&self.clock, progress, total);
        for (name, file) in &files.found {
            if self.evict_one(file, name, dry_run, &mut moving)?.is_break() {
                break;
            }
        }
        if !dry_run {
            self.barriers.barrier()?;
            self.discards.discard_queued()?;
        }
        Ok(self.with_conflicts(moving.report_with(&files.skipped), dry_run))
    }

    /// Evicts the files that match a new exclude glob.
    pub(crate) fn evict_excluded(&self) -> Result<()> {
        for record in self.store.dmt.files().all() {
            if !self.known.globs.read().excludes(&record.path) {
                continue;
            }
            match self.known.file_by_id(record.id) {
                Ok(Some(file)) => {
                    self.sweeper.flush_whole(&file, &|_| true)?;
                    self.drop_clean(&file, record.id)?;
                    self.known.forget_idle(&file);
                }
                Ok(None) => {}
                Err(error) => self.notes.note(format!(
                    "{} is excluded and stays on the cache: {error}",
                    record.path.display()
                )),
            }
        }
        self.barriers.barrier()?;
        self.discards.discard_queued().map(drop)
    }

    /// Refuses a pin that is larger than the cache, because it could never be kept.
    pub(crate) fn check_pin(&self, glob: &str) -> Result<()> {
        let mut globs = Globs::default();
        globs.add_pin(glob)?;
        let limit = self.store.dmt.space().limit();
        let files = self.walk(&[PathBuf::new()])?;
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

    fn walk(&self, paths: &[PathBuf]) -> Result<Walk<'_>> {
        Walk::below(&self.origin, &self.namespace, &self.known, paths)
    }

    /// The dirty files, or only those below a path. Unless this is a dry run, files that were renamed or removed behind
    /// the mount are found or saved first; the error says why some may not be.
    fn dirty_files(&self, below: Option<&Path>, dry_run: bool) -> (Vec<FileId>, Option<Error>) {
        let dmt = &self.store.dmt;
        let all = || dmt.index().dirty_files().into_iter().map(|(id, _)| id);
        let is_missing = |id: &FileId| {
            let meant = dmt
                .files()
                .record(*id)
                .is_some_and(|record| below.is_none_or(|below| record.path.starts_with(below)));
            meant && matches!(self.known.file_by_id(*id), Ok(None))
        };
        let missing: Vec<_> = all().filter(|_| !dry_run).filter(is_missing).collect();
        let obstacle = if missing.is_empty() {
            None
        } else {
            self.recoverer.search_missing(&missing, &|| true).unwrap_or_else(Some)
        };
        (all().collect(), obstacle)
    }

    /// Skips a dirty file that is not under its name (being renamed right now, or gone behind the mount), or that
    /// cannot be examined.
    fn skip_missing(
        &self,
        id: FileId,
        below: Option<&Path>,
        why: Option<&Error>,
        moving: &mut BulkOperation<'_>,
    ) {
        let Some(record) = self.known.record_of_missing(id) else { return };
        if below.is_none_or(|below| record.path.starts_with(below)) {
            let unknown = || {
                "the origin has it under another name or not at all; the next mount searches it"
                    .to_owned()
            };
            let why = why.map_or_else(unknown, ToString::to_string);
            moving.skip(&record.path, why, self.store.dmt.index().dirty_bytes(id));
        }
    }

    fn with_conflicts(&self, mut report: MoveReport, dry_run: bool) -> MoveReport {
        if !dry_run {
            report.conflicts = self.external.take_conflicts();
        }
        report
    }

    fn flush_one(
        &self,
        file: &Arc<CachedFile>,
        name: &Path,
        dry_run: bool,
        moving: &mut BulkOperation<'_>,
    ) -> ControlFlow<()> {
        let Some(id) = file.id() else { return ControlFlow::Continue(()) };
        let dirty = || self.store.dmt.index().dirty_bytes(id);
        if dry_run {
            return moving.file(name, dirty());
        }
        let begun = self.clock.instant();
        let shared = moving.shared(name);
        let go_on = |bytes| shared.advance(bytes).is_continue();
        let flushed = self.sweeper.flush_whole(file, &go_on);
        self.counters.flush_time(self.clock.elapsed(begun));
        match flushed {
            Ok(FlushedWhole::Removed) => {
                self.skip_missing(id, None, None, moving);
                ControlFlow::Continue(())
            }
            Ok(flushed) => {
                if let Some(why) = self.repair.damage_left(id) {
                    moving.skip(name, why, dirty());
                    return ControlFlow::Continue(());
                }
                let (left, why) = match flushed {
                    FlushedWhole::Busy(left) => {
                        (left, "requests of programs were in the way; flush it again")
                    }
                    FlushedWhole::Stopped(left) => (left, "the flush was stopped before"),
                    FlushedWhole::Complete | FlushedWhole::Removed => (0, ""),
                };
                moving.end_file(name, left, why)
            }
            Err(error) => {
                moving.skip(name, error.to_string(), dirty());
                ControlFlow::Continue(())
            }
        }
    }

    fn mapped_bytes(&self, file: &CachedFile) -> u64 {
        let Some(id) = file.id() else { return 0 };
        self.store.dmt.index().extents(id).iter().map(|extent| extent.range.len()).sum()
    }

    fn missing_bytes(&self, file: &CachedFile) -> u64 {
        file.size().saturating_sub(self.mapped_bytes(file))
    }

    fn warm_one(
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
        if file.excluded.load(Ordering::Relaxed) {
            moving.skip(name, "an exclude glob keeps it off the cache".to_owned(), missing);
            return Ok(ControlFlow::Continue(()));
        }
        let id = self.known.id_of(file)?;
        let placement = self.store.geometry.place(Layout::OneDh, 0);
        let mut start = 0;
        while start < file.size() {
            let range = ByteRange::at(start, WARM_PIECE_BYTES.min(file.size() - start));
            let wanted = CriticalRange { file: id, range, placement };
            match self.fetcher.fetch(&wanted, true) {
                Ok(Fetched::Bytes(bytes)) => {
                    if moving.shared(name).advance(bytes).is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
                Ok(Fetched::Gone) => break,
                Ok(Fetched::NoRoom) => {
                    let left = self.missing_bytes(file);
                    moving.skip(name, NO_ROOM.to_owned(), left);
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

    fn evict_one(
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
        if let Err(error) = self.sweeper.flush_whole(file, &|_| true) {
            moving.skip(name, error.to_string(), mapped);
            return Ok(ControlFlow::Continue(()));
        }
        self.drop_clean(file, id)?;
        let left = self.mapped_bytes(file);
        if let Some(why) = self.repair.damage_left(id) {
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

    /// Unmaps every clean extent of a file, each while no request uses it.
    fn drop_clean(&self, file: &CachedFile, id: FileId) -> Result<()> {
        // Dirty records of flushed extents may still be the durable ones (I4): a barrier first.
        self.barriers.barrier()?;
        for extent in self.store.dmt.index().extents(id) {
            let _guard = file.range.exclusive(extent.range);
            let mut segments = Vec::new();
            self.store.dmt.index().lookup(id, extent.range, &mut segments);
            for segment in segments {
                if segment.extent.is_some_and(|now| !now.dirty) {
                    self.mappings.drop_range(id, segment.range)?;
                    self.counters.evicted(segment.range.len());
                }
            }
        }
        Ok(())
    }
}
