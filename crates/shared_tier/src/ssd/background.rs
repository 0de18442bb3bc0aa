//! The background thread of the SSD: demotes files before it is full, and picks up changes by others.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use halocline_os::catch_panic::caught;
use halocline_os::clock::Clock;
use halocline_os::error::{Error, Result};
use halocline_os::priority::yield_to_programs;
use halocline_os::wakeups::Wakeups;
use parking_lot::Mutex;

use super::OwnSsd;
use crate::missed_changes::TriedNotes;
use crate::places::spare_room;

/// How often the SSD is checked without a wakeup.
const TICK: Duration = Duration::from_secs(1);
/// How often the SSD is scanned: only a scan finds what other nodes do there.
const LOOK_EVERY: Duration = Duration::from_mins(1);
/// The same after something turned out to be stale.
const LOOK_SOON: Duration = Duration::from_secs(5);
/// A scan takes at most one part in so many of the time.
const LOOK_SHARE: u32 = 20;

/// Wakes the thread: the SSD may be above its watermark.
pub(super) type SsdWakeups = Wakeups<bool>;

/// Wake-ups with nothing due yet.
pub(super) fn wakeups(clock: &Clock) -> SsdWakeups {
    Wakeups::new(clock, TICK)
}

/// When the SSD was scanned last, and how long that took.
#[derive(Debug)]
struct Looked {
    at: Instant,
    took: Duration,
    /// Notes of renames that were unfinished then.
    unfinished: BTreeSet<String>,
}

/// The running thread.
#[derive(Debug)]
pub(crate) struct Background {
    ssd: Arc<OwnSsd>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Background {
    /// Starts the thread.
    ///
    /// # Errors
    /// If no more threads can be started.
    pub(crate) fn start(ssd: &Arc<OwnSsd>) -> Result<Self> {
        let rounds = Rounds {
            ssd: Arc::clone(ssd),
            looked: None,
            missed: TriedNotes::default(),
            has_told_spare: false,
        };
        let thread = thread::Builder::new().name("tier-demoter".into()).spawn(move || {
            yield_to_programs();
            rounds.run();
        })?;
        Ok(Self { ssd: Arc::clone(ssd), thread: Mutex::new(Some(thread)) })
    }

    /// Ends the thread; a file that is being moved stays where it is.
    pub(crate) fn stop(&self) {
        self.ssd.executor.stops.store(true, Ordering::Relaxed);
        self.ssd.wakeups.stop();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The rounds of the thread, one after the other.
struct Rounds {
    ssd: Arc<OwnSsd>,
    /// The last scan, once there was one.
    looked: Option<Looked>,
    /// Notes of what SSDs have missed, as far as tried since then.
    missed: TriedNotes,
    /// Whether people were told what has the name of the room that is set aside.
    has_told_spare: bool,
}

impl Rounds {
    /// Runs round after round. A round that panics leaves its files at the step that it had reached, as a kill would.
    fn run(mut self) {
        let ssd = Arc::clone(&self.ssd);
        loop {
            let in_vain = caught(|| self.round()).unwrap_or_else(|panicked| {
                tracing::error!(%panicked, "files stay where they are for now");
                *ssd.executor.trouble.lock() = Some(panicked.to_string());
                true
            });
            // After a fruitless round wait a full tick; otherwise every write to a full SSD would wake us.
            if !ssd.wakeups.wait(|is_due| !in_vain && std::mem::take(is_due)) {
                break;
            }
        }
        ssd.executor.planner.jobs().note_places();
    }

    /// Does what is due; returns whether it was fruitless.
    fn round(&mut self) -> bool {
        let (ssd, base) = (&*self.ssd, &*self.ssd.base);
        if base.sessions.check().is_err() {
            // Others may have moved our files.
            return true;
        }
        if let Err(error) = spare_room::keep(base.places.ssd()) {
            let is_for_people = matches!(error, Error::Invalid { .. });
            if is_for_people && !std::mem::replace(&mut self.has_told_spare, true) {
                tracing::warn!("{error}");
            }
            tracing::debug!(%error, "no room is set aside for moves off a full SSD");
        }
        let looks = self.is_look_due();
        self.missed.follow(base.listing(), looks);
        if looks {
            let begun = base.clock.instant();
            ssd.look(self.looked.is_none());
            let before = self.looked.take().map_or_else(BTreeSet::new, |last| last.unfinished);
            let unfinished = base.places.finish_renames(&before).unwrap_or_else(|error| {
                tracing::warn!(%error, "directories of the shared disk are not all where the store has them");
                before
            });
            base.late.follow(&base.disk());
            let took = base.clock.elapsed(begun);
            self.looked = Some(Looked { at: base.clock.instant(), took, unfinished });
        }
        let are_rules_new = ssd.refresh();
        ssd.count_written();
        if (looks || are_rules_new) && ssd.executor.planner.rules.has_excludes() {
            ssd.push_out_excluded();
        }
        !ssd.executor.keep_below_watermarks()
    }

    fn is_look_due(&self) -> bool {
        let Some(Looked { at, took, .. }) = &self.looked else { return true };
        let executor = &self.ssd.executor;
        let wanted =
            if executor.wants_look.swap(false, Ordering::Relaxed) { LOOK_SOON } else { LOOK_EVERY };
        let is_due = self.ssd.base.clock.elapsed(*at) >= wanted.max(*took * LOOK_SHARE);
        if !is_due && wanted == LOOK_SOON {
            executor.wants_look.store(true, Ordering::Relaxed);
        }
        is_due
    }
}
