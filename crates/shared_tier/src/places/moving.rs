//! Copies a file from one disk to another, so that a scan knows at each moment which copy is right.
//!
//! The old copy gets an attribute with the number of the move before the new copy has a name, and the new copy is
//! named with the same number. Whoever writes either copy removes its attribute first. So of two copies the one
//! without such an attribute is right, and two with the same number are identical. The new copy loses its attribute,
//! durably, before the old one is removed: a copy with such an attribute and without a twin belongs to a file that
//! was removed since, or will be. The new copy records where the old one is, so that whoever removes the file
//! meanwhile finds both.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;

use halocline_cluster::names::attributes::{Attributes, Location};
use halocline_model::namespace::EntryName;
use halocline_os::error::{Error, Result};
use halocline_os::leased_files;
use halocline_vfs::namespace::statx::system_time;
use halocline_vfs::namespace::{stat_descriptor, xattr};
use halocline_vfs::{SetAttr, SetTime, Stat};
use rustix::fs::{OFlags, SeekFrom, copy_file_range, fsync, seek};
use rustix::io::Errno;

use super::copies::{Copies, CopyName, mtime_ns};
use super::descriptor_path::proc_path;
use super::own_xattrs::owner_permissions::{self, permitted, set_attr};
use super::spare_room::freeing_step;
use super::tree::{Quota, Tree, fresh};
use super::{DirectoryStep, Places, SHARED, missed, own_xattrs};

/// Bytes that are copied between two checks whether to go on.
const PIECE: u64 = 8 << 20;
/// Size of the buffer that is used where the kernel does not copy.
const BUFFER: usize = 256 << 10;

/// The old copy of a file that is being moved.
#[derive(Debug)]
pub(crate) struct Source {
    file: File,
    pub(crate) stat: Stat,
    number: u64,
}

/// The new copy of a file.
#[derive(Debug)]
pub(crate) struct Arrived {
    /// It may be renamed meanwhile; this descriptor stays valid.
    file: File,
    pub(crate) place: Location,
}

impl Source {
    /// The file.
    pub(crate) const fn file(&self) -> &File {
        &self.file
    }

    /// Whether the file is unchanged since its copy was begun.
    pub(crate) fn is_unchanged(&self) -> Result<bool> {
        let [then, now] = [self.stat.raw, stat_descriptor(&self.file)?.raw];
        let of = |raw: &libc::stat64| {
            let times = (raw.st_mtime, raw.st_mtime_nsec, raw.st_ctime, raw.st_ctime_nsec);
            (raw.st_size, times, raw.st_uid, raw.st_gid, raw.st_mode)
        };
        Ok(of(&then) == of(&now))
    }
}

/// A file that moves from its place to another disk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileMove<'a> {
    places: &'a Places,
    from: &'a Location,
    inode: u64,
}

impl<'a> FileMove<'a> {
    pub(crate) const fn new(places: &'a Places, from: &'a Location, inode: u64) -> Self {
        Self { places, from, inode }
    }

    /// Begins the move, with a number that no other move has: the old copy gets the attribute of a move, durably.
    ///
    /// # Errors
    /// As [`Places::open_file`].
    pub(crate) fn begin(self, number: u64) -> Result<Source> {
        self.begin_with(own_xattrs::LEAVING, number)
    }

    /// Begins a clean copy with this number: the file gets the attribute of one, durably. If the file is elsewhere one day,
    /// that shows that this one is what it was.
    ///
    /// # Errors
    /// As [`Places::open_file`].
    pub(crate) fn begin_copy(self, number: u64) -> Result<Source> {
        self.begin_with(own_xattrs::COPIED, number)
    }

    fn begin_with(self, attribute: &str, number: u64) -> Result<Source> {
        self.places.find(self.from, self.inode, |tree, fd, _| {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            let open = || leased_files::reopen(&proc_path(&fd), flags);
            let file = File::from(permitted(&fd, open)?);
            freeing_step(tree, "marking a file that is moved", || {
                own_xattrs::set_number(&fd, attribute, number).map_err(own_xattrs::or_too_many(&fd))
            })?;
            // With what programs wrote: only durable data is copied.
            tree.step("syncing a file that is moved", || fsync(&file))?;
            let stat = stat_descriptor(&fd)?;
            Ok(Source { file, stat, number })
        })
    }

