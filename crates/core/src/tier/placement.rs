//! Which files are kept on the SSD: the policy, what it may know, pins and excludes.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use halocline_model::tier::{self, FileId, Keep, Outlook};
use parking_lot::{Mutex, RwLock};

use super::Core;
use super::batch::{Outcomes, ToldOf, batch_of};
use super::counters::Opening;
use super::eviction_order::EvictionOrder;
use super::in_flight::{IN_FLIGHT, all_at_once, together};
use super::inode::{Entry, Inode};
use super::job::Ahead;
use super::jobs::Jobs;
use super::migrate::{COPY_SLACK, Manner, Stayed};
use super::opener::Openers;
use super::options::TierOptions;
use super::residents::Resident;
use crate::error::{Error, Result};
use crate::globs::Globs;
use crate::namespace::stat_descriptor;

/// Files that a promotion may push out are looked for among this many at most.
const VICTIMS_MAX: usize = 1 << 20;
/// After so many copies that failed one after the other the tiers below are left in peace for now.
const FAILURES_MAX: usize = 8;
/// How often room is made for a file that was asked for, where others take it.
const BRING_ATTEMPTS: usize = 16;

/// Whether a file stays on the SSD whatever the policy says, by its number.
pub(super) type Except<'a> = &'a dyn Fn(FileId) -> bool;

/// Files that may leave the SSD, by the numbers that the policy knows.
pub(super) type Candidates = HashMap<FileId, (Entry, Arc<Resident>)>;

/// What came of making room.
struct Room {
    /// As much is free as was asked for.
    enough: bool,
    /// Files left the SSD, by us or by others: there may be enough by now, or at another attempt.
    moved: bool,
}

/// The policy and the rules that stand above it.
#[derive(Debug)]
pub(super) struct Placement {
    policy: Mutex<Box<dyn Keep>>,
    /// By whether room is wanted for a file that jobs name.
    orders: [Mutex<EvictionOrder>; 2],
    pub(super) globs: RwLock<Globs>,
    pub(super) jobs: Mutex<Jobs>,
    openers: Openers,
}

/// What is known of files when the policy decides.
#[derive(Default)]
struct Known {
    sizes: HashMap<FileId, u64>,
    /// Announced references to come of files that jobs name.
    ahead: HashMap<FileId, Ahead>,
    /// Whether the file in question is one of those.
    announced: bool,
}

impl Outlook for Known {
    fn size(&self, file: FileId) -> u64 {
        self.sizes.get(&file).copied().unwrap_or(0)
    }

    fn is_known(&self) -> bool {
        self.announced
    }

    fn later(&self, file: FileId, horizon: u64) -> u64 {
        self.ahead.get(&file).map_or(0, |ahead| ahead.later(horizon))
    }

    fn next(&self, file: FileId) -> Option<u64> {
        self.ahead.get(&file)?.next()
    }

    fn by_name(&self, one: FileId, other: FileId) -> Ordering {
        one.cmp(&other)
    }
}

impl Placement {
    /// The policy of `options`; the rules of earlier mounts are kept in `private`.
    pub(super) fn new(private: &Path, options: &TierOptions, limit: u64) -> Result<Self> {
        let mut policy = tier::by_name(&options.policy).map_err(|unknown| {
            Error::invalid(unknown.to_string(), "choose one of them with --policy")
        })?;
        policy.holds(limit);
        let globs = Globs::load(private, &options.pin, &options.exclude)?;
        let jobs = Mutex::new(Jobs::load(private)?);
        let (policy, orders) = (Mutex::new(policy), Default::default());
        Ok(Self { policy, orders, globs: RwLock::new(globs), jobs, openers: Openers::default() })
    }

    /// A file of `bytes` bytes is used; whether it is on the SSD is looked up after the policy was
    /// told.
    fn referenced(&self, number: u64, bytes: u64, is_here: impl FnOnce() -> bool) {
        let reordered = {
            let mut policy = self.policy.lock();
            policy.referenced(number, bytes);
            policy.is_reordered()
        };
        if reordered {
            self.changed_for_many();
        }
        // One that comes later is told of then.
        if is_here() {
            self.changed(number);
        }
    }

    /// A new file is used.
    pub(super) fn created(&self, number: u64) {
        self.referenced(number, 0, || false);
        self.moved(number, true);
    }

    /// A file came to the SSD or left it.
    pub(super) fn moved(&self, number: u64, to_ssd: bool) {
        self.policy.lock().moved(number, to_ssd);
        self.changed(number);
    }

    /// A file is no more.
    pub(super) fn removed(&self, number: u64) {
        self.policy.lock().removed(number);
        self.changed(number);
    }

