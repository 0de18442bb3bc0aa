//! Places of files and directories on the disks: this node's own SSD, the shared disk, other nodes' SSDs.
//!
//! The bytes of a file are one ordinary file, at the [`Location`] that its attributes in the store name; directories are
//! on the shared disk, and on SSDs as far as they are needed. All of them carry their numbers in extended attributes
//! (`docs/decisions/0047-shared-tier-on-disk.md`). What must hold:
//! - Nothing is opened, changed or removed unless it has the number that the caller asks for, and nothing is reached
//!   through a symbolic link: others may own directories and files on these disks.
//! - Nothing gets a name in a tree before it has its number and its owner.

pub(crate) mod adoption_mark;
pub(crate) mod copies;
mod copy_sizes;
pub(crate) mod descriptor_path;
mod directories;
pub(crate) mod directory_times;
mod found_directory;
mod found_file;
mod listed_names;
pub(crate) mod missed;
pub(crate) mod moving;
pub(crate) mod own_xattrs;
pub(crate) mod peers;
pub(crate) mod refused_changes;
pub(crate) mod room;
pub(crate) mod shared_disk;
pub(crate) mod spare_room;
pub(crate) mod ssd_directories;
pub(crate) mod steps;
pub(crate) mod tree;
pub(crate) mod users_xattrs;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use halocline_cluster::names::attributes::{Location, RelativePath};
use halocline_model::namespace::{Name, ROOT};
use halocline_os::clock::Clock;
use halocline_os::error::{Error, Result};
use halocline_os::leased_files::reopen;
use halocline_vfs::{SetAttr, Stat, namespace::stat_descriptor};
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

use descriptor_path::proc_path;
pub(crate) use directories::{Directories, DirectoryStep};
use found_file::FoundFile;
use listed_names::ListedNames;
pub(crate) use moving::FileMove;
use moving::clear_move_xattrs;
use own_xattrs::owner_permissions::{permitted, set_attr};
use peers::Peers;
pub(crate) use shared_disk::RenameNotes;
use shared_disk::SharedDisk;
use ssd_directories::TOO_DEEP;
use steps::Steps;
pub(crate) use steps::Watcher;
use tree::{FoundDirectory, Owner, Quota, Tree};
use users_xattrs::{remove_xattr, set_xattr};

/// The tier of SSDs.
pub(crate) const SSD: u8 = 0;
/// The tier of the shared disk.
pub(crate) const SHARED: u8 = 1;

/// All disks as one node sees them; shared by threads.
#[derive(Debug)]
pub(crate) struct Places {
    node: String,
    ssd: Tree,
    shared: SharedDisk,
    peers: Peers,
}

impl Places {
    /// Opens the tiers of a node: `root/ssd` is its own, `root/hdd` is the shared disk. Other nodes' SSDs are reached
    /// by `peers`, a path with `{node}` in place of a node's name. `watcher` is told of each step, for tests.
    ///
    /// # Errors
    /// If a directory is missing, keeps no extended attributes, or is that of another node or tier.
    pub(crate) fn open(
        root: &Path,
        node: &str,
        peers: Option<&str>,
        directories: Arc<dyn Directories>,
        clock: &Clock,
        watcher: Option<Arc<dyn Watcher>>,
    ) -> Result<Self> {
        peers::check_node(node)?;
        let steps = Steps::new(watcher);
        let [ssd, shared] = [root.join("ssd"), root.join("hdd")];
        let (ssd, shared) = (Tree::open(&ssd, steps.clone())?, Tree::open(&shared, steps.clone())?);
        ssd.check_attributes()?;
        shared.check_attributes()?;
        let tier = peers::tier_id(&shared.private)?;
        let was_claimed = peers::is_claimed((&ssd.private, &ssd.path), node, &tier)?;
        peers::claim(&ssd, node, &tier)?;
        peers::note_mounted(&shared.private, node, was_claimed)?;
        let peers = Peers::new(peers, tier, steps)?;
        let shared = SharedDisk::new(shared, node, directories, clock)?;
        Ok(Self { node: node.to_owned(), ssd, shared, peers })
    }

    /// This node's name.
    pub(crate) fn node(&self) -> &str {
        &self.node
    }

    pub(crate) fn ssd(&self) -> &Tree {
        &self.ssd
    }

    pub(crate) fn shared(&self) -> &SharedDisk {
        &self.shared
    }

    /// The names of all nodes that have ever mounted the tier.
    ///
    /// # Errors
    /// If the shared disk cannot be read.
    pub(crate) fn nodes(&self) -> Result<Vec<String>> {
        peers::nodes(&self.shared.tree.private)
    }

