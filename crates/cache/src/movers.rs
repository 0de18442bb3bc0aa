//! Moving whole files on request: warm, evict, and the progress they and flush report.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use halocline_model::layout::Layout;
use halocline_model::request::ByteRange;
use parking_lot::Mutex;

use super::extents::ExtentEngine;
use super::fetch::Fetched;
use super::parts::Parts;
use super::reach::says_not_there;
use crate::extent::file::CachedFile;
use halocline_api::control::{MoveReport, Progress, ProgressSink, Skipped};
use halocline_meta::Wanted;
use halocline_os::clock::Clock;
use halocline_os::error::{Error, Result};
use halocline_vfs::DirEntry;
use halocline_vfs::namespace::Node;

/// Bytes that `warm` fetches in one piece.
const WARM_PIECE_BYTES: u64 = 4 << 20;

/// A move under way: its progress and its report.
pub(super) struct Moving<'a> {
    sink: Mutex<ProgressSink<'a>>,
    done_bytes: Mutex<u64>,
    total_bytes: u64,
    clock: Clock,
    begun: Instant,
    report: MoveReport,
}

/// Progress of one file, for several threads.
pub(super) struct FileProgress<'m, 'a> {
    moving: &'m Moving<'a>,
    path: PathBuf,
}

impl<'a> Moving<'a> {
    pub(super) fn new(clock: &Clock, sink: ProgressSink<'a>, total_bytes: u64) -> Self {
        Self {
            sink: Mutex::new(sink),
            done_bytes: Mutex::new(0),
            total_bytes,
            clock: clock.clone(),
            begun: clock.instant(),
            report: MoveReport::default(),
        }
    }

    /// Counts a file that a dry run would have moved.
    pub(super) fn file(&mut self, path: &Path, bytes: u64) -> ControlFlow<()> {
        let flow = self.shared(path).advance(bytes);
        self.report.files += u64::from(bytes > 0);
        flow
    }

    /// Progress of one file.
    pub(super) fn shared(&self, path: &Path) -> FileProgress<'_, 'a> {
        FileProgress { moving: self, path: path.to_owned() }
    }

    /// A file had nothing to move.
    pub(super) fn already(&mut self) -> ControlFlow<()> {
        self.report.already_files += 1;
        ControlFlow::Continue(())
    }

    /// A file was moved, `left` bytes of it were not, if any because of `why`.
    pub(super) fn end_file(&mut self, path: &Path, left: u64, why: &str) -> ControlFlow<()> {
        self.report.files += 1;
        if left > 0 {
            self.skip(path, why.to_owned(), left);
        }
        ControlFlow::Continue(())
    }

    /// A file was not moved.
    pub(super) fn skip(&mut self, path: &Path, reason: String, left: u64) {
        self.report.left_bytes += left;
        self.report.skipped.push(Skipped { path: path.to_owned(), reason });
    }

    /// What was done, and what beside the files that were moved could not be.
    pub(super) fn report_with(mut self, skipped: &[Skipped]) -> MoveReport {
        self.report.skipped.extend_from_slice(skipped);
        self.report(0)
    }

    /// What was done; `left` bytes more were not.
    pub(super) fn report(mut self, left: u64) -> MoveReport {
        self.report.bytes = *self.done_bytes.lock();
        self.report.seconds = self.clock.elapsed(self.begun).as_secs_f64();
        self.report.left_bytes += left;
        self.report
    }
}

impl FileProgress<'_, '_> {
    /// `bytes` more were moved; `Break` asks for a stop.
    pub(super) fn advance(&self, bytes: u64) -> ControlFlow<()> {
        let mut done = self.moving.done_bytes.lock();
        *done += bytes;
        let progress = Progress {
            done_bytes: *done,
            total_bytes: self.moving.total_bytes.max(*done),
            path: self.path.clone(),
        };
        (self.moving.sink.lock())(progress)
    }
}

/// Regular files below given paths. Those that nobody uses are forgotten again when it is dropped.
pub(super) struct Walk<'a> {
    parts: &'a Parts,
    pub(super) found: Vec<(PathBuf, Arc<CachedFile>)>,
    /// What could not be looked at.
    pub(super) skipped: Vec<Skipped>,
}

impl<'a> Walk<'a> {
    /// Every regular file that is one of `paths` or below one.
    pub(super) fn below(parts: &'a Parts, paths: &[PathBuf]) -> Result<Self> {
        let mut walk = Self { parts, found: Vec::new(), skipped: Vec::new() };
        for path in paths {
            let node = parts.origin.node_at(path)?.ok_or_else(|| {
                Error::invalid(
                    format!("{} is not on this mount", path.display()),
                    "name files or directories below the mount point",
                )
            })?;
            walk.visit(&node, path.clone());
        }
        Ok(walk)
    }

