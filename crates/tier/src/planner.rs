//! Which files are kept on the SSD: the policy, what it may know, pins and excludes.
//!
//! This decides and moves nothing: its result is a [`Plan`], which the [executor](super::executor) carries out. It sees
//! the tiers through a [`PolicyView`], which is in memory.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use halocline_model::tier::{self, FileId, Keep};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::eviction_queue::EvictionQueue;
use super::inode::Inode;
use super::options::TierOptions;
use super::policy_view::PolicyView;
use super::residents::Resident;
use super::tiers::Entry;
use halocline_api::globs::Globs;
use halocline_api::jobs::{Ahead, FileFacts, Jobs, Openers};
use halocline_os::clock::Clock;
use halocline_os::error::{Error, Result};

/// The most files among which those that a promotion may push out are sought.
const VICTIMS_MAX: usize = 1 << 20;
/// Whether a file stays on the SSD whatever the policy decides, by its number.
pub(super) type Except<'a> = &'a dyn Fn(FileId) -> bool;

/// A file that may leave the SSD.
pub(super) type Leaving = (Entry, Arc<Resident>);

/// Files that may leave the SSD, by the numbers that the policy knows.
type Candidates = HashMap<FileId, Leaving>;

/// What the executor is to do.
pub(super) struct Plan {
    /// Files to demote in this order, as long as there is not enough room without.
    pub(super) demote: Vec<Leaving>,
}

/// What jobs conclude from an open.
pub(super) struct FollowedOpen {
    /// Announced references after it, if it is a job's own use of the file.
    pub(super) ahead: Option<Ahead>,
    /// Paths of announced files that were skipped: they may leave earlier, which [`Planner::changed`] must be told.
    pub(super) skipped: Vec<Arc<Path>>,
}

/// The policy, and the rules that take precedence over it.
#[derive(Debug)]
pub(super) struct Planner {
    policy: Mutex<Box<dyn Keep>>,
    /// Indexed by whether room is wanted for a file that jobs name.
    eviction_queues: [Mutex<EvictionQueue>; 2],
    globs: RwLock<Globs>,
    jobs: Mutex<Jobs>,
    openers: Openers,
    clock: Clock,
}

impl Planner {
    /// The policy of `options`; the rules of earlier mounts are kept in `private`.
    pub(super) fn new(
        private: &Path,
        options: &TierOptions,
        limit: u64,
        clock: &Clock,
    ) -> Result<Self> {
        let mut policy = tier::by_name(&options.policy).map_err(|unknown| {
            Error::invalid(unknown.to_string(), "choose one of them with --policy")
        })?;
        policy.holds(limit);
        let globs = Globs::load(private, &options.pin, &options.exclude)?;
        let jobs = Mutex::new(Jobs::load(private)?);
        let (policy, eviction_queues) = (Mutex::new(policy), Default::default());
        let (globs, openers, clock) = (RwLock::new(globs), Openers::default(), clock.clone());
        Ok(Self { policy, eviction_queues, globs, jobs, openers, clock })
    }

    /// Called when a file of `bytes` bytes is used; whether it is on the SSD is determined after the policy was told.
    pub(super) fn referenced(&self, number: u64, bytes: u64, is_here: impl FnOnce() -> bool) {
        let reordered = {
            let mut policy = self.policy.lock();
            policy.referenced(number, bytes);
            policy.is_reordered()
        };
        if reordered {
            self.changed_for_many();
        }
        // A file that comes later is reported then.
        if is_here() {
            self.changed(number);
        }
    }

    /// Called when a new file is used.
    pub(super) fn created(&self, number: u64) {
        self.referenced(number, 0, || false);
        self.moved(number, true);
    }

    /// Called when a file has come to the SSD or left it.
    pub(super) fn moved(&self, number: u64, to_ssd: bool) {
        self.policy.lock().moved(number, to_ssd);
        self.changed(number);
    }

    /// Called when a file no longer exists.
    pub(super) fn removed(&self, number: u64) {
        self.policy.lock().removed(number);
        self.changed(number);
    }

    /// Called when something has changed that affects when a file on the SSD leaves it.
    pub(super) fn changed(&self, number: u64) {
        self.eviction_queues.iter().for_each(|queue| queue.lock().tell(number));
    }

    /// The same for many files; called after the change.
    pub(super) fn changed_for_many(&self) {
        self.eviction_queues.iter().for_each(|queue| queue.lock().forget());
    }

    /// Whether names affect when files leave the SSD.
    pub(super) fn goes_by_names(&self) -> bool {
        self.globs.read().has_pins() || self.jobs.lock().any()
    }

    /// Files that may leave the SSD now, with their bytes.
    fn evictable(&self, except: Except<'_>, view: PolicyView<'_>) -> Candidates {
        let globs = self.globs.read();
        let mut found = Candidates::new();
        for (entry, resident) in view.residents.all().into_iter().take(VICTIMS_MAX) {
            let stays = except(resident.number) || pins(&globs, &resident, view);
            if !stays && resident.bytes() > 0 {
                found.insert(resident.number, (entry, resident));
            }
        }
        found
    }

    /// Files that include the first that the policy lets go, and that together have `bytes` bytes, where room is wanted
    /// for a file that is `announced` or not; all that may leave if that is unknown.
    fn first_to_leave(
        &self,
        bytes: u64,
        except: Except<'_>,
        announced: bool,
        view: PolicyView<'_>,
    ) -> Candidates {
        let prepared = &self.eviction_queues[usize::from(announced)];
        let first = || {
            // This lock is taken first: others take the queues' locks while they hold names, and must not wait for
            // rules.
            let globs = self.globs.read();
            let stays = |file: &Resident| except(file.number) || pins(&globs, file, view);
            prepared.lock().first(bytes, stays, view.residents)
        };
        let mut found = first();
        // These are two statements so that the lock is released before a queue is made.
        let begun = found.is_none() && prepared.lock().begin();
        if begun {
            let order = self.order(&self.evictable(&|_| false, view), announced, view);
            prepared.lock().set(order);
            found = first();
        }
        let Some(found) = found else { return self.evictable(except, view) };
        found.into_iter().map(|found| (found.1.number, found)).collect()
    }

