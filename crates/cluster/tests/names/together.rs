//! Several nodes at once, on names that meet: nothing is lost or there twice, and all come to an end.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use halocline_cluster::names::NameStore;
use halocline_cluster::names::check::clean;
use halocline_cluster::names::memory::MemoryNames;
use halocline_cluster::names::namespace::{Failure, Namespace, WaitLimit};
use halocline_cluster::names::redis::RedisNames;
use halocline_model::namespace::{Flags, InodeNumber, ROOT};
use halocline_testkit::hostile::Random;
use halocline_testkit::redis_cluster::{RedisCluster, STEADY};
use halocline_testkit::redis_server::RedisServer;
use halocline_testkit::waiting::SetOnDrop;
use rustix::io::Errno;

use super::world::{LIMITS, at, directory, file, node, tree};

const NODES: u64 = 3;
const ROUNDS: usize = 150;

/// One node's operations at random. What the others do may refuse them.
fn run(names: &Namespace, seed: u64, directories: &[InodeNumber], rounds: usize) {
    let mut random = Random(seed);
    let place = |random: &mut Random| {
        let dir = directories[random.below(directories.len())];
        at(dir, ["a", "b", "c", "d"][random.below(4)])
    };
    for _ in 0..rounds {
        let (from, to) = (place(&mut random), place(&mut random));
        let flags = [Flags::Replace, Flags::NoReplace, Flags::Exchange][random.below(3)];
        let done = match random.below(8) {
            0 | 1 => names.create(&from, &file()).map(drop),
            2 => names.make_directory(&from, &directory()).map(drop),
            3 => names.unlink(&from).map(drop),
            4 => names.remove_directory(&from).map(drop),
            5 => names.link(&from, &to),
            6 => names.attributes().set_writer(&from, None, None).map(drop),
            _ => names.rename(&from, &to, flags).map(drop),
        };
        match done {
            Ok(()) | Err(Failure::Refused(_) | Failure::Contended) => {}
            Err(other) => panic!("{from:?} {to:?}: {other:?}"),
        }
    }
}

fn holds(stores: &[Arc<dyn NameStore>], seed: u64, rounds: usize) {
    Namespace::format(&*stores[0], &directory()).unwrap();
    let wait = WaitLimit::default();
    let nodes: Vec<_> = stores
        .iter()
        .zip(1..)
        .map(|(store, session)| node(Arc::clone(store), session, wait.clone()))
        .collect();
    let make = |name| nodes[0].make_directory(&at(ROOT, name), &directory()).unwrap().inode;
    let directories = [ROOT, make("one"), make("two")];
    thread::scope(|scope| {
        for (number, names) in (0..).zip(&nodes) {
            scope.spawn(move || run(names, seed * 100 + number, &directories, rounds));
        }
    });
    let there = tree(&nodes[0]);
    assert!(nodes.iter().all(|names| tree(names) == there), "all see the same");
    let found = clean(&*stores[0]).unwrap();
    assert_eq!(found.contradictions, 0, "{found:?}");
    assert_eq!(found.intents, 0, "nobody died: {found:?}");
    assert_eq!(tree(&nodes[1]), there, "{found:?}");
    let counts: Vec<_> = nodes.iter().map(Namespace::counts).collect();
    println!("seed {seed}: {} names, {counts:?}", there.len());
}

#[test]
fn i15_nodes_change_the_same_names_in_memory() {
    for seed in 0..10 {
        for limit in LIMITS {
            let first = MemoryNames::default().splitting_from(limit);
            let another = |_| first.for_another_node().splitting_from(limit);
            let others: Vec<_> = (1..NODES).map(another).collect();
            let all = std::iter::once(first).chain(others);
            let all: Vec<Arc<dyn NameStore>> = all.map(|store| Arc::new(store) as _).collect();
            holds(&all, seed, ROUNDS);
        }
    }
}

#[test]
fn i15_nodes_change_the_same_names_on_a_server() {
    let Some(server) = RedisServer::start(&[]) else { return };
    for seed in 0..4 {
        for limit in LIMITS {
            server.command(&["FLUSHALL"]);
            let store = || RedisNames::connect(&server.url(), None, "test").unwrap();
            let store = |_| Arc::new(store().splitting_from(limit)) as _;
            holds(&(0..NODES).map(store).collect::<Vec<_>>(), seed, ROUNDS);
        }
    }
}

#[test]
fn i15_nodes_change_the_same_names_on_a_cluster() {
    let Some(cluster) = RedisCluster::start(STEADY) else { return };
    for (limit, origin) in LIMITS.into_iter().zip(["whole", "split"]) {
        let store = || RedisNames::connect(&cluster.urls(), None, origin).unwrap();
        let store = |_| Arc::new(store().splitting_from(limit)) as _;
        holds(&(0..NODES).map(store).collect::<Vec<_>>(), 9, ROUNDS);
    }
}

