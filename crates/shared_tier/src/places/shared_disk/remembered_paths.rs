//! Where directories were last seen, in bounded memory.

use std::os::unix::ffi::OsStrExt;

use halocline_cluster::names::attributes::RelativePath;
use rustc_hash::FxHashMap;

use crate::places::DirectoryStep;

/// The most paths that are remembered.
const PATHS_MAX: usize = 1 << 16;
/// The most bytes of them.
const BYTES_MAX: usize = 16 << 20;

/// Paths of directories by number.
#[derive(Debug, Default)]
pub(super) struct RememberedPaths {
    paths: FxHashMap<u64, RelativePath>,
    bytes: usize,
}

impl RememberedPaths {
    /// Where a directory was last seen.
    pub(super) fn of(&self, number: u64) -> Option<RelativePath> {
        self.paths.get(&number).cloned()
    }

    /// Remembers one; all others are forgotten if there is no room.
    pub(super) fn add(&mut self, number: u64, path: RelativePath) {
        self.remove(number);
        self.bytes += path.as_bytes().len();
        if self.paths.len() >= PATHS_MAX || self.bytes > BYTES_MAX {
            self.paths.clear();
            self.bytes = path.as_bytes().len();
        }
        self.paths.insert(number, path);
    }

    /// Remembers the path of a directory, which ends with these steps, and of some of those above it, the fewer the
    /// farther: other directories below them may be looked for next.
    pub(super) fn add_on_way(&mut self, path: &RelativePath, steps: &[DirectoryStep]) {
        let mut above = path.as_path().ancestors().enumerate();
        for (up, step) in steps.iter().rev().enumerate() {
            let Some((_, path)) = above.find(|(at, _)| *at == up) else { break };
            if (up == 0 || up.is_power_of_two())
                && let Some(path) = RelativePath::new(path.as_os_str().as_bytes())
            {
                self.add(step.number, path);
            }
        }
    }

    /// Forgets one.
    pub(super) fn remove(&mut self, number: u64) {
        let removed = self.paths.remove(&number);
        self.bytes -= removed.map_or(0, |path| path.as_bytes().len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_long_paths_are_remembered_and_many_short_ones() {
        for (steps, paths) in [(0, PATHS_MAX), (50_000, BYTES_MAX / 100_000)] {
            let path = |at: u64| {
                let path = at.to_string() + &"/x".repeat(steps);
                RelativePath::new(path.as_bytes()).unwrap()
            };
            let mut remembered = RememberedPaths::default();
            for at in 10..2 * u64::try_from(PATHS_MAX.min(10 * paths)).unwrap() {
                remembered.add(at, RelativePath::new(b"a").unwrap());
                remembered.add(at, path(at));
                assert!(remembered.of(at).is_some());
                assert!(remembered.paths.len() <= paths && remembered.bytes <= BYTES_MAX);
            }
        }
    }

    #[test]
    fn the_directories_above_are_remembered_the_fewer_the_farther() {
        let steps: Vec<DirectoryStep> = (1..=9)
            .map(|number: u64| DirectoryStep { number, name: number.to_string().as_str().into() })
            .collect();
        let mut remembered = RememberedPaths::default();
        remembered.add_on_way(&RelativePath::new(b"x/y/1/2/3/4/5/6/7/8/9").unwrap(), &steps);
        let known: Vec<u64> = (0..10).filter(|number| remembered.of(*number).is_some()).collect();
        assert_eq!(known, [1, 5, 7, 8, 9]);
        assert_eq!(remembered.of(1), RelativePath::new(b"x/y/1"));
        assert_eq!(remembered.of(5), RelativePath::new(b"x/y/1/2/3/4/5"));
    }
}
