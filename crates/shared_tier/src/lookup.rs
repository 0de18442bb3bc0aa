//! Looks up what a name, or an inode that programs refer to, is in the store now.

use std::ffi::OsStr;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use halocline_cluster::names::attributes::{Attributes, Kind, Open};
use halocline_cluster::names::namespace::{self, Failure, Listed};
use halocline_model::namespace::{EntryName, InodeNumber};
use halocline_os::error::{Error, Result};
use halocline_os::write_lease::is_exclusive;
use halocline_vfs::Stat;
use halocline_vfs::namespace::stat_descriptor;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::base::Base;
use crate::directory::Directory;
use crate::entry_names::entry_name;
use crate::errors::of_names;
use crate::inodes::{Inode, Vnode};
use crate::places::own_xattrs;
use crate::stat_conversion::{overlay, stat, take_over};

/// How often, and how far apart, an inode is looked up again while a rename of it is under way.
const RENAME_WAITS: usize = 20_000;
const RENAME_PAUSE: Duration = Duration::from_millis(1);
/// How often the new name of an open file that another node renamed is looked for, with the same pause.
const TOLD_WAITS: usize = 100;

/// Finds inodes.
#[derive(Debug)]
pub(crate) struct Lookup {
    base: Arc<Base>,
}

/// An inode as the store has it: a name that leads to it, and its attributes. A directory's name is not verified.
#[derive(Debug)]
pub(crate) struct FoundInode {
    pub(crate) name: Option<EntryName>,
    pub(crate) stored: namespace::StoredInode,
}

/// The names that are listed with a file's bytes.
pub(crate) fn told_names(file: &File) -> Vec<EntryName> {
    let names = own_xattrs::names(file).into_iter();
    names.map(|(directory, name)| EntryName { directory: InodeNumber(directory), name }).collect()
}

/// Attributes of an open file without a name: the last known ones, updated from the file with the bytes. Of something
/// else those with which it was looked up just now. `None` if there are none.
///
/// What a look-up alone keeps has the name by which it was found, for the kernel: that would link nothing without a name,
/// and not ask whether the name leads to something else by now.
fn stat_without_name(inode: &Inode) -> Result<Option<Stat>> {
    let without_name = inode.without_name.lock();
    let Some(last) = &without_name.last else { return Ok(None) };
    let (attributes, is_file) = (last.clone(), last.kind == Kind::File);
    let is_other = !is_file && last.kind != Kind::Directory;
    let links = u32::from(without_name.is_only_looked_up || is_other);
    let stored = namespace::StoredInode { inode: inode.number, attributes, links };
    let mut shown = stat(&stored);
    match &without_name.file {
        Some(file) => overlay(&mut shown, &stat_descriptor(file)?),
        None if is_file => return Ok(None),
        None => {}
    }
    Ok(Some(shown))
}

/// Whether an inode that is usable here has certainly lost its last name.
fn has_no_name(inode: &Inode) -> Result<bool> {
    let without_name = inode.without_name.lock();
    match (&without_name.file, &without_name.last) {
        (Some(file), _) => Ok(stat_descriptor(file)?.raw.st_nlink == 0),
        (None, last) => Ok(last.as_ref().is_some_and(|last| last.kind != Kind::File)),
    }
}

impl Lookup {
    pub(crate) fn new(base: &Arc<Base>) -> Self {
        Self { base: Arc::clone(base) }
    }

    /// What a name leads to.
    ///
    /// # Errors
    /// `ENOENT`.
    pub(crate) fn lookup(&self, parent: &Inode, name: &OsStr) -> Result<(Vnode, Stat)> {
        let name = entry_name(parent.number, name);
        let found = self.base.names.lookup(&name).map_err(of_names)?;
        Ok(self.seen(&name, found))
    }

    /// The same for a name that was just read from a directory.
    ///
    /// # Errors
    /// As [`lookup`](Self::lookup).
    pub(crate) fn lookup_listed(
        &self,
        directory: &Directory,
        parent: &Inode,
        name: &OsStr,
    ) -> Result<(Vnode, Stat)> {
        match directory.listed(name) {
            Some(Listed { inode, attributes: Some(attributes), .. }) => {
                let found = namespace::StoredInode { inode, attributes, links: 1 };
                Ok(self.seen(&entry_name(parent.number, name), found))
            }
            _ => self.lookup(parent, name),
        }
    }

