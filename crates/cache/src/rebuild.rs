//! The rebuilder of SLA-Cache: writes dirty extents to the origin, fetches what critical reads missed, returns space.
//! One thread decides; several flush regions concurrently.
//!
//! Programs come first: while they use the origin and there is no pressure, the rebuilder rests longer than it works,
//! but not indefinitely. Under pressure (dirty bytes fill too much of the cache, or are in too many files) it works
//! without rest, because programs wait for room (docs/ALGORITHMS.md, section 5).

mod missing_files;
mod signal;

use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bon::Builder;
use parking_lot::Mutex;

use self::missing_files::MissingFiles;
use self::signal::Signal;
use crate::backpressure::Backpressure;
use crate::barriers::Barriers;
use crate::counters::Counters;
use crate::damage::Damage;
use crate::defects::Defects;
use crate::degraded_mode::DegradedMode;
use crate::dirty_pressure::DirtyPressure;
use crate::discard::Discards;
use crate::extent::file::CachedFile;
use crate::extent::flush_handle::FlushHandles;
use crate::extent::store::ExtentStore;
use crate::extent::table::FileTable;
use crate::external_changes::ExternalChanges;
use crate::fetch::Fetcher;
use crate::flush::Sweeper;
use crate::flush::{Swept, Which};
use crate::health::Health;
use crate::known_files::KnownFiles;
use crate::origin_access::OriginAccess;
use crate::origin_share::OriginShare;
use crate::origin_space::OriginSpace;
use crate::own_changes::OwnChanges;
use crate::recover::Recoverer;
use crate::repair::Repair;
use crate::settings::Settings;
use crate::status_notes::Notes;
use halocline_meta::FileId;
use halocline_os::clock::{Clock, Work, age_ms};
use halocline_os::error::{Error, Result};
use halocline_vfs::namespace::Namespace;

/// While programs keep the origin busy, fetches get one part in `BUSY_SHARE` of its time (D11), `BUSY_SLICE` at once.
const BUSY_SHARE: u32 = 20;
const BUSY_SLICE: Duration = Duration::from_millis(10);

/// Below three quarters of the limit for dirty bytes, an idle origin gets dirty bytes only after programs have left
/// the cache alone for this long: what they rewrite in place need not go to the origin, and a flush would take the
/// cache's time.
const REST_NS: i64 = 1_000_000_000;

/// Interval of barriers without an fsync, so that flushed extents become evictable and a power loss costs little.
const BARRIER_EVERY: Duration = Duration::from_secs(5);

/// What the rebuilder is doing, for `status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doing {
    /// Nothing to do.
    Idle,
    /// Dirty bytes wait for age, idleness or the flush window.
    Waiting,
    /// Writing dirty extents to the origin.
    Flushing,
    /// Fetching wanted ranges.
    Fetching,
}

/// The rebuilder's thread.
#[derive(Debug)]
pub(crate) struct Rebuilder {
    pressure: Arc<DirtyPressure>,
    signal: Arc<Signal>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Why dirty bytes are flushed now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    /// They fill too much of the cache, or are in too many files: flushing takes precedence over programs.
    Room,
    /// The origin is nearly full: dirty bytes are flushed before others take the space promised to them.
    Short,
    /// Some are too old: flushing takes precedence over programs.
    Age,
    /// The origin is idle.
    Idle,
}

impl Rebuilder {
    /// Starts the rebuilder unless the options disable it.
    pub(crate) fn start(rounds: &Arc<Rounds>) -> Self {
        let signal = Arc::new(Signal::new(rounds.clock.clone()));
        let thread = rounds.settings.config.rebuild.then(|| {
            let (rounds, signal) = (Arc::clone(rounds), Arc::clone(&signal));
            let work = rounds.clock.work();
            thread::Builder::new()
                .name("rebuilder".to_owned())
                .spawn(move || rounds.run(&signal, work))
                .expect("the system can start one more thread")
        });
        Self { pressure: Arc::clone(&rounds.pressure), signal, thread: Mutex::new(thread) }
    }

    /// Wakes the rebuilder if there is pressure from dirty bytes. Cheap: called after every write.
    pub(crate) fn maybe_wake(&self) {
        if self.pressure.is_pressed() {
            self.signal.wake();
        }
    }

    /// What the rebuilder is doing.
    pub(crate) fn doing(&self) -> Doing {
        self.signal.doing()
    }

