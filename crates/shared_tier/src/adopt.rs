//! The tier of one node (decision 0001) becomes a shared one, without a byte being copied: its names, which are on the
//! SSD, are made on the shared disk, and then a rebuild takes all of it into the store.
//!
//! What must hold: a killed run can be completed by running it again; at each step each file keeps its bytes and at
//! least one name; and nothing that we do not understand is changed.

use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use halocline_cluster::names::attributes::{Attributes, Kind, RelativePath};
use halocline_os::error::{Error, Result};
use halocline_os::locked_file::LockedFile;
use halocline_os::private::{PrivateDir, own_uid};
use halocline_vfs::namespace::stat_descriptor;
use halocline_vfs::namespace::statx::{set_attr_on, system_time};
use halocline_vfs::{SetAttr, SetTime};
use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, Gid, Mode, Uid, chownat, flock, linkat, mkdirat,
    mknodat, symlinkat,
};
use rustix::io::Errno;

use crate::places::own_xattrs;
use crate::places::peers::{self, LABEL};
use crate::places::steps::{Steps, Watcher};
use crate::places::tree::{Tree, proc_path};
use crate::repair::scan::{Item, Scanned, scan, tell};
use crate::stat_conversion::{file_type, split};

/// On the SSD: all names are on the shared disk, and directories are now being closed.
const CLOSING: &str = "adopting";
/// Marks a user's link whose target begins like the targets of the tier's own links.
const ESCAPE: &[u8] = b".//";
/// Marks a link of the tier with several names.
const SHARED: &[u8] = b"./";

/// What was or would be adopted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Adopted {
    /// Directories.
    pub directories: u64,
    /// Files on the SSD.
    pub ssd_files: u64,
    /// Files on the disk below.
    pub disk_files: u64,
    /// What is left alone, and why.
    pub told: Vec<String>,
}

/// Turns the tier of one node below `root` into the tier of node `node` in a shared tier. Without `repair` nothing is
/// changed. Afterwards the names are to be built in the store.
///
/// # Errors
/// If it is mounted, is a shared tier already, or was not unmounted in order.
pub fn run(root: &Path, node: &str, repair: bool) -> Result<Adopted> {
    run_watched(root, node, repair, None)
}

pub(crate) fn run_watched(
    root: &Path,
    node: &str,
    repair: bool,
    watcher: Option<std::sync::Arc<dyn Watcher>>,
) -> Result<Adopted> {
    peers::check_node(node)?;
    let steps = Steps::new(watcher);
    let [ssd, shared] =
        [root.join("ssd"), root.join("hdd")].map(|path| Tree::open(&path, steps.clone()));
    let (ssd, shared) = (ssd?, shared?);
    let _lock = lock(&ssd.private)?;
    check(&ssd, root)?;
    shared.check_attributes()?;
    ssd.check_attributes()?;
    let roots = roots(root)?;
    let is_closing = ssd.private.read(CLOSING, 0)?.is_some();
    let scanned = scan(&ssd)?;
    if let Some(first) = scanned.unread.first() {
        return Err(Error::invalid(
            format!("{}/{first}", ssd.path.display()),
            "make it readable for this user, and begin again",
        ));
    }
    let adoption = Adoption { ssd, shared, roots };
    let mut adopted = Adopted::default();
    OnSsd::all(&scanned).for_each(|item| adoption.count(&item, &mut adopted));
    if !repair {
        return Ok(adopted);
    }
    if !is_closing {
        adoption.names(&scanned, &mut adopted)?;
        adoption.directory_attributes(&scanned)?;
        adoption.ssd.step("beginning to close directories", || {
            adoption.ssd.private.replace(CLOSING, b"")
        })?;
    }
    adoption.close(&scanned)?;
    let tier = peers::tier_id(&adoption.shared.private)?;
    peers::note(&adoption.shared.private, node)?;
    peers::claim(&adoption.ssd, node, &tier)?;
    adoption.ssd.private.remove(CLOSING)?;
    Ok(adopted)
}

