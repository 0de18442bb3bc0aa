//! Flushing: dirty extents go home in large pieces, and only what is safely there becomes clean.
//!
//! One region at a time: hold `home` so that no program writes to the gaps, take a snapshot of the
//! dirty extents with their generations, and write the planned stretches. After some regions the
//! origin is synced, and what has not changed meanwhile is marked clean (I3). A writer never waits
//! for more than one region, and only if it writes to the origin's side of that very region.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use halocline_model::request::ByteRange;

use crate::engine::parts::{Parts, mtime_ns};
use crate::engine::rebuild::sieve::OriginCost;
use crate::engine::rebuild::{Swept, Which};
use crate::engine::{SetAttr, SetTime, Stat};
use crate::error::Result;
use crate::extent::file::{CachedFile, WHOLE};
use crate::meta::FileId;
use crate::namespace::Node;

/// Bytes of file that one region covers on each server of the origin.
pub(crate) const REGION_BYTES_PER_SERVER: u64 = 2 << 20;

/// Extents of a region looked at in one go; a denser region is flushed in several.
const EXTENTS_PER_REGION: usize = 4096;

/// What was written home and may be marked clean after the origin was synced.
#[derive(Debug, Default)]
pub(crate) struct Flushed {
    /// Extents with the generations that were written.
    pub(crate) extents: Vec<(ByteRange, u64)>,
    /// Dirty bytes written.
    pub(crate) bytes: u64,
    /// The file's failed syncs when the first of them was written.
    syncs_failed: u64,
}

impl Parts {
    /// Length in bytes of a region: a long sequential piece on each of the origin's servers.
    pub(crate) fn region_bytes(&self) -> u64 {
        REGION_BYTES_PER_SERVER * u64::from(self.origin.data.striping().servers())
    }

    /// Writes home the dirty extents that begin in `region`. What `all` gains may be marked clean
    /// after the origin was synced.
    pub(crate) fn flush_region(
        &self,
        file: &CachedFile,
        id: FileId,
        region: ByteRange,
        all: &mut Flushed,
    ) -> Result<()> {
        let mut from = region.start;
        while let Some(next) = self.flush_some(file, id, ByteRange::new(from, region.end), all)? {
            from = next;
        }
        Ok(())
    }

    /// Flushes at most [`EXTENTS_PER_REGION`] extents that begin in `region`; answers where the
    /// rest begins, if there is one.
    fn flush_some(
        &self,
        file: &CachedFile,
        id: FileId,
        region: ByteRange,
        all: &mut Flushed,
    ) -> Result<Option<u64>> {
        let mut dirty = self.store.dmt.dirty(id, region, EXTENTS_PER_REGION);
        let rest = (dirty.len() == EXTENTS_PER_REGION).then(|| dirty[dirty.len() - 1].range.end);
        dirty.retain(|extent| extent.range.start >= region.start);
        let (Some(first), Some(last)) = (dirty.first(), dirty.last()) else { return Ok(None) };
        let span = ByteRange::new(first.range.start, last.range.end);
        let mover = self.mover_of(file)?;
        self.hold_origin_time(file)?;
        let _home = file.home.exclusive(span);
        if all.extents.is_empty() {
            all.syncs_failed = file.syncs_failed.load(Ordering::Acquire);
        }
        if let Some(snapshot) = self.snapshot(file, id, &dirty)? {
            let origin = &self.settings.setting.origin;
            let cost = OriginCost::new(&origin.profile, self.origin.data.servers_below());
            let changing = self.own.changing(file, Some(&mover))?;
            if changing.foreign {
                // The sweep deals with that.
                return Ok(None);
            }
            // Stretches over gaps make blocks of the origin's holes: only where nobody else needs those.
            let bytes = snapshot.extents.iter().map(|(range, _)| range.len()).sum::<u64>();
            let gaps = self.take_gaps(&mover, span, bytes);
            let alone = |run: &ByteRange| cost.plan(std::slice::from_ref(run));
            mover.rewrite(snapshot.runs(), &|runs| match gaps {
                Some(_) => cost.plan(runs),
                None => runs.iter().flat_map(alone).collect(),
            })?;
            drop(gaps);
            all.bytes += bytes;
            all.extents.extend(snapshot.extents);
            drop(changing);
            self.own.look_again(file, Some(&mover))?;
            if self.set_apart(file, id, &snapshot.damaged)? {
                return Ok(Some(region.start));
            }
        }
        Ok(rest.filter(|&next| next < region.end))
    }

    /// Cuts what is damaged off the dirty extents that it is part of; whether there is now more
    /// to flush.
    fn set_apart(&self, file: &CachedFile, id: FileId, damaged: &[ByteRange]) -> Result<bool> {
        self.repair.found_damaged(file, id, damaged);
        let mut cut = false;
        for range in damaged {
            cut |= self.store.dmt.cut_dirty(id, *range)?;
        }
        Ok(cut)
    }

