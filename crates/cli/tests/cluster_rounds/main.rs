//! Rounds in which something fails while programs on two nodes write and read the same files: nodes that are killed or
//! stand still, a store that is killed, stopped, emptied or restored from an older file, masters that are replaced.
//! Each time everything that was acknowledged is there afterwards (I4, I11 to I14).
//!
//! `HALOCLINE_CLUSTER_ROUNDS` is the number of rounds of each test; without it each kind of failure has its turn once.
//! `HALOCLINE_CLUSTER_ONLY` names one kind, or begins its name, and `HALOCLINE_CLUSTER_SEED` the first round's seed.

mod clocks;
mod cut_off;
mod elsewhere;
mod ledger;
mod lost_cache;
mod programs;

use std::time::Duration;

use halocline_testkit::cut_off_store::CutOffStore;
use halocline_testkit::hostile::Random;
use halocline_testkit::redis_cluster::{MASTERS, RedisCluster};
use halocline_testkit::redis_server::RedisServer;
use halocline_testkit::waiting::eventually;
use programs::{Faults, Rounds, pause};
use rustix::process::Signal;

/// How many rounds, where each of the kinds is to have its turn.
fn rounds(kinds: usize) -> u64 {
    number("HALOCLINE_CLUSTER_ROUNDS").unwrap_or(kinds as u64)
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Room for the log of what nodes do in some rounds.
const LOG_BYTES: u64 = 16 << 20;

type Fault<S> = (&'static str, fn(&mut Faults<'_, S>, &mut Random));

/// Goes through the kinds in turn.
fn survive<S: halocline_testkit::nodes::TokenStore + Send + Sync>(
    name: &str,
    store: S,
    kinds: &[Fault<S>],
    count: u64,
) {
    let only = std::env::var("HALOCLINE_CLUSTER_ONLY").unwrap_or_default();
    let kinds: Vec<_> = kinds.iter().filter(|(what, _)| what.starts_with(&only)).collect();
    if kinds.is_empty() {
        return;
    }
    let Some(mut all) = Rounds::new(store) else { return };
    let first = number("HALOCLINE_CLUSTER_SEED").unwrap_or(0);
    for number in first..first + count {
        let (what, fault) = kinds[usize::try_from(number).unwrap() % kinds.len()];
        all.round(number, what, fault);
    }
    all.end(name);
}

fn kill_a_node<S: halocline_testkit::nodes::TokenStore>(
    faults: &mut Faults<'_, S>,
    random: &mut Random,
) {
    let node = random.below(2);
    faults.wait_for_dirty_bytes(node);
    faults.kill(node);
    pause(random, 0, 400);
    faults.revive(node);
}

fn kill_both_nodes<S: halocline_testkit::nodes::TokenStore>(
    faults: &mut Faults<'_, S>,
    random: &mut Random,
) {
    faults.wait_for_dirty_bytes(0);
    faults.kill(0);
    pause(random, 0, 100);
    faults.kill(1);
    for node in [random.below(2), 0, 1] {
        faults.revive_if_down(node);
    }
}

fn stop_a_node<S: halocline_testkit::nodes::TokenStore>(
    faults: &mut Faults<'_, S>,
    random: &mut Random,
) {
    let ms = 1 + random.below(2500) as u64;
    faults.stand_still(random.below(2), Duration::from_millis(ms));
}

/// The store comes back as it was at some moment while the programs worked.
fn restore_the_store(faults: &mut Faults<'_, RedisServer>, random: &mut Random) {
    faults.nodes.store.command(&["SAVE"]);
    pause(random, 20, 600);
    faults.nodes.store.restart();
}

/// Or as it was rounds ago, if it was saved then.
fn restore_an_older_store(faults: &mut Faults<'_, RedisServer>, _: &mut Random) {
    faults.nodes.store.restart();
}

