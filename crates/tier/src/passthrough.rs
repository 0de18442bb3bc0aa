//! Kernel passthrough: which open files the kernel serves by itself, and why others are not.
//!
//! What must hold: a file that is passed through is on the SSD and stays there until its last such handle is closed
//! (`passed` is counted while `place` is held shared, and checked while it is held exclusively). Programs write such
//! files without asking for room, and nobody can take the files back before they are closed (I5): so we serve a handle
//! that may write. If there are other handles that were passed through, it must be passed through, too; the kernel then
//! serves only its mappings, while reads and writes come to us. With `passthrough_writes` it is passed through if it is
//! not expected to make the file grow and the SSD has ample room. Mappings outlive handles: see [`super::mmap`].

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::inode::{Inode, Opened, Place};
use super::mmap;
use super::options::TierOptions;
use super::residents::{Resident, Residents};
use super::tiers::Tiers;
use halocline_api::control::tier::PassthroughStatus;
use halocline_api::file_tier::KernelServed;
use halocline_os::clock::Clock;
use halocline_os::kernel_passthrough;
use halocline_vfs::Stat;
use halocline_vfs::namespace::{stat_descriptor, xattr};

/// The room that must be free for a handle that may write: one in this many parts of the limit, or these bytes. The
/// demoter counts such files every second, and no SSD writes that many bytes in a second.
const AMPLE_PART: u64 = 4;
const AMPLE_BYTES: u64 = 8 << 30;
/// How long the SSD's room is assumed unchanged after it was checked: a small part of the time for which the ample room
/// lasts.
const ROOM_IS_KNOWN: Duration = Duration::from_millis(100);

/// Which files the kernel serves.
#[derive(Debug)]
pub(super) struct Passthrough {
    /// Whether handles that write may be handed over, too.
    writes: bool,
    clock: Clock,
    served: KernelServed<Inode>,
    /// When the room on the SSD was checked, and whether it was ample.
    room: Mutex<Option<(Instant, bool)>>,
}

impl Passthrough {
    /// Starts with nothing handed over.
    pub(super) fn new(options: &TierOptions, clock: &Clock) -> Self {
        let why_none = (!options.passthrough).then_some("switched off (--passthrough=false)");
        Self {
            writes: options.passthrough_writes,
            clock: clock.clone(),
            served: KernelServed::new(why_none),
            room: Mutex::default(),
        }
    }

    /// Hands an open file to the kernel if that is wise; see `Engine::pass_through`. Before it may
    /// write, `ready` makes the file ready for changes that we do not see, or says why not.
    pub(super) fn pass_through(
        &self,
        (handle, must): (&Opened, bool),
        (tiers, residents): (&Tiers, &Residents),
        ready: impl FnOnce(&Place) -> std::result::Result<(), &'static str>,
        register: &mut dyn FnMut(BorrowedFd<'_>) -> io::Result<()>,
    ) -> bool {
        let place = handle.inode.place.read();
        let Ok(file) = handle.current(tiers, &place) else { return false };
        // A mapping left from an earlier handle bypasses us, so this handle must, too.
        let must = must || mmap::may_be_mapped(&handle.inode, &file);
        let refused = |why| {
            self.served.refused(why);
            false
        };
        let Some(resident) = &place.resident else {
            return refused("on a lower tier");
        };
        if !must && let Some(why) = self.served.why_none() {
            return refused(why);
        }
        if !handle.writes() && !must && resident.bytes() < kernel_passthrough::SMALL_BYTES {
            return refused("small and opened for reading");
        }
        // Even if it is refused below: the front end may hand it over nevertheless.
        let maps_only = must && handle.writes() && !self.writes;
        handle.maps_only.store(maps_only, Ordering::Release);
        if !must && let Some(why) = self.why_ours((handle, resident, &file), (tiers, residents)) {
            return refused(why);
        }
        if handle.writes()
            && let Err(why) = ready(&place)
        {
            return refused(why);
        }
        let answer = register(file.as_fd());
        if answer.is_ok() && handle.passed.set(resident.clone()).is_ok() {
            handle.inode.passed.fetch_add(1, Ordering::AcqRel);
            handle.inode.was_passed.store(true, Ordering::Release);
            if handle.writes() {
                handle.inode.wrote_past.store(true, Ordering::Release);
            }
        }
        self.served.answered(handle.inode.id, &handle.inode, answer)
    }

    /// Why reads and writes of a handle must come to us, if they must.
    fn why_ours(
        &self,
        (handle, resident, file): (&Opened, &Resident, &File),
        ssd: (&Tiers, &Residents),
    ) -> Option<&'static str> {
        if handle.writes() && !self.writes {
            Some("opened for writing: it may grow (see --passthrough-writes)")
        } else if handle.writes() && may_grow(handle, resident, file) {
            Some("opened for writing, and new, appended to or with holes: it may grow")
        } else if handle.writes() && !self.has_ample_room(ssd) {
            Some("opened for writing without ample room on the SSD")
        } else if handle.flags & libc::O_DIRECT != 0 {
            // The kernel would require the device's alignment from the program.
            Some("opened with O_DIRECT")
        } else if has_privileges(file) {
            // A write removes them, and the kernel leaves that to us.
            Some("has set-id bits or capabilities")
        } else {
            None
        }
    }

    fn has_ample_room(&self, (tiers, residents): (&Tiers, &Residents)) -> bool {
        let ample = (residents.account.limit / AMPLE_PART).min(AMPLE_BYTES);
        residents.free() >= ample && self.has_room(ample, tiers)
    }

    fn has_room(&self, ample: u64, tiers: &Tiers) -> bool {
        let known = *self.room.lock();
        if let Some((_, room)) =
            known.filter(|(looked, _)| self.clock.elapsed(*looked) < ROOM_IS_KNOWN)
        {
            return room;
        }
        let room = tiers.ssd().room().is_ok_and(|room| room >= ample);
        *self.room.lock() = Some((self.clock.instant(), room));
        room
    }

    /// Counts the blocks of files that programs write without our help.
    pub(super) fn count(&self, tiers: &Tiers) {
        for inode in self.served.now(is_served) {
            let place = inode.place.read();
            if let Some(resident) = &place.resident
                && let Ok(fd) = tiers.tree().descriptor(&place.entry)
            {
                resident.settle(&*fd);
            }
        }
    }

    /// For people to read.
    pub(super) fn status(&self, tiers: &Tiers) -> PassthroughStatus {
        let path = |inode: &Inode| tiers.tree().path_of(&inode.entry()).display().to_string();
        self.served.status(is_served, path)
    }
}

/// Whether the kernel serves some handle of a file by itself.
fn is_served(inode: &Inode) -> bool {
    inode.passed.load(Ordering::Relaxed) > 0
}

/// Whether a program that opened a file in this way is expected to make it larger, at its end or in holes. A file that
/// outgrew the SSD with nobody to move it would fail with ENOSPC.
fn may_grow(handle: &Opened, resident: &Resident, file: &File) -> bool {
    let is_whole = |stat: Stat| {
        let size = stat.raw.st_size.unsigned_abs();
        size > 0 && stat.disk_bytes() >= size
    };
    // A new file is known by its account.
    handle.flags & libc::O_APPEND != 0
        || resident.bytes() == 0
        || !stat_descriptor(file).is_ok_and(is_whole)
}

/// Whether a change of the contents removes privileges from the file.
fn has_privileges(file: &File) -> bool {
    let set_id = libc::S_ISUID | libc::S_ISGID;
    stat_descriptor(file).is_ok_and(|stat| stat.raw.st_mode & set_id != 0)
        || xattr::is_set(file, "security.capability".as_ref())
}
