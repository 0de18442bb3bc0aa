//! When files were opened, and why they stayed where they are: for `explain`.
//!
//! The policies keep their own account; nothing decides by this one. It is bounded: what was noted
//! long ago may be forgotten.

use std::sync::Arc;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use halocline_os::clock::Clock;

/// Files whose opens are known at most.
const OPENED_MAX: usize = 1 << 17;
/// Files whose failed moves are known at most.
const STAYED_MAX: usize = 1 << 10;

/// Opens of one file since the mount began.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Uses {
    pub(super) count: u64,
    /// Milliseconds since 1970.
    pub(super) last_ms: u64,
}

/// Of all files.
#[derive(Debug, Default)]
pub(super) struct AllUses {
    clock: Clock,
    opened: Mutex<FxHashMap<u64, Uses>>,
    stayed: Mutex<FxHashMap<u64, (u64, Arc<str>)>>,
}

impl AllUses {
    /// Nothing is known yet.
    pub(super) fn new(clock: &Clock) -> Self {
        Self { clock: clock.clone(), ..Self::default() }
    }

    /// File `number` was opened or made.
    pub(super) fn opened(&self, number: u64) {
        let mut opened = self.opened.lock();
        if opened.len() >= OPENED_MAX && !opened.contains_key(&number) {
            opened.clear();
        }
        let uses = opened.entry(number).or_default();
        (uses.count, uses.last_ms) = (uses.count + 1, self.clock.now_ms());
    }

    /// What is known of its opens.
    pub(super) fn of(&self, number: u64) -> Uses {
        self.opened.lock().get(&number).copied().unwrap_or_default()
    }

    /// It should have moved, and did not.
    pub(super) fn stayed(&self, number: u64, why: &str) {
        let mut stayed = self.stayed.lock();
        if stayed.len() >= STAYED_MAX && !stayed.contains_key(&number) {
            stayed.clear();
        }
        stayed.insert(number, (self.clock.now_ms(), why.into()));
    }

    /// It moved.
    pub(super) fn moved(&self, number: u64) {
        self.stayed.lock().remove(&number);
    }

    /// When it stayed last, in milliseconds since 1970, and why.
    pub(super) fn last_stay(&self, number: u64) -> Option<(u64, Arc<str>)> {
        self.stayed.lock().get(&number).cloned()
    }

    /// It is no more.
    pub(super) fn removed(&self, number: u64) {
        self.opened.lock().remove(&number);
        self.moved(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_of_files_is_bounded() {
        let all = AllUses::default();
        let last = 2 * OPENED_MAX as u64;
        for number in 0..=last {
            all.opened(number);
            all.stayed(number, "why");
        }
        assert!(all.opened.lock().len() <= OPENED_MAX);
        assert!(all.stayed.lock().len() <= STAYED_MAX);
        assert_eq!(all.of(last).count, 1);
        assert_eq!(&*all.last_stay(last).unwrap().1, "why");
        all.removed(last);
        assert_eq!((all.of(last).count, all.last_stay(last)), (0, None));
    }
}
