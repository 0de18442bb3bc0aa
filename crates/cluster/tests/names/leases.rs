//! What was listed is believed under a lease, and never when it is old: two nodes on one server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use halocline_cluster::names::attributes::Attributes;
use halocline_cluster::names::namespace::{Changes, Namespace, WaitLimit};
use halocline_cluster::names::redis::RedisNames;
use halocline_cluster::names::{LEASE_MS, PAGE_ENTRIES_MAX};
use halocline_model::namespace::{Flags, Inode, ROOT};
use halocline_testkit::redis_server::RedisServer;
use rustix::io::Errno;

use super::world::{at, directory, file, node};

const FILES: usize = 2500;

fn store(server: &RedisServer) -> Arc<RedisNames> {
    Arc::new(RedisNames::connect(&server.url(), None, "test").unwrap())
}

/// Two nodes, and a directory.
fn nodes(server: &RedisServer) -> (Namespace, Namespace, Inode) {
    Namespace::format(&*store(server), &directory()).unwrap();
    let [one, two] = [1, 2].map(|session| node(store(server), session, WaitLimit::default()));
    let dir = one.make_directory(&at(ROOT, "d"), &directory()).unwrap().inode;
    (one, two, dir)
}

/// As long as a directory must have been left alone, and a while.
fn leave_alone() {
    thread::sleep(Duration::from_millis(400));
}

fn list(names: &Namespace, dir: Inode) -> Vec<String> {
    let (mut all, mut cursor) = (Vec::new(), 0);
    loop {
        let (page, is_last) = names.list(dir, cursor, PAGE_ENTRIES_MAX).unwrap();
        for listed in page {
            cursor = listed.cursor;
            all.push(String::from_utf8(listed.name.as_bytes().to_vec()).unwrap());
        }
        if is_last {
            return all;
        }
    }
}

#[test]
fn names_that_were_listed_cost_a_round_trip_for_each_lease() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let (one, two, dir) = nodes(&server);
    for number in 0..FILES {
        one.create(&at(dir, &format!("f{number}")), &file()).unwrap();
    }
    leave_alone();
    let before = two.counts().round_trips;
    let begun = Instant::now();
    let names = list(&two, dir);
    for name in &names {
        two.lookup(&at(dir, name)).unwrap();
    }
    let trips = two.counts().round_trips - before;
    let leases = begun.elapsed().as_millis() / u128::from(LEASE_MS) + 2;
    assert!(u128::from(trips) <= leases + 3, "{trips} round trips, {leases} leases");
    // In a directory that changes all the time, each is asked for.
    one.create(&at(dir, "new"), &file()).unwrap();
    list(&two, dir);
    let before = two.counts().round_trips;
    for name in &names[..50] {
        two.lookup(&at(dir, name)).unwrap();
    }
    assert_eq!(
        two.counts().round_trips - before,
        50,
        "one asks for a lease, and hears that all is as it was listed"
    );
}