    /// Cancels the move: the old copy is the only one.
    ///
    /// # Errors
    /// As [`Places::open_file`].
    pub(crate) fn cancel(self) -> Result<()> {
        self.places.find(self.from, self.inode, |tree, fd, _| {
            tree.step("taking the attribute of a move away", || {
                own_xattrs::clear(&fd, own_xattrs::LEAVING)
            })
        })
    }

    /// Copies the file to the own SSD or the shared disk, durably; `goes_on` is told how many bytes were copied. `steps`
    /// lead to the directory of its name; they are needed for an SSD only.
    ///
    /// # Errors
    /// `ECANCELED` if `goes_on` stops it, or if the file was changed meanwhile.
    pub(crate) fn copy(
        self,
        source: &Source,
        tier: u8,
        (name, steps): (&EntryName, &[DirectoryStep]),
        goes_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Arrived> {
        let Self { places, from, inode } = self;
        let (directory, name) = (name.directory.0, &name.name);
        let (tree, above) = if tier == SHARED {
            (&places.shared.tree, places.shared.find(directory, None)?)
        } else {
            places.directory_on(tier, steps)?
        };
        let fresh = fresh("m", inode);
        let to = File::from(tree.temporary(&fresh)?);
        let copied = (|| {
            contents(tree, source, &to, goes_on)?;
            attributes(tree, source, &to).map_err(own_xattrs::or_too_many(&to))?;
            tree.step("marking a copy", || {
                own_xattrs::set_number(&to, own_xattrs::INODE, inode)?;
                own_xattrs::set_number(&to, own_xattrs::ARRIVING, source.number)?;
                own_xattrs::set_from(&to, from)
            })
            .map_err(own_xattrs::or_too_many(&to))?;
            mode_and_times(tree, source, &to)?;
            tree.step("syncing a copy", || fsync(&to))?;
            if !source.is_unchanged()? {
                return Err(Errno::CANCELED.into());
            }
            tree.settle(&to, &fresh, &above, (directory, name), inode)
                .map_err(own_xattrs::or_too_many(&to))
        })();
        let path = copied.inspect_err(|_| tree.drop_temporary(&fresh))?;
        let place = places.place(tier, directory, &path)?;
        // Again: the list of names may have been set when the copy was named.
        let synced =
            tree.step("syncing a copy", || fsync(&to)).and_then(|()| tree.sync_names(&above.0));
        if let Err(error) = synced {
            places.remove(&place, inode)?;
            return Err(error);
        }
        Ok(Arrived { file: to, place })
    }

    /// Ends a clean copy that was not made.
    ///
    /// # Errors
    /// As [`Places::open_file`].
    pub(crate) fn cancel_copy(self) -> Result<()> {
        self.places.find(self.from, self.inode, |tree, fd, _| {
            tree.step("taking the attribute of a copy away", || {
                own_xattrs::clear(&fd, own_xattrs::COPIED)
            })
        })
    }

    /// Makes a clean copy of the file on the shared disk, durably. The store does not have its mark yet.
    ///
    /// # Errors
    /// As [`copy`](Self::copy).
    pub(crate) fn keep_copy(
        self,
        source: &Source,
        (name, of): (&EntryName, &CopyName),
        goes_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<()> {
        let Self { places, from, inode } = self;
        let tree = &places.shared.tree;
        let fresh = fresh("c", inode);
        let to = File::from(tree.temporary(&fresh)?);
        let copied = (|| {
            contents(tree, source, &to, goes_on)?;
            attributes(tree, source, &to).map_err(own_xattrs::or_too_many(&to))?;
            tree.step("marking a copy", || {
                own_xattrs::set_number(&to, own_xattrs::INODE, inode)?;
                own_xattrs::set_names(&to, &[(name.directory.0, name.name.clone())])?;
                own_xattrs::set_from(&to, from)
            })
            .map_err(own_xattrs::or_too_many(&to))?;
            mode_and_times(tree, source, &to)?;
            let written = mtime_ns(&source.stat);
            if let Ok(written) = u64::try_from(written)
                && mtime_ns(&stat_descriptor(&to)?) != mtime_ns(&source.stat)
            {
                // The disk keeps whole seconds only.
                own_xattrs::set_number(&to, own_xattrs::WRITTEN, written)?;
            }
            tree.step("syncing a copy", || fsync(&to))?;
            if !source.is_unchanged()? {
                return Err(Errno::CANCELED.into());
            }
            Copies::of(places).put(of, &fresh)
        })();
        copied.inspect_err(|_| tree.drop_temporary(&fresh))
    }

    /// Makes the clean copy of the file, which has these attributes in the store, the new copy of a move to the shared
    /// disk: it gets its place there. No byte is copied.
    ///
    /// # Errors
    /// As [`copy`](Self::copy).
    pub(crate) fn take_copy(
        self,
        (copy, number): (&OwnedFd, u64),
        (name, of): (&EntryName, &Attributes),
    ) -> Result<Arrived> {
        let Self { places, from, inode } = self;
        let tree = &places.shared.tree;
        let (directory, name) = (name.directory.0, &name.name);
        let above = places.shared.find(directory, None)?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let open = || leased_files::reopen(&proc_path(copy), flags);
        let file = File::from(permitted(copy, open)?);
        tree.step("marking a copy", || {
            own_xattrs::set_number(&file, own_xattrs::ARRIVING, number)?;
            own_xattrs::clear(&file, own_xattrs::WRITTEN)?;
            own_xattrs::set_from(&file, from)
        })
        .map_err(own_xattrs::or_too_many(&file))?;
        // Attributes that were changed since took the copy away, unless whoever did it died in between.
        let now = stat_descriptor(&file)?.raw;
        let owner = SetAttr {
            uid: (now.st_uid != of.uid).then_some(of.uid),
            gid: (now.st_gid != of.gid).then_some(of.gid),
            mode: (owner_permissions::mode(&file, &now) != of.mode).then_some(of.mode),
            ..SetAttr::default()
        };
        tree.step("setting a copy's attributes", || set_attr(&file, &owner))?;
        let path = tree.link(copy, &above, (directory, name), inode)?;
        let place = places.place(SHARED, directory, &path)?;
        let synced =
            tree.step("syncing a copy", || fsync(&file)).and_then(|()| tree.sync_names(&above.0));
        if let Err(error) = synced {
            places.remove(&place, inode)?;
            return Err(error);
        }
        Ok(Arrived { file, place })
    }

    /// Ends the move after the store has the new place: removes the new copy's attribute, then the old copy.
    ///
    /// # Errors
    /// Those of `unlink(2)` and `fsync(2)`, and of a node that is not reached.
    pub(crate) fn end(self, to: &Arrived) -> Result<()> {
        assert_ne!(
            *self.from, to.place,
            "I15: the copy that is removed is not the one that the store names"
        );
        // The steps are the same on all trees.
        let tree = &self.places.shared.tree;
        tree.step("taking the attribute of a move away", || {
            own_xattrs::clear(&to.file, own_xattrs::ARRIVING)
        })?;
        tree.step("syncing a copy", || fsync(&to.file))?;
        let removed = self.places.find(self.from, self.inode, |_, _, at| {
            at.remove()?;
            at.sync_directory()
        });
        match removed {
            Err(error) if error.errno() == libc::ENOENT => {}
            other => other?,
        }
        tree.step("taking the attribute of a move away", || own_xattrs::clear_from(&to.file))
    }
}

/// Removes the old copy of a file if an unfinished move left one.
///
/// # Errors
/// Those of a node that is not reached; an old copy that stays is only logged.
pub(super) fn remove_old_copy(places: &Places, place: &Location, inode: u64) -> Result<()> {
    let left = match places.find(place, inode, |_, fd, _| {
        Ok(own_xattrs::from(&fd).zip(Some(stat_descriptor(&fd)?.raw.st_uid)))
    }) {
        Err(error) if error.errno() == libc::ENOENT => return Ok(()),
        left => left?,
    };
    let Some((left, owner)) = left.filter(|(left, _)| left != place) else { return Ok(()) };
    let removed = places.find(&left, inode, |_, fd, at| {
        // The attribute is a claim: the file's owner can write anything there.
        let is_left = own_xattrs::number(&fd, own_xattrs::LEAVING).is_some()
            && stat_descriptor(&fd)?.raw.st_uid == owner;
        if is_left { at.remove() } else { Ok(()) }
    });
    match missed::or_gone(places, (&left, inode), removed) {
        Err(error) if error.errno() == libc::ENOENT => {}
        Err(error) => tracing::warn!(%error, ?left, "an old copy of a removed file stays"),
        Ok(()) => {}
    }
    Ok(())
}

/// Copies all data, and preserves holes.
fn contents(
    tree: &Tree,
    source: &Source,
    to: &File,
    goes_on: &mut dyn FnMut(u64) -> bool,
) -> Result<()> {
    let (from, size) = (&source.file, source.stat.raw.st_size.unsigned_abs());
    tree.step("sizing a copy", || to.set_len(size))?;
    let mut buffer = vec![0; BUFFER];
    let (mut at, mut in_kernel) = (0, true);
    while at < size {
        at = match seek(from, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL) => at,
            start => start?,
        };
        let end = match seek(from, SeekFrom::Hole(at)) {
            Err(Errno::INVAL) => size,
            end => end?.min(size),
        };
        while at < end {
            let piece = usize::try_from(PIECE.min(end - at)).unwrap_or(BUFFER);
            let copied = if in_kernel { by_kernel(tree, from, to, at, piece)? } else { None };
            in_kernel = copied.is_some();
            let copied = match copied {
                Some(copied) => copied,
                None => through_buffer(tree, from, to, at, &mut buffer[..piece.min(BUFFER)])?,
            };
            if copied == 0 || !goes_on(copied) {
                return Err(Errno::CANCELED.into());
            }
            at += copied;
        }
    }
    Ok(())
}

/// Copies in the kernel; `None` if it cannot copy between these files.
fn by_kernel(tree: &Tree, from: &File, to: &File, at: u64, len: usize) -> Result<Option<u64>> {
    let (mut read, mut write) = (at, at);
    let copied = tree.step("copying", || {
        match copy_file_range(from, Some(&mut read), to, Some(&mut write), len) {
            Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) | Ok(0) => Ok(None),
            Ok(copied) => Ok(Some(copied as u64)),
            Err(errno) => Err(Error::from(errno)),
        }
    })?;
    Ok(copied)
}