    /// Totals of the file system of the SSD or the shared disk.
    ///
    /// # Errors
    /// Those of `statfs(2)`.
    pub(crate) fn totals(&self, tier: u8) -> Result<libc::statvfs64> {
        if tier == SSD { self.ssd.totals() } else { self.shared.tree.totals() }
    }

    /// Whether the SSD or the shared disk can be read only now: its file system was mounted so, or has met an error.
    pub(crate) fn is_read_only(&self, tier: u8) -> bool {
        let tree = if tier == SSD { &self.ssd } else { &self.shared.tree };
        // Its flags do not tell of an error (ext4 since Linux 6.15).
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        openat(&tree.tmp, ".", flags, Mode::RUSR).is_err_and(|errno| errno == Errno::ROFS)
    }

    /// Bytes that can still be written there.
    pub(crate) fn free_bytes(&self, tier: u8) -> Result<u64> {
        self.totals(tier).map(|all| all.f_bavail.saturating_mul(all.f_frsize))
    }

    /// Whether the own SSD's file system shows by leases who else has a file open.
    #[must_use]
    pub(crate) fn grants_leases(&self) -> bool {
        self.ssd.grants_leases()
    }

    /// Runs something on the tree of a place, with the directory at which the place's path begins.
    fn on<T>(
        &self,
        place: &Location,
        act: impl FnOnce(&Tree, FoundDirectory) -> Result<T>,
    ) -> Result<T> {
        match (&place.node, place.tier) {
            (Some(node), SSD) if *node == self.node => act(&self.ssd, (self.ssd.look(None)?, None)),
            (Some(node), SSD) => {
                let tree = self.peers.tree(node)?;
                let root = tree.look(None)?;
                act(&tree, (root, None))
            }
            (None, SHARED) => act(&self.shared.tree, self.shared.find(place.base, None)?),
            _ => Err(Error::Cluster {
                what: format!("{place:?}: no tier that this version knows"),
                remedy: "mount with the version that wrote it".to_owned(),
            }),
        }
    }

    /// Passes the file at a place, opened with [`OFlags::PATH`], to a function, with where it was found.
    fn find<T>(
        &self,
        place: &Location,
        inode: u64,
        act: impl FnOnce(&Tree, OwnedFd, FoundFile<'_>) -> Result<T>,
    ) -> Result<T> {
        if place.tier == SSD && place.base != ROOT.0 {
            return Err(Errno::NOENT.into());
        }
        self.on(place, |tree, base| {
            let at = FoundFile::new(tree, base, &place.path)?;
            let fd = match at.look() {
                Err(Errno::NOTDIR | Errno::LOOP) => return Err(Errno::NOENT.into()),
                found => found?,
            };
            let is_it = stat_descriptor(&fd)?.kind() == libc::S_IFREG
                && own_xattrs::number(&fd, own_xattrs::INODE) == Some(inode);
            if is_it { act(tree, fd, at) } else { Err(Errno::NOENT.into()) }
        })
    }

    /// Makes a file, open for reading and writing, on a tier, or on the other one if that is full, read only or not so deep.
    ///
    /// # Errors
    /// `ENOSPC`, `EROFS` if neither takes it.
    pub(crate) fn make_file(
        &self,
        near: &[DirectoryStep],
        name: &Name,
        inode: u64,
        (mode, uid, gid): (u32, u32, u32),
        tier: u8,
    ) -> Result<(Location, OwnedFd)> {
        let owner = Owner { mode, uid, gid };
        let prefers_ssd = tier == SSD && !self.ssd.is_nearly_full();
        let [first, second] = if prefers_ssd { [SSD, SHARED] } else { [SHARED, SSD] };
        match self.make_file_on(first, near, name, inode, owner) {
            Err(error) if error.is_full() || matches!(error.errno(), libc::EROFS | TOO_DEEP) => {
                // The first may have room again.
                let placed = self.make_file_on(second, near, name, inode, owner);
                placed.map_err(|other| if error.is_full() { error } else { other })
            }
            placed => placed,
        }
    }

    pub(crate) fn make_file_on(
        &self,
        tier: u8,
        near: &[DirectoryStep],
        name: &Name,
        inode: u64,
        owner: Owner,
    ) -> Result<(Location, OwnedFd)> {
        let directory = number_of(near);
        let (tree, above) = self.directory_on(tier, near)?;
        let (fd, path) = tree.make_file(&above, (directory, name), inode, owner)?;
        Ok((self.place(tier, directory, &path)?, fd))
    }

    /// The directory for something new on the own SSD or the shared disk.
    fn directory_on(&self, tier: u8, near: &[DirectoryStep]) -> Result<(&Tree, FoundDirectory)> {
        if tier == SSD {
            return Ok((&self.ssd, ssd_directories::find_or_make(&self.ssd, near)?));
        }
        Ok((&self.shared.tree, self.shared.at(near)?))
    }

    /// The place of a path from the root of the own SSD or the shared disk.
    fn place(&self, tier: u8, directory: u64, path: &RelativePath) -> Result<Location> {
        if tier == SSD {
            let (node, path) = (Some(self.node.clone()), path.clone());
            return Ok(Location { node, tier, base: ROOT.0, path });
        }
        let path = RelativePath::new(path.last()).ok_or(Errno::INVAL)?;
        Ok(Location { node: None, tier, base: directory, path })
    }

    /// Opens the file at a place. Opening it for writing removes the attributes of an unfinished move.
    ///
    /// # Errors
    /// `ENOENT` if the file is not there (any more): then look up its name again; [`Error::Leased`].
    pub(crate) fn open_file(&self, place: &Location, inode: u64, flags: OFlags) -> Result<OwnedFd> {
        let writes = flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC);
        let kept = flags.difference(OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW);
        let kept = kept | OFlags::CLOEXEC;
        self.find(place, inode, |tree, fd, _| {
            if writes {
                clear_move_xattrs(tree, &fd)?;
            }
            permitted(&fd, || reopen(&proc_path(&fd), kept))
        })
    }

