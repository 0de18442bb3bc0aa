//! Turns files of a striped origin back into plain ones, without an engine.
//!
//! The origin is only read, once its objects are bound to its files (for a copied volume this happens at the first
//! opening, which needs one that can be written). Holes stay holes; owner, mode, times, extended attributes (including ACLs) and hard links are preserved.
//! The volume must not be mounted: dirty bytes of its cache are not in the origin. An interrupted or failed copy has a
//! name that ends in `.incomplete`, and so has one that lacks a file, or an attribute, which could not be read or which the
//! file system of the copy cannot hold: that is told, and the rest is copied.
//!
//! What must hold: while a tree is copied no one else can access the copy, because a directory that excludes others
//! does so only once it has its own attributes; and others, who may write to the tree or to the directory of the copy,
//! cannot redirect our reads or writes by placing links.

mod attributes;

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::vec;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, linkat, mkdirat, mknodat, openat, readlinkat, symlinkat,
    unlinkat,
};
use rustix::io::Errno;

use super::origin::Origin;
use super::origin::sparse_copy::{Progress, copy_data};
use super::origin::tree_walk::{
    DIRECTORY, TreeEntry, Unread, at, file, tree, tree_bytes, unreadable,
};
use halocline_os::beneath::{self, TreeCursor, open_entry};
use halocline_os::error::{Error, Result};
use halocline_os::process_user::own_uid;
use halocline_os::rename_new::rename_new;

use attributes::copy_attributes;

/// Flags for any kind of file, without opening its content.
const ANY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// What can be done instead of copying a file that is none.
const WHOLE_TREE: &str = "take the whole tree";

/// What a copy lacks: an error for each file, or attribute of a file, that is not in it.
pub type Lacking = Vec<Error>;

/// Why something was not copied.
enum Stopped {
    /// It is about this file alone.
    Here(Error),
    /// The directory with this name was moved, or hidden, while it was read: the rest of it is not found.
    Lost(Error),
    /// Nothing more can be copied.
    Everywhere(Error),
}

impl From<Stopped> for Error {
    fn from(stopped: Stopped) -> Self {
        match stopped {
            Stopped::Here(error) | Stopped::Lost(error) | Stopped::Everywhere(error) => error,
        }
    }
}

/// Copies the file at `relative` of the striped origin in `origin_dir` to the new file `out`, which keeps the name of an
/// incomplete one if it lacks anything.
pub fn unstripe(
    origin_dir: &Path,
    relative: &Path,
    out: &Path,
    progress: Progress<'_>,
) -> Result<Lacking> {
    let origin = Origin::open_volume(origin_dir)?;
    let from = file(&origin, relative, WHOLE_TREE)?;
    let copy = Copy::begin(out)?;
    let made = copy_file(&origin, &from, (&copy.dir, &copy.name, &copy.shown), progress)?;
    let mut lacking = Lacking::new();
    copy_attributes(&from, &made, &copy.shown, &mut lacking)?;
    copy.finish(&made, out, lacking)
}

/// Copies the whole tree of the striped origin in `origin_dir` to the new directory `out`, which keeps the name of an
/// incomplete one if it lacks anything.
pub fn unstripe_tree(origin_dir: &Path, out: &Path, progress: Progress<'_>) -> Result<Lacking> {
    let origin = Origin::open_volume(origin_dir)?;
    let copy = Copy::begin(out)?;
    let top = make_directory(&copy.dir, &copy.name, &copy.shown)?;
    let mut tree = TreeCopy {
        origin: &origin,
        top: &top,
        out: copy.shown.clone(),
        from: TreeCursor::new(tree(&origin)?).map_err(at(origin.namespace_dir(), "open"))?,
        to: TreeCursor::new(&top).map_err(at(&copy.shown, "open"))?,
        place: PathBuf::new(),
        linked: HashMap::new(),
        lacking: Lacking::new(),
        progress,
    };
    tree.copy()?;
    let lacking = tree.lacking;
    copy.finish(&top, out, lacking)
}

/// The name that an incomplete copy to `out` has.
pub fn incomplete(out: &Path) -> PathBuf {
    let mut name = out.file_name().unwrap_or_default().to_owned();
    name.push(".incomplete");
    out.with_file_name(name)
}

