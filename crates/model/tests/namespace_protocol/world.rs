//! A small world for the model checker: a few directories and files, one operation for each node, and messages that are
//! lost or late. All decisions are those of `halocline_model::namespace`.

use std::collections::{BTreeMap, BTreeSet};

use halocline_model::namespace::{
    Answer, Body, Buckets, Change, Completion, Entry, EntryName, Failure, Flags, InodeNumber,
    Links, Name, Opaque, Operation, Outcome, ROOT, Script, Shard, Shards,
};
use halocline_model::token::Session;

use super::canary::{Canary, broken};
use super::listing::Listing;
use super::node::{BUCKETS, Doing, Node};

/// `/a`, with a file `f`, the name `l` of a file with two, and an empty directory `d`.
pub(crate) const A: InodeNumber = InodeNumber(2);
/// `/b`, with a file `g`, the other `l`, and an empty directory `e`.
pub(crate) const B: InodeNumber = InodeNumber(3);
/// `/a/d`.
pub(crate) const D: InodeNumber = InodeNumber(4);
/// `/b/e`.
pub(crate) const E: InodeNumber = InodeNumber(5);
/// The file `f` in [`A`].
pub(crate) const F: InodeNumber = InodeNumber(10);
/// The file `g` in [`B`].
pub(crate) const G: InodeNumber = InodeNumber(11);
/// What `z` leads to, where there is one.
pub(crate) const Z: InodeNumber = InodeNumber(14);
/// What nobody uses yet.
pub(crate) const FRESH: InodeNumber = InodeNumber(20);

/// The store's clock stands still.
pub(crate) const NOW: u64 = 0;
/// How much goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    pub(crate) crashes: u8,
    /// Answers.
    pub(crate) lost: u8,
    /// Messages, whose sender does not wait; they may never arrive.
    pub(crate) late: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// A node sends what is next, and gets the answer.
    Ask(usize),
    /// It gets none, though it was done.
    LoseAnswer(usize),
    /// It gets none, and the message is under way.
    BeLate(usize),
    /// One under way arrives.
    Arrive(usize),
    Crash(usize),
}

type Names = BTreeMap<(InodeNumber, Name), InodeNumber>;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct World {
    shards: Shards,
    /// From how many entries on a directory is split.
    entries_max: u64,
    nodes: Vec<Node>,
    late: Vec<(usize, InodeNumber, Script)>,
    budget: Budget,
    pub(crate) wrong: Option<&'static str>,
}

fn directory(parent: InodeNumber, entries: &[(&str, Entry)]) -> Shard {
    let entries = entries.iter().map(|(name, entry)| (Name::from(*name), entry.clone())).collect();
    Shard::new(Body::Directory { parent, attributes: Opaque::default(), entries })
}

impl World {
    pub(crate) fn new(operations: &[Operation], budget: Budget) -> Self {
        let [file, other] = [F, G].map(|inode| Entry::Single(inode, Opaque::default()));
        let linked = Entry::Linked(InodeNumber(12), InodeNumber(13));
        let links = Links { count: 2, attributes: Opaque::default() };
        let [of_root, of_a, of_b] = [
            [("a", Entry::Directory(A)), ("b", Entry::Directory(B))].to_vec(),
            [("d", Entry::Directory(D)), ("f", file), ("l", linked.clone())].to_vec(),
            [("e", Entry::Directory(E)), ("g", other), ("l", linked)].to_vec(),
        ];
        let shards = Shards(BTreeMap::from([
            (ROOT, directory(ROOT, &of_root)),
            (A, directory(ROOT, &of_a)),
            (B, directory(ROOT, &of_b)),
            (D, directory(A, &[])),
            (E, directory(B, &[])),
            (InodeNumber(13), Shard::new(Body::Links(links))),
        ]));
        let nodes = (0..).zip(operations).map(|(at, operation)| Node::new(at, operation)).collect();
        Self { shards, entries_max: u64::MAX, nodes, late: Vec::new(), budget, wrong: None }
    }

    /// The same in which a directory is split once it has so many entries.
    pub(crate) fn splitting(self, entries_max: u64) -> Self {
        Self { entries_max, ..self }
    }

