//! Explores what two nodes trust of one directory, in every order of messages within bounds: it must always agree with
//! the store. The store here is the reference for its scripts' promise that a change waits for the leases of other
//! nodes.

use std::collections::HashSet;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::time::{Duration, Instant};

use halocline_os::clock::Clock;

use super::*;

const D: InodeNumber = InodeNumber(7);
const NAMES: [&str; 2] = ["a", "b"];
const NODES: usize = 2;
/// A step of the clock, and the length of a lease in such steps: at the store, and at the node that asked for it.
const TICK: Duration = Duration::from_millis(20);
const LASTS: u64 = 2;
const BELIEVED: u64 = 1;
/// Bounds of the exploration.
const UNDER_WAY_MAX: usize = 2;
const STATES_MAX: usize = 100_000;

/// A deliberate fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Canary {
    None,
    /// A change does not wait for the leases of other nodes.
    Impatient,
    /// A node trusts its cache for longer than its lease lasts.
    Late,
    /// A node forgets that a change may still be made later.
    Forgetful,
    /// A change is noted only after it was made.
    Unnoted,
    /// Every change is taken for the one that follows the cached version.
    OutOfOrder,
    /// Every read counts, even if this node changed the directory meanwhile.
    Crossed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ask {
    Change(usize, To),
    List,
    Read(usize),
    Attributes,
    Lease(u64),
}

/// A change of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum To {
    /// A file gets this name.
    Made,
    /// The file gets other attributes. This is no change of the directory's names.
    Touched,
    Removed,
}

/// An answer of the store.
#[derive(Debug, Clone)]
enum Answered {
    Changed(ChangedDirectory),
    Differs,
    Page(u64, Vec<(u64, Name, Entry)>),
    Read(Answer, Option<u64>),
    Lease(LeaseAnswer),
}

/// A message and its answer.
#[derive(Debug, Clone)]
struct Message {
    node: usize,
    ask: Ask,
    asked: u64,
    number: u64,
    before: ChangeCounts,
    changing: Option<Changing>,
    answer: Option<Answered>,
}

#[derive(Debug)]
struct World {
    now: u64,
    version: u64,
    changed: u64,
    values: [Option<u64>; 2],
    leases: [u64; NODES],
    nodes: [Listings; NODES],
    under_way: Vec<Message>,
    changes: u64,
    reads: usize,
}

impl Clone for World {
    fn clone(&self) -> Self {
        let (under_way, nodes) = (self.under_way.clone(), self.nodes.each_ref().map(copied));
        Self { nodes, under_way, ..*self }
    }
}

fn copied(of: &Listings) -> Listings {
    let counter = |of: &Counter| Counter {
        begun: AtomicU64::new(of.begun.load(Ordering::SeqCst)),
        ended: AtomicU64::new(of.ended.load(Ordering::SeqCst)),
        lost: AtomicBool::new(of.lost.load(Ordering::SeqCst)),
    };
    let counters = of.counters.iter().map(counter).collect();
    Listings { known: Mutex::new(of.known.lock().clone()), counters }
}

fn name(at: usize) -> Name {
    Name::from(NAMES[at])
}

fn entry(value: u64) -> Entry {
    Entry::Single(InodeNumber(8), Opaque::from(value.to_be_bytes().to_vec()))
}

fn script(at: usize, to: To, number: u64) -> Script {
    let [from, to] = match to {
        To::Made => [None, Some(entry(number))],
        To::Touched => [Some(entry(0)), Some(entry(number))],
        To::Removed => [Some(entry(0)), None],
    };
    Script::Alone(vec![Change::Name(name(at), from, to)])
}

/// Explores what may happen from a given state on.
struct Explorer {
    canary: Canary,
    /// The most changes, reads and steps of the clock.
    changes: u64,
    reads: usize,
    ticks: u64,
    began: Instant,
}

impl Explorer {
    fn at(&self, tick: u64) -> Instant {
        self.began + TICK * u32::try_from(tick).unwrap()
    }

    fn until(&self, asked: u64) -> Instant {
        let more = if self.canary == Canary::Late { LASTS } else { 0 };
        self.at(asked + BELIEVED + more)
    }

    fn begin() -> World {
        let nodes = [Listings::default(), Listings::default()];
        World {
            now: 0,
            version: 1,
            changed: 1,
            values: [None, None],
            leases: [0; NODES],
            nodes,
            under_way: Vec::new(),
            changes: 0,
            reads: 0,
        }
    }

