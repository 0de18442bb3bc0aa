//! A small world for the model checker: a few directories and files, one operation for each node, and messages that are
//! lost or late. All decisions are those of `halocline_model::namespace`.

use std::collections::{BTreeMap, BTreeSet};

use halocline_model::namespace::{
    Answer, Attempt, Body, Change, Completion, Entry, EntryName, Failure, Flags, InodeNumber,
    Links, Name, Next, Opaque, Operation, Outcome, ROOT, Script, Shard, Shards, Slot,
};
use halocline_model::token::Session;

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
/// What nobody uses yet.
pub(crate) const FRESH: InodeNumber = InodeNumber(20);

/// The store's clock stands still.
const NOW: u64 = 0;
/// How often an operation begins.
const TRIES: u32 = 3;

/// What is broken on purpose, to see that the checker notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Canary {
    /// A decision is taken though its intent was aborted.
    AnySettlements,
    /// Who meets a lock takes its intent for aborted without asking.
    AbortUnasked,
    /// The decider keeps nothing of what it decided.
    NothingKept,
    /// What is locked can be changed.
    LocksIgnored,
    /// Who looks at the directories above sees no locks.
    MovesUnseen,
    /// A directory is removed without a lock.
    RemovedUnlocked,
    /// The decider forgets before the locks are finished.
    ForgottenEarly,
}

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

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Node {
    operation: Operation,
    attempt: Attempt,
    is_up: bool,
    /// How often its operation was committed.
    commits: u8,
}

type Names = BTreeMap<(InodeNumber, Name), InodeNumber>;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct World {
    shards: Shards,
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
        let node = |(at, operation): (u64, &Operation)| Node {
            operation: operation.clone(),
            attempt: Attempt::new(operation.clone(), Session(at), 0, TRIES),
            is_up: true,
            commits: 0,
        };
        let nodes = (0..).zip(operations).map(node).collect();
        Self { shards, nodes, late: Vec::new(), budget, wrong: None }
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
        match world.nodes[0].attempt.next() {
            Next::End(result) => (result, count),
            Next::Send(..) => unreachable!("it is over"),
        }
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
            if !node.is_up || matches!(node.attempt.next(), Next::End(_)) {
                continue;
            }
            steps.push(Step::Ask(at));
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
                next.nodes[at].attempt.answer(Some(answer));
            }
            Step::LoseAnswer(at) => {
                next.budget.lost -= 1;
                let (shard, script) = next.message(at);
                next.run(at, shard, &script, canary);
                next.nodes[at].attempt.answer(None);
            }
            Step::BeLate(at) => {
                next.budget.late -= 1;
                let (shard, script) = next.message(at);
                next.late.push((at, shard, script));
                next.nodes[at].attempt.answer(None);
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
        match self.nodes[at].attempt.next() {
            Next::Send(shard, script) => (shard, script),
            Next::End(_) => unreachable!("a node that is done takes no step"),
        }
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
        let answer = broken(&mut self.shards, shard, script, canary, Session(at as u64));
        let commits =
            matches!(script, Script::Alone(_) | Script::Decide(..)) && answer == Answer::Done;
        let expected = if commits { self.committed(at, before) } else { Some(before) };
        if expected.is_none_or(|expected| expected != self.names()) {
            self.wrong = Some("names are not those of a plain tree");
        }
        answer
    }

    /// What the names are after a node's operation. `None` if it cannot be done.
    fn committed(&mut self, at: usize, mut names: Names) -> Option<Names> {
        let node = &mut self.nodes[at];
        node.commits += 1;
        make(&node.operation, &mut names)?;
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
            let Some(Body::Directory { parent: own, entries, .. }) =
                resolved.0.get(&inode).map(|shard| &shard.body)
            else {
                return false;
            };
            if *own != parent || !seen.insert(inode) {
                return false;
            }
            let below = entries.values().filter(|entry| matches!(entry, Entry::Directory(_)));
            todo.extend(below.map(|entry| (entry.inode(), inode)));
        }
        let is_empty = |shard: &Shard| match &shard.body {
            Body::Directory { entries, .. } => entries.is_empty(),
            Body::Links(_) => true,
        };
        resolved.0.iter().all(|(inode, shard)| seen.contains(inode) || is_empty(shard))
    }

    /// A file that has had one name only has one, and every other one has as many as are counted.
    pub(crate) fn counts_agree(&self) -> bool {
        let resolved = self.resolved();
        let (mut single, mut linked) = (BTreeMap::new(), BTreeMap::new());
        for shard in resolved.0.values() {
            let Body::Directory { entries, .. } = &shard.body else { continue };
            for entry in entries.values() {
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
        self.nodes.iter().all(|node| match node.attempt.next() {
            Next::Send(..) | Next::End(Err(Failure::Unknown)) => node.commits <= 1,
            Next::End(Ok(())) => node.commits == 1,
            Next::End(Err(_)) => node.commits == 0,
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
        self.nodes.iter().all(|node| !node.is_up || matches!(node.attempt.next(), Next::End(_)))
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
    for (directory, shard) in &shards.0 {
        if let Body::Directory { entries, .. } = &shard.body {
            names.extend(
                entries.iter().map(|(name, entry)| ((*directory, name.clone()), entry.inode())),
            );
        }
    }
    names
}

/// Runs a script of a session as the store would that `canary` stands for.
fn broken(
    shards: &mut Shards,
    at: InodeNumber,
    script: &Script,
    canary: Option<Canary>,
    from: Session,
) -> Answer {
    let decider = shards.0.get_mut(&at);
    match (canary, script) {
        (Some(Canary::AnySettlements), Script::Decide(intent, _, changes)) => {
            let settlements = decider.map_or(0, |decider| decider.settlements);
            let decide = Script::Decide(intent.clone(), settlements, changes.clone());
            shards.run(at, &decide, NOW)
        }
        (Some(Canary::AbortUnasked), Script::Settle(id)) if id.session != from => {
            Answer::Settled(Outcome::Aborted)
        }
        (Some(Canary::NothingKept), Script::Decide(intent, ..)) => {
            let answer = shards.run(at, script, NOW);
            shards.run(at, &Script::Forget(intent.id), NOW);
            answer
        }
        (Some(Canary::ForgottenEarly), Script::Finish(id, Outcome::Committed)) => {
            for decider in shards.0.values_mut() {
                decider.committed.remove(id);
            }
            shards.run(at, script, NOW)
        }
        (Some(Canary::LocksIgnored), Script::Alone(_)) => {
            let Some(decider) = decider else { return Answer::Gone };
            let locks = std::mem::take(&mut decider.locks);
            let answer = shards.run(at, script, NOW);
            shards.0.entry(at).and_modify(|shard| shard.locks = locks);
            answer
        }
        (Some(Canary::MovesUnseen), Script::Read(Slot::Parent)) => {
            match decider.map(|shard| &shard.body) {
                Some(Body::Directory { parent, .. }) => Answer::Parent(*parent),
                _ => Answer::Gone,
            }
        }
        (Some(Canary::RemovedUnlocked), Script::Prepare(_, Change::End)) => {
            shards.clone().run(at, script, NOW)
        }
        _ => shards.run(at, script, NOW),
    }
}
