//! The attributes in the store: what this node knows of them without asking, and changes, each of which reads, changes,
//! and compares and swaps in a single slot.

use std::time::Duration;

use halocline_model::namespace::{
    Answer, Change, Entry, EntryName, InodeNumber, Links, Name, Opaque, Script, Slot,
};
use halocline_model::token::Session;
use rustix::io::Errno;

use super::super::attributes::{Attributes, Location};
use super::super::coding::decode_attributes;
use super::driver::{Driver, TRIES};
use super::listings::There;
use super::{Failure, Result, StoredInode, check, opaque, refused};

/// New values of some attributes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AttributeUpdate {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Bytes.
    pub size: Option<u64>,
    /// Last read.
    pub atime_ns: Option<i64>,
    /// Last change of the content.
    pub mtime_ns: Option<i64>,
    /// When this change is made: the time of the last change of the attributes.
    pub ctime_ns: i64,
}

/// A file with one name, its attributes as they were when last seen, and what they are to be.
#[derive(Debug, Clone)]
pub struct KnownFile {
    /// Its name in its directory.
    pub name: Name,
    /// Its number.
    pub inode: InodeNumber,
    /// The attributes that it had.
    pub before: Attributes,
    /// The attributes that it gets.
    pub after: Attributes,
}

/// The attributes of what names lead to.
#[derive(Debug, Clone, Copy)]
pub struct StoredAttributes<'a> {
    driver: &'a Driver,
}

impl<'a> StoredAttributes<'a> {
    pub(super) const fn over(driver: &'a Driver) -> Self {
        Self { driver }
    }

    /// The attributes of a directory of which this node has a lease, and for how long nobody else changes them.
    #[must_use]
    pub fn leased_directory(self, inode: InodeNumber) -> Option<(StoredInode, Duration)> {
        let now = self.driver.now();
        let left = self.driver.listings.lease_left(inode, now);
        // In this order: a lease that is granted in between is of attributes that are at least as new.
        let (attributes, changed) = self.driver.listings.attributes(inode, now)?;
        let attributes = decode_attributes(&attributes).ok()?.changed_at(changed);
        Some((StoredInode { inode, attributes, links: 1 }, left))
    }

    /// A file with one name, with its attributes, if this node knows them without asking.
    #[must_use]
    pub fn known_file(self, at: &EntryName) -> Option<(InodeNumber, Attributes)> {
        match self.driver.known(at)?.entry()? {
            Entry::Single(inode, attributes) => {
                decode_attributes(&attributes).ok().map(|attributes| (inode, attributes))
            }
            _ => None,
        }
    }

    /// Changes the attributes of what a name leads to, and returns the new ones.
    ///
    /// # Errors
    /// `ENOENT`, and the errors of `change`.
    pub fn update(
        self,
        at: &EntryName,
        change: impl Fn(&mut Attributes) -> Result<()>,
    ) -> Result<StoredInode> {
        self.update_if(at, |_| true, change)
    }

    /// As [`update`](Self::update), if the name leads to this inode.
    ///
    /// # Errors
    /// As [`update`](Self::update); `ESTALE` if it leads to something else.
    pub fn update_of(
        self,
        (at, inode): (&EntryName, InodeNumber),
        change: impl Fn(&mut Attributes) -> Result<()>,
    ) -> Result<StoredInode> {
        self.update_if(at, |found| found == inode, change)
    }

    /// As [`update_of`](Self::update_of), for a file with one name that had these attributes when last seen: one round
    /// trip if it still has them.
    ///
    /// # Errors
    /// As [`update_of`](Self::update_of).
    pub fn update_known(
        self,
        (at, inode): (&EntryName, InodeNumber),
        known: &Attributes,
        change: impl Fn(&mut Attributes) -> Result<()>,
    ) -> Result<StoredInode> {
        check(at)?;
        let from = opaque(known)?;
        let (to, attributes) = changed(&from, &change)?;
        let [from, to] = [from, to].map(|attributes| Entry::Single(inode, attributes));
        if self.driver.replace_names(at.directory, vec![(at.name.clone(), from, to)])? {
            return Ok(StoredInode { inode, attributes, links: 1 });
        }
        self.update_of((at, inode), change)
    }