/// Keeps anybody else from mounting it meanwhile, as a tier of one node or as a shared one.
fn lock(own: &PrivateDir) -> Result<[LockedFile; 2]> {
    let lock = |name: &str| {
        let file = own.file(name, halocline_os::private::Use::Write)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(LockedFile::new(file)),
            Err(_) => Err(Error::invalid(
                format!("{} is in use", own.path().display()),
                "unmount the tier first",
            )),
        }
    };
    Ok([lock("halocline.lock")?, lock("in-use")?])
}

/// Checks that it is a tier of one node that was unmounted in order.
fn check(ssd: &Tree, root: &Path) -> Result<()> {
    let names = ssd.private.names()?;
    let has = |name: &str| names.iter().any(|one| one == name);
    if has("node") {
        return Err(Error::invalid(
            format!("{}: nodes share this tier already", root.display()),
            "leave --adopt out",
        ));
    }
    if !has(LABEL) {
        return Err(Error::invalid(
            format!(
                "{} has no {LABEL}: it was never mounted as a tier",
                ssd.private.path().display()
            ),
            "mount it with --cluster, if it is new; otherwise name the ROOT of the tier",
        ));
    }
    for (dir, what) in
        [("intents", "a change that was not completed"), ("copies", "clean copies below")]
    {
        if !has(dir) {
            continue;
        }
        let left = ssd.private.sub(dir)?.names()?;
        if left.iter().any(|name| name != "era") {
            return Err(Error::invalid(
                format!("{}/{dir}: the tier has {what}", ssd.private.path().display()),
                "mount it once without --cluster, with clean copies off, wait until it is idle, and unmount it",
            ));
        }
    }
    Ok(())
}

/// The prefixes of link targets that stand for files on the disk below.
fn roots(root: &Path) -> Result<Vec<Vec<u8>>> {
    let hdd = root.join("hdd");
    let at = |error| Error::at(&hdd, "find")(error);
    let paths: [PathBuf; 2] =
        [std::path::absolute(&hdd).map_err(at)?, hdd.canonicalize().map_err(at)?];
    Ok(paths.iter().map(|path| [path.as_os_str().as_bytes(), b"/"].concat()).collect())
}

/// Something on the SSD.
#[derive(Clone, Copy)]
struct OnSsd<'a> {
    scanned: &'a Scanned,
    at: usize,
}

impl Deref for OnSsd<'_> {
    type Target = Item;

    fn deref(&self) -> &Item {
        &self.scanned.items[self.at]
    }
}

impl<'a> OnSsd<'a> {
    fn all(scanned: &'a Scanned) -> impl DoubleEndedIterator<Item = Self> {
        (0..scanned.items.len()).map(move |at| Self { scanned, at })
    }

    fn directories(scanned: &'a Scanned) -> impl DoubleEndedIterator<Item = Self> {
        Self::all(scanned).filter(|item| item.attributes.kind == Kind::Directory)
    }

    fn path(self) -> RelativePath {
        self.scanned.path(self.at)
    }
}

/// What a link on the SSD means.
enum Link {
    /// A file below, at this path.
    Below(RelativePath),
    /// One of a user, with this target.
    Users(Vec<u8>),
}

struct Adoption {
    ssd: Tree,
    shared: Tree,
    roots: Vec<Vec<u8>>,
}

impl Adoption {
    fn link(&self, item: &Item) -> Link {
        let target = item.attributes.target.as_slice();
        let split =
            self.roots.iter().find_map(|root| Some((root, target.strip_prefix(root.as_slice())?)));
        let Some((root, rest)) = split else { return Link::Users(target.to_vec()) };
        if let Some(rest) = rest.strip_prefix(ESCAPE) {
            return Link::Users([root, rest].concat());
        }
        let rest = rest.strip_prefix(SHARED).unwrap_or(rest);
        // Nobody else can give us a link.
        match RelativePath::new(rest).filter(|_| item.attributes.uid == own_uid()) {
            Some(path) => Link::Below(path),
            None => Link::Users(target.to_vec()),
        }
    }

