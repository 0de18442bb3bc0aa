//! The files that leave the SSD next, found without examining all of them each time.
//!
//! The order in which files leave changes only for files that are reported (the contract of `Keep`). So once the queue
//! has been made, it stays valid for all others: the files that must leave now are among its first ones and those
//! reported since, and are the same as if the policy had been asked about all files. The queue is rebuilt once about as
//! many files as the square root of all files have been reported: beyond that, checking them costs as much as
//! rebuilding, spread over the uses.
//!
//! Rules and jobs are taken into account: a pinned file is not in the queue, and a file that is renamed, or whose
//! announced references were skipped, is reported. A change that affects many files (a rule, a job, a directory's name)
//! invalidates the queue. In two respects it may lag until it is rebuilt: sizes (a file that was empty is not in it),
//! and how one job's references interleave with another's.

use std::collections::VecDeque;
use std::sync::Arc;

use halocline_model::tier::FileId;
use rustc_hash::FxHashSet;

use super::residents::{Resident, Residents};
use super::tiers::Entry;

/// At least this many reported files are allowed, even where few files are on the SSD.
const TOLD_MIN: usize = 64;

/// A queue, and the files whose position in it is stale.
#[derive(Debug, Default)]
pub(super) struct EvictionQueue {
    /// Whether there is a queue that nothing has invalidated.
    valid: bool,
    /// The next file to leave comes first.
    queue: VecDeque<FileId>,
    /// Files that were used, came, left, or were removed or renamed since.
    told: FxHashSet<FileId>,
    told_max: usize,
    /// Set while a queue is being made, with whether something has invalidated that one.
    making: Option<Making>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Making {
    Valid,
    Void,
}

impl EvictionQueue {
    /// Notes that something happened to a file.
    pub(super) fn tell(&mut self, file: FileId) {
        // Beyond `told_max` the queue is not used.
        if self.told.len() <= self.told_max {
            self.told.insert(file);
        }
    }

    /// Notes that something happened that may concern any file.
    pub(super) fn forget(&mut self) {
        let making = self.making.map(|_| Making::Void);
        *self = Self { making, ..Self::default() };
    }

    /// Called before a queue is made, which need not reflect what happens from now on. `false` if another thread is
    /// making one.
    pub(super) fn begin(&mut self) -> bool {
        if self.making.is_some() {
            return false;
        }
        *self = Self { told_max: usize::MAX, making: Some(Making::Valid), ..Self::default() };
        true
    }

    /// The queue that was made since [`EvictionQueue::begin`].
    pub(super) fn set(&mut self, queue: Vec<FileId>) {
        if self.making.take() == Some(Making::Valid) {
            self.valid = true;
            self.told_max = queue.len().isqrt().max(TOLD_MIN);
            self.queue = queue.into();
        }
    }

