//! The files that this node is moving. Two moves of one file would take it for changed by somebody, and both give up.

use parking_lot::{Condvar, Mutex};
use rustc_hash::FxHashSet;

/// The files that are being moved, by number.
#[derive(Debug, Default)]
pub(super) struct MovesUnderWay {
    files: Mutex<FxHashSet<u64>>,
    ended: Condvar,
}

/// Guard: while it lives, a file is being moved.
#[derive(Debug)]
pub(super) struct MoveUnderWay<'a> {
    all: &'a MovesUnderWay,
    number: u64,
}

impl MovesUnderWay {
    /// Begins a move, once nobody else moves the file.
    pub(super) fn begin(&self, number: u64) -> MoveUnderWay<'_> {
        let mut files = self.files.lock();
        while !files.insert(number) {
            self.ended.wait(&mut files);
        }
        MoveUnderWay { all: self, number }
    }

    /// Whether a file is being moved.
    pub(super) fn has(&self, number: u64) -> bool {
        self.files.lock().contains(&number)
    }

    /// Waits until a file is not being moved.
    pub(super) fn wait(&self, number: u64) {
        let mut files = self.files.lock();
        self.ended.wait_while(&mut files, |files| files.contains(&number));
    }
}

impl Drop for MoveUnderWay<'_> {
    fn drop(&mut self) {
        self.all.files.lock().remove(&self.number);
        self.all.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_file_is_moved_by_one_at_a_time() {
        let moves = MovesUnderWay::default();
        let (first, other) = (moves.begin(7), moves.begin(8));
        let has_begun = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                drop(moves.begin(7));
                has_begun.store(true, Ordering::SeqCst);
            });
            drop(other);
            moves.wait(8);
            thread::sleep(Duration::from_millis(50));
            assert!(moves.has(7) && !moves.has(8) && !has_begun.load(Ordering::SeqCst));
            drop(first);
        });
        moves.wait(7);
        assert!(!moves.has(7) && has_begun.load(Ordering::SeqCst));
    }
}
