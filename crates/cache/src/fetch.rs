//! Fetching: ranges that critical reads missed (`C_flag`) are brought to the cache lazily and in order.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bon::Builder;
use halocline_model::request::ByteRange;
use parking_lot::Mutex;

use crate::counters::Counters;
use crate::extent::file::CachedFile;
use crate::extent::store::ExtentStore;
use crate::extent::table::FileTable;
use crate::known_files::KnownFiles;
use crate::mappings::Mappings;
use crate::modification_times::ModificationTimes;
use crate::permits::Permits;
use halocline_meta::{CriticalRange, Segment};
use halocline_os::error::{Error, Result};
use halocline_vfs::namespace::Namespace;

/// Entries taken from the CDT at once. They are sorted, so that the origin is read in file order.
pub(crate) const FETCH_BATCH: usize = 1024;

/// The outcome for one wanted range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fetched {
    /// The missing bytes, this many, are now on the cache.
    Bytes(u64),
    /// No room: `C_flag` stays set.
    NoRoom,
    /// The range or the file is gone, or cannot be read: the entry was dropped.
    Gone,
}

/// Limit of wants that are kept in memory until the rebuilder records them.
const WANTS_MAX: usize = 16 << 10;

/// Brings wanted ranges to the cache.
#[derive(Debug, Builder)]
pub(crate) struct Fetcher {
    permits: Arc<Permits>,
    store: Arc<ExtentStore>,
    files: Arc<FileTable>,
    counters: Arc<Counters>,
    namespace: Arc<Namespace>,
    known: Arc<KnownFiles>,
    times: Arc<ModificationTimes>,
    mappings: Arc<Mappings>,
    /// Ranges that programs wanted and that are not in the CDT yet.
    #[builder(skip)]
    wants: Mutex<Vec<CriticalRange>>,
    /// Held while wants are recorded: a lookup in the CDT meanwhile would miss some.
    #[builder(skip)]
    noting: Mutex<()>,
    /// How many ranges programs have wanted so far.
    #[builder(skip = AtomicU64::new(1))]
    wants_noted: AtomicU64,
    /// `wants_noted` when fetching last ran out of room: until programs want more, fetching evicts nothing, or two
    /// halves of a working set would evict each other endlessly.
    #[builder(skip)]
    wants_without_room: AtomicU64,
}

impl Fetcher {
    /// Whether fetching ran out of room and no program has wanted more since.
    pub(crate) fn lacks_room(&self) -> bool {
        let noted = self.wants_noted.load(Ordering::Relaxed);
        self.wants_without_room.load(Ordering::Relaxed) == noted
    }

    /// Notes that a critical read missed bytes (`C_flag`), for the rebuilder to fetch. The rebuilder also records this,
    /// so that no program waits for a record; a crash before that loses only a hint.
    pub(crate) fn want(&self, wanted: CriticalRange) {
        let mut wants = self.wants.lock();
        wants.push(wanted);
        let many = wants.len() >= WANTS_MAX;
        drop(wants);
        self.wants_noted.fetch_add(1, Ordering::Relaxed);
        if many {
            self.note_wants();
        }
    }

    /// Number of ranges to be fetched.
    pub(crate) fn wanted_ranges(&self) -> u64 {
        self.note_wants();
        self.store.dmt.critical().wanted(usize::MAX).len() as u64
    }

    /// Records in the CDT what critical reads missed since the last call. On return all of it is recorded, by this
    /// thread or another.
    pub(crate) fn note_wants(&self) {
        let _noting = self.noting.lock();
        for wanted in std::mem::take(&mut *self.wants.lock()) {
            self.store.dmt.critical().note(wanted, true);
        }
    }

