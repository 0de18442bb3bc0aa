//! What is known of a file's set-id bits and capabilities, so that writes need not look.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Whether a file is known to have neither set-id bits nor file capabilities.
///
/// What must hold: it is known only after a check that began after the last change has ended. A writer that relied on
/// another's check, which has yet to take the bits off, would be ahead of it.
#[derive(Debug)]
pub(super) struct Plain {
    /// Number of times that they may have been set, plus one.
    changes: AtomicU64,
    /// How many of those the last check that ended has seen.
    seen: AtomicU64,
}

impl Default for Plain {
    fn default() -> Self {
        Self { changes: AtomicU64::new(1), seen: AtomicU64::new(0) }
    }
}

impl Plain {
    pub(super) fn changed(&self) {
        self.changes.fetch_add(1, SeqCst);
    }

    /// What a check that begins now will have seen; `None` if none is needed.
    pub(super) fn begin(&self) -> Option<u64> {
        let changes = self.changes.load(SeqCst);
        (self.seen.load(SeqCst) < changes).then_some(changes)
    }

    /// The check ended, and there is nothing left to take off.
    pub(super) fn end(&self, begun: u64) {
        self.seen.fetch_max(begun, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The second of two writers relied on the first, whose check had only begun.
    #[test]
    fn a_look_counts_when_it_has_ended_and_nothing_changed_meanwhile() {
        let plain = Plain::default();
        let first = plain.begin().expect("nobody looked");
        let second = plain.begin().expect("the first look has not ended");
        plain.end(first);
        assert_eq!(plain.begin(), None);
        plain.changed();
        plain.end(second);
        let third = plain.begin().expect("changed since the second look began");
        plain.changed();
        plain.end(third);
        assert!(plain.begin().is_some(), "changed while the third looked");
    }
}
