//! The data mapping table and the cache objects, kept consistent.
//!
//! What must hold here:
//! - data is on the cache before its mapping is published, and a clean extent is marked dirty
//!   before its data changes (I2, I4);
//! - blocks are reserved before they are written (I5) and freed only under an exclusive range
//!   lock, after the mapping is gone (I2);
//! - a barrier syncs data first, then records.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use halocline_model::layout::{CacheGeometry, Placement};
use halocline_model::request::ByteRange;
use parking_lot::Mutex;

use crate::extent::table::FileTable;
use halocline_meta::table::ExtentTable;
use halocline_meta::{Discard, FileId};
use halocline_os::error::Result;
use halocline_storage::volume::objects::CacheObjects;

/// Evictions free at least this much at once, so that on a full cache only few writes pay for one; but no more than
/// this share of the cache, because evicted bytes may be wanted again.
const EVICT_BATCH_BYTES: u64 = 4 << 20;
const EVICT_BATCH_SHARE: u64 = 256;

/// The cache side of the extent engine.
#[derive(Debug)]
pub(crate) struct ExtentStore {
    /// Maps bytes to their placements.
    pub(crate) dmt: ExtentTable,
    /// The cached bytes.
    pub(crate) objects: CacheObjects,
    /// Servers, stripe and groups of the cache volume.
    pub(crate) geometry: CacheGeometry,
    /// Files that may have nothing cached any longer, and files that were forgotten.
    emptied: Mutex<BTreeSet<FileId>>,
    /// Held while a file that is not open is looked up and forgotten.
    pub(crate) forgetting: Mutex<()>,
    barrier: Mutex<()>,
    barriers_begun: AtomicU64,
    barriers_done: AtomicU64,
}

impl ExtentStore {
    /// A store over an opened table and volume.
    pub(crate) fn new(dmt: ExtentTable, objects: CacheObjects, geometry: CacheGeometry) -> Self {
        Self {
            dmt,
            objects,
            geometry,
            emptied: Mutex::default(),
            forgetting: Mutex::default(),
            barrier: Mutex::default(),
            barriers_begun: AtomicU64::new(0),
            barriers_done: AtomicU64::new(0),
        }
    }

    /// Reads `buf` at `offset` of a file's object. The range must be mapped there.
    pub(crate) fn read(
        &self,
        file: FileId,
        placement: Placement,
        offset: u64,
        buf: &mut [u8],
    ) -> io::Result<()> {
        let got = self.objects.open(file.0, placement)?.read_at(offset, buf)?;
        if got < buf.len() {
            // Every mapped byte was written, so an object that ends before one has lost data.
            let what = "its object on the cache is missing or too short: `halocline fsck` tells what is lost, with \
                        --repair it gives that up (umount --force first)";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
        }
        Ok(())
    }

    /// The same; returns the parts of `buf` that differ from what was written there. The caller holds the bytes at
    /// least shared.
    pub(crate) fn read_checked(
        &self,
        file: FileId,
        placement: Placement,
        offset: u64,
        buf: &mut [u8],
    ) -> io::Result<Vec<ByteRange>> {
        self.read(file, placement, offset, buf)?;
        let checksums = self.dmt.checksums();
        let mut read =
            |at, rest: &mut [u8]| self.objects.open(file.0, placement)?.read_filled(at, rest);
        Ok(checksums.check((file, placement), offset, buf, &mut read)?.damaged)
    }

    /// Writes `data` at `offset` of a file's object. Its blocks are reserved or mapped, and the caller holds the bytes
    /// exclusively.
    pub(crate) fn write(
        &self,
        file: FileId,
        placement: Placement,
        offset: u64,
        data: &[u8],
    ) -> io::Result<()> {
        let checksums = self.dmt.checksums();
        checksums.forget(file, placement, ByteRange::at(offset, data.len() as u64));
        self.objects.open(file.0, placement)?.write_at(offset, data)?;
        checksums.note(file, placement, offset, data);
        Ok(())
    }

    /// Reserves blocks for `range`, evicting clean extents of `files` if necessary, but never any that overlap `range`
    /// itself. Returns the bytes evicted, or `None` if there is no room: the caller then goes to the origin instead of
    /// waiting (D11).
    pub(crate) fn make_room(
        &self,
        files: &FileTable,
        file: FileId,
        range: ByteRange,
        placement: Placement,
    ) -> Result<Option<u64>> {
        if self.dmt.blocks().reserve(file, range, placement) {
            return Ok(Some(0));
        }
        if range.len() > self.dmt.space().limit() {
            return Ok(None);
        }
        let needed = range.widen_to(halocline_meta::BLOCK).len() + self.excess();
        let mut evicted = 0;
        for bytes in [
            needed.max(EVICT_BATCH_BYTES.min(self.dmt.space().limit() / EVICT_BATCH_SHARE)),
            needed,
        ] {
            evicted += self.evict(files, bytes, Some((file, range)))?;
            if self.dmt.blocks().reserve(file, range, placement) {
                return Ok(Some(evicted));
            }
        }
        Ok(None)
    }

