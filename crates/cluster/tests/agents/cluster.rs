//! Over real clusters, whose masters are killed, stopped, emptied and replaced, and whose slots move.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use halocline_cluster::agent::Options;
use halocline_cluster::store::redis::{ClusterStore, RedisStore, open};
use halocline_cluster::store::{Lease, Store, StoreError, Swap};
use halocline_model::token::{Session, Tokens};
use halocline_testkit::redis_cluster::{MASTERS, RedisCluster, STEADY};
use halocline_testkit::waiting::{WAIT_LIMIT, eventually};
use rustix::process::Signal;

use super::contract;
use super::world::{FILES, Node, Origin, file, run};

/// A key in the slot of the members.
const MEMBERS: &str = "halocline:{test}:members";

fn store(cluster: &RedisCluster) -> Arc<dyn Store> {
    open(&cluster.urls(), None, "test").unwrap()
}

/// The key of a file, wherever its partition lies.
fn key_of(cluster: &RedisCluster, number: u64) -> String {
    let suffix = format!("}}:file:{number:x}:1");
    let keys = |server| cluster.command(server, &["KEYS", "halocline:{test.*}:file:*"]);
    let all: String = (0..MASTERS).map(|server| keys(server) + "\n").collect();
    all.lines().find(|key| key.ends_with(&suffix)).expect("it has tokens").to_owned()
}

fn nodes(cluster: &RedisCluster, origin: &Arc<Origin>, names: &[&str]) -> Vec<Node> {
    let registry = cluster.place().join("registry");
    let node = |name: &&str| {
        let change = |options: &mut Options| options.wait_limit = WAIT_LIMIT;
        Node::new(name, store(cluster), &registry, origin, change)
    };
    names.iter().map(node).collect()
}

/// Programs on all nodes while something happens, and until the nodes go on after it.
fn under_load(nodes: &[Node], seed: u64, meanwhile: impl FnOnce()) {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for (at, node) in nodes.iter().enumerate() {
            let (mut seed, is_over) = (seed * 1_000_000 + at as u64 * 10_000, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::SeqCst) {
                    seed += 1;
                    run(node, seed, 5).unwrap();
                    // Others use the machine, too.
                    thread::sleep(Duration::from_millis(2));
                }
            });
        }
        meanwhile();
        go_on(nodes);
        is_over.store(true, Ordering::SeqCst);
    });
}

/// Waits until all nodes can write what all others had.
fn go_on(nodes: &[Node]) {
    for node in nodes {
        eventually("it says what it holds", || node.agent.keep().is_ok());
    }
    for (number, node) in (0..FILES).zip(nodes.iter().cycle()) {
        let want = Node::want(halocline_model::request::Direction::Write, 0, true);
        node.request(number, want).unwrap();
    }
}

fn end(nodes: Vec<Node>, origin: &Origin) {
    for node in nodes {
        eventually("it has a lease", || node.agent.keep().is_ok());
        node.agent.leave().unwrap();
    }
    origin.check();
}

#[test]
fn it_keeps_what_a_store_promises() {
    let Some(mut cluster) = RedisCluster::start(STEADY) else { return };
    let store = store(&cluster);
    contract::holds(&*store);
    contract::refuses_long_leases(&*store);
    // All nodes see one epoch while nothing happens, whichever server they name.
    let roll = store.roll().unwrap();
    for server in 0..2 * MASTERS {
        let other = open(&cluster.url(server), None, "test").unwrap();
        let seen = other.roll().unwrap();
        assert_eq!((seen.epoch, seen.partitions), (roll.epoch, roll.partitions.clone()));
    }
    // Files lie on all masters.
    for master in 0..MASTERS {
        let keys = cluster.command(master, &["KEYS", "halocline:{test.*}:file:*"]);
        assert!(keys.lines().count() > 3, "{keys}");
    }
    let master = cluster.master_of(MEMBERS);
    cluster.revive(master);
    eventually("it answers", || store.roll().is_ok_and(|now| now.epoch != roll.epoch));
    contract::respects_forgotten_leases(&*store);
}

