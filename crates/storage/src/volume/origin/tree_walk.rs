//! Entries in the tree of a striped origin, accessed by descriptors because others may change its names at any time.

use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use halocline_os::beneath::{self, TreeCursor};
use halocline_os::error::{Error, Result};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, openat, statat};
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

/// Calls `look` for each name of a regular file below `tree`. Programs and users can make directories whose paths are
/// longer than a system call takes, which must not keep others' files from being looked at.
pub(super) fn each_file(tree: &Path, look: &mut dyn FnMut(&FoundFile) -> Result<()>) -> Result<()> {
    let root = openat(CWD, tree, DIRECTORY, Mode::empty()).map_err(at(tree, "list"))?;
    let mut cursor = TreeCursor::new(root).map_err(at(tree, "list"))?;
    let mut open = vec![(0, OsString::new())];
    // The path of the directory in which the cursor is.
    let mut shown = tree.to_owned();
    while let Some((depth, name)) = open.pop() {
        if let Some(above) = usize::checked_sub(depth, 1) {
            for _ in above..cursor.depth() {
                shown.pop();
            }
            shown.push(&name);
            let entered = cursor.leave_to(above).and_then(|()| cursor.enter(&name));
            entered.map_err(at(&shown, "list"))?;
        }
        for name in cursor.names().map_err(at(&shown, "list"))? {
            let found = match statat(cursor.directory(), &name, AtFlags::SYMLINK_NOFOLLOW) {
                // It was removed meanwhile.
                Err(Errno::NOENT) => continue,
                found => found.map_err(at(&shown.join(&name), "stat"))?,
            };
            match FileType::from_raw_mode(found.st_mode) {
                FileType::Directory => open.push((depth + 1, name)),
                FileType::RegularFile => {
                    let path = by_descriptor(&cursor.directory()).join(&name);
                    look(&FoundFile { path, shown: shown.join(&name) })?;
                }
                _ => {}
            }
        }
    }
    Ok(())
}