    /// Something that matters for when a file on the SSD leaves it has changed.
    pub(super) fn changed(&self, number: u64) {
        self.orders.iter().for_each(|order| order.lock().tell(number));
    }

    /// That has changed for many, before this is called.
    pub(super) fn changed_for_many(&self) {
        self.orders.iter().for_each(|order| order.lock().forget());
    }

    /// Whether names matter for when files leave the SSD.
    pub(super) fn goes_by_names(&self) -> bool {
        self.globs.read().has_pins() || self.jobs.lock().any()
    }
}

impl Core {
    /// Files that may leave the SSD now, with their bytes.
    pub(super) fn evictable(&self, except: Except<'_>) -> Candidates {
        let globs = self.placement.globs.read();
        let mut found = Candidates::new();
        for (entry, resident) in self.residents.all().into_iter().take(VICTIMS_MAX) {
            let stays = except(resident.number) || self.pins(&globs, &resident);
            if !stays && resident.bytes() > 0 {
                found.insert(resident.number, (entry, resident));
            }
        }
        found
    }

    /// Whether a glob keeps a file on the SSD.
    fn pins(&self, globs: &Globs, resident: &Resident) -> bool {
        globs.has_pins() && self.paths_of_resident(resident).iter().any(|path| globs.pins(path))
    }

    /// Files among whom those are that the policy sends away first and that have `bytes` bytes
    /// together, where room is wanted for a file that is `announced` or not; all that may leave
    /// where that cannot be told.
    fn first_to_leave(&self, bytes: u64, except: Except<'_>, announced: bool) -> Candidates {
        let prepared = &self.placement.orders[usize::from(announced)];
        let first = || {
            // Taken first: others want the orders while they hold names, and wait for no rules.
            let globs = self.placement.globs.read();
            let stays = |file: &Resident| except(file.number) || self.pins(&globs, file);
            prepared.lock().first(bytes, stays, &self.residents)
        };
        let mut found = first();
        // Two statements: the lock goes before an order is made.
        let begun = found.is_none() && prepared.lock().begin();
        if begun {
            let order = self.order(&self.evictable(&|_| false), announced);
            prepared.lock().set(order);
            found = first();
        }
        let Some(found) = found else { return self.evictable(except) };
        found.into_iter().map(|found| (found.1.number, found)).collect()
    }

    /// The order in which the policy lets files go.
    pub(super) fn order(&self, candidates: &Candidates, announced: bool) -> Vec<FileId> {
        let mut known = self.known(candidates);
        known.announced = announced;
        let files = candidates.keys().copied().collect();
        self.placement.policy.lock().leaving(files, &known)
    }

    /// Path of a file on the SSD relative to the root.
    pub(super) fn path_of(&self, resident: &Resident) -> std::path::PathBuf {
        let (parent, name) = resident.name.lock().clone();
        self.namespace.path_of(&parent).join(name)
    }

    /// The inode of a file on the SSD.
    pub(super) fn inode_of(&self, entry: Entry, resident: &Resident) -> Option<Arc<Inode>> {
        if let Some(live) = self.table.find(entry) {
            return Some(live);
        }
        let (parent, name) = resident.name.lock().clone();
        let (node, _) = self.lookup(&parent, &name).ok()?;
        (node.0.entry().key() == entry).then_some(node.0)
    }

    /// Demotes files until `bytes` are free on the SSD, in the policy's order. `false` where that
    /// is not possible.
    pub(super) fn free_up(&self, bytes: u64, except: u64) -> bool {
        self.make_room(bytes, &|number| number == except).enough
    }

    /// The same, telling more.
    fn make_room(&self, bytes: u64, except: Except<'_>) -> Room {
        let mut room = Room { enough: self.is_free(bytes), moved: false };
        if !room.enough {
            let first = self.first_to_leave(self.residents.missing(bytes), except, false);
            let in_peace = self.push_out_some(&first, bytes, &mut room);
            // Some of them may have been in use.
            if !room.enough && !in_peace {
                self.push_out_some(&self.evictable(except), bytes, &mut room);
            }
        }
        room
    }

