//! What is known about a file's set-id bits and capabilities, so that writes need not check.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Whether a file is known to have neither set-id bits nor file capabilities.
///
/// What must hold: it counts as known only after the end of a check that began after the last change. A writer that
/// relied on another's check that is still in progress, with bits yet to be removed, would overtake it.
#[derive(Debug)]
pub(super) struct SetIdCheck {
    /// How often they may have been set, plus one.
    changes: AtomicU64,
    /// How many of those the latest completed check has covered.
    seen: AtomicU64,
}

impl Default for SetIdCheck {
    fn default() -> Self {
        Self { changes: AtomicU64::new(1), seen: AtomicU64::new(0) }
    }
}

impl SetIdCheck {
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
    fn a_check_counts_when_it_has_ended_and_nothing_changed_meanwhile() {
        let check = SetIdCheck::default();
        let first = check.begin().expect("nobody checked");
        let second = check.begin().expect("the first check has not ended");
        check.end(first);
        assert_eq!(check.begin(), None);
        check.changed();
        check.end(second);
        let third = check.begin().expect("changed since the second check began");
        check.changed();
        check.end(third);
        assert!(check.begin().is_some(), "changed while the third checked");
    }
}