fn through_buffer(tree: &Tree, from: &File, to: &File, at: u64, buffer: &mut [u8]) -> Result<u64> {
    tree.step("copying", || {
        let read = from.read_at(buffer, at)?;
        to.write_all_at(&buffer[..read], at)?;
        Ok::<_, std::io::Error>(read as u64)
    })
}

/// Copies the owner and the extended attributes, with the list of names but without the attributes of a move.
fn attributes(tree: &Tree, source: &Source, to: &File) -> Result<()> {
    let raw = &source.stat.raw;
    let now = stat_descriptor(to)?.raw;
    let owner = SetAttr {
        uid: (now.st_uid != raw.st_uid).then_some(raw.st_uid),
        gid: (now.st_gid != raw.st_gid).then_some(raw.st_gid),
        ..SetAttr::default()
    };
    let of = Quota { of: to, user: Some(raw.st_uid) };
    tree.step_for(&of, "setting a copy's attributes", || {
        set_attr(to, &owner)?;
        let names = xattr::list_on(&source.file)?;
        for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let name = std::ffi::OsStr::from_bytes(name);
            if xattr::hidden_xattr(name) && !own_xattrs::is_name(name) {
                continue;
            }
            match xattr::get_on(&source.file, name) {
                Err(error) if error.errno() == libc::ENODATA => {}
                value => xattr::set_on(to, name, &value?, 0)?,
            }
        }
        Ok::<_, Error>(())
    })
}

fn mode_and_times(tree: &Tree, source: &Source, to: &File) -> Result<()> {
    let raw = &source.stat.raw;
    let rest = SetAttr {
        mode: Some(owner_permissions::mode(&source.file, raw)),
        atime: Some(SetTime::At(system_time((raw.st_atime, raw.st_atime_nsec)))),
        mtime: Some(SetTime::At(system_time((raw.st_mtime, raw.st_mtime_nsec)))),
        ..SetAttr::default()
    };
    tree.step("setting a copy's attributes", || set_attr(to, &rest)).map(drop)
}

/// Removes the attributes of moves and copies from a file: it is about to be written, so it will differ from any other.
pub(super) fn clear_move_xattrs(tree: &Tree, fd: &impl AsFd) -> Result<()> {
    tree.step("taking the attributes of a move away", || {
        let all = [own_xattrs::LEAVING, own_xattrs::ARRIVING, own_xattrs::COPIED];
        all.iter().try_for_each(|what| own_xattrs::clear(fd, what))
    })
}
