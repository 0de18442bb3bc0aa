//! What a node has listed of directories, and may believe while it has a lease of them ([`NameStore::lease`]).
//!
//! `ls -l` lists a directory, and then asks for each name in it. A lease says that nobody else changes the directory for a
//! moment; so all names that were listed are right for that long after one round trip. And each call of a program asks for
//! all directories on its path, so names and attributes of a directory that is read again and again are read with a lease. What must hold: a name is believed
//! only if its directory's content is the version that was listed, which the store compares when it gives the lease, and
//! not once a change of this node was made, which the lease does not keep back. So this node's changes are counted before
//! they are sent: a lease counts only if none was under way when it was asked for, or came meanwhile.
//!
//! [`NameStore::lease`]: super::super::NameStore::lease

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use halocline_model::namespace::{Answer, Entry, EntryName, Inode, Name, Opaque, Slot};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// The most names that are kept, and their bytes.
const NAMES_MAX: usize = 1 << 16;
const BYTES_MAX: usize = 64 << 20;
/// So long after it was used last, a listing is worth no round trip.
const IDLE_MAX: Duration = Duration::from_secs(1);
/// So long after a lease was refused none is asked for.
const REFUSED_FOR: Duration = Duration::from_millis(200);
/// The most directories of which something is known, and the longest attributes that are kept of one.
const DIRECTORIES_MAX: usize = 4096;
const ATTRIBUTES_MAX: usize = 4096;
/// Directories share counters.
const COUNTERS: usize = 1024;

/// What is known of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Known {
    /// It leads there now.
    Now(Entry),
    /// It was in this version of the directory: a lease may say that this is its content still.
    Then(u64),
    /// Nothing.
    Nothing,
}

/// A change of this node that is under way, or whose answer was lost.
#[derive(Debug)]
pub(super) struct Changing(Inode);

/// How many changes had begun and ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Changes {
    begun: u64,
    ended: u64,
}

#[derive(Debug, Default)]
struct Counter {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// Listings, by directory.
#[derive(Debug)]
pub(super) struct Listings {
    known: Mutex<Listed>,
    counters: Vec<Counter>,
}

#[derive(Debug, Default)]
struct Listed {
    directories: FxHashMap<u64, Listing>,
    names: usize,
    bytes: usize,
}

#[derive(Debug)]
struct Listing {
    version: u64,
    names: HashMap<Name, Entry>,
    bytes: usize,
    /// Attributes of the directory, and when its names changed.
    attributes: Option<(Opaque, u64)>,
    used: Instant,
    /// When a lease was refused.
    refused: Option<Instant>,
    /// Until when nobody else changes it.
    until: Option<Instant>,
}

impl Default for Listings {
    fn default() -> Self {
        let counters = (0..COUNTERS).map(|_| Counter::default()).collect();
        Self { known: Mutex::default(), counters }
    }
}

impl Listed {
    fn remove(&mut self, directory: Inode) {
        if let Some(listing) = self.directories.remove(&directory.0) {
            self.names -= listing.names.len();
            self.bytes -= listing.bytes;
        }
    }

    /// What is known of a version of a directory; of another one, nothing.
    fn of(&mut self, directory: Inode, version: u64, now: Instant) -> &mut Listing {
        let is_other = |listing: &Listing| listing.version != version;
        if self.directories.get(&directory.0).is_some_and(is_other) {
            self.remove(directory);
        }
        let listing = self.directories.entry(directory.0).or_insert_with(|| Listing {
            version,
            names: HashMap::new(),
            bytes: 0,
            attributes: None,
            used: now,
            refused: None,
            until: None,
        });
        listing.used = now;
        listing
    }

    /// Keeps a name of a directory of which something is known, if there is room.
    fn insert(&mut self, directory: Inode, name: &Name, entry: &Entry) {
        let bytes = size(name, entry);
        if self.names >= NAMES_MAX || self.bytes + bytes > BYTES_MAX {
            return;
        }
        let Some(listing) = self.directories.get_mut(&directory.0) else { return };
        if listing.names.insert(name.clone(), entry.clone()).is_none() {
            listing.bytes += bytes;
            self.names += 1;
            self.bytes += bytes;
        }
    }

    fn drop_idle(&mut self, now: Instant) {
        let is_idle = |listing: &Listing| now.saturating_duration_since(listing.used) > IDLE_MAX;
        let idle: Vec<u64> = self
            .directories
            .iter()
            .filter(|(_, listing)| is_idle(listing))
            .map(|(directory, _)| *directory)
            .collect();
        for directory in idle {
            self.remove(Inode(directory));
        }
    }
}

fn size(name: &Name, entry: &Entry) -> usize {
    let attributes = match entry {
        Entry::Single(_, attributes) => attributes.as_bytes().len(),
        _ => 0,
    };
    name.as_bytes().len() + attributes
}

impl Listings {
    fn counter(&self, directory: Inode) -> &Counter {
        let at = usize::try_from(directory.0 % COUNTERS as u64).unwrap_or_default();
        &self.counters[at]
    }

