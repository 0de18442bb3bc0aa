//! The changes that make up an operation, computed from what was read before. That may be stale, so each change
//! compares.

use super::{Body, Buckets, Change, Entry, InodeNumber, Links, Name, Opaque};

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EntryName {
    /// The directory.
    pub directory: InodeNumber,
    /// The name.
    pub name: Name,
}

/// What a rename does if the new name exists, as in `renameat2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Flags {
    /// Replace it.
    #[default]
    Replace,
    /// Refuse (`RENAME_NOREPLACE`).
    NoReplace,
    /// Exchange the two names (`RENAME_EXCHANGE`).
    Exchange,
}

/// Why an operation is refused, according to what was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// `EEXIST`.
    Exists,
    /// `ENOENT`.
    Absent,
    /// `ESTALE`: the name leads to another file than the one that was meant.
    Another,
    /// `ENOTDIR`.
    NotADirectory,
    /// `EISDIR`, and `EPERM` for a link to a directory.
    IsADirectory,
    /// `EMLINK`.
    TooManyNames,
    /// `ENOTEMPTY`: a directory would be replaced by something inside it.
    Inside,
}

/// The changes of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Plan {
    /// Shards that are made first. If the rest is not done, no name leads to them.
    pub(super) made: Vec<(InodeNumber, Body)>,
    /// Changes of shards other than the decider, locked in this order. If there are none, no intent is needed.
    pub(super) locked: Vec<(InodeNumber, Change)>,
    /// The shard whose script commits the plan.
    pub(super) decider: InodeNumber,
    /// The changes of the decider.
    pub(super) changes: Vec<Change>,
    /// The decider's count of settlements when its names were read.
    pub(super) settlements: u64,
    /// Directories that get a new parent, each with that parent; none may end up below itself.
    pub(super) moved: Vec<(InodeNumber, InodeNumber)>,
}

/// A name that was read: what it led to, the settlements of its shard, and, for an [`Entry::Linked`], the link count of
/// the file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReadName {
    /// The name.
    pub entry_name: EntryName,
    /// The shard that has it: the directory, or one of its buckets.
    pub shard: InodeNumber,
    /// What it led to.
    pub entry: Option<Entry>,
    /// The settlements of its shard.
    pub settlements: u64,
    /// Of a directory to which it led: its buckets, as far as they are known.
    pub buckets: Buckets,
    /// For a file with several names: the link count and the attributes.
    pub links: Option<Links>,
}

impl ReadName {
    fn change(&self, from: Option<Entry>, to: Option<Entry>) -> (InodeNumber, Change) {
        (self.shard, Change::Name(self.entry_name.name.clone(), from, to))
    }

    /// The links before and after `change`; `None` if the count is not known or leaves its bounds.
    fn counted(&self, change: i32) -> Option<(Links, Links)> {
        let links = self.links.clone()?;
        let count = links.count.checked_add_signed(change)?;
        let after = Links { count, ..links.clone() };
        Some((links, after))
    }
}

impl Plan {
    /// Makes a file, symbolic link or device: one script.
    ///
    /// # Errors
    /// If the name exists.
    pub fn create(at: &ReadName, inode: InodeNumber, attributes: Opaque) -> Result<Self, Refusal> {
        Self::decided_by(at).add(at, Entry::Single(inode, attributes))
    }

    /// Makes a directory: its shard first, then one script.
    ///
    /// # Errors
    /// If the name exists.
    pub fn make_directory(
        at: &ReadName,
        inode: InodeNumber,
        attributes: Opaque,
    ) -> Result<Self, Refusal> {
        let mut plan = Self::decided_by(at);
        plan.made.push((inode, Body::directory(at.entry_name.directory, attributes)));
        plan.add(at, Entry::Directory(inode))
    }

    /// Removes a file's name. Removing the last one removes the file.
    ///
    /// # Errors
    /// If the name does not exist, or is a directory's.
    pub fn unlink(at: &ReadName) -> Result<Self, Refusal> {
        match at.entry.as_ref().ok_or(Refusal::Absent)? {
            Entry::Directory(_) => Err(Refusal::IsADirectory),
            Entry::Single(..) | Entry::Linked(..) => Ok(Self::decided_by(at).replace(at, None)),
        }
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// If the name does not exist, or is not a directory's.
    pub fn remove_directory(at: &ReadName) -> Result<Self, Refusal> {
        match at.entry.as_ref().ok_or(Refusal::Absent)? {
            Entry::Directory(_) => Ok(Self::decided_by(at).replace(at, None)),
            Entry::Single(..) | Entry::Linked(..) => Err(Refusal::NotADirectory),
        }
    }

    /// Gives a file one more name. `shard` must never have been used; it becomes the shard of the links if the file
    /// has only ever had one name.
    ///
    /// # Errors
    /// If the file does not exist or is a directory, if the new name exists, or if there would be too many names.
    pub fn link(file: &ReadName, new: &ReadName, shard: InodeNumber) -> Result<Self, Refusal> {
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
        plan.put(new, file.change(Some(entry), Some(linked.clone())));
        plan.add(new, linked)
    }

    /// Renames. `None` if there is nothing to do, because both names lead to one file.
    ///
    /// # Errors
    /// As in `renameat2`. Two errors appear only while the plan is carried out: a directory would end up below itself,
    /// or a directory with entries would be replaced.
    pub fn rename(from: &ReadName, to: &ReadName, flags: Flags) -> Result<Option<Self>, Refusal> {
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
        plan.put(to, from.change(from.entry.clone(), left.clone()));
        plan.reparent(&moved, &from.entry_name, &to.entry_name);
        if let Some(left) = left {
            plan.reparent(&left, &to.entry_name, &from.entry_name);
            plan.put(to, to.change(to.entry.clone(), from.entry.clone()));
            return Ok(Some(plan));
        }
        Ok(Some(plan.replace(to, Some(moved))))
    }

    /// A plan without changes so far, to be committed in the shard of `at`.
    fn decided_by(at: &ReadName) -> Self {
        let (made, locked, changes, moved) = <_>::default();
        let (decider, settlements) = (at.shard, at.settlements);
        Self { made, locked, decider, changes, settlements, moved }
    }

    fn add(self, at: &ReadName, entry: Entry) -> Result<Self, Refusal> {
        if at.entry.is_some() { Err(Refusal::Exists) } else { Ok(self.replace(at, Some(entry))) }
    }

    /// Makes `at` lead to `entry`, which commits the plan. What it led to before loses a name.
    fn replace(mut self, at: &ReadName, entry: Option<Entry>) -> Self {
        match &at.entry {
            Some(Entry::Directory(inode)) => {
                let bucket = |bucket: &InodeNumber| (*bucket, Change::End(Buckets::default()));
                self.locked.extend(at.buckets.numbers().iter().map(bucket));
                self.locked.push((*inode, Change::End(at.buckets.clone())));
            }
            Some(Entry::Linked(_, shard)) => {
                let (from, to) = at.counted(-1).expect("who has a name has at least one");
                self.locked.push((*shard, Change::Links(from, to)));
            }
            Some(Entry::Single(..)) | None => {}
        }
        self.put(at, at.change(at.entry.clone(), entry));
        self
    }

    /// Adds a change: to the decider's changes if it concerns `decider`'s shard, otherwise to the locked ones.
    fn put(&mut self, decider: &ReadName, (shard, change): (InodeNumber, Change)) {
        if shard == decider.shard {
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
