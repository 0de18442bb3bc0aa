//! What the engine knows about a file while something refers to it, wherever the file is.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::{Mutex, RwLock};
use rustix::io::Errno;

use super::residents::Resident;
use super::tiers::{Entry, Tiers};
use halocline_os::error::Result;
use halocline_vfs::Stat;
use halocline_vfs::namespace::{self, reopen};

/// A file, directory, link or special file of a tier mount; cheap to clone.
#[derive(Debug, Clone)]
pub struct Vnode(pub(super) Arc<Inode>);

/// One inode as programs see it. Its identity outlives its moves.
pub(super) struct Inode {
    /// Distinguishes live inodes.
    pub(super) id: u64,
    /// The number that programs see.
    pub(super) number: u64,
    /// One migration at a time; taken before `place`.
    pub(super) moving: Mutex<()>,
    /// Shared by every operation, exclusive for the moment in which the file moves.
    pub(super) place: RwLock<Place>,
    /// Counts changes of contents through this engine: a copy made during one is not the file.
    pub(super) changes: AtomicU64,
    /// Counts handles that the kernel serves by itself, for which the file must stay where it is.
    pub(super) passed: AtomicU32,
    /// Whether the kernel has served handles of it: a mapping of theirs may have outlived them ([`super::mmap`]).
    pub(super) was_passed: AtomicBool,
    /// Whether one of those handles could write; then its mapping can, too.
    pub(super) wrote_past: AtomicBool,
    /// What its last move did to the time of its last change.
    pub(super) moved_at: Mutex<Option<MovedAt>>,
    /// The file on a lower tier, once it has no place by which it could be found there.
    pub(super) kept: Mutex<Option<Arc<OwnedFd>>>,
    /// Counts hard links to its entry in directories of the engine's own; changed while `place` and `names` are held
    /// exclusively.
    pub(super) own_links: AtomicU64,
    /// Some of its names stand for the file and others for a copy of it, and that could not be repaired
    /// ([`super::hard_links`]): nobody may change either before the next mount.
    torn: AtomicBool,
    handles: Mutex<Vec<Weak<Opened>>>,
    table: Weak<Table>,
}

/// Where an inode is.
#[derive(Debug)]
pub(super) struct Place {
    /// What its name stands for on the SSD: the inode itself, or the link to its place.
    pub(super) entry: namespace::Vnode,
    /// Where the file is, if not on the SSD.
    pub(super) away: Option<Away>,
    /// The account of a regular file on the SSD.
    pub(super) resident: Option<Arc<Resident>>,
    /// Counts moves: open handles follow.
    pub(super) moves: u64,
}

impl Place {
    /// The tier that the file is on.
    pub(super) fn tier(&self) -> usize {
        self.away.as_ref().map_or(0, |away| away.tier)
    }

    /// How many names a file's link has, including those in the engine's own directories.
    pub(super) fn names_of_link(&self, tiers: &Tiers) -> u64 {
        if !self.away.as_ref().is_some_and(|away| away.shared) {
            return 1;
        }
        tiers.tree().stat(&self.entry).map_or(1, |link| link.raw.st_nlink)
    }

    /// Whether this may be a directory: it is not a regular file.
    pub(super) const fn may_be_directory(&self) -> bool {
        self.away.is_none() && self.resident.is_none()
    }

    /// Makes a change that may need `len` more bytes, at `at` if that is known, with room reserved for it on the SSD
    /// (I5). `None` if it does not fit there; then nothing was changed.
    pub(super) fn growing<T>(
        &self,
        file: &File,
        at: Option<u64>,
        len: u64,
        change: impl FnOnce() -> T,
    ) -> Option<T> {
        match &self.resident {
            Some(resident) => {
                assert!(self.away.is_none(), "I5: only files on the SSD are counted");
                resident.growing(file, at, len, change)
            }
            None => Some(change()),
        }
    }
}

/// A place on a lower tier.
#[derive(Debug, Clone)]
pub(super) struct Away {
    pub(super) tier: usize,
    /// Relative to the tier's root; empty for a file without a name.
    pub(super) path: PathBuf,
    /// Whether the link that names it may have several names, which are the file's.
    pub(super) shared: bool,
}

