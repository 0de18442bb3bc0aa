//! An existing directory tree, accessed by descriptors: everything of the origin except its data.
//!
//! A [`Namespace`] holds its root open, so that the tree stays reachable when something is mounted over it. A [`Vnode`]
//! is one inode of the tree; it knows the names under which it was seen and is found again through them, so that it
//! needs no descriptor of its own: directories have more entries than a process may have descriptors.
//! [`vnode::descriptors`] keeps a bounded number of them.
//!
//! What must hold:
//! - A vnode never stands for another inode: a descriptor that is opened by name is compared with the vnode's device and
//!   inode number before it is used (`ESTALE` if they differ).
//! - A vnode that lost its last known name through us, or is pinned by an open handle, keeps its descriptor: it can
//!   always be read and changed until the last clone is dropped.
//! - New inodes belong to the caller; mode, set-group-id directory, umask and default ACL are applied by the file
//!   system below, not by us ([`act_as`]).

mod act_as;
pub mod contents;
mod directory;
mod privileges;
mod removed;
pub mod statx;
mod sticky;
mod vnode;
pub mod xattr;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, linkat, mkdirat, mknodat, openat,
    readlinkat, renameat_with, symlinkat, unlinkat,
};
use rustix::io::Errno;

use crate::{Caller, Make, Maker, SetAttr, Stat};
use halocline_os::error::{Error, Result};
use halocline_os::leased_files::{self, open_at};
use halocline_os::open_files::OpenFiles;
use halocline_os::rename_new::rename_new;

pub use directory::{DirEntry, Directory};
pub use privileges::has_privileges;
pub use removed::Removed;
use statx::Freshness;
pub use statx::stat_descriptor;
pub use statx::stat_of;
pub use vnode::{Pin, Vnode};

use act_as::ActAs;
use vnode::VnodeTable;
use vnode::descriptors::Descriptors;

/// An existing directory tree, opened once and accessed by descriptors from then on.
#[derive(Debug, Clone)]
pub struct Namespace {
    root: Vnode,
    vnodes: Arc<VnodeTable>,
    /// A name in the root that is not shown and cannot be created.
    hidden: Option<&'static str>,
    freshness: Freshness,
}