    /// Keeps a page of a version of a directory; what was listed of another version goes.
    pub(super) fn add(
        &self,
        (directory, version): (Inode, u64),
        page: &[(u64, Name, Entry)],
        now: Instant,
    ) {
        if version == 0 {
            return;
        }
        let known = &mut *self.known.lock();
        known.drop_idle(now);
        known.of(directory, version, now);
        for (_, name, entry) in page {
            known.insert(directory, name, entry);
        }
    }

    /// Keeps what was read of a directory, if there is a lease of it: its version, and until when. `before` was counted
    /// before that was asked for.
    pub(super) fn keep(
        &self,
        (directory, slot): (Inode, &Slot),
        answer: &Answer,
        lease: Option<(u64, Instant)>,
        before: Changes,
    ) {
        let known = &mut *self.known.lock();
        let is_still = before.begun == before.ended && self.changes(directory) == before;
        let Some((version, until)) = lease.filter(|_| is_still) else {
            if let Some(listing) = known.directories.get_mut(&directory.0) {
                listing.refused = Some(listing.used);
            }
            return;
        };
        let used = known.directories.get(&directory.0).map(|listing| listing.used);
        let Some(used) = used else { return };
        let listing = known.of(directory, version, used);
        listing.until = listing.until.max(Some(until));
        match (slot, answer) {
            (Slot::Name(name), Answer::Name(Some(entry), _)) => {
                known.insert(directory, name, entry);
            }
            (Slot::Attributes, Answer::Attributes(attributes, changed))
                if attributes.as_bytes().len() <= ATTRIBUTES_MAX =>
            {
                listing.attributes = Some((attributes.clone(), *changed));
            }
            _ => {}
        }
    }

    /// A directory is read; whether it was so shortly before, so that a lease would help, and may be had.
    pub(super) fn is_read_often(&self, directory: Inode, now: Instant) -> bool {
        let known = &mut *self.known.lock();
        if let Some(listing) = known.directories.get_mut(&directory.0) {
            let is_often = now.saturating_duration_since(listing.used) < IDLE_MAX;
            let is_refused = |at| now.saturating_duration_since(at) < REFUSED_FOR;
            listing.used = now;
            return is_often && !listing.refused.is_some_and(is_refused);
        }
        if known.directories.len() >= DIRECTORIES_MAX {
            known.drop_idle(now);
        }
        if known.directories.len() < DIRECTORIES_MAX {
            known.of(directory, 0, now);
        }
        false
    }

    /// Attributes of a directory, and when its names changed.
    pub(super) fn attributes(&self, directory: Inode, now: Instant) -> Option<(Opaque, u64)> {
        let known = &mut *self.known.lock();
        let listing = known.directories.get_mut(&directory.0)?;
        listing.until.filter(|until| now < *until)?;
        listing.used = now;
        listing.attributes.clone()
    }

    /// What a name leads to.
    pub(super) fn find(&self, at: &EntryName, now: Instant) -> Known {
        let known = &mut *self.known.lock();
        let Some(listing) = known.directories.get_mut(&at.directory.0) else {
            return Known::Nothing;
        };
        if now.saturating_duration_since(listing.used) > IDLE_MAX {
            known.remove(at.directory);
            return Known::Nothing;
        }
        let Some(entry) = listing.names.get(&at.name) else { return Known::Nothing };
        if listing.until.is_some_and(|until| now < until) {
            listing.used = now;
            return Known::Now(entry.clone());
        }
        Known::Then(listing.version)
    }

    /// How many changes of a directory this node has begun and ended, before a lease of it is asked for.
    pub(super) fn changes(&self, directory: Inode) -> Changes {
        let counter = self.counter(directory);
        // In this order, one that ends between the two looks unfinished.
        let ended = counter.ended.load(Ordering::SeqCst);
        Changes { begun: counter.begun.load(Ordering::SeqCst), ended }
    }

    /// A lease of a version was given until then, or refused. `before` was counted before it was asked for.
    pub(super) fn lease(
        &self,
        (directory, version): (Inode, u64),
        until: Option<Instant>,
        before: Changes,
    ) -> bool {
        let known = &mut *self.known.lock();
        // Under the lock under which changes begin and end.
        let is_still = before.begun == before.ended && self.changes(directory) == before;
        let listing = known.directories.get_mut(&directory.0);
        match listing.filter(|listing| listing.version == version) {
            Some(listing) if until.is_some() && is_still => {
                listing.until = listing.until.max(until);
                true
            }
            Some(_) => {
                known.remove(directory);
                false
            }
            None => false,
        }
    }

