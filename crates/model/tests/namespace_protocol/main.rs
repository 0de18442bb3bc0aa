//! I15: every interleaving of a few operations on names, with nodes that die at any step, answers that are lost and
//! messages that are late by any time. At each step the names that an observer finds are those of a plain tree on which
//! the operations were made one after the other; and what is broken on purpose is noticed.

mod canary;
mod listing;
mod node;
mod world;

use canary::Canary;
use halocline_model::namespace::{
    EntryName, Failure, Flags, InodeNumber, Opaque, Operation, ROOT, Refusal,
};
use stateright::{Checker, HasDiscoveries, Model, Property};
use world::{A, B, Budget, D, E, F, FRESH, G, Step, World, Z};

/// From here on nobody uses any shard: of links into each directory some.
const FRESH_LINKS: u64 = 100;

/// How many entries `/a` and `/b` have: there, the next name has them split.
const ENTRIES_MAX: u64 = 3;

/// How many states of a test are looked at, breadth first. `HALOCLINE_NAMESPACE_STATES` says otherwise.
const STATES: usize = 60_000;

#[derive(Debug, Clone)]
struct Names {
    begin: World,
    canary: Option<Canary>,
}

impl Model for Names {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![self.begin.clone()]
    }

    fn actions(&self, state: &World, steps: &mut Vec<Step>) {
        state.steps(steps);
    }

    fn next_state(&self, last: &World, step: Step) -> Option<World> {
        Some(last.after(step, self.canary))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("I15: names are a plain tree's", |_, world: &World| {
                world.wrong.is_none()
            }),
            Property::always("I15: directories are a tree", |_, world: &World| world.is_a_tree()),
            Property::always("I15: files know their names", |_, world: &World| {
                world.counts_agree()
            }),
            Property::always("results are what happened", |_, world: &World| {
                world.results_are_true()
            }),
            Property::always("what stays is listed once", |_, world: &World| {
                world.listings_are_whole()
            }),
            Property::always("anybody completes all", |_, world: &World| world.is_completable()),
            Property::sometimes("all is done", |_, world: &World| world.is_over()),
        ]
    }
}

const CALM: Budget = Budget { crashes: 0, lost: 0, late: 0 };
const ROUGH: Budget = Budget { crashes: 1, lost: 1, late: 1 };

fn states() -> usize {
    let wanted = std::env::var("HALOCLINE_NAMESPACE_STATES").ok();
    wanted.and_then(|count| count.parse().ok()).unwrap_or(STATES)
}

fn holds(operations: &[Operation]) {
    holds_from(|budget| World::new(operations, budget));
}

/// The same where each directory with three entries is split.
fn holds_with_splits(operations: &[Operation]) {
    holds_from(|budget| World::new(operations, budget).splitting(ENTRIES_MAX));
}

fn holds_from(begin: impl Fn(Budget) -> World) {
    for budget in [CALM, ROUGH] {
        let model = Names { begin: begin(budget), canary: None };
        let checker = model.checker().threads(2).target_state_count(states()).spawn_bfs().join();
        println!(
            "{budget:?}: {} states, {} deep",
            checker.unique_state_count(),
            checker.max_depth()
        );
        checker.assert_properties();
    }
}

fn at(directory: InodeNumber, name: &str) -> EntryName {
    EntryName { directory, name: name.into() }
}

fn rename(from: EntryName, to: EntryName) -> Operation {
    Operation::Rename(from, to, Flags::Replace)
}

fn expecting(expected: &[Option<InodeNumber>], operation: Operation) -> Operation {
    operation.expecting(Some(expected.to_vec()))
}

fn create(at: EntryName) -> Operation {
    Operation::Create(at, FRESH, Opaque::default())
}

fn make_directory(at: EntryName) -> Operation {
    Operation::MakeDirectory(at, FRESH, Opaque::default())
}

fn link(from: EntryName, to: EntryName) -> Operation {
    let shard = InodeNumber(FRESH_LINKS * to.directory.0);
    Operation::Link(from, to, shard)
}

