//! A session's lease by its node's own clock, by which it ends earlier than by the store's (I12).

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use halocline_os::clock::Clock;

use super::Options;

/// Where a session must be found while it lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Where {
    /// In the list on the origin.
    List,
    /// Among the members in the store.
    Store,
}

impl fmt::Display for Where {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::List => "in the list of sessions on the origin",
            Self::Store => "among the members in the store",
        })
    }
}

/// The lease of this node's session.
#[derive(Debug)]
pub(super) struct OwnLease {
    clock: Clock,
    /// How long it lasts from when the renewing request was sent; the margin is subtracted.
    lasts: Duration,
    begun: Instant,
    /// When it ends, in nanoseconds since `begun`.
    until_ns: AtomicU64,
    /// Since when it has been held without a gap, in nanoseconds since `begun`.
    since_ns: AtomicU64,
    /// How long it must have been held before others are declared gone.
    settles: Duration,
    /// Number of lapses.
    lapses: AtomicU64,
    /// Another node recovered the session or gave it up.
    ended: AtomicBool,
    /// The list of sessions is not where it was: others may not see this node any more.
    unlisted: AtomicBool,
    /// When the session was first missed in the list, and in the store, in nanoseconds since `begun`; 0 if the last
    /// look found it.
    missed_ns: [AtomicU64; 2],
}

impl OwnLease {
    /// No lease yet.
    pub(super) fn new(options: &Options) -> Self {
        Self {
            clock: options.clock.clone(),
            lasts: options.lease.saturating_sub(options.margin),
            begun: options.clock.boot_instant(),
            until_ns: AtomicU64::new(0),
            since_ns: AtomicU64::new(0),
            settles: options.margin,
            lapses: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            unlisted: AtomicBool::new(false),
            missed_ns: [const { AtomicU64::new(0) }; 2],
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

    /// Notes the lease obtained by a request sent at `sent`. Returns what was left of the previous one, if there was
    /// one.
    pub(super) fn hold_since(&self, sent: Instant) -> Option<Duration> {
        let before =
            (self.until_ns.load(Ordering::Acquire) > 0 || self.lapses() > 0).then(|| self.left());
        if before.is_none_or(|left| left.is_zero()) {
            let since = self.clock.boot_instant().saturating_duration_since(self.begun);
            let since_ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
            self.since_ns.store(since_ns, Ordering::Release);
        }
        let until = sent.saturating_duration_since(self.begun) + self.lasts;
        let until_ns = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
        self.until_ns.fetch_max(until_ns, Ordering::AcqRel);
        before
    }

    /// Whether the lease has been held for so long that others whose leases are over have had their chance to renew
    /// them. Leases also end because the store stood still, or could not be reached by anybody: then this node's own
    /// lapsed, too, and whoever is back first must not declare the others gone, whose programs would get errors.
    pub(super) fn is_settled(&self) -> bool {
        let since = Duration::from_nanos(self.since_ns.load(Ordering::Acquire));
        let held = self.clock.boot_instant().saturating_duration_since(self.begun);
        self.runs() && held.saturating_sub(since) >= self.settles
    }

    /// The lease is over, and results of what was begun under it are not used.
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

    /// Nothing begins while the list of sessions is not where it was; returns the previous state.
    pub(super) fn set_unlisted(&self, is_unlisted: bool) -> bool {
        self.unlisted.swap(is_unlisted, Ordering::AcqRel)
    }

    pub(super) fn is_unlisted(&self) -> bool {
        self.unlisted.load(Ordering::Acquire)
    }

    /// The session was found in that place.
    pub(super) fn note_found(&self, place: Where) {
        self.missed_ns[place as usize].store(0, Ordering::Release);
        if place == Where::List {
            self.set_unlisted(false);
        }
    }

    /// The session was not found in that place: nothing begins until it is. Returns for how long it has been missing.
    pub(super) fn note_missed(&self, place: Where) -> Duration {
        let since = self.clock.boot_instant().saturating_duration_since(self.begun);
        let now_ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX).max(1);
        let missed = &self.missed_ns[place as usize];
        let first = missed.compare_exchange(0, now_ns, Ordering::AcqRel, Ordering::Acquire);
        Duration::from_nanos(now_ns.saturating_sub(first.err().unwrap_or(now_ns)))
    }

    /// Where it is missing, if anywhere.
    pub(super) fn missed_in(&self) -> Option<Where> {
        let missed = |place: &Where| self.missed_ns[*place as usize].load(Ordering::Acquire) > 0;
        [Where::List, Where::Store].into_iter().find(missed)
    }

    pub(super) fn is_missed(&self) -> bool {
        self.missed_in().is_some()
    }
}