    /// After the origin has the bytes: makes them durable there, then clears `D_flag` of what did
    /// not change (I3). Returns the bytes that became clean.
    pub(crate) fn finish_flush(
        &self,
        file: &CachedFile,
        id: FileId,
        home: &Flushed,
    ) -> Result<u64> {
        if home.extents.is_empty() {
            return Ok(0);
        }
        let mover = self.mover_of(file)?;
        // A clean extent may be evicted, so the origin's copy must be durable before (I4).
        if let Err(error) = mover.sync(true) {
            file.syncs_failed.fetch_add(1, Ordering::AcqRel);
            *file.mover.lock() = None;
            return Err(error.into());
        }
        if file.syncs_failed.load(Ordering::Acquire) != home.syncs_failed {
            // Somebody else was told of a failure after we wrote: all is written again.
            return Ok(0);
        }
        let cleaned = self.store.dmt.mark_clean(id, &home.extents)?;
        self.counters.flushed(cleaned);
        // Only what a barrier has covered can be evicted, and programs may wait for that.
        if self.pressure.is_short_of_room() || self.room.is_wanted() {
            // A cache that cannot be synced delays room, not the flush; the rebuilder mends it.
            match self.store.barrier() {
                Ok(()) => self.room.was_made(),
                Err(error) => self.mappings.cache_failed(&error),
            }
        }
        Ok(cleaned)
    }

    /// Flushes the whole file now; returns the bytes flushed.
    pub(crate) fn flush_file(&self, file: &Arc<CachedFile>) -> Result<u64> {
        match file.id() {
            Some(id) => self.sweep(file, id, Which::All, &|_| true).map(Swept::bytes),
            None => Ok(0),
        }
    }

    /// Lets go of what a file without dirty bytes no longer needs. The caller holds no lock of the
    /// file's bytes.
    pub(crate) fn settle(&self, file: &Arc<CachedFile>, id: FileId) -> Result<()> {
        let is_dirty = || !self.store.dmt.dirty(id, WHOLE, 1).is_empty();
        if is_dirty() {
            return Ok(());
        }
        // Nobody writes meanwhile. While the file is open its close will settle it.
        let _still = match file.range.try_shared(WHOLE) {
            None if file.is_open() => return Ok(()),
            None => file.range.shared(WHOLE),
            Some(still) => still,
        };
        // It was removed meanwhile, or written.
        if self.store.dmt.file(id).is_none() || is_dirty() {
            return Ok(());
        }
        self.give_time_at_rest(file)?;
        self.own.rest(file)?;
        if !file.is_open() {
            *file.mover.lock() = None;
        }
        Ok(())
    }

    /// Before the first flush write: the origin's time is what programs see, not ours.
    pub(crate) fn hold_origin_time(&self, file: &CachedFile) -> Result<()> {
        while file.held_mtime_ns().is_none() {
            let node = file.node.read().clone();
            let before = mtime_ns(&self.namespace.stat(&node)?.raw);
            file.hold_mtime(before);
            // A write that went home meanwhile found nothing held, and may be younger.
            let now = mtime_ns(&self.namespace.stat(&node)?.raw);
            if now != before {
                file.let_mtime_go(Some(before));
            }
        }
        Ok(())
    }

    /// Gives the origin's file the modification time that was held back. The caller holds no lock
    /// of the file's bytes.
    pub(crate) fn give_time(&self, file: &CachedFile) -> Result<()> {
        // A write that is under way notes its time last.
        let _still = file.range.shared(WHOLE);
        self.give_time_at_rest(file)
    }

    fn give_time_at_rest(&self, file: &CachedFile) -> Result<()> {
        let _times = file.times.lock();
        if let Some(held) = file.held_mtime_ns() {
            let changing = self.own.changing(file, None)?;
            if changing.foreign {
                return Ok(());
            }
            let node = file.node.read().clone();
            let time = Some(SetTime::At(system_time_ns(held)));
            let given =
                self.namespace.set_attr(&node, &SetAttr { mtime: time, ..SetAttr::default() });
            match given {
                // Somebody else's file that we may write: it may be given the time that a write
                // would give it, and no other.
                Err(error) if error.errno() == libc::EPERM => {
                    let now = Some(SetTime::Now);
                    let now = SetAttr { atime: now, mtime: now, ..SetAttr::default() };
                    self.namespace.set_attr(&node, &now)?;
                }
                given => drop(given?),
            }
            file.let_mtime_go(Some(held));
        }
        Ok(())
    }

    /// Makes a program's `change` of the modification time. It is the file's time from then on: what
    /// a flush still writes must not show as a later one, so it is held like any other until then.
    pub(crate) fn take_time(
        &self,
        file: &CachedFile,
        node: &Node,
        change: &SetAttr,
    ) -> Result<Stat> {
        let _times = file.times.lock();
        let changing = self.own.changing(file, None)?;
        let stat = self.namespace.set_attr(node, change)?;
        drop(changing);
        if file.mover.lock().is_some() {
            file.choose_mtime(mtime_ns(&stat.raw));
        } else {
            file.let_mtime_go(None);
        }
        Ok(stat)
    }
}

/// The time `ns` nanoseconds after the epoch, or before it.
fn system_time_ns(ns: i64) -> SystemTime {
    let distance = Duration::from_nanos(ns.unsigned_abs());
    if ns < 0 { SystemTime::UNIX_EPOCH - distance } else { SystemTime::UNIX_EPOCH + distance }
}
