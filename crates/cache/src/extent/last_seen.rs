//! The state of an origin file when we last examined it, for detecting changes by others (I9).

use halocline_meta::Stamp;

/// What has happened to the file since it was examined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Since {
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
    pub(crate) seen: Stamp,
    /// What happened since then.
    pub(crate) since: Since,
    /// Our changes in progress.
    pub(crate) under_way: u32,
    /// Whether the store's record is of a file at rest: of `seen`, or of a state before a change by others.
    pub(crate) recorded: bool,
    /// When our last change ended, in milliseconds since the epoch.
    pub(crate) ours_ms: u64,
    /// Whether the rebuilder is to record it as soon as it is at rest.
    pub(crate) unrecorded: bool,
}

impl LastSeen {
    /// For a file that we have not changed yet.
    pub(crate) const fn new(seen: Stamp) -> Self {
        Self {
            seen,
            since: Since::Nothing,
            under_way: 0,
            recorded: false,
            ours_ms: 0,
            unrecorded: false,
        }
    }

    /// Whether our own changes hide its current state.
    pub(crate) fn is_hidden(&self) -> bool {
        self.since == Since::Ours || self.under_way > 0
    }

    /// Whether others changed it.
    pub(crate) fn is_external(&self) -> bool {
        self.since == Since::Theirs
    }

    /// Sets the current stamp; nothing of ours is in progress.
    pub(crate) fn see(&mut self, stamp: Stamp) {
        (self.seen, self.since) = (stamp, Since::Nothing);
    }
}