impl fmt::Debug for Inode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inode")
            .field("id", &self.id)
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

impl Inode {
    /// The inode's name on the SSD; what namespace operations are given.
    pub(super) fn entry(&self) -> namespace::Vnode {
        self.place.read().entry.clone()
    }

    /// A descriptor of the file itself, `O_PATH` or better, wherever it is.
    pub(super) fn physical(&self, tiers: &Tiers, place: &Place) -> Result<Arc<OwnedFd>> {
        match &place.away {
            None => tiers.tree().descriptor(&place.entry),
            Some(away) => match self.kept.lock().clone() {
                Some(kept) => Ok(kept),
                None => Ok(Arc::new(tiers.dirs()[away.tier].find(&away.path)?)),
            },
        }
    }

    /// Opens the file where it is now.
    pub(super) fn open_again(&self, tiers: &Tiers, place: &Place, flags: i32) -> Result<File> {
        if place.away.is_none() {
            return tiers.tree().open_named(&place.entry, flags);
        }
        // This does not block on whatever else may now be at the place.
        reopen(&*self.physical(tiers, place)?, flags)
    }

    /// How many names a file has, whether the mount knows them or not.
    pub(super) fn count_names(&self, tiers: &Tiers, place: &Place) -> Result<u64> {
        let all = match &place.away {
            Some(_) => place.names_of_link(tiers),
            None => tiers.tree().stat(&place.entry)?.raw.st_nlink,
        };
        Ok(all.saturating_sub(self.own_links.load(Ordering::Acquire)))
    }

    /// Marks a change of contents or attributes as in progress until the guard is dropped. The caller holds `place`
    /// shared for longer than that, so that a thread that holds it exclusively sees the change counted: a copy begun
    /// before the end of a change is never taken for the file.
    ///
    /// # Errors
    /// `EIO` for a file whose names are torn.
    pub(super) fn changing(&self) -> Result<Changing<'_>> {
        if self.is_torn() { Err(Errno::IO.into()) } else { Ok(Changing(&self.changes)) }
    }

    /// Whether some of its names stand for a copy.
    pub(super) fn is_torn(&self) -> bool {
        self.torn.load(Ordering::Acquire)
    }

    /// The open handles.
    pub(super) fn handles(&self) -> Vec<Arc<Opened>> {
        let mut handles = self.handles.lock();
        handles.retain(|handle| handle.strong_count() > 0);
        handles.iter().filter_map(Weak::upgrade).collect()
    }
}

/// A move gives a file a new time of last change (ctime), which nobody can set: while the mount knows the inode,
/// programs are shown the old one until they change the file themselves.
#[derive(Debug, Clone, Copy)]
pub(super) struct MovedAt {
    real: (i64, i64),
    shown: (i64, i64),
}

impl Inode {
    /// Called when the file moved or its place was renamed: `before` was shown, and `now` is what it has.
    pub(super) fn keep_ctime(&self, before: &Stat, now: &Stat) {
        let mut moved_at = self.moved_at.lock();
        let shown = match &*moved_at {
            Some(last) if last.real == ctime(before) => last.shown,
            _ => ctime(before),
        };
        *moved_at = Some(MovedAt { real: ctime(now), shown });
    }

    /// Called when a program renamed the file, which moved it on its lower tier too: programs may see that time.
    pub(super) fn show_real_ctime(&self) {
        *self.moved_at.lock() = None;
    }

    /// Attributes as programs see them, of a file that is at `place`.
    pub(super) fn show_at(&self, tiers: &Tiers, place: &Place, stat: Stat) -> Stat {
        match &place.away {
            Some(_) => self.show_below(place.names_of_link(tiers), stat),
            None => self.show(stat),
        }
    }

    /// Attributes as programs see them, of a file that is on a lower tier and whose link has
    /// `names` names.
    fn show_below(&self, names: u64, mut stat: Stat) -> Stat {
        // Programs do not see how many names the data has there: a second name is ours, and the data of a removed file
        // is removed later than its name.
        stat.raw.st_nlink = if self.kept.lock().is_some() { 0 } else { names };
        self.show(stat)
    }

