//! Truncate, fallocate and seek, which the papers leave out (docs/ALGORITHMS.md, section 4.5).

use std::sync::Arc;

use bon::Builder;
use halocline_model::request::ByteRange;

use super::open_file::OpenFile;
use crate::extent::file::{CachedFile, tail};
use crate::extent::store::ExtentStore;
use crate::known_files::KnownFiles;
use crate::mappings::Mappings;
use crate::origin_access::OriginAccess;
use crate::origin_space::OriginSpace;
use crate::own_changes::OwnChanges;
use halocline_meta::Segment;
use halocline_os::clock::Clock;
use halocline_os::error::Result;
use halocline_storage::volume::origin::OriginFile;
use halocline_vfs::Allocate;
use halocline_vfs::Seek;

/// Bytes whose segments are looked up at once while seeking for data or a hole.
const SEEK_WINDOW_BYTES: u64 = 64 << 20;

/// Changes sizes and holes of files, and finds holes.
#[derive(Debug, Builder)]
pub(crate) struct Resizer {
    store: Arc<ExtentStore>,
    origin: Arc<OriginAccess>,
    clock: Clock,
    own: Arc<OwnChanges>,
    known: Arc<KnownFiles>,
    mappings: Arc<Mappings>,
    space: Arc<OriginSpace>,
}

impl Resizer {
    /// Sets a file's size; cached bytes past a smaller size are dropped, dirty or not.
    pub(crate) fn truncate(
        &self,
        file: &Arc<CachedFile>,
        origin: &OriginFile,
        size: u64,
    ) -> Result<()> {
        let _range = file.range.exclusive(tail(size.min(file.size())));
        let _growth = file.growth.lock();
        let _writeback = file.writeback.exclusive(tail(size.min(file.size())));
        let _changing = self.own.changing_bytes(file, origin)?;
        // The origin first: a crash before the records leaves extents past the file's end, which are dropped before the
        // file is next read. The other order would lose acknowledged bytes of a truncate that did not happen.
        let truncated = self.origin.serve(|| origin.truncate(size));
        let size = match &truncated {
            Ok(()) => size,
            // A striped file may have its new size even so, which is adopted.
            Err(_) => origin.namespace_file().metadata().map_or(file.size(), |found| found.len()),
        };
        let shrunk = size < file.size();
        file.set_size(size);
        if shrunk && let Some(id) = file.id() {
            self.mappings.unmap_replaced(origin, id, tail(size))?;
        }
        truncated?;
        file.note_write(&self.clock, false);
        Ok(())
    }

    /// Prepares a write on the origin that makes the file longer, up to `end`, while other nodes may do so, too. The caller
    /// holds `growth` and the written range.
    pub(crate) fn grow_beside_others(&self, handle: &OpenFile, end: u64) -> Result<()> {
        let _changing = self.own.changing_bytes(&handle.file, &handle.origin)?;
        Ok(handle.origin.prepare_growth(end)?)
    }

    /// After a failed write that extended the file: restores its size, so that it does not end in zeros that nobody
    /// wrote. Cuts off only what this node holds alone, from `alone_from` on: other nodes may have written to the bytes
    /// before that since the file became longer. The caller holds `growth` and the written range.
    pub(crate) fn undo_growth(&self, handle: &OpenFile, alone_from: u64) {
        let file = &handle.file;
        let before = file.size();
        if before < alone_from {
            // Its end is looked up before it is cut: without writes by others it may end before `alone_from`.
            match handle.origin.namespace_file().metadata() {
                Ok(found) if found.len() > alone_from => file.set_size(alone_from),
                Ok(found) => return file.set_size(found.len()),
                Err(_) => return,
            }
        }
        let before = file.size();
        let _writeback = file.writeback.exclusive(tail(before));
        // After the lease nothing is cut off either: others may have the file by then.
        let undone = self.own.changing_bytes(file, &handle.origin).and_then(|_changing| {
            self.origin.serve(|| handle.origin.truncate(before))?;
            file.id().map_or(Ok(()), |id| self.mappings.unmap(id, tail(before)))
        });
        // The program must see the write's own error; if the size cannot be restored, the actual size is adopted.
        if undone.is_err()
            && let Ok(found) = handle.origin.namespace_file().metadata()
        {
            file.set_size(found.len());
        }
    }