    /// Demotes candidates in the policy's order until `bytes` are free. Whether the tiers below are
    /// left in peace for now.
    fn push_out_some(&self, candidates: &Candidates, bytes: u64, room: &mut Room) -> bool {
        let order = self.order(candidates, false);
        let order: Vec<_> = order.iter().filter_map(|number| candidates.get(number)).collect();
        let (mut left, mut failures) = (&order[..], 0);
        while !left.is_empty() && failures < FAILURES_MAX && !self.is_free(bytes) {
            let sizes = left.iter().map(|(_, resident)| resident.bytes());
            let missing = self.residents.missing(bytes).max(1);
            // Tiers that fail are not given many at once.
            let goes_well = room.moved && failures == 0;
            if goes_well {
                let (batch, later) = left.split_at(batch_of(sizes.clone(), missing));
                if self.push_out_batch(batch) {
                    left = later;
                    continue;
                }
            }
            let most = if goes_well { IN_FLIGHT } else { FAILURES_MAX - failures };
            let (now, later) = left.split_at(together(sizes, missing, most));
            for pushed in all_at_once(now, |(entry, resident)| self.push_out(*entry, resident)) {
                if matches!(pushed, Err(Stayed::Failed(_))) {
                    failures += 1;
                    continue;
                }
                failures = 0;
                // Somebody else may have been quicker.
                room.moved |= matches!(pushed, Ok(_) | Err(Stayed::There | Stayed::Gone));
            }
            left = later;
        }
        room.enough = self.is_free(bytes);
        failures >= FAILURES_MAX
    }

