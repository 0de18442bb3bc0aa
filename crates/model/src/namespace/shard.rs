//! Shards, and the effect of each script on one: the reference for a store.

use std::collections::BTreeMap;

use super::{
    Answer, Buckets, Change, Entry, InodeNumber, Intent, IntentId, Links, Name, Opaque, Outcome,
    PLACE_MAX, ROOT, Script, Slot,
};

/// The content of a shard.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Body {
    /// A directory.
    Directory {
        /// Its parent; [`ROOT`] is its own.
        parent: InodeNumber,
        /// Its attributes.
        attributes: Opaque,
        /// Its entries.
        entries: BTreeMap<Name, Entry>,
    },
    /// A directory whose entries are in buckets.
    Split {
        /// Its parent; [`ROOT`] is its own.
        parent: InodeNumber,
        /// Its attributes.
        attributes: Opaque,
        /// Where its entries are.
        buckets: Buckets,
    },
    /// A part of the entries of a directory.
    Bucket {
        /// The directory for which it was made.
        directory: InodeNumber,
        /// The entries.
        entries: BTreeMap<Name, Entry>,
    },
    /// A file with several names.
    Links(Links),
}

impl Body {
    /// An empty directory.
    #[must_use]
    pub const fn directory(parent: InodeNumber, attributes: Opaque) -> Self {
        Self::Directory { parent, attributes, entries: BTreeMap::new() }
    }

    /// An empty bucket, made for a directory.
    #[must_use]
    pub const fn bucket(directory: InodeNumber) -> Self {
        Self::Bucket { directory, entries: BTreeMap::new() }
    }

    /// The entries, of a directory without buckets or a bucket.
    #[must_use]
    pub const fn entries(&self) -> Option<&BTreeMap<Name, Entry>> {
        match self {
            Self::Directory { entries, .. } | Self::Bucket { entries, .. } => Some(entries),
            Self::Split { .. } | Self::Links(_) => None,
        }
    }

    const fn entries_mut(&mut self) -> Option<&mut BTreeMap<Name, Entry>> {
        match self {
            Self::Directory { entries, .. } | Self::Bucket { entries, .. } => Some(entries),
            Self::Split { .. } | Self::Links(_) => None,
        }
    }

    /// Parent and attributes, of a directory.
    #[must_use]
    pub const fn directory_of(&self) -> Option<(&InodeNumber, &Opaque)> {
        match self {
            Self::Directory { parent, attributes, .. } | Self::Split { parent, attributes, .. } => {
                Some((parent, attributes))
            }
            Self::Bucket { .. } | Self::Links(_) => None,
        }
    }

    const fn directory_mut(&mut self) -> Option<(&mut InodeNumber, &mut Opaque)> {
        match self {
            Self::Directory { parent, attributes, .. } | Self::Split { parent, attributes, .. } => {
                Some((parent, attributes))
            }
            Self::Bucket { .. } | Self::Links(_) => None,
        }
    }

    /// The buckets of a directory; none if it has its entries itself.
    fn buckets(&self) -> Buckets {
        match self {
            Self::Split { buckets, .. } => buckets.clone(),
            _ => Buckets::default(),
        }
    }

    /// Why a change cannot be made.
    fn refusal(&self, change: &Change) -> Option<Answer> {
        let fits = match (self, change) {
            (Self::Split { buckets, .. }, Change::Name(..) | Change::Split { .. }) => {
                return Some(Answer::Split(buckets.clone()));
            }
            (Self::Split { buckets, .. }, Change::End(expected)) if buckets != expected => {
                return Some(Answer::Split(buckets.clone()));
            }
            (Self::Directory { .. } | Self::Bucket { .. }, Change::Name(name, from, _)) => {
                self.entries().is_some_and(|entries| entries.get(name) == from.as_ref())
            }
            (Self::Directory { .. } | Self::Split { .. }, Change::Parent(from, _)) => {
                self.directory_of().is_some_and(|(parent, _)| parent == from)
            }
            (Self::Directory { .. } | Self::Split { .. }, Change::Attributes { from, .. }) => {
                self.directory_of().is_some_and(|(_, attributes)| attributes == from)
            }
            (
                Self::Directory { .. } | Self::Split { .. } | Self::Bucket { .. },
                Change::End(expected),
            ) => {
                if self.entries().is_some_and(|entries| !entries.is_empty()) {
                    return Some(Answer::NotEmpty);
                }
                self.buckets() == *expected
            }
            (Self::Directory { .. }, Change::Split { buckets, .. }) => !buckets.is_empty(),
            (Self::Links(links), Change::Links(from, _)) => links == from,
            _ => false,
        };
        (!fits).then_some(Answer::Differs)
    }

