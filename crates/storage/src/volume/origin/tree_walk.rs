//! Entries in the tree of a striped origin, accessed by descriptors because others may change its names at any time.

use std::fs::{self, File, Metadata};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use halocline_os::beneath;
use halocline_os::error::{Error, Result};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;

use super::Origin;

/// A directory to be searched; not followed if it is a link.
pub(in crate::volume) const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);

/// A file to copy. Others may change names of the tree at any time, so everything is done to what was found first.
pub(in crate::volume) struct TreeEntry {
    /// An `O_PATH` descriptor, or a directory.
    pub(in crate::volume) fd: OwnedFd,
    pub(in crate::volume) found: Metadata,
    pub(in crate::volume) shown: PathBuf,
}

impl TreeEntry {
    pub(in crate::volume) fn of(fd: OwnedFd, shown: PathBuf) -> Result<Self> {
        // A link is opened itself.
        let found = File::from(fd.try_clone()?).metadata().map_err(Error::at(&shown, "stat"))?;
        Ok(Self { fd, found, shown })
    }

    /// Opens it for reading.
    pub(in crate::volume) fn open(&self) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        openat(CWD, by_descriptor(&self.fd), flags, Mode::empty()).map_err(at(&self.shown, "open"))
    }
}

/// The regular file at `relative`, its path below the mount. `or_else` is what else can be done where it is none.
pub(in crate::volume) fn file(
    origin: &Origin,
    relative: &Path,
    or_else: &str,
) -> Result<TreeEntry> {
    if relative.components().any(|part| !matches!(part, Component::Normal(_) | Component::CurDir)) {
        return Err(Error::invalid(
            format!("{}: not a path below the origin", relative.display()),
            "give its path from the mount point on, such as `dir/file`, without ..",
        ));
    }
    let shown = origin.namespace_dir().join(relative);
    let from = match beneath::open(tree(origin)?, relative, OFlags::PATH, Mode::empty()) {
        Err(Errno::LOOP) => None,
        other => Some(other.map_err(at(&shown, "find"))?),
    };
    let from = from.map(|from| TreeEntry::of(from, shown.clone())).transpose()?;
    from.filter(|from| from.found.is_file()).ok_or_else(|| {
        Error::invalid(
            format!("{}: not a regular file", shown.display()),
            format!("give a file below directories that are not links, or {or_else}"),
        )
    })
}

/// The root of a volume's tree.
pub(in crate::volume) fn tree(origin: &Origin) -> Result<OwnedFd> {
    let dir = origin.namespace_dir();
    openat(CWD, dir, DIRECTORY, Mode::empty()).map_err(at(dir, "open"))
}

/// A path to what a descriptor refers to, whatever its name is by now.
pub(in crate::volume) fn by_descriptor(fd: &impl AsFd) -> PathBuf {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()).into()
}

pub(in crate::volume) fn at(path: &Path, what: &'static str) -> impl FnOnce(Errno) -> Error {
    let path = path.to_owned();
    move |errno| Error::at(&path, what)(errno.into())
}

/// A regular file of a tree, under one of its names.
pub(super) struct FoundFile {
    /// Leads to it while it is looked at, however long its path is.
    pub(super) path: PathBuf,
    /// Its path, for people.
    pub(super) shown: PathBuf,
}

/// Limit of the bytes of a path in one system call; the system's own is 4096.
const STEP_BYTES_MAX: usize = 2048;

/// Calls `look` for each name of a regular file below `tree`. Programs and users can make directories whose paths are
/// longer than a system call takes, which must not keep others' files from being looked at.
pub(super) fn each_file(tree: &Path, look: &mut dyn FnMut(&FoundFile) -> Result<()>) -> Result<()> {
    let root = openat(CWD, tree, DIRECTORY, Mode::empty()).map_err(at(tree, "list"))?;
    let mut open = vec![PathBuf::new()];
    while let Some(below) = open.pop() {
        let shown = tree.join(&below);
        let dir = open_below(&root, &below).map_err(at(&shown, "list"))?;
        for entry in fs::read_dir(by_descriptor(&dir)).map_err(Error::at(&shown, "list"))? {
            let entry = entry.map_err(Error::at(&shown, "list"))?;
            let file = FoundFile { path: entry.path(), shown: shown.join(entry.file_name()) };
            let kind = entry.file_type().map_err(Error::at(&file.shown, "stat"))?;
            if kind.is_dir() {
                open.push(below.join(entry.file_name()));
            } else if kind.is_file() {
                look(&file)?;
            }
        }
    }
    Ok(())
}

/// Opens the directory at `below` in as many steps as its length takes.
fn open_below(root: &OwnedFd, below: &Path) -> rustix::io::Result<OwnedFd> {
    let mut step = PathBuf::new();
    let mut above = None;
    let go = |above: &Option<OwnedFd>, step: &Path| {
        let from = above.as_ref().unwrap_or(root);
        beneath::open(from, step, DIRECTORY, Mode::empty())
    };
    for name in below {
        if step.as_os_str().len() + name.len() > STEP_BYTES_MAX {
            above = Some(go(&above, &step)?);
            step.clear();
        }
        step.push(name);
    }
    go(&above, &step)
}
