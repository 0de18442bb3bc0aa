//! Changes names: create, link, unlink, rename. Nodes that lose a name get their descriptor first.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, linkat, mkdirat, mknodat, openat,
    renameat_with, symlinkat, unlinkat,
};
use rustix::io::Errno;

use super::act_as::ActAs;
use super::{Namespace, Node, proc_path, statx};
use crate::{Make, Maker, Stat};
use halocline_os::error::Result;
use halocline_os::rename_new::rename_new;

/// The inode to which a removed name referred.
#[derive(Debug, Clone)]
pub struct Removed {
    /// Device and inode number.
    pub key: (u64, u64),
    /// Whether that was the inode's last name.
    pub last: bool,
    /// The node, if it is live; it stays usable.
    pub node: Option<Node>,
    /// Attributes just before the removal.
    pub stat: Stat,
    /// The live node's descriptor, kept until the node itself holds it.
    fd: Option<Arc<OwnedFd>>,
    /// What the name referred to when it was examined.
    seen: Arc<OwnedFd>,
}

impl Removed {
    /// An `O_PATH` descriptor of what the name referred to.
    pub fn descriptor(&self) -> &OwnedFd {
        &self.seen
    }
}

/// New inodes, which belong to the caller.
impl Namespace {
    /// Creates a directory, symbolic link or special file that belongs to the caller.
    pub fn make(
        &self,
        (parent, name): (&Node, &OsStr),
        what: Make<'_>,
        by: Maker,
    ) -> Result<(Node, Stat)> {
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
        (parent, name): (&Node, &OsStr),
        mode: u32,
        flags: i32,
        by: Maker,
    ) -> Result<(Node, Stat, File)> {
        self.refuse_hidden(parent, name, Errno::PERM)?;
        let dir = self.descriptor(parent)?;
        let flags = OFlags::from_bits_retain((flags & !libc::O_DIRECT).cast_unsigned());
        let always = OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY;
        let acting = ActAs::new(by)?;
        let file = openat(&dir, name, flags | always, Mode::from_raw_mode(mode & 0o7777))?;
        drop(acting);
        let stat = statx::stat_descriptor(file.as_fd())?;
        let node = self.nodes.intern(&stat, parent, name);
        Ok((node, stat, File::from(file)))
    }
}

/// Names of inodes that are there.
impl Namespace {
    /// Creates a hard link.
    pub fn link(&self, node: &Node, parent: &Node, name: &OsStr) -> Result<Stat> {
        self.refuse_hidden(parent, name, Errno::PERM)?;
        let fd = self.descriptor(node)?;
        let dir = self.descriptor(parent)?;
        linkat(CWD, proc_path(&fd), &dir, name, AtFlags::SYMLINK_FOLLOW)?;
        node.add_link(parent, name, false);
        self.stat(node)
    }

    /// Removes a name of anything but a directory.
    pub fn unlink(&self, parent: &Node, name: &OsStr) -> Result<Removed> {
        self.remove(parent, name, AtFlags::empty())
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, parent: &Node, name: &OsStr) -> Result<Removed> {
        self.remove(parent, name, AtFlags::REMOVEDIR)
    }

