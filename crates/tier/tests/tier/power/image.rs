//! What is on both tiers at some moment, and building it again.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};

use halocline_api::control::tier::PRIVATE;
use halocline_vfs::namespace::xattr;

use crate::copy_record::{CopyRecord, Stamp, records_dir};

/// An inode: what it is, and what is kept with it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Inode {
    pub(super) body: Body,
    pub(super) mode: u32,
    /// Seconds and nanoseconds; of links only, where they stand for a number.
    pub(super) time: (i64, i64),
    pub(super) attributes: BTreeMap<String, Vec<u8>>,
    /// What records of clean copies tell it by; of files only.
    pub(super) stamp: Option<Stamp>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Body {
    /// Names and the numbers of inodes.
    Directory(BTreeMap<String, u64>),
    File(Arc<Vec<u8>>),
    Link(PathBuf),
}

/// The inodes of a tier.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Tier {
    pub(super) root: u64,
    pub(super) inodes: BTreeMap<u64, Inode>,
}

impl Tier {
    /// What is below `root`, but for the engine's own files.
    pub(super) fn read(root: &Path) -> Self {
        let number = fs::symlink_metadata(root).unwrap().ino();
        let mut tier = Self { root: number, inodes: BTreeMap::new() };
        tier.visit(root);
        tier
    }

    fn visit(&mut self, path: &Path) {
        let meta = fs::symlink_metadata(path).unwrap();
        let mut names = BTreeMap::new();
        if meta.is_dir() {
            for entry in fs::read_dir(path).unwrap() {
                let entry = entry.unwrap();
                let below = entry.path();
                if is_of_the_engine(&below) {
                    continue;
                }
                let name = entry.file_name().into_string().unwrap();
                names.insert(name, fs::symlink_metadata(&below).unwrap().ino());
                self.visit(&below);
            }
        }
        let body = if meta.is_dir() {
            Body::Directory(names)
        } else if meta.is_symlink() {
            Body::Link(fs::read_link(path).unwrap())
        } else {
            Body::File(Arc::new(fs::read(path).unwrap()))
        };
        let time = if meta.is_symlink() { (meta.mtime(), meta.mtime_nsec()) } else { (0, 0) };
        let attributes = if meta.is_file() { attributes(path) } else { BTreeMap::new() };
        let stamp = meta.is_file().then(|| Stamp::at(path));
        let inode = Inode { body, mode: meta.mode() & 0o7777, time, attributes, stamp };
        self.inodes.insert(meta.ino(), inode);
    }

    /// Numbers of the inodes that have names, by path.
    pub(super) fn paths(&self) -> BTreeMap<PathBuf, u64> {
        let mut found = BTreeMap::new();
        let mut dirs = vec![(PathBuf::new(), self.root)];
        while let Some((path, number)) = dirs.pop() {
            let Body::Directory(names) = &self.inodes[&number].body else { continue };
            for (name, number) in names {
                let below = path.join(name);
                found.insert(below.clone(), *number);
                dirs.push((below, *number));
            }
        }
        found
    }

    /// The tier without what has no name.
    fn reachable(mut self) -> Self {
        let named: Vec<u64> = self.paths().into_values().collect();
        let root = self.root;
        self.inodes.retain(|number, _| *number == root || named.contains(number));
        self
    }

    fn build(&self, root: &Path) {
        let mut made: BTreeMap<u64, PathBuf> = BTreeMap::new();
        for (path, number) in self.paths() {
            let path = root.join(path);
            let inode = &self.inodes[&number];
            if let Some(first) = made.get(&number) {
                fs::hard_link(first, &path).unwrap();
                continue;
            }
            match &inode.body {
                Body::Directory(_) => fs::create_dir(&path).unwrap(),
                Body::File(bytes) => fs::write(&path, &**bytes).unwrap(),
                Body::Link(target) => symlink(target, &path).unwrap(),
            }
            if let Body::Link(_) = inode.body {
                let time = Timespec { tv_sec: inode.time.0, tv_nsec: inode.time.1 };
                let times = Timestamps { last_access: time, last_modification: time };
                utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
            } else {
                fs::set_permissions(&path, fs::Permissions::from_mode(inode.mode)).unwrap();
            }
            for (name, value) in &inode.attributes {
                xattr::set_on(&fs::File::open(&path).unwrap(), name.as_ref(), value, 0).unwrap();
            }
            made.insert(number, path);
        }
    }
}

/// Files that say what the directory is: they were durable before anything moved.
fn is_of_the_engine(path: &Path) -> bool {
    path.parent().is_some_and(|parent| parent.ends_with(PRIVATE)) && path.is_file()
}

fn attributes(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let file = fs::File::open(path).unwrap();
    let Ok(names) = xattr::list_on(&file) else { return BTreeMap::new() };
    let names = String::from_utf8(names).unwrap();
    let names = names.split_terminator('\0').filter(|name| name.starts_with("user."));
    names.map(|name| (name.to_owned(), xattr::get_on(&file, name.as_ref()).unwrap())).collect()
}

