//! Free space on both sides, so that what is admitted can be stored and later flushed.
//!
//! A write that becomes dirty where the origin has no block yet reserves some of the origin's free space. What must
//! hold: these promises never exceed the space that was free at the last check, less what has been taken of it
//! through us since. So a check (once a second, and when the budget is used up) sets how much may still be taken, and
//! every write that may need new blocks takes from that: two atomic additions. A write that finds nothing left goes
//! to the origin, which answers the program itself; one that would need space promised to dirty bytes gets `ENOSPC`,
//! as it would if those were on the origin already.
//!
//! New names and attributes take a block each, and blocks that a program reserves (`fallocate`) are taken
//! before they are reserved.
//!
//! Other processes on the origin take from the same space, which the next check sees: the reserve is for them and for
//! the file system's own blocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bon::Builder;
use halocline_model::request::ByteRange;
use parking_lot::Mutex;

use super::block_count::new_bytes_in;
use super::open_file::OpenFile;
use crate::extent::file::{CachedFile, WHOLE};
use crate::extent::store::ExtentStore;
use crate::extent::table::FileTable;
use crate::health::Health;
use crate::origin_access::OriginAccess;
use crate::settings::Settings;
use crate::status_notes::Notes;
use halocline_meta::{BLOCK, FileId};
use halocline_os::clock::Clock;
use halocline_os::error::{Error, Result};
use halocline_storage::volume::origin::OriginFile;
use halocline_vfs::namespace::Namespace;

/// The cache's file system keeps at least this much free, or 1 % if that is less, for records and for other users.
const CACHE_RESERVE_BYTES: u64 = 64 << 20;

/// The origin must have room for what is dirty and this much more, or 1 % if that is less.
const ORIGIN_RESERVE_BYTES: u64 = 64 << 20;

/// When no more than this is left beyond those two, dirty bytes are compared with the origin's holes.
const NEAR_BYTES: u64 = 64 << 20;

/// Writes that find the budget used up check for new space no more often than this.
const RECHECK_AFTER: Duration = Duration::from_millis(50);

/// Dirty extents that one check compares with the origin's holes.
const COMPARED_MAX: usize = 16 << 10;

/// Free space of the origin that writes may take.
#[derive(Debug, Builder)]
pub(crate) struct OriginSpace {
    health: Arc<Health>,
    store: Arc<ExtentStore>,
    files: Arc<FileTable>,
    origin: Arc<OriginAccess>,
    namespace: Arc<Namespace>,
    notes: Arc<Notes>,
    settings: Arc<Settings>,
    clock: Clock,
    /// Bytes taken so far, in whole blocks.
    #[builder(skip)]
    taken: AtomicU64,
    /// Those of them whose writes have ended: a check sees them, dirty or on the origin.
    #[builder(skip)]
    ended: AtomicU64,
    /// Upper bound of `taken` for writes that are kept dirty.
    #[builder(skip)]
    limit: AtomicU64,
    /// The same for writes that go to the origin, which may use the reserve.
    #[builder(skip)]
    last: AtomicU64,
    /// The most new blocks that dirty bytes need on the origin.
    #[builder(skip)]
    promised: AtomicU64,
    /// Whether the origin has less free space than what is promised plus the reserve.
    #[builder(skip)]
    short: AtomicBool,
    #[builder(skip)]
    last_check: Mutex<LastCheck>,
}

#[derive(Debug, Default)]
struct LastCheck {
    at: Option<Instant>,
    refusal: Option<Refusal>,
}

/// The origin had no room for a flush.
#[derive(Debug)]
struct Refusal {
    file: FileId,
    /// Whether a quota was the cause, which the file system's free space does not show.
    is_quota: bool,
    /// Free bytes at that time.
    available: u64,
}

/// Space taken by a write in progress.
#[derive(Debug)]
#[must_use = "the write has ended when it is dropped"]
pub(crate) struct TakenSpace<'a> {
    space: &'a OriginSpace,
    bytes: u64,
}

impl Drop for TakenSpace<'_> {
    fn drop(&mut self) {
        self.space.ended.fetch_add(self.bytes, Ordering::Release);
    }
}

impl OriginSpace {
    fn take(&self, bytes: u64, limit: &AtomicU64) -> Option<TakenSpace<'_>> {
        let limit = limit.load(Ordering::Acquire);
        let fits = |taken: u64| taken.checked_add(bytes).filter(|taken| *taken <= limit);
        let taken = self.taken.fetch_update(Ordering::AcqRel, Ordering::Relaxed, fits);
        taken.ok().map(|_| TakenSpace { space: self, bytes })
    }

    /// Whether dirty bytes with promised space should be flushed soon, before others take that space.
    pub(crate) fn is_short(&self) -> bool {
        self.short.load(Ordering::Relaxed) && self.promised.load(Ordering::Relaxed) > 0
    }
}

impl OriginSpace {
    /// Checks both file systems; closes or reopens admission.
    pub(crate) fn check(&self) {
        self.health.set_full(self.lack_of_space());
        self.check_origin(&mut self.last_check.lock());
    }