    /// Remembers what a name led to just now.
    pub(crate) fn seen(&self, name: &EntryName, found: namespace::StoredInode) -> (Vnode, Stat) {
        let is_directory = found.attributes.kind == Kind::Directory;
        let vnode = self.base.table.intern(found.inode, is_directory, Some(name.clone()));
        let found = mended(&self.base, &vnode.0, name, found);
        let stat = self.shown(&vnode.0, &found);
        (vnode, stat)
    }

    /// What an inode is now; `None` if no name is known that leads to it.
    ///
    /// # Errors
    /// If the store does not answer.
    pub(crate) fn find(&self, inode: &Inode) -> Result<Option<FoundInode>> {
        if inode.is_directory {
            return match self.base.names.directory(inode.number) {
                Err(Failure::Refused(Errno::NOENT)) => Ok(None),
                found => Ok(Some(FoundInode { name: None, stored: found.map_err(of_names)? })),
            };
        }
        match self.find_by_known_names(inode)? {
            Some(found) => Ok(Some(found)),
            None => self.find_by_told_names(inode),
        }
    }

    /// Finds a file that is open here after another node renamed it: that node lists the new name with the bytes.
    fn find_by_told_names(&self, inode: &Inode) -> Result<Option<FoundInode>> {
        let Some(file) = inode.without_name.lock().file.clone() else { return Ok(None) };
        for _ in 0..TOLD_WAITS {
            for name in told_names(&file) {
                match self.base.names.lookup(&name) {
                    Ok(stored) if stored.inode == inode.number => {
                        inode.add_name(name.clone());
                        return Ok(Some(FoundInode { name: Some(name), stored }));
                    }
                    Ok(_) | Err(Failure::Refused(_)) => {}
                    Err(failure) => return Err(of_names(failure)),
                }
            }
            if stat_descriptor(&*file)?.raw.st_nlink == 0 {
                break;
            }
            // Its name was changed or removed just now, and the disk has not followed yet.
            self.base.clock.sleep(RENAME_PAUSE);
        }
        Ok(None)
    }

    fn find_by_known_names(&self, inode: &Inode) -> Result<Option<FoundInode>> {
        for _ in 0..RENAME_WAITS {
            let is_renamed = inode.renames.load(Ordering::SeqCst) > 0;
            for name in inode.names() {
                match self.base.names.lookup(&name) {
                    Ok(stored) if stored.inode == inode.number => {
                        return Ok(Some(FoundInode { name: Some(name), stored }));
                    }
                    Ok(_) | Err(Failure::Refused(Errno::NOENT | Errno::NOTDIR)) => {
                        inode.remove_name(&name);
                    }
                    Err(failure) => return Err(of_names(failure)),
                }
            }
            if !is_renamed && inode.name().is_none() {
                break;
            }
            self.base.clock.sleep(RENAME_PAUSE);
        }
        Ok(None)
    }

    /// What is known of an inode in the store; of one that has lost its last name, what was known last.
    ///
    /// # Errors
    /// `ESTALE` if nothing is left of it here, `ENOENT` of a directory.
    pub(crate) fn attributes(&self, inode: &Inode) -> Result<Attributes> {
        if let Some(found) = self.find(inode)? {
            return Ok(found.stored.attributes);
        }
        let last = inode.without_name.lock().last.clone();
        last.ok_or_else(|| self.gone(inode))
    }

    /// What an inode is now, with a name.
    ///
    /// # Errors
    /// `ENOENT` if it has lost its last one, `ESTALE` if that is not known.
    pub(crate) fn find_named(&self, inode: &Inode) -> Result<(EntryName, namespace::StoredInode)> {
        match self.find(inode)? {
            Some(FoundInode { name: Some(name), stored }) => Ok((name, stored)),
            _ if has_no_name(inode)? => Err(Errno::NOENT.into()),
            _ => Err(self.gone(inode)),
        }
    }

    /// The error of a request about an inode of which no name is known, and of which nothing is left here. The kernel
    /// looks the name up again, and then what it leads to is kept for it ([`crate::recent_lookups`]). A directory is found
    /// by its number, which is never given again: one that is not is gone for good, whatever its name leads to.
    pub(crate) fn gone(&self, inode: &Inode) -> Error {
        if inode.is_directory {
            return Errno::NOENT.into();
        }
        if let Some(name) = inode.last_name() {
            self.base.contested.note(name, self.base.clock.instant());
        }
        Errno::STALE.into()
    }