    /// The same after an operation of a node with this number that nobody was in the way of.
    pub(crate) fn following(&self, number: u64, operation: &Operation) -> Self {
        let nodes = vec![Node::new(number, operation)];
        let mut world =
            Self { nodes, budget: Budget { crashes: 0, lost: 0, late: 0 }, ..self.clone() };
        while !world.is_over() {
            world = world.after(Step::Ask(0), None);
        }
        assert_eq!(world.nodes[0].result(), Some(Ok(())), "{operation:?}");
        Self { shards: world.shards, ..self.clone() }
    }

    /// The same with one more node, which lists a directory.
    pub(crate) fn listing(mut self, directory: InodeNumber) -> Self {
        let names = self.names();
        let there = names.keys().filter(|(of, _)| *of == directory).map(|(_, name)| name.clone());
        let listing = Listing::new(directory, there.collect());
        self.nodes.push(Node::listing(listing));
        self
    }

    /// A name whose bucket has this index.
    pub(crate) fn name_in(index: usize) -> &'static str {
        let numbers: Vec<_> = (0..BUCKETS).map(InodeNumber).collect();
        let buckets = Buckets::new(&numbers).expect("they are different");
        let is_there = |name: &&&str| buckets.index(&Name::from(**name)) == index;
        ["x", "y", "v", "w", "u", "t"].iter().find(is_there).expect("one is there")
    }

    pub(crate) fn is_split(&self, directory: InodeNumber) -> bool {
        let shard = self.shards.0.get(&directory);
        shard.is_some_and(|shard| matches!(shard.body, Body::Split { .. }))
    }

    /// How the first node's operation ends if nothing comes between, and how many round trips it takes.
    fn alone(&self) -> (Result<(), Failure>, usize) {
        let (mut world, mut count) = (self.clone(), 0);
        while !world.is_over() {
            world = world.after(Step::Ask(0), None);
            count += 1;
        }
        assert!(
            world.wrong.is_none() && world.results_are_true() && world.is_completable(),
            "{world:?}"
        );
        (world.nodes[0].result().expect("it is over"), count)
    }

    pub(crate) fn round_trips(&self) -> usize {
        let (result, count) = self.alone();
        assert_eq!(result, Ok(()));
        count
    }

    pub(crate) fn failure(&self) -> Option<Failure> {
        self.alone().0.err()
    }

    pub(crate) fn steps(&self, steps: &mut Vec<Step>) {
        for (at, node) in self.nodes.iter().enumerate() {
            if !node.is_up || node.message().is_none() {
                continue;
            }
            steps.push(Step::Ask(at));
            if node.operation.is_none() {
                continue;
            }
            let budget = self.budget;
            let allowed = [
                (budget.lost, Step::LoseAnswer(at)),
                (budget.late, Step::BeLate(at)),
                (budget.crashes, Step::Crash(at)),
            ];
            steps.extend(allowed.iter().filter(|(left, _)| *left > 0).map(|(_, step)| *step));
        }
        steps.extend((0..self.late.len()).map(Step::Arrive));
    }

    pub(crate) fn after(&self, step: Step, canary: Option<Canary>) -> Self {
        let mut next = self.clone();
        match step {
            Step::Ask(at) => {
                let (shard, script) = next.message(at);
                let answer = next.run(at, shard, &script, canary);
                next.nodes[at].answer(Some(answer), canary);
            }
            Step::LoseAnswer(at) => {
                next.budget.lost -= 1;
                let (shard, script) = next.message(at);
                next.run(at, shard, &script, canary);
                next.nodes[at].answer(None, canary);
            }
            Step::BeLate(at) => {
                next.budget.late -= 1;
                let (shard, script) = next.message(at);
                next.late.push((at, shard, script));
                next.nodes[at].answer(None, canary);
            }
            Step::Arrive(number) => {
                let (at, shard, script) = next.late.remove(number);
                next.run(at, shard, &script, canary);
            }
            Step::Crash(at) => {
                next.budget.crashes -= 1;
                next.nodes[at].is_up = false;
            }
        }
        next
    }

    fn message(&self, at: usize) -> (InodeNumber, Script) {
        self.nodes[at].message().expect("a node that is done takes no step")
    }

    /// Runs a node's script, and compares what it does to the names with a plain tree.
    fn run(
        &mut self,
        at: usize,
        shard: InodeNumber,
        script: &Script,
        canary: Option<Canary>,
    ) -> Answer {
        let before = self.names();
        let store = (&mut self.shards, self.entries_max);
        let answer = broken(store, shard, script, canary, Session(at as u64));
        let is_split = |changes: &[Change]| matches!(changes, [Change::Split { .. }]);
        let commits = match script {
            Script::Alone(changes) => !is_split(changes) && answer == Answer::Done,
            Script::Decide(..) => answer == Answer::Done,
            _ => false,
        };
        let expected = if commits { self.committed(at, before) } else { Some(before) };
        let names = self.names();
        if expected.is_none_or(|expected| expected != names) {
            self.wrong = Some("names are not those of a plain tree");
        }
        for node in &mut self.nodes {
            if let Doing::Listing(listing) = &mut node.doing {
                listing.see(|directory, name| names.contains_key(&(directory, name.clone())));
            }
        }
        answer
    }

    /// What the names are after a node's operation. `None` if it cannot be done.
    fn committed(&mut self, at: usize, mut names: Names) -> Option<Names> {
        let node = &mut self.nodes[at];
        node.commits += 1;
        make(node.operation.as_ref()?, &mut names)?;
        Some(names)
    }

    /// The shards as an observer finds them: with the locks of committed intents made, and no others.
    fn resolved(&self) -> Shards {
        let mut resolved = self.shards.clone();
        for (inode, shard) in &self.shards.0 {
            for (intent, _) in shard.locks.values() {
                let decider = self.shards.0.get(&intent.decider);
                let is_committed =
                    decider.is_some_and(|decider| decider.committed.contains_key(&intent.id));
                let outcome = if is_committed { Outcome::Committed } else { Outcome::Aborted };
                resolved.run(*inode, &Script::Finish(intent.id, outcome), NOW);
            }
        }
        resolved
    }

    fn names(&self) -> Names {
        names_of(&self.resolved())
    }

    /// Every directory has one name, in its parent, and is below the root; or nothing is in it.
    pub(crate) fn is_a_tree(&self) -> bool {
        let resolved = self.resolved();
        let mut seen = BTreeSet::new();
        let mut todo = vec![(ROOT, ROOT)];
        while let Some((inode, parent)) = todo.pop() {
            let own = resolved.0.get(&inode).and_then(|shard| shard.body.directory_of());
            if own.map(|(own, _)| *own) != Some(parent) || !seen.insert(inode) {
                return false;
            }
            let entries = entries_of(&resolved, inode);
            let below = entries.iter().filter(|(_, entry)| matches!(entry, Entry::Directory(_)));
            todo.extend(below.map(|(_, entry)| (entry.inode(), inode)));
        }
        // Buckets to which no directory leads are nobody's.
        let is_empty = |shard: &Shard| match &shard.body {
            Body::Directory { entries, .. } => entries.is_empty(),
            Body::Split { .. } => false,
            Body::Bucket { .. } | Body::Links(_) => true,
        };
        resolved.0.iter().all(|(inode, shard)| seen.contains(inode) || is_empty(shard))
    }

    /// A file that has had one name only has one, and every other one has as many as are counted.
    pub(crate) fn counts_agree(&self) -> bool {
        let resolved = self.resolved();
        let (mut single, mut linked) = (BTreeMap::new(), BTreeMap::new());
        for inode in resolved.0.keys() {
            for (_, entry) in entries_of(&resolved, *inode) {
                match entry {
                    Entry::Single(inode, _) => *single.entry(*inode).or_insert(0_u32) += 1,
                    Entry::Linked(inode, shard) => {
                        *linked.entry((*inode, *shard)).or_insert(0_u32) += 1;
                    }
                    Entry::Directory(_) => {}
                }
            }
        }
        let counted = |((_, shard), names): (&(InodeNumber, InodeNumber), &u32)| {
            let found = resolved.0.get(shard).map(|shard| &shard.body);
            matches!(found, Some(Body::Links(links)) if links.count == *names)
        };
        let files: Vec<_> = linked.keys().map(|(inode, _)| *inode).collect();
        let one = |(inode, names): (&InodeNumber, &u32)| *names == 1 && !files.contains(inode);
        let has_one_shard = files.windows(2).all(|pair| pair[0] != pair[1]);
        has_one_shard && single.iter().all(one) && linked.iter().all(counted)
    }

    /// What nodes say of their operations is so, and stays so.
    pub(crate) fn results_are_true(&self) -> bool {
        self.nodes.iter().all(|node| match node.result() {
            None | Some(Err(Failure::Unknown)) => node.commits <= 1,
            Some(Ok(())) => node.commits == 1,
            Some(Err(_)) => node.commits == 0,
        })
    }

    /// What was there as long as somebody listed was listed once.
    pub(crate) fn listings_are_whole(&self) -> bool {
        self.nodes.iter().all(|node| match &node.doing {
            Doing::Listing(listing) => listing.is_whole(),
            _ => true,
        })
    }

    /// When nobody is under way any more, whoever meets the locks that are left completes them, and changes no name.
    pub(crate) fn is_completable(&self) -> bool {
        if !self.is_over() {
            return true;
        }
        let mut shards = self.shards.clone();
        for shard in self.shards.0.values() {
            for (intent, _) in shard.locks.values() {
                let mut completion = Completion::new(intent.clone());
                while let Some((at, script)) = completion.step() {
                    let answer = shards.run(at, &script, NOW);
                    completion.answer(Some(answer));
                }
            }
        }
        shards.0.values().all(|shard| shard.locks.is_empty()) && names_of(&shards) == self.names()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.nodes.iter().all(|node| !node.is_up || node.message().is_none())
    }
}