    /// Bytes to be freed because records outgrew their share of a full cache.
    pub(crate) fn excess(&self) -> u64 {
        self.dmt.index().usage().used.saturating_sub(self.dmt.space().limit())
    }

    /// Evicts clean extents until `bytes` bytes are free; returns how many were freed.
    pub(crate) fn evict(
        &self,
        files: &FileTable,
        bytes: u64,
        keep: Option<(FileId, ByteRange)>,
    ) -> Result<u64> {
        // While frozen no file is opened for the first time: an extent whose file has no locks yet
        // can be neither read nor remapped before its blocks are freed.
        let frozen = files.freeze();
        let mut held = Vec::new();
        let discards =
            self.dmt.evictor().evict(bytes, keep, &mut |id, range| match frozen.by_id(id) {
                None => true,
                Some(file) => match file.range.try_exclusive_owned(range) {
                    None => false,
                    Some(guard) => {
                        held.push(guard);
                        true
                    }
                },
            })?;
        self.free(&discards)
    }

    /// Frees blocks whose mapping was removed. The caller holds their ranges exclusively.
    pub(crate) fn free(&self, discards: &[Discard]) -> Result<u64> {
        let mut freed = 0;
        for discard in discards {
            let is_whole = discard.range == discard.range.widen_to(halocline_meta::BLOCK);
            assert!(
                is_whole,
                "I2: what is punched are whole blocks, which nobody else has bytes in"
            );
            self.dmt.checksums().drop_range(discard.file, discard.placement, discard.range);
            self.objects.open(discard.file.0, discard.placement)?.punch(discard.range)?;
            self.dmt.blocks().discarded(discard);
            self.note_emptied(discard.file);
            freed += discard.range.len();
        }
        Ok(freed)
    }

    /// Notes that a file may have nothing left on the cache.
    pub(crate) fn note_emptied(&self, file: FileId) {
        self.emptied.lock().insert(file);
    }

    /// Takes the files noted so far.
    pub(crate) fn take_emptied(&self) -> BTreeSet<FileId> {
        std::mem::take(&mut self.emptied.lock())
    }

    /// Called after a crash: frees blocks of objects outside the table's extents, which nothing else accounts for (I5).
    /// The cache is not in use yet.
    pub(crate) fn trim(&self) -> Result<()> {
        for key in self.objects.list()? {
            let id = FileId(key.file);
            if self.dmt.files().record(id).is_none() {
                self.objects.remove(key.file)?;
                continue;
            }
            let object = self.objects.open(key.file, key.placement)?;
            let mut kept = 0;
            for extent in self.dmt.index().extents(id) {
                if extent.placement == key.placement {
                    let blocks = extent.range.widen_to(halocline_meta::BLOCK);
                    if blocks.start > kept {
                        object.punch(ByteRange::new(kept, blocks.start))?;
                    }
                    kept = kept.max(blocks.end);
                }
            }
            object.cut(kept)?;
            // This process has no list of what the killed one wrote: the first barrier would report it as durable
            // without syncing it.
            object.sync(true)?;
        }
        self.dmt.blocks().trimmed();
        Ok(())
    }

    /// Makes everything that was written before this call durable: data first, then records. One
    /// barrier serves all callers that arrived before it began.
    pub(crate) fn barrier(&self) -> Result<()> {
        let mine = self.barriers_begun.load(Ordering::Acquire) + 1;
        let _turn = self.barrier.lock();
        if self.barriers_done.load(Ordering::Acquire) >= mine {
            return Ok(());
        }
        let this = self.barriers_begun.fetch_add(1, Ordering::AcqRel) + 1;
        self.dmt.cut();
        self.objects.sync_dirty()?;
        self.dmt.barrier()?;
        self.barriers_done.store(this, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_engine::one_dirty_file;

    #[test]
    #[should_panic(
        expected = "I2: what is punched are whole blocks, which nobody else has bytes in"
    )]
    fn i2_no_part_of_a_block_is_punched() {
        let (engine, file, _dirs) = one_dirty_file();
        let placement = engine.base.store.dmt.index().extents(file)[0].placement;
        let range = ByteRange::new(0, 1);
        drop(engine.base.store.free(&[Discard { file, range, placement }]));
    }
}
