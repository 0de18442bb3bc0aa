//! File tiers in scratch directories, which a test watches and whose background work it does.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tempfile::TempDir;

use halocline_api::config::{CacheSize, Copies};
use halocline_api::control::tier::{PRIVATE, ScanFindings};
use halocline_api::control::{Controlled, MoveReport};
use halocline_os::clock::Clock;
use halocline_os::error::Result;
use halocline_tier::{
    BatchBounds, Chore, Decorations, FileTier, Handle, TierOptions, TierSet, Vnode, Watcher,
};
use halocline_vfs::{Caller, Engine, Maker};

use crate::copy_record::{CopyRecord, records_dir};

pub(crate) const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 1 };
pub(crate) const BY: Maker = Maker { caller: CALLER, umask: 0 };

/// A few files go the ways of many, and no machine's other work decides.
const BATCHES: BatchBounds =
    BatchBounds { files_min: 2, dirty_bytes_max: u64::MAX, directories_max: 1 };

/// Bytes free on each tier, whatever the machine's own disk has left.
pub(crate) const AMPLE_ROOM: u64 = 1 << 40;

/// Passes what all mounts of a fixture do on to the watcher of the moment, and says how much is free.
#[derive(Debug, Default)]
struct WatcherSlot {
    watcher: Mutex<Option<Arc<dyn Watcher>>>,
    /// Of tiers, where a test says it.
    room: Mutex<[Option<u64>; 3]>,
}

impl WatcherSlot {
    /// The watcher of the moment, which may itself change the tier: nothing is locked meanwhile.
    fn now(&self) -> Option<Arc<dyn Watcher>> {
        self.watcher.lock().clone()
    }
}

impl Watcher for WatcherSlot {
    fn before(&self, tier: usize, what: &'static str) -> Result<()> {
        self.now().map_or(Ok(()), |watcher| watcher.before(tier, what))
    }

    fn after(&self, tier: usize, what: &'static str) {
        if let Some(watcher) = self.now() {
            watcher.after(tier, what);
        }
    }

    fn synced(&self, tier: usize, file: BorrowedFd<'_>) {
        if let Some(watcher) = self.now() {
            watcher.synced(tier, file);
        }
    }

    fn synced_all(&self, tier: usize) {
        if let Some(watcher) = self.now() {
            watcher.synced_all(tier);
        }
    }

    fn room(&self, tier: usize, mut totals: libc::statvfs64) -> libc::statvfs64 {
        let blocks = self.room.lock()[tier].unwrap_or(AMPLE_ROOM) / totals.f_frsize.max(1);
        (totals.f_blocks, totals.f_bfree, totals.f_bavail) = (blocks, blocks, blocks);
        totals
    }

    fn one_by_one(&self) -> bool {
        self.now().is_some_and(|watcher| watcher.one_by_one())
    }
}

/// A file tier over scratch directories, which has no background threads where no test wants them.
pub(crate) struct Fixture {
    pub(crate) dir: TempDir,
    pub(crate) tiers: Vec<&'static str>,
    pub(crate) options: TierOptions,
    pub(crate) clock: Clock,
    /// From the next mount on.
    pub(crate) own_threads: bool,
    slot: Arc<WatcherSlot>,
    pub(crate) tier: Option<FileTier>,
    /// What the last mount found.
    pub(crate) found: ScanFindings,
    /// Open files that a test holds.
    pub(crate) held: Mutex<Vec<Handle>>,
}

impl Fixture {
    pub(crate) fn new(options: TierOptions) -> Self {
        Self::with(&["ssd", "hdd"], options)
    }

