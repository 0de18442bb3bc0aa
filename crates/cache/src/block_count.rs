//! Blocks (`st_blocks`) of a file whose newest bytes are partly on the cache only.
//!
//! What must hold: a file with data never shows zero blocks, or archivers take it for one hole; and a sparse file stays
//! sparse, or `du` and every copy that relies on it see terabytes of zeros.

use halocline_model::request::ByteRange;

use crate::extent::file::{CachedFile, WHOLE};
use crate::extent::store::ExtentStore;
use halocline_meta::{BLOCK, FileId};
use halocline_storage::volume::origin::OriginFile;
use halocline_vfs::Seek;

/// Unit of `st_blocks` in bytes.
const SECTOR: u64 = 512;
/// Dirty extents compared with the origin for one `stat`; the bytes of any others count as missing there.
const COMPARED_MAX: usize = 64;

/// Blocks of 512 bytes of a file with `size` bytes: the `below` blocks that the origin holds, and the blocks of
/// dirty bytes that lie in the origin's holes. The origin is asked about holes only if it has some and there are dirty
/// bytes.
pub(super) fn blocks(store: &ExtentStore, file: &CachedFile, size: u64, below: u64) -> u64 {
    let whole = size.div_ceil(BLOCK) * (BLOCK / SECTOR);
    let Some(id) = file.id().filter(|_| below.saturating_mul(SECTOR) < size) else {
        return below;
    };
    let dirty = store.dmt.index().dirty_bytes(id);
    if dirty == 0 {
        return below;
    }
    let flush_handle =
        file.flush_handle.lock().as_ref().map(|flush_handle| flush_handle.origin.clone());
    let missing = missing_below(store, id, dirty, flush_handle.as_deref().filter(|_| below > 0));
    (below + missing.div_ceil(SECTOR)).min(whole)
}

/// Bytes, in whole blocks, that `dirty` dirty bytes take in the holes of `origin`; without `origin` the whole file
/// counts as a hole.
fn missing_below(store: &ExtentStore, id: FileId, dirty: u64, origin: Option<&OriginFile>) -> u64 {
    let (mut missing, mut compared, mut reached) = (0, 0, 0);
    for extent in store.dmt.index().dirty(id, WHOLE, COMPARED_MAX) {
        compared += extent.range.len();
        let blocks = extent.range.widen_to(BLOCK);
        let blocks = ByteRange::new(blocks.start.max(reached), blocks.end.max(reached));
        reached = blocks.end;
        missing += origin.map_or(blocks.len(), |origin| holes_in(origin, blocks));
    }
    missing + dirty.saturating_sub(compared)
}

/// Bytes of new blocks that a write to `part` of `origin` needs. If it does not report its holes, as on some network
/// file systems, all of a sparse file counts.
pub(super) fn new_bytes_in(origin: &OriginFile, part: ByteRange) -> u64 {
    let blocks = part.widen_to(BLOCK);
    let (Ok(vnode), Ok(used)) = (origin.namespace_file().metadata(), origin.blocks()) else {
        return blocks.len();
    };
    let size = vnode.len();
    if used.saturating_mul(SECTOR) >= size {
        let end = size.div_ceil(BLOCK) * BLOCK;
        return blocks.end.saturating_sub(blocks.start.max(end));
    }
    match origin.seek(0, Seek::Hole) {
        Ok(hole) if hole < size => holes_in(origin, blocks),
        _ => blocks.len(),
    }
}

/// Bytes of `range` that are holes of the file. If the origin cannot report holes, there are none.
fn holes_in(origin: &OriginFile, range: ByteRange) -> u64 {
    let (mut holes, mut at) = (0, range.start);
    // One step for each hole, so at most one for each block.
    while at < range.end {
        let data = match origin.seek(at, Seek::Data) {
            Ok(data) => data.min(range.end),
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => range.end,
            Err(_) => return holes,
        };
        holes += data - at;
        if data >= range.end {
            return holes;
        }
        match origin.seek(data, Seek::Hole) {
            Ok(hole) if hole > data => at = hole,
            _ => return holes,
        }
    }
    holes
}
