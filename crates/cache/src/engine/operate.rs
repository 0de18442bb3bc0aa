//! What a person or a script may ask of a running engine: the control interface.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use halocline_model::request::ByteRange;

use super::ExtentEngine;
use crate::bulk::{BulkOperation, Walk};
use crate::counters::Distribution;
use crate::extent::file::{CachedFile, FileHint};
use crate::flush::FlushedWhole;
use crate::health::HealthState;
use crate::rebuild::Doing;
use halocline_api::control::{
    CachedFileInfo, CachedTree, Controlled, Explanation, ExtentInfo, FlushTotals, Health,
    LayoutBytes, MoveReport, ProcessHint, ProgressSink, Question, Rebuilder, Report, RequestTotals,
    RuleChange, Rules, Side, Skipped, Status, Totals,
};
use halocline_meta::{FileId, Segment};
use halocline_os::error::{Error, Result};

impl Controlled for ExtentEngine {
    fn status(&self) -> Status {
        let components = &self.components;
        let usage = components.store.dmt.usage();
        let now_ms = components.clock.now_ms();
        let oldest = components.store.dmt.dirty_files().iter().map(|(_, since)| *since).min();
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            origin: components.settings.origin_dir.clone(),
            cache: components.settings.cache_dir.clone(),
            // The mount tells.
            transport: String::new(),
            mode: components.settings.config.mode,
            policy: components.identifier.policy_name().to_owned(),
            eviction: components.settings.config.eviction.clone(),
            limit_bytes: components.store.dmt.limit(),
            used_bytes: usage.used,
            records_bytes: components.store.dmt.records_bytes(),
            mapped_bytes: usage.mapped,
            dirty_bytes: usage.dirty,
            oldest_dirty_age_ms: oldest.map(|since| now_ms.saturating_sub(since)),
            extents: usage.extents,
            dirty_extents: usage.dirty_extents,
            wanted_ranges: components.fetcher.wanted_ranges(),
            damaged_bytes: components.damage.dirty_bytes(),
            repaired_bytes: components.counters.snapshot().damaged_clean_bytes,
            warm_opens: components.warm.opens(),
            detached: None,
            health: self.health(),
            rebuilder: match self.rebuilder.doing() {
                Doing::Idle => Rebuilder::Idle,
                Doing::Waiting => Rebuilder::Waiting,
                Doing::Flushing => Rebuilder::Flushing,
                Doing::Fetching => Rebuilder::Fetching,
            },
            servers: self.meters.states(&self.components, &self.profiles),
            rules: self.rules(),
            report: self.report(),
            notes: components.notes.all(),
        }
    }

    fn report(&self) -> Report {
        let counts = self.components.counters.snapshot();
        let totals = |side: Distribution| RequestTotals {
            requests: side.requests,
            bytes: side.bytes,
            cache_requests: side.cache_requests,
            cache_bytes: side.cache_bytes,
        };
        let layouts = counts.layout_bytes;
        let mut report = Report {
            policy: self.components.identifier.policy_name().to_owned(),
            elapsed_s: self.components.clock.elapsed(self.components.begun).as_secs_f64(),
            exit_status: None,
            read: totals(counts.read),
            write: totals(counts.write),
            admitted: Totals { requests: counts.admitted_requests, bytes: counts.admitted_bytes },
            layouts: LayoutBytes { one_dh: layouts[0], one_dv: layouts[1], two_d: layouts[2] },
            ssd_bytes_written: counts.ssd_bytes_written,
            filled_bytes: self.components.fills.filled_bytes(),
            flush: FlushTotals {
                bytes: counts.flushed_bytes,
                seconds: std::time::Duration::from_micros(counts.flush_us).as_secs_f64(),
            },
            dirty_bytes_left: self.components.store.dmt.usage().dirty,
            // Who flushes last tells.
            left_files: 0,
            left: Vec::new(),
            conflicts: counts.conflicts,
            hit_ratio: 0.0,
            emulated: self.components.settings.config.emulate.as_ref().map(ToString::to_string),
            cluster: self.components.permits.coherence().and_then(|nodes| nodes.counts()),
        };
        report.hit_ratio = report.byte_hit_ratio();
        report
    }

    fn locate(&self, path: &Path, range: Option<ByteRange>) -> Result<Vec<ExtentInfo>> {
        let file = self.regular(path)?;
        let all = ByteRange::new(0, file.size());
        let id = file.id();
        self.components.known.forget_idle(&file);
        let Some(range) = range.map_or(Some(all), |range| range.intersect(all)) else {
            return Ok(Vec::new());
        };
        let mut segments = Vec::new();
        match id {
            Some(id) => self.components.store.dmt.lookup(id, range, &mut segments),
            None if range.is_empty() => {}
            None => segments.push(Segment { range, extent: None }),
        }
        Ok(segments.iter().map(extent_info).collect())
    }

    fn cached(&self, path: &Path) -> Result<CachedTree> {
        let dmt = &self.components.store.dmt;
        let mut tree = CachedTree::default();
        // From the records alone: no name is looked up, so a slow origin holds up nobody.
        for record in dmt.files().into_iter().filter(|record| record.path.starts_with(path)) {
            let extents = dmt.extents(record.id);
            let sum = |dirty: bool| -> u64 {
                let of = extents.iter().filter(|extent| extent.dirty || !dirty);
                of.map(|extent| extent.range.len()).sum()
            };
            let file = CachedFileInfo {
                path: record.path,
                cached_bytes: sum(false),
                dirty_bytes: sum(true),
                extents: extents.len() as u64,
            };
            if file.extents > 0 {
                tree.cached_bytes += file.cached_bytes;
                tree.dirty_bytes += file.dirty_bytes;
                tree.files.push(file);
            }
        }
        tree.files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(tree)
    }

    fn explain(&self, question: &Question) -> Result<Explanation> {
        let file = self.regular(&question.path)?;
        let range = ByteRange::at(question.offset, question.length);
        let terms = self.components.identifier.explain(
            Some(&file),
            question.direction,
            range,
            question.processes,
        );
        let mut segments = Vec::new();
        if let Some(id) = file.id() {
            self.components.store.dmt.lookup(id, range, &mut segments);
        }
        let cached_bytes =
            segments.iter().filter(|s| s.extent.is_some()).map(|s| s.range.len()).sum();
        let mut explanation = crate::explain::explanation(&terms, cached_bytes);
        explanation.note = self.components.notes.of_sides();
        explanation.nodes = self.components.permits.explain(&file, question.direction, range);
        let critical = terms.critical;
        if cached_bytes < range.len() {
            explanation.now = crate::explain::why_not_now(
                &self.components,
                &file,
                range,
                question.direction,
                critical,
            );
        }
        if file.excluded.load(std::sync::atomic::Ordering::Relaxed) {
            explanation.decision = Side::Origin;
            "an exclude glob keeps the file off the cache".clone_into(&mut explanation.reason);
        }
        self.components.known.forget_idle(&file);
        Ok(explanation)
    }

    fn flush(
        &self,
        path: Option<&Path>,
        dry_run: bool,
        progress: ProgressSink<'_>,
    ) -> Result<MoveReport> {
        let mut moving = BulkOperation::new(
            &self.components.clock,
            progress,
            self.components.store.dmt.usage().dirty,
        );
        let (dirty, obstacle) = self.dirty_files(path, dry_run);
        for id in dirty {
            let file = match self.components.known.file_by_id(id) {
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
            let name = self.components.namespace.path_of(&file.node.read());
            if path.is_some_and(|path| !name.starts_with(path)) {
                continue;
            }
            if self.flush_one(&file, &name, dry_run, &mut moving).is_break() {
                break;
            }
        }
        let settle = || self.components.barriers.settle_flush();
        if !dry_run && let Err(error) = self.components.defects.guard("barrier", settle) {
            // All that is told as flushed is on the origin, durably; the next mount flushes it once more.
            self.components
                .notes
                .note(format!("what was flushed is not recorded as that: {error}"));
        }
        Ok(self.with_conflicts(moving.report(0), dry_run))
    }

    fn take_conflicts(&self) -> Vec<Skipped> {
        self.components.external.take_conflicts()
    }

    fn warm(
        &self,
        paths: &[PathBuf],
        dry_run: bool,
        progress: ProgressSink<'_>,
    ) -> Result<MoveReport> {
        let files = Walk::below(&self.components, paths)?;
        let total = files.found.iter().map(|(_, file)| self.missing_bytes(file)).sum();
        let mut moving = BulkOperation::new(&self.components.clock, progress, total);
        for (name, file) in &files.found {
            if self.warm_one(file, name, dry_run, &mut moving)?.is_break() {
                break;
            }
        }
        Ok(moving.report_with(&files.skipped))
    }

    fn evict(&self, path: &Path, dry_run: bool, progress: ProgressSink<'_>) -> Result<MoveReport> {
        let files = Walk::below(&self.components, &[path.to_owned()])?;
        let total = files.found.iter().map(|(_, file)| self.mapped_bytes(file)).sum();
        let mut moving = BulkOperation::new(&self.components.clock, progress, total);
        for (name, file) in &files.found {
            if self.evict_one(file, name, dry_run, &mut moving)?.is_break() {
                break;
            }
        }
        if !dry_run {
            self.components.barriers.barrier()?;
            self.components.discards.discard_queued()?;
        }
        Ok(self.with_conflicts(moving.report_with(&files.skipped), dry_run))
    }

    fn change_rules(&self, change: &RuleChange) -> Result<Rules> {
        if let RuleChange::Pin(glob) = change {
            self.check_pin(glob)?;
        }
        let mut globs = self.components.known.globs.write();
        match change {
            RuleChange::Pin(glob) => globs.add_pin(glob)?,
            RuleChange::Unpin(glob) => globs.remove_pin(glob)?,
            RuleChange::Exclude(glob) => globs.add_exclude(glob)?,
            RuleChange::Include(glob) => globs.remove_exclude(glob)?,
        }
        globs.save(&self.components.settings.cache_dir)?;
        drop(globs);
        for file in self.components.files.all() {
            self.components.known.apply_globs(&file);
        }
        for record in self.components.store.dmt.files() {
            let pinned = self.components.known.globs.read().pins(&record.path);
            self.components.store.dmt.pin(record.id, pinned);
        }
        if matches!(change, RuleChange::Exclude(_)) {
            self.evict_excluded()?;
        }
        Ok(self.rules())
    }

    fn hint(&self, hint: &ProcessHint) -> Result<()> {
        if let Some(rank) = hint.rank {
            self.components.identifier.processes.set_rank(hint.pid, rank);
        }
        if let Some(policy) = &hint.policy {
            self.components.identifier.learn(policy)?;
        }
        if !hint.path.as_os_str().is_empty() {
            let wish = FileHint {
                processes: hint.size,
                cache: hint.cache,
                policy: hint.policy.clone(),
                direct: hint.direct,
            };
            self.components.opener.hints.note(&hint.path, wish);
        }
        Ok(())
    }
}