    /// Trees may be of any depth: nothing recurs. What goes away meanwhile was never there.
    fn visit(&mut self, node: &Node, path: PathBuf) {
        let mut left = vec![(node.clone(), path)];
        while let Some((node, path)) = left.pop() {
            match self.step(&node, &path, &mut left) {
                Err(error) if !says_not_there(&error) => {
                    self.skipped.push(Skipped { path, reason: error.to_string() });
                }
                _ => {}
            }
        }
    }

    fn step(&mut self, node: &Node, path: &Path, left: &mut Vec<(Node, PathBuf)>) -> Result<()> {
        let parts = self.parts;
        match parts.namespace.stat(node)?.kind() {
            libc::S_IFREG => self.found.push((path.to_owned(), parts.known.file_of(node)?)),
            libc::S_IFDIR => {
                for DirEntry { name, .. } in parts.namespace.entries(node)?.into_iter().rev() {
                    match parts.namespace.lookup(node, &name) {
                        Ok((child, _)) => left.push((child, path.join(&name))),
                        Err(error) if says_not_there(&error) => {}
                        Err(error) => {
                            let (path, reason) = (path.join(&name), error.to_string());
                            self.skipped.push(Skipped { path, reason });
                        }
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl Drop for Walk<'_> {
    fn drop(&mut self) {
        for (_, file) in &self.found {
            self.parts.known.forget_idle(file);
        }
    }
}

impl ExtentEngine {
    pub(super) fn mapped_bytes(&self, file: &CachedFile) -> u64 {
        let Some(id) = file.id() else { return 0 };
        self.parts.store.dmt.extents(id).iter().map(|extent| extent.range.len()).sum()
    }

    pub(super) fn missing_bytes(&self, file: &CachedFile) -> u64 {
        file.size().saturating_sub(self.mapped_bytes(file))
    }

    pub(super) fn warm_one(
        &self,
        file: &Arc<CachedFile>,
        name: &Path,
        dry_run: bool,
        moving: &mut Moving<'_>,
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
        let id = self.parts.known.id_of(file)?;
        let placement = self.parts.store.geometry.place(Layout::OneDh, 0);
        let mut start = 0;
        while start < file.size() {
            let range = ByteRange::at(start, WARM_PIECE_BYTES.min(file.size() - start));
            let wanted = Wanted { file: id, range, placement };
            match self.parts.fetcher.fetch(&wanted, true) {
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

    pub(super) fn evict_one(
        &self,
        file: &Arc<CachedFile>,
        name: &Path,
        dry_run: bool,
        moving: &mut Moving<'_>,
    ) -> Result<ControlFlow<()>> {
        let Some(id) = file.id() else { return Ok(ControlFlow::Continue(())) };
        let mapped = self.mapped_bytes(file);
        if dry_run || mapped == 0 {
            return Ok(moving.file(name, mapped));
        }
        if let Err(error) = self.parts.sweeper.flush_whole(file, &|_| true) {
            moving.skip(name, error.to_string(), mapped);
            return Ok(ControlFlow::Continue(()));
        }
        self.drop_clean(file, id)?;
        let left = self.mapped_bytes(file);
        if let Some(why) = self.parts.repair.damage_left(id) {
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
        self.parts.barriers.barrier()?;
        for extent in self.parts.store.dmt.extents(id) {
            let _guard = file.range.exclusive(extent.range);
            let mut segments = Vec::new();
            self.parts.store.dmt.lookup(id, extent.range, &mut segments);
            for segment in segments {
                if segment.extent.is_some_and(|now| !now.dirty) {
                    self.parts.mappings.drop_range(id, segment.range)?;
                    self.parts.counters.evicted(segment.range.len());
                }
            }
        }
        Ok(())
    }

    /// Takes what a new exclude glob names off the cache.
    pub(super) fn evict_excluded(&self) -> Result<()> {
        for record in self.parts.store.dmt.files() {
            if !self.parts.known.globs.read().excludes(&record.path) {
                continue;
            }
            match self.parts.known.file_by_id(record.id) {
                Ok(Some(file)) => {
                    self.parts.sweeper.flush_whole(&file, &|_| true)?;
                    self.drop_clean(&file, record.id)?;
                    self.parts.known.forget_idle(&file);
                }
                Ok(None) => {}
                Err(error) => self.parts.notes.note(format!(
                    "{} is excluded and stays on the cache: {error}",
                    record.path.display()
                )),
            }
        }
        self.parts.barriers.barrier()?;
        self.parts.discards.discard_queued().map(drop)
    }

    /// A pin that is larger than the cache could never be kept (USERS 8).
    pub(super) fn check_pin(&self, glob: &str) -> Result<()> {
        let mut globs = super::globs::Globs::default();
        globs.add_pin(glob)?;
        let limit = self.parts.store.dmt.limit();
        let files = Walk::below(&self.parts, &[PathBuf::new()])?;
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