/// What a power loss leaves.
#[derive(Debug, Clone)]
pub(super) struct Image {
    tiers: [Tier; 2],
    engine: Arc<Vec<(PathBuf, Vec<u8>)>>,
    /// After how many acts of the scenario its trees may be what is left.
    pub(super) between: (usize, usize),
    /// For people: at which step, and what was lost.
    pub(super) when: String,
}

impl Image {
    pub(super) fn new(
        tiers: [Tier; 2],
        engine: &Arc<Vec<(PathBuf, Vec<u8>)>>,
        between: (usize, usize),
        when: String,
    ) -> Self {
        let tiers = tiers.map(Tier::reachable);
        Self { tiers, engine: engine.clone(), between, when }
    }

    /// Tells images apart.
    pub(super) fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        // Numbers of inodes differ from run to run.
        for tier in &self.tiers {
            for (path, number) in tier.paths() {
                if path.starts_with(records_dir()) {
                    continue;
                }
                path.hash(&mut hasher);
                match &tier.inodes[&number].body {
                    Body::Directory(_) => {}
                    Body::File(bytes) => bytes.hash(&mut hasher),
                    Body::Link(target) => target.as_os_str().as_bytes().hash(&mut hasher),
                }
            }
        }
        for (_, record) in self.records() {
            (&record.place, self.file_of(&record).is_some(), self.copy_of(&record).is_some())
                .hash(&mut hasher);
        }
        self.between.hash(&mut hasher);
        hasher.finish()
    }

    /// Makes `dir` what the image says.
    pub(super) fn build(&self, dir: &Path) {
        for (tier, name) in self.tiers.iter().zip(["ssd", "hdd"]) {
            let root = dir.join(name);
            fs::remove_dir_all(&root).unwrap();
            fs::create_dir(&root).unwrap();
            tier.build(&root);
        }
        for (path, bytes) in &*self.engine {
            fs::write(dir.join(path), bytes).unwrap();
        }
        self.restamp(dir);
    }

    /// The records of clean copies, by their names.
    fn records(&self) -> Vec<(String, CopyRecord)> {
        let mut found = Vec::new();
        for (path, number) in self.tiers[0].paths() {
            let Body::Link(target) = &self.tiers[0].inodes[&number].body else { continue };
            let Ok(name) = path.strip_prefix(records_dir()) else { continue };
            let name = name.to_str().unwrap();
            let record = CopyRecord::of(name, target);
            found.extend(record.map(|record| (name.to_owned(), record)));
        }
        found
    }

    /// Where the file of a record is, if it looks as the record says.
    fn file_of(&self, record: &CopyRecord) -> Option<PathBuf> {
        let file = self.tiers[0].inodes.get(&record.file.inode)?;
        let path =
            self.tiers[0].paths().into_iter().find(|(_, number)| *number == record.file.inode);
        path.filter(|_| file.stamp == Some(record.file)).map(|(path, _)| path)
    }

    /// Whether the copy of a record looks as the record says.
    fn copy_of(&self, record: &CopyRecord) -> Option<PathBuf> {
        let number = *self.tiers[1].paths().get(&record.place)?;
        (self.tiers[1].inodes[&number].stamp == Some(record.copy)).then(|| record.place.clone())
    }

    /// Makes records say of the inodes that were made what they said of those that there were.
    fn restamp(&self, dir: &Path) {
        for (name, record) in self.records() {
            let again = |was: Stamp, path: Option<PathBuf>, tier: &str| match path {
                // Bytes that were lost may have taken the length with them.
                Some(path) => Stamp { size: was.size, ..Stamp::at(&dir.join(tier).join(path)) },
                None => Stamp { changed: (1, 1), ..was },
            };
            let mut next = record.clone();
            next.file = again(record.file, self.file_of(&record), "ssd");
            next.copy = again(record.copy, self.copy_of(&record), "hdd");
            if let (None, Some(number)) = (self.file_of(&record), self.now_at(&record, dir)) {
                next.file.inode = number;
            }
            let records = dir.join("ssd").join(records_dir());
            fs::rename(records.join(name), records.join(next.name())).unwrap();
        }
    }

    /// The new number of a record's file that looks otherwise.
    fn now_at(&self, record: &CopyRecord, dir: &Path) -> Option<u64> {
        let is = |(_, number): &(PathBuf, u64)| *number == record.file.inode;
        let (path, _) = self.tiers[0].paths().into_iter().find(is)?;
        Some(fs::symlink_metadata(dir.join("ssd").join(path)).unwrap().ino())
    }

    /// The engine's own files.
    pub(super) fn engine_files(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
        let private = ["ssd", "hdd"].map(|name| Path::new(name).join(PRIVATE));
        let mut found = Vec::new();
        for below in private {
            for entry in fs::read_dir(dir.join(&below)).unwrap() {
                let path = entry.unwrap().path();
                if path.is_file() {
                    found.push((below.join(path.file_name().unwrap()), fs::read(&path).unwrap()));
                }
            }
        }
        found
    }
}