    fn count(&self, item: &Item, adopted: &mut Adopted) {
        match item.attributes.kind {
            Kind::Directory => adopted.directories += 1,
            Kind::File => adopted.ssd_files += 1,
            Kind::Symlink => {
                adopted.disk_files += u64::from(matches!(self.link(item), Link::Below(_)));
            }
            _ => {}
        }
    }

    /// Gives all names their place on the shared disk.
    fn names(&self, scanned: &Scanned, adopted: &mut Adopted) -> Result<()> {
        let mut below = Vec::new();
        for item in OnSsd::all(scanned) {
            let done = match item.attributes.kind {
                Kind::Directory => self.directory(item),
                Kind::File => clear_own_xattrs(&self.ssd, &self.ssd.look(Some(&item.path()))?),
                Kind::Symlink => match self.link(&item) {
                    Link::Users(target) => self.other(item, &target),
                    Link::Below(place) => {
                        below.push((item, place));
                        Ok(())
                    }
                },
                _ => self.other(item, &[]),
            };
            self.left_alone(item, done, adopted)?;
        }
        // Of several names of a file, the one of its place comes last, so that the place stays.
        below.sort_by_cached_key(|(item, place)| scanned.is_path(item.at, place));
        // A file may lie where another one's name goes; then it moves first.
        loop {
            let before = below.len();
            let mut refused = Vec::new();
            for (item, place) in below {
                let done = self.file_below(item, &place);
                if done.as_ref().is_err_and(|error| error.errno() == libc::EEXIST) {
                    refused.push((item, place));
                } else {
                    self.left_alone(item, done, adopted)?;
                }
            }
            if refused.is_empty() || refused.len() == before {
                let exists = || Err(Errno::EXIST.into());
                return refused
                    .iter()
                    .try_for_each(|(item, _)| self.left_alone(*item, exists(), adopted));
            }
            below = refused;
        }
    }

    /// An obstacle or a missing file concerns one name only: report it and go on.
    fn left_alone(&self, item: OnSsd<'_>, done: Result<()>, adopted: &mut Adopted) -> Result<()> {
        match done {
            Err(error) if matches!(error.errno(), libc::EEXIST | libc::ENOENT | libc::ENOTDIR) => {
                let (disk, path) = (self.ssd.path.display(), item.scanned.shown(item.at));
                tell(&mut adopted.told, format!("{disk}/{path}: {error}; it is left alone"));
                Ok(())
            }
            done => done,
        }
    }

    fn directory(&self, item: OnSsd<'_>) -> Result<()> {
        self.shared.step("making a directory", || {
            match mkdirat(self.shared.parent_of(&item.path())?, last(&item), Mode::RWXU) {
                // If it is no directory, making something in it fails.
                Ok(()) | Err(Errno::EXIST) => Ok(()),
                Err(errno) => Err(Error::from(errno)),
            }
        })
    }

    /// Gives a file below its name there, and removes its link on the SSD.
    fn file_below(&self, item: OnSsd<'_>, place: &RelativePath) -> Result<()> {
        let path = item.path();
        let fd = self.shared.look(Some(place)).or_else(|errno| match errno {
            // A run that was killed has removed it already.
            Errno::NOENT => self.shared.look(Some(&path)),
            errno => Err(errno),
        })?;
        let stat = stat_descriptor(&fd)?;
        if stat.kind() != libc::S_IFREG {
            return Err(Errno::EXIST.into());
        }
        clear_own_xattrs(&self.shared, &fd)?;
        if *place != path {
            let to = self.shared.parent_of(&path)?;
            let link = || linkat(CWD, proc_path(&fd), &to, last(&item), AtFlags::SYMLINK_FOLLOW);
            match self.shared.step("linking a file", link) {
                Err(error) if error.errno() == libc::EEXIST => {
                    let there = self.shared.look(Some(&path))?;
                    if stat_descriptor(&there)?.key() != stat.key() {
                        return Err(error);
                    }
                }
                done => done?,
            }
        }
        // The last name of the file: it has all of them by now, and its old place is not one of them.
        let link = self.ssd.look_at_link(&path)?;
        if *place != path && stat_descriptor(&link)?.raw.st_nlink == 1 {
            match self.shared.unlink(place, AtFlags::empty()) {
                Err(error) if error.errno() == libc::ENOENT => {}
                done => done?,
            }
        }
        self.ssd.unlink(&path, AtFlags::empty())
    }

