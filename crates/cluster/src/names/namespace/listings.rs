//! A node's cache of directories, which it may trust while it has a lease of them ([`NameStore::lease`]).
//!
//! `ls -l` lists a directory and then looks up each name in it. A lease says that nobody else changes the directory for
//! a moment, so after one round trip all listed names are right for that long. And each call of a program looks up all
//! directories on its path, so a directory that is read again and again is read with a lease. A change by this node
//! gets a lease at once if others leave the directory alone: so the node knows the result of the change, and which
//! names are free in a directory that it made or listed completely.
//!
//! What must hold: a name is trusted only if the directory's content is the version cached here, which the store
//! compares when it grants the lease. The lease does not hold back this node's own changes, so these are noted before
//! they are sent. The names that they concern are not trusted while they are in progress, because others may see the
//! change before its answer arrives. If the answer says that the change was made on the cached version, the cache moves
//! to the next version ([`ChangedDirectory`]); an answer that overtook those of earlier changes waits for them; after any other
//! answer nothing is trusted. A read of a version other than the cached one counts only if no change was in progress
//! when it was sent, and none came meanwhile.
//!
//! [`NameStore::lease`]: super::super::NameStore::lease

#[cfg(test)]
mod explored;
mod listing;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use halocline_model::namespace::{
    Answer, Body, Change, Entry, EntryName, InodeNumber, Name, Opaque, Script, Slot,
};
use parking_lot::Mutex;

use super::super::{ChangedDirectory, LeaseAnswer};
use listing::{Late, Listed, UnderWay};

/// The most names that are cached, and their bytes.
const NAMES_MAX: usize = 1 << 16;
const BYTES_MAX: usize = 64 << 20;
/// After this time without use, a listing is not worth a round trip.
const IDLE_MAX: Duration = Duration::from_secs(1);
/// After a lease was refused, none is requested for this long.
const REFUSED_FOR: Duration = Duration::from_millis(200);
/// The most directories that are cached, and the longest attributes that are kept of one.
const DIRECTORIES_MAX: usize = 4096;
const ATTRIBUTES_MAX: usize = 4096;
/// The most changes of a directory that wait for earlier ones.
const LATE_MAX: usize = 64;
/// Number of counters; directories share them.
const COUNTERS: usize = if cfg!(test) { 16 } else { 1024 };

/// What a name leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum There {
    /// An entry.
    Entry(Entry),
    /// Nothing: the name is free.
    Nothing,
}

impl There {
    /// The same in the form of an answer.
    pub(super) fn entry(self) -> Option<Entry> {
        match self {
            Self::Entry(entry) => Some(entry),
            Self::Nothing => None,
        }
    }
}

/// What is cached for a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CachedName {
    /// What it leads to now.
    Now(There),
    /// What it led to in this version of the directory; a lease may confirm that the version is still current.
    Then(u64, There),
    /// Nothing.
    Nothing,
}

/// A change by this node in progress.
#[derive(Debug, Clone, Copy)]
pub(super) struct Changing {
    shard: InodeNumber,
    /// The counts before it began.
    before: ChangeCounts,
}

/// How a change ended.
#[derive(Debug)]
pub(super) enum End<'a> {
    /// Its answer was lost: it may still be made at any time.
    Lost,
    /// It was not made, or its result is unknown.
    Unknown,
    /// This script ran, and said what changed in the directory; if a lease was granted, it lasts until then.
    Made(&'a Script, ChangedDirectory, Instant),
}

/// How many changes had begun and how many had ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChangeCounts {
    begun: u64,
    ended: u64,
}

impl ChangeCounts {
    fn is_quiet(self) -> bool {
        self.begun == self.ended
    }
}

#[derive(Debug, Default)]
struct Counter {
    begun: AtomicU64,
    ended: AtomicU64,
    /// Whether an answer was lost: that change may be made at any time, so nothing is trusted any more.
    lost: AtomicBool,
}

/// The cached directories.
#[derive(Debug)]
pub(super) struct Listings {
    known: Mutex<Listed>,
    counters: Vec<Counter>,
}

impl Default for Listings {
    fn default() -> Self {
        let counters = (0..COUNTERS).map(|_| Counter::default()).collect();
        Self { known: Mutex::default(), counters }
    }
}

/// The parts of a directory that must not be trusted while a script is in progress.
fn touched(script: &Script) -> UnderWay {
    let name = |change: &Change| match change {
        Change::Name(name, ..) => Some(name.clone()),
        _ => None,
    };
    let is_of_attributes =
        |change: &Change| change.changes_names() || !matches!(change, Change::Name(..));
    match script {
        // Its names are elsewhere then.
        Script::Alone(changes) if matches!(changes[..], [Change::Split { .. }]) => UnderWay::All,
        Script::Alone(changes) => {
            let names = changes.iter().filter_map(name).collect();
            UnderWay::Some(names, changes.iter().any(is_of_attributes))
        }
        Script::Make(_) => UnderWay::Some(Vec::new(), true),
        _ => UnderWay::All,
    }
}

