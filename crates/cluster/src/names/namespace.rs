//! The operations of POSIX on names, as one node makes them.
//!
//! [`halocline_model::namespace`] decides which changes an operation needs, and how changes of several shards become one; [`driver`] sends
//! its requests, for [`operations`], which split a directory that is full, and [`pages`]; [`stored_attributes`] changes attributes. A name's place is the number of a directory, and the name in it.

mod change_under_way;
mod driver;
mod failure;
mod found;
mod known_buckets;
mod listed;
mod listings;
mod operations;
mod pages;
mod stored_attributes;
mod wait_limit;

use std::sync::Arc;

use halocline_model::namespace::{
    Answer, Entry, EntryName, Flags, InodeNumber, Opaque, Operation, ROOT, Script, Slot,
};
use halocline_model::token::Session;
use rustix::io::Errno;

use super::attributes::{Attributes, Kind};
use super::coding::{decode_attributes, encode_attributes};
use super::{Memory, NAME_BYTES_MAX, NameStore, NamesError, State};
use driver::{Driver, TRIES};
use found::{linked, replaced};
use listings::There;
use operations::Operations;
use pages::Pages;

pub use change_under_way::ChangeUnderWay;
pub use driver::Counts;
pub use failure::{Failure, Result};
pub use found::StoredInode;
pub use listed::Listed;
pub use stored_attributes::{AttributeUpdate, KnownFile, StoredAttributes};
pub use wait_limit::WaitLimit;

/// How many directories above a place are examined to explain why it cannot be renamed.
const DEPTH_MAX: usize = 4096;

/// The effect of a rename.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renamed {
    /// What the old name led to.
    pub from: Option<Entry>,
    /// What the new name led to.
    pub to: Option<Entry>,
    /// `false` if both names led to one file: then nothing was done.
    pub is_done: bool,
    /// The file that lost a name, with the number of names that it has left.
    pub replaced: Option<StoredInode>,
}

/// Names as one node sees and changes them. Threads may share it.
#[derive(Debug)]
pub struct Namespace {
    driver: Driver,
}

fn refused<T>(errno: Errno) -> Result<T> {
    Err(Failure::Refused(errno))
}

/// Attributes in their encoding.
fn opaque(attributes: &Attributes) -> Result<Opaque> {
    encode_attributes(attributes).ok_or(Failure::Refused(Errno::NOSPC))
}

/// # Errors
/// If it cannot be the name of an entry.
fn check(at: &EntryName) -> Result<()> {
    let name = at.name.as_bytes();
    match name {
        b"" => refused(Errno::NOENT),
        b"." | b".." => refused(Errno::INVAL),
        _ if name.len() > NAME_BYTES_MAX => refused(Errno::NAMETOOLONG),
        _ if name.iter().any(|byte| [b'/', 0].contains(byte)) => refused(Errno::INVAL),
        _ => Ok(()),
    }
}

impl Namespace {
    /// Makes the names of a tier that has none yet: a root with these attributes.
    ///
    /// # Errors
    /// If there are some already, or some were forgotten.
    pub fn format(store: &dyn NameStore, root: &Attributes) -> Result<()> {
        match store.refresh()? {
            State::Empty => {}
            State::Confirmed => return refused(Errno::EXIST),
            state => return Err(state.refusal().into()),
        }
        store.begin_epoch(false)?;
        let body = halocline_model::namespace::Body::directory(ROOT, opaque(root)?);
        match store.run(ROOT, &Script::Make(body))? {
            Answer::Done => Ok(()),
            _ => refused(Errno::EXIST),
        }
    }

    /// Uses the names in a store. `session` must never have been used.
    ///
    /// # Errors
    /// If there are none, or some were forgotten.
    pub fn open(store: Arc<dyn NameStore>, session: Session, wait: WaitLimit) -> Result<Self> {
        match store.refresh()? {
            State::Confirmed => Ok(Self { driver: Driver::new(store, session, wait) }),
            state => Err(state.refusal().into()),
        }
    }

