//! The steps of a planned change, and of completing the intent of another node: after each answer, what to send next.

use super::{Answer, InodeNumber, Intent, IntentId, Outcome, Plan, ROOT, Script, Slot};

/// How often an unlock without an answer is sent again.
const REPEATS: u32 = 3;

/// How a change ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Ended {
    /// It is done.
    Done,
    /// It was not done: plan it again from what is there now, after completing this intent, which was in the way.
    Again(Option<Intent>),
    /// It was not done: a directory would be moved below itself.
    Loop,
    /// It was not done: the directory has entries.
    NotEmpty,
    /// It was not done: the shard of the new name is a directory with so many entries, which is to be split first.
    Full(u64),
    /// The answer was lost: nobody knows whether it was done.
    Unknown,
}

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Step {
    /// Send this to a shard.
    Send(InodeNumber, Script),
    /// Nothing more.
    End(Ended),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Stage {
    Make(usize),
    Alone,
    Prepare(usize),
    /// The index of a moved directory, and the ancestor that the walk up from its new parent has reached.
    Walk(usize, InodeNumber),
    Decide,
    Settle,
    /// The index of the shard whose locks are finished; how often there was no answer.
    Finish(usize, u32),
    Forget,
    /// Unlocks from this shard back to the first, and then ends like this.
    Undo(usize, Ended),
    End(Ended),
}

/// A planned change in progress. It is invisible to others until its first lock is set, and the node may die at any
/// point.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Transaction {
    plan: Plan,
    intent: Intent,
    stage: Stage,
    /// Whether an unlock had no answer: then the decider must not forget the intent.
    is_left: bool,
}

impl Transaction {
    /// Begins a change. `id` must never have been used.
    #[must_use]
    pub fn new(plan: Plan, id: IntentId) -> Self {
        let locked = plan.locked.iter().map(|(shard, _)| *shard).collect();
        let intent = Intent { id, decider: plan.decider, locked };
        let mut new = Self { plan, intent, stage: Stage::Make(0), is_left: false };
        new.stage = new.made(0);
        new
    }

    /// The shard that decides it.
    pub(super) const fn decider(&self) -> InodeNumber {
        self.plan.decider
    }

    /// What to send now, once; or how the change ended.
    #[must_use]
    pub fn step(&self) -> Step {
        let id = self.intent.id;
        let send = |shard: InodeNumber, script: Script| Step::Send(shard, script);
        match &self.stage {
            Stage::Make(at) => {
                send(self.plan.made[*at].0, Script::Make(self.plan.made[*at].1.clone()))
            }
            Stage::Alone => send(self.plan.decider, Script::Alone(self.plan.changes.clone())),
            Stage::Prepare(at) => {
                let (shard, change) = &self.plan.locked[*at];
                send(*shard, Script::Prepare(self.intent.clone(), change.clone()))
            }
            Stage::Walk(_, directory) => send(*directory, Script::Read(Slot::Parent)),
            Stage::Decide => {
                let changes = self.plan.changes.clone();
                send(
                    self.plan.decider,
                    Script::Decide(self.intent.clone(), self.plan.settlements, changes),
                )
            }
            Stage::Settle => send(self.plan.decider, Script::Settle(id)),
            Stage::Finish(at, _) => {
                send(self.intent.locked[*at], Script::Finish(id, Outcome::Committed))
            }
            Stage::Forget => send(self.plan.decider, Script::Forget(id)),
            Stage::Undo(at, _) => {
                send(self.intent.locked[*at], Script::Finish(id, Outcome::Aborted))
            }
            Stage::End(ended) => Step::End(ended.clone()),
        }
    }

    /// Takes the answer to what was sent; `None` if none came in time.
    pub fn answer(&mut self, answer: Option<Answer>) {
        let again = |answer: Option<Answer>| answer.map_or(Ended::Again(None), why);
        self.stage = match (self.stage.clone(), answer) {
            (Stage::Make(at), Some(Answer::Done)) => self.made(at + 1),
            (Stage::Alone, Some(Answer::Done)) | (Stage::Forget, _) => Stage::End(Ended::Done),
            (Stage::Make(_), answer) | (Stage::Alone, answer @ Some(_)) => {
                Stage::End(again(answer))
            }
            (Stage::Prepare(at), Some(Answer::Done)) => self.prepared(at),
            // Without an answer, the lock may be set already or arrive later; whoever meets it then aborts the intent.
            (Stage::Prepare(at), answer) => undo(at + usize::from(answer.is_none()), again(answer)),
            (Stage::Walk(at, directory), Some(Answer::Parent(parent))) => {
                self.walked(at, directory, parent)
            }
            (Stage::Decide, Some(Answer::Done))
            | (Stage::Settle, Some(Answer::Settled(Outcome::Committed))) => self.finish(0),
            (Stage::Decide, None) => Stage::Settle,
            (Stage::Walk(..) | Stage::Decide, answer)
            | (Stage::Settle, answer @ Some(Answer::Settled(Outcome::Aborted))) => {
                self.undo_all(again(answer))
            }
            // A directory that is gone took the record of its decisions with it.
            (Stage::Alone, None) | (Stage::Settle, _) => Stage::End(Ended::Unknown),
            (Stage::Finish(at, repeats), None) if repeats < REPEATS => {
                Stage::Finish(at, repeats + 1)
            }
            (Stage::Finish(at, _), answer) => {
                self.is_left |= answer.is_none();
                self.finish(at + 1)
            }
            (Stage::Undo(at, ended), _) => undo(at, ended),
            (Stage::End(ended), _) => Stage::End(ended),
        };
    }