    /// Files that include the first to leave and together have `bytes` bytes, without those that `stays` keeps; all
    /// that may leave if they have less. `None` if only an examination of all files can tell.
    pub(super) fn first(
        &mut self,
        bytes: u64,
        stays: impl Fn(&Resident) -> bool,
        residents: &Residents,
    ) -> Option<Vec<(Entry, Arc<Resident>)>> {
        if !self.valid || self.told.len() > self.told_max {
            return None;
        }
        while self.queue.front().is_some_and(|file| self.told.contains(file)) {
            self.queue.pop_front();
        }
        let may_leave = |file: &FileId| {
            let found = residents.numbered(*file)?;
            (found.1.bytes() > 0 && !stays(&found.1)).then_some(found)
        };
        let (mut sum, mut found) = (0, Vec::new());
        for file in self.queue.iter().filter(|file| !self.told.contains(file)) {
            if sum >= bytes {
                break;
            }
            if let Some((entry, resident)) = may_leave(file) {
                sum += resident.bytes();
                found.push((entry, resident));
            }
        }
        found.extend(self.told.iter().filter_map(may_leave));
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;
    use std::collections::BTreeSet;

    use halocline_model::tier::{Keep, Outlook, POLICIES, Policy};

    use super::*;
    use halocline_vfs::namespace::{Namespace, Vnode};

    const FILES: u64 = 1000;
    const STEPS: u64 = 3000;

    /// Sizes by number, and what a job announces.
    #[derive(Default)]
    struct PolicyView {
        sequence: Vec<FileId>,
        /// Positions of each file in the sequence.
        positions: Vec<Vec<u64>>,
        /// The position of the next reference.
        now: u64,
        /// Whether the file in question is announced.
        known: bool,
    }

    impl PolicyView {
        fn ahead(&self, file: FileId) -> &[u64] {
            let positions = self.positions.get(usize::try_from(file).unwrap());
            let positions = positions.map_or(&[][..], Vec::as_slice);
            &positions[positions.partition_point(|position| *position < self.now)..]
        }
    }

    impl Outlook for PolicyView {
        fn size(&self, file: FileId) -> u64 {
            4096 * (1 + file % 5)
        }

        fn is_known(&self) -> bool {
            self.known
        }

        fn later(&self, file: FileId, horizon: u64) -> u64 {
            let last = self.now.saturating_add(horizon);
            self.ahead(file).partition_point(|position| *position < last) as u64
        }

        fn next(&self, file: FileId) -> Option<u64> {
            self.ahead(file).first().map(|position| position - self.now + 1)
        }

        fn by_name(&self, one: FileId, other: FileId) -> Ordering {
            one.cmp(&other)
        }
    }

    struct Run {
        policy: Box<dyn Keep>,
        view: PolicyView,
        queues: [EvictionQueue; 2],
        residents: Residents,
        root: Vnode,
        here: BTreeSet<FileId>,
        pinned: BTreeSet<FileId>,
        made: u64,
        asked: u64,
        random: u64,
    }

    impl Run {
        fn new(policy: &Policy, root: &Vnode) -> Self {
            let view = PolicyView::default();
            let limit = (0..FILES / 2).map(|file| view.size(file)).sum();
            let mut run = Self {
                policy: (policy.make)(),
                view,
                queues: Default::default(),
                residents: Residents::new(limit),
                root: root.clone(),
                here: BTreeSet::new(),
                pinned: BTreeSet::new(),
                made: 0,
                asked: 0,
                random: 0x9e37_79b9_7f4a_7c15,
            };
            run.policy.holds(limit);
            (0..FILES / 2).for_each(|file| run.moved(file, true));
            run
        }

        fn any(&mut self, below: u64) -> u64 {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            self.random % below
        }

        fn tell(&mut self, file: FileId) {
            self.queues.iter_mut().for_each(|queue| queue.tell(file));
        }

        fn moved(&mut self, file: FileId, to_ssd: bool) {
            let entry = (1, file);
            if to_ssd {
                let name = (self.root.clone(), "x".into());
                self.residents.add(entry, file, name, self.view.size(file));
                self.here.insert(file);
            } else {
                self.residents.remove(entry, false);
                self.here.remove(&file);
            }
            self.policy.moved(file, to_ssd);
            self.tell(file);
        }

        fn removed(&mut self, file: FileId) {
            self.policy.removed(file);
            self.tell(file);
            if self.here.remove(&file) {
                self.residents.remove((1, file), false);
            }
        }

        /// Opens a file, and brings it to the SSD if the policy wants it.
        fn used(&mut self, file: FileId) {
            self.policy.referenced(file, self.view.size(file));
            if self.policy.is_reordered() {
                self.queues.iter_mut().for_each(EvictionQueue::forget);
            }
            if self.here.contains(&file) {
                self.tell(file);
                return;
            }
            self.asked += 1;
            if let Some(leaving) = self.room_for(file) {
                for gone in leaving {
                    self.moved(gone, false);
                }
                self.moved(file, true);
            }
        }

        fn may_leave(&self, except: FileId) -> Vec<FileId> {
            self.here.difference(&self.pinned).copied().filter(|file| *file != except).collect()
        }

        fn first(&mut self, bytes: u64, except: FileId) -> Vec<FileId> {
            let at = usize::from(self.view.known);
            for _ in 0..2 {
                let pinned = &self.pinned;
                let stays =
                    |file: &Resident| file.number == except || pinned.contains(&file.number);
                if let Some(found) = self.queues[at].first(bytes, stays, &self.residents) {
                    return found.iter().map(|(_, resident)| resident.number).collect();
                }
                assert!(self.queues[at].begin() && !self.queues[at].begin());
                self.made += 1;
                let queue = self.policy.leaving(self.may_leave(u64::MAX), &self.view);
                self.queues[at].set(queue);
            }
            unreachable!("a queue was just made");
        }

        /// The policy's choice among some files, which must be that among all.
        fn room_for(&mut self, file: FileId) -> Option<Vec<FileId>> {
            let (need, free) = (self.view.size(file), self.residents.free());
            let some = if free < need { self.first(need - free, file) } else { Vec::new() };
            let all = self.may_leave(file);
            let among_some = self.policy.make_room(file, free, &|| some.clone(), &self.view);
            let among_all = self.policy.make_room(file, free, &|| all.clone(), &self.view);
            assert_eq!(among_some, among_all);
            among_all
        }

        /// Announces references to the first of the files, each three times.
        fn announce(&mut self) {
            let named = FILES * 4 / 5;
            self.view.sequence = (0..3 * named).map(|_| self.any(named)).collect();
            self.view.positions = vec![Vec::new(); usize::try_from(named).unwrap()];
            for (position, file) in self.view.sequence.iter().enumerate() {
                self.view.positions[usize::try_from(*file).unwrap()].push(position as u64);
            }
            self.view.now = 0;
            self.queues.iter_mut().for_each(EvictionQueue::forget);
        }

        /// The job's next reference, or one after some that it skips.
        fn follow(&mut self) {
            let skipped = if self.any(20) == 0 { self.any(8) } else { 0 };
            for _ in 0..=skipped {
                let Some(file) =
                    self.view.sequence.get(usize::try_from(self.view.now).unwrap()).copied()
                else {
                    return self.announce();
                };
                self.view.now += 1;
                self.tell(file);
            }
            let file = self.view.sequence[usize::try_from(self.view.now - 1).unwrap()];
            self.view.known = true;
            self.used(file);
            self.view.known = false;
        }
    }

    /// Runs `step` many times for every policy.
    fn every_policy(step: impl Fn(&mut Run)) {
        let dir = tempfile::tempdir().unwrap();
        let root = Namespace::open(dir.path()).unwrap().root();
        for policy in POLICIES {
            let mut run = Run::new(policy, &root);
            (0..STEPS).for_each(|_| step(&mut run));
            let (made, asked) = (run.made, run.asked);
            assert!(asked > 500 && made < asked / 5, "{}: {made} of {asked}", policy.name);
        }
    }

    #[test]
    fn every_policy_decides_among_the_first_as_among_all() {
        every_policy(|run| {
            let file = run.any(FILES);
            match run.any(97) {
                0..3 => run.removed(file),
                _ => run.used(file),
            }
        });
    }

    #[test]
    fn decisions_stay_those_among_all_while_pins_come_and_go() {
        every_policy(|run| {
            let file = run.any(FILES);
            match run.any(97) {
                // A file is renamed so that a glob begins or ceases to match it.
                0..10 => {
                    if !run.pinned.remove(&file) {
                        run.pinned.insert(file);
                    }
                    run.tell(file);
                }
                // A glob is removed.
                10 if run.asked.is_multiple_of(8) => {
                    run.pinned.clear();
                    run.queues.iter_mut().for_each(EvictionQueue::forget);
                }
                _ => run.used(file),
            }
        });
    }

    #[test]
    fn decisions_stay_those_among_all_while_jobs_go_on() {
        every_policy(|run| match run.any(97) {
            0..3 => {
                let file = run.any(FILES);
                run.removed(file);
            }
            // Files that no job names.
            3..20 => {
                let file = FILES - 1 - run.any(FILES / 5);
                run.used(file);
            }
            _ => run.follow(),
        });
    }

    #[test]
    fn an_order_that_was_made_void_meanwhile_is_not_used() {
        let residents = Residents::new(1 << 20);
        let mut queue = EvictionQueue::default();
        assert!(queue.begin());
        queue.forget();
        queue.set(vec![1, 2, 3]);
        assert!(queue.first(1, |_| false, &residents).is_none());
        assert!(queue.begin(), "the next one may");
        queue.set(vec![]);
        assert!(queue.first(1, |_| false, &residents).is_some_and(|found| found.is_empty()));
    }
}