#[test]
fn a_change_waits_for_the_leases_of_other_nodes_and_is_seen_at_once() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let (one, two, dir) = nodes(&server);
    let (f, g) = (at(dir, "f"), at(dir, "g"));
    one.create(&f, &file()).unwrap();
    let sized = |names: &Namespace| names.lookup(&f).unwrap().attributes.size;
    let grow = |names: &Namespace, by: u64| {
        let grown = |attributes: &mut Attributes| {
            attributes.size += by;
            Ok(())
        };
        names.update(&f, grown).unwrap();
    };
    for (turn, by) in (1..=4).map(|turn| (turn, turn * 10)) {
        leave_alone();
        let before = sized(&two);
        list(&two, dir);
        assert_eq!(sized(&two), before);
        // By the node itself, which waits for nobody, and by another one.
        let changes = if turn % 2 == 0 { &two } else { &one };
        grow(changes, by);
        assert_eq!((sized(&one), sized(&two)), (before + by, before + by));
    }
    // Both have leases: each waits for the other's.
    leave_alone();
    for names in [&one, &two] {
        list(names, dir);
        names.lookup(&f).unwrap();
    }
    grow(&one, 1);
    assert_eq!(sized(&one), sized(&two));
    // A change of two directories.
    leave_alone();
    list(&two, dir);
    two.lookup(&f).unwrap();
    one.rename(&f, &at(ROOT, "up"), Flags::Replace).unwrap();
    assert_eq!(two.lookup(&f).unwrap_err().errno(), Errno::NOENT);
    leave_alone();
    list(&two, ROOT);
    two.lookup(&at(ROOT, "up")).unwrap();
    one.rename(&at(ROOT, "up"), &g, Flags::Replace).unwrap();
    assert_eq!(two.lookup(&at(ROOT, "up")).unwrap_err().errno(), Errno::NOENT);
    // Its directory's removal, once it is empty.
    one.unlink(&g).unwrap();
    leave_alone();
    list(&two, ROOT);
    two.lookup(&at(ROOT, "d")).unwrap();
    two.directory(dir).unwrap();
    one.remove_directory(&at(ROOT, "d")).unwrap();
    assert_eq!(two.lookup(&at(ROOT, "d")).unwrap_err().errno(), Errno::NOENT);
}

#[test]
fn a_path_that_is_asked_for_again_and_again_costs_a_round_trip_for_each_lease() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let (one, two, dir) = nodes(&server);
    one.create(&at(dir, "f"), &file()).unwrap();
    leave_alone();
    let look = |names: &Namespace| {
        let found = names.lookup(&at(ROOT, "d")).unwrap();
        names.directory(ROOT).unwrap();
        names.lookup(&at(dir, "f")).unwrap();
        found.attributes.mode
    };
    let (before, begun) = (two.counts().round_trips, Instant::now());
    (0..1000).for_each(|_| assert_ne!(look(&two), 0));
    let trips = u128::from(two.counts().round_trips - before);
    let leases = begun.elapsed().as_millis() / u128::from(LEASE_MS) + 1;
    assert!(trips <= 12 + leases * 4, "{trips} round trips, {leases} leases");
    // Attributes of a directory change for all at once.
    for mode in [0o700, 0o711, 0o755] {
        for _ in 0..5 {
            look(&two);
        }
        one.set_attributes(&at(ROOT, "d"), &Changes { mode: Some(mode), ..Changes::default() })
            .unwrap();
        assert_eq!((look(&two), look(&one)), (mode, mode));
        leave_alone();
    }
    // And so does when its names changed.
    let changed = |names: &Namespace| names.directory(dir).unwrap().attributes.mtime_ns;
    let before = changed(&two);
    assert_eq!(changed(&two), before);
    one.create(&at(dir, "g"), &file()).unwrap();
    assert!(changed(&two) > before);
}

