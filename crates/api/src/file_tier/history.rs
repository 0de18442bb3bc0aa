//! When files were opened, and why they stayed where they are: for `explain`.
//!
//! The policies keep their own account; nothing is decided by this one. It is bounded: old entries may be forgotten.

use std::sync::Arc;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use halocline_os::clock::Clock;

/// The most files whose opens are known.
const OPENED_MAX: usize = 1 << 17;
/// The most files whose failed moves are known.
const NOT_MOVED_MAX: usize = 1 << 10;

/// Opens of one file since the mount began.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenCount {
    /// How many.
    pub opens: u64,
    /// When the last one was, in milliseconds since 1970.
    pub last_ms: u64,
}

/// The history of all files.
#[derive(Debug, Default)]
pub struct History {
    clock: Clock,
    opened: Mutex<FxHashMap<u64, OpenCount>>,
    not_moved: Mutex<FxHashMap<u64, (u64, Arc<str>)>>,
}

impl History {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(clock: &Clock) -> Self {
        Self { clock: clock.clone(), ..Self::default() }
    }

    /// Notes that file `number` was opened or created.
    pub fn opened(&self, number: u64) {
        let mut opened = self.opened.lock();
        if opened.len() >= OPENED_MAX && !opened.contains_key(&number) {
            opened.clear();
        }
        let count = opened.entry(number).or_default();
        (count.opens, count.last_ms) = (count.opens + 1, self.clock.now_ms());
    }

    /// What is known of its opens.
    #[must_use]
    pub fn of(&self, number: u64) -> OpenCount {
        self.opened.lock().get(&number).copied().unwrap_or_default()
    }

    /// Notes that it should have moved but did not.
    pub fn not_moved(&self, number: u64, why: &str) {
        let mut not_moved = self.not_moved.lock();
        if not_moved.len() >= NOT_MOVED_MAX && !not_moved.contains_key(&number) {
            not_moved.clear();
        }
        not_moved.insert(number, (self.clock.now_ms(), why.into()));
    }

    /// Notes that it moved.
    pub fn moved(&self, number: u64) {
        self.not_moved.lock().remove(&number);
    }

    /// When its last move failed, in milliseconds since 1970, and why.
    #[must_use]
    pub fn last_not_moved(&self, number: u64) -> Option<(u64, Arc<str>)> {
        self.not_moved.lock().get(&number).cloned()
    }

    /// Notes that it no longer exists.
    pub fn removed(&self, number: u64) {
        self.opened.lock().remove(&number);
        self.moved(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_of_files_is_bounded() {
        let all = History::default();
        let last = 2 * OPENED_MAX as u64;
        for number in 0..=last {
            all.opened(number);
            all.not_moved(number, "why");
        }
        assert!(all.opened.lock().len() <= OPENED_MAX);
        assert!(all.not_moved.lock().len() <= NOT_MOVED_MAX);
        assert_eq!(all.of(last).opens, 1);
        assert_eq!(&*all.last_not_moved(last).unwrap().1, "why");
        all.removed(last);
        assert_eq!((all.of(last).opens, all.last_not_moved(last)), (0, None));
    }
}
