//! Moves files: those that the [planner](super::planner) chooses, and those that a person names.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use halocline_api::file_tier::{ActiveMoves, Counters, History};
use halocline_api::jobs::Ahead;
use halocline_cluster::names::attributes::{Kind, Location};
use halocline_cluster::names::namespace::{Failure, StoredInode};
use halocline_model::namespace::{EntryName, InodeNumber};
use halocline_model::tier::Watermarks;
use halocline_os::error::{Error, Result};
use parking_lot::Mutex;
use rustix::io::Errno;

use super::moves_at_once::{MovesAtOnce, PARALLEL_MAX};
use super::moves_under_way::MovesUnderWay;
use super::paths::Paths;
use super::planner::{Planner, Room};
use super::residents::{Resident, Residents};
use crate::base::Base;
use crate::closes::note_all;
use crate::errors::of_names;
use crate::moves::{Migrator, Moved};
use crate::places::copies::Copies;
use crate::places::own_xattrs::is_too_many;
use crate::places::room::Need;
use crate::places::{SHARED, SSD};

/// After so many failures in a row, the round ends.
const FAILURES_MAX: usize = 8;
/// The pause before a retry where the SSD has room, but gave none.
const PAUSE: Duration = Duration::from_millis(10);
/// Space that a copy may need in addition to its data.
pub(crate) const COPY_SLACK: u64 = 16 << 10;

/// Whether files have left the SSD; if not, why one of them failed, if one did: others may be open, or pinned.
pub(crate) type Freed = std::result::Result<(), Option<String>>;

/// The outcome of a demotion.
enum Left {
    Yes,
    /// It is open, or no longer here.
    No,
    Failed(Error),
}

/// Moves files for one node.
#[derive(Debug)]
pub(crate) struct Executor {
    base: Arc<Base>,
    pub(crate) residents: Residents,
    pub(crate) planner: Planner,
    pub(crate) watermarks: Watermarks,
    pub(crate) counters: Counters,
    pub(crate) history: History,
    pub(crate) active: ActiveMoves<PathBuf>,
    /// The files that this node is moving.
    under_way: MovesUnderWay,
    /// Why files could not be demoted lately.
    pub(crate) trouble: Mutex<Option<String>>,
    pub(crate) stops: AtomicBool,
    /// What we know of the SSD is stale: scan it soon.
    pub(crate) wants_look: AtomicBool,
}

impl Executor {
    pub(crate) fn new(base: &Arc<Base>, planner: Planner, watermarks: Watermarks) -> Self {
        Self {
            base: Arc::clone(base),
            residents: Residents::default(),
            planner,
            watermarks,
            counters: Counters::default(),
            history: History::new(&base.clock),
            active: ActiveMoves::new(&base.clock),
            under_way: MovesUnderWay::default(),
            trouble: Mutex::default(),
            stops: AtomicBool::new(false),
            wants_look: AtomicBool::new(false),
        }
    }

