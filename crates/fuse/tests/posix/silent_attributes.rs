//! A name that a directory has is listed, whoever has its attributes and does not answer.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use halocline_fuse::transport::uring;
use halocline_fuse::{MountOptions, Transport, mount};
use halocline_os::error::Result;
use halocline_tier::{FileTier, TierOptions, TierSet};
use halocline_vfs::namespace::{Directory, Namespace, Vnode};
use halocline_vfs::uncached::{OpenFile, Uncached};
use halocline_vfs::{
    Allocate, Caller, DirEntry, Engine, Make, Maker, OpenDirectory, OpenMode, Seek, SetAttr, Stat,
};
use rustix::io::Errno;

use crate::harness::{errno, reason_to_skip, skip};

/// Names that begin so have attributes that nobody tells.
const SILENT: &str = "silent";
/// Of these, not even the directory says what they are.
const OF_NO_TYPE: &str = "silent-and-of-no-type";
/// A name that is removed as soon as it is listed.
const GONE: &str = "gone";
const FILES: usize = 1000;

/// A directory of which some names cannot be looked up.
#[derive(Debug)]
struct Partial(Uncached);

fn begins_with(name: &OsStr, what: &str) -> bool {
    name.as_encoded_bytes().starts_with(what.as_bytes())
}

impl Engine for Partial {
    type Vnode = Vnode;
    type Handle = OpenFile;
    type Tree = Namespace;

    fn below<'a>(&'a self, vnode: &'a Vnode) -> (&'a Namespace, Cow<'a, Vnode>) {
        self.0.below(vnode)
    }

    fn root(&self) -> Vnode {
        self.0.root()
    }

    fn lookup(&self, parent: &Vnode, name: &OsStr) -> Result<(Vnode, Stat)> {
        if begins_with(name, SILENT) {
            return Err(Errno::IO.into());
        }
        if name == GONE {
            return Err(Errno::NOENT.into());
        }
        self.0.lookup(parent, name)
    }

    fn read_dir(
        &self,
        dir: &Directory,
        offset: u64,
        take: &mut dyn FnMut(DirEntry) -> bool,
    ) -> Result<()> {
        OpenDirectory::read(dir, offset, &mut |mut entry| {
            if begins_with(&entry.name, OF_NO_TYPE) || entry.name == GONE {
                entry.kind = libc::DT_UNKNOWN;
            }
            take(entry)
        })
    }

    fn stat(&self, vnode: &Vnode, handle: Option<&OpenFile>) -> Result<Stat> {
        self.0.stat(vnode, handle)
    }

    fn set_attr(
        &self,
        vnode: &Vnode,
        handle: Option<&OpenFile>,
        change: &SetAttr,
        caller: Caller,
    ) -> Result<Stat> {
        self.0.set_attr(vnode, handle, change, caller)
    }

    fn make(&self, at: (&Vnode, &OsStr), what: Make<'_>, by: Maker) -> Result<(Vnode, Stat)> {
        self.0.make(at, what, by)
    }

    fn create(
        &self,
        at: (&Vnode, &OsStr),
        mode: u32,
        flags: i32,
        by: Maker,
    ) -> Result<(Vnode, Stat, OpenFile)> {
        self.0.create(at, mode, flags, by)
    }

    fn link(&self, vnode: &Vnode, parent: &Vnode, name: &OsStr) -> Result<Stat> {
        self.0.link(vnode, parent, name)
    }

    fn unlink(&self, parent: &Vnode, name: &OsStr, by: Caller) -> Result<()> {
        self.0.unlink(parent, name, by)
    }

    fn rename(
        &self,
        from: (&Vnode, &OsStr),
        to: (&Vnode, &OsStr),
        flags: u32,
        by: Caller,
    ) -> Result<()> {
        self.0.rename(from, to, flags, by)
    }

    fn open(&self, vnode: &Vnode, flags: i32, caller: Caller) -> Result<OpenFile> {
        self.0.open(vnode, flags, caller)
    }

    fn open_mode(&self, handle: &OpenFile) -> OpenMode {
        self.0.open_mode(handle)
    }

    fn read(&self, file: &OpenFile, offset: u64, buf: &mut [u8], by: Caller) -> Result<usize> {
        self.0.read(file, offset, buf, by)
    }

    fn write(&self, file: &OpenFile, offset: u64, data: &[u8], by: Caller) -> Result<()> {
        self.0.write(file, offset, data, by)
    }

    fn fsync(&self, file: &OpenFile, data_only: bool) -> Result<()> {
        self.0.fsync(file, data_only)
    }

    fn allocate(&self, file: &OpenFile, offset: u64, len: u64, how: Allocate) -> Result<()> {
        self.0.allocate(file, offset, len, how)
    }

    fn seek(&self, file: &OpenFile, offset: u64, what: Seek) -> Result<u64> {
        self.0.seek(file, offset, what)
    }
}