    pub(crate) fn with(tiers: &[&'static str], options: TierOptions) -> Self {
        Self::within(tempfile::tempdir().unwrap(), tiers, options)
    }

    pub(crate) fn within(dir: TempDir, tiers: &[&'static str], options: TierOptions) -> Self {
        for tier in tiers {
            fs::create_dir(dir.path().join(tier)).unwrap();
        }
        Self::over(dir, tiers, options)
    }

    /// Mounts what is in `dir`.
    pub(crate) fn over(dir: TempDir, tiers: &[&'static str], options: TierOptions) -> Self {
        let mut fixture = Self {
            dir,
            tiers: tiers.to_vec(),
            options,
            clock: Clock::MACHINE,
            own_threads: false,
            slot: Arc::default(),
            tier: None,
            found: ScanFindings::default(),
            held: Mutex::default(),
        };
        fixture.open();
        fixture
    }

    /// On a file system that is quick to sync, if there is one.
    pub(crate) fn quick(options: TierOptions) -> Self {
        let quick = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        Self::within(quick, &["ssd", "hdd"], options)
    }

    /// Opens the tiers, as a mount does; one that there was ends as if it were killed.
    pub(crate) fn open(&mut self) {
        self.try_open().unwrap();
    }

    pub(crate) fn try_open(&mut self) -> Result<()> {
        self.held.lock().clear();
        self.tier = None;
        *self.slot.room.lock() = Default::default();
        let around = Decorations {
            watcher: Some(self.slot.clone()),
            clock: self.clock.clone(),
            batches: BATCHES,
            own_threads: self.own_threads,
        };
        let (tier, found) = FileTier::open_decorated(&self.set(), self.options.clone(), &around)?;
        (self.tier, self.found) = (Some(tier), found);
        Ok(())
    }

    /// Has all steps watched from now on.
    pub(crate) fn watch(&self, watcher: Arc<dyn Watcher>) {
        *self.slot.watcher.lock() = Some(watcher);
    }

    /// Has nobody watch them any more.
    pub(crate) fn unwatch(&self) {
        *self.slot.watcher.lock() = None;
    }

    /// The file system of a tier has so many bytes until the next mount, all of them free.
    pub(crate) fn set_room(&self, tier: usize, bytes: u64) {
        self.slot.room.lock()[tier] = Some(bytes);
    }

    /// Whether what was to be done could be done.
    pub(crate) fn work(&self, chore: Chore) -> bool {
        self.tier().work(chore).unwrap()
    }

    /// Frees what moves left, and removes the data of removed files.
    pub(crate) fn reap(&self) -> Result<()> {
        self.tier().work(Chore::Reap).map(drop)
    }

    /// Demotes all files that can be, in the background's way; whether that was enough to empty the SSD.
    pub(crate) fn empties_the_ssd(&mut self) -> bool {
        let (high, low) = (self.options.high, self.options.low);
        (self.options.high, self.options.low) = (0.0, 0.0);
        self.open();
        let done = self.work(Chore::Demote);
        (self.options.high, self.options.low) = (high, low);
        done
    }

    /// Bytes of files on the SSD.
    pub(crate) fn used(&self) -> u64 {
        self.tier().status().used_bytes
    }

    pub(crate) fn set(&self) -> TierSet {
        TierSet::below(self.dir.path(), &self.tiers).unwrap()
    }

    pub(crate) fn tier(&self) -> &FileTier {
        self.tier.as_ref().unwrap()
    }

    pub(crate) fn ssd(&self, path: &str) -> PathBuf {
        self.dir.path().join("ssd").join(path)
    }

    pub(crate) fn hdd(&self, path: &str) -> PathBuf {
        self.dir.path().join("hdd").join(path)
    }

    pub(crate) fn vnode(&self, path: &str) -> Result<Vnode> {
        let tier = self.tier();
        Path::new(path).iter().try_fold(tier.root(), |vnode, name| Ok(tier.lookup(&vnode, name)?.0))
    }

    /// The directory and the name of a path.
    pub(crate) fn at<'p>(&self, path: &'p str) -> (Vnode, &'p OsStr) {
        let path = Path::new(path);
        let parent = self.vnode(path.parent().unwrap().to_str().unwrap()).unwrap();
        (parent, path.file_name().unwrap())
    }

    pub(crate) fn create(&self, path: &str) -> Handle {
        let (dir, name) = self.at(path);
        self.tier().create((&dir, name), 0o640, libc::O_RDWR, BY).unwrap().2
    }

    pub(crate) fn write(&self, path: &str, bytes: &[u8]) {
        let handle = self.create(path);
        self.tier().write(&handle, 0, bytes, CALLER).unwrap();
    }

    pub(crate) fn open_file(&self, path: &str, flags: i32) -> Handle {
        self.tier().open(&self.vnode(path).unwrap(), flags, CALLER).unwrap()
    }

    pub(crate) fn read(&self, handle: &Handle) -> Vec<u8> {
        let mut bytes = vec![0; 1 << 20];
        let count = self.tier().read(handle, 0, &mut bytes, CALLER).unwrap();
        bytes.truncate(count);
        bytes
    }

    /// Content by name, without bringing the file anywhere: read from the tiers past the engine, which must mean the
    /// same file.
    pub(crate) fn content(&self, path: &str) -> Option<Vec<u8>> {
        let vnode = self.vnode(path).ok()?;
        let name = self.dir.path().join(self.tiers[0]).join(path);
        let (bytes, there) = (fs::read(&name).ok()?, fs::metadata(&name).unwrap());
        let shown = self.tier().stat(&vnode, None).unwrap().raw;
        let there = (there.len(), there.mtime(), there.mtime_nsec());
        let shown = (shown.st_size.unsigned_abs(), shown.st_mtime, shown.st_mtime_nsec);
        assert_eq!(shown, there, "{path}: the engine means another file than its name");
        Some(bytes)
    }

    pub(crate) fn demote(&self, path: &str) -> MoveReport {
        self.tier().evict(Path::new(path), false, &mut |_| ControlFlow::Continue(())).unwrap()
    }

    pub(crate) fn warm(&self, path: &str) -> MoveReport {
        self.tier().warm(&[path.into()], false, &mut |_| ControlFlow::Continue(())).unwrap()
    }

    /// The tier of a file.
    pub(crate) fn where_is(&self, path: &str) -> usize {
        let files = self.tier().files(Path::new(path)).unwrap();
        assert_eq!(files.len(), 1, "{path}");
        files[0].tier
    }

    /// Where records say that clean copies are.
    pub(crate) fn copies(&self) -> Vec<PathBuf> {
        let records = fs::read_dir(self.ssd("").join(records_dir())).unwrap();
        let place = |entry: std::io::Result<fs::DirEntry>| {
            let link = entry.unwrap().path();
            let record =
                CopyRecord::of(link.file_name()?.to_str()?, &fs::read_link(&link).unwrap())?;
            Some(self.dir.path().join(self.tiers[record.tier]).join(record.place))
        };
        records.filter_map(place).collect()
    }

    /// I10: demoted to their clean copies files have the bytes that they had.
    pub(crate) fn assert_copies_are_equal(&self, context: &dyn Fn() -> String) {
        if self.options.copies == Copies::None {
            return;
        }
        let before = self.tree();
        for path in before.keys() {
            let mode = |path: PathBuf| Some(path.symlink_metadata().ok()?.mode() & 0o7777);
            let (file, copy) = (mode(self.ssd(path)), mode(self.hdd(path)));
            let (Some(file), Some(copy), 0) = (file, copy, self.where_is(path)) else { continue };
            assert_eq!(copy & !file, 0, "{}: the copy of {path} is more open", context());
        }
        self.demote("");
        self.check_places();
        assert_eq!(self.tree(), before, "{}: demoted", context());
    }

    /// I10 on disk: every link of ours leads to a file, every file below has one link, and nothing
    /// is left in the private directories.
    pub(crate) fn check_places(&self) {
        self.work(Chore::RecordCopies);
        self.reap().unwrap();
        let mut links = links_below(&self.ssd(""));
        links.extend(self.copies());
        links.sort();
        let mut files = Vec::new();
        for tier in &self.tiers[1..] {
            files.extend(files_below(&self.dir.path().join(tier)));
        }
        files.sort();
        assert_eq!(links, files, "I10: links, clean copies and files differ");
        for tier in &self.tiers {
            let tmp = self.dir.path().join(tier).join(PRIVATE).join("tmp");
            assert_eq!(fs::read_dir(tmp).unwrap().count(), 0, "copies are left on {tier}");
        }
        let intents = self.ssd(PRIVATE).join("intents");
        assert_eq!(fs::read_dir(intents).unwrap().count(), 0, "intents are left");
    }
}

/// Targets of links below `dir` that lead out of it, in order; of names of one link once.
pub(crate) fn links_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    collect_links(dir, &mut HashSet::new(), &mut found);
    found.sort();
    found
}

fn collect_links(dir: &Path, seen: &mut HashSet<u64>, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let meta = path.symlink_metadata().unwrap();
        if path.ends_with(PRIVATE) {
            continue;
        }
        if meta.is_dir() {
            collect_links(&path, seen, found);
        } else if meta.is_symlink() && seen.insert(meta.ino()) {
            found.push(fs::read_link(&path).unwrap());
        }
    }
}

/// Files below `dir` but for the private ones.
pub(crate) fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.ends_with(PRIVATE) {
            let files = path.join("files");
            if files.exists() {
                found.extend(files_below(&files));
            }
        } else if path.is_dir() {
            found.extend(files_below(&path));
        } else {
            found.push(path);
        }
    }
    found
}

pub(crate) fn limited(bytes: u64) -> TierOptions {
    TierOptions { limit: CacheSize::Bytes(bytes), passthrough: false, ..TierOptions::default() }
}
