//! What is broken on purpose, to see that the checker notices.

use halocline_model::namespace::{
    Answer, Body, Change, InodeNumber, Outcome, Script, Shards, Slot,
};
use halocline_model::token::Session;

use super::node::{BUCKETS, FRESH_BUCKETS};
use super::world::NOW;

/// One fault.
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
    /// A directory is split though it was changed since it was copied.
    SplitUncompared,
    /// A directory that was split takes a name.
    SplitTakesNames,
    /// A directory is removed though only one of its buckets was asked.
    EndOfOneBucket,
    /// A listing that meets buckets begins the first one from the start.
    ListedFromStart,
    /// Its cursor does not say where it met them.
    ListedWithoutMet,
}

/// Runs a script of a session as the store would that `canary` stands for.
pub(crate) fn broken(
    (shards, entries_max): (&mut Shards, u64),
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
            shards.run_within(at, &decide, NOW, entries_max)
        }
        (Some(Canary::AbortUnasked), Script::Settle(id)) if id.session != from => {
            Answer::Settled(Outcome::Aborted)
        }
        (Some(Canary::NothingKept), Script::Decide(intent, ..)) => {
            let answer = shards.run_within(at, script, NOW, entries_max);
            shards.run(at, &Script::Forget(intent.id), NOW);
            answer
        }
        (Some(Canary::ForgottenEarly), Script::Finish(id, Outcome::Committed)) => {
            for decider in shards.0.values_mut() {
                decider.committed.remove(id);
            }
            shards.run_within(at, script, NOW, entries_max)
        }
        (Some(Canary::LocksIgnored), Script::Alone(_)) => {
            let Some(decider) = decider else { return Answer::Gone };
            let locks = std::mem::take(&mut decider.locks);
            let answer = shards.run_within(at, script, NOW, entries_max);
            shards.0.entry(at).and_modify(|shard| shard.locks = locks);
            answer
        }
        (Some(Canary::MovesUnseen), Script::Read(Slot::Parent)) => {
            match decider.and_then(|shard| shard.body.directory_of()) {
                Some((parent, _)) => Answer::Parent(*parent),
                _ => Answer::Gone,
            }
        }
        (Some(Canary::RemovedUnlocked), Script::Prepare(_, Change::End(_))) => {
            shards.clone().run(at, script, NOW)
        }
        (Some(Canary::EndOfOneBucket), Script::Prepare(_, Change::End(_)))
            if at.0 >= FRESH_BUCKETS && at.0 % BUCKETS == 1 =>
        {
            Answer::Done
        }
        (Some(Canary::SplitUncompared), Script::Alone(changes)) => {
            let version = decider.as_ref().map_or(0, |shard| shard.version);
            let names = decider.and_then(|shard| shard.body.entries());
            let entries = names.map_or(0, |entries| entries.len() as u64);
            let current = |change: &Change| match change.clone() {
                Change::Split { buckets, .. } => Change::Split { version, entries, buckets },
                change => change,
            };
            let alone = Script::Alone(changes.iter().map(current).collect());
            shards.run_within(at, &alone, NOW, entries_max)
        }
        (Some(Canary::SplitTakesNames), Script::Alone(changes))
            if matches!(changes[..], [Change::Name(_, None, _)])
                && decider.is_some_and(|shard| matches!(shard.body, Body::Split { .. })) =>
        {
            Answer::Done
        }
        _ => shards.run_within(at, script, NOW, entries_max),
    }
}
