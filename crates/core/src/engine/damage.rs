//! Bytes on the cache that are not what was written there, found by their checksums.
//!
//! What must hold here:
//! - clean ones are read from the origin instead, and their mapping goes (I1);
//! - dirty ones stay where they are: no program gets them, no flush writes them over the origin
//!   (I3), until a program writes over them or `halocline fsck --repair` saves what is there.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use halocline_model::layout::Placement;
use halocline_model::request::ByteRange;
use parking_lot::Mutex;

use super::handle::Handle;
use super::parts::Parts;
use crate::counted::counted;
use crate::error::{Error, Result};
use crate::extent::file::{CachedFile, WHOLE};
use crate::meta::{FileId, Segment};

/// Ranges of a file that one sentence names.
const NAMED: usize = 8;

/// What is known to be damaged.
#[derive(Debug, Default)]
pub(crate) struct Damage {
    /// Dirty bytes, as ends by starts.
    dirty: Mutex<BTreeMap<FileId, BTreeMap<u64, u64>>>,
    /// How many bytes that are: most caches have none, and nobody takes the lock then.
    dirty_bytes: AtomicU64,
    /// Bytes that a reader found, to be looked at once nobody uses them.
    found: Mutex<Vec<(FileId, ByteRange)>>,
    found_some: AtomicBool,
}

impl Damage {
    /// Damaged bytes that only the cache had.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes.load(Ordering::Acquire)
    }

    /// The damaged dirty bytes of `range`, in order.
    pub(crate) fn of(&self, id: FileId, range: ByteRange) -> Vec<ByteRange> {
        if self.dirty_bytes() == 0 {
            return Vec::new();
        }
        let dirty = self.dirty.lock();
        let known = dirty.get(&id).into_iter().flatten();
        known.filter_map(|(&start, &end)| ByteRange::new(start, end).intersect(range)).collect()
    }

    /// Notes damaged dirty bytes; whether any of them were not known.
    fn add(&self, id: FileId, range: ByteRange) -> bool {
        let mut dirty = self.dirty.lock();
        let known = dirty.entry(id).or_default();
        let before: u64 = bytes_in(known, range);
        cut(known, range);
        let last = known.range(..range.start).next_back().filter(|&(_, &end)| end == range.start);
        let start = last.map_or(range.start, |(&start, _)| start);
        let end = known.remove(&range.end).unwrap_or(range.end);
        known.insert(start, end);
        self.dirty_bytes.fetch_add(range.len() - before, Ordering::AcqRel);
        before < range.len()
    }

    /// The bytes of `range` are other ones now, or none.
    pub(crate) fn heal(&self, id: FileId, range: ByteRange) {
        if self.dirty_bytes() == 0 {
            return;
        }
        let mut dirty = self.dirty.lock();
        let Some(known) = dirty.get_mut(&id) else { return };
        self.dirty_bytes.fetch_sub(bytes_in(known, range), Ordering::AcqRel);
        cut(known, range);
        if known.is_empty() {
            dirty.remove(&id);
        }
    }

    fn report(&self, id: FileId, ranges: &[ByteRange]) {
        self.found.lock().extend(ranges.iter().map(|range| (id, *range)));
        self.found_some.store(true, Ordering::Release);
    }

    fn take_reported(&self) -> Vec<(FileId, ByteRange)> {
        if !self.found_some.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut found = self.found.lock();
        self.found_some.store(false, Ordering::Release);
        std::mem::take(&mut *found)
    }
}

fn bytes_in(known: &BTreeMap<u64, u64>, range: ByteRange) -> u64 {
    let parts = known.range(..range.end).map(|(&start, &end)| ByteRange::new(start, end));
    parts.filter_map(|part| part.intersect(range)).map(ByteRange::len).sum()
}

/// Takes `range` out.
fn cut(known: &mut BTreeMap<u64, u64>, range: ByteRange) {
    let parts = known.range(..range.end).filter(|&(_, &end)| end > range.start);
    let parts: Vec<_> = parts.map(|(&start, &end)| ByteRange::new(start, end)).collect();
    for part in parts {
        known.remove(&part.start);
        if part.start < range.start {
            known.insert(part.start, range.start);
        }
        if range.end < part.end {
            known.insert(range.end, part.end);
        }
    }
}

/// Names ranges in a sentence.
pub(crate) fn named(ranges: &[ByteRange]) -> String {
    let mut text = String::new();
    for (at, range) in ranges.iter().take(NAMED).enumerate() {
        let comma = if at > 0 { ", " } else { "" };
        let _ = write!(text, "{comma}{} at {}", counted(range.len(), "byte"), range.start);
    }
    if ranges.len() > NAMED {
        let _ = write!(text, " and {} more", ranges.len() - NAMED);
    }
    text
}

impl Parts {
    /// Reads cached bytes for a program; what of them is damaged, as far as anybody looks.
    pub(crate) fn read_cache(
        &self,
        id: FileId,
        placement: Placement,
        offset: u64,
        into: &mut [u8],
    ) -> io::Result<Vec<ByteRange>> {
        if self.settings.config.verify_reads {
            return self.store.read_checked(id, placement, offset, into);
        }
        self.store.read(id, placement, offset, into).map(|()| Vec::new())
    }

    /// Whether all of a file's dirty bytes are damaged: there is nothing to flush.
    pub(crate) fn is_stuck(&self, id: FileId) -> bool {
        let damaged: u64 = self.damage.of(id, WHOLE).iter().map(|range| range.len()).sum();
        damaged > 0 && {
            let dirty = self.store.dmt.dirty(id, WHOLE, usize::MAX);
            dirty.iter().map(|extent| extent.range.len()).sum::<u64>() <= damaged
        }
    }