/// The number of bytes that a copy of the file at `relative`, or of the whole tree, to `out` passes, after the same
/// initial checks as a copy, and what could not be read of the tree. Creates nothing.
pub fn planned_bytes(
    origin_dir: &Path,
    relative: Option<&Path>,
    out: &Path,
) -> Result<(u64, Unread)> {
    let origin = Origin::open_to_look_at_names(origin_dir)?;
    let planned = match relative {
        Some(relative) => (file(&origin, relative, WHOLE_TREE)?.found.len(), Unread::new()),
        None => tree_bytes(origin.namespace_dir())?,
    };
    Copy::begin(out)?;
    Ok(planned)
}

/// A copy in progress. The name `out` only ever refers to a complete copy, whatever fails or is killed; until then no
/// one else can access it, not even users who may write to the directory of both: it is in a directory, or a file, that
/// only its creator may open.
struct Copy {
    /// The directory of both names.
    dir: OwnedFd,
    /// The name until the copy is complete.
    name: OsString,
    shown: PathBuf,
}

impl Copy {
    /// Checks whether the copy can be made; creates nothing yet.
    fn begin(out: &Path) -> Result<Self> {
        let taken = |path: &Path, remedy: &str| {
            let is_there = path.symlink_metadata().is_ok();
            let refuse = || Err(Error::invalid(format!("{} exists", path.display()), remedy));
            if is_there { refuse() } else { Ok(()) }
        };
        taken(out, "name a new file or directory")?;
        let name = incomplete(out).file_name().unwrap_or_default().to_owned();
        let dir = out.parent().filter(|dir| *dir != Path::new("")).unwrap_or(Path::new("."));
        let shown = dir.join(&name);
        taken(&shown, "it is what an interrupted copy left: remove it, or move it away")?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = openat(CWD, dir, flags, Mode::empty()).map_err(at(dir, "open"))?;
        Ok(Self { dir, name, shown })
    }

    /// Makes the copy `made` durable, and then gives it its name, unless that is taken by now, or it lacks anything.
    fn finish(&self, made: &impl AsFd, out: &Path, lacking: Lacking) -> Result<Lacking> {
        let finish = || -> io::Result<()> {
            let dir = File::from(self.dir.try_clone()?);
            rustix::fs::syncfs(&dir)?;
            let (now, ours) = (openat(&dir, &self.name, ANY, Mode::empty())?, made);
            let (now, ours) = (rustix::fs::fstat(now)?, rustix::fs::fstat(ours)?);
            if (now.st_dev, now.st_ino) != (ours.st_dev, ours.st_ino) {
                return Err(io::Error::other("somebody put something else in its place"));
            }
            if !lacking.is_empty() {
                return dir.sync_all();
            }
            let name = out.file_name().ok_or(Errno::INVAL)?;
            rename_new(&dir, &self.name, &dir, name)?;
            dir.sync_all()
        };
        finish().map_err(Error::at(out, "give the finished copy its name"))?;
        Ok(lacking)
    }
}

/// Creates a directory that only we can enter until it gets its attributes.
fn make_directory(dir: &impl AsFd, name: &OsStr, shown: &Path) -> Result<OwnedFd> {
    let made = || -> io::Result<OwnedFd> {
        mkdirat(dir, name, Mode::RWXU)?;
        let made = openat(dir, name, DIRECTORY, Mode::empty())?;
        let found = rustix::fs::fstat(&made)?;
        let is_new = found.st_uid == own_uid()
            && Mode::from_raw_mode(found.st_mode).difference(Mode::RWXU | Mode::SGID).is_empty()
            && beneath::names(&made)?.is_empty();
        if is_new { Ok(made) } else { Err(io::Error::other("somebody put another in its place")) }
    };
    made().map_err(Error::at(shown, "create the directory"))
}

/// A directory that is being copied.
struct Copied {
    /// As it was found: reading it changes its times.
    found: Metadata,
    /// The names that are not copied yet.
    names: vec::IntoIter<OsString>,
    /// Whether it is not found any more.
    is_lost: bool,
}

struct TreeCopy<'a> {
    origin: &'a Origin,
    /// The root of the copy, and its path.
    top: &'a OwnedFd,
    out: PathBuf,
    /// Where both trees are read and written: at the same directory.
    from: TreeCursor,
    to: TreeCursor,
    /// The path of that directory from both roots.
    place: PathBuf,
    /// Where below the root the first name of each inode with several names was copied.
    linked: HashMap<u64, PathBuf>,
    lacking: Lacking,
    progress: Progress<'a>,
}