#[test]
fn i14_masters_are_killed_under_load_with_what_they_acknowledged() {
    let Some(mut cluster) = RedisCluster::start(&[]) else { return };
    let origin = Arc::default();
    let nodes = nodes(&cluster, &origin, &["a", "b", "c"]);
    go_on(&nodes);
    let key = key_of(&cluster, 0);
    for (seed, key) in (0..).zip([key.as_str(), MEMBERS]) {
        under_load(&nodes, seed, || {
            cluster.lose_master_of(key);
        });
        cluster.wait_until_well();
    }
    end(nodes, &origin);
}

#[test]
fn i14_masters_stop_until_others_took_their_place_and_go_on() {
    let Some(cluster) = RedisCluster::start(&[]) else { return };
    let origin = Arc::default();
    let nodes = nodes(&cluster, &origin, &["a", "b", "c"]);
    go_on(&nodes);
    let key = key_of(&cluster, 0);
    for (seed, key) in (0..).zip([key.as_str(), MEMBERS]) {
        under_load(&nodes, seed, || {
            let master = cluster.master_of(key);
            cluster.signal(master, Signal::STOP);
            cluster.wait_for_successor(master, key);
            cluster.signal(master, Signal::CONT);
        });
        cluster.wait_until_well();
    }
    end(nodes, &origin);
}

#[test]
fn i14_masters_come_back_with_all_some_or_nothing_under_load() {
    let Some(mut cluster) = RedisCluster::start(&[]) else { return };
    let origin = Arc::default();
    let nodes = nodes(&cluster, &origin, &["a", "b", "c"]);
    go_on(&nodes);
    let key = key_of(&cluster, 0);
    for (seed, key) in (0..).zip([key.as_str(), MEMBERS, key.as_str(), MEMBERS]) {
        under_load(&nodes, seed, || {
            let master = cluster.master_of(key);
            if seed < 2 {
                cluster.command(master, &["SAVE"]);
                thread::sleep(Duration::from_millis(200));
            } else {
                let _ = std::fs::remove_file(cluster.dir(master).join("dump.rdb"));
            }
            // At once, before its replica takes its place; if that does, it is a failover.
            cluster.revive(master);
        });
        cluster.wait_until_well();
    }
    end(nodes, &origin);
}

/// Moves a slot to another master, key by key, as `redis-cli --cluster reshard` does.
fn move_slot(cluster: &RedisCluster, key: &str) {
    let said = cluster.command(0, &["CLUSTER", "KEYSLOT", key]);
    let slot = said.trim_start_matches(':');
    let from = cluster.master_of(key);
    let to = (from + 1) % MASTERS;
    let id = |server: usize| cluster.command(server, &["CLUSTER", "MYID"]);
    cluster.command(to, &["CLUSTER", "SETSLOT", slot, "IMPORTING", &id(from)]);
    cluster.command(from, &["CLUSTER", "SETSLOT", slot, "MIGRATING", &id(to)]);
    let url = cluster.url(to);
    let (_, port) = url.rsplit_once(':').unwrap();
    loop {
        let keys = cluster.command(from, &["CLUSTER", "GETKEYSINSLOT", slot, "1"]);
        if keys.is_empty() {
            break;
        }
        // Meanwhile some are here and others there.
        thread::sleep(Duration::from_millis(100));
        cluster.command(from, &["MIGRATE", "127.0.0.1", port, &keys, "0", "5000"]);
    }
    thread::sleep(Duration::from_millis(100));
    for server in [to, from] {
        cluster.command(server, &["CLUSTER", "SETSLOT", slot, "NODE", &id(to)]);
    }
    assert_eq!(cluster.master_of(key), to);
}

#[test]
fn i14_slots_move_under_load() {
    let Some(cluster) = RedisCluster::start(STEADY) else { return };
    let origin = Arc::default();
    let nodes = nodes(&cluster, &origin, &["a", "b", "c"]);
    go_on(&nodes);
    let key = key_of(&cluster, 0);
    for (seed, key) in (0..).zip([key.as_str(), MEMBERS]) {
        let before = nodes[0].agent.counts().epochs;
        under_load(&nodes, seed, || move_slot(&cluster, key));
        assert!(nodes[0].agent.counts().epochs > before, "another master may have forgotten");
    }
    end(nodes, &origin);
}