impl Namespace {
    /// Opens the tree below `dir`. Open it before mounting anything over `dir`.
    ///
    /// Raises the soft limit of open descriptors to the hard one.
    pub fn open(dir: &Path) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, dir, flags, Mode::empty())
            .map_err(|errno| Error::at(dir, "open the directory")(errno.into()))?;
        Self::of(root)
    }

    /// The tree below an open directory, whatever is at its path by now.
    pub fn of(root: OwnedFd) -> Result<Self> {
        if !Path::new("/proc/self/fd").exists() {
            return Err(Error::invalid(
                "/proc is not mounted",
                "mount it: files are reopened through /proc/self/fd",
            ));
        }
        let stat = stat_descriptor(&root)?;
        let share = OpenFiles::of_process()?;
        let vnodes =
            Arc::new(VnodeTable::new(Descriptors::with_bounds(share.vnodes, share.pinned)));
        let root = vnodes.root(&stat, root);
        Ok(Self { root, vnodes, hidden: None, freshness: Freshness::Remembered })
    }

    /// The same without one name in the root: programs do not see it, and cannot create it.
    #[must_use]
    pub fn hiding(self, name: &'static str) -> Self {
        Self { hidden: Some(name), ..self }
    }

    /// The same for a tree that others change, who are to be seen at once: a network file system asks its server for
    /// each file's attributes.
    #[must_use]
    pub fn shared(self) -> Self {
        Self { freshness: Freshness::Now, ..self }
    }

    /// # Errors
    /// `refused` where the name is hidden.
    fn refuse_hidden(&self, parent: &Vnode, name: &OsStr, refused: Errno) -> Result<()> {
        match self.hidden {
            Some(hidden) if name == hidden && parent.key() == self.root.key() => {
                Err(refused.into())
            }
            _ => Ok(()),
        }
    }

    /// The root directory.
    pub fn root(&self) -> Vnode {
        self.root.clone()
    }

    /// Looks `name` up in `parent`.
    pub fn lookup(&self, parent: &Vnode, name: &OsStr) -> Result<(Vnode, Stat)> {
        self.refuse_hidden(parent, name, Errno::NOENT)?;
        let fd = self.descriptor(parent)?;
        let stat = statx::stat_at_as(fd.as_fd(), name, self.freshness)?;
        let vnode = self.vnodes.intern(&stat, parent, name);
        Ok((vnode, stat))
    }

    /// The live vnode of an inode, if there is one.
    pub fn find(&self, key: (u64, u64)) -> Option<Vnode> {
        self.vnodes.find(key)
    }

    /// Opens a regular file again. `flags` are those of `open(2)`; `O_CREAT`, `O_EXCL`, `O_NOFOLLOW` and `O_DIRECT`
    /// (buffers here are not aligned) are dropped.
    ///
    /// # Errors
    /// [`Error::Leased`] if a program's lease would have to be waited for.
    pub fn open_file(&self, vnode: &Vnode, flags: i32) -> Result<File> {
        reopen(&*self.descriptor(vnode)?, flags)
    }

    /// Opens a regular file by one of its known names if that still refers to the file, and through its descriptor
    /// otherwise: the name saves a lookup through `/proc`. `flags` as in [`Namespace::open_file`], but the file is not
    /// truncated.
    pub fn open_named(&self, vnode: &Vnode, flags: i32) -> Result<File> {
        let flags = flags & !libc::O_TRUNC;
        let dir =
            vnode.link().and_then(|link| Some((self.descriptor(&link.parent).ok()?, link.name)));
        // Does not block on anything else that may have the name by now.
        let opened = dir.and_then(|(dir, name)| {
            let flags = open_flags(flags) | OFlags::NOFOLLOW;
            open_at(&*dir, &*name, flags, Mode::empty()).ok()
        });
        match opened {
            Some(file) if stat_descriptor(&file)?.key() == vnode.key() => Ok(File::from(file)),
            _ => self.open_file(vnode, flags),
        }
    }

    /// Keeps the vnode's descriptor open while the pin lives, as an open handle must: the vnode then survives even its
    /// removal by others. Once pins use up their share of the descriptor limit, a pin holds nothing, and only removals
    /// through us are survived.
    pub fn pin(&self, vnode: &Vnode) -> Result<Pin> {
        let _open = self.descriptor(vnode)?;
        Ok(self.vnodes.descriptors.pin(vnode))
    }

    /// Opens a directory for reading its entries.
    pub fn open_dir(&self, vnode: &Vnode) -> Result<Directory> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = self.descriptor(vnode)?;
        let hidden = self.hidden.filter(|_| vnode.key() == self.root.key());
        let fd = openat(CWD, proc_path(&fd), flags, Mode::empty())?;
        Ok(Directory::new(fd, vnode.clone(), hidden))
    }

    /// All entries of a directory but `.` and `..`.
    pub fn entries(&self, dir: &Vnode) -> Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        self.open_dir(dir)?.read(0, &mut |entry| {
            if entry.name != "." && entry.name != ".." {
                entries.push(entry);
            }
            true
        })?;
        Ok(entries)
    }

    /// Totals of the file system the vnode is on.
    pub fn statfs(&self, vnode: &Vnode) -> Result<libc::statvfs64> {
        statx::statfs(self.descriptor(vnode)?.as_fd())
    }

    /// Best known path of the vnode relative to the root; empty for the root itself.
    pub fn path_of(&self, vnode: &Vnode) -> PathBuf {
        vnode.path()
    }

    /// An `O_PATH` descriptor of the vnode, from the bounded cache or opened by its known names.
    pub fn descriptor(&self, vnode: &Vnode) -> Result<Arc<OwnedFd>> {
        self.vnodes.descriptors.of(vnode)
    }
}

