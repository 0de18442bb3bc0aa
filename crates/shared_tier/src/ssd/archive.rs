//! The background thread that has the shared disk keep copies of files on the SSD which writers have left alone
//! (`--copies archive`).

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use halocline_api::config::Copies as Kept;
use halocline_api::control::tier::{CopiesStatus, Moved};
use halocline_model::namespace::InodeNumber;
use halocline_os::catch_panic::caught;
use halocline_os::error::Result;
use halocline_os::priority::yield_to_programs;
use halocline_os::wakeups::Wakeups;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::OwnSsd;
use super::background::wakeups;
use super::left_alone::LeftAlone;
use super::moves_at_once::MovesAtOnce;
use super::paths::Paths;
use super::scan::{ScannedFile, Stamp, scan};
use super::unnumbered::Unasked;
use crate::archiver::{Archived, Archiver};
use crate::closes::note_all;
use crate::moves::IsOver;
use crate::places::SHARED;
use crate::places::copies::is_whole_second;
use crate::places::room::Need;

/// The longest pause between two scans of the SSD, and the shortest.
const LOOK_EVERY: Duration = Duration::from_mins(1);
const LOOK_SOONEST: Duration = Duration::from_secs(1);
/// A scan takes at most one part in so many of the time.
const LOOK_SHARE: u32 = 20;
/// How often it is compared whether the copies are still there: they may have given way.
const COMPARE_EVERY: Duration = Duration::from_mins(10);
/// The most files that are copied at once: most of the time of a small one goes into syncs.
const PARALLEL_MAX: usize = 4;
/// The part of the shared disk that is left free, so that copies which gave way do not come back at once.
const FREE_SHARE: u64 = 50;
/// After this time nothing more is changed in a second, whose clocks differ a little.
const SETTLED_NS: i64 = 2_000_000_000;
/// After so many failures, the round ends.
const FAILURES_MAX: usize = 8;

/// What the thread knows, and what it has done.
#[derive(Debug, Default)]
pub(crate) struct Archive(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// Files with a copy, as they were then.
    copied: FxHashMap<u64, Stamp>,
    status: CopiesStatus,
}

impl Archive {
    /// For people.
    pub(crate) fn status(&self) -> CopiesStatus {
        let known = self.0.lock();
        let clean = Moved {
            files: known.copied.len() as u64,
            bytes: known.copied.values().map(|stamp| stamp.size).sum(),
        };
        CopiesStatus { clean, ..known.status.clone() }
    }
}

