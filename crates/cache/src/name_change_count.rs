//! Counts our own changes of names and attributes, which advance the ctimes of files (I9).

use std::sync::atomic::{AtomicU64, Ordering};

/// Changes begun, and those of them that have ended.
#[derive(Debug, Default)]
pub(crate) struct NameChangeCount {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// A change of names or attributes in progress.
#[derive(Debug)]
#[must_use = "the change is over when it is dropped"]
pub(crate) struct NameChange<'a>(&'a NameChangeCount);

impl Drop for NameChange<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
    }
}

impl NameChangeCount {
    /// A change begins.
    pub(crate) fn begin(&self) -> NameChange<'_> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        NameChange(self)
    }

    /// How many changes have begun.
    pub(crate) fn begun(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    /// Whether a change is in progress.
    pub(crate) fn is_under_way(&self) -> bool {
        // In this order: a change that begins in between counts as in progress.
        let ended = self.ended.load(Ordering::SeqCst);
        self.begun() != ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_under_way_until_it_is_dropped() {
        let count = NameChangeCount::default();
        assert!(!count.is_under_way());
        let (one, other) = (count.begin(), count.begin());
        drop(one);
        assert!(count.is_under_way());
        drop(other);
        assert!(!count.is_under_way() && count.begun() == 2);
    }
}