/// One node changes a file now and then; whoever looks on any node sees what was answered before he looked.
#[test]
fn i15_nobody_sees_what_was_before_an_answer() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let (one, two, dir) = nodes(&server);
    let f = at(dir, "f");
    one.create(&f, &file()).unwrap();
    let (answered, is_done) = (AtomicU64::new(0), AtomicBool::new(false));
    let trips = two.counts().round_trips;
    let looks = AtomicU64::new(0);
    thread::scope(|scope| {
        for names in [&one, &two, &two] {
            scope.spawn(|| {
                while !is_done.load(Ordering::SeqCst) {
                    list(names, dir);
                    for _ in 0..100 {
                        let before = answered.load(Ordering::SeqCst);
                        let size = names.lookup(&f).unwrap().attributes.size;
                        assert!(size >= before, "{size}, though {before} was answered");
                        looks.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        for size in 1..=12 {
            // By turns: a node's own changes wait for no lease of its own.
            let names = if size % 2 == 0 { &one } else { &two };
            let changes = Changes { size: Some(size), ..Changes::default() };
            names.set_attributes(&f, &changes).unwrap();
            answered.store(size, Ordering::SeqCst);
            thread::sleep(Duration::from_millis(size * 37));
        }
        is_done.store(true, Ordering::SeqCst);
    });
    let trips = two.counts().round_trips - trips;
    assert!(trips < looks.into_inner(), "some were answered without the store");
}

#[test]
fn what_a_node_made_in_a_directory_that_it_changes_alone_it_need_not_ask_for() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let (one, two, dir) = nodes(&server);
    let (f, g) = (at(dir, "f"), at(dir, "g"));
    let trips = |act: &dyn Fn()| {
        let (before, begun) = (one.counts().round_trips, Instant::now());
        act();
        // On a machine that is too slow for that, each look asks again.
        let leases = begun.elapsed().as_millis() / u128::from(LEASE_MS);
        (u128::from(one.counts().round_trips - before), leases * 4)
    };
    let (made, more) = trips(&|| {
        assert_eq!(one.lookup(&f).unwrap_err().errno(), Errno::NOENT);
        let before = one.directory(dir).unwrap().attributes.mtime_ns;
        one.create(&f, &file()).unwrap();
        assert!(one.directory(dir).unwrap().attributes.mtime_ns > before);
        one.set_attributes(&f, &Changes { size: Some(7), ..Changes::default() }).unwrap();
        assert_eq!(one.lookup(&f).unwrap().attributes.size, 7);
        one.rename(&f, &g, Flags::Replace).unwrap();
        assert_eq!(one.lookup(&f).unwrap_err().errno(), Errno::NOENT);
        assert!(one.unlink(&g).unwrap().is_some());
        assert_eq!(one.lookup(&g).unwrap_err().errno(), Errno::NOENT);
    });
    assert!(made <= 4 + more, "{made} round trips for four changes");
    // What another node changes is seen at once, though its change waits for the lease.
    for turn in 0..4 {
        one.create(&f, &file()).unwrap();
        two.rename(&f, &g, Flags::Replace).unwrap();
        assert_eq!(one.lookup(&f).unwrap_err().errno(), Errno::NOENT, "{turn}");
        one.unlink(&g).unwrap();
        assert_eq!(two.lookup(&g).unwrap_err().errno(), Errno::NOENT, "{turn}");
    }
    // The names that a node believes to be free or taken are compared, too.
    leave_alone();
    one.create(&f, &file()).unwrap();
    two.unlink(&f).unwrap();
    assert_eq!(one.unlink(&f).unwrap_err().errno(), Errno::NOENT);
    two.create(&f, &file()).unwrap();
    assert_eq!(one.create(&f, &file()).unwrap_err().errno(), Errno::EXIST);
}

/// Threads of one node, whose changes cross each other, beside another node that changes the same directory by turns.
#[test]
fn i15_changes_at_once_leave_every_node_with_what_the_store_has() {
    const THREADS: usize = 4;
    let Some(server) = RedisServer::start(&[]) else { return };
    let (one, two, dir) = nodes(&server);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (one, two) = (&one, &two);
            scope.spawn(move || {
                for number in 0..60_u64 {
                    let names = if number % 20 == 19 { two } else { one };
                    let name = at(dir, &format!("f{thread}"));
                    let size = |names: &Namespace| names.lookup(&name).unwrap().attributes.size;
                    names.create(&name, &file()).unwrap();
                    assert_eq!((size(one), size(two)), (0, 0));
                    let changes = Changes { size: Some(number), ..Changes::default() };
                    names.set_attributes(&name, &changes).unwrap();
                    assert_eq!((size(one), size(two)), (number, number));
                    names.unlink(&name).unwrap();
                    for names in [one, two] {
                        assert_eq!(names.lookup(&name).unwrap_err().errno(), Errno::NOENT);
                    }
                }
            });
        }
    });
    assert_eq!(list(&one, dir), [""; 0]);
    assert_eq!(list(&two, dir), [""; 0]);
}