    /// Makes a change that was compared before. `false` if it removes the shard.
    fn make(&mut self, change: &Change) -> bool {
        match change {
            Change::Name(name, _, to) => {
                if let Some(entries) = self.entries_mut() {
                    match to {
                        Some(to) => drop(entries.insert(name.clone(), to.clone())),
                        None => drop(entries.remove(name)),
                    }
                }
            }
            Change::Parent(_, to) => {
                if let Some((parent, _)) = self.directory_mut() {
                    *parent = *to;
                }
            }
            Change::Attributes { to, .. } => {
                if let Some((_, attributes)) = self.directory_mut() {
                    attributes.clone_from(to);
                }
            }
            Change::Links(_, to) => {
                if let Self::Links(links) = self {
                    *links = to.clone();
                }
                return to.count > 0;
            }
            Change::Split { buckets, .. } => {
                if let Some((parent, attributes)) = self.directory_of() {
                    let (parent, attributes) = (*parent, attributes.clone());
                    *self = Self::Split { parent, attributes, buckets: buckets.clone() };
                }
            }
            Change::End(_) => return false,
        }
        true
    }
}

/// One shard.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shard {
    /// Its content.
    pub body: Body,
    /// The changes that intents will make here. A lock of [`Slot::Whole`] excludes all others.
    pub locks: BTreeMap<Slot, (Intent, Change)>,
    /// Committed intents that this shard decided, and whether all of their locks are finished.
    pub committed: BTreeMap<IntentId, (Intent, bool)>,
    /// Number of intents that were settled as aborted.
    pub settlements: u64,
    /// When names of the directory last changed after its attributes were set, by the store's clock; or 0.
    pub changed: u64,
    /// Counts the changes of a directory or bucket.
    pub version: u64,
    /// The order in which names were added: each name by its place, and the next place.
    order: (BTreeMap<u64, Name>, u64),
}

impl Shard {
    /// A shard without locks.
    #[must_use]
    pub fn new(body: Body) -> Self {
        let names: Vec<Name> =
            body.entries().map(|entries| entries.keys().cloned().collect()).unwrap_or_default();
        let next = names.len() as u64 + 1;
        let order = ((1..).zip(names).collect(), next);
        let (locks, committed) = <_>::default();
        Self { body, locks, committed, settlements: 0, changed: 0, version: 1, order }
    }

    /// The intent that keeps a slot from being read or changed. The whole shard is blocked, too, by a committed intent
    /// of which unfinished locks are left: somebody may still ask for it.
    #[must_use]
    pub fn in_the_way(&self, slot: &Slot) -> Option<Intent> {
        let lock = match slot {
            Slot::Whole => self.locks.values().next(),
            slot => self.locks.get(slot).or_else(|| self.locks.get(&Slot::Whole)),
        };
        let unfinished = || self.committed.values().find(|(_, finished)| !finished);
        let intent = lock.map(|(intent, _)| intent);
        let intent = intent
            .or_else(|| unfinished().filter(|_| *slot == Slot::Whole).map(|(intent, _)| intent));
        intent.cloned()
    }

    /// Why changes cannot be made now. A directory gets no name once it has `entries_max`.
    fn refusal(&self, changes: &[Change], entries_max: u64) -> Option<Answer> {
        changes.iter().find_map(|change| {
            let intent = self.in_the_way(&change.slot());
            let refusal = intent.map(Answer::Busy).or_else(|| self.body.refusal(change));
            refusal.or_else(|| self.further_refusal(change, entries_max))
        })
    }

