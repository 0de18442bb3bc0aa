//! Names that other nodes take away while programs here use what they led to.
//!
//! The kernel handles a call with a path by several requests: it looks the name up, and opens, reads or changes what it
//! found. If another node takes the name away in between, the later request is answered with `ESTALE`; the kernel then
//! looks the name up once more, and gives the program `ESTALE` if that happens again. So the names are noted here for a
//! while, and what such a name leads to is kept usable from the next look-up on ([`crate::recent_lookups`]).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use halocline_model::namespace::EntryName;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// How long a name is noted: far longer than the kernel needs to look it up again.
const NOTED: Duration = Duration::from_secs(2);
/// The most names that are noted.
const NAMES_MAX: usize = 256;

/// The names that were contested lately.
#[derive(Debug, Default)]
pub(crate) struct ContestedNames {
    until: Mutex<FxHashMap<EntryName, Instant>>,
    /// Whether there may be any.
    any: AtomicBool,
}

impl ContestedNames {
    /// Notes a name.
    pub(crate) fn note(&self, name: EntryName, now: Instant) {
        let mut until = self.until.lock();
        until.retain(|_, until| *until > now);
        if until.len() >= NAMES_MAX {
            let first = until.iter().min_by_key(|(_, until)| **until);
            if let Some(first) = first.map(|(name, _)| name.clone()) {
                until.remove(&first);
            }
        }
        until.insert(name, now + NOTED);
        self.any.store(true, Ordering::Release);
    }

    /// Whether there may be any: almost always there are none.
    pub(crate) fn has_any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Whether a name is noted.
    pub(crate) fn has(&self, name: &EntryName, now: Instant) -> bool {
        let mut until = self.until.lock();
        let is_noted = until.get(name).is_some_and(|until| *until > now);
        if !is_noted {
            until.retain(|_, until| *until > now);
            self.any.store(!until.is_empty(), Ordering::Release);
        }
        is_noted
    }
}

#[cfg(test)]
mod tests {
    use halocline_model::namespace::{Name, ROOT};

    use super::*;

    fn name(number: usize) -> EntryName {
        EntryName { directory: ROOT, name: Name::from(format!("f{number}").as_str()) }
    }

    #[test]
    fn names_are_noted_for_a_while_and_the_latest_if_there_are_many() {
        let (names, begun) = (ContestedNames::default(), Instant::now());
        assert!(!names.has_any());
        for number in 0..=NAMES_MAX {
            names.note(name(number), begun + Duration::from_millis(number as u64));
        }
        assert!(names.has_any() && !names.has(&name(0), begun) && names.has(&name(1), begun));
        assert!(names.has(&name(NAMES_MAX), begun + NOTED));
        assert!(!names.has(&name(9), begun + NOTED + Duration::from_millis(9)));
        assert!(names.has_any() && !names.has(&name(9), begun + 2 * NOTED) && !names.has_any());
    }
}