    /// Stops the rebuilder after its current region.
    pub(crate) fn stop(&self) {
        self.signal.stop();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Rebuilder {
    fn drop(&mut self) {
        self.stop();
    }
}

/// When periodic work is due.
#[derive(Debug)]
struct Pace {
    /// Time of the last barrier.
    barrier: Instant,
    /// Earliest time of the next fetch from a busy origin.
    fetch: Instant,
    /// Earliest time of the next fetch from an idle origin, because other nodes have work for it, too.
    fetch_idle: Instant,
}

/// What the rebuilder does in its rounds.
#[derive(Debug, Builder)]
pub(crate) struct Rounds {
    namespace: Arc<Namespace>,
    store: Arc<ExtentStore>,
    files: Arc<FileTable>,
    flush_handles: Arc<FlushHandles>,
    pressure: Arc<DirtyPressure>,
    origin: Arc<OriginAccess>,
    backpressure: Arc<Backpressure>,
    damage: Arc<Damage>,
    health: Arc<Health>,
    counters: Arc<Counters>,
    notes: Arc<Notes>,
    defects: Arc<Defects>,
    settings: Arc<Settings>,
    clock: Clock,
    known: Arc<KnownFiles>,
    own: Arc<OwnChanges>,
    external: Arc<ExternalChanges>,
    repair: Arc<Repair>,
    space: Arc<OriginSpace>,
    degraded_mode: Arc<DegradedMode>,
    sweeper: Arc<Sweeper>,
    discards: Arc<Discards>,
    barriers: Arc<Barriers>,
    fetcher: Arc<Fetcher>,
    recoverer: Arc<Recoverer>,
    share: Arc<OriginShare>,
    /// Dirty files that a flush could not find.
    #[builder(skip)]
    missing: MissingFiles,
}

impl Rounds {
    fn run(&self, signal: &Signal, work: Work) {
        let _working = work.begin();
        let now = self.clock.instant();
        let mut pace = Pace { barrier: now, fetch: now, fetch_idle: now };
        let mut housekeeping = self.clock.instant();
        let mut panics = 0;
        while !signal.stopping() {
            let met = self.defects.met();
            let worked = self.defects.guard("rebuilder", || {
                if self.clock.elapsed(housekeeping) >= Duration::from_secs(1) {
                    housekeeping = self.clock.instant();
                    self.origin.data.removals().work_off();
                    self.space.check();
                    self.external.count_saved();
                }
                self.round(signal, &mut pace)
            });
            if let Err(error) = &worked {
                self.notes.note(format!("rebuilder: {error}; tried again"));
                signal.set(Doing::Waiting);
            }
            panics = if self.defects.met() == met { 0 } else { panics + 1 };
            match worked {
                _ if panics > 0 => signal.rest(panics),
                Ok(true) => {}
                Ok(false) | Err(_) => signal.wait(),
            }
        }
    }

    /// One round; `true` if there is more to do at once.
    fn round(&self, signal: &Signal, pace: &mut Pace) -> Result<bool> {
        if self.store.dmt.changes().usable().is_err() {
            signal.set(Doing::Waiting);
            return self.degraded_mode.drain().map(|()| false);
        }
        self.own.record_resting(false);
        self.own.lease.keep();
        self.discards.discard_queued()?;
        self.discards.forget_empty(&self.fetcher)?;
        self.make_way_for_records()?;
        self.fetcher.note_wants();
        let reason = self.reason_to_flush();
        let may_flush = reason.is_some_and(|reason| reason != Reason::Room) || self.would_flush();
        self.share.note(may_flush || !self.store.dmt.critical().wanted(1).is_empty());
        // Other nodes' use of the origin is looked up only when there is work, so this may have to wait for that.
        let reason = reason.filter(|one| *one != Reason::Idle || self.may_use_idle_origin());
        if let Some(reason) = reason {
            signal.set(Doing::Flushing);
            let flushed = self.flush_pass(signal, reason)?;
            self.barriers.barrier()?;
            self.backpressure.room_was_made();
            pace.barrier = self.clock.instant();
            self.discards.discard_queued()?;
            return Ok(flushed > 0);
        }
        if self.clock.elapsed(pace.barrier) >= BARRIER_EVERY && self.barriers.are_due() {
            self.barriers.barrier()?;
            pace.barrier = self.clock.instant();
        }
        if self.share.is_idle() {
            let begun = self.clock.instant();
            if pace.fetch_idle <= begun && self.fetch_pass(signal)? {
                let pause = self.share.pause(self.clock.elapsed(begun), 1);
                pace.fetch_idle = self.clock.instant() + pause;
                return Ok(pause.is_zero());
            }
        } else if pace.fetch <= self.clock.instant() {
            let worked = self.fetch_beside_programs(signal)?;
            pace.fetch = self.clock.instant() + self.share.pause(worked, BUSY_SHARE);
        }
        let dirty = self.store.dmt.index().usage().dirty > 0;
        signal.set(if dirty { Doing::Waiting } else { Doing::Idle });
        Ok(false)
    }

    /// Evicts as much as the records need if they outgrew the space set aside for them (I5).
    fn make_way_for_records(&self) -> Result<()> {
        let excess = self.store.excess();
        if excess > 0 {
            self.counters.evicted(self.store.evict(&self.files, excess, None)?);
        }
        Ok(())
    }

    fn reason_to_flush(&self) -> Option<Reason> {
        // However old they are, neither damaged bytes nor those of a conflict that did not fit can be flushed.
        self.pressure.set_stuck(self.damage.dirty_bytes() + self.external.refused_bytes());
        if self.pressure.flushable_bytes() == 0 {
            return None;
        }
        if self.pressure.is_pressed() {
            return Some(Reason::Room);
        }
        if self.space.is_short() {
            return Some(Reason::Short);
        }
        let now_ms = self.clock.now_ms();
        let files = self.store.dmt.index().dirty_files();
        let files = files.iter().filter(|(id, _)| !self.is_stuck(*id));
        let oldest = files.map(|(_, since)| *since).min()?;
        if age_ms(now_ms, oldest) >= self.max_dirty_age_ms() {
            return Some(Reason::Age);
        }
        (self.is_in_window() && self.may_use_idle_origin()).then_some(Reason::Idle)
    }

    /// Whether flushing a file is pointless until somebody does something about it.
    fn is_stuck(&self, id: FileId) -> bool {
        self.external.is_refused(id) || self.repair.is_stuck(id)
    }

    /// Whether a flush disturbs no program: the origin is idle, and the cache is idle or filling up.
    fn may_use_idle_origin(&self) -> bool {
        self.share.is_idle() && self.is_rested()
    }

    /// Whether a flush would disturb no program of this node.
    fn would_flush(&self) -> bool {
        let has_dirty = self.pressure.flushable_bytes() > 0;
        has_dirty && self.is_in_window() && self.origin.is_idle() && self.is_rested()
    }

    fn is_in_window(&self) -> bool {
        let window = self.settings.config.flush_window;
        window.is_none_or(|window| window.contains(local_hour(self.clock.now_ms())))
    }

    /// Whether programs leave the cache alone, or it fills up.
    fn is_rested(&self) -> bool {
        let since_ns = self.clock.now_ns().saturating_sub(self.pressure.written_ns());
        // A write before the clock was set back counts as long ago.
        let rested = !(-REST_NS..REST_NS).contains(&since_ns);
        let fills = self.pressure.flushable_bytes() > self.pressure.dirty_high_bytes() / 4 * 3;
        rested || fills
    }

    /// Flushes files, the longest dirty first, until the reason no longer applies.
    fn flush_pass(&self, signal: &Signal, reason: Reason) -> Result<u64> {
        let mut files = self.store.dmt.index().dirty_files();
        self.missing.keep_only(&files);
        files.retain(|(id, _)| !self.is_stuck(*id));
        files.sort_by_key(|(_, since)| *since);
        let go_on = || {
            !signal.stopping()
                && match reason {
                    Reason::Room => {
                        self.pressure.too_dirty_bytes() > 0 || self.flush_handles.are_many()
                    }
                    Reason::Age | Reason::Short => true,
                    Reason::Idle => self.may_use_idle_origin(),
                }
        };
        let (mut total, mut failed, mut missing) = (0, None, Vec::new());
        for (id, since) in files {
            if !go_on() || (reason == Reason::Age && self.is_young(since)) {
                break;
            }
            let file = match self.known.file_by_id(id) {
                Ok(Some(file)) => file,
                Ok(None) => {
                    missing.extend(self.due_missing(id));
                    continue;
                }
                Err(error) => {
                    let record = self.known.record_of_missing(id);
                    failed = failed.or(record.map(|record| unflushed(&record.path, &error)));
                    continue;
                }
            };
            let which = match reason {
                Reason::Room if !self.flush_handles.are_many() => {
                    Which::Densest(self.pressure.too_dirty_bytes())
                }
                Reason::Room | Reason::Age | Reason::Idle | Reason::Short => Which::All,
            };
            match self.sweeper.sweep(&file, id, which, &|_| go_on()) {
                Ok(Swept::Flushed(flushed)) => total += flushed,
                Ok(Swept::Removed) => missing.extend(self.due_missing(id)),
                // One file that cannot be flushed must not hold up the others.
                Err(error) => failed = Some(self.flush_failed(&file, &error)),
            }
        }
        // Not while a program waits for room: the search walks the whole tree.
        self.find_missing(&missing, &|| !signal.stopping() && !self.backpressure.has_waiters())?;
        match failed {
            Some(error) if total == 0 => Err(error),
            _ => Ok(total),
        }
    }

    /// A dirty file was not found under its name; `Some` if it is to be searched for. Most such files were removed
    /// since the flush began.
    fn due_missing(&self, id: FileId) -> Option<FileId> {
        self.known.record_of_missing(id)?;
        self.missing.note(id, self.clock.now_ms()).then_some(id)
    }

    /// Searches for dirty files that remain missing, and saves the bytes of those that no longer exist (I9).
    fn find_missing(&self, ids: &[FileId], go_on: &dyn Fn() -> bool) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        if let Some(obstacle) = self.recoverer.search_missing(ids, go_on)? {
            self.notes.note(format!("dirty files are not where they were: {obstacle}"));
        }
        for id in ids {
            if let Some(record) = self.known.record_of_missing(*id)
                && matches!(self.known.file_by_id(*id), Ok(None))
            {
                self.notes.note(format!(
                    "{}: not there any more, with dirty bytes on the cache; it is searched for again",
                    record.path.display()
                ));
            }
        }
        Ok(())
    }

    fn is_young(&self, dirty_since_ms: u64) -> bool {
        age_ms(self.clock.now_ms(), dirty_since_ms) < self.max_dirty_age_ms()
    }

    fn max_dirty_age_ms(&self) -> u64 {
        u64::try_from(self.settings.config.max_dirty_age.as_millis()).unwrap_or(u64::MAX)
    }

    fn flush_failed(&self, file: &CachedFile, error: &Error) -> Error {
        unflushed(&self.namespace.path_of(&file.vnode.read()), error)
    }

    /// Fetches one batch of wanted ranges while the origin is idle; returns whether any bytes were fetched.
    fn fetch_pass(&self, signal: &Signal) -> Result<bool> {
        if self.store.dmt.critical().wanted(1).is_empty()
            || !self.health.admits(self.clock.now_ms())
        {
            return Ok(false);
        }
        signal.set(Doing::Fetching);
        let go_on = || !signal.stopping() && self.share.is_idle();
        Ok(self.fetcher.fetch_batch(&go_on, true)?.unwrap_or(0) > 0)
    }

    /// Fetches briefly although programs use the origin, so that no wanted range waits indefinitely, and only into
    /// free room. Returns the time taken, or more if `rebuild_rate` requires a longer pause.
    fn fetch_beside_programs(&self, signal: &Signal) -> Result<Duration> {
        if self.store.dmt.critical().wanted(1).is_empty()
            || !self.health.admits(self.clock.now_ms())
        {
            return Ok(Duration::ZERO);
        }
        signal.set(Doing::Fetching);
        let begun = self.clock.instant();
        let go_on = || !signal.stopping() && self.clock.elapsed(begun) < BUSY_SLICE;
        let bytes = self.fetcher.fetch_batch(&go_on, false)?.unwrap_or(0);
        let worked = self.clock.elapsed(begun);
        let limit = self.settings.config.rebuild_rate;
        if limit == 0 {
            return Ok(worked);
        }
        #[expect(clippy::cast_precision_loss, reason = "a pause, not an amount")]
        let due = Duration::from_secs_f64(bytes as f64 / limit as f64);
        Ok(worked.max(due / (BUSY_SHARE - 1)))
    }
}

fn unflushed(path: &Path, error: &Error) -> Error {
    Error::invalid(
        format!("{} cannot be flushed: {error}", path.display()),
        "its dirty bytes stay on the cache; see to that and flush again",
    )
}

/// The hour of the local day.
fn local_hour(now_ms: u64) -> u8 {
    let seconds = libc::time_t::try_from(now_ms / 1000).unwrap_or(0);
    // SAFETY: both pointers are to live values of the right type for the length of the call.
    let hour = unsafe {
        let mut local: libc::tm = std::mem::zeroed();
        libc::localtime_r(&raw const seconds, &raw mut local);
        local.tm_hour
    };
    u8::try_from(hour).unwrap_or(0)
}