    /// Attributes of an inode. A directory that is gone has those with which it was shown last.
    ///
    /// # Errors
    /// `ESTALE` if its present name is not known and it is not open here; `ENOENT` of a directory that was never shown.
    pub(crate) fn stat(&self, inode: &Inode) -> Result<Stat> {
        if let Some(found) = self.find(inode)? {
            let stored = match &found.name {
                Some(name) => mended(&self.base, inode, name, found.stored),
                None => found.stored,
            };
            return Ok(self.shown(inode, &stored));
        }
        stat_without_name(inode)?.ok_or_else(|| self.gone(inode))
    }

    /// Attributes as programs see them. While some node has a file open for writing, its size and times come from the
    /// file with the bytes; if that is not reached, the last known ones are shown.
    pub(crate) fn shown(&self, inode: &Inode, found: &namespace::StoredInode) -> Stat {
        let mut shown = stat(found);
        let of = &found.attributes;
        if of.kind == Kind::Directory {
            inode.is_sticky.store(of.mode & libc::S_ISVTX != 0, Ordering::Relaxed);
            // Programs may have it open, or as their current directory, when it is removed.
            let last = &mut inode.without_name.lock().last;
            if last.as_ref() != Some(of) {
                *last = Some(of.clone());
            }
        }
        if of.kind == Kind::File && of.is_written() {
            let file = inode.without_name.lock().file.clone();
            let data = match (file, &of.location) {
                (Some(file), _) => stat_descriptor(&*file).ok(),
                (None, Some(place)) => self.base.places.stat(place, found.inode.0).ok(),
                (None, None) => None,
            };
            if let Some(data) = data {
                overlay(&mut shown, &data);
            }
        }
        shown
    }
}

/// Removes stale opens from a file's attributes: those of sessions that are over, and this node's own if a close
/// could not be noted because another node had renamed the file. An open that a kernel may serve is removed by its
/// own node only.
pub(crate) fn mended(
    base: &Base,
    inode: &Inode,
    name: &EntryName,
    found: namespace::StoredInode,
) -> namespace::StoredInode {
    if found.attributes.opens.is_empty() {
        return found;
    }
    // Locked to the end, so that nobody here opens it meanwhile.
    let noting = inode.noting.try_lock();
    let is_closed_here = noting
        .as_ref()
        .is_some_and(|noting| noting.handles == 0 && noting.kept.is_none() && !noting.closes_later);
    let sessions = &base.sessions;
    let is_gone = |open: &Open| {
        if open.session == sessions.own() {
            return is_closed_here;
        }
        let is_over = sessions.is_over(open.session);
        is_over && (!open.by_kernel || is_closed_here && is_unused_here(base, inode, &found))
    };
    let gone: Vec<Open> = found.attributes.opens.iter().copied().filter(is_gone).collect();
    if gone.is_empty() {
        return found;
    }
    // Read at each try of the change: others may write, and note more, meanwhile.
    let data = |of: &Attributes| {
        let place = of.location.as_ref()?;
        base.places.stat(place, inode.number.0).ok()
    };
    let mended = base.names.attributes().update_of((name, inode.number), |attributes| {
        let is_its = |open: &Open| open.writes && gone.contains(open);
        if attributes.opens.iter().any(is_its) {
            // If the bytes are not reached, their size is unknown: the file stays noted as open for writing.
            let data = data(attributes).ok_or(Failure::Refused(Errno::IO))?;
            take_over(attributes, &data);
        }
        for open in &gone {
            attributes.note_close(open.session);
        }
        Ok(())
    });
    mended.unwrap_or(found)
}

/// Whether a file lies on this node's SSD and nobody has it open or mapped there.
fn is_unused_here(base: &Base, inode: &Inode, found: &namespace::StoredInode) -> bool {
    let Some(place) = &found.attributes.location else { return true };
    if place.node.as_deref() != Some(base.places.node()) {
        return false;
    }
    let opened = base.places.open_file(place, inode.number.0, OFlags::RDONLY);
    opened.is_ok_and(|fd| is_exclusive(&File::from(fd)))
}
