//! I11 to I14: every state of a small cluster, with crashes, lapsed leases, late and lost messages and a
//! store that forgets. Nothing that the protocol forbids can be reached, and what is broken on purpose is
//! noticed.

mod world;

use stateright::{Checker, HasDiscoveries, Model, Property};
use world::{Budget, Canary, Step, World};

const STATES: usize = 150_000;

/// Changes of a file's tokens between the newest and the oldest that somebody remembers.
const SPREAD: u64 = 5;

#[derive(Debug, Clone)]
struct Cluster {
    budget: Budget,
    canary: Option<Canary>,
}

impl Model for Cluster {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self.budget)]
    }

    fn actions(&self, state: &World, steps: &mut Vec<Step>) {
        state.steps(steps, self.canary);
    }

    fn next_state(&self, last: &World, step: Step) -> Option<World> {
        last.after(step, self.canary)
    }

    fn within_boundary(&self, state: &World) -> bool {
        state.spread() <= SPREAD
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let Budget { failovers, crashes, unreadable, contended, .. } = self.budget;
        let mut properties = vec![
            Property::always("I1, I13: bytes are the newest", |_, world: &World| {
                world.wrong.is_none()
            }),
            Property::always("I11: tokens agree", |_, world: &World| world.tokens_agree()),
            Property::always("I14: nothing is lost", |_, world: &World| world.nothing_is_lost()),
        ];
        // That something happens at all.
        let seen = |name, what| Property::sometimes(name, what);
        properties.push(seen("two nodes hold tokens", |_, world: &World| world.is_handed_over()));
        if contended {
            properties.push(seen("two write directly", |_, world| world.is_shared_directly()));
        }
        if crashes > 0 {
            properties.push(seen("a recovered node is back", |_, world| world.is_back()));
        }
        if unreadable > 0 {
            properties.push(seen("a node cannot read its cache", |_, world| world.is_marked()));
            properties.push(seen("what it could not read is handed over", |_, world| {
                world.is_given_after_all()
            }));
        }
        if failovers > 0 {
            properties.push(seen("a new epoch grants", |_, world| world.grants_again()));
        }
        properties
    }
}

/// Two nodes, and nothing goes wrong.
const CALM: Budget = Budget {
    nodes: 2,
    blocks: 1,
    failovers: 0,
    crashes: 0,
    lapses: 0,
    lost_replies: 0,
    unreadable: 0,
    contended: false,
};

/// How many states are looked at: enough for all of the smaller ones.
/// `HALOCLINE_TOKEN_STATES` says otherwise.
fn states() -> usize {
    let wanted = std::env::var("HALOCLINE_TOKEN_STATES").ok();
    wanted.and_then(|count| count.parse().ok()).unwrap_or(STATES)
}

/// Explores what `budget` allows.
fn holds(budget: Budget) {
    let model = Cluster { budget, canary: None };
    // Breadth first: what the bound leaves out takes more steps than all that was looked at.
    let checker = model.checker().threads(2).target_state_count(states()).spawn_bfs().join();
    println!("{budget:?}: {} states, {} deep", checker.unique_state_count(), checker.max_depth());
    checker.assert_properties();
}

#[test]
fn i11_nodes_take_tokens_from_each_other() {
    holds(CALM);
}

#[test]
fn i11_nodes_share_a_file_by_blocks() {
    holds(Budget { blocks: 2, ..CALM });
}

#[test]
fn i11_nodes_write_a_contended_range_directly() {
    holds(Budget { contended: true, ..CALM });
}

#[test]
fn i11_three_nodes_take_tokens_from_each_other() {
    holds(Budget { nodes: 3, ..CALM });
}

#[test]
fn i11_messages_are_late_and_lost() {
    holds(Budget { lost_replies: 2, ..CALM });
}

#[test]
fn i12_leases_lapse() {
    holds(Budget { lapses: 2, lost_replies: 1, ..CALM });
}

#[test]
fn i13_nodes_die_with_dirty_bytes() {
    holds(Budget { crashes: 2, lost_replies: 1, ..CALM });
}

#[test]
fn i13_nodes_cannot_read_their_dirty_bytes() {
    holds(Budget { unreadable: 2, ..CALM });
    holds(Budget { unreadable: 1, blocks: 2, ..CALM });
    holds(Budget { unreadable: 1, lapses: 1, ..CALM });
    holds(Budget { unreadable: 1, crashes: 1, ..CALM });
}

#[test]
fn i14_the_store_forgets() {
    holds(Budget { failovers: 2, lost_replies: 1, ..CALM });
}

#[test]
fn i14_the_store_forgets_while_a_node_dies_and_another_is_cut_off() {
    holds(Budget { failovers: 1, crashes: 1, lapses: 1, ..CALM });
}

/// A checker that finds nothing proves nothing: each of these must be noticed.
#[test]
fn what_is_broken_on_purpose_is_noticed() {
    for (canary, budget) in [
        (Canary::GrantedTwice, CALM),
        (Canary::LostInvalidation, CALM),
        (Canary::YieldBeforeCommit, CALM),
        (Canary::LeaseNotKept, Budget { lapses: 1, ..CALM }),
        (Canary::SharedAfterLapse, Budget { lapses: 1, ..CALM }),
        (Canary::ConfirmedEarly, Budget { failovers: 1, crashes: 1, ..CALM }),
        (Canary::AnyVersion, Budget { lost_replies: 1, ..CALM }),
        (Canary::AnyEpoch, Budget { failovers: 1, lost_replies: 1, ..CALM }),
        (Canary::GoneIsForgotten, Budget { crashes: 1, ..CALM }),
        (Canary::UnreadableIsVoid, Budget { unreadable: 1, ..CALM }),
    ] {
        let model = Cluster { budget, canary: Some(canary) };
        let checker =
            model.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
        let states = checker.unique_state_count();
        let found: Vec<_> = checker
            .discoveries()
            .into_iter()
            .filter(|(name, _)| name.starts_with('I'))
            .map(|(name, path)| format!("{name} after {} steps", path.into_actions().len()))
            .collect();
        println!("{canary:?}: {found:?}, {states} states");
        assert!(!found.is_empty(), "{canary:?} was not noticed in {states} states");
    }
}