/// The running thread.
#[derive(Debug)]
pub(crate) struct ArchiveThread {
    ssd: Arc<OwnSsd>,
    wakeups: Arc<Wakeups<bool>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl ArchiveThread {
    /// Starts the thread, if copies are wanted.
    ///
    /// # Errors
    /// If no more threads can be started.
    pub(crate) fn start(ssd: &Arc<OwnSsd>) -> Result<Self> {
        let wakeups = Arc::new(wakeups(&ssd.base.clock));
        let mut thread = None;
        if let Some(after) = ssd.archive_after {
            let (looked, swept) = (None, false);
            let left_alone = LeftAlone::default();
            let rounds =
                Rounds { ssd: Arc::clone(ssd), after, left_alone, looked, compared: None, swept };
            let wakeups = Arc::clone(&wakeups);
            thread =
                Some(thread::Builder::new().name("tier-archiver".into()).spawn(move || {
                    yield_to_programs();
                    rounds.run(&wakeups);
                })?);
        }
        Ok(Self { ssd: Arc::clone(ssd), wakeups, thread: Mutex::new(thread) })
    }

    /// Ends the thread; a file that is being copied has no copy.
    pub(crate) fn stop(&self) {
        self.ssd.executor.stops.store(true, Ordering::Relaxed);
        self.wakeups.stop();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

impl Drop for ArchiveThread {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The rounds of the thread, one after the other.
struct Rounds {
    ssd: Arc<OwnSsd>,
    /// How long writers must have left a file alone.
    after: Duration,
    left_alone: LeftAlone,
    /// When the SSD was scanned last, and how long that took.
    looked: Option<(Instant, Duration)>,
    /// When the copies were last compared.
    compared: Option<Instant>,
    /// Whether copies that an earlier mount left without a mark are gone.
    swept: bool,
}

impl Rounds {
    fn run(mut self, wakeups: &Wakeups<bool>) {
        let ssd = Arc::clone(&self.ssd);
        loop {
            let done = caught(|| self.round()).unwrap_or_else(|panicked| {
                tracing::error!(%panicked, "files have no copies for now");
                ssd.archive.0.lock().status.trouble = Some(panicked.to_string());
                Ok(())
            });
            if let Err(error) = done {
                tracing::debug!(%error, "files have no copies for now");
                ssd.archive.0.lock().status.trouble = Some(error.to_string());
            }
            if !wakeups.wait(std::mem::take) {
                break;
            }
        }
    }

    fn stops(&self) -> bool {
        self.ssd.executor.stops.load(Ordering::Relaxed)
    }

    fn round(&mut self) -> Result<()> {
        let ssd = Arc::clone(&self.ssd);
        let clock = &ssd.base.clock;
        let pause = (self.after / 2).clamp(LOOK_SOONEST, LOOK_EVERY);
        let is_due =
            |(at, took): &(Instant, Duration)| clock.elapsed(*at) >= pause.max(*took * LOOK_SHARE);
        if !self.looked.as_ref().is_none_or(is_due) || self.ssd.base.sessions.check().is_err() {
            return Ok(());
        }
        if !self.swept {
            self.archiver().sweep()?;
            self.swept = true;
        }
        if self.compared.is_none_or(|at| clock.elapsed(at) >= COMPARE_EVERY) {
            self.ssd.archive.0.lock().copied.clear();
            self.compared = Some(clock.instant());
        }
        let begun = clock.instant();
        let due = self.due()?;
        self.looked = Some((clock.instant(), clock.elapsed(begun)));
        note_all(&self.ssd.base);
        self.copy_all(due);
        Ok(())
    }

    fn archiver(&self) -> Archiver<'_> {
        let base = &*self.ssd.base;
        Archiver { names: &base.names, places: &base.places }
    }

    /// The files that writers have left alone and that have no copy, as far as known.
    fn due(&mut self) -> Result<VecDeque<ScannedFile>> {
        let mut left_alone = std::mem::take(&mut self.left_alone);
        left_alone.begin();
        let due = self.due_by(&mut left_alone);
        self.left_alone = left_alone;
        due
    }

    fn due_by(&self, left_alone: &mut LeftAlone) -> Result<VecDeque<ScannedFile>> {
        let base = &self.ssd.base;
        let now = (&base.clock, base.now_ns());
        let mut due = VecDeque::new();
        let mut copied = FxHashMap::default();
        let mut waiting = Moved::default();
        let each = &mut |seen: ScannedFile| {
            if self.stops() {
                return ControlFlow::Break(());
            }
            if self.ssd.archive.0.lock().copied.get(&seen.number) == Some(&seen.stamp) {
                copied.insert(seen.number, seen.stamp);
            } else {
                waiting.files += 1;
                waiting.bytes = waiting.bytes.saturating_add(seen.stamp.size);
                if left_alone.is_old((seen.number, seen.stamp), self.after, now) {
                    due.push_back(seen);
                }
            }
            ControlFlow::Continue(())
        };
        // Directories are removed by the other scan.
        scan(base.places.ssd(), each, &mut Unasked)?;
        let mut known = self.ssd.archive.0.lock();
        (known.copied, known.status.waiting) = (copied, waiting);
        known.status.kept = Kept::Archive;
        Ok(due)
    }

    fn copy_all(&self, due: VecDeque<ScannedFile>) {
        let at_once = due.len().min(PARALLEL_MAX);
        let (due, failures) = (Mutex::new(due), Mutex::new(0));
        let moves = MovesAtOnce::default();
        let work = || {
            while !self.stops() && *failures.lock() < FAILURES_MAX {
                let Some(file) = due.lock().pop_front() else { break };
                let copying = moves.begin(file.stamp.size);
                if let Err(error) = self.copy(&file) {
                    *failures.lock() += 1;
                    let path = Paths::new(&self.ssd.base.paths).shown(&file.resident.name);
                    let why = format!("{}: {error}", path.display());
                    self.ssd.archive.0.lock().status.trouble = Some(why);
                }
                drop(copying);
            }
        };
        thread::scope(|scope| {
            for _ in 1..at_once {
                // If no thread can be started, fewer will do.
                let _ = thread::Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
        if *failures.lock() == 0 {
            self.ssd.archive.0.lock().status.trouble = None;
        }
    }

    fn copy(&self, file: &ScannedFile) -> Result<()> {
        let base = &*self.ssd.base;
        let totals = base.places.totals(SHARED)?;
        let spare = (totals.f_blocks / FREE_SHARE).saturating_mul(totals.f_frsize);
        let bytes = spare.saturating_add(file.resident.bytes);
        let has_room = Need { bytes, files: totals.f_files / FREE_SHARE }.is_free(&totals);
        let goes_on = &mut |_| {
            if self.stops() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let is_over = |session| base.sessions.is_over(session);
        let number = InodeNumber(file.number);
        let how = (&is_over as IsOver<'_>, has_room);
        let archived = self.archiver().archive(&file.resident.name, number, how, goes_on)?;
        // To mark a file that is copied changes its ctime.
        let stamp = base.names.lookup(&file.resident.name).ok().and_then(|found| {
            let place = found.attributes.location.filter(|_| found.inode == number)?;
            Some(Stamp::of(&base.places.stat(&place, file.number).ok()?))
        });
        let mut known = self.ssd.archive.0.lock();
        if let Archived::Done(_) = archived {
            known.status.archived.files += 1;
            known.status.archived.bytes += file.stamp.size;
        }
        let is_copied = matches!(archived, Archived::Done(_) | Archived::Already);
        let is_same =
            |stamp: &Stamp| (stamp.mtime_ns, stamp.size) == (file.stamp.mtime_ns, file.stamp.size);
        // What was changed in the same second looks the same on an SSD that keeps whole seconds: it is seen again.
        let until = base.now_ns().saturating_sub(SETTLED_NS);
        let is_settled =
            |stamp: &Stamp| !is_whole_second(stamp.ctime_ns) || stamp.ctime_ns <= until;
        let is_copied = |stamp: &Stamp| is_copied && is_same(stamp) && is_settled(stamp);
        if let Some(stamp) = stamp.filter(is_copied) {
            known.copied.insert(file.number, stamp);
            known.status.waiting.files = known.status.waiting.files.saturating_sub(1);
            known.status.waiting.bytes = known.status.waiting.bytes.saturating_sub(file.stamp.size);
        }
        Ok(())
    }
}