/// What a master acknowledged that its replica had not: the other's table lacks it, and its epoch says so.
#[test]
fn i14_a_part_whose_master_was_replaced_has_another_epoch_and_others_have_not() {
    // So long that no other master is replaced because the machine is slow.
    let settings = &["--cluster-node-timeout", "8000"];
    let Some(mut cluster) = RedisCluster::start(settings) else { return };
    let store = store(&cluster);
    let before = store.roll().unwrap();
    let epoch = before.partitions[store.partition(file(0))];
    let made = |version: u64| {
        let mut tokens = Tokens::new(epoch);
        tokens.version = version;
        tokens
    };
    assert_eq!(store.swap(file(0), 0, &made(7)).unwrap(), Swap::Taken);
    let key = key_of(&cluster, 0);
    let master = cluster.master_of(&key);
    let replica = cluster.cut_replica_of(master);
    assert_eq!(store.swap(file(0), 7, &made(8)).unwrap(), Swap::Taken);
    cluster.kill(master);
    cluster.signal(replica, Signal::CONT);
    cluster.wait_for_successor(master, &key);
    eventually("it answers", || store.read(file(0)).is_ok());
    let found = store.read(file(0)).unwrap();
    assert_eq!(found.tokens.version, 7, "the acknowledged change is lost");
    assert_ne!(found.epoch, epoch);
    // A change for the epoch of before is not taken, whatever its version.
    for version in [0, 7, 8] {
        let swapped = store.swap(file(0), version, &made(9)).unwrap();
        assert!(matches!(swapped, Swap::Other(_)), "{swapped:?}");
    }
    assert!(!store.renew(Session(1), before.epoch, 1000).unwrap());
    let after = store.roll().unwrap();
    assert_ne!(after.epoch, before.epoch);
    let changed =
        (0..after.partitions.len()).filter(|at| after.partitions[*at] != before.partitions[*at]);
    let changed = changed.count();
    assert!((15..30).contains(&changed), "all partitions of one master in one go, not {changed}");
    assert!(!store.swap_members(&before, &before.members, Lease::Stays).unwrap());
    assert_eq!(store.roll().unwrap().epoch, after.epoch, "and then it stays");
}

/// Others may have made another one master, and given leases to others: the one that is cut off cannot know.
#[test]
fn i12_a_master_that_hears_no_majority_gives_no_lease() {
    // It would go on for a minute by itself.
    let Some(cluster) = RedisCluster::start(&["--cluster-node-timeout", "60000"]) else { return };
    let store = store(&cluster);
    let master = cluster.master_of(MEMBERS);
    let from = store.roll().unwrap();
    let mut members = from.members.clone();
    members.join(Session(1), from.epoch);
    // On a slow machine they may not have heard from each other for a while.
    let heard = |what: std::result::Result<bool, StoreError>| what.is_ok_and(|is_done| is_done);
    eventually("it gives a lease", || {
        heard(store.swap_members(&from, &members, Lease::Runs(Session(1), 30_000)))
    });
    eventually("it renews it", || heard(store.renew(Session(1), from.epoch, 30_000)));
    let others: Vec<_> = (0..MASTERS).filter(|other| *other != master).collect();
    for other in &others {
        cluster.signal(*other, Signal::STOP);
    }
    let stopped = Instant::now();
    eventually("it says why", || {
        let renewed = store.renew(Session(1), from.epoch, 30_000);
        matches!(&renewed, Err(StoreError::NoAnswer(why)) if why.contains("cut off"))
    });
    println!("after {:?}", stopped.elapsed());
    for other in &others {
        cluster.signal(*other, Signal::CONT);
    }
    eventually("it hears them again", || {
        store.roll().is_ok_and(|_| store.renew(Session(1), from.epoch, 30_000).is_ok())
    });
}