    /// Attributes as programs see them, of a file on the SSD. The caller has held `place` or
    /// `names` since before they were read.
    pub(super) fn show(&self, mut stat: Stat) -> Stat {
        stat.raw.st_nlink -= self.own_links.load(Ordering::Acquire).min(stat.raw.st_nlink);
        if let Some(moved) = *self.moved_at.lock()
            && moved.real == ctime(&stat)
        {
            (stat.raw.st_ctime, stat.raw.st_ctime_nsec) = moved.shown;
        }
        stat
    }
}

const fn ctime(stat: &Stat) -> (i64, i64) {
    (stat.raw.st_ctime, stat.raw.st_ctime_nsec)
}

/// A change under way; see [`Inode::changing`].
pub(super) struct Changing<'a>(&'a AtomicU64);

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

impl Drop for Inode {
    fn drop(&mut self) {
        let entry = self.place.get_mut().entry.key();
        if let Some(table) = self.table.upgrade() {
            table.forget(entry, self);
        }
        if let Some(resident) = &self.place.get_mut().resident {
            resident.dropped();
        }
    }
}

/// An open regular file.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) inode: Arc<Inode>,
    /// `open(2)`'s flags, for opening it again elsewhere.
    pub(super) flags: i32,
    /// The open file, and after how many moves it was opened.
    current: Mutex<(u64, Arc<File>)>,
    /// The file's account, where the kernel serves the handle by itself.
    pub(super) passed: OnceLock<Arc<Resident>>,
    /// For such a handle, whether the kernel serves only mappings, while reads and writes come to us.
    pub(super) maps_only: AtomicBool,
}

impl Opened {
    /// A handle of `inode`, which has moved `moves` times.
    pub(super) fn new(inode: &Arc<Inode>, flags: i32, file: File, moves: u64) -> Arc<Self> {
        let opened = Arc::new(Self {
            inode: inode.clone(),
            flags: flags & !(libc::O_TRUNC | libc::O_CREAT | libc::O_EXCL),
            current: Mutex::new((moves, Arc::new(file))),
            passed: OnceLock::new(),
            maps_only: AtomicBool::new(false),
        });
        let mut handles = inode.handles.lock();
        if handles.len() == handles.capacity() {
            handles.retain(|handle| handle.strong_count() > 0);
        }
        handles.push(Arc::downgrade(&opened));
        opened
    }

    /// The open file, where the file is now.
    pub(super) fn current(&self, tiers: &Tiers, place: &Place) -> Result<Arc<File>> {
        self.file(place.moves, |flags| self.inode.open_again(tiers, place, flags))
    }

    /// Releases the open file, so that the next use opens it again. The caller holds `place` exclusively.
    pub(super) fn let_go(&self, instead: &Arc<File>) {
        *self.current.lock() = (u64::MAX, instead.clone());
    }

    /// The open file after `moves` moves; `again` opens it where it is now.
    pub(super) fn file(
        &self,
        moves: u64,
        again: impl FnOnce(i32) -> Result<File>,
    ) -> Result<Arc<File>> {
        let mut current = self.current.lock();
        if current.0 != moves {
            *current = (moves, Arc::new(again(self.flags)?));
        }
        Ok(current.1.clone())
    }
}

impl Opened {
    /// Whether the handle may change the file.
    pub(super) const fn writes(&self) -> bool {
        self.flags & libc::O_ACCMODE != libc::O_RDONLY
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // No `place` is taken here: a thread that holds it may drop a handle.
        if let Some(resident) = self.passed.get() {
            self.inode.passed.fetch_sub(1, Ordering::AcqRel);
            if self.flags & libc::O_ACCMODE != libc::O_RDONLY {
                resident.settle(&self.current.get_mut().1);
            }
        }
    }
}

/// The live inodes.
#[derive(Debug, Default)]
pub(super) struct Table {
    known: Mutex<KnownInodes>,
    next: AtomicU64,
}

#[derive(Debug, Default)]
struct KnownInodes {
    live: HashMap<Entry, Weak<Inode>>,
    /// Numbers of files that have moved, and of files whose own number is used by such a file.
    numbers: HashMap<Entry, u64>,
    /// The same numbers, because the SSD may give them to new files.
    claimed: HashSet<u64>,
    /// Numbers of files whose names are torn.
    torn: HashSet<u64>,
}