    /// Deals with what was read for a program from neighbouring `segments` of the cache into
    /// `buf`, which begins at file offset `start`: what of it is `damaged` comes from the origin,
    /// or is an error where only the cache had it. The caller holds the bytes shared.
    pub(crate) fn make_good(
        &self,
        handle: &Handle,
        id: FileId,
        segments: &[Segment],
        damaged: &[ByteRange],
        (start, buf): (u64, &mut [u8]),
    ) -> Result<()> {
        if damaged.is_empty() && self.damage.dirty_bytes() == 0 {
            return Ok(());
        }
        if !damaged.is_empty() {
            self.damage.report(id, damaged);
        }
        for segment in segments {
            let parts = || damaged.iter().filter_map(|range| range.intersect(segment.range));
            if !segment.extent.is_some_and(|extent| extent.dirty) {
                for part in parts() {
                    let at = |offset: u64| usize::try_from(offset - start).expect("in the buffer");
                    self.read_origin(handle, part, &mut buf[at(part.start)..at(part.end)])?;
                    self.counters.damaged_clean(part.len());
                }
                continue;
            }
            let lost: Vec<_> = parts().collect();
            self.found_damaged(&handle.file, id, &lost);
            if !self.damage.of(id, segment.range).is_empty() {
                return Err(Error::from(rustix::io::Errno::IO));
            }
        }
        Ok(())
    }

    /// Notes dirty bytes that are damaged, and says so once.
    pub(crate) fn found_damaged(&self, file: &CachedFile, id: FileId, damaged: &[ByteRange]) {
        let fresh: Vec<_> =
            damaged.iter().copied().filter(|range| self.damage.add(id, *range)).collect();
        if !fresh.is_empty() {
            let path = self.namespace.path_of(&file.node.read());
            self.notes.note(format!(
                "{}: {} on the cache are damaged, and only the cache had them: they are neither \
                 read nor flushed. Write the file anew, or unmount with --force and let \
                 `halocline fsck --repair` save what is there",
                path.display(),
                named(&fresh)
            ));
        }
    }

    /// Drops the mapping of clean bytes that a reader found damaged, and notes all of the dirty
    /// ones. Whoever reads what cannot be dropped finds the same again. The caller holds no lock
    /// of a file.
    pub(crate) fn drop_damaged(&self) {
        for (id, range) in self.damage.take_reported() {
            let Some(file) = self.files.by_id(id) else { continue };
            match self.drop_damaged_in(&file, id, range) {
                Ok(0) => {}
                Ok(bytes) => self.notes.note(format!(
                    "{}: {bytes} bytes at {} on the cache were damaged; they come from the origin \
                     again",
                    self.namespace.path_of(&file.node.read()).display(),
                    range.start
                )),
                Err(error) => self.cache_failed(&error),
            }
        }
    }

    /// The same for one range of a file; returns how many clean bytes went.
    fn drop_damaged_in(&self, file: &Arc<CachedFile>, id: FileId, range: ByteRange) -> Result<u64> {
        let _guard = file.range.exclusive(range);
        let (mut segments, mut bytes, mut buf) = (Vec::new(), 0, Vec::new());
        self.store.dmt.lookup(id, range, &mut segments);
        for Segment { range, extent } in segments {
            let Some(extent) = extent else { continue };
            buf.resize(usize::try_from(range.len()).expect("what one read found"), 0);
            let damaged = self.store.read_checked(id, extent.placement, range.start, &mut buf)?;
            let damaged: Vec<_> = damaged.iter().filter_map(|bad| bad.intersect(range)).collect();
            if extent.dirty {
                self.found_damaged(file, id, &damaged);
                continue;
            }
            for part in damaged {
                self.let_go(id, part)?;
                bytes += part.len();
            }
        }
        Ok(bytes)
    }

    /// Why some of a file stays dirty although it was flushed, if that is why.
    pub(crate) fn damage_left(&self, id: FileId) -> Option<String> {
        let damaged = self.damage.of(id, WHOLE);
        (!damaged.is_empty()).then(|| {
            format!(
                "{} on the cache are damaged, and only the cache had them; write the file anew, or \
                 unmount with --force and let `halocline fsck --repair` save what is there",
                named(&damaged)
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_over_is_damaged_no_more() {
        let damage = Damage::default();
        let (id, range) = (FileId(1), ByteRange::new);
        assert!(damage.add(id, range(0, 100)) && !damage.add(id, range(10, 20)));
        assert!(damage.add(id, range(90, 120)));
        assert_eq!(damage.dirty_bytes(), 120);
        damage.heal(id, range(40, 60));
        damage.heal(FileId(2), range(0, 10));
        assert_eq!(damage.dirty_bytes(), 100);
        assert_eq!(damage.of(id, range(0, 50)).iter().map(|part| part.len()).sum::<u64>(), 40);
        damage.heal(id, range(0, u64::MAX));
        assert_eq!((damage.dirty_bytes(), damage.of(id, range(0, 200))), (0, vec![]));
    }

    #[test]
    fn many_ranges_are_not_all_named() {
        let ranges: Vec<_> = (0..20).map(|at| ByteRange::at(at * 10, 1)).collect();
        assert!(named(&ranges).ends_with("1 byte at 70 and 12 more"));
    }
}
