//! How a file of the origin looked when we last left it alone: what changes of others are told by (I9).

use halocline_meta::Stamp;

/// What happened to it since it was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Since {
    /// Nothing that we know of.
    Nothing,
    /// We changed it.
    Ours,
    /// Others changed it, and nothing was done about that yet.
    Theirs,
}

/// What is known of it. Its lock is taken last of a file's locks.
#[derive(Debug)]
pub(crate) struct LastSeen {
    /// How it looked.
    pub(crate) seen: Stamp,
    /// What happened since then.
    pub(crate) since: Since,
    /// Changes of ours that are under way.
    pub(crate) under_way: u32,
    /// Whether the store's record is of a file at rest: of `seen`, or of a look before a change of others.
    pub(crate) recorded: bool,
    /// When our last change ended, in milliseconds since the epoch.
    pub(crate) ours_ms: u64,
    /// Whether the rebuilder is to record it as soon as it rests.
    pub(crate) restless: bool,
}

impl LastSeen {
    /// Of a file that nobody of us has changed yet.
    pub(crate) const fn new(seen: Stamp) -> Self {
        Self {
            seen,
            since: Since::Nothing,
            under_way: 0,
            recorded: false,
            ours_ms: 0,
            restless: false,
        }
    }

    /// Whether our own changes hide how it looks now.
    pub(crate) fn is_hidden(&self) -> bool {
        self.since == Since::Ours || self.under_way > 0
    }

    /// Whether others changed it.
    pub(crate) fn is_external(&self) -> bool {
        self.since == Since::Theirs
    }

    /// It looks like this now, and nothing of ours is under way.
    pub(crate) fn see(&mut self, stamp: Stamp) {
        (self.seen, self.since) = (stamp, Since::Nothing);
    }
}
