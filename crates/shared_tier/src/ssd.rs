//! The space on this node's own SSD, managed by a policy: which files are there ([`residents`], found by a [`scan`]),
//! which should be ([`planner`], with [`rules`] and jobs), and what moves them ([`executor`]).
//!
//! What must hold: a file that is open anywhere is not moved, the policy demotes no pinned file, and only files on
//! this node's SSD are demoted: each node manages its own. All moves are made by [`crate::moves`].

pub(crate) mod archive;
pub(crate) mod background;
mod empty_directories;
pub(crate) mod executor;
mod left_alone;
pub(crate) mod moves_at_once;
mod moves_under_way;
pub(crate) mod options;
pub(crate) mod paths;
pub(crate) mod planner;
pub(crate) mod residents;
pub(crate) mod rules;
mod scan;
mod unnumbered;

use std::fs::File;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use halocline_api::control::tier::PRIVATE;
use halocline_api::control::{JobChange, JobInfo};
use halocline_api::file_tier::Opening;
use halocline_api::jobs::{Ahead, Jobs};
use halocline_cluster::names::attributes::{Kind, Location};
use halocline_cluster::names::namespace::StoredInode;
use halocline_model::namespace::{EntryName, InodeNumber};
use halocline_model::tier::Watermarks;
use halocline_os::error::Result;
use halocline_vfs::namespace::stat_descriptor;
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::base::Base;
use crate::places::copies::Copies;
use crate::places::room::Need;
use crate::places::{SHARED, SSD};
use archive::Archive;
use background::{SsdWakeups, wakeups};
use empty_directories::EmptyDirectories;
use executor::Executor;
use options::SpaceOptions;
use paths::Paths;
use planner::Planner;
use residents::Resident;
use rules::Rules;
use scan::ScannedFile;
use unnumbered::Asked;

/// Bytes to free for a write that found the SSD full, in addition to its own.
const ROOM_FOR_WRITE: u64 = 4 << 20;

/// This node's SSD.
#[derive(Debug)]
pub(crate) struct OwnSsd {
    base: Arc<Base>,
    pub(crate) executor: Executor,
    /// Files on it that programs here have open for writing: they may grow.
    written: Mutex<FxHashSet<u64>>,
    /// Which of the empty directories on it the store is asked about.
    empty: Mutex<EmptyDirectories>,
    pub(crate) wakeups: SsdWakeups,
    policy: String,
    pub(crate) archive: Archive,
    archive_after: Option<Duration>,
}

impl OwnSsd {
    /// # Errors
    /// If an option is wrong, or what earlier mounts kept cannot be read.
    pub(crate) fn new(base: &Arc<Base>, root: &Path, options: SpaceOptions) -> Result<Self> {
        let [own, common] = ["ssd", "hdd"].map(|tier| root.join(tier).join(PRIVATE));
        let totals = base.places.totals(SSD)?;
        let limit = options.limit.bytes(totals.f_blocks.saturating_mul(totals.f_frsize));
        let watermarks = Watermarks::new(limit, options.high, options.low);
        let rules = Rules::load(&common, options.pin, options.exclude)?;
        let jobs = Jobs::load_shared(&common, &own, base.places.node())?;
        let planner = Planner::new(&options.policy, limit, rules, jobs, &base.clock)?;
        Ok(Self {
            base: Arc::clone(base),
            executor: Executor::new(base, planner, watermarks),
            written: Mutex::default(),
            empty: Mutex::default(),
            wakeups: wakeups(&base.clock),
            policy: options.policy,
            archive: Archive::default(),
            archive_after: options.archive_after,
        })
    }

    fn planner(&self) -> &Planner {
        &self.executor.planner
    }

    pub(crate) fn policy(&self) -> &str {
        &self.policy
    }

    fn is_here(&self, place: &Location) -> bool {
        self.executor.is_on(place, SSD)
    }

    /// The tier under which a handle's file is counted.
    pub(crate) fn tier_of(&self, place: Option<&Location>) -> usize {
        usize::from(!place.is_some_and(|place| self.is_here(place)))
    }

    /// The tier on which a new file is made, if there is room.
    pub(crate) fn tier_for_new(&self, name: &EntryName) -> u8 {
        if self.executor.residents.used() > self.executor.watermarks.limit() {
            return SHARED;
        }
        let is_excluded = self.planner().rules.has_excludes()
            && Paths::new(&self.base.paths)
                .of(name)
                .is_some_and(|path| self.planner().rules.excludes(&path));
        if is_excluded { SHARED } else { SSD }
    }