#[test]
fn i15_a_rename_across_directories_and_a_file_made_at_its_new_name() {
    holds(&[rename(at(A, "f"), at(B, "x")), create(at(B, "x"))]);
}

#[test]
fn i15_a_rename_across_directories_and_a_removal() {
    holds(&[rename(at(A, "f"), at(B, "x")), Operation::Unlink(at(A, "f"))]);
}

#[test]
fn i15_two_renames_of_one_file() {
    holds(&[rename(at(A, "f"), at(B, "x")), rename(at(A, "f"), at(A, "y"))]);
    holds(&[rename(at(A, "f"), at(B, "x")), rename(at(A, "f"), at(E, "y"))]);
}

/// Regression: who had read the old name before the other one's rename, and the new name after it, took the two for names
/// of one file, and told that it had renamed it.
#[test]
fn i15_two_renames_of_one_file_to_one_name() {
    for (from, to) in [(at(A, "f"), at(A, "x")), (at(A, "f"), at(B, "x")), (at(A, "d"), at(B, "x"))]
    {
        holds(&[rename(from.clone(), to.clone()), rename(from, to)]);
    }
    // It has another name besides.
    holds(&[rename(at(A, "l"), at(A, "x")), rename(at(A, "l"), at(A, "x"))]);
    holds(&[rename(at(A, "f"), at(B, "g")), rename(at(A, "f"), at(B, "g"))]);
}

#[test]
fn i15_a_rename_into_a_directory_that_is_removed() {
    holds(&[rename(at(A, "f"), at(E, "x")), Operation::RemoveDirectory(at(B, "e"))]);
}

#[test]
fn i15_a_file_made_in_a_directory_that_is_removed() {
    holds(&[create(at(E, "x")), Operation::RemoveDirectory(at(B, "e"))]);
    holds(&[make_directory(at(E, "x")), Operation::RemoveDirectory(at(B, "e"))]);
}

#[test]
fn i15_an_empty_directory_is_replaced() {
    holds(&[rename(at(A, "d"), at(B, "e")), create(at(E, "x"))]);
}

#[test]
fn i15_directories_are_never_below_each_other() {
    holds(&[rename(at(ROOT, "a"), at(B, "x")), rename(at(ROOT, "b"), at(A, "y"))]);
}

#[test]
fn i15_directories_far_apart_are_never_below_each_other() {
    holds(&[rename(at(ROOT, "a"), at(E, "x")), rename(at(B, "e"), at(D, "y"))]);
}

#[test]
fn i15_three_directories_are_never_in_a_circle() {
    let (b_of_a, e_of_d) = (rename(at(ROOT, "a"), at(E, "x")), rename(at(B, "e"), at(D, "y")));
    holds(&[b_of_a, e_of_d, rename(at(A, "d"), at(B, "z"))]);
}

#[test]
fn i15_names_are_exchanged() {
    let exchange = |from, to| Operation::Rename(from, to, Flags::Exchange);
    holds(&[exchange(at(A, "f"), at(B, "g")), Operation::Unlink(at(B, "g"))]);
    holds(&[exchange(at(A, "d"), at(B, "g")), rename(at(B, "e"), at(D, "y"))]);
}

#[test]
fn i15_a_second_name_and_a_rename() {
    holds(&[link(at(A, "f"), at(B, "x")), rename(at(A, "f"), at(A, "y"))]);
    holds(&[link(at(A, "f"), at(A, "x")), link(at(A, "f"), at(B, "x"))]);
}

#[test]
fn i15_names_of_one_file_are_counted() {
    holds(&[Operation::Unlink(at(A, "l")), Operation::Unlink(at(B, "l"))]);
    holds(&[link(at(A, "l"), at(E, "l")), Operation::Unlink(at(A, "l"))]);
    holds(&[rename(at(A, "f"), at(B, "l")), Operation::Unlink(at(A, "l"))]);
}

#[test]
fn i15_three_nodes() {
    holds(&[rename(at(A, "f"), at(B, "x")), rename(at(B, "g"), at(A, "f")), create(at(B, "x"))]);
}