    fn lack_of_space(&self) -> Option<String> {
        for server in self.store.objects.volume().servers() {
            let Ok(space) = server.device().space() else { continue };
            if space.available < CACHE_RESERVE_BYTES.min(space.total / 100) {
                return Some(format!(
                    "{} has only {} bytes free, so nothing new is cached; free some or set a smaller --size",
                    server.dir().display(),
                    space.available
                ));
            }
            if space.no_files {
                return Some(format!(
                    "{} is on a file system without free inodes (df -i), so nothing new is cached; remove \
                     files there",
                    server.dir().display()
                ));
            }
        }
        None
    }

    /// Takes space on the origin for a part that is to become dirty. `None`: the origin may not have it later, so the
    /// part must go there at once.
    pub(crate) fn take_dirty(&self, handle: &OpenFile, part: ByteRange) -> Option<TakenSpace<'_>> {
        let bytes = part.widen_to(BLOCK).len();
        let taken = self.take(bytes, &self.limit);
        if taken.is_some() {
            return taken;
        }
        if new_bytes_in(&handle.origin, part) == 0 {
            return Some(TakenSpace { space: self, bytes: 0 });
        }
        let mut last_check = self.last_check.try_lock()?;
        if last_check.at.is_some_and(|at| self.clock.elapsed(at) < RECHECK_AFTER) {
            return None;
        }
        self.check_origin(&mut last_check);
        drop(last_check);
        self.take(bytes, &self.limit)
    }

    /// Takes space for a part that goes to the origin now.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if dirty bytes need what the origin has left.
    pub(crate) fn take_for_origin(
        &self,
        handle: &OpenFile,
        part: ByteRange,
    ) -> Result<TakenSpace<'_>> {
        self.take_now(part, &|| new_bytes_in(&handle.origin, part))
    }

    /// The same for blocks that a program reserves in `range`. Dirty bytes there already have their space.
    pub(crate) fn take_reserved(
        &self,
        handle: &OpenFile,
        range: ByteRange,
    ) -> Result<TakenSpace<'_>> {
        self.take_now(range, &|| {
            let dmt = &self.store.dmt;
            let dirty = handle.file.id().map(|id| dmt.index().dirty(id, range, COMPARED_MAX));
            let range = range.widen_to(BLOCK);
            let (mut sum, mut at) = (0, range.start);
            for extent in dirty.unwrap_or_default() {
                let blocks = extent.range.widen_to(BLOCK);
                if blocks.start > at {
                    sum += new_bytes_in(&handle.origin, ByteRange::new(at, blocks.start));
                }
                at = at.max(blocks.end);
            }
            let rest = (at < range.end).then(|| ByteRange::new(at, range.end));
            sum + rest.map_or(0, |rest| new_bytes_in(&handle.origin, rest))
        })
    }

    /// The same for a name or `bytes` of attributes: a block that a directory or an inode may need.
    pub(crate) fn take_name(&self, bytes: u64) -> Result<TakenSpace<'_>> {
        let range = ByteRange::at(0, bytes.max(1));
        self.take_now(range, &|| range.widen_to(BLOCK).len())
    }

    /// Takes space for new blocks in `range`; `needed` returns their size in bytes.
    fn take_now(&self, range: ByteRange, needed: &dyn Fn() -> u64) -> Result<TakenSpace<'_>> {
        if let Some(taken) = self.take(range.widen_to(BLOCK).len(), &self.last) {
            return Ok(taken);
        }
        let nobodys = || Ok(TakenSpace { space: self, bytes: 0 });
        if self.store.dmt.index().usage().dirty == 0 {
            return nobodys();
        }
        let needed = needed();
        if needed == 0 {
            return nobodys();
        }
        let mut last_check = self.last_check.lock();
        self.check_origin(&mut last_check);
        if let Some(taken) = self.take(needed, &self.last) {
            return Ok(taken);
        }
        if self.promised.load(Ordering::Acquire) == 0 {
            return nobodys();
        }
        Err(rustix::io::Errno::NOSPC.into())
    }

    /// Takes space for the gaps in `span` of the file `origin`, of which `bytes` bytes are data; `None` if there is
    /// no space.
    pub(crate) fn take_gaps(
        &self,
        origin: &OriginFile,
        span: ByteRange,
        bytes: u64,
    ) -> Option<TakenSpace<'_>> {
        let gaps = span.widen_to(BLOCK).len().saturating_sub(bytes);
        let nobodys =
            || (new_bytes_in(origin, span) == 0).then_some(TakenSpace { space: self, bytes: 0 });
        self.take(gaps, &self.limit).or_else(nobodys)
    }

    /// Sets what may be taken from now on.
    fn check_origin(&self, last_check: &mut LastCheck) {
        // Read first: writes that end from now on count as taken, although they may also be seen below.
        let ended = self.ended.load(Ordering::Acquire);
        let usage = self.store.dmt.index().usage();
        // An extent may begin and end inside a block.
        let mut promised = usage.dirty + usage.dirty_extents * 2 * BLOCK;
        let (mut available, reserve) = self.free_on_origin();
        let near = promised.saturating_add(reserve).saturating_add(NEAR_BYTES);
        if available < near && !self.origin.data.removals().is_empty() {
            // What programs have removed is free for them.
            self.origin.data.removals().work_off();
            available = self.free_on_origin().0;
        }
        if available < near && promised > 0 {
            promised = promised.min(self.new_bytes_of_dirty().unwrap_or(u64::MAX));
            // Read last, so that space that a flush took meanwhile is missing in both, or in neither.
            available = available.min(self.free_on_origin().0);
        }
        if last_check.refusal.as_ref().is_some_and(|refusal| {
            let seen = !refusal.is_quota
                && available > refusal.available
                && available >= promised.saturating_add(reserve);
            seen || self.store.dmt.index().dirty_bytes(refusal.file) == 0
        }) {
            last_check.refusal = None;
        }
        let left = available.saturating_sub(promised);
        let open = if last_check.refusal.is_some() { 0 } else { left.saturating_sub(reserve) };
        let limit = if open == 0 { 0 } else { ended.saturating_add(open) };
        self.limit.store(limit, Ordering::Release);
        self.last.store(ended.saturating_add(left), Ordering::Release);
        self.promised.store(promised, Ordering::Release);
        let short = left < reserve;
        self.short.store(short && last_check.refusal.is_none(), Ordering::Relaxed);
        last_check.at = Some(self.clock.instant());
        self.health.set_origin_short(match &last_check.refusal {
            Some(refusal) if refusal.is_quota => Some(format!(
                "{}: a quota is used up; writes that need new space go straight there. Raise the \
                 quota or remove files, then run `halocline flush`",
                self.settings.origin_dir.display()
            )),
            None if !short => None,
            _ => Some(format!(
                "{} has only {available} bytes free and {} bytes are still to be flushed; writes \
                 that need new space go straight there; free some",
                self.settings.origin_dir.display(),
                usage.dirty
            )),
        });
    }

    /// Free bytes of the origin and how many of them are the reserve. Stripes fill the servers evenly, so the fullest
    /// one counts.
    fn free_on_origin(&self) -> (u64, u64) {
        let servers = self.origin.data.servers();
        let spaces = servers.iter().filter_map(|server| server.device().space().ok());
        let each =
            spaces.map(|space| (space.available, ORIGIN_RESERVE_BYTES.min(space.total / 100)));
        let count = servers.len() as u64;
        each.min_by_key(|(available, _)| *available)
            .map_or((u64::MAX, 0), |(available, reserve)| {
                (available.saturating_mul(count), reserve.saturating_mul(count))
            })
    }

    /// Bytes of new blocks that all dirty bytes need on the origin; `None` if they lie in too many pieces to examine.
    fn new_bytes_of_dirty(&self) -> Option<u64> {
        let (mut sum, mut left) = (0, COMPARED_MAX);
        for (id, _) in self.store.dmt.index().dirty_files() {
            let file = self.files.by_id(id);
            let flush_handle =
                file.and_then(|file| Some(file.flush_handle.lock().as_ref()?.origin.clone()));
            let extents = self.store.dmt.index().dirty(id, WHOLE, left);
            left = left.checked_sub(extents.len()).filter(|left| *left > 0)?;
            let mut reached = 0;
            for extent in extents {
                let blocks = extent.range.widen_to(BLOCK);
                let blocks = ByteRange::new(blocks.start.max(reached), blocks.end.max(reached));
                reached = blocks.end;
                sum += match &flush_handle {
                    _ if blocks.is_empty() => 0,
                    Some(origin) => new_bytes_in(origin, blocks),
                    None => blocks.len(),
                };
            }
        }
        Some(sum)
    }

    /// A flush of `file` failed with `error`. If the origin has no room for it, writes that need more are no longer
    /// kept dirty, and the error says what to do.
    pub(crate) fn explain_no_room(&self, file: &CachedFile, id: FileId, error: Error) -> Error {
        let errno = error.errno();
        let is_quota = errno == libc::EDQUOT;
        if !is_quota && errno != libc::ENOSPC {
            return error;
        }
        let origin = self.settings.origin_dir.display();
        let message = if is_quota {
            format!(
                "a quota on the origin {origin} is used up: raise it or remove files, then run \
                 `halocline flush`"
            )
        } else {
            format!(
                "no space is left on the origin {origin}: free some, then run `halocline flush`"
            )
        };
        let mut last_check = self.last_check.lock();
        let available = self.free_on_origin().0;
        let before = last_check.refusal.replace(Refusal { file: id, is_quota, available });
        self.check_origin(&mut last_check);
        drop(last_check);
        if before.is_none() {
            let path = self.namespace.path_of(&file.vnode.read());
            self.notes.note(format!("{}: cannot be flushed: {message}", path.display()));
        }
        Error::Refused { message, errno }
    }

    /// All of a file was flushed.
    pub(crate) fn had_room(&self, id: FileId) {
        let mut last_check = self.last_check.lock();
        if last_check.refusal.as_ref().is_some_and(|refusal| refusal.file == id) {
            last_check.refusal = None;
            self.check_origin(&mut last_check);
        }
    }
}
