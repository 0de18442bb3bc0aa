//! The state of an origin file when we last examined it, for detecting changes by others (I9).

use halocline_meta::Stamp;
use halocline_os::clock::age_ms;

/// A file that we have not changed for this long is at rest.
const REST_MS: u64 = 100;

/// What has happened to the file since it was examined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Since {
    /// Nothing, as far as we know.
    Nothing,
    /// We changed it.
    Ours,
    /// Others changed it, and that is not resolved yet.
    Theirs,
}

/// What is known of the file's state. Its lock is taken last of a file's locks.
#[derive(Debug)]
pub(crate) struct LastSeen {
    /// The stamp found then.
    stamp: Stamp,
    /// What happened since then.
    since: Since,
    /// Our changes in progress.
    under_way: u32,
    /// When our last change ended, in milliseconds since the epoch.
    ours_ms: u64,
    recorded: bool,
    queued: bool,
}

impl LastSeen {
    /// For a file that we have not changed yet.
    pub(crate) const fn new(stamp: Stamp) -> Self {
        let (since, recorded, queued) = (Since::Nothing, false, false);
        Self { stamp, since, under_way: 0, ours_ms: 0, recorded, queued }
    }

    /// The stamp that was found.
    pub(crate) const fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// Whether our own changes hide its current state.
    pub(crate) fn is_hidden(&self) -> bool {
        self.since == Since::Ours || self.under_way > 0
    }

    /// Whether others changed it, and that is not resolved yet.
    pub(crate) fn is_external(&self) -> bool {
        self.since == Since::Theirs
    }

    /// Whether we changed it, and are done: examining it again reveals its state.
    pub(crate) fn is_changed_and_still(&self) -> bool {
        self.since == Since::Ours && self.under_way == 0
    }

    /// Whether we change it no more: not now, and not for a while.
    pub(crate) fn rests(&self, now_ms: u64) -> bool {
        self.under_way == 0 && age_ms(now_ms, self.ours_ms) >= REST_MS
    }

    /// Whether no change of ours is in progress.
    pub(crate) const fn is_still(&self) -> bool {
        self.under_way == 0
    }

    /// A change of ours begins.
    pub(crate) fn begin_change(&mut self) {
        if !self.is_external() {
            self.since = Since::Ours;
        }
        self.under_way += 1;
    }

    /// A change of ours ends.
    pub(crate) const fn end_change(&mut self, now_ms: u64) {
        self.under_way -= 1;
        self.ours_ms = now_ms;
    }

    /// Others changed it: until that is resolved, its dirty bytes must not go to the origin.
    pub(crate) const fn note_external(&mut self) {
        self.since = Since::Theirs;
    }

    /// Sets the current stamp; nothing of ours is in progress.
    pub(crate) const fn see(&mut self, stamp: Stamp) {
        (self.stamp, self.since) = (stamp, Since::Nothing);
    }

    /// Sets the stamp after a change of the attributes alone.
    pub(crate) const fn follow_attributes(&mut self, stamp: Stamp) {
        self.stamp = stamp;
    }

    /// Whether the store's record is of a file at rest: of this stamp, or of a state before a change by others.
    pub(crate) const fn is_recorded(&self) -> bool {
        self.recorded
    }

    /// Notes whether the store's record is of a file at rest.
    pub(crate) const fn set_recorded(&mut self, recorded: bool) {
        self.recorded = recorded;
    }

    /// Queues the file, whose stamp is to be recorded as soon as it is at rest; `false` if it is queued already.
    pub(crate) const fn queue(&mut self) -> bool {
        !std::mem::replace(&mut self.queued, true)
    }

    /// It was taken from the queue.
    pub(crate) const fn unqueue(&mut self) {
        self.queued = false;
    }
}
