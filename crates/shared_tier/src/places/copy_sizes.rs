//! What is known of the clean copies on the shared disk, so that room is made there without looking at each of them again.
//!
//! A disk that is full stays so: each step that finds no room has copies give way. What must hold: an attempt lists the
//! names of all copies, and looks only at those that it does not know yet, and at those that it removes. A copy has the
//! size with which it was named as long as it is there, since whoever changes the file removes it.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// For how long a copy that may not go, because its file is not found, is not considered again.
const STAYS_FOR: Duration = Duration::from_secs(10);

/// A copy: its node, its file, and its number.
pub(crate) type Key<'a> = (&'a str, u64, u64);

/// What is known of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Known {
    /// The bytes that it takes on the disk.
    pub(crate) bytes: u64,
    /// Its user, for whose quota it counts.
    pub(crate) user: u32,
    /// When it could not go.
    pub(crate) stayed: Option<Instant>,
}

impl Known {
    pub(crate) const fn new(bytes: u64, user: u32) -> Self {
        Self { bytes, user, stayed: None }
    }

    /// Whether it may go now, as far as is known.
    pub(crate) fn may_go(&self, now: Instant) -> bool {
        self.stayed.is_none_or(|stayed| now.saturating_duration_since(stayed) >= STAYS_FOR)
    }
}

/// Copies of one node's files, by file and number.
type OfNode = FxHashMap<(u64, u64), Known>;

/// The copies that are known, by node.
#[derive(Debug, Default)]
pub(crate) struct CopySizes {
    known: Mutex<FxHashMap<String, OfNode>>,
}

impl CopySizes {
    /// What is known of these copies, which are all that there are: `look` looks at those that are new, and finds nothing if
    /// one is gone. What is known of others is forgotten.
    ///
    /// # Errors
    /// Those of `look`.
    pub(crate) fn of<'a, E>(
        &self,
        all: impl Iterator<Item = Key<'a>>,
        look: &mut dyn FnMut(usize) -> Result<Option<Known>, E>,
    ) -> Result<Vec<(usize, Known)>, E> {
        let mut before = std::mem::take(&mut *self.known.lock());
        let (mut now, mut found) = (FxHashMap::default(), Vec::new());
        for (at, (node, inode, number)) in all.enumerate() {
            let known = before.get_mut(node).and_then(|known| known.remove(&(inode, number)));
            let Some(known) = known.map_or_else(|| look(at), |known| Ok(Some(known)))? else {
                continue;
            };
            if !now.contains_key(node) {
                now.insert(node.to_owned(), OfNode::default());
            }
            if let Some(of_node) = now.get_mut(node) {
                of_node.insert((inode, number), known);
            }
            found.push((at, known));
        }
        *self.known.lock() = now;
        Ok(found)
    }

    /// Notes that a copy could not go.
    pub(crate) fn stays(&self, (node, inode, number): Key<'_>, now: Instant) {
        let mut known = self.known.lock();
        if let Some(known) = known.get_mut(node).and_then(|of| of.get_mut(&(inode, number))) {
            known.stayed = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_new_is_looked_at() {
        let sizes = CopySizes::default();
        let looks = |all: &[(u64, u64)]| {
            let mut looks = Vec::new();
            let keys = all.iter().map(|(inode, number)| ("n", *inode, *number));
            let found = sizes.of(keys, &mut |at| {
                looks.push(at);
                Ok::<_, ()>((all[at].0 != 9).then(|| Known::new(all[at].1, 0)))
            });
            (looks, found.unwrap().into_iter().map(|(at, _)| at).collect::<Vec<_>>())
        };
        assert_eq!(looks(&[(1, 10), (2, 20), (9, 90)]), (vec![0, 1, 2], vec![0, 1]));
        assert_eq!(looks(&[(2, 20), (3, 30), (1, 11)]), (vec![1, 2], vec![0, 1, 2]));
        assert_eq!(looks(&[(1, 10), (3, 30)]), (vec![0], vec![0, 1]), "it had been gone");
    }

    #[test]
    fn what_could_not_go_is_considered_again_later() {
        let (sizes, now) = (CopySizes::default(), Instant::now());
        let known = |at: Instant| {
            let mut look = |_| Ok::<_, ()>(Some(Known::new(1, 0)));
            sizes.of([("n", 1, 10)].into_iter(), &mut look).unwrap()[0].1.may_go(at)
        };
        assert!(known(now));
        sizes.stays(("n", 1, 10), now);
        assert!(!known(now + STAYS_FOR / 2));
        assert!(known(now + STAYS_FOR));
    }
}