    fn made(&self, next: usize) -> Stage {
        match (self.plan.made.get(next), self.plan.locked.is_empty()) {
            (Some(_), _) => Stage::Make(next),
            (None, true) => Stage::Alone,
            (None, false) => Stage::Prepare(0),
        }
    }

    /// The step after lock `at`. The walk up begins after all locks are set.
    fn prepared(&self, at: usize) -> Stage {
        if at + 1 < self.plan.locked.len() { Stage::Prepare(at + 1) } else { self.search(0) }
    }

    /// Begins the walk up from the new parent of moved directory `at`; after the last walk comes the decision.
    fn search(&self, at: usize) -> Stage {
        self.plan.moved.get(at).map_or(Stage::Decide, |(_, to)| self.walk(at, *to))
    }

    /// Stops at the moved directory itself: its parent entry is locked by us, so asking it would block.
    fn walk(&self, at: usize, directory: InodeNumber) -> Stage {
        let is_itself = directory == self.plan.moved[at].0;
        if is_itself { self.undo_all(Ended::Loop) } else { Stage::Walk(at, directory) }
    }

    fn walked(&self, at: usize, directory: InodeNumber, parent: InodeNumber) -> Stage {
        if directory == ROOT { self.search(at + 1) } else { self.walk(at, parent) }
    }

    fn finish(&self, next: usize) -> Stage {
        match () {
            () if next < self.intent.locked.len() => Stage::Finish(next, 0),
            () if self.is_left => Stage::End(Ended::Done),
            () => Stage::Forget,
        }
    }

    fn undo_all(&self, ended: Ended) -> Stage {
        undo(self.plan.locked.len(), ended)
    }
}

/// Unlocks the first `locked` shards, last one first.
fn undo(locked: usize, ended: Ended) -> Stage {
    match locked.checked_sub(1) {
        Some(at) => Stage::Undo(at, ended),
        None => Stage::End(ended),
    }
}

fn why(answer: Answer) -> Ended {
    match answer {
        Answer::Busy(intent) => Ended::Again(Some(intent)),
        Answer::NotEmpty => Ended::NotEmpty,
        Answer::Full(entries) => Ended::Full(entries),
        _ => Ended::Again(None),
    }
}

/// Completes an intent that is in the way, whoever began it: it never commits, and aborts an intent that is not
/// committed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Completion {
    intent: Intent,
    stage: CompletionStage,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum CompletionStage {
    Settle,
    Finish(Outcome, usize),
    Finished,
    End,
}

impl Completion {
    /// Begins the completion.
    #[must_use]
    pub const fn new(intent: Intent) -> Self {
        Self { intent, stage: CompletionStage::Settle }
    }

    /// What to send now; `None` at the end. The next attempt shows whether the intent is still in the way.
    #[must_use]
    pub fn step(&self) -> Option<(InodeNumber, Script)> {
        let id = self.intent.id;
        match self.stage {
            CompletionStage::Settle => Some((self.intent.decider, Script::Settle(id))),
            CompletionStage::Finish(outcome, at) => {
                Some((self.intent.locked[at], Script::Finish(id, outcome)))
            }
            CompletionStage::Finished => Some((self.intent.decider, Script::Finished(id))),
            CompletionStage::End => None,
        }
    }

    /// Takes the answer; `None` if none came in time.
    pub fn answer(&mut self, answer: Option<Answer>) {
        self.stage = match (&self.stage, answer) {
            (CompletionStage::Settle, Some(Answer::Settled(outcome))) => {
                CompletionStage::Finish(outcome, 0)
            }
            // A directory is removed only when no lock of its committed intents is left.
            (CompletionStage::Settle, Some(Answer::Gone)) => {
                CompletionStage::Finish(Outcome::Aborted, 0)
            }
            (CompletionStage::Finish(outcome, at), Some(_))
                if at + 1 < self.intent.locked.len() =>
            {
                CompletionStage::Finish(*outcome, at + 1)
            }
            (CompletionStage::Finish(Outcome::Committed, _), Some(_)) => CompletionStage::Finished,
            _ => CompletionStage::End,
        };
    }
}