    /// `fallocate(2)`.
    pub(crate) fn allocate(
        &self,
        handle: &OpenFile,
        range: ByteRange,
        how: Allocate,
    ) -> Result<()> {
        let file = &handle.file;
        let _range = file.range.exclusive(range);
        let keeps_size = matches!(
            how,
            Allocate::PunchHole | Allocate::ReserveKeepSize | Allocate::Zero { keep_size: true }
        );
        let grows = (!keeps_size).then(|| file.growth.lock());
        let _writeback = file.writeback.exclusive(range);
        let _space = match how {
            Allocate::PunchHole => None,
            Allocate::Reserve | Allocate::ReserveKeepSize | Allocate::Zero { .. } => {
                Some(self.space.take_reserved(handle, range)?)
            }
        };
        let _changing = self.own.changing_bytes(file, &handle.origin)?;
        let clears = matches!(how, Allocate::PunchHole | Allocate::Zero { .. });
        if clears && let Some(id) = file.id() {
            // Until the records are gone the cache's bytes belong to the file: a crash in between must not show old
            // bytes now and zeros after an eviction.
            if self.known.may_become_dirty(file) {
                self.mappings.claim_for_cache(id, range)?;
            } else {
                self.mappings.unmap_clean(id, range)?;
            }
        }
        self.origin.serve(|| handle.origin.allocate(range, how))?;
        if clears && let Some(id) = file.id() {
            self.mappings.unmap_replaced(&handle.origin, id, range)?;
        }
        if grows.is_some() && range.end > file.size() {
            file.set_size(range.end);
        }
        file.note_write(&self.clock, false);
        Ok(())
    }

    /// Position of the next data or hole. Mapped bytes are data, whatever the origin has there.
    pub(crate) fn seek(&self, handle: &OpenFile, offset: u64, what: Seek) -> Result<u64> {
        let file = &handle.file;
        let _range = file.range.shared(tail(offset));
        let size = file.size();
        if offset >= size {
            return Err(rustix::io::Errno::NXIO.into());
        }
        match what {
            Seek::Data => self.seek_data(handle, offset, size),
            Seek::Hole => self.seek_hole(handle, offset, size),
        }
    }

    fn seek_data(&self, handle: &OpenFile, offset: u64, size: u64) -> Result<u64> {
        let below = below(handle, offset, Seek::Data)?;
        let end = below.unwrap_or(size).min(size);
        let cached = self.first_segment(handle, ByteRange::new(offset, end.max(offset)), true);
        cached.or(below).ok_or_else(|| rustix::io::Errno::NXIO.into())
    }

    fn seek_hole(&self, handle: &OpenFile, offset: u64, size: u64) -> Result<u64> {
        let mut at = offset;
        // The origin may have neither data nor a hole from there on: then only the file's end is left.
        while let Some(hole) = below(handle, at, Seek::Hole)?.filter(|hole| *hole < size) {
            // The cache may have bytes in the origin's hole: a hole is where both have none.
            let hole_end = below(handle, hole, Seek::Data)?.map_or(size, |end| end.min(size));
            if let Some(found) = self.first_segment(handle, ByteRange::new(hole, hole_end), false) {
                return Ok(found);
            }
            at = hole_end;
        }
        Ok(size)
    }

    /// Start of the first part of `range` that is mapped, or of the first that is not.
    fn first_segment(&self, handle: &OpenFile, range: ByteRange, mapped: bool) -> Option<u64> {
        let Some(id) = handle.file.id() else {
            return (!mapped && !range.is_empty()).then_some(range.start);
        };
        let mut segments: Vec<Segment> = Vec::new();
        let mut start = range.start;
        while start < range.end {
            let end = range.end.min(start.saturating_add(SEEK_WINDOW_BYTES));
            self.store.dmt.index().lookup(id, ByteRange::new(start, end), &mut segments);
            if let Some(found) = segments.iter().find(|s| s.extent.is_some() == mapped) {
                return Some(found.range.start);
            }
            start = end;
        }
        None
    }
}

/// The next data or hole on the origin; `None` if its file has none from `offset` on, or ends before it.
fn below(handle: &OpenFile, offset: u64, what: Seek) -> Result<Option<u64>> {
    match handle.origin.seek(offset, what) {
        Ok(at) => Ok(Some(at)),
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
