//! The file tier in one process: two directories, no mount.

mod announced;
mod batch;
mod clean;
mod copies;
mod crashes;
mod dir_times;
mod faults;
mod hostile;
mod hostile_marks;
mod lost;
mod many_names;
mod ordinary;
mod passing;
mod permissions;
mod power;
mod room;
mod rules;
mod sets;
mod stories;
mod told;

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use tempfile::TempDir;

use super::background::Background;
use super::{Core, FileTier, Found, Handle, Node, PRIVATE, TierOptions, TierSet};
use halocline_api::config::{CacheSize, Copies};
use halocline_api::control::{Controlled, MoveReport};
use halocline_os::clock::Clock;
use halocline_os::error::Result;
use halocline_vfs::{Caller, Engine, Maker};

const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 1 };
const BY: Maker = Maker { caller: CALLER, umask: 0 };

/// A file tier over scratch directories, whose background threads do not run.
struct Fixture {
    dir: TempDir,
    tiers: Vec<&'static str>,
    options: TierOptions,
    clock: Clock,
    tier: Option<FileTier>,
    found: Found,
    /// Open files that a test holds.
    held: Mutex<Vec<Handle>>,
}

impl Fixture {
    fn new(options: TierOptions) -> Self {
        Self::with(&["ssd", "hdd"], options)
    }

    fn with(tiers: &[&'static str], options: TierOptions) -> Self {
        Self::within(tempfile::tempdir().unwrap(), tiers, options)
    }

    fn within(dir: TempDir, tiers: &[&'static str], options: TierOptions) -> Self {
        for tier in tiers {
            fs::create_dir(dir.path().join(tier)).unwrap();
        }
        let (found, held) = (Found::default(), Mutex::default());
        let (tiers, clock) = (tiers.to_vec(), Clock::MACHINE);
        let mut fixture = Self { dir, tiers, options, clock, tier: None, found, held };
        fixture.open();
        fixture
    }

    /// Opens the tiers, as a mount does.
    fn open(&mut self) {
        self.held.lock().clear();
        self.tier = None;
        let core = std::sync::Arc::new(
            Core::open(&self.set(), self.options.clone(), self.clock.clone()).unwrap(),
        );
        // Whatever the machine's own disk has left.
        for side in core.tiers.sides() {
            side.steps.room.set(1 << 40);
        }
        self.found = core.scan.recover().unwrap();
        self.tier = Some(FileTier { core, background: Background::none() });
    }

    fn set(&self) -> TierSet {
        TierSet::below(self.dir.path(), &self.tiers).unwrap()
    }

    fn tier(&self) -> &FileTier {
        self.tier.as_ref().unwrap()
    }

    fn ssd(&self, path: &str) -> PathBuf {
        self.dir.path().join("ssd").join(path)
    }

    fn hdd(&self, path: &str) -> PathBuf {
        self.dir.path().join("hdd").join(path)
    }

    fn node(&self, path: &str) -> Result<Node> {
        let tier = self.tier();
        Path::new(path).iter().try_fold(tier.root(), |node, name| Ok(tier.lookup(&node, name)?.0))
    }

    /// The directory and the name of a path.
    fn at<'p>(&self, path: &'p str) -> (Node, &'p OsStr) {
        let path = Path::new(path);
        let parent = self.node(path.parent().unwrap().to_str().unwrap()).unwrap();
        (parent, path.file_name().unwrap())
    }

    fn create(&self, path: &str) -> Handle {
        let (dir, name) = self.at(path);
        self.tier().create((&dir, name), 0o640, libc::O_RDWR, BY).unwrap().2
    }

    fn write(&self, path: &str, bytes: &[u8]) {
        let handle = self.create(path);
        self.tier().write(&handle, 0, bytes, CALLER).unwrap();
    }

    fn open_file(&self, path: &str, flags: i32) -> Handle {
        self.tier().open(&self.node(path).unwrap(), flags, CALLER).unwrap()
    }

    fn read(&self, handle: &Handle) -> Vec<u8> {
        let mut bytes = vec![0; 1 << 20];
        let count = self.tier().read(handle, 0, &mut bytes, CALLER).unwrap();
        bytes.truncate(count);
        bytes
    }

    /// Content by name, without bringing the file anywhere.
    fn content(&self, path: &str) -> Option<Vec<u8>> {
        let node = self.node(path).ok()?;
        let place = node.0.place.read();
        let mut file = node.0.open_again(&self.tier().core.tiers, &place, libc::O_RDONLY).ok()?;
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut file, &mut bytes).unwrap();
        Some(bytes)
    }

    fn demote(&self, path: &str) -> MoveReport {
        self.tier().evict(Path::new(path), false, &mut |_| ControlFlow::Continue(())).unwrap()
    }

    fn warm(&self, path: &str) -> MoveReport {
        self.tier().warm(&[path.into()], false, &mut |_| ControlFlow::Continue(())).unwrap()
    }

    /// The tier of a file.
    fn where_is(&self, path: &str) -> usize {
        let files = self.tier().files(Path::new(path)).unwrap();
        assert_eq!(files.len(), 1, "{path}");
        files[0].tier
    }

    /// Where marks say that clean copies are.
    fn copies(&self) -> Vec<PathBuf> {
        let marks = self.tier().core.marks.list().unwrap();
        marks
            .into_iter()
            .map(|mark| self.dir.path().join(self.tiers[mark.tier]).join(mark.place))
            .collect()
    }

    /// I10: demoted to their clean copies files have the bytes that they had.
    fn assert_copies_are_equal(&self, context: &dyn Fn() -> String) {
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
    fn check_places(&self) {
        self.tier().core.permissions.mark_anew(&|| false);
        self.tier().core.leftovers.finish().unwrap();
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
fn links_below(dir: &Path) -> Vec<PathBuf> {
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
fn files_below(dir: &Path) -> Vec<PathBuf> {
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

fn limited(bytes: u64) -> TierOptions {
    TierOptions { limit: CacheSize::Bytes(bytes), passthrough: false, ..TierOptions::default() }
}
