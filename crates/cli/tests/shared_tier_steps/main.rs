//! Something fails at each step of an operation: a node of a shared tier, or the server of its names, is killed or stands
//! still just before the node makes that step on a disk, or before or after a change in the store. Then both nodes show
//! what there was before, or what there is after it; what was acknowledged is there (I13 to I15).
//!
//! A step is known by its number. Each combination of an operation and a failure goes through the steps in turn, and begins
//! again after the last one. `HALOCLINE_STEP_ROUNDS` is the number of rounds of each combination; without it each operation
//! has one round, and one of them meets a server that is killed. `HALOCLINE_STEP_ONLY` names what takes part, with commas between: beginnings of
//! failures and operations, or single combinations (`rename: master killed`). `HALOCLINE_STEP_FIRST` is the step with which
//! each combination begins.

mod held;
mod operations;
mod rounds;
mod split_directories;
mod sticky;
mod stopped;
mod store;

use std::collections::BTreeSet;

use operations::ALL;
use rounds::{FAILURES, Failure, Nodes};
use store::Store;

/// What was tried of one combination.
#[derive(Debug, Default, Clone)]
struct Tried {
    rounds: usize,
    /// Rounds in which the operation was over before its step came: the next ones begin again.
    over: usize,
    steps: BTreeSet<String>,
    next: usize,
}

/// The combinations, as positions in [`ALL`] and [`FAILURES`], that a value of `HALOCLINE_STEP_ONLY` names.
fn chosen(only: &str) -> Vec<(usize, usize)> {
    let named = only.split(',').map(str::trim).filter(|part| !part.is_empty());
    let (whole, beginnings): (Vec<&str>, Vec<&str>) = named.partition(|part| part.contains(':'));
    let begun = |names: &[&'static str], begins: &dyn Fn(&str) -> bool| {
        let some: Vec<usize> = (0..names.len()).filter(|at| begins(names[*at])).collect();
        if some.is_empty() { (0..names.len()).collect() } else { some }
    };
    let (operations, failures) = (ALL.map(|it| it.name), FAILURES.map(Failure::name));
    for part in &beginnings {
        let mut all = operations.iter().chain(&failures);
        assert!(
            all.any(|name| name.starts_with(part)),
            "HALOCLINE_STEP_ONLY: nothing is called {part:?}"
        );
    }
    let is_begun = |name: &str| beginnings.iter().any(|part| name.starts_with(part));
    let mut all = Vec::new();
    if whole.is_empty() || !beginnings.is_empty() {
        for operation in begun(&operations, &is_begun) {
            all.extend(begun(&failures, &is_begun).into_iter().map(|failure| (operation, failure)));
        }
    }
    for part in whole {
        let (operation, failure) = part.split_once(':').expect("it has a colon");
        let at = |names: &[&str], name: &str| names.iter().position(|it| *it == name.trim());
        match (at(&operations, operation), at(&failures, failure)) {
            (Some(operation), Some(failure)) => all.push((operation, failure)),
            _ => panic!("HALOCLINE_STEP_ONLY: {part:?} is no operation and failure"),
        }
    }
    all
}

#[test]
fn combinations_are_chosen_by_their_names() {
    let of = |only: &str| {
        let name = |(operation, failure): (usize, usize)| {
            format!("{}: {}", ALL[operation].name, FAILURES[failure].name())
        };
        chosen(only).into_iter().map(name).collect::<Vec<_>>()
    };
    assert_eq!(of("").len(), ALL.len() * FAILURES.len());
    assert_eq!(of("rename: master killed"), ["rename: master killed"]);
    assert_eq!(of("rename,lost").len(), 5);
    assert_eq!(of("unlink, link: lost master").len(), 2 * FAILURES.len() + 1);
    assert!(std::panic::catch_unwind(|| chosen("renam: master killed")).is_err());
    assert!(std::panic::catch_unwind(|| chosen("master kiled")).is_err());
}

/// What an operation meets without a number of rounds. A server that is killed costs half a minute, until the leases are
/// over of nodes that could not leave.
fn usual(operation: usize) -> Failure {
    match operation {
        4 => Failure::MasterKilled,
        _ => [Failure::NodeKilled, Failure::NodeStops, Failure::MasterStops][operation % 3],
    }
}

/// The same on the masters of a cluster. One is killed in two of the rounds, once so that what it acknowledged is lost.
fn usual_on_masters(operation: usize) -> Failure {
    match operation {
        3 => Failure::MasterKilled,
        12 => Failure::MasterLost,
        _ => Failure::MasterStops,
    }
}

#[test]
fn i15_whatever_fails_at_a_step_the_names_and_bytes_are_of_before_or_after() {
    go_through_steps(Nodes::over(Store::server()), usual);
}

#[test]
fn i15_whatever_fails_at_a_step_names_on_several_masters_are_of_before_or_after() {
    go_through_steps(Nodes::over(Store::masters()), usual_on_masters);
}

/// Lets operations meet failures: without a number of rounds the `usual` one of each operation.
fn go_through_steps(nodes: Option<Nodes>, usual: fn(usize) -> Failure) {
    let rounds = std::env::var("HALOCLINE_STEP_ROUNDS").ok();
    let rounds: Option<usize> = rounds.map(|rounds| rounds.parse().unwrap());
    let Some(mut nodes) = nodes else { return };
    let chosen = chosen(&std::env::var("HALOCLINE_STEP_ONLY").unwrap_or_default());
    let first = std::env::var("HALOCLINE_STEP_FIRST").ok();
    let first: usize = first.map_or(0, |first| first.parse().unwrap());
    let mut tried = vec![Tried { next: first, ..Tried::default() }; chosen.len()];
    for round in 0..rounds.unwrap_or(1) {
        for (tried, &(operation, failure)) in tried.iter_mut().zip(&chosen) {
            let (operation, failure) = (operation, FAILURES[failure]);
            if rounds.is_none() && failure != usual(operation) {
                continue;
            }
            if rounds.is_none() {
                tried.next = 1 + operation % 5;
            }
            let held = nodes.round(&ALL[operation], failure, tried.next, round);
            tried.rounds += 1;
            if let Some(step) = held {
                tried.steps.insert(format!("{} {step}", tried.next));
                tried.next += 1;
            } else {
                (tried.next, tried.over) = (0, tried.over + 1);
            }
        }
    }
    nodes.end();
    for (Tried { rounds, over, steps, .. }, (operation, failure)) in tried.iter().zip(&chosen) {
        if *rounds > 0 {
            let (name, failure) = (ALL[*operation].name, FAILURES[*failure].name());
            println!(
                "{name} | {failure} | {rounds} rounds, {over} over before | {} steps",
                steps.len()
            );
        }
    }
}
