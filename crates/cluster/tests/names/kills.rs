//! Nodes that die, and answers and scripts that are lost, at every step of every operation that concerns several shards:
//! what others find then is the tree before the operation or after it, and all can go on.

use std::sync::Arc;

use halocline_cluster::names::check::clean;
use halocline_cluster::names::memory::MemoryNames;
use halocline_cluster::names::namespace::{Failure, Namespace};
use halocline_cluster::names::redis::RedisNames;
use halocline_cluster::names::{NameStore, check};
use halocline_model::namespace::{Flags, InodeNumber, ROOT};
use halocline_testkit::redis_cluster::{RedisCluster, STEADY};
use halocline_testkit::redis_server::RedisServer;

use super::world::{Fault, Faulty, HASTE, LIMITS, at, directory, file, node, paths, tree};

type Done = Result<(), Failure>;

/// `/a` with a file `f`, `l` and an empty directory `d`; `/b` with `g`, the other `l` and an empty directory `e`.
struct World {
    a: InodeNumber,
    b: InodeNumber,
    d: InodeNumber,
    e: InodeNumber,
}

fn made(names: &Namespace) -> World {
    let make = |place| names.make_directory(&place, &directory()).unwrap().inode;
    let [a, b] = ["a", "b"].map(|name| make(at(ROOT, name)));
    let [d, e] = [make(at(a, "d")), make(at(b, "e"))];
    for place in [at(a, "f"), at(a, "l"), at(b, "g")] {
        names.create(&place, &file()).unwrap();
    }
    names.link(&at(a, "l"), &at(b, "l")).unwrap();
    World { a, b, d, e }
}

type Operation = (&'static str, fn(&Namespace, &World) -> Done);

const OPERATIONS: [Operation; 15] = [
    // Where a directory has two names, it is split.
    ("create", |names, _| names.create(&at(ROOT, "x"), &file()).map(drop)),
    ("mkdir", |names, w| names.make_directory(&at(w.a, "x"), &directory()).map(drop)),
    ("rmdir", |names, w| names.remove_directory(&at(w.b, "e")).map(drop)),
    ("link", |names, w| names.link(&at(w.a, "f"), &at(w.b, "x"))),
    ("link in one directory", |names, w| names.link(&at(w.a, "f"), &at(w.a, "x"))),
    ("third name", |names, w| names.link(&at(w.a, "l"), &at(w.e, "x"))),
    ("unlink of one of several", |names, w| names.unlink(&at(w.a, "l")).map(drop)),
    ("rename", |names, w| names.rename(&at(w.a, "f"), &at(w.b, "x"), Flags::Replace).map(drop)),
    ("rename over", |names, w| {
        names.rename(&at(w.a, "f"), &at(w.b, "g"), Flags::Replace).map(drop)
    }),
    ("rename over one of several", |names, w| {
        names.rename(&at(w.a, "f"), &at(w.b, "l"), Flags::Replace).map(drop)
    }),
    ("rename of one of several", |names, w| {
        names.rename(&at(w.a, "l"), &at(w.e, "x"), Flags::NoReplace).map(drop)
    }),
    ("rename of a directory", |names, w| {
        names.rename(&at(w.a, "d"), &at(w.e, "x"), Flags::Replace).map(drop)
    }),
    ("rename over a directory", |names, w| {
        names.rename(&at(w.a, "d"), &at(w.b, "e"), Flags::Replace).map(drop)
    }),
    ("exchange", |names, w| names.rename(&at(w.a, "d"), &at(w.b, "g"), Flags::Exchange).map(drop)),
    ("circle", |names, w| match names.rename(&at(ROOT, "a"), &at(w.d, "x"), Flags::Replace) {
        Err(Failure::Refused(rustix::io::Errno::INVAL)) => Ok(()),
        done => done.map(drop),
    }),
];

fn fresh(store: &Arc<dyn NameStore>) -> (Namespace, World) {
    store.begin_epoch(false).unwrap();
    for shard in store.shards().unwrap() {
        store.remove(shard).unwrap();
    }
    let body = halocline_model::namespace::Body::directory(
        ROOT,
        halocline_cluster::names::coding::encode_attributes(&directory()).unwrap(),
    );
    store.run(ROOT, &halocline_model::namespace::Script::Make(body)).unwrap();
    let names = node(Arc::clone(store), 1, HASTE);
    let world = made(&names);
    (names, world)
}

/// All operations with a fault at each of their scripts. Answers how many there were.
fn holds(store: &Arc<dyn NameStore>, faults: &[Fault]) -> usize {
    let mut cases = 0;
    for (what, operation) in OPERATIONS {
        let (names, world) = fresh(store);
        let before = paths(&names);
        operation(&names, &world).unwrap();
        let after = paths(&names);
        for &fault in faults {
            for step in 0.. {
                let (names, world) = fresh(store);
                let broken = Arc::new(Faulty::new(Arc::clone(store), fault, step));
                let result = operation(&node(Arc::clone(&broken) as _, 2, HASTE), &world);
                let told = format!("{what}, {fault:?} at {step}: {result:?}");
                let found = paths(&names);
                assert!(found == before || found == after, "{told}: {found:?}");
                match result {
                    Ok(()) => assert_eq!(found, after, "{told}"),
                    Err(Failure::Unknown(_)) => {}
                    // A node that died told nobody.
                    Err(_) if matches!(fault, Fault::Dies | Fault::DiesAfter) => {}
                    Err(_) => assert_eq!(found, before, "{told}"),
                }
                // Everything can go on: what is there can be removed, and made again.
                if found == before && before != after {
                    operation(&names, &world).unwrap_or_else(|error| panic!("{told}: {error}"));
                    assert_eq!(paths(&names), after, "{told}");
                }
                let there = tree(&names);
                let cleaned = clean(&**store).unwrap();
                assert_eq!(cleaned.contradictions, 0, "{told}: {cleaned:?}");
                assert_eq!(tree(&names), there, "{told}: {cleaned:?}");
                let again = clean(&**store).unwrap();
                let none = check::CheckFindings { intents: 0, committed: 0, leftovers: 0, ..again };
                assert_eq!(again, none, "{told}: all was removed");
                cases += 1;
                if broken.is_over() {
                    assert_ne!(step, 0, "{told}");
                    break;
                }
            }
        }
    }
    cases
}

const ALL: [Fault; 4] = [Fault::Dies, Fault::DiesAfter, Fault::LosesAnswer, Fault::LosesScript];

#[test]
fn i15_nodes_die_at_every_step_in_memory() {
    for limit in LIMITS {
        let store = MemoryNames::default().splitting_from(limit);
        let cases = holds(&(Arc::new(store) as _), &ALL);
        println!("{cases} cases");
        assert!(cases > 300, "{cases}");
    }
}

#[test]
fn i15_nodes_die_at_every_step_on_a_server() {
    let Some(server) = RedisServer::start(&[]) else { return };
    for limit in LIMITS {
        server.command(&["FLUSHALL"]);
        let store = RedisNames::connect(&server.url(), None, "test").unwrap();
        println!("{} cases", holds(&(Arc::new(store.splitting_from(limit)) as _), &ALL));
    }
}

#[test]
fn i15_nodes_die_at_every_step_on_a_cluster() {
    let Some(cluster) = RedisCluster::start(STEADY) else { return };
    for (limit, origin) in LIMITS.into_iter().zip(["whole", "split"]) {
        let store = RedisNames::connect(&cluster.urls(), None, origin).unwrap();
        let store = store.splitting_from(limit);
        println!("{} cases", holds(&(Arc::new(store) as _), &[Fault::DiesAfter]));
    }
}