/// Attributes, also extended ones.
impl Namespace {
    /// Attributes: through the vnode's descriptor if it is open, otherwise by a name that still refers to the vnode,
    /// which then needs no descriptor.
    pub fn stat(&self, vnode: &Vnode) -> Result<Stat> {
        if let Some(fd) = vnode.0.cached() {
            return statx::stat_descriptor_as(fd.as_fd(), self.freshness);
        }
        if let Some(link) = vnode.link()
            && let Ok(stat) = statx::stat_at_as(
                self.descriptor(&link.parent)?.as_fd(),
                &link.name,
                self.freshness,
            )
            && stat.key() == vnode.key()
        {
            return Ok(stat);
        }
        statx::stat_descriptor_as(self.descriptor(vnode)?.as_fd(), self.freshness)
    }

    /// Id of the mount that the vnode is on, unique while that mount exists. If the kernel does not report it (before
    /// Linux 5.8), the vnode's device.
    pub fn mount_of(&self, vnode: &Vnode) -> Result<u64> {
        match vnode.link().filter(|_| vnode.0.cached().is_none()) {
            Some(link) => statx::mount_at(self.descriptor(&link.parent)?.as_fd(), &link.name),
            None => statx::mount_of_descriptor(&*self.descriptor(vnode)?),
        }
    }

    /// Changes owner, mode, size and times, in an order in which none undoes another.
    pub fn set_attr(&self, vnode: &Vnode, change: &SetAttr) -> Result<Stat> {
        statx::set_attr_on(&*self.descriptor(vnode)?, change)
    }

    /// Target of a symbolic link.
    pub fn read_link(&self, vnode: &Vnode) -> Result<OsString> {
        let target = readlinkat(&*self.descriptor(vnode)?, "", Vec::new())?;
        Ok(OsString::from_vec(target.into_bytes()))
    }

    /// Value of an extended attribute.
    pub fn get_xattr(&self, vnode: &Vnode, name: &OsStr) -> Result<Vec<u8>> {
        xattr::get_on(&*self.descriptor(vnode)?, name)
    }

    /// NUL-terminated names of the extended attributes.
    pub fn list_xattr(&self, vnode: &Vnode) -> Result<Vec<u8>> {
        xattr::list_on(&*self.descriptor(vnode)?)
    }

    /// Sets an extended attribute; `flags` are those of `setxattr(2)`.
    pub fn set_xattr(&self, vnode: &Vnode, name: &OsStr, value: &[u8], flags: i32) -> Result<()> {
        xattr::set_on(&*self.descriptor(vnode)?, name, value, flags)
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, vnode: &Vnode, name: &OsStr) -> Result<()> {
        xattr::remove_on(&*self.descriptor(vnode)?, name)
    }
}

/// New inodes, which belong to the caller.
impl Namespace {
    /// Creates a directory, symbolic link or special file that belongs to the caller.
    pub fn make(
        &self,
        (parent, name): (&Vnode, &OsStr),
        what: Make<'_>,
        by: Maker,
    ) -> Result<(Vnode, Stat)> {
        self.refuse_hidden(parent, name, Errno::PERM)?;
        let dir = self.descriptor(parent)?;
        let acting = ActAs::new(by)?;
        match what {
            Make::Directory(mode) => mkdirat(&dir, name, Mode::from_raw_mode(mode & 0o7777))?,
            Make::Symlink(target) => symlinkat(target, &dir, name)?,
            Make::Special(mode, device) => mknodat(
                &dir,
                name,
                FileType::from_raw_mode(mode),
                Mode::from_raw_mode(mode & 0o7777),
                device,
            )?,
        }
        drop(acting);
        self.lookup(parent, name)
    }

