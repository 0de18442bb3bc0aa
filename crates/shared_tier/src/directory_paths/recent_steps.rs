//! Names of directories that the store was asked for a moment ago: files of a deep tree that are brought to an SSD one after
//! the other have most of their way in common, and each step of it costs two requests.

use std::time::{Duration, Instant};

use halocline_model::namespace::EntryName;
use rustc_hash::FxHashMap;

/// How long a name is believed.
const BELIEVED: Duration = Duration::from_secs(1);
/// The most directories.
const DIRECTORIES_MAX: usize = 1 << 14;

/// Names of directories by number.
#[derive(Debug, Default)]
pub(super) struct RecentSteps {
    names: FxHashMap<u64, (Instant, EntryName)>,
}

impl RecentSteps {
    /// The name of a directory, if that is known.
    pub(super) fn find(&self, directory: u64, now: Instant) -> Option<EntryName> {
        let (since, name) = self.names.get(&directory)?;
        (now.saturating_duration_since(*since) < BELIEVED).then(|| name.clone())
    }

    /// Notes what the store has said.
    pub(super) fn add(&mut self, directory: u64, name: EntryName, now: Instant) {
        if self.names.len() >= DIRECTORIES_MAX {
            self.names.clear();
        }
        self.names.insert(directory, (now, name));
    }
}

#[cfg(test)]
mod tests {
    use halocline_model::namespace::{Name, ROOT};
    use halocline_os::clock::Clock;

    use super::*;

    #[test]
    fn names_are_believed_for_a_moment_and_are_bounded() {
        let mut recent = RecentSteps::default();
        let name = EntryName { directory: ROOT, name: Name::from("d") };
        let now = Clock::MACHINE.instant();
        recent.add(7, name.clone(), now);
        assert_eq!(recent.find(7, now + BELIEVED / 2), Some(name.clone()));
        assert_eq!(recent.find(7, now + BELIEVED), None);
        assert_eq!(recent.find(8, now), None);
        for number in 0..3 * DIRECTORIES_MAX as u64 {
            recent.add(number, name.clone(), now);
            assert!(recent.names.len() <= DIRECTORIES_MAX);
            assert_eq!(recent.find(number, now), Some(name.clone()));
        }
    }
}
