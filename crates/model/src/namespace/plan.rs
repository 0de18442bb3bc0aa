//! Which changes make an operation, from what was read of it before. What was read may be old: each change compares.

use super::{Body, Change, Entry, InodeNumber, Links, Name, Opaque};

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EntryName {
    /// The directory.
    pub directory: InodeNumber,
    /// The name.
    pub name: Name,
}

impl EntryName {
    fn change(&self, from: Option<Entry>, to: Option<Entry>) -> (InodeNumber, Change) {
        (self.directory, Change::Name(self.name.clone(), from, to))
    }
}

/// What a rename does with a name that is there, as `renameat2` has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Flags {
    /// Replace it.
    #[default]
    Replace,
    /// Refuse (`RENAME_NOREPLACE`).
    NoReplace,
    /// Let it have the other name (`RENAME_EXCHANGE`).
    Exchange,
}

/// Why an operation is refused, by what was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// `EEXIST`.
    Exists,
    /// `ENOENT`.
    Absent,
    /// `ENOTDIR`.
    NotADirectory,
    /// `EISDIR`, and `EPERM` for a link to a directory.
    IsADirectory,
    /// `EMLINK`.
    TooManyNames,
    /// `ENOTEMPTY`: a directory would be replaced by what is in it.
    Inside,
}

/// The changes of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Plan {
    /// Shards that are made first. No name leads to them if the rest is not done.
    pub(super) made: Vec<(InodeNumber, Body)>,
    /// Changes of other shards than the decider, which are locked in this order. With none, there is no intent.
    pub(super) locked: Vec<(InodeNumber, Change)>,
    /// The shard whose script does it.
    pub(super) decider: InodeNumber,
    /// Its changes.
    pub(super) changes: Vec<Change>,
    /// What the decider's settlements were when its names were read.
    pub(super) settlements: u64,
    /// Directories that get another parent, which must not be below themselves.
    pub(super) moved: Vec<(InodeNumber, InodeNumber)>,
}

/// A name that was read: what it led to, the settlements of its directory, and how many names the file has if
/// it is [`Entry::Linked`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Found {
    /// Where.
    pub entry_name: EntryName,
    /// What it led to.
    pub entry: Option<Entry>,
    /// The settlements of its directory.
    pub settlements: u64,
    /// Of a file with several names: how many, and its attributes.
    pub links: Option<Links>,
}

impl Found {
    /// What a file with several names has, one name more or less: `None` if there would be too many, or none is known.
    fn counted(&self, change: i32) -> Option<(Links, Links)> {
        let links = self.links.clone()?;
        let count = links.count.checked_add_signed(change)?;
        let after = Links { count, ..links.clone() };
        Some((links, after))
    }
}

impl Plan {
    /// A file, or a link or device: one script.
    ///
    /// # Errors
    /// If the name is there.
    pub fn create(at: &Found, inode: InodeNumber, attributes: Opaque) -> Result<Self, Refusal> {
        Self::decided_by(at).add(at, Entry::Single(inode, attributes))
    }

    /// A directory: its shard first, then one script.
    ///
    /// # Errors
    /// If the name is there.
    pub fn make_directory(
        at: &Found,
        inode: InodeNumber,
        attributes: Opaque,
    ) -> Result<Self, Refusal> {
        let mut plan = Self::decided_by(at);
        plan.made.push((inode, Body::directory(at.entry_name.directory, attributes)));
        plan.add(at, Entry::Directory(inode))
    }