    /// Removes a name for which [`Namespace::before_removal`] was just called, by moving its inode to another name, in
    /// a directory outside the visible tree on the same file system.
    pub fn take_out(
        &self,
        mut seen: Removed,
        (parent, name): (&Node, &OsStr),
        to: (BorrowedFd<'_>, &OsStr),
    ) -> Result<Removed> {
        let dir = self.descriptor(parent)?;
        rename_new(&dir, name, to.0, to.1)?;
        self.forget_name(&mut seen, parent, name);
        Ok(seen)
    }

    fn remove(&self, parent: &Node, name: &OsStr, how: AtFlags) -> Result<Removed> {
        let removed = self.before_removal(parent, name)?;
        self.remove_seen(removed, parent, name, how)
    }

    /// Removes a name for which [`Namespace::before_removal`] was just called.
    pub fn unlink_seen(&self, seen: Removed, parent: &Node, name: &OsStr) -> Result<Removed> {
        self.remove_seen(seen, parent, name, AtFlags::empty())
    }

    fn remove_seen(
        &self,
        mut removed: Removed,
        parent: &Node,
        name: &OsStr,
        how: AtFlags,
    ) -> Result<Removed> {
        let dir = self.descriptor(parent)?;
        unlinkat(&dir, name, how)?;
        self.forget_name(&mut removed, parent, name);
        self.count_names(&mut removed);
        Ok(removed)
    }

    /// Renames; `flags` are those of `renameat2(2)`. Returns what the new name referred to before, if it was replaced.
    pub fn rename(
        &self,
        from: (&Node, &OsStr),
        to: (&Node, &OsStr),
        flags: u32,
    ) -> Result<Option<Removed>> {
        self.refuse_hidden(from.0, from.1, Errno::NOENT)?;
        self.refuse_hidden(to.0, to.1, Errno::PERM)?;
        let (from_dir, to_dir) = (self.descriptor(from.0)?, self.descriptor(to.0)?);
        let exchange = flags & libc::RENAME_EXCHANGE != 0;
        let moved = statx::stat_at_as(from_dir.as_fd(), from.1, self.freshness)?;
        let mut target = self.before_removal(to.0, to.1).ok();
        let flags = RenameFlags::from_bits_retain(flags);
        renameat_with(&from_dir, from.1, &to_dir, to.1, flags)?;
        if target.as_ref().is_some_and(|target| target.key == moved.key()) {
            // Both are names of one file: rename(2) does nothing.
            return Ok(None);
        }
        if let Some(target) = &mut target {
            if exchange && let Some(node) = &target.node {
                node.add_link(from.0, from.1, is_directory(&target.stat));
            }
            self.forget_name(target, to.0, to.1);
            if !exchange {
                self.count_names(target);
            }
        }
        if let Some(node) = self.find(moved.key()) {
            node.add_link(to.0, to.1, is_directory(&moved));
            node.remove_link(from.0, from.1);
        }
        Ok(target.filter(|_| !exchange))
    }

    /// Atomically puts what `from` names (in a directory outside the visible tree, on the same file system) in place of
    /// `name`, if that still is the inode `expected` (`ESTALE` otherwise). The caller must keep others from changing
    /// the name meanwhile.
    pub fn replace(
        &self,
        from: (BorrowedFd<'_>, &OsStr),
        to: (&Node, &OsStr),
        expected: (u64, u64),
    ) -> Result<(Node, Stat)> {
        let dir = self.descriptor(to.0)?;
        let mut old = self.before_removal(to.0, to.1)?;
        if old.key != expected {
            return Err(Errno::STALE.into());
        }
        renameat_with(from.0, from.1, &dir, to.1, RenameFlags::empty())?;
        self.forget_name(&mut old, to.0, to.1);
        self.lookup(to.0, to.1)
    }

    /// Examines what a name refers to, and makes sure that its live node, if any, keeps a descriptor when the name is
    /// removed.
    pub fn before_removal(&self, parent: &Node, name: &OsStr) -> Result<Removed> {
        self.refuse_hidden(parent, name, Errno::NOENT)?;
        let dir = self.descriptor(parent)?;
        // Opened before it is examined, so that the descriptor is of what was examined.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let seen = Arc::new(openat(&dir, name, flags, Mode::empty())?);
        let stat = statx::stat_descriptor(&*seen)?;
        let node = self.find(stat.key());
        let fd = node.as_ref().map(|node| {
            node.add_link(parent, name, is_directory(&stat));
            node.0.cached().unwrap_or_else(|| seen.clone())
        });
        let last = is_directory(&stat) || stat.raw.st_nlink <= 1;
        Ok(Removed { key: stat.key(), last, node, stat, fd, seen })
    }

    /// Looks, after a name was removed, whether it was the last one: others may have given the inode another name since
    /// it was examined.
    fn count_names(&self, removed: &mut Removed) {
        if is_directory(&removed.stat) {
            return;
        }
        // A network file system may no longer answer for a file without names: then it is as it was before.
        if let Ok(now) = statx::stat_descriptor_as(removed.seen.as_fd(), self.freshness) {
            removed.last = now.raw.st_nlink == 0;
        }
    }

    /// Removes the name from the node; if it was the last one, the descriptor stays with the node.
    fn forget_name(&self, removed: &mut Removed, parent: &Node, name: &OsStr) {
        if let (Some(node), Some(fd)) = (&removed.node, removed.fd.take()) {
            node.remove_link(parent, name);
            if node.link().is_none() {
                self.nodes.descriptors.keep(node, fd);
            }
        }
    }
}

fn is_directory(stat: &Stat) -> bool {
    stat.kind() == libc::S_IFDIR
}