    /// Why a change that fits the content cannot be made.
    fn further_refusal(&self, change: &Change, entries_max: u64) -> Option<Answer> {
        match (&self.body, change) {
            (Body::Directory { entries, .. }, Change::Name(_, None, Some(_)))
                if entries.len() as u64 >= entries_max =>
            {
                Some(Answer::Full(entries.len() as u64))
            }
            // A cursor has no room for its place.
            (Body::Bucket { .. }, Change::Name(_, None, Some(_))) if self.order.1 >= PLACE_MAX => {
                Some(Answer::Differs)
            }
            (Body::Directory { entries: now, .. }, Change::Split { version, entries, .. })
                if *version != self.version || *entries != now.len() as u64 =>
            {
                Some(Answer::Differs)
            }
            _ => None,
        }
    }

    fn read(&self, slot: &Slot) -> Answer {
        if let Some(intent) = self.in_the_way(slot) {
            return Answer::Busy(intent);
        }
        match (&self.body, slot) {
            (Body::Split { buckets, .. }, Slot::Name(_)) => Answer::Split(buckets.clone()),
            (body, Slot::Name(name)) => match body.entries() {
                Some(entries) => Answer::Name(entries.get(name).cloned(), self.settlements),
                None => Answer::Differs,
            },
            (Body::Links(links), Slot::Whole) => Answer::Links(links.clone()),
            (body, slot) => match (body.directory_of(), slot) {
                (Some((parent, _)), Slot::Parent) => Answer::Parent(*parent),
                (Some((_, attributes)), Slot::Attributes) => {
                    Answer::Attributes(attributes.clone(), self.changed)
                }
                _ => Answer::Differs,
            },
        }
    }

    fn list(&self, after: u64, limit: usize) -> Answer {
        let Some(entries) = self.body.entries() else {
            let buckets = self.body.buckets();
            return if buckets.is_empty() { Answer::Differs } else { Answer::Split(buckets) };
        };
        let all = |slot: &Slot| self.locks.get(slot).map(|(intent, _)| intent.clone());
        if let Some(intent) = all(&Slot::Whole) {
            return Answer::Busy(intent);
        }
        let mut listed = Vec::new();
        let Some(first) = after.checked_add(1) else {
            return Answer::Entries { entries: listed, is_last: true, version: self.version };
        };
        let mut behind = self.order.0.range(first..);
        for (place, name) in behind.by_ref().take(limit) {
            if let Some(intent) = all(&Slot::Name(name.clone())) {
                return Answer::Busy(intent);
            }
            listed.push((*place, name.clone(), entries[name].clone()));
        }
        let is_last = behind.next().is_none();
        Answer::Entries { entries: listed, is_last, version: self.version }
    }

    /// Adds entries to a bucket to which no directory leads.
    fn fill(&mut self, new: &[(u64, Name, Entry)]) -> Answer {
        let Body::Bucket { entries, .. } = &mut self.body else { return Answer::Differs };
        if !self.locks.is_empty() {
            return Answer::Differs;
        }
        for (place, name, entry) in new {
            entries.insert(name.clone(), entry.clone());
            let (order, next) = &mut self.order;
            order.retain(|_, other| other != name);
            order.insert(*place, name.clone());
            *next = (*next).max(place.saturating_add(1));
        }
        self.version += 1;
        Answer::Done
    }

    /// Makes changes that were compared before. `false` if they remove the shard.
    fn make(&mut self, changes: &[Change], now: u64) -> bool {
        let mut stays = true;
        if !matches!(self.body, Body::Links(_)) {
            self.version += 1;
        }
        for change in changes {
            stays &= self.body.make(change);
            if change.changes_names() {
                self.changed = self.changed.max(now);
            }
            match change {
                Change::Name(name, None, Some(_)) => {
                    let (order, next) = &mut self.order;
                    order.insert(*next, name.clone());
                    *next += 1;
                }
                Change::Name(name, Some(_), None) => self.order.0.retain(|_, other| other != name),
                Change::Attributes { sets_changed: true, .. } => self.changed = 0,
                Change::Split { .. } => self.order.0.clear(),
                _ => {}
            }
        }
        stays
    }