    /// Creates a regular file that belongs to the caller, and opens it with the `flags` of `open(2)` (`O_CREAT` is
    /// added, `O_DIRECT` dropped).
    pub fn create(
        &self,
        (parent, name): (&Vnode, &OsStr),
        mode: u32,
        flags: i32,
        by: Maker,
    ) -> Result<(Vnode, Stat, File)> {
        self.refuse_hidden(parent, name, Errno::PERM)?;
        let dir = self.descriptor(parent)?;
        let flags = OFlags::from_bits_retain((flags & !libc::O_DIRECT).cast_unsigned());
        let always = OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY;
        let acting = ActAs::new(by)?;
        // It may be there already.
        let file = open_at(&dir, name, flags | always, Mode::from_raw_mode(mode & 0o7777))
            .map_err(leased_files::failed)?;
        drop(acting);
        let stat = statx::stat_descriptor(file.as_fd())?;
        let vnode = self.vnodes.intern(&stat, parent, name);
        Ok((vnode, stat, File::from(file)))
    }
}

/// Names of inodes that are there. Nodes that lose a name get their descriptor first.
impl Namespace {
    /// Creates a hard link.
    pub fn link(&self, vnode: &Vnode, parent: &Vnode, name: &OsStr) -> Result<Stat> {
        self.refuse_hidden(parent, name, Errno::PERM)?;
        let fd = self.descriptor(vnode)?;
        let dir = self.descriptor(parent)?;
        linkat(CWD, proc_path(&fd), &dir, name, AtFlags::SYMLINK_FOLLOW)?;
        vnode.add_link(parent, name, false);
        self.stat(vnode)
    }

    /// Removes a name of anything but a directory. In a directory with the sticky bit, only if `by` may remove what the
    /// name leads to at that moment; `None` is this process.
    pub fn unlink(&self, parent: &Vnode, name: &OsStr, by: Option<Caller>) -> Result<Removed> {
        self.remove((parent, name), AtFlags::empty(), by)
    }

    /// Removes an empty directory; `by` as in [`Namespace::unlink`].
    pub fn remove_dir(&self, parent: &Vnode, name: &OsStr, by: Option<Caller>) -> Result<Removed> {
        self.remove((parent, name), AtFlags::REMOVEDIR, by)
    }

