//! Handles damage on the cache where it is read, flushed and reported.

use std::io;
use std::sync::Arc;

use bon::Builder;
use halocline_model::layout::Placement;
use halocline_model::request::ByteRange;

use super::counters::Counters;
use super::damage::{Damage, named};
use super::mappings::Mappings;
use super::open_file::OpenFile;
use super::origin_access::OriginAccess;
use super::settings::Settings;
use super::status_notes::Notes;
use crate::extent::file::{CachedFile, WHOLE};
use crate::extent::store::ExtentStore;
use crate::extent::table::FileTable;
use halocline_meta::{FileId, Segment};
use halocline_os::error::{Error, Result};
use halocline_vfs::namespace::Namespace;

/// Reads the cache and repairs the damage found.
#[derive(Debug, Builder)]
pub(crate) struct Repair {
    store: Arc<ExtentStore>,
    files: Arc<FileTable>,
    damage: Arc<Damage>,
    mappings: Arc<Mappings>,
    origin: Arc<OriginAccess>,
    namespace: Arc<Namespace>,
    counters: Arc<Counters>,
    notes: Arc<Notes>,
    settings: Arc<Settings>,
}

impl Repair {
    /// Reads cached bytes for a program; returns the damaged ranges, as far as they were checked.
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
            let dirty = self.store.dmt.index().dirty(id, WHOLE, usize::MAX);
            dirty.iter().map(|extent| extent.range.len()).sum::<u64>() <= damaged
        }
    }

    /// Repairs what was read for a program from adjacent `segments` of the cache into `buf`, which begins at file
    /// offset `start`: bytes in `damaged` come from the origin, or are an error if only the cache had them. The caller
    /// holds the bytes shared.
    pub(crate) fn make_good(
        &self,
        handle: &OpenFile,
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
                    self.origin.read(
                        &handle.origin,
                        part,
                        &mut buf[at(part.start)..at(part.end)],
                    )?;
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

    /// Notes damaged dirty bytes, and reports them once.
    pub(crate) fn found_damaged(&self, file: &CachedFile, id: FileId, damaged: &[ByteRange]) {
        let fresh: Vec<_> =
            damaged.iter().copied().filter(|range| self.damage.add(id, *range)).collect();
        if !fresh.is_empty() {
            let path = self.namespace.path_of(&file.vnode.read());
            self.notes.note(format!(
                "{}: {} on the cache are damaged, and only the cache had them: they are neither \
                 read nor flushed. Write the file anew, or unmount with --force and let \
                 `halocline fsck --repair` save what is there",
                path.display(),
                named(&fresh)
            ));
        }
    }

    /// Drops the mapping of clean bytes that a reader found damaged, and notes all damaged dirty ones. A range that
    /// cannot be dropped is found again by its next reader. The caller holds no lock of a file.
    pub(crate) fn drop_damaged(&self) {
        for (id, range) in self.damage.take_reported() {
            let Some(file) = self.files.by_id(id) else { continue };
            match self.drop_damaged_in(&file, id, range) {
                Ok(0) => {}
                Ok(bytes) => self.notes.note(format!(
                    "{}: {bytes} bytes at {} on the cache were damaged; they come from the origin \
                     again",
                    self.namespace.path_of(&file.vnode.read()).display(),
                    range.start
                )),
                Err(error) => self.mappings.cache_failed(&error),
            }
        }
    }

    /// The same for one range of a file; returns how many clean bytes were dropped.
    fn drop_damaged_in(&self, file: &Arc<CachedFile>, id: FileId, range: ByteRange) -> Result<u64> {
        let _guard = file.range.exclusive(range);
        let (mut segments, mut bytes, mut buf) = (Vec::new(), 0, Vec::new());
        self.store.dmt.index().lookup(id, range, &mut segments);
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
                self.mappings.unmap(id, part)?;
                bytes += part.len();
            }
        }
        Ok(bytes)
    }

    /// Why some of a file stays dirty after a flush, if damage is the cause.
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
