//! Something fails at each step of an operation: a node of a shared tier, or the server of its names, is killed or stands
//! still just before the node makes that step on a disk, or before or after a change in the store. Then both nodes show
//! what there was before, or what there is after it; what was acknowledged is there (I13 to I15).
//!
//! A step is known by its number. Each combination of an operation and a failure goes through the steps in turn, and begins
//! again after the last one. `HALOCLINE_STEP_ROUNDS` is the number of rounds of each combination; without it each operation
//! has one round, and one of them meets a server that is killed. `HALOCLINE_STEP_ONLY` has the beginnings of failures or operations that take part, with commas between.

mod held;
mod operations;
mod rounds;

use std::collections::BTreeSet;

use operations::ALL;
use rounds::{FAILURES, Failure, Nodes};

/// What was tried of one combination.
#[derive(Debug, Default, Clone)]
struct Tried {
    rounds: usize,
    /// Rounds in which the operation was over before its step came: the next ones begin again.
    over: usize,
    steps: BTreeSet<String>,
    next: usize,
}

fn takes_part(name: &str) -> bool {
    let only = std::env::var("HALOCLINE_STEP_ONLY").unwrap_or_default();
    only.is_empty() || only.split(',').any(|only| name.starts_with(only))
}

fn chosen() -> (Vec<usize>, Vec<Failure>) {
    let only: Vec<usize> = (0..ALL.len()).filter(|at| takes_part(ALL[*at].name)).collect();
    let failures: Vec<Failure> = FAILURES.into_iter().filter(|it| takes_part(it.name())).collect();
    let all = || (0..ALL.len()).collect();
    match (only.is_empty(), failures.is_empty()) {
        (true, false) => (all(), failures),
        (false, true) => (only, FAILURES.to_vec()),
        _ => (only, failures),
    }
}

/// What an operation meets without a number of rounds. A server that is killed costs half a minute, until the leases are
/// over of nodes that could not leave.
fn usual(operation: usize) -> Failure {
    match operation {
        4 => Failure::MasterKilled,
        _ => [Failure::NodeKilled, Failure::NodeStops, Failure::MasterStops][operation % 3],
    }
}

#[test]
fn i15_whatever_fails_at_a_step_the_names_and_bytes_are_of_before_or_after() {
    let rounds = std::env::var("HALOCLINE_STEP_ROUNDS").ok();
    let rounds: Option<usize> = rounds.map(|rounds| rounds.parse().unwrap());
    let Some(mut nodes) = Nodes::new() else { return };
    let (operations, failures) = chosen();
    let mut tried = vec![vec![Tried::default(); failures.len()]; operations.len()];
    for round in 0..rounds.unwrap_or(1) {
        for (of_operation, &operation) in tried.iter_mut().zip(&operations) {
            for (at, of_failure) in of_operation.iter_mut().enumerate() {
                if rounds.is_none() && failures[at] != usual(operation) {
                    continue;
                }
                if rounds.is_none() {
                    of_failure.next = 1 + operation % 5;
                }
                let held = nodes.round(&ALL[operation], failures[at], of_failure.next, round);
                of_failure.rounds += 1;
                if let Some(step) = held {
                    of_failure.steps.insert(format!("{} {step}", of_failure.next));
                    of_failure.next += 1;
                } else {
                    (of_failure.next, of_failure.over) = (0, of_failure.over + 1);
                }
            }
        }
    }
    nodes.end();
    for (of_operation, operation) in tried.iter().zip(&operations) {
        for (of_failure, failure) in of_operation.iter().zip(&failures) {
            if of_failure.rounds > 0 {
                let Tried { rounds, over, steps, .. } = of_failure;
                let name = ALL[*operation].name;
                let failure = failure.name();
                println!(
                    "{name} | {failure} | {rounds} rounds, {over} over before | {} steps",
                    steps.len()
                );
            }
        }
    }
}