    /// Removes a name for which [`Namespace::before_removal`] was just called, by moving its inode to another name, in
    /// a directory outside the visible tree on the same file system.
    pub fn take_out(
        &self,
        mut seen: Removed,
        (parent, name): (&Vnode, &OsStr),
        to: (BorrowedFd<'_>, &OsStr),
    ) -> Result<Removed> {
        let dir = self.descriptor(parent)?;
        rename_new(&dir, name, to.0, to.1)?;
        seen.forget_name(&self.vnodes, parent, name);
        Ok(seen)
    }

    fn remove(&self, at: (&Vnode, &OsStr), how: AtFlags, by: Option<Caller>) -> Result<Removed> {
        let removed = self.before_removal(at.0, at.1)?;
        self.remove_seen(removed, at, how, by)
    }

    /// Removes a name for which [`Namespace::before_removal`] was just called.
    pub fn unlink_seen(&self, seen: Removed, parent: &Vnode, name: &OsStr) -> Result<Removed> {
        self.remove_seen(seen, (parent, name), AtFlags::empty(), None)
    }

    fn remove_seen(
        &self,
        mut removed: Removed,
        (parent, name): (&Vnode, &OsStr),
        how: AtFlags,
        by: Option<Caller>,
    ) -> Result<Removed> {
        let dir = self.descriptor(parent)?;
        sticky::take_away(by, &[(&dir, name)], || unlinkat(&dir, name, how))?;
        removed.forget_name(&self.vnodes, parent, name);
        removed.count_names(self.freshness);
        Ok(removed)
    }

    /// Renames; `flags` are those of `renameat2(2)`, and `by` is as in [`Namespace::unlink`]. Returns what the new name
    /// referred to before, if it was replaced.
    pub fn rename(
        &self,
        from: (&Vnode, &OsStr),
        to: (&Vnode, &OsStr),
        flags: u32,
        by: Option<Caller>,
    ) -> Result<Option<Removed>> {
        self.refuse_hidden(from.0, from.1, Errno::NOENT)?;
        self.refuse_hidden(to.0, to.1, Errno::PERM)?;
        let (from_dir, to_dir) = (self.descriptor(from.0)?, self.descriptor(to.0)?);
        let exchange = flags & libc::RENAME_EXCHANGE != 0;
        let moved = statx::stat_at_as(from_dir.as_fd(), from.1, self.freshness)?;
        let mut target = self.before_removal(to.0, to.1).ok();
        let flags = RenameFlags::from_bits_retain(flags);
        let names = [(&*from_dir, from.1), (&*to_dir, to.1)];
        let rename = || renameat_with(&from_dir, from.1, &to_dir, to.1, flags);
        sticky::take_away(by, &names, rename)?;
        if target.as_ref().is_some_and(|target| target.key == moved.key()) {
            // Both are names of one file: rename(2) does nothing.
            return Ok(None);
        }
        if let Some(target) = &mut target {
            if exchange && let Some(vnode) = &target.vnode {
                vnode.add_link(from.0, from.1, target.is_directory());
            }
            target.forget_name(&self.vnodes, to.0, to.1);
            if !exchange {
                target.count_names(self.freshness);
            }
        }
        if let Some(vnode) = self.find(moved.key()) {
            vnode.add_link(to.0, to.1, removed::is_directory(&moved));
            vnode.remove_link(from.0, from.1);
        }
        Ok(target.filter(|_| !exchange))
    }

    /// Atomically puts what `from` names (in a directory outside the visible tree, on the same file system) in place of
    /// `name`, if that still is the inode `expected` (`ESTALE` otherwise). The caller must keep others from changing
    /// the name meanwhile.
    pub fn replace(
        &self,
        from: (BorrowedFd<'_>, &OsStr),
        to: (&Vnode, &OsStr),
        expected: (u64, u64),
    ) -> Result<(Vnode, Stat)> {
        let dir = self.descriptor(to.0)?;
        let mut old = self.before_removal(to.0, to.1)?;
        if old.key != expected {
            return Err(Errno::STALE.into());
        }
        renameat_with(from.0, from.1, &dir, to.1, RenameFlags::empty())?;
        old.forget_name(&self.vnodes, to.0, to.1);
        self.lookup(to.0, to.1)
    }

    /// Examines what a name refers to, and makes sure that its live vnode, if any, keeps a descriptor when the name is
    /// removed.
    pub fn before_removal(&self, parent: &Vnode, name: &OsStr) -> Result<Removed> {
        self.refuse_hidden(parent, name, Errno::NOENT)?;
        Removed::examine(&self.vnodes, &*self.descriptor(parent)?, (parent, name))
    }
}

/// Opens the regular file of a descriptor again; `flags` and errors as in [`Namespace::open_file`].
pub fn reopen(fd: &impl AsFd, flags: i32) -> Result<File> {
    leased_files::reopen(&proc_path(fd), open_flags(flags)).map(File::from)
}

/// The flags for opening an existing file for a program that gave `flags`.
fn open_flags(flags: i32) -> OFlags {
    let flags = flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_DIRECT);
    OFlags::from_bits_retain(flags.cast_unsigned()) | OFlags::CLOEXEC | OFlags::NOCTTY
}

/// The path through which the kernel reopens a descriptor: works for every kind of file and needs no search permission
/// on directories.
pub fn proc_path(fd: &impl AsFd) -> PathBuf {
    use std::os::fd::AsRawFd;
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()))
}

/// Flags of a `statx` or `*at` call on the descriptor itself.
const ON_DESCRIPTOR: AtFlags = AtFlags::EMPTY_PATH;

#[cfg(test)]
mod tests;