impl TreeCopy<'_> {
    /// Fills the copy. Trees may have any depth: there is no recursion. A directory's own attributes come last: filling it
    /// changes its times, its mode may forbid filling it, and they may admit other users.
    fn copy(&mut self) -> Result<()> {
        let mut above = vec![self.begin().map_err(at(self.origin.namespace_dir(), "stat"))?];
        while let Some(directory) = above.last_mut() {
            if let Some(name) = directory.names.next() {
                match self.named(&name) {
                    Ok(below) => above.extend(below),
                    Err(Stopped::Here(error)) => self.lacking.push(error),
                    Err(Stopped::Lost(error)) => self.lose(directory, error),
                    Err(Stopped::Everywhere(error)) => return Err(error),
                }
            } else if let Some(ended) = above.pop() {
                self.end(ended)?;
                let Some(up) = above.len().checked_sub(1) else { break };
                self.place.pop();
                self.to.leave_to(up).map_err(at(&self.out, "find the directory above in"))?;
                if let Err(errno) = self.from.leave_to(up) {
                    let error = unreadable(&self.shown(), errno);
                    self.lose(&mut above[up], error);
                }
            }
        }
        Ok(())
    }

    /// What is left of a directory cannot be copied.
    fn lose(&mut self, directory: &mut Copied, error: Error) {
        directory.names = Vec::new().into_iter();
        directory.is_lost = true;
        self.lacking.push(error);
    }

    /// Gives the copy of a directory its attributes. One of which not all is found stays for us alone.
    fn end(&mut self, Copied { found, is_lost, .. }: Copied) -> Result<()> {
        if is_lost {
            return Ok(());
        }
        let fd = self.from.directory().try_clone_to_owned()?;
        let from = TreeEntry { fd, found, shown: self.shown() };
        let to = self.to.directory().try_clone_to_owned()?;
        copy_attributes(&from, &to, &self.out.join(&self.place), &mut self.lacking)
    }

    /// Copies what has this name, or begins to, if it is a directory.
    fn named(&mut self, name: &OsStr) -> Result<Option<Copied>, Stopped> {
        let shown = self.shown().join(name);
        let found = open_entry(self.from.directory(), name, OFlags::empty());
        let found = found.map_err(|errno| unreadable(&shown, errno));
        let entry = found.and_then(|fd| TreeEntry::of(fd, shown)).map_err(Stopped::Here)?;
        if entry.found.is_dir() {
            return self.directory(name).map(Some);
        }
        self.entry(&entry, name).map(|()| None)
    }

    /// The path of the directory that is read.
    fn shown(&self) -> PathBuf {
        self.origin.namespace_dir().join(&self.place)
    }

    /// Begins to copy the directory at which the reader is.
    fn begin(&mut self) -> rustix::io::Result<Copied> {
        let shown = self.shown();
        let directory = self.from.directory().try_clone_to_owned().map(File::from);
        let found = directory.and_then(|directory| directory.metadata());
        let found = found.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        let mut names = self.from.names().unwrap_or_else(|errno| {
            self.lacking.push(unreadable(&shown, errno));
            Vec::new()
        });
        names.sort_unstable();
        Ok(Copied { found, names: names.into_iter(), is_lost: false })
    }

    /// Makes a directory below, and goes there.
    fn directory(&mut self, name: &OsStr) -> Result<Copied, Stopped> {
        let (from, shown) = (self.shown().join(name), self.out.join(&self.place).join(name));
        let here = self.from.depth();
        let unread = |errno| Stopped::Here(unreadable(&from, errno));
        self.from.enter(name).map_err(unread)?;
        self.place.push(name);
        let begun = self.begin().map_err(|errno| {
            self.place.pop();
            // What it is that cannot be looked at may hide what is above it, too.
            match self.from.leave_to(here) {
                Ok(()) => unread(errno),
                Err(errno) => Stopped::Lost(unreadable(&self.shown(), errno)),
            }
        })?;
        let made = make_directory(&self.to.directory(), name, &shown);
        let entered = made.and_then(|_| self.to.enter(name).map_err(at(&shown, "find")));
        entered.map(|()| begun).map_err(Stopped::Everywhere)
    }

    /// Copies anything but a directory.
    fn entry(&mut self, from: &TreeEntry, name: &OsStr) -> Result<(), Stopped> {
        let (dir, place) = (self.to.directory(), self.place.join(name));
        let shown = self.out.join(&place);
        let copied = self.linked.get(&from.found.ino()).filter(|_| from.found.nlink() > 1);
        if let Some(first) = copied {
            let link = || {
                let (above, first) = beneath::parent(self.top.as_fd(), first)?;
                linkat(&above, first, dir, name, AtFlags::empty())
            };
            return link().map_err(at(&shown, "link")).map_err(Stopped::Everywhere);
        }
        let made = if from.found.is_file() {
            let copied = copy_file(self.origin, from, (&dir, name, &shown), self.progress);
            copied.inspect_err(|stopped| {
                if let Stopped::Here(_) = stopped {
                    let _ = unlinkat(dir, name, AtFlags::empty());
                }
            })?
        } else if from.found.is_symlink() {
            let target = readlinkat(&from.fd, "", Vec::new());
            let target = target.map_err(at(&from.shown, "read the link")).map_err(Stopped::Here)?;
            let made = symlinkat(target, dir, name).map_err(at(&shown, "make the link"));
            made.and_then(|()| open_any(&dir, name, &shown)).map_err(Stopped::Everywhere)?
        } else {
            let made = make_special(&from.found, &dir, name);
            let made = made.map_err(at(&shown, "make the special file"));
            made.and_then(|()| open_any(&dir, name, &shown)).map_err(Stopped::Everywhere)?
        };
        if from.found.nlink() > 1 {
            self.linked.insert(from.found.ino(), place);
        }
        let copied = copy_attributes(from, &made, &shown, &mut self.lacking);
        copied.map_err(Stopped::Everywhere)
    }
}