    /// Changes the attributes of several files of one directory, each of which has one name and had the given
    /// attributes when last seen: all of them, in one round trip, or none; in a directory with buckets, those of each
    /// bucket. `false` if one of them has others by now: then some others may have been changed.
    ///
    /// # Errors
    /// If the store does not answer.
    pub fn update_all_known(self, directory: InodeNumber, files: &[KnownFile]) -> Result<bool> {
        let change = |file: &KnownFile| {
            let [from, to] = [opaque(&file.before)?, opaque(&file.after)?];
            let [from, to] = [from, to].map(|attributes| Entry::Single(file.inode, attributes));
            Ok((file.name.clone(), from, to))
        };
        let changes = files.iter().map(change).collect::<Result<Vec<_>>>()?;
        self.driver.replace_names(directory, changes)
    }

    fn update_if(
        self,
        at: &EntryName,
        is_meant: impl Fn(InodeNumber) -> bool,
        change: impl Fn(&mut Attributes) -> Result<()>,
    ) -> Result<StoredInode> {
        check(at)?;
        // It is compared with the current value; if that differs, it is read.
        let mut known = self.driver.known(at).and_then(There::entry);
        for _ in 0..TRIES {
            let entry = known.take().map_or_else(|| self.driver.entry(at), Ok)?;
            if !is_meant(entry.inode()) {
                return refused(Errno::STALE);
            }
            let tried = match &entry {
                Entry::Directory(inode) => match self.update_directory(*inode, &change) {
                    Err(Failure::Refused(Errno::NOENT)) => None,
                    done => return done,
                },
                Entry::Single(inode, attributes) => {
                    let (new, attributes) = changed(attributes, &change)?;
                    let to = Entry::Single(*inode, new);
                    let change = (at.name.clone(), entry.clone(), to);
                    let stored = StoredInode { inode: *inode, attributes, links: 1 };
                    let is_done = self.driver.replace_names(at.directory, vec![change])?;
                    is_done.then_some(stored)
                }
                Entry::Linked(inode, shard) => match self.driver.links(*shard)? {
                    None => None,
                    Some(links) => {
                        let (new, attributes) = changed(&links.attributes, &change)?;
                        let stored = StoredInode { inode: *inode, attributes, links: links.count };
                        let to = Links { attributes: new, ..links };
                        self.driver.replace(*shard, Change::Links(links, to))?.then_some(stored)
                    }
                },
            };
            if let Some(stored) = tried {
                return Ok(stored);
            }
        }
        Err(Failure::Contended)
    }

    /// As [`update`](Self::update), of a directory by its number.
    ///
    /// # Errors
    /// `ENOENT` if it is gone, and the errors of `change`.
    pub fn update_directory(
        self,
        inode: InodeNumber,
        change: impl Fn(&mut Attributes) -> Result<()>,
    ) -> Result<StoredInode> {
        let mut known = self.driver.listings.attributes(inode, self.driver.now());
        for _ in 0..TRIES {
            let read = match known.take() {
                Some((attributes, changed)) => Answer::Attributes(attributes, changed),
                None => self.driver.read(inode, &Script::Read(Slot::Attributes))?,
            };
            let Answer::Attributes(from, names_changed_us) = read else {
                return refused(Errno::NOENT);
            };
            let before = decode_attributes(&from)?.changed_at(names_changed_us);
            let mut after = before.clone();
            change(&mut after)?;
            let sets_changed = after.mtime_ns != before.mtime_ns;
            let swap = Change::Attributes { from, to: opaque(&after)?, sets_changed };
            // Before, so that changes from now on touch it, and after, because what they did may have come first.
            if sets_changed {
                self.driver.buckets.set_time(inode);
            }
            let is_done = self.driver.replace(inode, swap);
            if sets_changed {
                self.driver.buckets.set_time(inode);
            }
            if is_done? {
                return Ok(StoredInode { inode, attributes: after, links: 1 });
            }
        }
        Err(Failure::Contended)
    }