    /// The messages that nodes may send now.
    fn asks(&self, world: &World) -> Vec<World> {
        let mut all = Vec::new();
        if world.under_way.len() >= UNDER_WAY_MAX {
            return all;
        }
        for node in 0..NODES {
            let mut asks = Vec::new();
            if world.changes < self.changes {
                asks.extend([To::Made, To::Touched, To::Removed].map(|to| Ask::Change(0, to)));
                asks.push(Ask::Change(1, To::Made));
            }
            if world.reads < self.reads {
                asks.extend([Ask::List, Ask::Read(0), Ask::Attributes]);
                let at = EntryName { directory: D, name: name(0) };
                if let CachedName::Then(version, _) =
                    world.nodes[node].find(&at, self.at(world.now))
                {
                    asks.push(Ask::Lease(version));
                }
            }
            all.extend(asks.into_iter().map(|ask| self.sent(world, node, ask)));
        }
        all
    }

    fn sent(&self, world: &World, node: usize, ask: Ask) -> World {
        let mut next = world.clone();
        let (now, listings) = (self.at(next.now), &next.nodes[node]);
        listings.is_read_often(D, now);
        let before = listings.changes(D);
        let changing = if let Ask::Change(at, to) = ask {
            next.changes += 1;
            let script = script(at, to, next.changes);
            (self.canary != Canary::Unnoted).then(|| listings.begin_change(D, &script))
        } else {
            next.reads += 1;
            None
        };
        let (asked, number, answer) = (next.now, next.changes, None);
        next.under_way.push(Message { node, ask, asked, number, before, changing, answer });
        next
    }

    /// The store runs a script, with and without a lease where it may grant one.
    fn run(&self, world: &World, message: usize) -> Vec<World> {
        let Message { node, ask, number, .. } = world.under_way[message];
        let is_leased = (0..NODES).any(|other| other != node && world.leases[other] > world.now);
        if matches!(ask, Ask::Change(..)) && is_leased && self.canary != Canary::Impatient {
            return Vec::new();
        }
        if matches!(ask, Ask::Change(at, To::Touched) if world.values[at].is_none()) {
            let mut next = world.clone();
            next.under_way[message].answer = Some(Answered::Differs);
            return vec![next];
        }
        let run = |is_leased: bool| {
            let mut next = world.clone();
            let before = next.version;
            if let Ask::Change(at, to) = ask {
                next.values[at] = (to != To::Removed).then_some(number);
                next.version += 1;
                if to != To::Touched {
                    next.changed = next.version;
                }
            }
            if is_leased {
                next.leases[node] = next.now + LASTS;
            }
            let (version, changed) = (next.version, next.changed);
            let lease = is_leased.then_some(version);
            let answer = match ask {
                Ask::Change(..) => {
                    Answered::Changed(ChangedDirectory { before, version, changed, is_leased })
                }
                Ask::List => {
                    let all = (0..2).filter_map(|at| Some((at, next.values[at]?)));
                    let page = all.map(|(at, value)| (at as u64 + 1, name(at), entry(value)));
                    Answered::Page(version, page.collect())
                }
                Ask::Read(at) => Answered::Read(Answer::Name(next.values[at].map(entry), 0), lease),
                Ask::Attributes => {
                    Answered::Read(Answer::Attributes(Opaque::default(), changed), lease)
                }
                Ask::Lease(asked) if asked != version => Answered::Lease(LeaseAnswer::No),
                Ask::Lease(_) if is_leased => Answered::Lease(LeaseAnswer::Yes),
                Ask::Lease(_) => Answered::Lease(LeaseAnswer::Same),
            };
            next.under_way[message].answer = Some(answer);
            next
        };
        vec![run(false), run(true)]
    }

    /// An answer arrives, or is lost; in the latter case its message may still reach the store.
    fn answered(&self, world: &World, message: usize) -> Option<World> {
        let mut next = world.clone();
        let Message { node, ask, asked, number, mut before, changing, answer } =
            next.under_way.remove(message);
        let (listings, now, until) = (&next.nodes[node], self.at(next.now), self.until(asked));
        if self.canary == Canary::Crossed {
            before = listings.changes(D);
        }
        match (ask, answer?) {
            (Ask::Change(at, to), Answered::Differs) => {
                let script = script(at, to, number);
                let changing = changing.unwrap_or_else(|| listings.begin_change(D, &script));
                listings.end_change(&changing, &End::Unknown, now);
            }
            (Ask::Change(at, to), Answered::Changed(mut followed)) => {
                let script = script(at, to, number);
                let changing = changing.unwrap_or_else(|| listings.begin_change(D, &script));
                if self.canary == Canary::OutOfOrder {
                    let known = listings.known.lock().get(D).map(|listing| listing.version);
                    followed.before = known.unwrap_or(followed.before);
                }
                listings.end_change(&changing, &End::Made(&script, followed, until), now);
            }
            (_, Answered::Page(version, page)) => {
                listings.add((D, version), (0, &page, true), before, now);
            }
            (Ask::Read(at), Answered::Read(answer, lease)) => {
                let lease = lease.map(|version| (version, until));
                listings.keep((D, &Slot::Name(name(at))), &answer, lease, before);
            }
            (_, Answered::Read(answer, lease)) => {
                let lease = lease.map(|version| (version, until));
                listings.keep((D, &Slot::Attributes), &answer, lease, before);
            }
            (Ask::Lease(version), Answered::Lease(leased)) => {
                listings.lease((D, version), leased, until);
            }
            _ => unreachable!("answers are of their questions"),
        }
        Some(next)
    }