impl ExtentEngine {
    /// Whether both sides answer, and whether the cache may be given more.
    fn health(&self) -> Health {
        if let Some(reason) = self.sight.silent(&self.components) {
            return Health::Silent { reason };
        }
        let health = self.components.health.report();
        match (health.state, health.reason) {
            (HealthState::Healthy, _) => match self.components.store.dmt.usable() {
                Ok(()) => Health::Ok,
                // Nobody has needed it since it failed.
                Err(store) => Health::Degraded { reason: store.to_string() },
            },
            (HealthState::Full, reason) => Health::Full { reason: reason.unwrap_or_default() },
            (HealthState::Degraded, reason) => {
                Health::Degraded { reason: reason.unwrap_or_default() }
            }
        }
    }

    fn rules(&self) -> Rules {
        let globs = self.components.known.globs.read();
        Rules { pin: globs.pin_sources().to_vec(), exclude: globs.exclude_sources().to_vec() }
    }

    /// The regular file at a path below the origin.
    fn regular(&self, path: &Path) -> Result<Arc<CachedFile>> {
        let node = self.components.origin.node_at(path)?.ok_or_else(|| {
            Error::invalid(
                format!("{} is not on this mount", path.display()),
                "name a file below the mount point",
            )
        })?;
        let stat = self.components.namespace.stat(&node)?;
        if stat.kind() != libc::S_IFREG {
            return Err(Error::invalid(
                format!("{} is not a regular file", path.display()),
                "name a regular file",
            ));
        }
        self.components.known.file_of(&node)
    }