fn open_any(dir: &impl AsFd, name: &OsStr, shown: &Path) -> Result<OwnedFd> {
    openat(dir, name, ANY, Mode::empty()).map_err(at(shown, "find"))
}

/// Copies the data of a file to the new file `name` in `dir`, which only we may open.
fn copy_file(
    origin: &Origin,
    from: &TreeEntry,
    (dir, name, shown): (&impl AsFd, &OsStr, &Path),
    progress: Progress<'_>,
) -> Result<OwnedFd, Stopped> {
    let namespace_file = File::from(from.open().map_err(Stopped::Here)?);
    let here = |what| move |error| Stopped::Here(Error::at(&from.shown, what)(error));
    let data = from.open_data(origin, libc::O_RDONLY);
    let data = data.map_err(here("open the data"))?;
    let len = namespace_file.metadata().map_err(here("stat"))?.len();
    let everywhere = |what| move |error| Stopped::Everywhere(Error::at(shown, what)(error));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let out = openat(dir, name, flags, Mode::RUSR | Mode::WUSR);
    let out = File::from(out.map_err(io::Error::from).map_err(everywhere("create"))?);
    out.set_len(len).map_err(|error| match error.raw_os_error() {
        // The owner of a file sets its size as it pleases.
        Some(libc::EFBIG) => here("copy a file of its size")(error),
        _ => everywhere("set the size")(error),
    })?;
    let mut unwritten = None;
    let mut put = |offset, bytes: &[u8]| {
        out.write_all_at(bytes, offset).map_err(|error| {
            unwritten = Some(error);
            io::ErrorKind::Interrupted.into()
        })
    };
    let copied = copy_data(&data, len, &mut put, progress);
    unwritten.map_or(Ok(()), Err).map_err(everywhere("copy the data"))?;
    copied.map_err(here("read the data"))?;
    out.sync_all().map_err(everywhere("sync"))?;
    Ok(out.into())
}

fn make_special(found: &Metadata, dir: &impl AsFd, name: &OsStr) -> rustix::io::Result<()> {
    let kind = found.file_type();
    let kind = if kind.is_fifo() {
        FileType::Fifo
    } else if kind.is_socket() {
        FileType::Socket
    } else if kind.is_block_device() {
        FileType::BlockDevice
    } else {
        FileType::CharacterDevice
    };
    let private = Mode::RUSR | Mode::WUSR;
    mknodat(dir, name, kind, private, found.rdev())
}