    /// The order in which the policy lets files leave.
    fn order(&self, candidates: &Candidates, announced: bool, view: PolicyView<'_>) -> Vec<FileId> {
        let mut known = self.known(candidates, view);
        known.announced = announced;
        let files = candidates.keys().copied().collect();
        self.policy.lock().leaving(files, &known)
    }

    /// What is known about files that may leave.
    fn known(&self, candidates: &Candidates, view: PolicyView<'_>) -> FileFacts {
        let mut known = FileFacts::default();
        let jobs = self.jobs.lock();
        let any = jobs.any();
        for (number, (_, file)) in candidates {
            known.sizes.insert(*number, file.bytes());
            let paths = if any { view.paths_of_resident(file) } else { Vec::new() };
            if let Some(ahead) = paths.iter().find_map(|path| jobs.ahead(path)) {
                known.ahead.insert(*number, ahead);
            }
        }
        known
    }

    /// What leaves first for `missing` more bytes. Files that turn out to be in use may make this too little.
    pub(super) fn plan_room(&self, missing: u64, except: Except<'_>, view: PolicyView<'_>) -> Plan {
        self.plan(self.first_to_leave(missing, except, false, view), view)
    }

    /// All that may leave.
    pub(super) fn plan_all(&self, except: Except<'_>, view: PolicyView<'_>) -> Plan {
        self.plan(self.evictable(except, view), view)
    }

    fn plan(&self, mut candidates: Candidates, view: PolicyView<'_>) -> Plan {
        let order = self.order(&candidates, false, view);
        let demote = order.iter().filter_map(|number| candidates.remove(number)).collect();
        Plan { demote }
    }

    /// What leaves so that file `number`, which needs `need` bytes, can come; `None` if it is to be served in place.
    pub(super) fn plan_promotion(
        &self,
        number: u64,
        need: u64,
        ahead: Option<Ahead>,
        view: PolicyView<'_>,
    ) -> Option<Plan> {
        let free = view.residents.free();
        let missing = view.residents.missing(need);
        let candidates = match missing {
            0 => Candidates::new(),
            _ => self.first_to_leave(missing, &|other| other == number, ahead.is_some(), view),
        };
        let mut known = self.known(&candidates, view);
        // What exceeds the limit must leave, too.
        known.sizes.insert(number, need.max(free + missing));
        known.announced = ahead.is_some();
        known.ahead.insert(number, ahead.unwrap_or_default());
        let cached = || candidates.keys().copied().collect();
        let leaving = self.policy.lock().make_room(number, free, &cached, &known)?;
        let demote = leaving.iter().filter_map(|number| candidates.get(number).cloned()).collect();
        Some(Plan { demote })
    }

    /// How many files the policy lets go before `number`, and of how many; `None` if it does not leave by the policy's
    /// decision. Orders all files on the SSD.
    pub(super) fn rank(&self, number: u64, view: PolicyView<'_>) -> Option<(u64, u64)> {
        let candidates = self.evictable(&|_| false, view);
        candidates.get(&number)?;
        let order = self.order(&candidates, false, view);
        let at = order.iter().position(|other| *other == number)?;
        Some((at as u64, order.len() as u64))
    }

    /// Tells jobs that thread `by` opens or creates a file with these paths (at least one).
    pub(super) fn follow_jobs(&self, mut paths: Vec<PathBuf>, by: u32) -> FollowedOpen {
        let opener = self.openers.of_thread(by, self.clock.instant());
        let (passed, ahead) = {
            let mut jobs = self.jobs.lock();
            // It is not known by which of its names it was opened: assume the one that a job has.
            let named = paths.iter().position(|path| jobs.ahead(path).is_some());
            jobs.opened(&paths.swap_remove(named.unwrap_or(0)), &opener)
        };
        if passed.untrusted {
            self.changed_for_many();
        }
        FollowedOpen { ahead, skipped: passed.skipped }
    }

    /// Whether any jobs are announced.
    pub(super) fn has_jobs(&self) -> bool {
        self.jobs.lock().any()
    }

    /// The announced jobs.
    pub(super) fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock()
    }

    /// The rules.
    pub(super) fn rules(&self) -> RwLockReadGuard<'_, Globs> {
        self.globs.read()
    }

    /// The rules, to change them.
    pub(super) fn change_rules(&self) -> RwLockWriteGuard<'_, Globs> {
        self.globs.write()
    }

    /// Whether a glob keeps a file on the SSD, by any of its names.
    pub(super) fn is_pinned(&self, inode: &Inode, view: PolicyView<'_>) -> bool {
        let globs = self.globs.read();
        globs.has_pins() && view.paths_of(&inode.entry()).iter().any(|path| globs.pins(path))
    }

    /// Whether globs keep a file off the SSD, by all of its names.
    pub(super) fn is_excluded(&self, inode: &Inode, view: PolicyView<'_>) -> bool {
        let globs = self.globs.read();
        globs.has_excludes()
            && view.paths_of(&inode.entry()).iter().all(|path| globs.excludes(path))
    }
}

/// Whether a glob keeps a file on the SSD.
fn pins(globs: &Globs, resident: &Resident, view: PolicyView<'_>) -> bool {
    globs.has_pins() && view.paths_of_resident(resident).iter().any(|path| globs.pins(path))
}