    /// As [`update`](Self::update), for a file that has had several names, by the shard with its attributes: whoever
    /// took away one of its names need not know another one. It is no error if the file has lost its last name.
    ///
    /// # Errors
    /// The errors of `change`.
    pub fn update_links(
        self,
        shard: InodeNumber,
        change: impl Fn(&mut Attributes) -> Result<()>,
    ) -> Result<()> {
        for _ in 0..TRIES {
            let Some(links) = self.driver.links(shard)? else { return Ok(()) };
            let (attributes, _) = changed(&links.attributes, &change)?;
            let to = Links { attributes, ..links.clone() };
            if self.driver.replace(shard, Change::Links(links, to))? {
                return Ok(());
            }
        }
        Err(Failure::Contended)
    }

    /// Sets the attributes that `changes` contains.
    ///
    /// # Errors
    /// As [`update`](Self::update).
    pub fn set_attributes(self, at: &EntryName, changes: &AttributeUpdate) -> Result<StoredInode> {
        self.update(at, |attributes| {
            changes.apply(attributes);
            Ok(())
        })
    }

    /// Sets (`Some`) or removes (`None`) an extended attribute. `is_there` says whether it must exist before; `None`
    /// for either.
    ///
    /// # Errors
    /// `ENODATA`, `EEXIST`, `ENOSPC`.
    pub fn set_xattr(
        self,
        at: &EntryName,
        name: &[u8],
        (value, is_there): (Option<&[u8]>, Option<bool>),
    ) -> Result<StoredInode> {
        self.update(at, |attributes| {
            let has = attributes.xattrs.contains_key(name);
            match (is_there, has, value) {
                (Some(true), false, _) | (_, false, None) => return refused(Errno::NODATA),
                (Some(false), true, _) => return refused(Errno::EXIST),
                (.., Some(value)) => drop(attributes.xattrs.insert(name.to_vec(), value.to_vec())),
                (.., None) => drop(attributes.xattrs.remove(name)),
            }
            Ok(())
        })
    }

    /// Compares and swaps the session that may write a file; `EBUSY` if it is not `from`.
    ///
    /// # Errors
    /// `EBUSY`, `ENOENT`.
    pub fn set_writer(
        self,
        at: &EntryName,
        from: Option<Session>,
        to: Option<Session>,
    ) -> Result<StoredInode> {
        self.update(at, |attributes| {
            if attributes.writer != from {
                return refused(Errno::BUSY);
            }
            attributes.writer = to;
            Ok(())
        })
    }

    /// Compares and swaps the location of a file's bytes; `EBUSY` if it is not `from`.
    ///
    /// # Errors
    /// `EBUSY`, `ENOENT`.
    pub fn set_location(
        self,
        at: &EntryName,
        from: Option<&Location>,
        to: Option<&Location>,
    ) -> Result<StoredInode> {
        self.update(at, |attributes| {
            if attributes.location.as_ref() != from {
                return refused(Errno::BUSY);
            }
            attributes.location = to.cloned();
            Ok(())
        })
    }
}

impl AttributeUpdate {
    fn apply(&self, attributes: &mut Attributes) {
        attributes.mode = self.mode.unwrap_or(attributes.mode);
        attributes.uid = self.uid.unwrap_or(attributes.uid);
        attributes.gid = self.gid.unwrap_or(attributes.gid);
        attributes.size = self.size.unwrap_or(attributes.size);
        attributes.atime_ns = self.atime_ns.unwrap_or(attributes.atime_ns);
        attributes.mtime_ns = self.mtime_ns.unwrap_or(attributes.mtime_ns);
        attributes.ctime_ns = self.ctime_ns;
    }
}

/// Changed attributes, encoded and decoded.
fn changed(
    from: &Opaque,
    change: &impl Fn(&mut Attributes) -> Result<()>,
) -> Result<(Opaque, Attributes)> {
    let mut attributes = decode_attributes(from)?;
    change(&mut attributes)?;
    Ok((opaque(&attributes)?, attributes))
}