fn empty_the_store(faults: &mut Faults<'_, RedisServer>, _: &mut Random) {
    faults.nodes.store.forget();
    faults.nodes.store.restart();
}

fn flush_the_store(faults: &mut Faults<'_, RedisServer>, _: &mut Random) {
    faults.nodes.store.command(&["FLUSHALL"]);
}

fn leave_the_store_away(faults: &mut Faults<'_, RedisServer>, random: &mut Random) {
    faults.nodes.store.kill();
    pause(random, 10, 4000);
    faults.nodes.store.restart();
}

fn stop_the_store(faults: &mut Faults<'_, RedisServer>, random: &mut Random) {
    faults.nodes.store.signal(Signal::STOP);
    pause(random, 10, 4000);
    faults.nodes.store.signal(Signal::CONT);
}

/// A node dies, and the store forgets it before the node is back.
fn kill_a_node_and_empty_the_store(faults: &mut Faults<'_, RedisServer>, random: &mut Random) {
    let node = random.below(2);
    faults.wait_for_dirty_bytes(node);
    faults.kill(node);
    faults.nodes.store.forget();
    faults.nodes.store.restart();
    pause(random, 0, 400);
    faults.revive(node);
}

/// A node dies while the store does, and the store comes back older.
fn kill_a_node_and_restore_the_store(faults: &mut Faults<'_, RedisServer>, random: &mut Random) {
    faults.nodes.store.command(&["SAVE"]);
    pause(random, 20, 300);
    let node = random.below(2);
    faults.wait_for_dirty_bytes(node);
    faults.nodes.store.kill();
    pause(random, 0, 200);
    faults.kill(node);
    faults.nodes.store.restart();
    faults.revive(node);
}

/// Somebody removes some of the keys by hand, and the server goes on.
fn remove_keys(faults: &Faults<'_, RedisServer>, name: &str) {
    let script = format!(
        "for _, key in ipairs(redis.call('KEYS', 'halocline:*:{name}')) do redis.call('DEL', key) end"
    );
    faults.nodes.store.command(&["EVAL", &script, "0"]);
}

fn remove_the_members(faults: &mut Faults<'_, RedisServer>, random: &mut Random) {
    remove_keys(faults, "members");
    pause(random, 0, 400);
}

fn remove_the_leases(faults: &mut Faults<'_, RedisServer>, random: &mut Random) {
    remove_keys(faults, "leases");
    pause(random, 0, 400);
}

fn remove_the_epoch(faults: &mut Faults<'_, RedisServer>, random: &mut Random) {
    remove_keys(faults, "epoch");
    pause(random, 0, 400);
}

/// The server answers and writes nothing: its memory is used up.
fn fill_the_stores_memory(faults: &mut Faults<'_, RedisServer>, random: &mut Random) {
    faults.nodes.store.command(&["CONFIG", "SET", "maxmemory", "1"]);
    pause(random, 10, 4000);
    faults.nodes.store.command(&["CONFIG", "SET", "maxmemory", "0"]);
}

/// The same as it cannot save what it has: something is in the way of its file.
fn fail_the_stores_disk(faults: &mut Faults<'_, RedisServer>, random: &mut Random) {
    let store = &faults.nodes.store;
    store.forget();
    let file = store.place().join("dump.rdb");
    std::fs::create_dir_all(file.join("in the way")).unwrap();
    store.command(&["CONFIG", "SET", "save", "3600 1000000"]);
    store.command(&["BGSAVE"]);
    eventually("it could not save", || {
        store.command(&["INFO", "persistence"]).contains("rdb_last_bgsave_status:err")
    });
    pause(random, 10, 4000);
    std::fs::remove_dir_all(file).unwrap();
    store.command(&["CONFIG", "SET", "save", ""]);
}

