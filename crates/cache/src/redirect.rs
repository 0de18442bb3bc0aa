//! The redirector of SLA-Cache (Algorithm 1, repaired: docs/ALGORITHMS.md, section 4.1): sends each part of a request
//! to the side that holds it or should hold it.
//!
//! A request is identified first, then redirected. Every path keeps I1: a read returns the newest bytes of either side,
//! because reads and writes hold the file's range lock during lookup and transfer.

mod missing_bytes;

use std::sync::Arc;

pub(crate) use self::missing_bytes::MissReader;
use self::missing_bytes::{MissingBytes, Read};
use bon::Builder;
use halocline_model::request::{ByteRange, Direction, index};

use crate::backpressure::Backpressure;
use crate::counters::Counters;
use crate::damage::Damage;
use crate::dirty_pressure::DirtyPressure;
use crate::extent::file::CachedFile;
use crate::extent::store::ExtentStore;
use crate::extent::table::FileTable;
use crate::fill::Fills;
use crate::health::Health;
use crate::identify::{Identified, Identifier};
use crate::known_files::KnownFiles;
use crate::mappings::Mappings;
use crate::open_file::OpenFile;
use crate::origin_access::OriginAccess;
use crate::origin_space::{OriginSpace, TakenSpace};
use crate::own_changes::OwnChanges;
use crate::peers::Peers;
use crate::permits::Permits;
use crate::repair::Repair;
use crate::request_split::{run, segments_of, slice, slice_mut, used_segments_of, with_segments};
use crate::resize::Resizer;
use crate::settings::Settings;
use halocline_api::config::Mode;
use halocline_meta::{Extent, FileId, Segment};
use halocline_os::clock::Clock;
use halocline_os::error::Result;

/// How often other nodes are asked for one read, about a window each time.
const QUESTIONS: u32 = 2;

/// Where the bytes of a read came from.
#[derive(Debug, Clone, Copy)]
struct BytesRead {
    /// Bytes from the cache.
    cached: u64,
    /// Bytes from the caches of other nodes.
    peers: u64,
    /// Whether the origin had all other bytes.
    whole: bool,
}

/// Serves the reads and writes of programs.
#[derive(Debug, Builder)]
pub(crate) struct Redirector {
    store: Arc<ExtentStore>,
    files: Arc<FileTable>,
    origin: Arc<OriginAccess>,
    damage: Arc<Damage>,
    counters: Arc<Counters>,
    health: Arc<Health>,
    pressure: Arc<DirtyPressure>,
    backpressure: Arc<Backpressure>,
    settings: Arc<Settings>,
    clock: Clock,
    mappings: Arc<Mappings>,
    own: Arc<OwnChanges>,
    repair: Arc<Repair>,
    space: Arc<OriginSpace>,
    known: Arc<KnownFiles>,
    resizer: Arc<Resizer>,
    fills: Arc<Fills>,
    identifier: Arc<Identifier>,
    permits: Arc<Permits>,
    peers: Arc<Peers>,
    misses: Arc<MissReader>,
}

