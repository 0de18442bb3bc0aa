//! What is known of each directory, within bounds.

use std::collections::HashMap;
use std::time::Instant;

use halocline_model::namespace::{Change, Entry, EntryName, InodeNumber, Name, Opaque, Script};
use rustc_hash::FxHashMap;

use super::{
    ATTRIBUTES_MAX, BYTES_MAX, DIRECTORIES_MAX, Followed, IDLE_MAX, LATE_MAX, NAMES_MAX, There,
};

/// What of a directory a script changes that is under way.
#[derive(Debug, Clone)]
pub(super) enum UnderWay {
    /// These names, and maybe the attributes, of which one is when names changed.
    Some(Vec<Name>, bool),
    /// Anything.
    All,
}

/// All directories of which something is known.
#[derive(Debug, Clone, Default)]
pub(super) struct Listed {
    directories: FxHashMap<u64, Listing>,
    /// This node's scripts that are under way, with their numbers.
    under_way: FxHashMap<u64, Vec<(u64, UnderWay)>>,
    names: usize,
    bytes: usize,
}

/// A version of a directory.
#[derive(Debug, Clone)]
pub(super) struct Listing {
    pub(super) version: u64,
    /// Where names lead, or that they lead nowhere.
    names: HashMap<Name, Option<Entry>>,
    bytes: usize,
    /// Up to this place all names are known.
    pub(super) listed_to: Option<u64>,
    /// Whether all names are known.
    pub(super) is_complete: bool,
    /// Attributes of the directory, and when its names changed.
    pub(super) attributes: Option<(Opaque, u64)>,
    pub(super) used: Instant,
    /// When a lease was refused.
    pub(super) refused: Option<Instant>,
    /// Until when nobody else changes it.
    pub(super) until: Option<Instant>,
    /// Changes of later versions that were answered before those which came before them.
    late: Vec<Late>,
}

/// A change that waits for those before it; what it changes is not believed meanwhile.
#[derive(Debug, Clone)]
pub(super) struct Late {
    pub(super) number: u64,
    pub(super) script: Script,
    pub(super) followed: Followed,
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

    /// What is at a name, if that is known.
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

    /// Keeps a change for when those before it are answered, of which some are under way; whether it did.
    pub(super) fn keep_late(&mut self, directory: InodeNumber, late: Late) -> bool {
        let under_way = self.under_way.get(&directory.0).map_or(0, Vec::len);
        let Some(listing) = self.directories.get_mut(&directory.0) else { return false };
        let may_be_next = listing.version < late.followed.before
            // The change itself is one of them.
            && under_way > listing.late.len() + 1
            && listing.late.len() < LATE_MAX;
        if may_be_next {
            listing.late.push(late);
        }
        may_be_next
    }

    /// The change that is next by now.
    pub(super) fn next_late(&mut self, directory: InodeNumber) -> Option<Late> {
        let listing = self.directories.get_mut(&directory.0)?;
        let is_next = |late: &Late| late.followed.before == listing.version;
        let at = listing.late.iter().position(is_next)?;
        Some(listing.late.swap_remove(at))
    }

    /// Forgets a directory of which changes wait for others that nobody makes.
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

    /// What is known of a version of a directory; of another one, nothing.
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

    /// Keeps where a name of a directory leads of which something is known, if there is room; whether it did, and all that
    /// was known before is known still. A directory that takes half of all room gives way to itself.
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
            // A name that is missing now is not one that leads nowhere.
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

    /// Makes a change of a directory of which something is known.
    pub(super) fn apply(&mut self, directory: InodeNumber, change: &Change, changed: u64) {
        let Some(listing) = self.directories.get_mut(&directory.0) else { return };
        match change {
            // That it is not among them says the same.
            Change::Name(name, _, None) if listing.is_complete => {
                self.forget_name(directory, name);
            }
            Change::Name(name, _, to) => {
                self.insert(directory, name, to.as_ref());
            }
            Change::Attributes { to, .. } => listing.set_attributes(to, changed),
            Change::Parent(..) => {}
            Change::Links(..) | Change::End => self.remove(directory),
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

    /// A script is sent.
    pub(super) fn begin(&mut self, shard: InodeNumber, number: u64, what: UnderWay) {
        if matches!(what, UnderWay::All) {
            self.remove(shard);
        }
        self.under_way.entry(shard.0).or_default().push((number, what));
    }

    /// It was answered, or its answer is lost.
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

    /// Whether one is under way that changes where a name leads.
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
