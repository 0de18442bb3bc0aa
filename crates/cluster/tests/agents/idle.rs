//! What is held is given back: of files that rest, if there are too many, and of ranges that are contended no more.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use halocline_cache::coherence::{Coherence, Permit};
use halocline_cluster::agent::Options;
use halocline_cluster::store::Store;
use halocline_model::request::Direction;
use halocline_os::clock::Clock;
use halocline_testkit::waiting::eventually;

use super::keeping::World;
use super::world::{Node, file};

const READ: Direction = Direction::Read;
const WRITE: Direction = Direction::Write;
/// The limit of the nodes here.
const FILES_MAX: usize = 16;

fn few(options: &mut Options) {
    options.files_max = FILES_MAX;
}

/// A request of a program for a file that is then closed.
fn touch(node: &Node, number: u64) {
    let tokens = node.agent.tokens(file(number)).unwrap();
    drop(Permit::wait(&*tokens, Node::want(READ, 0, false)).unwrap());
}

/// Regression: a node held tokens of every file that it had ever opened, and said all of them anew whenever the store
/// might have forgotten them.
#[test]
fn tokens_of_files_that_rest_are_given_back_and_nothing_is_lost() {
    let world = World::new();
    let node = world.node("a", few);
    // Dirty, before anything else.
    node.request(0, Node::want(WRITE, 3, false)).unwrap();
    for number in 10..300 {
        touch(&node, number);
    }
    eventually("most are given back", || node.agent.counts().files <= FILES_MAX as u64);
    assert!(node.agent.counts().given_back >= 290 - FILES_MAX as u64);
    let in_store = |number| world.store.read(file(number)).unwrap().tokens.all().len();
    let known = (0..300).map(in_store).sum::<usize>();
    assert!(known <= FILES_MAX, "the store still has {known}");
    // What was dirty is on the origin, and another node gets it at once.
    world.origin.check();
    let other = world.node("b", few);
    other.request(0, Node::want(READ, 3, false)).unwrap();
    assert_eq!(other.agent.counts().waits, 0);
    // And back.
    node.request(0, Node::want(WRITE, 3, false)).unwrap();
    node.agent.leave().unwrap();
    other.agent.leave().unwrap();
    world.origin.check();
}

#[test]
fn what_is_in_use_is_kept_beyond_the_limit() {
    let world = World::new();
    let node = world.node("a", few);
    let tokens: Vec<_> = (0..100).map(|number| node.agent.tokens(file(number)).unwrap()).collect();
    let want = Node::want(READ, 0, false);
    let permits: Vec<_> = tokens.iter().map(|file| Permit::wait(&**file, want).unwrap()).collect();
    for number in 100..200 {
        touch(&node, number);
    }
    eventually("all others are given back", || node.agent.counts().files <= 100);
    for file in &tokens {
        file.end(file.begin_at_once(want).expect("it is held"));
    }
    drop(permits);
    node.agent.leave().unwrap();
}

/// Programs on two nodes use files that are given back all the time.
#[test]
fn i11_files_are_given_back_while_nodes_use_them() {
    let world = World::new();
    let nodes = ["a", "b"].map(|name| world.node(name, |options| options.files_max = 1));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for node in &nodes {
            let stop = &stop;
            scope.spawn(move || {
                for number in (0..).take_while(|_| !stop.load(Ordering::SeqCst)) {
                    touch(node, 10 + number % 5);
                }
            });
        }
        let programs: Vec<_> = (0..4)
            .map(|seed| {
                scope.spawn({
                    let node = &nodes[seed % 2];
                    move || super::world::run(node, seed as u64, 60).unwrap()
                })
            })
            .collect();
        for program in programs {
            program.join().unwrap();
        }
        eventually("some were given back on both", || {
            nodes.iter().all(|node| node.agent.counts().given_back > 0)
        });
        stop.store(true, Ordering::SeqCst);
    });
    for node in nodes {
        node.agent.leave().unwrap();
    }
    world.origin.check();
}

/// A node that goes on alone caches again, though the other one still has its share of the range.
#[test]
fn what_is_contended_no_more_is_cached_again() {
    let world = World::new();
    let clock = Clock::simulated();
    let timed = |options: &mut Options| {
        options.clock = clock.clone();
        options.lease = Duration::from_hours(10);
    };
    let [one, other] = ["a", "b"].map(|name| world.node(name, timed));
    let want = Node::want(WRITE, 0, false);
    let caches = |node: &Node| {
        let permit = Permit::wait(node.tokens(0), want).unwrap();
        permit.grant().caches
    };
    for round in 1..=3 {
        eventually("it is contended", || {
            other.request(0, want).unwrap();
            one.request(0, want).unwrap();
            !caches(&one) && !caches(&other)
        });
        // Long enough for each time that it was contended.
        let calm = Duration::from_secs(5 << round);
        clock.leap(calm);
        world.store.advance(calm);
        eventually("it is cached again", || caches(&one));
        let tokens = world.store.read(file(0)).unwrap().tokens;
        let left = tokens.of(other.agent.session());
        assert!(left.iter().all(|held| !held.range.overlaps(want.range)), "{tokens:?}");
        one.request(0, want).unwrap();
    }
    one.agent.leave().unwrap();
    other.agent.leave().unwrap();
    world.origin.check();
}