    fn migrator(&self) -> Migrator<'_> {
        let base = &self.base;
        let (session, clock) = (base.sessions.own(), &base.clock);
        let (names, places) = (&base.names, &base.places);
        Migrator { names, places, directories: &*base.paths, session, clock }
    }

    /// Whether a file's bytes are on a tier: on the own SSD, or the shared disk.
    pub(crate) fn is_on(&self, place: &Location, tier: u8) -> bool {
        self.migrator().is_on(place, tier)
    }

    /// Moves a file to the own SSD or the shared disk; `goes_on` is told of each piece that was copied.
    ///
    /// # Errors
    /// As [`Migrator::move_file`].
    pub(crate) fn move_file(
        &self,
        name: &EntryName,
        (inode, size): (InodeNumber, u64),
        (from, tier): (&Location, u8),
        goes_on: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Moved> {
        let moving = self.under_way.begin(inode.0);
        let moved = self.move_uncounted(name, (inode, size), (from, tier), goes_on);
        drop(moving);
        match &moved {
            Ok(Moved::Done(_) | Moved::Already) => self.history.moved(inode.0),
            Ok(Moved::Busy) => self.history.not_moved(
                inode.0,
                "a program on some node had it open, or changed or moved it meanwhile",
            ),
            Ok(Moved::Gone) => self.history.removed(inode.0),
            Err(error) => self.history.not_moved(inode.0, &error.to_string()),
        }
        moved
    }

    fn move_uncounted(
        &self,
        name: &EntryName,
        (inode, size): (InodeNumber, u64),
        (from, tier): (&Location, u8),
        goes_on: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Moved> {
        note_all(&self.base);
        let was_here = self.is_on(from, SSD);
        let fits = || self.fits_the_shared_disk(inode, size, from);
        if tier == SHARED
            && !fits()
            && !self.has_copy(name, inode)
            // No copy gives way for a file that cannot be moved.
            && self.base.places.stat(from, inode.0).is_ok()
            && !self.copies_give_way(size, fits)
        {
            // Rather than copying until the disk is full.
            return Err(Errno::NOSPC.into());
        }
        let path = Paths::new(&self.base.paths).shown(name);
        let ends = [from.tier, tier].map(usize::from);
        let active = self.active.begin(path, (ends[0], ends[1]), size);
        let is_over = |session| self.base.sessions.is_over(session);
        let moved = self.migrator().move_file(name, inode, tier, &is_over, &mut |bytes| {
            active.copied(bytes);
            goes_on(bytes)
        });
        if let Ok(Moved::Done(bytes)) = moved {
            self.counters.moved(tier == SSD, size.max(bytes));
            if tier == SSD {
                // An estimate; a scan gives the exact size.
                let bytes = bytes.next_multiple_of(4096);
                self.residents.put(inode.0, Resident { name: name.clone(), bytes });
                self.planner.moved(inode.0, true);
            } else if was_here {
                self.residents.remove(inode.0);
                self.planner.moved(inode.0, false);
            }
        }
        moved
    }

    /// Whether the shared disk has room for a file.
    fn fits_the_shared_disk(&self, inode: InodeNumber, size: u64, from: &Location) -> bool {
        let Ok(free) = self.base.places.free_bytes(SHARED) else { return true };
        self.bytes_within(free, (inode, size, from)) <= free
    }

    /// The bytes that a copy of a closed file takes, at least if its size is more than `most`: of a sparse file fewer. Asks the
    /// disk on which it is, which may be another node's.
    pub(crate) fn bytes_within(
        &self,
        most: u64,
        (inode, size, from): (InodeNumber, u64, &Location),
    ) -> u64 {
        if size <= most {
            return size;
        }
        let known = self.residents.get(inode.0).map(|resident| resident.bytes);
        let on_disk = || Some(self.base.places.stat(from, inode.0).ok()?.disk_bytes());
        known.or_else(on_disk).map_or(size, |bytes| bytes.min(size))
    }

    /// Whether no byte is copied if a file is demoted.
    fn has_copy(&self, name: &EntryName, inode: InodeNumber) -> bool {
        let Ok(found) = self.base.names.lookup(name) else { return false };
        let copy = Copies::of(&self.base.places).standing_for(&found.attributes, inode.0);
        found.inode == inode && copy.is_ok_and(|copy| copy.is_some())
    }

    /// Removes clean copies from the shared disk, which has no room for a file; returns whether it has room by now.
    fn copies_give_way(&self, size: u64, fits: impl Fn() -> bool) -> bool {
        let need = Need::bytes(size.saturating_add(COPY_SLACK));
        let given = Copies::give_way(&self.base.places, need, None);
        given.inspect_err(|error| tracing::debug!(%error, "no copies give way")).unwrap_or(false)
            && fits()
    }

    /// Bytes that the SSD's file system has left for files; `None` if moving files to the shared disk frees none
    /// there.
    fn room_on_disk(&self) -> Option<u64> {
        let places = &self.base.places;
        let (ssd, shared) = (places.totals(SSD).ok()?, places.totals(SHARED).ok()?);
        (ssd.f_fsid != shared.f_fsid).then(|| ssd.f_bavail.saturating_mul(ssd.f_frsize))
    }

    /// Whether moving files to the shared disk frees room on the SSD.
    pub(crate) fn frees_disk(&self) -> bool {
        self.room_on_disk().is_some()
    }

    /// Makes room on the SSD, whose file system has none, for so many bytes of a file that stays. Returns whether a retry
    /// may succeed: something has left, or there is room, which the file system may give a moment later.
    pub(crate) fn make_room(&self, number: InodeNumber, bytes: u64) -> bool {
        let Some(room) = self.room_on_disk() else { return false };
        if room >= bytes {
            self.base.clock.sleep(PAUSE);
            return true;
        }
        let all = self.base.places.totals(SSD);
        let can_fit = all.is_ok_and(|all| bytes <= all.f_blocks.saturating_mul(all.f_frsize));
        can_fit
            && (self.free_some(bytes - room, &|other| other == number.0).0 > 0
                || self.room_on_disk().is_some_and(|room| room >= bytes))
    }

    /// The bytes below the high watermark that are free for a file of this size, and those that must leave for it.
    /// `None` if it can never fit.
    pub(crate) fn room_for(&self, bytes: u64) -> Option<Room> {
        let need = bytes.saturating_add(COPY_SLACK);
        if need > self.watermarks.high() {
            return None;
        }
        let below = self.watermarks.high().saturating_sub(self.residents.used());
        let on_disk = self.room_on_disk();
        let on_disk = on_disk.map(|room| room.saturating_sub(self.watermarks.kept_free()));
        let free = on_disk.map_or(below, |room| room.min(below));
        Some(Room { free, missing: need.saturating_sub(free) })
    }

    /// As [`room_for`](Self::room_for), for a copy of a file.
    pub(crate) fn room_for_copy(&self, file: (InodeNumber, u64, &Location)) -> Option<Room> {
        let room = self.room_for(file.1).filter(|room| room.missing == 0);
        room.or_else(|| self.room_for(self.bytes_within(0, file)))
    }

    /// Demotes files if the SSD is above its watermark; `false` if that was fruitless.
    pub(crate) fn keep_below_watermarks(&self) -> bool {
        let used = self.residents.used();
        let wanted = self.watermarks.wanted_room(used, || self.room_on_disk());
        let Some(wanted) = wanted else {
            *self.trouble.lock() = None;
            return true;
        };
        let missing = used.saturating_add(wanted).saturating_sub(self.watermarks.limit());
        self.free_up(missing, &|_| false).is_ok()
    }

    /// How many bytes are above the watermark, waiting to be demoted.
    pub(crate) fn waiting_bytes(&self) -> u64 {
        self.watermarks.waiting(self.residents.used())
    }

    /// Demotes files in the policy's order until so many bytes have left.
    ///
    /// # Errors
    /// As [`demote_all`](Self::demote_all).
    pub(crate) fn free_up(&self, missing: u64, except: &dyn Fn(u64) -> bool) -> Freed {
        let (left, failed) = self.free_some(missing, except);
        if left >= missing { Ok(()) } else { Err(failed) }
    }

    /// The same; returns how many bytes have left, which may be fewer if no more can, and why one could not.
    fn free_some(&self, missing: u64, except: &dyn Fn(u64) -> bool) -> (u64, Option<String>) {
        let paths = Paths::new(&self.base.paths);
        let order = self.planner.plan_room(&self.residents, except, &paths);
        self.demote_some(&order, missing)
    }

    /// Demotes files in the given order until so many bytes have left.
    ///
    /// # Errors
    /// If they have not: why the last one failed that did.
    pub(crate) fn demote_all(&self, order: &[u64], missing: u64) -> Freed {
        let (left, failed) = self.demote_some(order, missing);
        if left >= missing { Ok(()) } else { Err(failed) }
    }

    /// The same; returns how many bytes have left. Those that this node is moving already, for whatever reason, are waited
    /// for if the others are too few.
    fn demote_some(&self, order: &[u64], missing: u64) -> (u64, Option<String>) {
        let under_way = Mutex::new(Vec::new());
        let (mut left, mut failed) = self.demote_others(order, missing, &under_way);
        for (number, bytes) in under_way.into_inner() {
            if left >= missing {
                break;
            }
            self.under_way.wait(number);
            if self.residents.get(number).is_none() {
                left += bytes;
                continue;
            }
            // Whoever moved it may have been stopped, or it was opened.
            let (more, why) = self.demote_others(&[number], missing - left, &Mutex::default());
            (left, failed) = (left + more, why.or(failed));
        }
        (left, failed)
    }

    /// The same of those that this node is not moving yet; the others are added to `under_way`, with their bytes.
    fn demote_others(
        &self,
        order: &[u64],
        missing: u64,
        under_way: &Mutex<Vec<(u64, u64)>>,
    ) -> (u64, Option<String>) {
        let (left, failed) = (Mutex::new((0_u64, missing)), Mutex::new(None));
        let (next, failures) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let moves = MovesAtOnce::default();
        let work = || {
            loop {
                let goes_on = !self.stops.load(Ordering::Relaxed)
                    && failures.load(Ordering::Relaxed) < FAILURES_MAX;
                let Some(number) = order.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
                let Some(resident) = self.residents.get(*number) else { continue };
                if self.under_way.has(*number) {
                    under_way.lock().push((*number, resident.bytes));
                    continue;
                }
                {
                    // Count what other threads are moving: else too many files would leave.
                    let mut left = left.lock();
                    if left.0 >= left.1 || !goes_on {
                        break;
                    }
                    left.0 += resident.bytes;
                }
                let moving = moves.begin(resident.bytes);
                let left_it = self.demote(*number, &resident);
                drop(moving);
                match left_it {
                    Left::Yes => {
                        failures.store(0, Ordering::Relaxed);
                        continue;
                    }
                    Left::No => {}
                    Left::Failed(error) => {
                        // The next file may be moved all the same: else a user's few files would keep all others here.
                        if !is_too_many(&error) && !error.is_leased() {
                            failures.fetch_add(1, Ordering::Relaxed);
                        }
                        let path = Paths::new(&self.base.paths).shown(&resident.name);
                        let why = format!("{}: {error}", path.display());
                        *self.trouble.lock() = Some(why.clone());
                        *failed.lock() = Some(why);
                    }
                }
                left.lock().0 -= resident.bytes;
            }
        };
        thread::scope(|scope| {
            for _ in 1..order.len().min(PARALLEL_MAX) {
                // If no thread can be started, fewer will do.
                let _ = thread::Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
        (left.into_inner().0, failed.into_inner())
    }

    /// Demotes a file on the own SSD, unless it is open somewhere.
    fn demote(&self, number: u64, resident: &Resident) -> Left {
        note_all(&self.base);
        if self.base.table.find(InodeNumber(number)).is_some_and(|vnode| vnode.0.is_open()) {
            return Left::No;
        }
        let found = match self.base.names.lookup(&resident.name) {
            Ok(found) if found.inode.0 == number => found,
            // It was renamed or removed meanwhile.
            Ok(_) | Err(Failure::Refused(_)) => return self.is_not_as_known(number),
            Err(failure) => return Left::Failed(of_names(failure)),
        };
        let place = found.attributes.location.as_ref();
        let Some(place) = place.filter(|place| self.is_on(place, SSD)) else {
            // Another node has moved it.
            return self.is_not_as_known(number);
        };
        let size = found.attributes.size;
        let file = (found.inode, size);
        let goes_on = &mut |_| self.goes_on();
        match self.move_file(&resident.name, file, (place, SHARED), goes_on) {
            Ok(Moved::Done(_) | Moved::Already) => Left::Yes,
            Ok(Moved::Busy) => Left::No,
            Ok(Moved::Gone) => self.is_not_as_known(number),
            Err(error) => Left::Failed(error),
        }
    }

    fn goes_on(&self) -> ControlFlow<()> {
        if self.stops.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    /// What we know of a file is stale: the next scan corrects it.
    fn is_not_as_known(&self, number: u64) -> Left {
        self.residents.remove(number);
        self.wants_look.store(true, Ordering::Relaxed);
        Left::No
    }

    /// Brings a file that nobody has open to the own SSD, if the policy finds it worthwhile; returns whether it came.
    pub(crate) fn bring(
        &self,
        name: &EntryName,
        found: &StoredInode,
        ahead: Option<Ahead>,
    ) -> bool {
        let of = &found.attributes;
        let Some(place) = of.location.as_ref().filter(|_| of.kind == Kind::File) else {
            return false;
        };
        let Some(room) = self.room_for_copy((found.inode, of.size, place)) else { return false };
        let paths = Paths::new(&self.base.paths);
        let needed = room.free.saturating_add(room.missing);
        let file = (found.inode.0, of.size.min(needed));
        let plan = self.planner.plan_promotion(file, ahead, room, (&self.residents, &paths));
        let stays = |why: &str| {
            self.history.not_moved(found.inode.0, why);
            false
        };
        let Some(plan) = plan else {
            return stays(match room.missing {
                0 => "the policy expects too few uses of it here to be worth the move",
                _ => "the policy kept what is on this SSD instead",
            });
        };
        if self.base.places.is_read_only(SSD) {
            return stays("this SSD can be read only");
        }
        if self.base.paths.is_too_deep_for_ssd(name.directory) {
            return stays("its directory is too deep for an SSD");
        }
        if room.missing > 0 && self.demote_all(&plan, room.missing).is_err() {
            return stays("files that should have left the SSD for it did not");
        }
        let goes_on = &mut |_| self.goes_on();
        match self.move_file(name, (found.inode, of.size), (place, SSD), goes_on) {
            Ok(moved) => matches!(moved, Moved::Done(_)),
            Err(error) => {
                tracing::debug!(%error, "a file is served where it is");
                false
            }
        }
    }
}