/// What is there all the time is listed once, whatever comes, goes and is renamed meanwhile.
#[test]
fn a_listing_misses_and_repeats_nothing_that_stays() {
    let Some(server) = RedisServer::start(&[]) else { return };
    for (limit, origin) in [(None, "whole"), (Some(400), "split")] {
        let store = RedisNames::connect(&server.url(), None, origin).unwrap();
        misses_and_repeats_nothing(Arc::new(store.splitting_from(limit)));
    }
}

/// With a directory of 400 names, of which the others change half: the first one that is added has it split.
fn misses_and_repeats_nothing(store: Arc<RedisNames>) {
    Namespace::format(&*store, &directory()).unwrap();
    let names = node(store, 1, WaitLimit::default());
    let dir = names.make_directory(&at(ROOT, "d"), &directory()).unwrap().inode;
    let stays: BTreeSet<String> = (0..200).map(|number| format!("stays{number}")).collect();
    for (number, name) in stays.iter().enumerate() {
        names.create(&at(dir, name), &file()).unwrap();
        names.create(&at(dir, &format!("goes{number}")), &file()).unwrap();
    }
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let over = SetOnDrop(&is_over);
        scope.spawn(|| {
            let mut random = Random(5);
            while !is_over.load(Ordering::SeqCst) {
                let [one, other] = [0; 2].map(|_| format!("goes{}", random.below(200)));
                let done = match random.below(4) {
                    0 => names.create(&at(dir, &one), &file()).map(drop),
                    1 => names.unlink(&at(dir, &one)).map(drop),
                    2 => names.rename(&at(dir, &one), &at(ROOT, &other), Flags::Replace).map(drop),
                    _ => names.rename(&at(ROOT, &one), &at(dir, &other), Flags::Replace).map(drop),
                };
                assert!(matches!(done, Ok(()) | Err(Failure::Refused(_))), "{done:?}");
            }
        });
        for _ in 0..10 {
            let (mut cursor, mut seen) = (0, Vec::new());
            loop {
                let (entries, is_last) = names.list(dir, cursor, 7).unwrap();
                cursor = entries.last().map_or(cursor, |entry| entry.cursor);
                let name = |name: &[u8]| String::from_utf8(name.to_vec()).unwrap();
                seen.extend(entries.iter().map(|entry| name(entry.name.as_bytes())));
                if is_last || seen.len() > 2000 {
                    break;
                }
            }
            let stayed: Vec<_> = seen.iter().filter(|name| name.starts_with("stays")).collect();
            assert_eq!(stayed.len(), stays.len());
            assert_eq!(stayed.into_iter().cloned().collect::<BTreeSet<_>>(), stays);
        }
        drop(over);
    });
}

/// A node that is only slow is waited for: its intent is not aborted.
#[test]
fn a_fresh_intent_of_another_node_is_waited_for() {
    let first = MemoryNames::default();
    let stores: [Arc<dyn NameStore>; 2] = [Arc::new(first.for_another_node()), Arc::new(first)];
    Namespace::format(&*stores[0], &directory()).unwrap();
    let patient = WaitLimit { limit: std::time::Duration::from_mins(1), ..WaitLimit::default() };
    let nodes =
        [0, 1].map(|number| node(Arc::clone(&stores[number]), 1 + number as u64, patient.clone()));
    let make = |name| nodes[0].make_directory(&at(ROOT, name), &directory()).unwrap().inode;
    let dirs = [make("a"), make("b")];
    nodes[0].create(&at(dirs[0], "f"), &file()).unwrap();
    thread::scope(|scope| {
        for names in &nodes {
            scope.spawn(|| {
                for round in 0..200 {
                    let [from, to] =
                        [dirs[round % 2], dirs[(round + 1) % 2]].map(|dir| at(dir, "f"));
                    let done = names.rename(&from, &to, Flags::Replace);
                    let is_absent = |failure: &Failure| *failure == Failure::Refused(Errno::NOENT);
                    assert!(done.as_ref().err().is_none_or(is_absent), "{done:?}");
                }
            });
        }
    });
    assert!(nodes.iter().all(|names| names.counts().completed == 0));
}

/// Regression: a server that was emptied and begun anew in the same second gave the numbers of before again.
#[test]
fn a_server_that_forgot_which_numbers_it_gave_gives_others() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let store = RedisNames::connect(&server.url(), None, "test").unwrap();
    let mut before = 0;
    for round in 0..20 {
        server.command(&["FLUSHALL"]);
        store.begin_epoch(false).unwrap();
        let first = store.reserve(1).unwrap();
        assert!(first > before, "round {round}: {first} after {before}");
        before = first;
    }
}