impl Listings {
    fn counter(&self, directory: InodeNumber) -> &Counter {
        let at = usize::try_from(directory.0 % COUNTERS as u64).unwrap_or_default();
        &self.counters[at]
    }

    fn is_lost(&self, directory: InodeNumber) -> bool {
        self.counter(directory).lost.load(Ordering::SeqCst)
    }

    /// Caches a page of a version of a directory, with the names after a place; what is cached of other versions is
    /// dropped. `before` was counted before the page was requested.
    pub(super) fn add(
        &self,
        (directory, version): (InodeNumber, u64),
        (after, page, is_last): (u64, &[(u64, Name, Entry)], bool),
        before: ChangeCounts,
        now: Instant,
    ) {
        if version == 0 {
            return;
        }
        let known = &mut *self.known.lock();
        known.drop_idle(now);
        // A change by this node may already have made a later version, and a lease for the page's version may be on
        // its way here: a lease does not hold back our own changes.
        let is_still = before.is_quiet() && self.changes(directory) == before;
        if !is_still && known.get(directory).is_none_or(|listing| listing.version != version) {
            return;
        }
        known.of(directory, version, now);
        let mut are_kept = true;
        for (_, name, entry) in page {
            are_kept &= known.insert(directory, name, Some(entry));
        }
        let Some(listing) = known.get(directory) else { return };
        if after != 0 && listing.listed_to != Some(after) {
            return;
        }
        listing.listed_to = page.last().map(|(last, ..)| *last).filter(|_| are_kept);
        listing.is_complete = is_last && are_kept;
    }

    /// Caches what was read of a directory, if there is a lease of it: its version, and until when. `before` was
    /// counted before the read was sent.
    pub(super) fn keep(
        &self,
        (directory, slot): (InodeNumber, &Slot),
        answer: &Answer,
        lease: Option<(u64, Instant)>,
        before: ChangeCounts,
    ) {
        let known = &mut *self.known.lock();
        let is_still = before.is_quiet() && self.changes(directory) == before;
        let Some(listing) = known.get(directory) else { return };
        let Some((version, until)) = lease else {
            listing.refused = Some(listing.used);
            return;
        };
        // A change by this node may already have made a later version.
        if !is_still && listing.version != version {
            return;
        }
        let used = listing.used;
        let listing = known.of(directory, version, used);
        listing.until = listing.until.max(Some(until));
        match (slot, answer) {
            (Slot::Name(name), Answer::Name(entry, _)) => {
                known.insert(directory, name, entry.as_ref());
            }
            (Slot::Attributes, Answer::Attributes(attributes, changed)) => {
                listing.set_attributes(attributes, *changed);
            }
            _ => {}
        }
    }

    /// Notes that a directory is read. Returns whether it was read shortly before, so that a lease would help, and one
    /// may be granted.
    pub(super) fn is_read_often(&self, directory: InodeNumber, now: Instant) -> bool {
        let known = &mut *self.known.lock();
        if let Some(listing) = known.get(directory) {
            let is_often = now.saturating_duration_since(listing.used) < IDLE_MAX;
            let is_refused = |at| now.saturating_duration_since(at) < REFUSED_FOR;
            listing.used = now;
            return is_often && !listing.refused.is_some_and(is_refused);
        }
        if known.has_room(now) {
            known.of(directory, 0, now);
        }
        false
    }

    /// The attributes of a directory, and when its names changed.
    pub(super) fn attributes(&self, directory: InodeNumber, now: Instant) -> Option<(Opaque, u64)> {
        let known = &mut *self.known.lock();
        if known.changes_attributes(directory) || self.is_lost(directory) {
            return None;
        }
        let listing = known.get(directory)?;
        listing.until.filter(|until| now < *until)?;
        listing.used = now;
        listing.attributes.clone()
    }

    /// For how long nobody else changes a directory whose attributes are cached.
    pub(super) fn lease_left(&self, directory: InodeNumber, now: Instant) -> Duration {
        let known = &mut *self.known.lock();
        if known.changes_attributes(directory) || self.is_lost(directory) {
            return Duration::ZERO;
        }
        let listing = known.get(directory).filter(|listing| listing.attributes.is_some());
        let until = listing.and_then(|listing| listing.until);
        until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }

