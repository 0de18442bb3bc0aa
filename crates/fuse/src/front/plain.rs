//! What is known about a file's set-id bits and capabilities, so that writes need not check.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Whether a file is known to have neither set-id bits nor file capabilities.
///
/// What must hold: it counts as known only after the end of a check that began after the last change. A writer that
/// relied on another's check that is still in progress, with bits yet to be removed, would overtake it.
#[derive(Debug)]
pub(super) struct Plain {
    /// How often they may have been set, plus one.
    changes: AtomicU64,
    /// How many of those the latest completed check has covered.
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

    /// What a check that begins now will have covered; `None` if none is needed.
    pub(super) fn begin(&self) -> Option<u64> {
        let changes = self.changes.load(SeqCst);
        (self.seen.load(SeqCst) < changes).then_some(changes)
    }

    /// The check ended, and nothing is left to remove.
    pub(super) fn end(&self, begun: u64) {
        self.seen.fetch_max(begun, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the second of two writers relied on the first, whose check had only begun.
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
