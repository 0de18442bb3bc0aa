//! Gives up what other nodes want: brings bytes to the origin, durably, and drops what is cached of them.

use std::sync::Arc;

use bon::Builder;
use halocline_model::layout::Placement;
use halocline_model::request::ByteRange;

use super::flush::{FlushedWhole, Sweeper};
use super::known_files::KnownFiles;
use super::mappings::Mappings;
use super::modification_times::ModificationTimes;
use crate::coherence::{Blocks, Cached, LocalCache, SharedFile};
use crate::extent::file::CachedFile;
use crate::extent::store::ExtentStore;
use crate::extent::table::FileTable;
use halocline_meta::{FileId, OriginKey};
use halocline_os::error::{Error, Result};

/// The engine as seen by the agent of its node.
#[derive(Debug, Builder)]
pub(crate) struct Revocation {
    store: Arc<ExtentStore>,
    files: Arc<FileTable>,
    known: Arc<KnownFiles>,
    times: Arc<ModificationTimes>,
    sweeper: Arc<Sweeper>,
    mappings: Arc<Mappings>,
}

impl Revocation {
    /// The file, whether it is open or only known to the cache.
    fn file(&self, shared: SharedFile) -> Result<Option<Arc<CachedFile>>> {
        let key = OriginKey { inode: shared.inode, born_ns: shared.born_ns.cast_unsigned() };
        if let Some(file) = self.files.by_key(key) {
            return Ok(Some(file));
        }
        match self.store.dmt.find(key) {
            Some(id) => self.known.file_by_id(id),
            None => Ok(None),
        }
    }

    /// Whether bytes of `range` are dirty.
    fn is_dirty(&self, id: FileId, range: ByteRange) -> bool {
        !self.store.dmt.dirty(id, range, 1).is_empty()
    }
}

impl LocalCache for Revocation {
    fn give_up(&self, shared: SharedFile, range: ByteRange, keeps_clean: bool) -> Result<()> {
        let Some(file) = self.file(shared)? else { return Ok(()) };
        if let Some(id) = file.id()
            && self.is_dirty(id, range)
        {
            let flushed = self.sweeper.flush_given(&file, range)?;
            if flushed != FlushedWhole::Removed && self.is_dirty(id, range) {
                return Err(Error::invalid(
                    "bytes that another node wants could not all be brought to the origin",
                    "`halocline flush` says why",
                ));
            }
        }
        // Other nodes must see the modification time together with the bytes.
        self.times.give_time(&file)?;
        // Bytes that bypassed the cache may so far be only in the memory of the origin's file system.
        self.known.sync(&file)?;
        if !keeps_clean {
            file.peer_copies.drop_range(range);
        }
        if !keeps_clean && let Some(id) = file.id() {
            // A read that is filling the cache right now finds that the range was held meanwhile.
            let _range = file.range.exclusive(range);
            self.mappings.let_go(id, range)?;
        }
        self.known.forget_idle(&file);
        Ok(())
    }

    fn cached(&self, shared: SharedFile, range: ByteRange) -> Option<Cached> {
        let key = OriginKey { inode: shared.inode, born_ns: shared.born_ns.cast_unsigned() };
        let id = self.store.dmt.find(key)?;
        let mut segments = Vec::new();
        self.store.dmt.lookup(id, range, &mut segments);
        let clean = segments.into_iter().filter_map(|segment| {
            let extent = segment.extent.filter(|extent| !extent.dirty)?;
            Some((extent.placement, segment.range))
        });
        let mut places: Vec<(Placement, ByteRange)> = clean.collect();
        places.dedup_by(|(placement, next), (kept_in, kept)| {
            let together = placement == kept_in && next.start == kept.end;
            if together {
                kept.end = next.end;
            }
            together
        });
        let mut blocks: Vec<Blocks> = Vec::new();
        for (placement, part) in places {
            for (number, sum) in self.store.dmt.checksums().whole_blocks(id, placement, part) {
                match blocks.last_mut() {
                    Some(last)
                        if last.placement == placement
                            && last.first + last.sums.len() as u64 == number =>
                    {
                        last.sums.push(sum);
                    }
                    _ => blocks.push(Blocks {
                        file: id.0,
                        placement,
                        first: number,
                        sums: vec![sum],
                    }),
                }
            }
        }
        // Another node is about to use them.
        self.store.dmt.touch(id, range);
        Some(Cached { geometry: self.store.geometry, blocks })
    }
}