    /// The node learns that the answer of a change is lost, although the script has not run yet.
    fn lost(&self, world: &World, message: usize) -> Option<World> {
        let mut next = world.clone();
        let lost = &mut next.under_way[message];
        let changing = lost.changing.take()?;
        let end = if self.canary == Canary::Forgetful { End::Unknown } else { End::Lost };
        let node = lost.node;
        next.nodes[node].end_change(&changing, &end, self.at(next.now));
        Some(next)
    }

    fn next(&self, world: &World) -> Vec<World> {
        let mut all = self.asks(world);
        for message in 0..world.under_way.len() {
            let Message { ask, changing, answer, .. } = &world.under_way[message];
            let is_change = matches!(ask, Ask::Change(..));
            let is_given_up = is_change && changing.is_none() && self.canary != Canary::Unnoted;
            match answer {
                None => all.extend(self.run(world, message)),
                Some(_) if is_given_up => {
                    let mut next = world.clone();
                    next.under_way.remove(message);
                    all.push(next);
                }
                Some(_) => all.extend(self.answered(world, message)),
            }
            if is_change && answer.is_none() {
                all.extend(self.lost(world, message));
            }
        }
        if world.now < self.ticks {
            all.push(World { now: world.now + 1, ..world.clone() });
        }
        all
    }

    /// A name that a node trusts and that is wrong.
    fn wrong(&self, world: &World) -> Option<String> {
        let now = self.at(world.now);
        for listings in &world.nodes {
            for (at, value) in world.values.iter().enumerate() {
                let there = value.map_or(There::Nothing, |value| There::Entry(entry(value)));
                match listings.find(&EntryName { directory: D, name: name(at) }, now) {
                    CachedName::Now(known) if known != there => {
                        return Some(format!("{}: {known:?}, not {there:?}", NAMES[at]));
                    }
                    _ => {}
                }
            }
            let changed = listings.attributes(D, now).map(|(_, changed)| changed);
            if changed.is_some_and(|changed| changed != world.changed) {
                return Some(format!("changed at {changed:?}, not {}", world.changed));
            }
        }
        None
    }
}

/// The first fault found, and the number of states.
fn explore(canary: Canary) -> (Option<String>, usize) {
    // These faults are found with few messages.
    let (changes, reads, ticks) = match canary {
        Canary::None => (3, 3, 3),
        Canary::Late => (2, 0, 2),
        _ => (2, 1, 2),
    };
    let explorer = Explorer { canary, changes, reads, ticks, began: Clock::MACHINE.instant() };
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    let first = Explorer::begin();
    let mut seen = HashSet::from([hasher.hash_one(format!("{first:?}"))]);
    let mut todo = std::collections::VecDeque::from([first]);
    while let Some(world) = todo.pop_front() {
        if let Some(wrong) = explorer.wrong(&world) {
            return (Some(format!("{wrong}: {world:?}")), seen.len());
        }
        if seen.len() >= STATES_MAX {
            continue;
        }
        for next in explorer.next(&world) {
            if seen.insert(hasher.hash_one(format!("{next:?}"))) {
                todo.push_back(next);
            }
        }
    }
    (None, seen.len())
}

#[test]
fn i15_what_a_node_believes_is_what_the_store_has_in_every_order_of_messages() {
    let (wrong, states) = explore(Canary::None);
    assert_eq!(wrong, None);
    assert!(states >= STATES_MAX, "{states}");
}

#[test]
fn each_canary_is_noticed() {
    for canary in [
        Canary::Impatient,
        Canary::Late,
        Canary::Forgetful,
        Canary::Unnoted,
        Canary::OutOfOrder,
        Canary::Crossed,
    ] {
        let (wrong, states) = explore(canary);
        assert!(wrong.is_some(), "{canary:?} was not noticed in {states} states");
    }
}
