//! The cached content of each directory, within bounds.

use std::collections::HashMap;
use std::time::Instant;

use halocline_model::namespace::{Change, Entry, EntryName, InodeNumber, Name, Opaque, Script};
use rustc_hash::FxHashMap;

use super::{
    ATTRIBUTES_MAX, BYTES_MAX, ChangedDirectory, DIRECTORIES_MAX, IDLE_MAX, LATE_MAX, NAMES_MAX,
    There,
};

/// The parts of a directory that a script in progress changes.
#[derive(Debug, Clone)]
pub(super) enum UnderWay {
    /// These names, and maybe the attributes, which include the time at which names changed.
    Some(Vec<Name>, bool),
    /// Anything.
    All,
}

/// All cached directories.
#[derive(Debug, Clone, Default)]
pub(super) struct Listed {
    directories: FxHashMap<u64, Listing>,
    /// This node's scripts in progress, with their numbers.
    under_way: FxHashMap<u64, Vec<(u64, UnderWay)>>,
    names: usize,
    bytes: usize,
}

/// The cached version of a directory.
#[derive(Debug, Clone)]
pub(super) struct Listing {
    pub(super) version: u64,
    /// What each name leads to; `None` for a free name.
    names: HashMap<Name, Option<Entry>>,
    bytes: usize,
    /// All names up to this place are cached.
    pub(super) listed_to: Option<u64>,
    /// Whether all names are cached.
    pub(super) is_complete: bool,
    /// The directory's attributes, and when its names changed.
    pub(super) attributes: Option<(Opaque, u64)>,
    pub(super) used: Instant,
    /// When a lease was refused.
    pub(super) refused: Option<Instant>,
    /// The end of the lease: until then nobody else changes the directory.
    pub(super) until: Option<Instant>,
    /// Changes of later versions whose answers overtook those of earlier changes.
    late: Vec<Late>,
}

/// A change that waits for earlier ones; what it changes is not trusted meanwhile.
#[derive(Debug, Clone)]
pub(super) struct Late {
    pub(super) number: u64,
    pub(super) script: Script,
    pub(super) followed: ChangedDirectory,
    pub(super) until: Option<Instant>,
}

impl Listing {
    const fn new(version: u64, names: HashMap<Name, Option<Entry>>, now: Instant) -> Self {
        Self {
            version,
            names,
            bytes: 0,
            listed_to: None,
            is_complete: false,
            attributes: None,
            used: now,
            refused: None,
            until: None,
            late: Vec::new(),
        }
    }

    /// What a name leads to, if that is known.
    pub(super) fn find(&self, name: &Name) -> Option<There> {
        match self.names.get(name) {
            Some(Some(entry)) => Some(There::Entry(entry.clone())),
            Some(None) => Some(There::Nothing),
            None => self.is_complete.then_some(There::Nothing),
        }
    }

    pub(super) fn set_attributes(&mut self, attributes: &Opaque, changed: u64) {
        let is_short = attributes.as_bytes().len() <= ATTRIBUTES_MAX;
        self.attributes = is_short.then(|| (attributes.clone(), changed));
    }
}

fn size(name: &Name, entry: Option<&Entry>) -> usize {
    let attributes = match entry {
        Some(Entry::Single(_, attributes)) => attributes.as_bytes().len(),
        _ => 0,
    };
    name.as_bytes().len() + attributes
}

impl Listed {
    pub(super) fn get(&mut self, directory: InodeNumber) -> Option<&mut Listing> {
        self.directories.get_mut(&directory.0)
    }

    pub(super) fn remove(&mut self, directory: InodeNumber) {
        self.forget_names(directory);
        let Some(listing) = self.directories.remove(&directory.0) else { return };
        for late in listing.late {
            self.end(directory, late.number);
        }
    }

    /// Keeps a change until the earlier ones are answered, if some of them are in progress; returns whether it did.
    pub(super) fn keep_late(&mut self, directory: InodeNumber, late: Late) -> bool {
        let under_way = self.under_way.get(&directory.0).map_or(0, Vec::len);
        let Some(listing) = self.directories.get_mut(&directory.0) else { return false };
        let may_be_next = listing.version < late.followed.before
            // This change is one of them.
            && under_way > listing.late.len() + 1
            && listing.late.len() < LATE_MAX;
        if may_be_next {
            listing.late.push(late);
        }
        may_be_next
    }

    /// The change that is now next.
    pub(super) fn next_late(&mut self, directory: InodeNumber) -> Option<Late> {
        let listing = self.directories.get_mut(&directory.0)?;
        let is_next = |late: &Late| late.followed.before == listing.version;
        let at = listing.late.iter().position(is_next)?;
        Some(listing.late.swap_remove(at))
    }

    /// Drops a directory whose changes wait for other changes that nobody makes.
    pub(super) fn drop_gap(&mut self, directory: InodeNumber) {
        let under_way = self.under_way.get(&directory.0).map_or(0, Vec::len);
        let late = self.directories.get(&directory.0).map_or(0, |listing| listing.late.len());
        if late > 0 && under_way == late {
            self.remove(directory);
        }
    }

    fn forget_names(&mut self, directory: InodeNumber) {
        let Some(listing) = self.directories.get_mut(&directory.0) else { return };
        self.names -= listing.names.len();
        self.bytes -= listing.bytes;
        (listing.names, listing.bytes) = (HashMap::new(), 0);
        (listing.listed_to, listing.is_complete) = (None, false);
    }