    /// Tells jobs that a thread opens or makes a file; returns what is announced for it, if this is a job's own use.
    /// Reads the process's data, which takes time.
    pub(crate) fn follow_jobs(&self, name: &EntryName, by: u32) -> Option<Ahead> {
        if !self.planner().jobs().any() {
            return None;
        }
        let path = Paths::new(&self.base.paths).of(name)?;
        self.planner().follow_jobs(&path, by)
    }

    /// Records that a thread made a file, which may be open for writing.
    pub(crate) fn created(
        &self,
        (name, number): (&EntryName, InodeNumber),
        place: &Location,
        by: u32,
        is_open: bool,
    ) {
        self.follow_jobs(name, by);
        self.planner().referenced(number.0, 0);
        self.executor.history.opened(number.0);
        if self.is_here(place) {
            self.executor.residents.put(number.0, Resident { name: name.clone(), bytes: 0 });
            self.planner().moved(number.0, true);
            if is_open {
                self.written.lock().insert(number.0);
            }
            self.executor.counters.opened(Opening::Hit);
        } else {
            self.executor.counters.opened(Opening::InPlace);
        }
    }

    /// Called before the file that was found is opened; returns whether it was moved to this SSD for that, so that
    /// its place has changed. It may move only if nobody here has it open.
    pub(crate) fn before_open(
        &self,
        name: &EntryName,
        found: &StoredInode,
        (writes, may_move): (bool, bool),
        ahead: Option<Ahead>,
    ) -> bool {
        let of = &found.attributes;
        let Some(place) = of.location.as_ref().filter(|_| of.kind == Kind::File) else {
            return false;
        };
        self.planner().referenced(found.inode.0, of.size);
        self.executor.history.opened(found.inode.0);
        if self.is_here(place) {
            self.executor.counters.opened(Opening::Hit);
            if writes {
                self.written.lock().insert(found.inode.0);
            }
            return false;
        }
        let is_open = of.many_opens || !of.opens.is_empty() || of.writer.is_some();
        let comes = may_move && !is_open && self.wants(name, (found, place), ahead);
        if comes && writes {
            self.written.lock().insert(found.inode.0);
        }
        self.executor.counters.opened(if comes { Opening::Promoted } else { Opening::InPlace });
        if comes {
            self.wake_if_crowded();
        }
        comes
    }

    /// Brings a file here if that is worthwhile; returns whether it came.
    fn wants(
        &self,
        name: &EntryName,
        (found, place): (&StoredInode, &Location),
        ahead: Option<Ahead>,
    ) -> bool {
        if self.executor.stops.load(Ordering::Relaxed) {
            return false;
        }
        let rules = &self.planner().rules;
        let is_another_nodes = place.tier == SSD;
        if rules.has_excludes() || is_another_nodes && rules.has_pins() {
            let Some(path) = Paths::new(&self.base.paths).of(name) else { return false };
            // It stays on its SSD.
            if rules.excludes(&path) || is_another_nodes && rules.pins(&path) {
                return false;
            }
        }
        if is_another_nodes && !self.planner().is_worth_the_way(found.inode.0, ahead.as_ref()) {
            return false;
        }
        self.executor.bring(name, found, ahead)
    }

    /// Records that the last handle of a file was closed.
    pub(crate) fn closed(&self, number: InodeNumber, file: &File) {
        if !self.written.lock().remove(&number.0) {
            return;
        }
        if let Ok(stat) = stat_descriptor(file) {
            self.executor.residents.set_bytes(number.0, stat.disk_bytes());
        }
        self.wake_if_crowded();
    }

    /// Records that a file has lost its last name.
    pub(crate) fn removed(&self, number: InodeNumber) {
        self.executor.residents.remove(number.0);
        self.planner().removed(number.0);
        self.executor.history.removed(number.0);
    }

    /// Records that a file was renamed.
    pub(crate) fn renamed(&self, number: InodeNumber, name: &EntryName) {
        self.executor.residents.renamed(number.0, name);
    }

    fn wake_if_crowded(&self) {
        if self.executor.residents.used() > self.executor.watermarks.high() {
            self.wakeups.wake(|is_due| *is_due = true);
        }
    }

    /// Makes room for a write of a file, on this SSD if it `is_here`, whose file system is full; returns whether a retry may
    /// succeed. Where the shared disk is full, or the quota of a user there, clean copies give way.
    pub(crate) fn make_room_for_write(
        &self,
        (number, is_here): (InodeNumber, bool),
        (bytes, user): (u64, Option<u32>),
    ) -> bool {
        let need = bytes.saturating_add(ROOM_FOR_WRITE);
        if is_here && self.executor.frees_disk() {
            return self.executor.make_room(number, need);
        }
        self.copies_give_way(need, user)
    }