/// A node that had just started asked each part of a silent master who its master is, before it renewed its lease.
#[test]
fn i12_a_silent_master_costs_no_lease_where_another_one_began_anew() {
    let settings = &["--cluster-node-timeout", "15000"];
    let Some(mut cluster) = RedisCluster::start(settings) else { return };
    let other = store(&cluster);
    let from = other.roll().unwrap();
    for number in 0..40 {
        let mut tokens = Tokens::new(from.partitions[other.partition(file(number))]);
        tokens.version = 1;
        assert_eq!(other.swap(file(number), 0, &tokens).unwrap(), Swap::Taken);
    }
    let mut members = from.members.clone();
    members.join(Session(1), from.epoch);
    assert!(other.swap_members(&from, &members, Lease::Runs(Session(1), 30_000)).unwrap());
    let of_members = cluster.master_of(MEMBERS);
    let (restarted, silent) = ((of_members + 1) % MASTERS, (of_members + 2) % MASTERS);
    let lies_there = |number: &u64| cluster.master_of(&key_of(&cluster, *number)) == restarted;
    let number = (0..40).find(lies_there).expect("files lie on all masters");
    cluster.revive(restarted);

    let fresh = store(&cluster);
    assert_eq!(fresh.roll().unwrap().epoch, from.epoch, "nobody noticed yet");
    // By the list a partition has another epoch now.
    eventually("it answers", || fresh.read(file(number)).is_ok());
    cluster.signal(silent, Signal::STOP);
    assert!(fresh.renew(Session(1), from.epoch, 30_000).unwrap(), "before all else");
    let begun = Instant::now();
    assert!(fresh.note_changes().unwrap());
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
    cluster.signal(silent, Signal::CONT);
    eventually("it answers", || fresh.roll().is_ok_and(|now| now.epoch != from.epoch));
}

/// Each request to any master found out first who the masters are, one in three times from the silent one; and each
/// thread that wanted something of that waited until its own time limit.
#[test]
fn a_silent_master_holds_up_no_requests_to_others() {
    let Some(cluster) = RedisCluster::start(&["--cluster-node-timeout", "60000"]) else { return };
    let store = store(&cluster);
    let from = store.roll().unwrap();
    for number in 0..40 {
        let mut tokens = Tokens::new(from.partitions[store.partition(file(number))]);
        tokens.version = 1;
        assert_eq!(store.swap(file(number), 0, &tokens).unwrap(), Swap::Taken);
    }
    let silent = (cluster.master_of(MEMBERS) + 1) % MASTERS;
    let lies_there = |number: &u64| cluster.master_of(&key_of(&cluster, *number)) == silent;
    let (there, elsewhere): (Vec<_>, Vec<_>) = (0..40).partition(lies_there);
    cluster.signal(silent, Signal::STOP);
    eventually("it is left alone", || {
        let refused = store.read(file(there[0])).unwrap_err();
        refused.to_string().contains("just given no answer")
    });
    let before = store.round_trips();
    for number in &elsewhere {
        store.read(file(*number)).unwrap();
    }
    assert_eq!(store.round_trips() - before, elsewhere.len() as u64, "one request each");
    cluster.signal(silent, Signal::CONT);
    for number in there {
        eventually("it answers", || store.read(file(number)).is_ok());
    }
}

/// Its messages go to a list of its own; where that is silent, it hears what is repeated where its lease is.
#[test]
fn a_session_whose_list_is_on_a_silent_master_is_reminded() {
    let Some(cluster) = RedisCluster::start(&["--cluster-node-timeout", "60000"]) else { return };
    let (store, other) = (store(&cluster), store(&cluster));
    let of_members = cluster.master_of(MEMBERS);
    let list = |session: &Session| format!("halocline:{{test.told.{:016x}}}:told", session.0);
    let lies_elsewhere = |session: &Session| cluster.master_of(&list(session)) != of_members;
    let session = (1..1000).map(Session).find(lies_elsewhere).unwrap();
    let silent = cluster.master_of(&list(&session));
    cluster.signal(silent, Signal::STOP);
    eventually("it hears", || {
        other.remind(session, file(3));
        store.listen(session, Duration::from_millis(20)) == [file(3)]
    });
    cluster.signal(silent, Signal::CONT);
    eventually("it hears its own list again", || {
        other.tell(session, file(4));
        store.listen(session, Duration::from_millis(20)).contains(&file(4))
    });
}