/// What was given the name meanwhile stays, whether in its directory or from another one.
#[test]
fn i15_a_removal_of_one_file_and_another_that_gets_its_name() {
    let removal = || expecting(&[Some(F)], Operation::Unlink(at(A, "f")));
    holds(&[removal(), rename(at(B, "g"), at(A, "f"))]);
    holds(&[removal(), Operation::Rename(at(A, "f"), at(A, "l"), Flags::Exchange)]);
}

#[test]
fn i15_a_removal_of_one_directory_and_another_that_gets_its_name() {
    let removal = expecting(&[Some(E)], Operation::RemoveDirectory(at(B, "e")));
    holds(&[removal, rename(at(A, "d"), at(B, "e"))]);
}

/// Neither what has the old name nor what has the new one is another than was meant.
#[test]
fn i15_a_rename_of_one_file_over_another_and_what_gets_their_names() {
    let over = || expecting(&[Some(F), Some(G)], rename(at(A, "f"), at(B, "g")));
    holds(&[over(), Operation::Rename(at(A, "f"), at(A, "l"), Flags::Exchange)]);
    holds(&[over(), Operation::Rename(at(A, "l"), at(B, "g"), Flags::Exchange)]);
    holds(&[expecting(&[Some(F), None], rename(at(A, "f"), at(B, "x"))), create(at(B, "x"))]);
    let exchange = Operation::Rename(at(A, "f"), at(B, "g"), Flags::Exchange);
    holds(&[expecting(&[Some(F), Some(G)], exchange), rename(at(A, "l"), at(B, "g"))]);
}

#[test]
fn i15_a_directory_is_split_while_its_names_change() {
    for other in [
        Operation::Create(at(A, "y"), Z, Opaque::default()),
        Operation::Unlink(at(A, "f")),
        rename(at(A, "f"), at(B, "g")),
        rename(at(A, "d"), at(E, "x")),
        link(at(A, "f"), at(E, "x")),
        rename(at(ROOT, "a"), at(E, "x")),
    ] {
        holds_with_splits(&[create(at(A, "x")), other]);
    }
}

#[test]
fn i15_a_directory_is_split_while_another_is_moved_into_it() {
    holds_with_splits(&[make_directory(at(A, "x")), rename(at(B, "e"), at(A, "y"))]);
    holds_with_splits(&[rename(at(A, "f"), at(B, "x")), rename(at(B, "g"), at(A, "y"))]);
}

/// In a directory with buckets, two names may be in one bucket or in two.
#[test]
fn i15_names_in_buckets_are_changed_as_others() {
    for (from, to) in [("f", World::name_in(0)), ("f", World::name_in(1)), ("l", "f"), ("z", "d")] {
        let pair = [rename(at(A, from), at(A, to)), Operation::Unlink(at(A, "f"))];
        holds_from(|budget| split(&pair, budget));
    }
    let (x, y) = (at(A, World::name_in(0)), at(A, World::name_in(1)));
    holds_from(|budget| split(&[rename(at(A, "f"), x.clone()), create(y.clone())], budget));
    holds_from(|budget| {
        split(&[rename(at(A, "f"), y.clone()), link(at(A, "l"), x.clone())], budget)
    });
    holds_from(|budget| {
        let exchange = Operation::Rename(at(A, "f"), at(A, "l"), Flags::Exchange);
        split(&[exchange, rename(at(A, "d"), at(E, "x"))], budget)
    });
    holds_from(|budget| {
        split(&[rename(at(ROOT, "a"), at(E, "x")), rename(at(B, "e"), y.clone())], budget)
    });
}

#[test]
fn i15_a_directory_with_buckets_is_removed_while_it_gets_a_name() {
    for index in 0..2 {
        let operations =
            [create(at(B, World::name_in(index))), Operation::RemoveDirectory(at(ROOT, "b"))];
        holds_from(|budget| split_and_empty(&operations, budget));
    }
    let over = [rename(at(ROOT, "a"), at(ROOT, "b")), create(at(B, World::name_in(1)))];
    holds_from(|budget| split_and_empty(&over, budget));
}