    /// The `stat` of the file at a place.
    ///
    /// # Errors
    /// As [`Places::open_file`].
    pub(crate) fn stat(&self, place: &Location, inode: u64) -> Result<Stat> {
        self.find(place, inode, |_, fd, _| stat_descriptor(&fd))
    }

    /// Gives a file a second place on the same disk, for a rename: the first one is removed once the store has the
    /// new one. Call [`ListedNames::change`] next.
    ///
    /// # Errors
    /// As [`Places::open_file`].
    pub(crate) fn link(
        &self,
        place: &Location,
        inode: u64,
        to_near: &[DirectoryStep],
        name: &Name,
    ) -> Result<Location> {
        let directory = number_of(to_near);
        self.find(place, inode, |tree, fd, _| {
            let above = if place.tier == SSD {
                ssd_directories::find_or_make(tree, to_near)?
            } else {
                self.shared.at(to_near)?
            };
            let path = tree.link(&fd, &above, (directory, name), inode)?;
            let to = self.place(place.tier, directory, &path)?;
            Ok(Location { node: place.node.clone(), ..to })
        })
    }

    /// The names that are recorded with files.
    pub(crate) const fn listed_names(&self) -> ListedNames<'_> {
        ListedNames(self)
    }

    /// Removes the file at a place. A file that is already gone is no error.
    ///
    /// # Errors
    /// Those of `unlink(2)`, and of a node that is not reached.
    pub(crate) fn remove(&self, place: &Location, inode: u64) -> Result<()> {
        match self.find(place, inode, |_, _, at| at.remove()) {
            Err(error) if error.errno() == libc::ENOENT => Ok(()),
            other => other,
        }
    }

    /// Removes a file that lost its last name, and also its old copy if an unfinished move left one. A file that is
    /// already gone is no error.
    ///
    /// # Errors
    /// As [`Places::remove`].
    pub(crate) fn remove_all(&self, place: &Location, inode: u64) -> Result<()> {
        moving::remove_old_copy(self, place, inode)?;
        self.remove(place, inode)
    }

    /// Changes a file's attributes.
    ///
    /// # Errors
    /// As [`Places::open_file`].
    pub(crate) fn set_attributes(
        &self,
        place: &Location,
        inode: u64,
        change: &SetAttr,
    ) -> Result<Stat> {
        self.find(place, inode, |tree, fd, _| {
            if change.size.is_some() {
                clear_move_xattrs(tree, &fd)?;
            }
            let of = Quota { of: &fd, user: change.uid };
            tree.step_for(&of, "setting a file's attributes", || set_attr(&fd, change))
        })
    }

    /// Sets an extended attribute of a file; `flags` are those of `setxattr(2)`.
    ///
    /// # Errors
    /// As [`Places::open_file`].
    pub(crate) fn set_xattr(
        &self,
        place: &Location,
        inode: u64,
        name: &OsStr,
        value: &[u8],
        flags: i32,
    ) -> Result<()> {
        self.find(place, inode, |tree, fd, _| set_xattr(tree, &fd, name, value, flags))
    }

    /// Removes an extended attribute of a file.
    ///
    /// # Errors
    /// As [`Places::open_file`].
    pub(crate) fn remove_xattr(&self, place: &Location, inode: u64, name: &OsStr) -> Result<()> {
        self.find(place, inode, |tree, fd, _| remove_xattr(tree, &fd, name))
    }

    /// Makes a directory on the shared disk, before the store has it. If the store then refuses it, remove it again.
    ///
    /// # Errors
    /// Those of `mkdir(2)`.
    pub(crate) fn make_directory(
        &self,
        near: &[DirectoryStep],
        name: &Name,
        inode: u64,
        (mode, uid, gid): (u32, u32, u32),
    ) -> Result<()> {
        let step = DirectoryStep { number: inode, name: name.clone() };
        self.shared.make(near, &step, Owner { mode, uid, gid })
    }

    /// Removes a directory, to which `near` are the steps, from the shared disk and the own SSD, after the store has
    /// removed it.
    ///
    /// # Errors
    /// Those of `rmdir(2)`, except that a directory that is not empty is no error.
    pub(crate) fn remove_directory(&self, near: &[DirectoryStep]) -> Result<()> {
        let last = near.last().ok_or(Errno::BUSY)?;
        self.shared.remove(last.number, near)?;
        let Some(found) = self.ssd.find(near)? else { return Ok(()) };
        found_directory::remove_if_empty(&self.ssd, &found, last.number)
    }

    /// Called before the store renames a directory, so that it is found at its old and at its new position.
    pub(crate) fn begin_rename(
        &self,
        directory: u64,
        from: (u64, &Name),
        to: (u64, &Name),
    ) -> Result<RenameNotes> {
        self.shared.begin_rename(directory, &[from, to].map(|(above, name)| (above, name.clone())))
    }

    /// The same for a position to which another node has renamed it meanwhile.
    pub(crate) fn note_rename(&self, notes: &mut RenameNotes, to: (u64, &Name)) -> Result<()> {
        self.shared.note(notes, (to.0, to.1.clone()))
    }

    /// Called if the store has not renamed a directory, or once the disk has it where the store has it.
    pub(crate) fn end_rename(&self, notes: &RenameNotes) -> Result<()> {
        self.shared.end_rename(notes)
    }

    /// Moves a directory on the shared disk to its position in the store, after its parents; removes one that the
    /// store does not have.
    ///
    /// # Errors
    /// Those of `rename(2)`; `EBUSY` if others rename it again and again.
    pub(crate) fn settle_directory(&self, directory: u64) -> Result<()> {
        self.shared.settle(directory)
    }

    /// Does the same for the directories whose renames this node has left unfinished, and removes those of their
    /// notes that are in `before`; returns the other notes.
    ///
    /// # Errors
    /// The same.
    pub(crate) fn finish_renames(&self, before: &BTreeSet<String>) -> Result<BTreeSet<String>> {
        self.shared.finish_renames(before)
    }

    /// Follows the store's rename of a directory on the shared disk. `replaced` is the number of the directory that
    /// had the name. Repeating it is harmless.
    ///
    /// # Errors
    /// Those of `rename(2)`. The directory is still found.
    pub(crate) fn rename_directory(
        &self,
        directory: u64,
        to_near: &[DirectoryStep],
        name: &Name,
        replaced: Option<u64>,
    ) -> Result<()> {
        self.shared.rename(directory, to_near, name, replaced)
    }

    /// Changes a directory's attributes on the shared disk.
    ///
    /// # Errors
    /// If it is not found.
    pub(crate) fn set_directory_attributes(
        &self,
        directory: u64,
        change: &SetAttr,
    ) -> Result<Stat> {
        directory_times::set_attributes(self, directory, change)
    }

    /// Sets an extended attribute of a directory on the shared disk.
    ///
    /// # Errors
    /// If it is not found.
    pub(crate) fn set_directory_xattr(
        &self,
        directory: u64,
        name: &OsStr,
        value: &[u8],
        flags: i32,
    ) -> Result<()> {
        set_xattr(&self.shared.tree, &self.shared.descriptor(directory)?, name, value, flags)
    }

    /// Removes an extended attribute of a directory on the shared disk.
    ///
    /// # Errors
    /// If it is not found.
    pub(crate) fn remove_directory_xattr(&self, directory: u64, name: &OsStr) -> Result<()> {
        remove_xattr(&self.shared.tree, &self.shared.descriptor(directory)?, name)
    }

    /// Removes unfinished files and directories without a name from the own SSD; only if nothing else uses it.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) fn drop_temporaries(&self) -> Result<usize> {
        self.ssd.drop_temporaries()
    }
}

/// The number of the directory to which steps lead.
fn number_of(near: &[DirectoryStep]) -> u64 {
    near.last().map_or(ROOT.0, |step| step.number)
}

#[cfg(test)]
mod tests;