/// Nothing takes longer than it may, whatever the servers do.
#[test]
fn all_is_answered_or_fails_in_bounded_time() {
    let Some(cluster) = RedisCluster::start(&["--cluster-node-timeout", "60000"]) else { return };
    let store = store(&cluster);
    store.roll().unwrap();
    for server in 0..2 * MASTERS {
        cluster.signal(server, Signal::STOP);
    }
    // Many times the limit of one answer, for a slow machine, and less than that for each of 64 partitions.
    let limit = Duration::from_mins(2);
    let begun = Instant::now();
    let refused = store.read(file(0)).unwrap_err();
    assert!(
        matches!(&refused, StoreError::NoAnswer(why) if why.contains("partition ")),
        "{refused}"
    );
    assert!(begun.elapsed() < limit, "{:?}", begun.elapsed());
    let begun = Instant::now();
    let refused = store.roll().unwrap_err();
    assert!(matches!(&refused, StoreError::NoAnswer(_)), "{refused}");
    assert!(begun.elapsed() < limit, "{:?}", begun.elapsed());
    for server in 0..2 * MASTERS {
        cluster.signal(server, Signal::CONT);
    }
}

#[test]
fn a_password_is_needed_and_never_shown() {
    let settings = &[
        "--requirepass",
        "s3cret",
        "--masterauth",
        "s3cret",
        "--protected-mode",
        "no",
        "--cluster-node-timeout",
        "10000",
    ];
    let Some(cluster) = RedisCluster::start(settings) else { return };
    let right = open(&cluster.urls(), Some("s3cret"), "test").unwrap();
    right.roll().unwrap();
    let with =
        |password: &str| cluster.url(0).replace("redis://", &format!("redis://:{password}@"));
    open(&with("s3cret"), None, "test").unwrap().roll().unwrap();
    let errors = [
        open(&cluster.urls(), None, "test").unwrap_err(),
        open(&cluster.urls(), Some("wr0ng"), "test").unwrap_err(),
        open(&with("wr0ng"), None, "test").unwrap_err(),
        open(&with("s3cret").replace("redis:", "rediss:"), None, "test").unwrap_err(),
    ];
    for shown in errors.iter().map(ToString::to_string).chain([format!("{right:?}")]) {
        assert!(!shown.contains("s3cret") && !shown.contains("wr0ng"), "{shown}");
    }
    assert!(errors[..3].iter().all(|error| matches!(error, StoreError::Unusable(_))), "{errors:?}");
}

/// What docs/CLUSTER.md says that a user needs is enough.
#[test]
fn a_user_who_may_do_no_more_than_is_said_is_enough() {
    let settings = &[
        "--user",
        "halo",
        "on",
        ">s3cret",
        "~halocline:*",
        "+evalsha",
        "+eval",
        "+script|load",
        "+info",
        "+time",
        "+scan",
        "+blpop",
        "+asking",
        "+cluster|slots",
        "+cluster|nodes",
        "+@hash",
        "+@list",
        "+@sortedset",
        "+persist",
        "+pexpire",
        "--cluster-node-timeout",
        "10000",
    ];
    let Some(cluster) = RedisCluster::start(settings) else { return };
    let url = cluster.url(0).replace("redis://", "redis://halo:s3cret@");
    contract::holds(&*open(&url, None, "test").unwrap());
}

#[test]
fn a_cluster_is_found_by_some_of_its_servers_and_refused_where_a_master_forgets() {
    let Some(cluster) = RedisCluster::start(STEADY) else { return };
    let gone = "redis://127.0.0.1:1";
    open(&format!("{gone},{}", cluster.url(4)), None, "test").unwrap().roll().unwrap();
    let unusable = |urls: &str, why: &str| {
        let refused = open(urls, None, "test").unwrap_err();
        assert!(matches!(&refused, StoreError::Unusable(said) if said.contains(why)), "{refused}");
    };
    unusable(&format!("{}/3", cluster.url(0)), "database");
    unusable(&format!("{},{}/3", cluster.url(0), cluster.url(1)), "one database");
    unusable(&"redis://127.0.0.1:1,".repeat(70), "more than");
    unusable("", "URL");
    assert!(matches!(open(gone, None, "test"), Err(StoreError::NoAnswer(_))));
    let one = halocline_testkit::redis_server::RedisServer::start(&[]).unwrap();
    unusable(&format!("{},{}", one.url(), cluster.url(0)), "not part of a cluster");
    open(&one.url(), None, "test").unwrap().roll().unwrap();
    RedisStore::connect(&one.url(), None, "test").unwrap();
    cluster.command(2, &["CONFIG", "SET", "maxmemory", "64mb"]);
    cluster.command(2, &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    unusable(&cluster.url(0), "noeviction");
    assert!(ClusterStore::connect(&[&cluster.url(1)], None, "test").is_err());
}