    /// The dirty files, those that are below a path at least. What of them was renamed or removed behind the
    /// mount is found or saved first, but for a dry run; the error says why some may not be.
    fn dirty_files(&self, below: Option<&Path>, dry_run: bool) -> (Vec<FileId>, Option<Error>) {
        let dmt = &self.components.store.dmt;
        let all = || dmt.dirty_files().into_iter().map(|(id, _)| id);
        let is_missing = |id: &FileId| {
            let meant = dmt
                .file(*id)
                .is_some_and(|record| below.is_none_or(|below| record.path.starts_with(below)));
            meant && matches!(self.components.known.file_by_id(*id), Ok(None))
        };
        let missing: Vec<_> = all().filter(|_| !dry_run).filter(is_missing).collect();
        let obstacle = if missing.is_empty() {
            None
        } else {
            self.components.recoverer.search_missing(&missing, &|| true).unwrap_or_else(Some)
        };
        (all().collect(), obstacle)
    }

    /// A dirty file that is not under its name, being renamed this instant or gone behind the mount, or that
    /// cannot be looked at.
    fn skip_missing(
        &self,
        id: FileId,
        below: Option<&Path>,
        why: Option<&Error>,
        moving: &mut BulkOperation<'_>,
    ) {
        let Some(record) = self.components.known.record_of_missing(id) else { return };
        if below.is_none_or(|below| record.path.starts_with(below)) {
            let unknown = || {
                "the origin has it under another name or not at all; the next mount searches it"
                    .to_owned()
            };
            let why = why.map_or_else(unknown, ToString::to_string);
            moving.skip(&record.path, why, self.components.store.dmt.dirty_bytes(id));
        }
    }