    /// Fetches one batch of wanted ranges in file order; `None` if nothing was wanted or nothing had room. A pass
    /// does not evict what it fetched: it evicts only for as many bytes as were free or clean when it began, and not
    /// at all if an earlier pass ran out of room and no program has wanted anything since. Without `evict` it takes
    /// only free room.
    pub(crate) fn fetch_batch(&self, go_on: &dyn Fn() -> bool, evict: bool) -> Result<Option<u64>> {
        self.note_wants();
        let mut wanted = self.store.dmt.critical().wanted(FETCH_BATCH);
        wanted.sort_by_key(|wanted| (wanted.file, wanted.range.start));
        let usage = self.store.dmt.index().usage();
        let free = self.store.dmt.space().limit().saturating_sub(usage.used);
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
            match self.fetch(&entry, evict && may_bring >= entry.range.len())? {
                Fetched::Bytes(brought) => {
                    may_bring = may_bring.saturating_sub(brought);
                    bytes += brought;
                    settled = true;
                }
                Fetched::NoRoom => {
                    if evict {
                        self.wants_without_room.store(noted, Ordering::Relaxed);
                    }
                    break;
                }
                Fetched::Gone => settled = true,
            }
        }
        Ok(settled.then_some(bytes))
    }

    /// Fetches the missing bytes of one wanted range: all of them or none. `evict` allows clean extents to be evicted
    /// for them.
    pub(crate) fn fetch(&self, wanted: &CriticalRange, evict: bool) -> Result<Fetched> {
        // A file that is missing or cannot be examined is no longer wanted: each retry would fail.
        let Ok(Some(file)) = self.known.file_by_id(wanted.file) else {
            self.store.dmt.critical().drop_range(wanted.file, wanted.range);
            return Ok(Fetched::Gone);
        };
        if !file.is_open() {
            // No close will record the stamp that the origin's file has when its bytes are read (I9).
            self.times.settle(&file, wanted.file)?;
        }
        let fetched = self.fetch_into(&file, wanted, evict);
        self.known.forget_idle(&file);
        fetched
    }

    fn fetch_into(
        &self,
        file: &Arc<CachedFile>,
        wanted: &CriticalRange,
        evict: bool,
    ) -> Result<Fetched> {
        // Bytes that other nodes want, or may have changed, are fetched when programs want them again.
        let Some(_held) = self.permits.try_to_read(file, wanted.range) else {
            self.store.dmt.critical().fetched(wanted.file, wanted.range);
            return Ok(Fetched::Gone);
        };
        // Exclusive: the range must not be written to the origin between our read and its publication
        // (docs/ALGORITHMS.md, section 4.4), and the size must not change.
        let _guard = file.range.exclusive(wanted.range);
        let range = match wanted.range.intersect(ByteRange::new(0, file.size())) {
            Some(range) if !file.is_kept_out() => range,
            _ => {
                self.store.dmt.critical().fetched(wanted.file, wanted.range);
                return Ok(Fetched::Gone);
            }
        };
        let clipped = CriticalRange { range, ..*wanted };
        let brought = self.put(file, &clipped, evict, None).inspect_err(|_| {
            // No longer wanted: a range that cannot be read or stored would fail each time.
            self.store.dmt.critical().fetched(wanted.file, wanted.range);
        })?;
        let Some((brought, _)) = brought else { return Ok(Fetched::NoRoom) };
        self.store.dmt.critical().fetched(wanted.file, wanted.range);
        Ok(Fetched::Bytes(brought))
    }

    /// Puts the missing bytes of a range on the cache: all of them or none. They come from `given`, which then has the
    /// bytes of the whole range, or from the origin. Returns how many bytes were put there and how many were evicted
    /// for them, or `None` if there is no room. The caller holds the range exclusively.
    pub(crate) fn put(
        &self,
        file: &CachedFile,
        wanted: &CriticalRange,
        evict: bool,
        given: Option<&[u8]>,
    ) -> Result<Option<(u64, u64)>> {
        let mut segments = Vec::new();
        self.store.dmt.index().lookup(wanted.file, wanted.range, &mut segments);
        segments.retain(|segment| segment.extent.is_none());
        let Some(evicted) = self.reserve_all(wanted, &segments, evict)? else { return Ok(None) };
        let brought = self.bring(file, wanted, &segments, given)?;
        if given.is_some() {
            self.store.dmt.critical().fetched(wanted.file, wanted.range);
        }
        Ok(Some((brought, evicted)))
    }

    /// Returns the number of bytes evicted, or `None` if there is no room.
    fn reserve_all(
        &self,
        wanted: &CriticalRange,
        missing: &[Segment],
        evict: bool,
    ) -> Result<Option<u64>> {
        let mut sum = 0;
        for (done, segment) in missing.iter().enumerate() {
            let range = segment.range;
            let room = if evict {
                self.store.make_room(&self.files, wanted.file, range, wanted.placement)
            } else {
                Ok(self
                    .store
                    .dmt
                    .blocks()
                    .reserve(wanted.file, range, wanted.placement)
                    .then_some(0))
            };
            match room {
                Ok(Some(evicted)) => {
                    self.counters.evicted(evicted);
                    sum += evicted;
                }
                none_or_failed => {
                    self.release_all(wanted, &missing[..done]);
                    return none_or_failed;
                }
            }
        }
        Ok(Some(sum))
    }

    fn release_all(&self, wanted: &CriticalRange, segments: &[Segment]) {
        for segment in segments {
            self.store.dmt.blocks().release(wanted.file, segment.range, wanted.placement);
        }
    }

    /// Writes reserved segments to the cache and publishes them clean.
    fn bring(
        &self,
        file: &CachedFile,
        wanted: &CriticalRange,
        missing: &[Segment],
        given: Option<&[u8]>,
    ) -> Result<u64> {
        let mut brought = 0;
        for (done, segment) in missing.iter().enumerate() {
            let range = segment.range;
            let mut on_cache = false;
            let copied = (|| {
                let data = match given {
                    Some(all) => Cow::Borrowed(&all[within(wanted.range, range)]),
                    None => Cow::Owned(self.read_whole(file, range)?),
                };
                on_cache = true;
                self.store.write(wanted.file, wanted.placement, range.start, &data)?;
                self.store.dmt.changes().map(wanted.file, range, wanted.placement, false)
            })();
            if let Err(error) = copied {
                self.release_all(wanted, &missing[done..]);
                if on_cache && error.errno() != libc::EFBIG {
                    self.mappings.cache_failed(&error);
                }
                return Err(error);
            }
            self.counters.ssd_written(range.len());
            self.counters.fetched(range.len(), wanted.placement.layout);
            brought += range.len();
        }
        Ok(brought)
    }

    /// Reads the whole range from the origin; fails if the file was shortened behind the mount, since then there is
    /// nothing to cache.
    fn read_whole(&self, file: &CachedFile, range: ByteRange) -> Result<Vec<u8>> {
        let mut data = vec![0; usize::try_from(range.len()).expect("a request fits in memory")];
        if self.known.reader_of(file)?.read_at(range.start, &mut data)? < data.len() {
            let path = self.namespace.path_of(&file.vnode.read());
            return Err(Error::invalid(
                format!("{} became shorter on the origin while it was in use", path.display()),
                "what is missing of it is not cached; open it again",
            ));
        }
        Ok(data)
    }

    /// Fetches batches until nothing is wanted or there is no room.
    pub(crate) fn fetch_all(&self) -> Result<u64> {
        let mut total = 0;
        while let Some(bytes) = self.fetch_batch(&|| true, true)? {
            total += bytes;
        }
        Ok(total)
    }
}

/// The indices of the bytes of `part` in a buffer that holds `whole`.
fn within(whole: ByteRange, part: ByteRange) -> Range<usize> {
    let index = |at: u64| usize::try_from(at - whole.start).expect("a request fits in memory");
    index(part.start)..index(part.end)
}