#[test]
fn i15_what_stays_in_a_directory_is_listed_once_while_it_is_split() {
    for other in [create(at(A, "x")), rename(at(B, "g"), at(A, "x"))] {
        holds_from(|budget| {
            World::new(std::slice::from_ref(&other), budget).splitting(ENTRIES_MAX).listing(A)
        });
    }
    holds_from(|budget| {
        let operations = [create(at(A, "x")), Operation::Unlink(at(A, "l"))];
        out_of_order(&operations, budget).listing(A)
    });
    holds_from(|budget| split(&[rename(at(A, "f"), at(A, "x"))], budget).listing(A));
}

/// As `docs/decisions/0042-names-by-intents.md` has them.
#[test]
fn an_operation_takes_so_many_round_trips() {
    for (operation, round_trips) in [
        (create(at(A, "x")), 1),
        (make_directory(at(A, "x")), 2),
        (Operation::Unlink(at(A, "f")), 2),
        (Operation::Unlink(at(A, "l")), 6),
        (Operation::RemoveDirectory(at(B, "e")), 5),
        (rename(at(A, "f"), at(A, "x")), 3),
        (rename(at(A, "f"), at(B, "x")), 6),
        (rename(at(A, "d"), at(B, "x")), 8 + 2),
        (link(at(A, "f"), at(B, "x")), 7),
    ] {
        assert_eq!(
            World::new(std::slice::from_ref(&operation), CALM).round_trips(),
            round_trips,
            "{operation:?}"
        );
    }
}

/// What is there decides, as `rename(2)`, `link(2)` and the others have it; nothing is changed then.
#[test]
fn operations_are_refused_by_what_is_there() {
    let flagged = |from, to, flags| Operation::Rename(from, to, flags);
    let of_f = |operation| expecting(&[Some(F)], operation);
    for (operation, failure) in [
        (create(at(A, "f")), Failure::Refused(Refusal::Exists)),
        (create(at(FRESH, "f")), Failure::Refused(Refusal::Absent)),
        (Operation::Unlink(at(A, "x")), Failure::Refused(Refusal::Absent)),
        (Operation::Unlink(at(A, "d")), Failure::Refused(Refusal::IsADirectory)),
        (of_f(Operation::Unlink(at(A, "x"))), Failure::Refused(Refusal::Absent)),
        (of_f(Operation::Unlink(at(B, "g"))), Failure::Refused(Refusal::Another)),
        (of_f(Operation::RemoveDirectory(at(B, "e"))), Failure::Refused(Refusal::Another)),
        (of_f(rename(at(B, "g"), at(B, "x"))), Failure::Refused(Refusal::Another)),
        (
            expecting(&[Some(F), None], rename(at(A, "f"), at(B, "g"))),
            Failure::Refused(Refusal::Another),
        ),
        (Operation::RemoveDirectory(at(A, "f")), Failure::Refused(Refusal::NotADirectory)),
        (Operation::RemoveDirectory(at(ROOT, "a")), Failure::NotEmpty),
        (link(at(A, "d"), at(B, "x")), Failure::Refused(Refusal::IsADirectory)),
        (link(at(A, "f"), at(B, "g")), Failure::Refused(Refusal::Exists)),
        (rename(at(A, "d"), at(B, "g")), Failure::Refused(Refusal::NotADirectory)),
        (rename(at(A, "f"), at(B, "e")), Failure::Refused(Refusal::IsADirectory)),
        (rename(at(B, "e"), at(ROOT, "a")), Failure::NotEmpty),
        (rename(at(B, "e"), at(ROOT, "b")), Failure::Refused(Refusal::Inside)),
        (rename(at(B, "g"), at(ROOT, "b")), Failure::Refused(Refusal::Inside)),
        (rename(at(ROOT, "a"), at(A, "x")), Failure::Loop),
        (rename(at(ROOT, "a"), at(D, "x")), Failure::Loop),
        (flagged(at(A, "f"), at(B, "g"), Flags::NoReplace), Failure::Refused(Refusal::Exists)),
        (flagged(at(A, "f"), at(B, "x"), Flags::Exchange), Failure::Refused(Refusal::Absent)),
    ] {
        let world = World::new(std::slice::from_ref(&operation), CALM);
        assert_eq!(world.failure(), Some(failure), "{operation:?}");
    }
}