    /// Demotes files that have to make room as a batch, and those that it leaves one by one. Whether
    /// any went as a batch.
    fn push_out_batch(&self, files: &[&(Entry, Arc<Resident>)]) -> bool {
        let inodes = files.iter().map(|(entry, resident)| self.inode_of(*entry, resident));
        let inodes: Vec<_> = inodes.collect();
        let known: Vec<_> = inodes.iter().flatten().collect();
        let outcomes = self.migrate_batch(&known, 1, &|_, _| true);
        let any = outcomes.iter().any(Option::is_some);
        if any {
            let left = known.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_none());
            let left: Vec<_> = left.map(|(inode, _)| inode).collect();
            for some in left.chunks(IN_FLIGHT) {
                all_at_once(some, |inode| self.demote(inode, Manner::Yielding, &mut |_| true));
            }
        }
        any
    }

    /// Whether `bytes` are free on the SSD; what left it, by whomever, is freed first.
    fn is_free(&self, bytes: u64) -> bool {
        self.free_old_copies();
        self.residents.free() >= bytes
    }

    /// Demotes one file that has to make room.
    fn push_out(&self, entry: Entry, resident: &Resident) -> Result<u64, Stayed> {
        let inode = self.inode_of(entry, resident).ok_or(Stayed::Gone)?;
        self.demote(&inode, Manner::Yielding, &mut |_| true).inspect_err(|stayed| {
            tracing::debug!("{}: not demoted: {stayed}", self.path_of(resident).display());
        })
    }

    /// Brings a file to the SSD because it was asked for, telling of progress. Pushes others out,
    /// but for those that `stays` tells of, until `kept` bytes are left free besides.
    pub(super) fn bring(
        &self,
        inode: &Arc<Inode>,
        kept: u64,
        stays: Except<'_>,
        told: super::copy::Told<'_>,
    ) -> Result<u64, Stayed> {
        for _ in 0..BRING_ATTEMPTS {
            let need = self.room_needed(inode)?.saturating_add(kept);
            let room = self.make_room(need, &|number| number == inode.number || stays(number));
            if room.enough {
                match self.migrate(inode, 0, Manner::Yielding, told) {
                    // Somebody else took the room that was made.
                    Err(Stayed::NoRoom) => {}
                    other => return other,
                }
            } else if !room.moved {
                break;
            }
        }
        Err(Stayed::NoRoom)
    }

    /// The same for many small files, which need `need` bytes together; `None` for those that are to
    /// be brought alone.
    pub(super) fn bring_batch(
        &self,
        (inodes, need): (&[&Arc<Inode>], u64),
        kept: u64,
        stays: Except<'_>,
        told: ToldOf<'_>,
    ) -> Outcomes {
        let numbers: HashSet<u64> = inodes.iter().map(|inode| inode.number).collect();
        let except = |number| numbers.contains(&number) || stays(number);
        if self.make_room(need.saturating_add(kept), &except).enough {
            self.migrate_batch(inodes, 0, told)
        } else {
            inodes.iter().map(|_| None).collect()
        }
    }

    /// Bytes that must be free on the SSD for a file to come there; [`Stayed::NoRoom`] where they
    /// never are.
    fn room_needed(&self, inode: &Inode) -> Result<u64, Stayed> {
        let place = inode.place.read();
        let stat = stat_descriptor(&*self.physical(inode, &place)?)?;
        let need = stat.disk_bytes() + COPY_SLACK;
        if need > self.residents.account.limit { Err(Stayed::NoRoom) } else { Ok(need) }
    }

    /// What is known of files that may leave.
    fn known(&self, candidates: &Candidates) -> Known {
        let mut known = Known::default();
        let jobs = self.placement.jobs.lock();
        let any = jobs.any();
        for (number, (_, file)) in candidates {
            known.sizes.insert(*number, file.bytes());
            let paths = if any { self.paths_of_resident(file) } else { Vec::new() };
            if let Some(ahead) = paths.iter().find_map(|path| jobs.ahead(path)) {
                known.ahead.insert(*number, ahead);
            }
        }
        known
    }

    /// A program opens a file: jobs and policy are told, and the policy brings it to the SSD if it
    /// is worth that (Algorithm 1).
    pub(super) fn used(&self, inode: &Arc<Inode>, by: u32) {
        let ahead = self.follow_jobs(inode, by);
        self.uses.opened(inode.number);
        let mut away = false;
        let bytes = self.bytes_on_disk(inode);
        self.placement.referenced(inode.number, bytes, || {
            let place = inode.place.read();
            away = place.away.is_some() && place.entry.known_as().is_some();
            place.away.is_none()
        });
        self.counters.opened(match away {
            false => Opening::Hit,
            true if self.promote(inode, ahead) => Opening::Promoted,
            true => Opening::InPlace,
        });
    }

    /// Bytes of blocks of a file, wherever it is; 0 where that cannot be told.
    fn bytes_on_disk(&self, inode: &Inode) -> u64 {
        let place = inode.place.read();
        if let Some(resident) = &place.resident {
            return resident.bytes();
        }
        let found = self.physical(inode, &place).and_then(|fd| stat_descriptor(&*fd));
        found.map_or(0, |stat| stat.disk_bytes())
    }

    /// Tells jobs that thread `by` opens or makes a file; its announced references after that,
    /// where it is a job's own use of it.
    pub(super) fn follow_jobs(&self, inode: &Inode, by: u32) -> Option<Ahead> {
        if !self.placement.jobs.lock().any() {
            return None;
        }
        let mut paths = self.paths_of(&inode.entry());
        let opener = self.placement.openers.of_thread(by, Instant::now());
        let (passed, ahead) = {
            let mut jobs = self.placement.jobs.lock();
            // Which of its names it was opened by nobody tells: the one that a job has.
            let named = paths.iter().position(|path| jobs.ahead(path).is_some());
            jobs.opened(&paths.swap_remove(named.unwrap_or(0)), &opener)
        };
        if passed.untrusted {
            self.placement.changed_for_many();
        }
        for skipped in passed.skipped {
            let entry = self.walk(&skipped).map(|node| node.key());
            if let Some(resident) = entry.and_then(|entry| self.residents.get(entry)) {
                self.placement.changed(resident.number);
            }
        }
        ahead
    }

    /// Brings an opened file to the SSD if the policy wants it there and it fits.
    fn promote(&self, inode: &Arc<Inode>, ahead: Option<Ahead>) -> bool {
        let Ok(need) = self.room_needed(inode) else { return false };
        if self.excludes(inode) {
            return false;
        }
        let Some(leaving) = self.room_for(inode.number, need, ahead) else {
            self.uses.stayed(inode.number, "the policy kept what is on the SSD instead");
            return false;
        };
        for (entry, resident) in leaving {
            // Without its room the file itself will stay.
            let _ = self.push_out(entry, &resident);
        }
        match self.migrate(inode, 0, Manner::Yielding, &mut |_| true) {
            Ok(_) => true,
            Err(stayed) => {
                tracing::debug!("served in place: {stayed}");
                false
            }
        }
    }

    /// Whom the policy sends away so that `number` can come; `None` serves it in place.
    fn room_for(
        &self,
        number: u64,
        need: u64,
        ahead: Option<Ahead>,
    ) -> Option<Vec<(Entry, Arc<Resident>)>> {
        self.free_old_copies();
        let free = self.residents.free();
        let missing = self.residents.missing(need);
        let candidates = match missing {
            0 => Candidates::new(),
            _ => self.first_to_leave(missing, &|other| other == number, ahead.is_some()),
        };
        let mut known = self.known(&candidates);
        // What is above the limit must leave, too.
        known.sizes.insert(number, need.max(free + missing));
        known.announced = ahead.is_some();
        known.ahead.insert(number, ahead.unwrap_or_default());
        let cached = || candidates.keys().copied().collect();
        let leaving = self.placement.policy.lock().make_room(number, free, &cached, &known)?;
        Some(leaving.iter().filter_map(|number| candidates.get(number).cloned()).collect())
    }

    /// Whether a glob keeps a file off the SSD.
    pub(super) fn excludes(&self, inode: &Inode) -> bool {
        let globs = self.placement.globs.read();
        self.is_excluded(&globs, inode)
    }
}
