//! A node whose wall clock is set, by hours and years, while programs work on it.

use std::fs;
use std::time::{Duration, SystemTime};

use halocline_testkit::hostile::Random;
use halocline_testkit::nodes::NODES;
use halocline_testkit::redis_server::RedisServer;
use halocline_testkit::set_clock::SetClock;
use halocline_testkit::waiting::eventually;

use super::programs::{Faults, pause};
use super::{Fault, rounds, survive};

const HOUR: i64 = 3600;
/// Steps of a clock: an hour, which is longer than anything lasts, some days, and some years.
const STEPS: [i64; 3] = [HOUR, 100 * HOUR, 40_000 * HOUR];

/// The node's clock is ahead by more than half an hour: a file that it caches has the time of its own clock.
fn is_ahead(faults: &Faults<'_, SetClock>) -> bool {
    let file = faults.nodes.path(NODES[0]).join("time");
    fs::write(&file, "now").unwrap();
    let seen = fs::metadata(&file).unwrap().modified().unwrap();
    let ahead = seen.duration_since(SystemTime::now()).unwrap_or_default();
    ahead > Duration::from_secs(HOUR.unsigned_abs() / 2)
}

fn set_forward_and_back(faults: &mut Faults<'_, SetClock>, random: &mut Random) {
    let step = STEPS[random.below(STEPS.len())];
    faults.nodes.store.set_ahead(step);
    eventually("it is seen", || is_ahead(faults));
    pause(random, 10, 2000);
    faults.nodes.store.set_ahead(0);
    pause(random, 10, 2000);
}

fn set_back_and_forward(faults: &mut Faults<'_, SetClock>, random: &mut Random) {
    let step = STEPS[random.below(STEPS.len())];
    faults.nodes.store.set_ahead(-step);
    pause(random, 10, 2000);
    faults.nodes.store.set_ahead(0);
    pause(random, 10, 2000);
}

/// It died with dirty bytes under one time, and its next mount has another.
fn set_it_while_the_node_is_down(faults: &mut Faults<'_, SetClock>, random: &mut Random) {
    let sign = if random.below(2) == 0 { 1 } else { -1 };
    let step = sign * STEPS[random.below(STEPS.len())];
    faults.nodes.store.set_ahead(step);
    pause(random, 10, 1000);
    faults.wait_for_dirty_bytes(0);
    faults.kill(0);
    faults.nodes.store.set_ahead(0);
    faults.revive(0);
    pause(random, 10, 1000);
    faults.wait_for_dirty_bytes(0);
    faults.kill(0);
    faults.nodes.store.set_ahead(-step);
    faults.revive(0);
    pause(random, 10, 1000);
    faults.nodes.store.set_ahead(0);
}

#[test]
fn i12_a_node_whose_clock_is_set_does_no_harm() {
    let kinds: [Fault<SetClock>; 3] = [
        ("a node's clock set forward and back", set_forward_and_back),
        ("a node's clock set back and forward", set_back_and_forward),
        ("a node's clock set while it is down", set_it_while_the_node_is_down),
    ];
    let Some(store) = RedisServer::start(&[]).and_then(SetClock::new) else { return };
    survive("clocks", store, &kinds, rounds(kinds.len()));
}
