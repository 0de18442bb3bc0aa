//! Rounds in which something fails while programs on two nodes of a shared tier make, write, read, rename, link, move and
//! remove the same files: nodes that are killed or stand still, also while they move files or are drained; a store that
//! is stopped, emptied, or restored from an older file. Each time all that was acknowledged is there afterwards, on both nodes, and
//! nothing else (I13 to I15).
//!
//! `HALOCLINE_CLUSTER_ROUNDS` is the number of rounds of each test; without it each kind of failure has its turn once.
//! `HALOCLINE_CLUSTER_ONLY` names one kind, or begins its name, and `HALOCLINE_CLUSTER_SEED` the first round's seed.

mod ledger;
mod mount_contents;
mod nodes;
mod one_program;
mod operations;
mod programs;
mod wrong;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;
use std::time::Duration;

use halocline_testkit::hostile::Random;
use halocline_testkit::redis_server::RedisServer;
use nodes::NODES;
use programs::{Faults, Rounds, pause, said_by};
use rustix::process::Signal;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// How many rounds, where each of the kinds is to have its turn.
fn rounds(kinds: usize) -> u64 {
    number("HALOCLINE_CLUSTER_ROUNDS").unwrap_or(kinds as u64)
}

/// The rounds in which the store loses names.
const LOSES: &str = "a store that loses names";

type Fault = (&'static str, fn(&Faults<'_>, &mut RedisServer, &mut Random));

/// Goes through the kinds in turn.
fn survive(name: &str, kinds: &[Fault], count: u64) {
    let only = std::env::var("HALOCLINE_CLUSTER_ONLY").unwrap_or_default();
    let kinds: Vec<_> = kinds.iter().filter(|(what, _)| what.starts_with(&only)).collect();
    if kinds.is_empty() {
        return;
    }
    let Some(mut all) = Rounds::new() else { return };
    let first = number("HALOCLINE_CLUSTER_SEED").unwrap_or(0);
    let now = RefCell::new(String::new());
    let survived = catch_unwind(AssertUnwindSafe(|| {
        for number in first..first + count {
            let (what, fault) = kinds[usize::try_from(number).unwrap() % kinds.len()];
            now.replace(format!("round {number} ({what})"));
            if number > first && name == LOSES {
                all.check();
            }
            all.round(number, what, fault);
        }
        now.replace("after the last round".to_owned());
        all.end(name);
    }));
    if let Err(panic) = survived {
        // Once more, at the end of what is shown.
        println!("{}: {}", now.borrow(), said_by(&*panic));
        resume_unwind(panic);
    }
}

fn kill_a_node(faults: &Faults<'_>, _: &mut RedisServer, random: &mut Random) {
    let node = random.below(2);
    faults.kill(node);
    pause(random, 0, 400);
    faults.revive(node);
}

fn kill_both_nodes(faults: &Faults<'_>, _: &mut RedisServer, random: &mut Random) {
    faults.kill(0);
    pause(random, 0, 100);
    faults.kill(1);
    for node in [random.below(2), 0, 1] {
        faults.revive_if_down(node);
    }
}

fn stop_a_node(faults: &Faults<'_>, _: &mut RedisServer, random: &mut Random) {
    let ms = 1 + random.below(2500) as u64;
    faults.stand_still(random.below(2), Duration::from_millis(ms));
}

/// All files go to a node's SSD, to the shared disk, or from the other node's SSD there, while that node dies.
fn kill_a_node_that_moves_files(faults: &Faults<'_>, _: &mut RedisServer, random: &mut Random) {
    let node = random.below(2);
    let (name, other) = (NODES[node], NODES[1 - node]);
    let command = match random.below(3) {
        0 => vec!["warm", name],
        1 => vec!["demote", name],
        _ => vec!["cluster", "drain", other, name],
    };
    thread::scope(|scope| {
        // It ends with its mount, if not before.
        scope.spawn(|| drop(faults.scratch.halocline(&command)));
        pause(random, 0, 500);
        faults.kill(node);
    });
    faults.revive(node);
}

fn stop_the_store(_: &Faults<'_>, store: &mut RedisServer, random: &mut Random) {
    store.signal(Signal::STOP);
    pause(random, 1, 1500);
    store.signal(Signal::CONT);
}

fn empty_the_store(faults: &Faults<'_>, store: &mut RedisServer, random: &mut Random) {
    faults.expect_errors();
    store.forget();
    pause(random, 0, 100);
    store.restart();
    pause(random, 0, 300);
    faults.build_again();
}

/// The store comes back as it was at some moment while the programs worked.
fn restore_the_store(faults: &Faults<'_>, store: &mut RedisServer, random: &mut Random) {
    store.command(&["SAVE"]);
    pause(random, 20, 600);
    faults.expect_errors();
    store.restart();
    faults.build_again();
}

fn kill_a_node_and_empty_the_store(
    faults: &Faults<'_>,
    store: &mut RedisServer,
    random: &mut Random,
) {
    faults.kill(random.below(2));
    pause(random, 0, 100);
    faults.expect_errors();
    store.command(&["FLUSHALL"]);
    faults.build_again();
}

#[test]
fn i15_nodes_and_their_store_fail_and_no_name_or_byte_is_lost() {
    let kinds: [Fault; 5] = [
        ("kill -9 of a node", kill_a_node),
        ("a node that moves files killed", kill_a_node_that_moves_files),
        ("both nodes killed", kill_both_nodes),
        ("a node stands still", stop_a_node),
        ("the store stands still", stop_the_store),
    ];
    survive("nodes and a store", &kinds, rounds(kinds.len()));
}

/// Each round waits until the leases of nodes are over that could not leave: without a number of rounds, one kind has its
/// turn. What a node left undone that was killed before is put right first: the disks must have followed the store.
#[test]
fn i15_names_that_a_store_lost_are_built_again_with_all_that_was_acknowledged() {
    let kinds: [Fault; 3] = [
        ("the store emptied and restarted", empty_the_store),
        ("the store restored", restore_the_store),
        ("a node killed, the store emptied", kill_a_node_and_empty_the_store),
    ];
    survive(LOSES, &kinds, rounds(1).div_ceil(3));
}

/// Of those that take longer than a lease, one round in thirty, as each takes so long.
fn long_rounds() -> u64 {
    rounds(0).div_ceil(30).max(1)
}

/// Longer than its lease, so that the other node may move what it has open.
#[test]
fn i15_a_node_that_stands_still_longer_than_its_lease_does_no_harm() {
    let kinds: [Fault; 1] = [("a node stands still longer than its lease", |faults, _, random| {
        let node = random.below(2);
        faults.allow_errors(node);
        faults.stand_still(node, Duration::from_secs(32 + random.below(4) as u64));
    })];
    survive("a node longer than its lease", &kinds, long_rounds());
}

#[test]
fn i15_a_store_that_stands_still_longer_than_leases_loses_nothing() {
    let kinds: [Fault; 1] =
        [("the store stands still longer than a lease", |faults, store, random| {
            faults.allow_errors(0);
            faults.allow_errors(1);
            store.signal(Signal::STOP);
            pause(random, 31_000, 36_000);
            store.signal(Signal::CONT);
        })];
    survive("a store longer than leases", &kinds, long_rounds());
}
