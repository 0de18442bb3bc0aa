//! Which changes make an operation, from what was read of it before. What was read may be old: each change compares.

use super::{Body, Change, Entry, Inode};

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EntryName {
    /// The directory.
    pub directory: Inode,
    /// The name.
    pub name: String,
}

impl EntryName {
    fn change(&self, from: Option<Entry>, to: Option<Entry>) -> (Inode, Change) {
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
}

/// The changes of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Plan {
    /// Shards that are made first. No name leads to them if the rest is not done.
    pub(super) made: Vec<(Inode, Body)>,
    /// Changes of other shards than the decider, which are locked in this order. With none, there is no intent.
    pub(super) locked: Vec<(Inode, Change)>,
    /// The shard whose script does it.
    pub(super) decider: Inode,
    /// Its changes.
    pub(super) changes: Vec<Change>,
    /// What the decider's settlements were when its names were read.
    pub(super) settlements: u64,
    /// Directories that get another parent, which must not be below themselves.
    pub(super) moved: Vec<(Inode, Inode)>,
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
    /// Names of a file with several; not used of others.
    pub count: u32,
}

impl Plan {
    /// A file, or a link or device: one script.
    ///
    /// # Errors
    /// If the name is there.
    pub fn create(at: &Found, inode: Inode) -> Result<Self, Refusal> {
        Self::decided_by(at).add(at, Entry::Single(inode))
    }

    /// A directory: its shard first, then one script.
    ///
    /// # Errors
    /// If the name is there.
    pub fn make_directory(at: &Found, inode: Inode) -> Result<Self, Refusal> {
        let mut plan = Self::decided_by(at);
        plan.made.push((inode, Body::directory(at.entry_name.directory)));
        plan.add(at, Entry::Directory(inode))
    }

    /// Removes a file's name. The last one takes the file along.
    ///
    /// # Errors
    /// If it is not there, or a directory.
    pub fn unlink(at: &Found) -> Result<Self, Refusal> {
        match at.entry.ok_or(Refusal::Absent)? {
            Entry::Directory(_) => Err(Refusal::IsADirectory),
            Entry::Single(_) | Entry::Linked(_) => Ok(Self::decided_by(at).replace(at, None)),
        }
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// If it is not there, or no directory.
    pub fn remove_directory(at: &Found) -> Result<Self, Refusal> {
        match at.entry.ok_or(Refusal::Absent)? {
            Entry::Directory(_) => Ok(Self::decided_by(at).replace(at, None)),
            Entry::Single(_) | Entry::Linked(_) => Err(Refusal::NotADirectory),
        }
    }

    /// Gives a file one more name.
    ///
    /// # Errors
    /// If the file is not there or is a directory, if the new name is there, or there would be too many.
    pub fn link(file: &Found, new: &Found) -> Result<Self, Refusal> {
        let entry = file.entry.ok_or(Refusal::Absent)?;
        let linked = Some(Entry::Linked(entry.inode()));
        let mut plan = Self::decided_by(new);
        match entry {
            Entry::Directory(_) => return Err(Refusal::IsADirectory),
            Entry::Single(inode) => {
                plan.made.push((inode, Body::Links { count: 2 }));
                plan.put(new, file.entry_name.change(file.entry, linked));
            }
            Entry::Linked(inode) => {
                let more = file.count.checked_add(1).ok_or(Refusal::TooManyNames)?;
                plan.locked.push((inode, Change::Count(file.count, more)));
                // A name that was taken away meanwhile gives no other one.
                plan.put(new, file.entry_name.change(file.entry, file.entry));
            }
        }
        plan.add(new, Entry::Linked(entry.inode()))
    }

    /// Renames. `None` if there is nothing to do, because both names lead to one file.
    ///
    /// # Errors
    /// As `renameat2` has it. That a directory would be below itself, or that one with entries would be replaced, shows
    /// while it is done.
    pub fn rename(from: &Found, to: &Found, flags: Flags) -> Result<Option<Self>, Refusal> {
        let moved = from.entry.ok_or(Refusal::Absent)?;
        match (flags, to.entry) {
            (Flags::NoReplace, Some(_)) => return Err(Refusal::Exists),
            (Flags::Exchange, None) => return Err(Refusal::Absent),
            (_, Some(target)) if target.inode() == moved.inode() => return Ok(None),
            (Flags::Replace, Some(target)) => kinds_agree(moved, target)?,
            _ => {}
        }
        let left = to.entry.filter(|_| flags == Flags::Exchange);
        let mut plan = Self::decided_by(to);
        plan.put(to, from.entry_name.change(from.entry, left));
        plan.reparent(moved, &from.entry_name, &to.entry_name);
        if let Some(left) = left {
            plan.reparent(left, &to.entry_name, &from.entry_name);
            plan.put(to, to.entry_name.change(to.entry, from.entry));
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
        match at.entry {
            Some(Entry::Directory(inode)) => self.locked.push((inode, Change::End)),
            Some(Entry::Linked(inode)) => {
                self.locked.push((inode, Change::Count(at.count, at.count.saturating_sub(1))));
            }
            Some(Entry::Single(_)) | None => {}
        }
        self.put(at, at.entry_name.change(at.entry, entry));
        self
    }

    /// Adds a change: to the decider's, if it is of `decider`'s directory.
    fn put(&mut self, decider: &Found, (shard, change): (Inode, Change)) {
        if shard == decider.entry_name.directory {
            self.changes.push(change);
        } else {
            self.locked.push((shard, change));
        }
    }

    fn reparent(&mut self, entry: Entry, from: &EntryName, to: &EntryName) {
        if let Entry::Directory(inode) = entry
            && from.directory != to.directory
        {
            self.locked.push((inode, Change::Parent(from.directory, to.directory)));
            self.moved.push((inode, to.directory));
        }
    }
}

fn kinds_agree(moved: Entry, target: Entry) -> Result<(), Refusal> {
    match (moved, target) {
        (Entry::Directory(_), Entry::Directory(_)) => Ok(()),
        (Entry::Directory(_), _) => Err(Refusal::NotADirectory),
        (_, Entry::Directory(_)) => Err(Refusal::IsADirectory),
        _ => Ok(()),
    }
}