    /// A change of a shard begins: other nodes may see it before its answer is here.
    pub(super) fn begin_change(&self, shard: Inode) -> Changing {
        let mut known = self.known.lock();
        known.remove(shard);
        self.counter(shard).begun.fetch_add(1, Ordering::SeqCst);
        Changing(shard)
    }

    /// It ended, before its caller hears of it. If its answer was lost it may be made at any time, and its directory is
    /// believed no more.
    pub(super) fn end_change(&self, Changing(shard): Changing, is_over: bool) {
        let mut known = self.known.lock();
        known.remove(shard);
        if is_over {
            self.counter(shard).ended.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const D: Inode = Inode(7);

    fn at(name: &str) -> EntryName {
        EntryName { directory: D, name: Name::from(name) }
    }

    fn page(names: &[&str]) -> Vec<(u64, Name, Entry)> {
        let entry = |(at, name): (usize, &&str)| {
            (at as u64 + 1, Name::from(*name), Entry::Directory(Inode(at as u64)))
        };
        names.iter().enumerate().map(entry).collect()
    }

    fn leased(listings: &Listings, version: u64, until: Instant) -> bool {
        let before = listings.changes(D);
        listings.lease((D, version), Some(until), before)
    }

    #[test]
    fn a_name_is_believed_during_a_lease_of_the_version_that_was_listed() {
        let (listings, now) = (Listings::default(), Instant::now());
        let until = now + Duration::from_millis(40);
        assert_eq!(listings.find(&at("a"), now), Known::Nothing);
        listings.add((D, 5), &page(&["a"]), now);
        assert_eq!(listings.find(&at("a"), now), Known::Then(5));
        assert!(leased(&listings, 5, until));
        assert_eq!(listings.find(&at("a"), now), Known::Now(Entry::Directory(Inode(0))));
        assert_eq!(listings.find(&at("b"), now), Known::Nothing);
        assert_eq!(listings.find(&at("a"), until), Known::Then(5));
        // Another page of it, and then one of another version.
        listings.add((D, 5), &page(&["b"]), now);
        assert!(matches!(listings.find(&at("a"), now), Known::Now(_)));
        listings.add((D, 6), &page(&["b"]), now);
        assert_eq!(listings.find(&at("a"), now), Known::Nothing);
        assert_eq!(listings.find(&at("b"), now), Known::Then(6));
        assert!(!leased(&listings, 5, until));
        // What is refused, or unused for long, is forgotten.
        listings.add((D, 6), &page(&["b"]), now);
        assert!(!listings.lease((D, 6), None, listings.changes(D)));
        assert_eq!(listings.find(&at("b"), now), Known::Nothing);
        listings.add((D, 6), &page(&["b"]), now);
        assert_eq!(listings.find(&at("b"), now + IDLE_MAX * 2), Known::Nothing);
        listings.add((D, 0), &page(&["b"]), now);
        assert_eq!(listings.find(&at("b"), now), Known::Nothing, "of no version");
    }

    #[test]
    fn nothing_is_believed_after_an_own_change_however_it_crosses_a_lease() {
        let (listings, now) = (Listings::default(), Instant::now());
        let until = now + Duration::from_millis(40);
        let listed = || listings.add((D, 5), &page(&["a"]), now);
        listed();
        assert!(leased(&listings, 5, until));
        let change = listings.begin_change(D);
        assert_eq!(listings.find(&at("a"), now), Known::Nothing);
        listings.end_change(change, true);
        // A lease that was asked for before it began, or while it was under way, and pages that came late.
        let before = listings.changes(D);
        let change = listings.begin_change(D);
        let during = listings.changes(D);
        listings.end_change(change, true);
        for asked in [before, during] {
            listed();
            assert!(!listings.lease((D, 5), Some(until), asked));
        }
        listed();
        assert!(leased(&listings, 5, until));
        // One whose answer was lost may come at any time.
        listings.end_change(listings.begin_change(D), false);
        listed();
        assert!(!leased(&listings, 5, until));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let (listings, now) = (Listings::default(), Instant::now());
        for directory in 0..20 {
            let names: Vec<_> = (0..10_000_u64)
                .map(|at| {
                    (at + 1, Name::from(at.to_string().as_str()), Entry::Directory(Inode(at)))
                })
                .collect();
            listings.add((Inode(directory), 1), &names, now);
        }
        assert_eq!(listings.known.lock().names, NAMES_MAX);
        // Others take the place of those that nobody uses.
        listings.add((D, 2), &page(&["a"]), now + IDLE_MAX * 2);
        let kept = |known: &Listed| (known.names, known.directories.len());
        assert_eq!(kept(&listings.known.lock()), (1, 1));
        assert!(matches!(listings.find(&at("a"), now + IDLE_MAX * 2), Known::Then(2)));
    }
}
