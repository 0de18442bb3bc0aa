//! Epochs: they tell which changes the last barrier has covered.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

/// `current` is the epoch of what happens now, `cut` the last one closed for new changes, `completed` the last one
/// whose data and records are durable.
#[derive(Debug)]
pub(super) struct Epochs {
    current: AtomicU64,
    cut: AtomicU64,
    completed: AtomicU64,
}

impl Epochs {
    /// `last` was the current epoch of the previous session, `completed` the last one that a barrier had covered.
    pub(super) fn after(last: u64, completed: u64) -> Self {
        let (current, cut, completed) = ((last + 1).into(), completed.into(), completed.into());
        Self { current, cut, completed }
    }

    /// The epoch of what happens now.
    pub(super) fn current(&self) -> u64 {
        self.current.load(Acquire)
    }

    /// The last epoch that is durable.
    pub(super) fn completed(&self) -> u64 {
        self.completed.load(Acquire)
    }

    /// Closes the current epoch: what happens from now on belongs to the next one.
    pub(super) fn cut(&self) {
        let closed = self.current.fetch_add(1, AcqRel);
        self.cut.store(closed, Release);
    }

    /// Whether there is a closed epoch that no barrier has covered.
    pub(super) fn is_cut(&self) -> bool {
        self.cut.load(Acquire) > self.completed.load(Acquire)
    }

    /// Whether a barrier that covers `epoch` may have begun: it makes durable that there are dirty bytes.
    pub(super) fn may_cover(&self, epoch: u64) -> bool {
        epoch <= self.cut.load(Acquire)
    }

    /// The last closed epoch, which a barrier may cover.
    pub(super) fn closed(&self) -> u64 {
        let epoch = self.cut.load(Acquire);
        // Later changes are not covered.
        assert!(epoch < self.current.load(Acquire), "I4: a barrier over an epoch that is open");
        epoch
    }

    /// Notes that a barrier has covered `epoch`.
    pub(super) fn complete(&self, epoch: u64) {
        self.completed.fetch_max(epoch, AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "I4: a barrier over an epoch that is open")]
    fn i4_a_barrier_covers_no_epoch_that_is_open() {
        let epochs = Epochs::after(6, 5);
        epochs.cut.store(7, Release);
        epochs.closed();
    }
}