/// A checker that finds nothing proves nothing: each of these must be noticed.
#[test]
fn what_is_broken_on_purpose_is_noticed() {
    let over = || rename(at(A, "f"), at(B, "x"));
    let cycle = [rename(at(ROOT, "a"), at(B, "x")), rename(at(ROOT, "b"), at(A, "y"))];
    for (canary, operations) in [
        (Canary::AnySettlements, vec![over(), Operation::Unlink(at(A, "f"))]),
        (Canary::AbortUnasked, vec![over(), Operation::Unlink(at(A, "f"))]),
        (Canary::NothingKept, vec![over(), Operation::Unlink(at(A, "f"))]),
        (Canary::LocksIgnored, vec![over(), Operation::Unlink(at(A, "f"))]),
        (Canary::MovesUnseen, cycle.to_vec()),
        (Canary::RemovedUnlocked, vec![create(at(E, "x")), Operation::RemoveDirectory(at(B, "e"))]),
        (Canary::ForgottenEarly, vec![over(), Operation::Unlink(at(A, "f"))]),
    ] {
        notice(canary, World::new(&operations, ROUGH));
    }
}

/// The same of splits.
#[test]
fn what_is_broken_on_purpose_in_splits_is_noticed() {
    let full = |operations: &[Operation]| World::new(operations, CALM).splitting(ENTRIES_MAX);
    let other = create(at(B, World::name_in(1)));
    for (canary, begin) in [
        (Canary::SplitUncompared, full(&[create(at(A, "x")), Operation::Unlink(at(A, "f"))])),
        (Canary::SplitTakesNames, split(&[create(at(A, "x"))], CALM)),
        (
            Canary::EndOfOneBucket,
            split_and_empty(&[other, Operation::RemoveDirectory(at(ROOT, "b"))], CALM),
        ),
        (Canary::ListedFromStart, full(&[create(at(A, "x"))]).listing(A)),
        (Canary::ListedWithoutMet, out_of_order(&[create(at(A, "x"))], CALM).listing(A)),
    ] {
        notice(canary, begin);
    }
}

/// `/a` has buckets, and one more name.
fn split(operations: &[Operation], budget: Budget) -> World {
    let world = World::new(operations, budget).splitting(ENTRIES_MAX);
    let world = world.following(50, &Operation::Create(at(A, "z"), Z, Opaque::default()));
    assert!(world.is_split(A));
    world
}

/// The last name of `/a`, which is full, is in its first bucket.
fn out_of_order(operations: &[Operation], budget: Budget) -> World {
    let world = World::new(operations, budget).splitting(ENTRIES_MAX);
    let world = world.following(50, &Operation::Unlink(at(A, "f")));
    world.following(51, &Operation::Create(at(A, "p"), Z, Opaque::default()))
}

/// `/b` has buckets and no entries.
fn split_and_empty(operations: &[Operation], budget: Budget) -> World {
    let mut world = World::new(operations, budget).splitting(ENTRIES_MAX);
    world = world.following(50, &Operation::Create(at(B, "z"), Z, Opaque::default()));
    for (name, number) in [("g", 51), ("l", 52), ("z", 53)] {
        world = world.following(number, &Operation::Unlink(at(B, name)));
    }
    world = world.following(54, &Operation::RemoveDirectory(at(B, "e")));
    assert!(world.is_split(B));
    world
}

fn notice(canary: Canary, begin: World) {
    let model = Names { begin, canary: Some(canary) };
    let checker =
        model.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let states = checker.unique_state_count();
    let found: Vec<_> = checker
        .discoveries()
        .into_iter()
        .filter(|(name, _)| *name != "all is done")
        .map(|(name, path)| format!("{name} after {} steps", path.into_actions().len()))
        .collect();
    println!("{canary:?}: {found:?}, {states} states");
    assert!(!found.is_empty(), "{canary:?} was not noticed in {states} states");
}