impl Redirector {
    /// Serves a write of thread `tid`. On success, the side that the records name for a byte has it, and it was handed
    /// to the operating system there (I4).
    pub(crate) fn write(
        &self,
        handle: &OpenFile,
        offset: u64,
        data: &[u8],
        tid: u32,
    ) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let file = &handle.file;
        let asked = ByteRange::at(offset, data.len() as u64);
        let held = self.permits.to_write(handle, asked, handle.append)?;
        let (range, _guard) = if handle.append {
            let guard = file.range.exclusive(ByteRange::new(file.size().min(offset), u64::MAX));
            (ByteRange::at(file.size(), data.len() as u64), guard)
        } else {
            (asked, file.range.exclusive(asked))
        };
        let mut identified = self.identify(file, Direction::Write, range, tid);
        let grows = (range.end > file.size()).then(|| file.growth.lock());
        grows.as_ref().map_or(Ok(()), |_| self.permits.check_size(file, &held))?;
        let growing = grows.is_some() && range.end > file.size();
        // Where other nodes may make the file longer at the same time, a write on the origin does so beside them.
        let beside_others = growing && held.alone_from.is_none();
        identified.verdict.critical &= held.caches && !beside_others;
        let cached = with_segments(|segments| {
            segments_of(&self.store, file, range, segments);
            if beside_others {
                self.resizer.grow_beside_others(handle, range.end)?;
            }
            let sets_size = growing && !beside_others;
            self.write_segments(handle, &identified, range, data, segments, sets_size)
        })
        .inspect_err(|_| {
            if let Some(from) = held.alone_from.filter(|_| growing) {
                self.resizer.undo_growth(handle, from);
            }
        })?;
        if growing {
            file.set_size(range.end);
        }
        if self.permits.needs_sync(file, &held) {
            handle.origin.sync(true)?;
        }
        let noted_ns = file.note_write(&self.clock, cached > 0);
        if let Some(now_ns) = noted_ns.filter(|_| cached > 0) {
            self.pressure.note_write(now_ns);
        }
        self.counters.request(Direction::Write, range.len(), cached);
        Ok(())
    }

    /// Serves a read of thread `tid`, or one of the kernel `for_pages`; it is short only at the end of the file.
    pub(crate) fn read(
        &self,
        handle: &OpenFile,
        offset: u64,
        buf: &mut [u8],
        (tid, for_pages): (u32, bool),
    ) -> Result<usize> {
        let mut may_ask = QUESTIONS;
        let served = loop {
            match self.read_held(handle, offset, buf, (tid, for_pages, may_ask > 0)) {
                Ok(Read::Done(count)) => break Ok(count),
                Ok(Read::AskFirst(window)) => self.peers.ask(&handle.file, window),
                Err(error) => break Err(error),
            }
            may_ask -= 1;
        };
        // Only now: the file's bytes are no longer locked.
        self.repair.drop_damaged();
        served
    }

    fn read_held(
        &self,
        handle: &OpenFile,
        offset: u64,
        buf: &mut [u8],
        (tid, for_pages, may_ask): (u32, bool, bool),
    ) -> Result<Read> {
        let file = &handle.file;
        let asked = ByteRange::at(offset, buf.len() as u64);
        let held = self.permits.to_read(handle, asked, for_pages)?;
        if may_ask
            && held.caches
            && let Some(window) = self.peers.due(file, asked)
        {
            return Ok(Read::AskFirst(window));
        }
        let _guard = file.range.shared(asked);
        let range = ByteRange::new(offset, asked.end.min(file.size()).max(offset));
        if range.is_empty() {
            return Ok(Read::Done(0));
        }
        let buf = &mut buf[..index(range.len())];
        let mut identified = self.identify(file, Direction::Read, range, tid);
        identified.verdict.critical &= held.caches;
        let BytesRead { cached, peers, whole } = with_segments(|segments| {
            used_segments_of(&self.store, file, range, segments);
            self.read_segments(handle, &identified, range, buf, segments)
        })?;
        // What another node has needs no second copy here.
        if identified.verdict.critical && cached + peers < range.len() && whole {
            self.mappings.advisory(self.fills.missed(file, identified.placement, range, buf))?;
        }
        self.peers.served(peers);
        self.counters.request(Direction::Read, range.len(), cached);
        Ok(Read::Done(buf.len()))
    }

    fn identify(
        &self,
        file: &CachedFile,
        direction: Direction,
        range: ByteRange,
        tid: u32,
    ) -> Identified {
        let now_ms = self.clock.now_ms();
        let pressure = self.pressure.share();
        let mut identified = self.identifier.judge(file, direction, range, tid, now_ms, pressure);
        identified.verdict.critical &= self.health.admits(now_ms);
        identified
    }

    /// Writes every segment; returns how many of the bytes are on the cache afterwards.
    fn write_segments(
        &self,
        handle: &OpenFile,
        identified: &Identified,
        range: ByteRange,
        data: &[u8],
        segments: &[Segment],
        set_size: bool,
    ) -> Result<u64> {
        let mut cached = 0;
        let mut grown = !set_size;
        let mut rest = segments;
        while !rest.is_empty() {
            let (segment, behind) = self.next_to_write(handle, rest);
            rest = behind;
            let bytes = slice(data, range.start, segment.range);
            // The origin's file gets its new size before any of its new bytes are published on the cache, so that size,
            // stat and reads never depend on the cache alone.
            let mut grow = || -> Result<()> {
                if !std::mem::replace(&mut grown, true) {
                    let _changing = self.own.changing_bytes(&handle.file, &handle.origin)?;
                    self.origin.serve(|| self.permits.grow(handle, range.end, data))?;
                }
                Ok(())
            };
            let admit = identified.verdict.critical
                && self.settings.config.mode != Mode::ReadOnly
                && handle.writable;
            let on_cache = if let Some(extent) = segment.extent {
                grow()?;
                self.overwrite(handle, extent, segment.range, bytes)?
            } else if admit {
                grow()?;
                self.admit(handle, identified, segment.range, bytes)?
            } else {
                false
            };
            if on_cache {
                cached += segment.range.len();
            } else {
                self.write_to_origin(handle, identified, segment.range, bytes)?;
            }
        }
        Ok(cached)
    }

    /// The next segment to write, and the segments after it. Adjacent clean and dirty segments of one object are
    /// merged: one record marks them, and one request writes them. If that cannot be recorded, each is written by
    /// itself, because clean and dirty ones fail in different ways.
    fn next_to_write<'a>(
        &self,
        handle: &OpenFile,
        segments: &'a [Segment],
    ) -> (Segment, &'a [Segment]) {
        let (first, count) = (segments[0], run(segments));
        if let (Some(extent), Some(id), 2..) = (first.extent, handle.file.id(), count)
            && self.settings.config.mode == Mode::WriteBack
        {
            let range = ByteRange::new(first.range.start, segments[count - 1].range.end);
            // Dirty segments already have their space. If there is too little, each is written by itself.
            let is_dirty = |s: &Segment| s.extent.is_some_and(|extent| extent.dirty);
            let all_taken = segments[..count].iter().all(is_dirty);
            let space = if all_taken { None } else { self.take_dirty(handle, range) };
            if (all_taken || space.is_some())
                && self.store.dmt.changes().mark_dirty(id, range).is_ok()
            {
                let extent = Some(Extent { dirty: true, ..extent });
                return (Segment { range, extent }, &segments[count..]);
            }
        }
        (first, &segments[1..])
    }

    /// What bytes need to become dirty: space, and a descriptor for the flush, whatever name the file has by then.
    fn take_dirty(&self, handle: &OpenFile, part: ByteRange) -> Option<TakenSpace<'_>> {
        self.known.may_become_dirty(&handle.file).then(|| self.space.take_dirty(handle, part))?
    }

    /// Writes over a mapped extent. `false`: the part is unmapped now and must go to the origin.
    fn overwrite(
        &self,
        handle: &OpenFile,
        extent: Extent,
        part: ByteRange,
        data: &[u8],
    ) -> Result<bool> {
        let id = handle.file.id().expect("a file with an extent has an identity");
        if self.settings.config.mode != Mode::WriteBack {
            if extent.dirty {
                // Left by a write-back session. Dropped once the origin has the bytes that replace it.
                self.write_origin(handle, part, data)?;
                self.mappings.unmap_replaced(&handle.origin, id, part)?;
                return Ok(true);
            }
            // The mapping goes first: a crash after the origin changed must not leave old bytes on the cache.
            self.mappings.unmap(id, part)?;
            return Ok(false);
        }
        // A clean extent may cover a hole of the origin.
        let space = if extent.dirty { None } else { self.take_dirty(handle, part) };
        if !extent.dirty && space.is_none() {
            self.mappings.unmap(id, part)?;
            return Ok(false);
        }
        // Line 26 of the paper's Algorithm 1 forgets D_flag here. It is set before the data changes: a crash in between
        // leaves a dirty extent that equals the origin.
        if let Err(error) = self.store.dmt.changes().mark_dirty(id, part) {
            // Only a clean extent needs a record: its bytes go to the origin, and the mapping is dropped.
            self.mappings.cache_failed(&error);
            self.mappings.unmap(id, part)?;
            return Ok(false);
        }
        match self.identifier.timed(true, Direction::Write, None, part.len(), || {
            self.store.write(id, extent.placement, part.start, data)
        }) {
            Ok(()) => {
                self.damage.heal(id, part);
                self.counters.ssd_written(part.len());
                Ok(true)
            }
            Err(error) => {
                // The new bytes cover the whole part, so the old ones are not needed; but the origin must have the new
                // ones before the mapping is removed.
                self.mappings.cache_failed(&error);
                self.write_origin(handle, part, data)?;
                self.mappings.unmap_replaced(&handle.origin, id, part)?;
                Ok(true)
            }
        }
    }

    /// Puts a missing part of a critical write on the cache. `false`: there was no room or the cache failed, so the
    /// part goes to the origin.
    fn admit(
        &self,
        handle: &OpenFile,
        identified: &Identified,
        part: ByteRange,
        data: &[u8],
    ) -> Result<bool> {
        let file = &handle.file;
        let through = self.settings.config.mode == Mode::WriteThrough;
        let space = if through {
            Some(self.space.take_for_origin(handle, part)?)
        } else {
            self.space.take_dirty(handle, part)
        };
        let Some(_space) = space.filter(|_| self.known.may_become_dirty(file)) else {
            self.counters.no_room(part.len());
            return Ok(false);
        };
        let placement = identified.placement;
        let room =
            self.known.id_of(file).and_then(|id| Ok((id, self.make_room(identified, id, part)?)));
        let (id, evicted) = match room {
            Ok((id, Some(evicted))) => (id, evicted),
            Ok((_, None)) => {
                self.counters.no_room(part.len());
                return Ok(false);
            }
            Err(error) => {
                self.mappings.cache_failed(&error);
                return Ok(false);
            }
        };
        self.counters.evicted(evicted);
        if through && let Err(error) = self.write_origin(handle, part, data) {
            self.store.dmt.blocks().release(id, part, placement);
            return Err(error);
        }
        let written =
            self.identifier.timed(true, Direction::Write, Some(identified), part.len(), || {
                self.store.write(id, placement, part.start, data)
            });
        if let Err(error) = written {
            self.store.dmt.blocks().release(id, part, placement);
            // The maximum file size may be smaller there than on the origin (16 TiB on ext4): the device is not at
            // fault.
            if error.raw_os_error() != Some(libc::EFBIG) {
                self.mappings.cache_failed(&error);
            }
            return Ok(through);
        }
        if let Err(error) = self.store.dmt.changes().map(id, part, placement, !through) {
            self.store.dmt.blocks().release(id, part, placement);
            self.mappings.cache_failed(&error);
            return Ok(through);
        }
        self.health.worked();
        self.counters.ssd_written(part.len());
        self.counters.admitted(part.len(), placement.layout);
        Ok(true)
    }

    /// Reserves blocks for a part of a critical write; while a flush for room runs, waits for them up to the policy's
    /// wait limit. Returns the bytes evicted.
    fn make_room(
        &self,
        identified: &Identified,
        id: FileId,
        part: ByteRange,
    ) -> Result<Option<u64>> {
        let take = || self.store.make_room(&self.files, id, part, identified.placement);
        match take()? {
            None if self.pressure.is_short_of_room() && self.settings.config.rebuild => {
                self.backpressure.wait(self.identifier.wait_limit(identified), take)
            }
            taken => Ok(taken),
        }
    }

    fn write_to_origin(
        &self,
        handle: &OpenFile,
        identified: &Identified,
        part: ByteRange,
        data: &[u8],
    ) -> Result<()> {
        let _space = self.space.take_for_origin(handle, part)?;
        self.identifier.timed_on_origin(&handle.file, Direction::Write, identified, part, || {
            self.write_origin(handle, part, data)
        })
    }

    /// Writes to the origin, excluding flushes of the region.
    fn write_origin(&self, handle: &OpenFile, part: ByteRange, data: &[u8]) -> Result<()> {
        let _writeback = handle.file.writeback.shared(part);
        let _changing = self.own.changing_bytes(&handle.file, &handle.origin)?;
        Ok(self.origin.serve(|| handle.origin.write_at(part.start, data))?)
    }

    /// Reads every segment from the side that holds it.
    fn read_segments(
        &self,
        handle: &OpenFile,
        identified: &Identified,
        range: ByteRange,
        buf: &mut [u8],
        segments: &[Segment],
    ) -> Result<BytesRead> {
        // First what is missing, in few large pieces that may include cached ranges; then the cached bytes over them,
        // which are at least as new.
        let MissingBytes { peers, mut whole } =
            self.misses.read(handle, identified, range, buf, segments)?;
        let Some(id) = handle.file.id() else { return Ok(BytesRead { cached: 0, peers, whole }) };
        let (mut cached, mut rest) = (0, segments);
        while let Some(first) = rest.first() {
            let (segments, behind) = rest.split_at(run(rest));
            rest = behind;
            let Some(extent) = first.extent else { continue };
            let all = ByteRange::new(first.range.start, segments[segments.len() - 1].range.end);
            let read = |part: ByteRange, buf: &mut [u8]| {
                let into = slice_mut(buf, range.start, part);
                self.identifier.timed(true, Direction::Read, Some(identified), part.len(), || {
                    self.repair.read_cache(id, extent.placement, part.start, into)
                })
            };
            let read_all = read(all, buf);
            let Err(error) = read_all else {
                let damaged = read_all?;
                self.repair.make_good(handle, id, segments, &damaged, (range.start, buf))?;
                cached += all.len();
                continue;
            };
            self.mappings.cache_failed(&error);
            for segment in segments {
                let part = segment.range;
                if !segment.extent.is_some_and(|extent| extent.dirty) {
                    whole &= self.origin.read(
                        &handle.origin,
                        part,
                        slice_mut(buf, range.start, part),
                    )?;
                } else if segments.len() == 1 {
                    // Only the cache has these bytes: an error is the only correct answer.
                    return Err(error.into());
                } else {
                    let damaged = read(part, buf)?;
                    let segment = std::slice::from_ref(segment);
                    self.repair.make_good(handle, id, segment, &damaged, (range.start, buf))?;
                    cached += part.len();
                }
            }
        }
        Ok(BytesRead { cached, peers, whole })
    }
}
