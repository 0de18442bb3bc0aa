//! Changes that a thread is making, of names and of what follows them on disks.
//!
//! The store begins another epoch only when names are checked, confirmed or built again, which no node may outlive that keeps its
//! lease. A node that stands still for longer may find, in the midst of a change, that names were built again from what it
//! had made on the disks by then. What must hold: it takes nothing away any more, so the rest of the change fails.

use std::cell::Cell;

/// Which node's change, and the epoch in which it began.
type Begun = Option<(usize, u64)>;

thread_local! {
    static BEGUN: Cell<Begun> = const { Cell::new(None) };
}

/// Guard: while it lives, what this thread does is one change. Once the store has begun another epoch, all its requests
/// fail.
#[derive(Debug)]
#[must_use]
pub struct ChangeUnderWay {
    outer: Begun,
}

impl ChangeUnderWay {
    /// Begins a change of a node in an epoch, or goes on with the one that is under way.
    pub(super) fn begin(node: usize, epoch: u64) -> Self {
        let outer = BEGUN.get();
        if begun(node).is_none() {
            BEGUN.set(Some((node, epoch)));
        }
        Self { outer }
    }
}

impl Drop for ChangeUnderWay {
    fn drop(&mut self) {
        BEGUN.set(self.outer);
    }
}

/// The epoch in which this thread began the change of a node that it is making.
pub(super) fn begun(node: usize) -> Option<u64> {
    BEGUN.get().filter(|(of, _)| *of == node).map(|(_, epoch)| epoch)
}
