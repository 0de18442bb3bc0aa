//! Shards, and the effect of each script on one: the reference for a store.

use std::collections::BTreeMap;

use super::{
    Answer, Change, Entry, InodeNumber, Intent, IntentId, Links, Name, Opaque, Outcome, ROOT,
    Script, Slot,
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
    /// A file with several names.
    Links(Links),
}

impl Body {
    /// An empty directory.
    #[must_use]
    pub const fn directory(parent: InodeNumber, attributes: Opaque) -> Self {
        Self::Directory { parent, attributes, entries: BTreeMap::new() }
    }

    /// Why a change cannot be made.
    fn refusal(&self, change: &Change) -> Option<Answer> {
        let fits = match (self, change) {
            (Self::Directory { entries, .. }, Change::Name(name, from, _)) => {
                entries.get(name) == from.as_ref()
            }
            (Self::Directory { parent, .. }, Change::Parent(from, _)) => parent == from,
            (Self::Directory { entries, .. }, Change::End) if !entries.is_empty() => {
                return Some(Answer::NotEmpty);
            }
            (Self::Directory { .. }, Change::End) => true,
            (Self::Directory { attributes, .. }, Change::Attributes { from, .. }) => {
                attributes == from
            }
            (Self::Links(links), Change::Links(from, _)) => links == from,
            _ => false,
        };
        (!fits).then_some(Answer::Differs)
    }

    /// Makes a change that was compared before. `false` if it removes the shard.
    fn make(&mut self, change: &Change) -> bool {
        match (self, change) {
            (Self::Directory { entries, .. }, Change::Name(name, _, Some(to))) => {
                entries.insert(name.clone(), to.clone());
            }
            (Self::Directory { entries, .. }, Change::Name(name, _, None)) => {
                entries.remove(name);
            }
            (Self::Directory { parent, .. }, Change::Parent(_, to)) => *parent = *to,
            (Self::Directory { attributes, .. }, Change::Attributes { to, .. }) => {
                *attributes = to.clone();
            }
            (Self::Links(links), Change::Links(_, to)) => {
                *links = to.clone();
                return to.count > 0;
            }
            (_, Change::End) => return false,
            _ => {}
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
    /// The order in which names were added: each name by its place, and the next place.
    order: (BTreeMap<u64, Name>, u64),
}

impl Shard {
    /// A shard without locks.
    #[must_use]
    pub fn new(body: Body) -> Self {
        let names = match &body {
            Body::Directory { entries, .. } => entries.keys().cloned().collect(),
            Body::Links(_) => Vec::new(),
        };
        let next = names.len() as u64 + 1;
        let order = ((1..).zip(names).collect(), next);
        let (locks, committed) = <_>::default();
        Self { body, locks, committed, settlements: 0, changed: 0, order }
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

    /// Why changes cannot be made now.
    fn refusal(&self, changes: &[Change]) -> Option<Answer> {
        changes.iter().find_map(|change| {
            let intent = self.in_the_way(&change.slot());
            intent.map(Answer::Busy).or_else(|| self.body.refusal(change))
        })
    }

    fn read(&self, slot: &Slot) -> Answer {
        if let Some(intent) = self.in_the_way(slot) {
            return Answer::Busy(intent);
        }
        match (&self.body, slot) {
            (Body::Directory { entries, .. }, Slot::Name(name)) => {
                Answer::Name(entries.get(name).cloned(), self.settlements)
            }
            (Body::Directory { parent, .. }, Slot::Parent) => Answer::Parent(*parent),
            (Body::Directory { attributes, .. }, Slot::Attributes) => {
                Answer::Attributes(attributes.clone(), self.changed)
            }
            (Body::Links(links), Slot::Whole) => Answer::Links(links.clone()),
            _ => Answer::Differs,
        }
    }

    fn list(&self, after: u64, limit: usize) -> Answer {
        let Body::Directory { entries, .. } = &self.body else { return Answer::Differs };
        let all = |slot: &Slot| self.locks.get(slot).map(|(intent, _)| intent.clone());
        if let Some(intent) = all(&Slot::Whole) {
            return Answer::Busy(intent);
        }
        let mut listed = Vec::new();
        let Some(first) = after.checked_add(1) else {
            return Answer::Entries { entries: listed, is_last: true, version: 0 };
        };
        let mut behind = self.order.0.range(first..);
        for (place, name) in behind.by_ref().take(limit) {
            if let Some(intent) = all(&Slot::Name(name.clone())) {
                return Answer::Busy(intent);
            }
            listed.push((*place, name.clone(), entries[name].clone()));
        }
        let is_last = behind.next().is_none();
        Answer::Entries { entries: listed, is_last, version: 0 }
    }

    /// Makes changes that were compared before. `false` if they remove the shard.
    fn make(&mut self, changes: &[Change], now: u64) -> bool {
        let mut stays = true;
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
        let Some(shard) = self.0.get_mut(&at) else {
            return match script {
                Script::Make(body) => {
                    self.0.insert(at, Shard::new(body.clone()));
                    Answer::Done
                }
                _ => Answer::Gone,
            };
        };
        let (answer, stays) = run(shard, script, now);
        if !stays {
            self.0.remove(&at);
        }
        answer
    }
}

/// Runs a script on an existing shard; also returns whether the shard still exists.
fn run(shard: &mut Shard, script: &Script, now: u64) -> (Answer, bool) {
    let mut stays = true;
    let answer = match script {
        Script::Make(body) if shard.body == *body => Answer::Done,
        Script::Make(_) => Answer::Differs,
        Script::Read(slot) => shard.read(slot),
        Script::List(after, limit) => shard.list(*after, *limit),
        Script::Alone(changes) => shard.refusal(changes).unwrap_or_else(|| {
            stays = shard.make(changes, now);
            Answer::Done
        }),
        Script::Prepare(intent, change) => {
            shard.refusal(std::slice::from_ref(change)).unwrap_or_else(|| {
                shard.locks.insert(change.slot(), (intent.clone(), change.clone()));
                Answer::Done
            })
        }
        Script::Decide(_, settlements, _) if *settlements != shard.settlements => Answer::Differs,
        Script::Decide(intent, _, changes) => shard.refusal(changes).unwrap_or_else(|| {
            stays = shard.make(changes, now);
            shard.committed.insert(intent.id, (intent.clone(), false));
            Answer::Done
        }),
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
    };
    (answer, stays)
}