impl Table {
    /// The inode of `entry`, created by `make` if none is live. The caller holds `names` shared, so that the meaning of
    /// the entry does not change meanwhile.
    pub(super) fn intern(
        self: &Arc<Self>,
        entry: &namespace::Vnode,
        make: impl FnOnce() -> (u64, Option<Away>, Option<Arc<Resident>>),
    ) -> Arc<Inode> {
        if let Some(inode) = self.find(entry.key()) {
            return inode;
        }
        let (number, away, resident) = make();
        let inode = Arc::new(Inode {
            id: self.next.fetch_add(1, Ordering::Relaxed),
            number,
            moving: Mutex::default(),
            place: RwLock::new(Place { entry: entry.clone(), away, resident, moves: 0 }),
            changes: AtomicU64::new(0),
            passed: AtomicU32::new(0),
            was_passed: AtomicBool::new(false),
            wrote_past: AtomicBool::new(false),
            moved_at: Mutex::default(),
            kept: Mutex::default(),
            own_links: AtomicU64::new(0),
            torn: AtomicBool::new(self.known.lock().torn.contains(&number)),
            handles: Mutex::default(),
            table: Arc::downgrade(self),
        });
        let mut known = self.known.lock();
        if let Some(first) = known.live.get(&entry.key()).and_then(Weak::upgrade) {
            drop(known);
            return first;
        }
        known.live.insert(entry.key(), Arc::downgrade(&inode));
        drop(known);
        inode
    }

    /// The live inode of an entry.
    pub(super) fn find(&self, entry: Entry) -> Option<Arc<Inode>> {
        self.known.lock().live.get(&entry).and_then(Weak::upgrade)
    }

    /// The number of an entry whose file has moved, as far as it is known.
    pub(super) fn number(&self, entry: Entry) -> Option<u64> {
        self.known.lock().numbers.get(&entry).copied()
    }

    /// Notes the number of an entry whose file has moved.
    pub(super) fn set_number(&self, entry: Entry, number: u64) {
        let mut known = self.known.lock();
        known.numbers.insert(entry, number);
        known.claimed.insert(number);
    }

    /// Notes the number that a file claims, unless another file has it; returns whether it now belongs to the file.
    pub(super) fn claim_number(&self, entry: Entry, number: u64) -> bool {
        let mut known = self.known.lock();
        let is_its = !known.claimed.contains(&number) || known.numbers.get(&entry) == Some(&number);
        if is_its {
            known.numbers.insert(entry, number);
            known.claimed.insert(number);
        }
        is_its
    }

    /// Whether this number belongs to a file that has moved.
    pub(super) fn is_claimed(&self, number: u64) -> bool {
        self.known.lock().claimed.contains(&number)
    }

    /// Forbids changes of a file from now on, by whichever name.
    pub(super) fn tear(&self, number: u64) {
        let live: Vec<_> = {
            let mut known = self.known.lock();
            known.torn.insert(number);
            known.live.values().filter_map(Weak::upgrade).collect()
        };
        for inode in live.iter().filter(|inode| inode.number == number) {
            inode.torn.store(true, Ordering::Release);
        }
    }

    /// Called when the inode's name stands for another entry.
    pub(super) fn moved(&self, inode: &Arc<Inode>, from: Entry, to: Entry) {
        let mut known = self.known.lock();
        known.live.remove(&from);
        known.numbers.remove(&from);
        known.live.insert(to, Arc::downgrade(inode));
        known.numbers.insert(to, inode.number);
        known.claimed.insert(inode.number);
    }

    /// Called when an entry is gone from the SSD for good: its number may come back for another entry.
    pub(super) fn removed(&self, entry: Entry) {
        let mut known = self.known.lock();
        if let Some(number) = known.numbers.remove(&entry) {
            known.claimed.remove(&number);
        }
    }

    /// Called when the inode is dropped: its entry is removed unless a newer inode has taken it.
    fn forget(&self, entry: Entry, inode: &Inode) {
        let mut known = self.known.lock();
        if known.live.get(&entry).is_some_and(|live| std::ptr::eq(live.as_ptr(), inode)) {
            known.live.remove(&entry);
        }
    }
}