#[test]
fn i14_nodes_and_their_store_fail_and_lose_no_acknowledged_write() {
    let kinds: [Fault<RedisServer>; 16] = [
        ("kill -9 of a node", kill_a_node),
        ("the store restored", restore_the_store),
        ("a node stands still", stop_a_node),
        ("the store emptied and restarted", empty_the_store),
        ("both nodes killed", kill_both_nodes),
        ("the store flushed", flush_the_store),
        ("a node killed, the store emptied", kill_a_node_and_empty_the_store),
        ("the store away", leave_the_store_away),
        ("a node killed, the store restored", kill_a_node_and_restore_the_store),
        ("the store stands still", stop_the_store),
        ("an older store restored", restore_an_older_store),
        ("the members removed by hand", remove_the_members),
        ("the leases removed by hand", remove_the_leases),
        ("the epoch removed by hand", remove_the_epoch),
        ("the store's memory used up", fill_the_stores_memory),
        ("the store's disk fails", fail_the_stores_disk),
    ];
    let Some(store) = RedisServer::start(&[]) else { return };
    survive("one server", store, &kinds, rounds(kinds.len()));
}

/// The server refuses to write, as it cannot log what it does.
fn fill_the_logs_disk(faults: &Faults<'_, RedisServer>) {
    let store = &faults.nodes.store;
    store.disk().fill();
    eventually("it cannot write its log", || {
        store.command(&["INFO", "persistence"]).contains("aof_last_write_status:err")
    });
}

/// What a server with a log does where there is no room for it: it refuses all changes, or ends, and has less of them
/// when it comes back.
#[test]
fn i14_a_store_whose_log_has_no_room_loses_no_acknowledged_write() {
    let kinds: [Fault<RedisServer>; 4] = [
        ("no room for the log", |faults, random| {
            fill_the_logs_disk(faults);
            pause(random, 10, 4000);
            faults.nodes.store.disk().free();
        }),
        ("no room for the log, and the server restarted", |faults, random| {
            fill_the_logs_disk(faults);
            pause(random, 10, 2000);
            faults.nodes.store.kill();
            faults.nodes.store.disk().free();
            faults.nodes.store.restart();
        }),
        ("no room for a log that is synced each time", |faults, random| {
            faults.nodes.store.command(&["CONFIG", "SET", "appendfsync", "always"]);
            faults.nodes.store.disk().fill();
            faults.nodes.store.wait_for_end();
            pause(random, 10, 2000);
            faults.nodes.store.disk().free();
            faults.nodes.store.restart();
        }),
        ("no room for the log, and a node killed", |faults, random| {
            let node = random.below(2);
            faults.wait_for_dirty_bytes(node);
            fill_the_logs_disk(faults);
            faults.kill(node);
            pause(random, 10, 400);
            faults.nodes.store.disk().free();
            faults.revive(node);
        }),
    ];
    let Some(store) = RedisServer::start_with_log(LOG_BYTES) else { return };
    survive("a log", store, &kinds, rounds(kinds.len()));
}

/// Longer than its lease, so that the other node may have what it only read: each kind has its turn, and beyond that it
/// is one round in thirty, as each takes so long.
#[test]
fn i12_a_node_that_stands_still_longer_than_its_lease_does_no_harm() {
    let kinds: [Fault<RedisServer>; 2] = [
        ("a node stands still longer than its lease", |faults, random| {
            let node = random.below(2);
            faults.allow_errors_beside(node);
            faults.stand_still(node, Duration::from_secs(32 + random.below(4) as u64));
        }),
        ("the store stands still longer than a lease", |faults, random| {
            faults.nodes.store.signal(Signal::STOP);
            pause(random, 21_000, 34_000);
            faults.nodes.store.signal(Signal::CONT);
        }),
    ];
    let Some(store) = RedisServer::start(&[]) else { return };
    let count = rounds(0).div_ceil(30).max(kinds.len() as u64);
    survive("longer than leases", store, &kinds, count);
}

