//! Sessions that a look at the store, or at the list on the origin, misses: once, and for good.

use std::fs;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use halocline_cluster::agent::Options;
use halocline_model::request::Direction;
use halocline_testkit::waiting::eventually;

use super::keeping::World;
use super::world::Node;

const WRITE: Direction = Direction::Write;

/// A node that has something, and whose threads look no more by themselves.
fn quiet_node(world: &World) -> Node {
    let node = world.node("a", |options: &mut Options| options.lease = Duration::from_hours(3));
    eventually("its first look is over", || world.trouble.looks.load(Ordering::SeqCst) > 0);
    node.request(0, Node::want(WRITE, 0, false)).unwrap();
    node
}

/// Keeps a session that is missed as soon as it is looked for. `find` makes it be found again before the second look.
#[track_caller]
fn miss_once(world: &World, node: &Node, find: impl FnOnce()) {
    let first = Node::want(WRITE, 0, false);
    world.trouble.answer_renewals(Some(1));
    thread::scope(|scope| {
        let kept = scope.spawn(|| node.agent.keep());
        eventually("it is looked for again", || world.trouble.is_renewal_waiting());
        let refused = node.agent.check_lease().unwrap_err().to_string();
        assert!(refused.contains("looked for again"), "I12, nothing goes to the origin: {refused}");
        assert!(node.tokens(0).begin_at_once(first).is_none(), "I12, no permit begins");
        find();
        world.trouble.answer_renewals(None);
        kept.join().unwrap().unwrap();
    });
    node.agent.check_lease().unwrap();
    node.request(0, first).unwrap();
    assert_eq!(node.agent.counts().lapses, 0, "nothing had to be dropped");
}

/// Regression: a client of a file system that did not find the session's entry once, though it was there, ended the
/// session.
#[test]
fn i12_a_session_that_the_list_misses_once_stops_and_goes_on() {
    let world = World::new();
    let node = quiet_node(&world);
    let entry = world.registry().join(format!("session-{:016x}", node.agent.session().0));
    let hidden = world.registry().join("hidden");
    fs::rename(&entry, &hidden).unwrap();
    miss_once(&world, &node, || fs::rename(&hidden, &entry).unwrap());
    node.agent.leave().unwrap();
    world.origin.check();
}

/// Regression: the same of a store that had lost sight of a member for a moment.
#[test]
fn i12_a_session_that_the_store_misses_once_stops_and_goes_on() {
    let world = World::new();
    let node = quiet_node(&world);
    // So that the members are read.
    world.trouble.silent.store(true, Ordering::SeqCst);
    *world.trouble.left_out.lock() = Some((node.agent.session(), 1));
    miss_once(&world, &node, || {});
    node.agent.leave().unwrap();
    world.origin.check();
}

#[test]
fn i12_a_session_that_is_missed_twice_ends() {
    let world = World::new();
    let node = quiet_node(&world);
    world.trouble.silent.store(true, Ordering::SeqCst);
    *world.trouble.left_out.lock() = Some((node.agent.session(), 2));
    node.agent.keep().unwrap();
    let refused = node.request(0, Node::want(WRITE, 0, false)).unwrap_err().to_string();
    assert!(refused.contains("recovered or given up"), "{refused}");
    node.agent.keep().unwrap();
    node.agent.check_lease().unwrap_err();
}