/// The names in a directory; with `looks`, each is looked at as soon as it is read, as `ls -l` does, and so the kernel asks
/// for names with attributes.
fn names(dir: &Path, looks: bool) -> io::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().into_string().unwrap();
        if name.starts_with(SILENT) && !name.starts_with(OF_NO_TYPE) {
            assert!(entry.file_type().unwrap().is_dir(), "{name}");
        }
        if looks {
            let seen = entry.metadata();
            if name.starts_with(SILENT) {
                assert_eq!(errno(seen), libc::EIO, "{name}");
            } else {
                assert!(seen.unwrap().is_file(), "{name}");
            }
        }
        assert!(names.insert(name));
    }
    Ok(names)
}

fn each_name_is_listed(transport: Transport) {
    let scratch = tempfile::tempdir().unwrap();
    let at = |name: &str| scratch.path().join(name);
    for dir in ["origin", "origin/typed", "origin/typeless", "origin/removed", "mount"] {
        fs::create_dir(at(dir)).unwrap();
    }
    let mut all = BTreeSet::new();
    for dir in ["typed", "typeless"] {
        for number in 0..FILES {
            fs::write(at(&format!("origin/{dir}/{number}")), "x").unwrap();
            fs::create_dir(at(&format!("origin/{dir}/{SILENT}{number}"))).unwrap();
            all.extend([number.to_string(), format!("{SILENT}{number}")]);
        }
    }
    for name in ["first", GONE, "last"] {
        fs::write(at(&format!("origin/removed/{name}")), "x").unwrap();
    }
    let mut options = MountOptions::new(at("mount"));
    options.transport = transport;
    let engine = Partial(Uncached::open(&at("origin"), false).unwrap());
    let session = mount(Arc::new(engine), &options).unwrap();
    for looks in [false, true] {
        assert_eq!(names(&at("mount/typed"), looks).unwrap(), all, "{transport:?}, {looks}");
    }
    for number in 0..FILES {
        let name = format!("{OF_NO_TYPE}{number}");
        fs::write(at(&format!("origin/typeless/{name}")), "x").unwrap();
        all.insert(name);
    }
    for looks in [false, true] {
        let found = names(&at("mount/typeless"), looks);
        match transport {
            // Programs see the type as not known.
            Transport::Ring => assert_eq!(found.unwrap(), all, "{looks}"),
            Transport::Device => assert_eq!(errno(found), libc::EIO, "{looks}"),
        }
    }
    let left = ["first", "last"].map(str::to_owned);
    assert_eq!(names(&at("mount/removed"), false).unwrap(), BTreeSet::from(left));
    // What the kernel forgot meanwhile is not what it knows.
    assert_eq!(fs::read(at("mount/typed/7")).unwrap(), b"x");
    drop(session);
}

/// Regression: such a name was left out, and the listing ended without an error.
#[test]
fn names_are_listed_though_nobody_tells_their_attributes() {
    if let Some(reason) = reason_to_skip() {
        return skip(reason);
    }
    each_name_is_listed(Transport::Device);
    match uring::obstacle() {
        None => each_name_is_listed(Transport::Ring),
        Some(obstacle) => skip(obstacle),
    }
}

/// Regression: a mount passed over such a name. If that was a link to a file below, the file was a leftover where a note said
/// so, and was removed.
#[test]
fn a_tier_is_not_mounted_over_an_ssd_that_does_not_tell_a_name() {
    if let Some(reason) = reason_to_skip() {
        return skip(reason);
    }
    let scratch = tempfile::tempdir().unwrap();
    let at = |name: &str| scratch.path().join(name);
    for dir in ["ssd", "hdd", "mount"] {
        fs::create_dir(at(dir)).unwrap();
    }
    let mut options = MountOptions::new(at("mount"));
    options.transport = Transport::Device;
    let engine = Partial(Uncached::open(&at("ssd"), true).unwrap());
    let session = mount(Arc::new(engine), &options).unwrap();
    let open = || {
        let set = TierSet::below(scratch.path(), &["mount", "hdd"]).unwrap();
        FileTier::open(&set, TierOptions { passthrough: false, ..TierOptions::default() })
    };
    fs::write(at("hdd/file"), "x").unwrap();
    drop(open().unwrap());
    let link = fs::read_link(at("ssd/file")).unwrap();
    assert!(link.ends_with("hdd/file"), "{link:?}");
    fs::rename(at("ssd/file"), at(&format!("ssd/{SILENT}"))).unwrap();
    assert_eq!(open().err().map(|error| error.errno()), Some(libc::EIO));
    fs::rename(at(&format!("ssd/{SILENT}")), at("ssd/file")).unwrap();
    drop(open().unwrap());
    assert_eq!(fs::read(at("hdd/file")).unwrap(), b"x");
    drop(session);
}