    /// What a name leads to.
    pub(super) fn find(&self, at: &EntryName, now: Instant) -> CachedName {
        let known = &mut *self.known.lock();
        let is_known = !known.changes_name(at) && !self.is_lost(at.directory);
        let Some(listing) = known.get(at.directory).filter(|_| is_known) else {
            return CachedName::Nothing;
        };
        if now.saturating_duration_since(listing.used) > IDLE_MAX {
            known.remove(at.directory);
            return CachedName::Nothing;
        }
        let Some(entry) = listing.find(&at.name) else { return CachedName::Nothing };
        if listing.until.is_some_and(|until| now < until) {
            listing.used = now;
            return CachedName::Now(entry);
        }
        CachedName::Then(listing.version, entry)
    }

    /// How many changes of a directory this node has begun and ended; taken before a lease of it is requested.
    pub(super) fn changes(&self, directory: InodeNumber) -> ChangeCounts {
        let counter = self.counter(directory);
        // In this order, a change that ends between the two loads looks unfinished.
        let ended = counter.ended.load(Ordering::SeqCst);
        ChangeCounts { begun: counter.begun.load(Ordering::SeqCst), ended }
    }

    /// Notes what the store said about a version of a directory; a lease of it lasts until then.
    pub(super) fn lease(
        &self,
        (directory, version): (InodeNumber, u64),
        leased: LeaseAnswer,
        until: Instant,
    ) {
        let known = &mut *self.known.lock();
        let listing = known.get(directory);
        let Some(listing) = listing.filter(|listing| listing.version == version) else { return };
        match leased {
            LeaseAnswer::Yes => listing.until = listing.until.max(Some(until)),
            LeaseAnswer::Same => {}
            LeaseAnswer::No => known.remove(directory),
        }
    }

    /// Drops everything: the store may be a different one.
    pub(super) fn forget(&self) {
        self.known.lock().forget();
    }

    /// Begins a script that changes a shard: other nodes may see the change before its answer arrives.
    pub(super) fn begin_change(&self, shard: InodeNumber, script: &Script) -> Changing {
        let mut known = self.known.lock();
        let before = self.changes(shard);
        self.counter(shard).begun.fetch_add(1, Ordering::SeqCst);
        known.begin(shard, before.begun, touched(script));
        Changing { shard, before }
    }

    /// Ends it, before its caller hears of it.
    pub(super) fn end_change(&self, changing: &Changing, end: &End<'_>, now: Instant) {
        let Changing { shard, before } = *changing;
        let counter = self.counter(shard);
        let known = &mut *self.known.lock();
        match end {
            End::Lost => {
                known.end(shard, before.begun);
                counter.lost.store(true, Ordering::SeqCst);
                known.remove(shard);
            }
            End::Unknown => {
                known.end(shard, before.begun);
                counter.ended.fetch_add(1, Ordering::SeqCst);
                known.remove(shard);
            }
            End::Made(script, followed, until) => {
                counter.ended.fetch_add(1, Ordering::SeqCst);
                let until = followed.is_leased.then_some(*until);
                // Whether no other change was in progress meanwhile.
                let ChangeCounts { begun, ended } = self.changes(shard);
                let is_only = before.is_quiet() && begun == ended && begun == before.begun + 1;
                let number = before.begun;
                let late = Late { number, script: (*script).clone(), followed: *followed, until };
                if !known.keep_late(shard, late) {
                    known.end(shard, number);
                    follow(known, (shard, script), (*followed, until, is_only), now);
                }
                while let Some(Late { number, script, followed, until }) = known.next_late(shard) {
                    known.end(shard, number);
                    follow(known, (shard, &script), (followed, until, false), now);
                }
            }
        }
        known.drop_gap(shard);
    }
}

/// Updates the cached directory after a change that says what changed in it.
fn follow(
    known: &mut Listed,
    (shard, script): (InodeNumber, &Script),
    (followed, until, is_only): (ChangedDirectory, Option<Instant>, bool),
    now: Instant,
) {
    let ChangedDirectory { before, version, changed, .. } = followed;
    let is_next = known.get(shard).is_some_and(|listing| listing.version == before);
    if !is_next {
        known.remove(shard);
        // Another change by this node may already have made a later version.
        if until.is_none() || !is_only || !known.has_room(now) {
            return;
        }
        known.of(shard, version, now);
    }
    let Some(listing) = known.get(shard) else { return };
    (listing.version, listing.used) = (version, now);
    // An earlier lease remains valid: it holds back the changes of others only.
    listing.until = listing.until.max(until);
    if let Some((_, of_names)) = &mut listing.attributes {
        *of_names = changed;
    }
    match script {
        Script::Make(Body::Directory { attributes, .. }) => {
            listing.set_attributes(attributes, changed);
            listing.is_complete = true;
        }
        Script::Alone(changes) => {
            for change in changes {
                known.apply(shard, change, changed);
            }
        }
        _ => known.remove(shard),
    }
}