    /// A symbolic link of a user, a pipe, a socket or a device.
    fn other(&self, item: OnSsd<'_>, target: &[u8]) -> Result<()> {
        let dir = self.shared.parent_of(&item.path())?;
        let Attributes { kind, mode, uid, gid, rdev, .. } = item.attributes;
        let make = || match kind {
            Kind::Symlink => symlinkat(std::ffi::OsStr::from_bytes(target), &dir, last(&item)),
            kind => {
                let kind = FileType::from_raw_mode(file_type(kind));
                mknodat(&dir, last(&item), kind, Mode::from_raw_mode(mode), rdev)
            }
        };
        match self.shared.step("making a link or device", make) {
            // A run that was killed has made it, if it is the same.
            Err(error) if error.errno() == libc::EEXIST && self.is_same(item, target)? => {}
            done => done?,
        }
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        chownat(&dir, last(&item), uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
        self.ssd.unlink(&item.path(), AtFlags::empty())
    }

    fn is_same(&self, item: OnSsd<'_>, target: &[u8]) -> Result<bool> {
        let there = self.shared.look_at_link(&item.path())?;
        let stat = stat_descriptor(&there)?;
        if item.attributes.kind != Kind::Symlink {
            return Ok(stat.kind() == file_type(item.attributes.kind));
        }
        let is_link = stat.kind() == libc::S_IFLNK;
        Ok(is_link && rustix::fs::readlinkat(&there, "", Vec::new())?.as_bytes() == target)
    }

    /// Copies the attributes of directories on the SSD to the shared disk; the lowest first, because of the times.
    fn directory_attributes(&self, scanned: &Scanned) -> Result<()> {
        for item in OnSsd::directories(scanned).rev() {
            self.liken(&self.shared.look(Some(&item.path()))?, &item.attributes)?;
        }
        match &scanned.root {
            Some(root) => self.liken(&self.shared.look(None)?, root),
            None => Ok(()),
        }
    }

    fn liken(&self, fd: &OwnedFd, to: &Attributes) -> Result<()> {
        let time = |ns| Some(SetTime::At(system_time(split(ns))));
        let change = SetAttr {
            mode: Some(to.mode),
            uid: Some(to.uid),
            gid: Some(to.gid),
            atime: time(to.atime_ns),
            mtime: time(to.mtime_ns),
            ..SetAttr::default()
        };
        self.shared.step("setting a directory's attributes", || {
            for (name, value) in &to.xattrs {
                own_xattrs::set_users(fd, name, value)?;
            }
            set_attr_on(fd, &change).map(drop)
        })
    }

    /// Makes the directories on the SSD ours alone.
    fn close(&self, scanned: &Scanned) -> Result<()> {
        let (uid, gid) = (own_uid(), rustix::process::getegid().as_raw());
        let closed =
            SetAttr { mode: Some(0o700), uid: Some(uid), gid: Some(gid), ..SetAttr::default() };
        for item in OnSsd::directories(scanned) {
            let fd = self.ssd.look(Some(&item.path()))?;
            self.ssd.step("closing a directory", || set_attr_on(fd.as_fd(), &closed))?;
        }
        Ok(())
    }
}

/// Removes the own attributes, whether from the tier of one node or from anybody else: numbers are given anew.
fn clear_own_xattrs(tree: &Tree, fd: &OwnedFd) -> Result<()> {
    tree.step("taking our attributes away", || {
        let all = [own_xattrs::INODE, own_xattrs::LEAVING, own_xattrs::ARRIVING];
        all.into_iter().try_for_each(|own| own_xattrs::clear(fd, own))?;
        own_xattrs::set_names(fd, &[])
    })
}

fn last(item: &Item) -> &std::ffi::OsStr {
    std::ffi::OsStr::from_bytes(item.name.as_bytes())
}

#[cfg(test)]
mod tests;
