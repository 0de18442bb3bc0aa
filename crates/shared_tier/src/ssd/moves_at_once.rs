//! Files that are moved at once: as many as their sizes allow.

use parking_lot::{Condvar, Mutex};

/// The most files that are moved at once. A move of a small file mostly waits for syncs, and one sync serves many
/// moves; large files would only slow each other down.
pub(crate) const PARALLEL_MAX: usize = 16;
/// The most bytes under way at once, unless they are one file's.
const BYTES_AT_ONCE: u64 = 8 << 20;

/// The bytes of the files that threads are moving.
#[derive(Debug, Default)]
pub(crate) struct MovesAtOnce {
    bytes: Mutex<u64>,
    ended: Condvar,
}

/// Guard: while it lives, a file is being moved.
#[derive(Debug)]
pub(crate) struct Moving<'a> {
    all: &'a MovesAtOnce,
    bytes: u64,
}

impl MovesAtOnce {
    /// Waits until a file of this size can be moved beside those that are.
    pub(crate) fn begin(&self, bytes: u64) -> Moving<'_> {
        let bytes = bytes.min(BYTES_AT_ONCE);
        let mut under_way = self.bytes.lock();
        self.ended.wait_while(&mut under_way, |under_way| *under_way + bytes > BYTES_AT_ONCE);
        *under_way += bytes;
        Moving { all: self, bytes }
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        *self.all.bytes.lock() -= self.bytes;
        self.all.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// Regression: a large file among the first ones made all that followed move one by one.
    #[test]
    fn small_files_move_together_and_a_large_one_alone() {
        let moves = MovesAtOnce::default();
        let large = moves.begin(u64::MAX);
        let has_begun = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let _small = moves.begin(4096);
                has_begun.store(true, Ordering::SeqCst);
            });
            thread::sleep(Duration::from_millis(50));
            assert!(!has_begun.load(Ordering::SeqCst));
            drop(large);
        });
        assert!(has_begun.load(Ordering::SeqCst));
        let together: Vec<_> = (0..PARALLEL_MAX).map(|_| moves.begin(4096)).collect();
        drop(together);
        assert_eq!(*moves.bytes.lock(), 0);
    }
}
