//! A session's lease by its node's own clock, which says it is over earlier than the store's does (I12).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use halocline_os::clock::Clock;

use super::Options;

/// Where a session must be found while it lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Where {
    /// Among the members in the store.
    Store,
    /// In the list on the origin.
    List,
}

/// A look at one of these places. One that misses the session proves its end only if it began after another one had
/// missed it too: a file system's client, or a store that is being replaced, may answer wrongly once.
#[derive(Debug, Clone, Copy)]
#[must_use = "it finds the session or misses it"]
pub(super) struct Look {
    place: Where,
    is_second: bool,
}

/// The lease of this node's session.
#[derive(Debug)]
pub(super) struct OwnLease {
    clock: Clock,
    /// How long it lasts from when the request that renews it was sent, with the margin subtracted.
    lasts: Duration,
    begun: Instant,
    /// When it ends, in nanoseconds since `begun`.
    until_ns: AtomicU64,
    /// Number of lapses.
    lapses: AtomicU64,
    /// Another node recovered the session or gave it up.
    ended: AtomicBool,
    /// The list of sessions is not where it was: others may not see this node any more.
    unlisted: AtomicBool,
    /// The last look at the store, and at the list, missed the session. Nothing begins until it is found there.
    missed: [AtomicBool; 2],
}

impl OwnLease {
    /// None yet.
    pub(super) fn new(options: &Options) -> Self {
        Self {
            clock: options.clock.clone(),
            lasts: options.lease.saturating_sub(options.margin),
            begun: options.clock.boot_instant(),
            until_ns: AtomicU64::new(0),
            lapses: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            unlisted: AtomicBool::new(false),
            missed: [const { AtomicBool::new(false) }; 2],
        }
    }

    pub(super) const fn lasts(&self) -> Duration {
        self.lasts
    }

    pub(super) fn runs(&self) -> bool {
        self.runs_at(self.clock.boot_instant())
    }

    pub(super) fn runs_at(&self, now: Instant) -> bool {
        let now_ns = now.saturating_duration_since(self.begun).as_nanos();
        now_ns < u128::from(self.until_ns.load(Ordering::Acquire))
            && !self.has_ended()
            && !self.is_unlisted()
            && !self.is_missed()
    }

    pub(super) fn left(&self) -> Duration {
        let until = Duration::from_nanos(self.until_ns.load(Ordering::Acquire));
        until.saturating_sub(self.clock.boot_instant().saturating_duration_since(self.begun))
    }

    /// Notes the lease obtained by a request that was sent at that time. Returns what was left of the one before, if there
    /// ever was one.
    pub(super) fn hold_since(&self, sent: Instant) -> Option<Duration> {
        let before =
            (self.until_ns.load(Ordering::Acquire) > 0 || self.lapses() > 0).then(|| self.left());
        let until = sent.saturating_duration_since(self.begun) + self.lasts;
        let until_ns = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
        self.until_ns.fetch_max(until_ns, Ordering::AcqRel);
        before
    }

    /// It is over, and what was begun under it is not believed.
    pub(super) fn lapse(&self) {
        self.until_ns.store(0, Ordering::Release);
        self.lapses.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn lapses(&self) -> u64 {
        self.lapses.load(Ordering::Acquire)
    }

    /// The session is over for good.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Nothing begins while the list of sessions is not where it was; returns what was said of it before.
    pub(super) fn set_unlisted(&self, is_unlisted: bool) -> bool {
        self.unlisted.swap(is_unlisted, Ordering::AcqRel)
    }

    pub(super) fn is_unlisted(&self) -> bool {
        self.unlisted.load(Ordering::Acquire)
    }

    /// To be called before a look at a place.
    pub(super) fn begin_look(&self, place: Where) -> Look {
        Look { place, is_second: self.missed[place as usize].load(Ordering::Acquire) }
    }

    /// The look found the session.
    pub(super) fn found(&self, look: Look) {
        // One that began before another one missed it says nothing about now.
        if look.is_second {
            self.missed[look.place as usize].store(false, Ordering::Release);
        }
    }

    /// The look missed the session, so nothing begins any more. Returns whether that is the end of it.
    pub(super) fn missed(&self, look: Look) -> bool {
        self.missed[look.place as usize].store(true, Ordering::Release);
        look.is_second
    }

    /// Whether the session was missed, and not found since.
    pub(super) fn is_missed(&self) -> bool {
        self.missed.iter().any(|missed| missed.load(Ordering::Acquire))
    }
}