    /// Settles an intent that this shard decides: it is aborted unless it is committed.
    fn settle(&mut self, id: IntentId) -> Outcome {
        if self.committed.contains_key(&id) {
            return Outcome::Committed;
        }
        self.settlements += 1;
        Outcome::Aborted
    }

    /// Finishes an intent's locks. `false` if that removes the shard.
    fn finish(&mut self, id: IntentId, outcome: Outcome, now: u64) -> bool {
        let own: Vec<Slot> = self
            .locks
            .iter()
            .filter(|(_, (intent, _))| intent.id == id)
            .map(|(slot, _)| slot.clone())
            .collect();
        let mut stays = true;
        for slot in own {
            let lock = self.locks.remove(&slot);
            if let Some((_, change)) = lock.filter(|_| outcome == Outcome::Committed) {
                stays &= self.make(&[change], now);
            }
        }
        stays
    }
}

/// All shards: the reference for what a store does.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Shards(pub BTreeMap<InodeNumber, Shard>);

impl Default for Shards {
    /// An empty root.
    fn default() -> Self {
        Self(BTreeMap::from([(ROOT, Shard::new(Body::directory(ROOT, Opaque::default())))]))
    }
}

impl Shards {
    /// Runs one script on one shard, at time `now` of the store's clock.
    pub fn run(&mut self, at: InodeNumber, script: &Script, now: u64) -> Answer {
        self.run_within(at, script, now, u64::MAX)
    }

    /// The same in a store in which a directory is split once it has `entries_max` entries.
    pub fn run_within(
        &mut self,
        at: InodeNumber,
        script: &Script,
        now: u64,
        entries_max: u64,
    ) -> Answer {
        let Some(shard) = self.0.get_mut(&at) else {
            return match script {
                Script::Make(body) => {
                    self.0.insert(at, Shard::new(body.clone()));
                    Answer::Done
                }
                _ => Answer::Gone,
            };
        };
        let (answer, stays) = run(shard, script, now, entries_max);
        if !stays {
            self.0.remove(&at);
        }
        answer
    }
}

/// Runs a script on an existing shard; also returns whether the shard still exists.
fn run(shard: &mut Shard, script: &Script, now: u64, entries_max: u64) -> (Answer, bool) {
    let mut stays = true;
    let answer = match script {
        Script::Make(body) if shard.body == *body => Answer::Done,
        Script::Make(_) => Answer::Differs,
        Script::Read(slot) => shard.read(slot),
        Script::List(after, limit) => shard.list(*after, *limit),
        Script::Alone(changes) => shard.refusal(changes, entries_max).unwrap_or_else(|| {
            stays = shard.make(changes, now);
            Answer::Done
        }),
        Script::Prepare(intent, change) => {
            shard.refusal(std::slice::from_ref(change), entries_max).unwrap_or_else(|| {
                shard.locks.insert(change.slot(), (intent.clone(), change.clone()));
                Answer::Done
            })
        }
        Script::Decide(_, settlements, _) if *settlements != shard.settlements => Answer::Differs,
        Script::Decide(intent, _, changes) => {
            shard.refusal(changes, entries_max).unwrap_or_else(|| {
                stays = shard.make(changes, now);
                shard.committed.insert(intent.id, (intent.clone(), false));
                Answer::Done
            })
        }
        Script::Settle(id) => Answer::Settled(shard.settle(*id)),
        Script::Finish(id, outcome) => {
            stays = shard.finish(*id, *outcome, now);
            Answer::Done
        }
        Script::Finished(id) => {
            if let Some((_, finished)) = shard.committed.get_mut(id) {
                *finished = true;
            }
            Answer::Done
        }
        Script::Forget(id) => {
            shard.committed.remove(id);
            Answer::Done
        }
        Script::Fill(entries) => shard.fill(entries),
        Script::Discard(of) => match &shard.body {
            Body::Bucket { directory, .. } if directory == of && shard.locks.is_empty() => {
                stays = false;
                Answer::Done
            }
            _ => Answer::Differs,
        },
        Script::Touch => match &shard.body {
            Body::Split { .. } => {
                shard.changed = shard.changed.max(now);
                shard.version += 1;
                Answer::Done
            }
            _ => Answer::Differs,
        },
    };
    (answer, stays)
}