    /// Counters of what this node sent.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.driver.counts()
    }

    /// The memory of the store's fullest server, if that is limited.
    ///
    /// # Errors
    /// If the store does not answer.
    pub fn memory(&self) -> super::Result<Option<Memory>> {
        self.driver.memory()
    }

    /// Asks the store whether it still has the names.
    ///
    /// # Errors
    /// If it has lost them, or does not answer.
    pub fn check(&self) -> Result<()> {
        self.driver.read(ROOT, &Script::Read(Slot::Attributes))?;
        self.driver.refusal().map_or(Ok(()), |lost| Err(lost.into()))
    }

    /// Begins a change in this thread.
    pub fn begin_change(&self) -> ChangeUnderWay {
        self.driver.begin_change()
    }

    /// The attributes of what names lead to, to be known and changed.
    #[must_use]
    pub const fn attributes(&self) -> StoredAttributes<'_> {
        StoredAttributes::over(&self.driver)
    }

    /// Attributes of a directory by its number: no round trip while this node has a lease of it.
    ///
    /// # Errors
    /// `ENOENT` if it is gone.
    pub fn directory(&self, inode: InodeNumber) -> Result<StoredInode> {
        let known = self.driver.listings.attributes(inode, self.driver.now());
        let read = match known {
            Some((attributes, changed)) => Answer::Attributes(attributes, changed),
            None => self.driver.read_often(inode, Slot::Attributes)?,
        };
        match read {
            Answer::Attributes(attributes, changed) => {
                let attributes = decode_attributes(&attributes)?.changed_at(changed);
                if attributes.kind != Kind::Directory {
                    return Err(NamesError::Unsound("a directory that is none".into()).into());
                }
                Ok(StoredInode { inode, attributes, links: 1 })
            }
            _ => refused(Errno::NOENT),
        }
    }

    /// The parent of a directory; the root is its own.
    ///
    /// # Errors
    /// `ENOENT` if it is gone.
    pub fn parent(&self, inode: InodeNumber) -> Result<InodeNumber> {
        match self.driver.read(inode, &Script::Read(Slot::Parent))? {
            Answer::Parent(parent) => Ok(parent),
            _ => refused(Errno::NOENT),
        }
    }

    /// What an entry leads to; `None` if that no longer exists under it.
    fn stored(&self, entry: &Entry) -> Result<Option<StoredInode>> {
        match entry {
            Entry::Single(inode, attributes) => {
                let attributes = decode_attributes(attributes)?;
                Ok(Some(StoredInode { inode: *inode, attributes, links: 1 }))
            }
            Entry::Linked(inode, shard) => {
                let Some(links) = self.driver.links(*shard)? else { return Ok(None) };
                let attributes = decode_attributes(&links.attributes)?;
                Ok(Some(StoredInode { inode: *inode, attributes, links: links.count }))
            }
            Entry::Directory(inode) => match self.directory(*inode) {
                Err(Failure::Refused(Errno::NOENT)) => Ok(None),
                found => found.map(Some),
            },
        }
    }

    /// What a name leads to, with its attributes: one round trip for a file with one name, otherwise two; none for a
    /// name that was just listed or changed, while the store promises that nobody else changes the directory.
    ///
    /// # Errors
    /// `ENOENT`, `ENAMETOOLONG`.
    pub fn lookup(&self, at: &EntryName) -> Result<StoredInode> {
        check(at)?;
        match self.driver.known_still(at) {
            Some(There::Nothing) => return refused(Errno::NOENT),
            Some(There::Entry(entry)) => {
                if let Some(stored) = self.stored(&entry)? {
                    return Ok(stored);
                }
            }
            None => {}
        }
        let entry = match self.driver.read_name(at, true)? {
            Answer::Name(Some(entry), _) => entry,
            Answer::Differs => return refused(Errno::NOTDIR),
            _ => return refused(Errno::NOENT),
        };
        if let Some(stored) = self.stored(&entry)? {
            return Ok(stored);
        }
        for _ in 0..TRIES {
            if let Some(stored) = self.stored(&self.driver.entry(at)?)? {
                return Ok(stored);
            }
        }
        Err(Failure::Contended)
    }

    /// Makes a file, symbolic link, pipe, socket or device, as `attributes` say. One round trip.
    ///
    /// # Errors
    /// `EEXIST`, `ENOENT` if the directory is gone, `ENOSPC` if the attributes are too long.
    pub fn create(&self, at: &EntryName, attributes: &Attributes) -> Result<StoredInode> {
        self.create_as(self.number()?, at, attributes)
    }

    /// A number that was never used and will not be given again, for [`create_as`](Self::create_as).
    ///
    /// # Errors
    /// If the store does not answer.
    pub fn number(&self) -> Result<InodeNumber> {
        self.driver.number()
    }

    /// A number that was never used, for a copy of a file. It is higher than all that any node has got before, so such
    /// numbers show which copy is the newest one. Costs a request.
    ///
    /// # Errors
    /// If the store does not answer.
    pub fn number_of_copy(&self) -> Result<InodeNumber> {
        self.driver.highest_number()
    }

    /// As [`create`](Self::create), with a [`number`](Self::number) that was reserved before.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn create_as(
        &self,
        inode: InodeNumber,
        at: &EntryName,
        attributes: &Attributes,
    ) -> Result<StoredInode> {
        check(at)?;
        let create = Operation::Create(at.clone(), inode, opaque(attributes)?);
        Operations::by(&self.driver).operate(&create)?;
        Ok(StoredInode { inode, attributes: attributes.clone(), links: 1 })
    }

    /// As [`create`](Self::create), but accepts an existing file; also returns whether it was made.
    ///
    /// # Errors
    /// As [`create`](Self::create) and [`lookup`](Self::lookup).
    pub fn open_or_create(
        &self,
        at: &EntryName,
        attributes: &Attributes,
    ) -> Result<(StoredInode, bool)> {
        for _ in 0..TRIES {
            match self.create(at, attributes) {
                Err(Failure::Refused(Errno::EXIST)) => {}
                made => return made.map(|stored| (stored, true)),
            }
            match self.lookup(at) {
                // It was removed meanwhile.
                Err(Failure::Refused(Errno::NOENT)) => {}
                found => return found.map(|stored| (stored, false)),
            }
        }
        Err(Failure::Contended)
    }

    /// Makes a directory. Two round trips.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn make_directory(&self, at: &EntryName, attributes: &Attributes) -> Result<StoredInode> {
        self.make_directory_as(self.number()?, at, attributes)
    }

    /// As [`make_directory`](Self::make_directory), with a [`number`](Self::number) that was reserved before.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn make_directory_as(
        &self,
        inode: InodeNumber,
        at: &EntryName,
        attributes: &Attributes,
    ) -> Result<StoredInode> {
        check(at)?;
        let make = Operation::MakeDirectory(at.clone(), inode, opaque(attributes)?);
        Operations::by(&self.driver).operate(&make)?;
        Ok(StoredInode { inode, attributes: attributes.clone(), links: 1 })
    }

    /// Gives a file one more name.
    ///
    /// # Errors
    /// `ENOENT`, `EEXIST`, `EPERM` of a directory, `EMLINK`.
    pub fn link(&self, from: &EntryName, to: &EntryName) -> Result<()> {
        self.link_told(from, to, None).map(drop)
    }

    /// As [`link`](Self::link); returns the file. With `expected`, only if `from` leads to that: `ESTALE`.
    ///
    /// # Errors
    /// As [`link`](Self::link).
    pub fn link_told(
        &self,
        from: &EntryName,
        to: &EntryName,
        expected: Option<InodeNumber>,
    ) -> Result<StoredInode> {
        check(from).and_then(|()| check(to))?;
        let shard = self.driver.numbers(u64::from(TRIES))?;
        let link = Operation::Link(from.clone(), to.clone(), shard);
        let link = link.expecting(expected.map(|of| vec![Some(of)]));
        match Operations::by(&self.driver).operate(&link) {
            Err(Failure::Refused(Errno::ISDIR)) => refused(Errno::PERM),
            found => linked(&found?),
        }
    }

    /// Removes a file's name. Returns what it led to if that was its last name: the bytes may then be removed.
    ///
    /// # Errors
    /// `ENOENT`, `EISDIR`.
    pub fn unlink(&self, at: &EntryName) -> Result<Option<StoredInode>> {
        self.unlink_told(at, None).map(|(_, left)| left.filter(|stored| stored.links == 0))
    }

    /// As [`unlink`](Self::unlink), but also returns a file that has other names left, and how many. With `expected`, the
    /// name is removed only if it leads to that.
    ///
    /// # Errors
    /// As [`unlink`](Self::unlink); `ESTALE` if the name leads to something else than expected.
    pub fn unlink_told(
        &self,
        at: &EntryName,
        expected: Option<InodeNumber>,
    ) -> Result<(Entry, Option<StoredInode>)> {
        check(at)?;
        let unlink = Operation::Unlink(at.clone()).expecting(expected.map(|of| vec![Some(of)]));
        let found = Operations::by(&self.driver).operate(&unlink)?;
        let found = found.last().expect("an unlink reads one name");
        let entry = found.entry.as_ref().expect("what was removed was there");
        Ok((entry.clone(), replaced(found)?))
    }

    /// Removes a name if it leads to the file with this number; returns that, with the number of names left.
    ///
    /// # Errors
    /// Those of the store.
    pub fn unlink_of(&self, at: &EntryName, number: InodeNumber) -> Result<Option<StoredInode>> {
        match self.unlink_told(at, Some(number)) {
            Err(Failure::Refused(Errno::STALE | Errno::NOENT)) => Ok(None),
            done => done.map(|(_, left)| left),
        }
    }

    /// Removes an empty directory; returns its number.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ENOTEMPTY`.
    pub fn remove_directory(&self, at: &EntryName) -> Result<InodeNumber> {
        self.remove_directory_of(at, None)
    }

    /// The same, but with `expected` only if the name leads to that.
    ///
    /// # Errors
    /// As [`remove_directory`](Self::remove_directory); `ESTALE` if the name leads to something else than expected.
    pub fn remove_directory_of(
        &self,
        at: &EntryName,
        expected: Option<InodeNumber>,
    ) -> Result<InodeNumber> {
        check(at)?;
        let remove = Operation::RemoveDirectory(at.clone());
        let remove = remove.expecting(expected.map(|of| vec![Some(of)]));
        let found = Operations::by(&self.driver).operate(&remove)?;
        let entry = found.first().and_then(|found| found.entry.as_ref());
        Ok(entry.expect("what was removed was there").inode())
    }

    /// Renames, as `renameat2` does. Returns what lost its last name by that.
    ///
    /// # Errors
    /// `ENOENT`, `EEXIST`, `ENOTDIR`, `EISDIR`, `ENOTEMPTY`, `EINVAL`.
    pub fn rename(
        &self,
        from: &EntryName,
        to: &EntryName,
        flags: Flags,
    ) -> Result<Option<StoredInode>> {
        Ok(self.rename_told(from, to, flags, None)?.replaced.filter(|stored| stored.links == 0))
    }

    /// As [`rename`](Self::rename); returns all that the names led to before. With `expected`, it is done only if the old
    /// name leads to the first of these, and the new one to the second or to nothing.
    ///
    /// # Errors
    /// As [`rename`](Self::rename); `ESTALE` if a name leads to something else than expected.
    pub fn rename_told(
        &self,
        from: &EntryName,
        to: &EntryName,
        flags: Flags,
        expected: Option<[Option<InodeNumber>; 2]>,
    ) -> Result<Renamed> {
        check(from)?;
        check(to)?;
        let rename = Operation::Rename(from.clone(), to.clone(), flags);
        let rename = rename.expecting(expected.map(Vec::from));
        let found = match Operations::by(&self.driver).operate(&rename) {
            Err(failure @ Failure::Refused(Errno::ISDIR | Errno::NOTDIR | Errno::NOTEMPTY)) => {
                return Err(self.why_not_renamed(from, to).unwrap_or(failure));
            }
            found => found?,
        };
        let [from, to] = found.as_slice() else {
            return Err(NamesError::Unsound("a rename of other than two names".into()).into());
        };
        let is_done = from.entry.as_ref().map(Entry::inode) != to.entry.as_ref().map(Entry::inode);
        let replaced = match flags {
            Flags::Replace if is_done => replaced(to)?,
            _ => None,
        };
        Ok(Renamed { from: from.entry.clone(), to: to.entry.clone(), is_done, replaced })
    }

    /// If one name is above the other, the error that Linux reports instead of a mismatch of directory and file.
    fn why_not_renamed(&self, from: &EntryName, to: &EntryName) -> Option<Failure> {
        let is_above = |above: &EntryName, below: &EntryName| {
            let Ok(Entry::Directory(above)) = self.driver.entry(above) else { return false };
            let mut directory = below.directory;
            for _ in 0..DEPTH_MAX {
                match self.parent(directory) {
                    _ if directory == above => return true,
                    Ok(parent) if parent != directory => directory = parent,
                    _ => return false,
                }
            }
            false
        };
        if is_above(from, to) {
            return Some(Failure::Refused(Errno::INVAL));
        }
        is_above(to, from).then_some(Failure::Refused(Errno::NOTEMPTY))
    }

    /// At most `limit` entries of a directory after `cursor`, in the order in which names were added; and whether there
    /// are no more. A name that exists all the time is listed once, whatever is added or removed meanwhile.
    ///
    /// # Errors
    /// `ENOENT` if it is gone.
    pub fn list(
        &self,
        directory: InodeNumber,
        cursor: u64,
        limit: usize,
    ) -> Result<(Vec<Listed>, bool)> {
        Pages::of(&self.driver).list(directory, cursor, limit)
    }
}