    /// Removes a file's name. The last one takes the file along.
    ///
    /// # Errors
    /// If it is not there, or a directory.
    pub fn unlink(at: &Found) -> Result<Self, Refusal> {
        match at.entry.as_ref().ok_or(Refusal::Absent)? {
            Entry::Directory(_) => Err(Refusal::IsADirectory),
            Entry::Single(..) | Entry::Linked(..) => Ok(Self::decided_by(at).replace(at, None)),
        }
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// If it is not there, or no directory.
    pub fn remove_directory(at: &Found) -> Result<Self, Refusal> {
        match at.entry.as_ref().ok_or(Refusal::Absent)? {
            Entry::Directory(_) => Ok(Self::decided_by(at).replace(at, None)),
            Entry::Single(..) | Entry::Linked(..) => Err(Refusal::NotADirectory),
        }
    }

    /// Gives a file one more name. `shard` was never used: of its names, if it has had one only.
    ///
    /// # Errors
    /// If the file is not there or is a directory, if the new name is there, or there would be too many.
    pub fn link(file: &Found, new: &Found, shard: InodeNumber) -> Result<Self, Refusal> {
        let entry = file.entry.clone().ok_or(Refusal::Absent)?;
        if new.entry.is_some() {
            return Err(Refusal::Exists);
        }
        let mut plan = Self::decided_by(new);
        let linked = match &entry {
            Entry::Directory(_) => return Err(Refusal::IsADirectory),
            Entry::Single(inode, attributes) => {
                let links = Links { count: 2, attributes: attributes.clone() };
                plan.made.push((shard, Body::Links(links)));
                Entry::Linked(*inode, shard)
            }
            Entry::Linked(_, links) => {
                let (from, to) = file.counted(1).ok_or(Refusal::TooManyNames)?;
                plan.locked.push((*links, Change::Links(from, to)));
                // A name that was taken away meanwhile gives no other one.
                entry.clone()
            }
        };
        plan.put(new, file.entry_name.change(Some(entry), Some(linked.clone())));
        plan.add(new, linked)
    }

    /// Renames. `None` if there is nothing to do, because both names lead to one file.
    ///
    /// # Errors
    /// As `renameat2` has it. That a directory would be below itself, or that one with entries would be replaced, shows
    /// while it is done.
    pub fn rename(from: &Found, to: &Found, flags: Flags) -> Result<Option<Self>, Refusal> {
        let moved = from.entry.clone().ok_or(Refusal::Absent)?;
        match (flags, &to.entry) {
            (Flags::NoReplace, Some(_)) => return Err(Refusal::Exists),
            (Flags::Exchange, None) => return Err(Refusal::Absent),
            (_, Some(target)) if target.inode() == moved.inode() => return Ok(None),
            (Flags::Replace, Some(Entry::Directory(inode)))
                if *inode == from.entry_name.directory =>
            {
                return Err(Refusal::Inside);
            }
            (Flags::Replace, Some(target)) => kinds_agree(&moved, target)?,
            _ => {}
        }
        let left = to.entry.clone().filter(|_| flags == Flags::Exchange);
        let mut plan = Self::decided_by(to);
        plan.put(to, from.entry_name.change(from.entry.clone(), left.clone()));
        plan.reparent(&moved, &from.entry_name, &to.entry_name);
        if let Some(left) = left {
            plan.reparent(&left, &to.entry_name, &from.entry_name);
            plan.put(to, to.entry_name.change(to.entry.clone(), from.entry.clone()));
            return Ok(Some(plan));
        }
        Ok(Some(plan.replace(to, Some(moved))))
    }

    /// One that changes nothing yet, and is committed in the directory of `at`.
    fn decided_by(at: &Found) -> Self {
        let (made, locked, changes, moved) = <_>::default();
        let (decider, settlements) = (at.entry_name.directory, at.settlements);
        Self { made, locked, decider, changes, settlements, moved }
    }

    fn add(self, at: &Found, entry: Entry) -> Result<Self, Refusal> {
        if at.entry.is_some() { Err(Refusal::Exists) } else { Ok(self.replace(at, Some(entry))) }
    }

    /// Makes `at` lead to something else, which commits the plan. What it led to loses a name.
    fn replace(mut self, at: &Found, entry: Option<Entry>) -> Self {
        match &at.entry {
            Some(Entry::Directory(inode)) => self.locked.push((*inode, Change::End)),
            Some(Entry::Linked(_, shard)) => {
                let (from, to) = at.counted(-1).expect("who has a name has at least one");
                self.locked.push((*shard, Change::Links(from, to)));
            }
            Some(Entry::Single(..)) | None => {}
        }
        self.put(at, at.entry_name.change(at.entry.clone(), entry));
        self
    }

    /// Adds a change: to the decider's, if it is of `decider`'s directory.
    fn put(&mut self, decider: &Found, (shard, change): (InodeNumber, Change)) {
        if shard == decider.entry_name.directory {
            self.changes.push(change);
        } else {
            self.locked.push((shard, change));
        }
    }

    fn reparent(&mut self, entry: &Entry, from: &EntryName, to: &EntryName) {
        if let Entry::Directory(inode) = entry
            && from.directory != to.directory
        {
            self.locked.push((*inode, Change::Parent(from.directory, to.directory)));
            self.moved.push((*inode, to.directory));
        }
    }
}

fn kinds_agree(moved: &Entry, target: &Entry) -> Result<(), Refusal> {
    match (moved, target) {
        (Entry::Directory(_), Entry::Directory(_)) => Ok(()),
        (Entry::Directory(_), _) => Err(Refusal::NotADirectory),
        (_, Entry::Directory(_)) => Err(Refusal::IsADirectory),
        _ => Ok(()),
    }
}
