//! Fetching: what critical reads missed (`C_flag`) comes to the cache, lazily and in order.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use halocline_model::request::ByteRange;

use crate::engine::parts::Parts;
use crate::error::Result;
use crate::extent::file::CachedFile;
use crate::meta::{Segment, Wanted};

/// Entries taken from the CDT at once: sorted among themselves, so that the origin is read in
/// file order.
pub(crate) const FETCH_BATCH: usize = 1024;

/// What became of one wanted range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fetched {
    /// Its missing bytes, so many, are on the cache now.
    Bytes(u64),
    /// No room: the flag stays.
    NoRoom,
    /// The range or the file is gone, or cannot be read: the entry was dropped.
    Gone,
}

impl Parts {
    /// Number of ranges that are to be fetched.
    pub(crate) fn wanted_ranges(&self) -> u64 {
        self.note_wants();
        self.store.dmt.wanted(usize::MAX).len() as u64
    }

    /// Records in the CDT what critical reads missed since the last time.
    pub(crate) fn note_wants(&self) {
        for wanted in std::mem::take(&mut *self.wants.lock()) {
            self.store.dmt.note_critical(wanted, true);
        }
    }

    /// Fetches one batch of wanted ranges in file order; `None` when nothing was wanted or nothing
    /// had room. What a pass fetched it does not evict: it evicts only for as many bytes as were
    /// free or clean when it began, and not at all when an earlier pass ran out of room and no
    /// program wanted anything since.
    pub(crate) fn fetch_batch(&self, go_on: &dyn Fn() -> bool) -> Result<Option<u64>> {
        self.note_wants();
        let mut wanted = self.store.dmt.wanted(FETCH_BATCH);
        wanted.sort_by_key(|wanted| (wanted.file, wanted.range.start));
        let usage = self.store.dmt.usage();
        let free = self.store.dmt.limit().saturating_sub(usage.used);
        let noted = self.wants_noted.load(Ordering::Relaxed);
        let mut may_bring = if noted == self.wants_without_room.load(Ordering::Relaxed) {
            0
        } else {
            free + usage.mapped.saturating_sub(usage.dirty)
        };
        let (mut bytes, mut settled) = (0, false);
        for entry in wanted {
            if !go_on() {
                break;
            }
            match self.fetch(&entry, may_bring >= entry.range.len())? {
                Fetched::Bytes(brought) => {
                    may_bring = may_bring.saturating_sub(brought);
                    bytes += brought;
                    settled = true;
                }
                Fetched::NoRoom => {
                    self.wants_without_room.store(noted, Ordering::Relaxed);
                    break;
                }
                Fetched::Gone => settled = true,
            }
        }
        Ok(settled.then_some(bytes))
    }

    /// Fetches the missing bytes of one wanted range, all or nothing. `evict` allows clean extents
    /// to leave for it.
    pub(crate) fn fetch(&self, wanted: &Wanted, evict: bool) -> Result<Fetched> {
        let Some(file) = self.file_by_id(wanted.file)? else {
            self.store.dmt.drop_critical(wanted.file, wanted.range);
            return Ok(Fetched::Gone);
        };
        if !file.is_open() {
            // No close will tell what the origin's file looked like when its bytes were read (I9).
            self.settle(&file, wanted.file)?;
        }
        let fetched = self.fetch_into(&file, wanted, evict);
        self.forget_idle(&file);
        fetched
    }

    fn fetch_into(&self, file: &Arc<CachedFile>, wanted: &Wanted, evict: bool) -> Result<Fetched> {
        // Exclusive: nobody may write the range home between our reading and publishing it
        // (SPEC 3.8), and its size must hold still.
        let _guard = file.range.exclusive(wanted.range);
        let range = match wanted.range.intersect(ByteRange::new(0, file.size())) {
            Some(range) if !file.is_kept_out() => range,
            _ => {
                self.store.dmt.fetched(wanted.file, wanted.range);
                return Ok(Fetched::Gone);
            }
        };
        let mut segments = Vec::new();
        self.store.dmt.lookup(wanted.file, range, &mut segments);
        segments.retain(|segment| segment.extent.is_none());
        if !self.reserve_all(wanted, &segments, evict)? {
            return Ok(Fetched::NoRoom);
        }
        let brought = self.bring(file, wanted, &segments)?;
        self.store.dmt.fetched(wanted.file, wanted.range);
        Ok(Fetched::Bytes(brought))
    }

    fn reserve_all(&self, wanted: &Wanted, missing: &[Segment], evict: bool) -> Result<bool> {
        for (done, segment) in missing.iter().enumerate() {
            let room = if evict {
                self.store
                    .make_room(&self.files, wanted.file, segment.range, wanted.placement)?
                    .inspect(|&evicted| self.counters.evicted(evicted))
                    .is_some()
            } else {
                self.store.dmt.reserve(wanted.file, segment.range, wanted.placement)
            };
            if !room {
                self.release_all(wanted, &missing[..done]);
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn release_all(&self, wanted: &Wanted, segments: &[Segment]) {
        for segment in segments {
            self.store.dmt.release(wanted.file, segment.range, wanted.placement);
        }
    }

    /// Copies reserved segments from the origin to the cache and publishes them clean.
    fn bring(&self, file: &CachedFile, wanted: &Wanted, missing: &[Segment]) -> Result<u64> {
        let mut brought = 0;
        for (done, segment) in missing.iter().enumerate() {
            let range = segment.range;
            let mut on_cache = false;
            let copied = (|| {
                let length = usize::try_from(range.len()).expect("a request fits in memory");
                let mut data = vec![0; length];
                self.reader_of(file)?.read_at(range.start, &mut data)?;
                on_cache = true;
                self.store.write(wanted.file, wanted.placement, range.start, &data)?;
                self.store.dmt.map(wanted.file, range, wanted.placement, false)
            })();
            if let Err(error) = copied {
                self.release_all(wanted, &missing[done..]);
                // Not wanted any more: what cannot be read or stored would fail for ever.
                self.store.dmt.fetched(wanted.file, wanted.range);
                if on_cache && error.errno() != libc::EFBIG {
                    self.cache_failed(&error);
                }
                return Err(error);
            }
            self.counters.ssd_written(range.len());
            self.counters.fetched(range.len(), wanted.placement.layout);
            brought += range.len();
        }
        Ok(brought)
    }
}
