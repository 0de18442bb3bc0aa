//! The files that leave the SSD next, without looking at all of them each time.
//!
//! Without announced references the order in which files leave changes only for those that are
//! told of (`Keep`'s contract). So an order that was made once stays good for all others: who must
//! leave now is among the first of it and those told of since, and is the same as if the policy
//! had been asked about everything. It is made anew when those told of are about as many as make
//! looking at them as dear, spread over the uses, as making it: the square root of all.

use std::collections::VecDeque;
use std::sync::Arc;

use halocline_model::tier::FileId;
use rustc_hash::FxHashSet;

use super::inode::Entry;
use super::residents::{Resident, Residents};

/// Those told of may be as many as this even where few files are on the SSD.
const TOLD_MIN: usize = 64;

/// An order, and whom it does not tell about any more.
#[derive(Debug, Default)]
pub(super) struct Coldest {
    /// Who leaves first comes first.
    order: VecDeque<FileId>,
    /// Used, come, gone or removed since.
    told: FxHashSet<FileId>,
    told_max: usize,
    /// Somebody makes an order.
    making: bool,
}

impl Coldest {
    /// Something happened to a file.
    pub(super) fn tell(&mut self, file: FileId) {
        // Beyond it the order is not used.
        if self.told.len() <= self.told_max {
            self.told.insert(file);
        }
    }

    /// Before an order is made: what happens from now on need not be in it. `false` where somebody
    /// else makes one.
    pub(super) fn begin(&mut self) -> bool {
        if self.making {
            return false;
        }
        *self = Self { told_max: usize::MAX, making: true, ..Self::default() };
        true
    }

    /// The order that was made since [`Coldest::begin`].
    pub(super) fn set(&mut self, order: Vec<FileId>) {
        self.making = false;
        self.told_max = order.len().isqrt().max(TOLD_MIN);
        self.order = order.into();
    }

    /// Files among whom those are that leave first and have `bytes` bytes together, without
    /// `except`. `None` where that must be found out by looking at all.
    pub(super) fn first(
        &mut self,
        bytes: u64,
        except: FileId,
        residents: &Residents,
    ) -> Option<Vec<(Entry, Arc<Resident>)>> {
        if self.told.len() > self.told_max {
            return None;
        }
        while self.order.front().is_some_and(|file| self.told.contains(file)) {
            self.order.pop_front();
        }
        let may_leave = |file: &FileId| {
            let found = residents.numbered(*file).filter(|_| *file != except)?;
            (found.1.bytes() > 0).then_some(found)
        };
        let (mut sum, mut found) = (0, Vec::new());
        for file in self.order.iter().filter(|file| !self.told.contains(file)) {
            if sum >= bytes {
                break;
            }
            if let Some((entry, resident)) = may_leave(file) {
                sum += resident.bytes();
                found.push((entry, resident));
            }
        }
        found.extend(self.told.iter().filter_map(may_leave));
        (sum >= bytes).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;
    use std::collections::BTreeSet;

    use halocline_model::tier::{Keep, Outlook, POLICIES};

    use super::*;
    use crate::namespace::{Namespace, Node};

    const FILES: u64 = 1000;
    const STEPS: u64 = 3000;

    /// Sizes by number; nothing is announced.
    struct Sizes;

    impl Outlook for Sizes {
        fn size(&self, file: FileId) -> u64 {
            4096 * (1 + file % 5)
        }

        fn is_known(&self) -> bool {
            false
        }

        fn later(&self, _: FileId, _: u64) -> u64 {
            0
        }

        fn next(&self, _: FileId) -> Option<u64> {
            None
        }

        fn by_name(&self, one: FileId, other: FileId) -> Ordering {
            one.cmp(&other)
        }
    }

    struct Story {
        policy: Box<dyn Keep>,
        coldest: Coldest,
        residents: Residents,
        root: Node,
        here: BTreeSet<FileId>,
        made: u64,
    }

    impl Story {
        fn moved(&mut self, file: FileId, to_ssd: bool) {
            let entry = (1, file);
            if to_ssd {
                let name = (self.root.clone(), "x".into());
                self.residents.add(entry, file, name, Sizes.size(file));
                self.here.insert(file);
            } else {
                self.residents.remove(entry, false);
                self.here.remove(&file);
            }
            self.policy.moved(file, to_ssd);
            self.coldest.tell(file);
        }

        fn used(&mut self, file: FileId) {
            self.policy.referenced(file);
            self.coldest.tell(file);
        }

        fn first(&mut self, bytes: u64, except: FileId) -> Vec<FileId> {
            if let Some(found) = self.coldest.first(bytes, except, &self.residents) {
                return found.iter().map(|(_, resident)| resident.number).collect();
            }
            assert!(self.coldest.begin() && !self.coldest.begin());
            self.made += 1;
            let order = self.policy.leaving(self.here.iter().copied().collect(), &Sizes);
            self.coldest.set(order);
            let found = self.coldest.first(bytes, except, &self.residents).expect("enough");
            found.iter().map(|(_, resident)| resident.number).collect()
        }

        /// What the policy decides among some and among all.
        fn room_for(&mut self, file: FileId) -> Option<Vec<FileId>> {
            let (need, free) = (Sizes.size(file), self.residents.free());
            let some = if free < need { self.first(need - free, file) } else { Vec::new() };
            let all: Vec<FileId> = self.here.iter().copied().filter(|id| *id != file).collect();
            let among_some = self.policy.make_room(file, free, &|| some.clone(), &Sizes);
            let among_all = self.policy.make_room(file, free, &|| all.clone(), &Sizes);
            assert_eq!(among_some, among_all);
            among_all
        }
    }

    #[test]
    fn every_policy_decides_among_the_first_as_among_all() {
        let dir = tempfile::tempdir().unwrap();
        let root = Namespace::open(dir.path()).unwrap().root();
        for policy in POLICIES {
            let mut story = Story {
                policy: (policy.make)(),
                coldest: Coldest::default(),
                residents: Residents::new((0..FILES / 2).map(|file| Sizes.size(file)).sum()),
                root: root.clone(),
                here: BTreeSet::new(),
                made: 0,
            };
            (0..FILES / 2).for_each(|file| story.moved(file, true));
            let (mut random, mut asked) = (0x9e37_79b9_7f4a_7c15_u64, 0);
            for _ in 0..STEPS {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let file = random % FILES;
                if random % 97 < 3 {
                    story.policy.removed(file);
                    story.coldest.tell(file);
                    if story.here.remove(&file) {
                        story.residents.remove((1, file), false);
                    }
                    continue;
                }
                story.used(file);
                if !story.here.contains(&file) {
                    asked += 1;
                    if let Some(leaving) = story.room_for(file) {
                        for gone in leaving {
                            story.moved(gone, false);
                        }
                        story.moved(file, true);
                    }
                }
            }
            let made = story.made;
            assert!(asked > 1000 && made < asked / 5, "{}: {made} of {asked}", policy.name);
        }
    }
}