    fn with_conflicts(&self, mut report: MoveReport, dry_run: bool) -> MoveReport {
        if !dry_run {
            report.conflicts = self.components.external.take_conflicts();
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
        let dirty = || self.components.store.dmt.dirty_bytes(id);
        if dry_run {
            return moving.file(name, dirty());
        }
        let begun = self.components.clock.instant();
        let shared = moving.shared(name);
        let go_on = |bytes| shared.advance(bytes).is_continue();
        let flushed = self.components.sweeper.flush_whole(file, &go_on);
        self.components.counters.flush_time(self.components.clock.elapsed(begun));
        match flushed {
            Ok(FlushedWhole::Removed) => {
                self.skip_missing(id, None, None, moving);
                ControlFlow::Continue(())
            }
            Ok(flushed) => {
                if let Some(why) = self.components.repair.damage_left(id) {
                    moving.skip(name, why, dirty());
                    return ControlFlow::Continue(());
                }
                let (left, why) = match flushed {
                    FlushedWhole::Held(left) => {
                        (left, "requests of programs were in the way; flush it again")
                    }
                    FlushedWhole::Stopped(left) => (left, "the flush was stopped before"),
                    FlushedWhole::Home | FlushedWhole::Removed => (0, ""),
                };
                moving.end_file(name, left, why)
            }
            Err(error) => {
                moving.skip(name, error.to_string(), dirty());
                ControlFlow::Continue(())
            }
        }
    }
}

fn extent_info(segment: &Segment) -> ExtentInfo {
    let extent = segment.extent;
    ExtentInfo {
        offset: segment.range.start,
        length: segment.range.len(),
        side: if extent.is_some() { Side::Cache } else { Side::Origin },
        layout: extent.map(|extent| extent.placement.layout),
        group: extent.map_or(0, |extent| extent.placement.group),
        dirty: extent.is_some_and(|extent| extent.dirty),
        last_use_ms: extent.map(|extent| extent.last_use_ms),
        dirty_since_ms: extent.filter(|e| e.dirty).map(|extent| extent.dirty_since_ms),
    }
}