/// The store and the other node go on without it. What it sent before arrives when it is back.
#[test]
fn i12_a_node_that_is_cut_off_from_the_store_does_no_harm() {
    let kinds: [Fault<CutOffStore>; 2] = [
        ("a node is cut off", |faults, random| {
            faults.nodes.store.cut();
            pause(random, 10, 4000);
            faults.nodes.store.mend();
        }),
        ("a node is cut off for longer than its lease", |faults, random| {
            faults.allow_errors_beside(0);
            faults.nodes.store.cut();
            pause(random, 32_000, 36_000);
            faults.nodes.store.mend();
        }),
    ];
    let Some(server) = RedisServer::start(&[]) else { return };
    let count = rounds(0).div_ceil(30).max(kinds.len() as u64);
    survive("cut off", CutOffStore::new(server), &kinds, count);
}

/// Which master has the leases; the id of the list of sessions is the key's tag.
fn master_of_members(faults: &Faults<'_, RedisCluster>) -> usize {
    let id = std::fs::read(faults.nodes.path("origin/.halocline-cluster/id")).unwrap();
    let id: serde_json::Value = serde_json::from_slice(&id).unwrap();
    let tag = id["id"].as_str().unwrap();
    faults.nodes.store.master_of(&format!("halocline:{{{tag}}}:members"))
}

fn kill_and_replace(faults: &mut Faults<'_, RedisCluster>, master: usize, random: &mut Random) {
    faults.nodes.store.kill(master);
    pause(random, 0, 6000);
    faults.nodes.store.revive(master);
    faults.nodes.store.wait_until_well();
}

fn kill_the_master_of_members(faults: &mut Faults<'_, RedisCluster>, random: &mut Random) {
    let master = master_of_members(faults);
    kill_and_replace(faults, master, random);
}

fn kill_a_server(faults: &mut Faults<'_, RedisCluster>, random: &mut Random) {
    kill_and_replace(faults, random.below(2 * MASTERS), random);
}

fn stop_a_server(faults: &mut Faults<'_, RedisCluster>, random: &mut Random) {
    let server = random.below(2 * MASTERS);
    faults.nodes.store.signal(server, Signal::STOP);
    pause(random, 100, 6000);
    faults.nodes.store.signal(server, Signal::CONT);
    faults.nodes.store.wait_until_well();
}

/// What the master acknowledged last is lost with it.
fn replace_by_one_that_heard_less(faults: &mut Faults<'_, RedisCluster>, random: &mut Random) {
    let master = master_of_members(faults);
    let replica = faults.nodes.store.cut_replica_of(master);
    pause(random, 50, 500);
    faults.nodes.store.kill(master);
    faults.nodes.store.signal(replica, Signal::CONT);
    pause(random, 3000, 6000);
    faults.nodes.store.revive(master);
    faults.nodes.store.wait_until_well();
}

fn kill_a_node_and_a_server(faults: &mut Faults<'_, RedisCluster>, random: &mut Random) {
    let (node, server) = (random.below(2), random.below(2 * MASTERS));
    faults.wait_for_dirty_bytes(node);
    faults.nodes.store.kill(server);
    faults.kill(node);
    pause(random, 0, 3000);
    faults.nodes.store.revive(server);
    faults.nodes.store.wait_until_well();
    faults.revive(node);
}

#[test]
fn i14_masters_that_are_replaced_lose_no_acknowledged_write() {
    let kinds: [Fault<RedisCluster>; 5] = [
        ("the leases' master killed", kill_the_master_of_members),
        ("a server stands still", stop_a_server),
        ("a replica that heard less takes over", replace_by_one_that_heard_less),
        ("a server killed", kill_a_server),
        ("a node and a server killed", kill_a_node_and_a_server),
    ];
    let settings = &["--cluster-require-full-coverage", "no"];
    let Some(store) = RedisCluster::start(settings) else { return };
    survive("a cluster", store, &kinds, rounds(kinds.len()).min(60));
}