    /// The listing of a version of a directory; empty if another version was cached.
    pub(super) fn of(
        &mut self,
        directory: InodeNumber,
        version: u64,
        now: Instant,
    ) -> &mut Listing {
        let is_other = |listing: &Listing| listing.version != version;
        if self.directories.get(&directory.0).is_some_and(is_other) {
            self.remove(directory);
        }
        let new = || Listing::new(version, HashMap::new(), now);
        let listing = self.directories.entry(directory.0).or_insert_with(new);
        listing.used = now;
        listing
    }

    /// Caches what a name of a cached directory leads to, if there is room. Returns whether it did, and dropped nothing
    /// else. A directory that takes half of all room makes room by dropping its own names.
    pub(super) fn insert(
        &mut self,
        directory: InodeNumber,
        name: &Name,
        entry: Option<&Entry>,
    ) -> bool {
        self.forget_name(directory, name);
        let bytes = size(name, entry);
        let is_full = |all: &Self| all.names >= NAMES_MAX || all.bytes + bytes > BYTES_MAX;
        let mut are_kept = true;
        if is_full(self) {
            let Some(listing) = self.get(directory) else { return false };
            // From now on a name that is not cached need not be free.
            (listing.listed_to, listing.is_complete) = (None, false);
            if listing.names.len() < NAMES_MAX / 2 && listing.bytes < BYTES_MAX / 2 {
                return false;
            }
            self.forget_names(directory);
            are_kept = false;
        }
        let Some(listing) = self.get(directory) else { return false };
        listing.names.insert(name.clone(), entry.cloned());
        listing.bytes += bytes;
        self.names += 1;
        self.bytes += bytes;
        are_kept
    }

    fn forget_name(&mut self, directory: InodeNumber, name: &Name) {
        let Some(listing) = self.directories.get_mut(&directory.0) else { return };
        let Some(entry) = listing.names.remove(name) else { return };
        let bytes = size(name, entry.as_ref());
        listing.bytes -= bytes;
        self.names -= 1;
        self.bytes -= bytes;
    }

    /// Applies a change to a cached directory.
    pub(super) fn apply(&mut self, directory: InodeNumber, change: &Change, changed: u64) {
        let Some(listing) = self.directories.get_mut(&directory.0) else { return };
        match change {
            // Its absence from the complete listing says the same.
            Change::Name(name, _, None) if listing.is_complete => {
                self.forget_name(directory, name);
            }
            Change::Name(name, _, to) => {
                self.insert(directory, name, to.as_ref());
            }
            Change::Attributes { to, .. } => listing.set_attributes(to, changed),
            Change::Parent(..) => {}
            Change::Links(..) | Change::End(_) | Change::Split { .. } => self.remove(directory),
        }
    }

    /// Whether there is room for one more directory.
    pub(super) fn has_room(&mut self, now: Instant) -> bool {
        if self.directories.len() >= DIRECTORIES_MAX {
            self.drop_idle(now);
        }
        self.directories.len() < DIRECTORIES_MAX
    }

    pub(super) fn drop_idle(&mut self, now: Instant) {
        let is_idle = |listing: &Listing| now.saturating_duration_since(listing.used) > IDLE_MAX;
        let idle: Vec<u64> = self
            .directories
            .iter()
            .filter(|(_, listing)| is_idle(listing))
            .map(|(directory, _)| *directory)
            .collect();
        for directory in idle {
            self.remove(InodeNumber(directory));
        }
    }

    pub(super) fn forget(&mut self) {
        let all: Vec<u64> = self.directories.keys().copied().collect();
        for directory in all {
            self.remove(InodeNumber(directory));
        }
    }

    /// Notes that a script is sent.
    pub(super) fn begin(&mut self, shard: InodeNumber, number: u64, what: UnderWay) {
        if matches!(what, UnderWay::All) {
            self.remove(shard);
        }
        self.under_way.entry(shard.0).or_default().push((number, what));
    }

    /// Notes that it was answered, or that its answer is lost.
    pub(super) fn end(&mut self, shard: InodeNumber, number: u64) {
        let Some(under_way) = self.under_way.get_mut(&shard.0) else { return };
        under_way.retain(|(other, _)| *other != number);
        if under_way.is_empty() {
            self.under_way.remove(&shard.0);
        }
    }

    /// Whether a script of this node that changes a directory's attributes is under way.
    pub(super) fn changes_attributes(&self, directory: InodeNumber) -> bool {
        let changes = |what: &UnderWay| !matches!(what, UnderWay::Some(_, false));
        let under_way = self.under_way.get(&directory.0);
        under_way.is_some_and(|all| all.iter().any(|(_, what)| changes(what)))
    }

    /// Whether a script in progress changes what a name leads to.
    pub(super) fn changes_name(&self, at: &EntryName) -> bool {
        let changes = |what: &UnderWay| match what {
            UnderWay::All => true,
            UnderWay::Some(names, _) => names.contains(&at.name),
        };
        let under_way = self.under_way.get(&at.directory.0);
        under_way.is_some_and(|all| all.iter().any(|(_, what)| changes(what)))
    }

    #[cfg(test)]
    pub(super) fn is_bounded(&self) -> bool {
        self.names <= NAMES_MAX
            && self.bytes <= BYTES_MAX
            && self.directories.len() <= DIRECTORIES_MAX
    }

    #[cfg(test)]
    pub(super) const fn counted(&self) -> (usize, usize) {
        (self.names, self.bytes)
    }
}