    /// Makes room for bytes that are to be reserved, as [`make_room_for_write`](Self::make_room_for_write); not if everything would
    /// leave in vain.
    pub(crate) fn make_room_for_allocation(
        &self,
        file @ (_, is_here): (InodeNumber, bool),
        (bytes, user): (u64, Option<u32>),
    ) -> bool {
        let places = &self.base.places;
        let (tier, may_leave) = if is_here && self.executor.frees_disk() {
            (SSD, Ok(self.executor.residents.used()))
        } else {
            (SHARED, Copies::of(places).bytes())
        };
        let may_be_free =
            places.free_bytes(tier).and_then(|free| Ok(free.saturating_add(may_leave?)));
        may_be_free.is_ok_and(|all| bytes <= all) && self.make_room_for_write(file, (bytes, user))
    }

    /// Makes room for a change of a file's attributes, if the SSD is full; returns whether a retry may succeed.
    pub(crate) fn make_room_for_attributes(&self, number: InodeNumber) -> bool {
        let Ok(totals) = self.base.places.totals(SSD) else { return false };
        let need = Need::at_once(&totals);
        !need.is_free(&totals) && self.make_room_for_write((number, true), (need.bytes, None))
    }

    /// Removes clean copies from the shared disk until so many bytes are free, in the quota of a user if there is one; returns
    /// whether there were any.
    pub(crate) fn copies_give_way(&self, bytes: u64, user: Option<u32>) -> bool {
        let given = Copies::give_way(&self.base.places, Need::bytes(bytes), user);
        given.inspect_err(|error| tracing::debug!(%error, "no copies give way")).unwrap_or(false)
    }

    /// Updates the sizes of files that are open for writing.
    fn count_written(&self) {
        let written: Vec<u64> = self.written.lock().iter().copied().collect();
        for number in written {
            let vnode = self.base.table.find(InodeNumber(number));
            let file = vnode.and_then(|vnode| vnode.0.without_name.lock().file.clone());
            if let Some(stat) = file.and_then(|file| stat_descriptor(&*file).ok()) {
                self.executor.residents.set_bytes(number, stat.disk_bytes());
            }
        }
    }

    /// Scans the SSD. The first time, the policy learns of the files found, in the order in which they were last
    /// written.
    fn look(&self, is_first: bool) {
        let residents = &self.executor.residents;
        residents.begin_scan();
        let (mut found, mut times) = (FxHashMap::default(), Vec::new());
        let each = &mut |seen: ScannedFile| {
            if is_first {
                times.push((seen.mtime, seen.number, seen.resident.bytes));
            }
            found.insert(seen.number, seen.resident);
            if self.executor.stops.load(Ordering::Relaxed) {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        };
        let mut empty = self.empty.lock();
        empty.begin();
        let store = &mut Asked { base: &self.base, empty: &mut empty };
        let done = scan::scan(self.base.places.ssd(), each, store);
        drop(empty);
        let is_whole = done.is_ok() && !self.executor.stops.load(Ordering::Relaxed);
        if let Err(error) = done {
            tracing::warn!(%error, "what is on the SSD is not known");
        }
        times.sort_unstable();
        for (_, number, bytes) in times {
            // Files used since the mount began are more recent.
            if residents.get(number).is_none() {
                self.planner().referenced(number, bytes);
                self.planner().moved(number, true);
            }
        }
        residents.end_scan(is_whole.then_some(found));
    }

    /// Loads changes of rules and jobs by other nodes; returns whether rules changed.
    fn refresh(&self) -> bool {
        let jobs = self.planner().jobs().refresh();
        let rules = self.planner().rules.refresh();
        for refreshed in [&rules, &jobs] {
            if let Err(error) = refreshed {
                tracing::debug!(%error, "rules and jobs stay as they were");
            }
        }
        rules.unwrap_or(false)
    }

    /// Changes the announced jobs.
    pub(crate) fn change_jobs(&self, change: &JobChange) -> Result<Vec<JobInfo>> {
        let mut jobs = self.planner().jobs();
        jobs.refresh()?;
        match change {
            JobChange::Add(text) => jobs.add(text)?,
            JobChange::Remove(name) => jobs.remove(name)?,
            JobChange::Begin(name) => jobs.begin(name)?,
            JobChange::List => {}
        }
        Ok(jobs.list())
    }

    /// Demotes files that match an exclude glob and no pin.
    pub(crate) fn push_out_excluded(&self) {
        let paths = Paths::new(&self.base.paths);
        let rules = &self.planner().rules;
        let is_excluded = |resident: &Resident| {
            paths.of(&resident.name).is_some_and(|path| rules.excludes(&path) && !rules.pins(&path))
        };
        let all = self.executor.residents.all();
        let order: Vec<u64> = all
            .into_iter()
            .filter(|(_, resident)| is_excluded(resident))
            .map(|(number, _)| number)
            .collect();
        let _all_that_could = self.executor.demote_all(&order, u64::MAX);
    }
}