/// Makes an operation on a plain tree. `None` if it cannot be done.
fn make(operation: &Operation, names: &mut Names) -> Option<()> {
    let key = |at: &EntryName| (at.directory, at.name.clone());
    match operation {
        Operation::Create(at, inode, _) | Operation::MakeDirectory(at, inode, _) => {
            names.insert(key(at), *inode).is_none().then_some(())?;
        }
        Operation::Unlink(at) | Operation::RemoveDirectory(at) => {
            names.remove(&key(at))?;
        }
        Operation::Link(from, to, _) => {
            let inode = *names.get(&key(from))?;
            names.insert(key(to), inode).is_none().then_some(())?;
        }
        Operation::Rename(from, to, flags) => {
            let moved = names.remove(&key(from))?;
            let target = names.insert(key(to), moved);
            if *flags == Flags::Exchange {
                names.insert(key(from), target?);
            }
        }
        Operation::Expecting(expected, operation) => {
            let of = match &**operation {
                Operation::Rename(from, to, _) | Operation::Link(from, to, _) => vec![from, to],
                Operation::Unlink(at) | Operation::RemoveDirectory(at) => vec![at],
                _ => Vec::new(),
            };
            for (at, expected) in of.into_iter().zip(expected) {
                let found = names.get(&key(at));
                (found.is_none() || found == expected.as_ref()).then_some(())?;
            }
            make(operation, names)?;
        }
    }
    Some(())
}

fn names_of(shards: &Shards) -> Names {
    let mut names = Names::new();
    for directory in shards.0.keys() {
        let entries = entries_of(shards, *directory);
        names.extend(
            entries.into_iter().map(|(name, entry)| ((*directory, name.clone()), entry.inode())),
        );
    }
    names
}

/// The entries of a directory, wherever they are.
fn entries_of(shards: &Shards, directory: InodeNumber) -> Vec<(&Name, &Entry)> {
    match shards.0.get(&directory).map(|shard| &shard.body) {
        Some(Body::Directory { entries, .. }) => entries.iter().collect(),
        Some(Body::Split { buckets, .. }) => {
            let numbers = buckets.numbers().iter();
            let bodies = numbers.filter_map(|number| Some(&shards.0.get(number)?.body));
            bodies.filter_map(Body::entries).flatten().collect()
        }
        _ => Vec::new(),
    }
}
