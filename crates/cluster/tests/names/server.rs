//! A server that forgets, is restarted, or holds what others wrote.

use std::sync::Arc;
use std::time::Instant;

use halocline_cluster::names::attributes::{Attributes, Location, RelativePath};
use halocline_cluster::names::check::clean;
use halocline_cluster::names::memory::MemoryNames;
use halocline_cluster::names::namespace::{Failure, Namespace, WaitLimit};
use halocline_cluster::names::redis::RedisNames;
use halocline_cluster::names::{NameStore, NamesError, State};
use halocline_model::namespace::{Flags, ROOT};
use halocline_model::token::Session;
use halocline_testkit::redis_server::RedisServer;
use halocline_testkit::waiting::eventually;
use rustix::io::Errno;

use super::world::{at, directory, file, node, paths};

fn store(server: &RedisServer) -> Arc<RedisNames> {
    Arc::new(RedisNames::connect(&server.url(), None, "test").unwrap())
}

fn formatted(server: &RedisServer) -> Arc<RedisNames> {
    let store = store(server);
    Namespace::format(&*store, &directory()).unwrap();
    store
}

fn forgot<T: std::fmt::Debug>(result: &Result<T, Failure>) -> bool {
    matches!(result, Err(Failure::Store(NamesError::Forgot(_))))
}

#[test]
fn i15_a_server_that_may_have_forgotten_names_is_not_believed() {
    let Some(mut server) = RedisServer::start(&[]) else { return };
    let names = node(formatted(&server), 1, WaitLimit::default());
    names.create(&at(ROOT, "f"), &file()).unwrap();
    server.command(&["SAVE"]);
    names.create(&at(ROOT, "g"), &file()).unwrap();
    for what in ["with an older file", "empty"] {
        if what == "empty" {
            server.forget();
        }
        server.restart();
        // What was connected before is not any more; and what a node has a lease of, it believes as long as that.
        eventually("it answers", || forgot(&names.lookup(&at(ROOT, "f"))));
        assert!(forgot(&names.lookup(&at(ROOT, "g"))), "{what}");
        assert!(forgot(&names.create(&at(ROOT, "g"), &file())), "{what}");
        assert!(forgot(&names.unlink(&at(ROOT, "f"))), "{what}");
        assert!(forgot(&names.rename(&at(ROOT, "f"), &at(ROOT, "h"), Flags::Replace)), "{what}");
        assert!(forgot(&names.list(ROOT, 0, 10)), "{what}");
        let open = Namespace::open(store(&server), Session(2), WaitLimit::default());
        assert!(forgot(&open), "{what}");
        let format = Namespace::format(&*store(&server), &directory());
        assert_eq!(forgot(&format), what != "empty", "{what}: {format:?}");
    }
}

/// Regression: the first change after the server had ended the connections that waited for one failed, and nobody knew
/// whether it was made.
#[test]
fn a_change_is_not_sent_over_a_connection_that_the_server_has_ended() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let names = node(formatted(&server), 1, WaitLimit::default());
    for name in ["f", "g", "h"] {
        names.create(&at(ROOT, name), &file()).unwrap();
        let ended = server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        assert_ne!(ended.trim(), "0", "none was idle");
    }
    names.unlink(&at(ROOT, "f")).unwrap();
    assert_eq!(paths(&names), ["/g", "/h"]);
}

#[test]
fn i15_what_was_looked_at_is_believed_again() {
    let Some(mut server) = RedisServer::start(&[]) else { return };
    let names = node(formatted(&server), 1, WaitLimit::default());
    let before = names.create(&at(ROOT, "f"), &file()).unwrap().inode;
    server.command(&["SAVE"]);
    server.restart();
    let other = store(&server);
    assert_eq!(other.refresh().unwrap(), State::Doubtful(64));
    assert!(clean(&*other).is_err());
    other.begin_epoch(false).unwrap();
    eventually("it answers", || names.list(ROOT, 0, 1).is_ok());
    let after = names.create(&at(ROOT, "g"), &file()).unwrap().inode;
    assert!(after > before, "no number comes twice: {after:?} {before:?}");
    assert_eq!(paths(&names), ["/f", "/g"]);
    // The server may have forgotten which numbers it gave.
    let another = node(store(&server), 3, WaitLimit::default());
    let next = another.create(&at(ROOT, "h"), &file()).unwrap().inode;
    assert!(next > after);
}

/// What a node sent in one epoch does nothing in the next, and the node begins anew by itself.
#[test]
fn a_check_while_nodes_are_about_something_harms_nobody() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let names = node(formatted(&server), 1, WaitLimit::default());
    let dir = names.make_directory(&at(ROOT, "d"), &directory()).unwrap().inode;
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            for number in 0..60 {
                let name = format!("x{number}");
                names.make_directory(&at(ROOT, &name), &directory()).unwrap();
                names.rename(&at(ROOT, &name), &at(dir, &name), Flags::Replace).unwrap();
            }
        });
        let checker = store(&server);
        while !worker.is_finished() {
            let begun = Instant::now();
            let found = clean(&*checker).unwrap();
            assert_eq!(found.contradictions, 0, "{found:?}");
            // A node looks for ten seconds for a moment without a check: on a slow machine there are few, if they follow
            // each other at once.
            std::thread::sleep(begun.elapsed());
        }
    });
    let (all, is_last) = names.list(dir, 0, 1000).unwrap();
    assert_eq!((all.len(), is_last), (60, true));
    assert_eq!(paths(&names).len(), 61);
}

/// Names of two nodes on a store in memory, and on a server if there is one.
fn two_nodes_each(test: impl Fn(&Namespace, &Namespace)) {
    let memory = Arc::new(MemoryNames::default());
    Namespace::format(&*memory, &directory()).unwrap();
    let other = Arc::new(memory.for_another_node());
    test(&node(memory, 1, WaitLimit::default()), &node(other, 2, WaitLimit::default()));
    let Some(server) = RedisServer::start(&[]) else { return };
    let one = node(formatted(&server), 1, WaitLimit::default());
    test(&one, &node(store(&server), 2, WaitLimit::default()));
}

/// Regression: a name that the disk had refused was taken away whatever it led to by then.
#[test]
fn i15_a_name_is_taken_from_the_file_that_was_meant_and_from_no_other() {
    two_nodes_each(|one, other| {
        let was = one.create(&at(ROOT, "f"), &file()).unwrap().inode;
        let is = other.create(&at(ROOT, "g"), &file()).unwrap().inode;
        other.rename(&at(ROOT, "g"), &at(ROOT, "f"), Flags::Replace).unwrap();
        assert!(one.unlink_of(&at(ROOT, "f"), was).unwrap().is_none());
        assert!(one.unlink_of(&at(ROOT, "g"), was).unwrap().is_none(), "there is nothing any more");
        assert_eq!(paths(other), ["/f"]);
        assert!(one.unlink_of(&at(ROOT, "f"), is).unwrap().is_some());
        assert_eq!(paths(other), [""; 0]);
    });
}

/// What a node compared the owner of is what loses a name, also if another node gives the name to something else.
#[test]
fn i15_directories_are_removed_and_names_replaced_only_if_they_are_what_was_meant() {
    two_nodes_each(|one, other| {
        let stale = |failure: Failure| assert_eq!(failure, Failure::Refused(Errno::STALE));
        let [d, f, g] = ["d", "f", "g"].map(|name| at(ROOT, name));
        let was = one.make_directory(&d, &directory()).unwrap().inode;
        other.remove_directory(&d).unwrap();
        let is = other.make_directory(&d, &directory()).unwrap().inode;
        stale(one.remove_directory_of(&d, Some(was)).unwrap_err());
        assert_eq!(one.remove_directory_of(&d, Some(is)).unwrap(), is);
        let number = |name| Some(one.create(name, &file()).unwrap().inode);
        let (of_f, of_g) = (number(&f), number(&g));
        for flags in [Flags::Replace, Flags::Exchange] {
            let rename = |expected| one.rename_told(&f, &g, flags, Some(expected));
            for expected in [[of_g, of_g], [of_f, of_f], [of_f, None], [None, of_g]] {
                stale(rename(expected).unwrap_err());
            }
            assert_eq!(one.lookup(&f).ok().map(|found| found.inode), of_f);
        }
        let expected = Some([of_f, of_g]);
        assert!(one.rename_told(&f, &g, Flags::Exchange, expected).unwrap().is_done);
        stale(one.rename_told(&f, &g, Flags::Replace, expected).unwrap_err());
        other.unlink(&f).unwrap();
        // What is gone by now is in nobody's way.
        assert!(one.rename_told(&g, &f, Flags::Replace, Some([of_f, of_g])).unwrap().is_done);
        assert_eq!(paths(other), ["/f"]);
    });
}

#[test]
fn the_flag_of_the_writer_and_the_place_of_the_bytes_are_compared_and_swapped() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let names = node(formatted(&server), 1, WaitLimit::default());
    let place = at(ROOT, "f");
    names.create(&place, &file()).unwrap();
    for linked in [false, true] {
        if linked {
            names.link(&place, &at(ROOT, "l")).unwrap();
        }
        let [one, other] = [Some(Session(7)), Some(Session(8))];
        names.attributes().set_writer(&place, None, one).unwrap();
        let refused = names.attributes().set_writer(&place, None, other);
        assert_eq!(refused.unwrap_err().errno(), Errno::BUSY);
        names.attributes().set_writer(&place, one, None).unwrap();
        let here = Location {
            node: Some("n1".to_owned()),
            tier: 0,
            base: 1,
            path: RelativePath::new(b"d/f").unwrap(),
        };
        names.attributes().set_location(&place, None, Some(&here)).unwrap();
        assert!(names.attributes().set_location(&place, None, Some(&here)).is_err());
        assert_eq!(names.lookup(&place).unwrap().attributes.location, Some(here.clone()));
        names.attributes().set_location(&place, Some(&here), None).unwrap();
    }
    names.attributes().set_xattr(&at(ROOT, "l"), b"user.a", (Some(b"1"), Some(false))).unwrap();
    let node = names.lookup(&place).unwrap();
    assert_eq!((node.links, node.attributes.xattrs.len()), (2, 1), "of both names");
    assert!(names.attributes().set_xattr(&place, b"user.a", (Some(b"2"), Some(false))).is_err());
    let big = vec![0; 70_000];
    let refused = names.attributes().set_xattr(&place, b"user.b", (Some(&big), None));
    assert_eq!(refused.unwrap_err().errno(), Errno::NOSPC);
}

#[test]
fn what_others_wrote_into_the_server_is_an_error() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let names = node(formatted(&server), 1, WaitLimit::default());
    names.create(&at(ROOT, "f"), &file()).unwrap();
    let keys = |what: &str| {
        let said = server.command(&["KEYS", &format!("halocline:*:names:1:{what}")]);
        said.lines().find(|line| line.starts_with("halocline")).unwrap().trim_end().to_owned()
    };
    let [shard, entries, order] = ["shard", "entries", "order"].map(keys);
    let locks = shard.replace(":shard", ":locks");
    let unsound = |what: &str| {
        let is_unsound = |failed: Option<Failure>| {
            matches!(failed, Some(Failure::Store(NamesError::Unsound(_) | NamesError::NoAnswer(_))))
        };
        let looked = names.lookup(&at(ROOT, "f")).err();
        let listed = names.list(ROOT, 0, 10).err();
        println!("{what}: {looked:?} {listed:?}");
        assert!(is_unsound(looked) || is_unsound(listed), "{what}");
    };
    for entry in ["x", "s12345678", "d1", "s12345678\u{1}\u{8}", "l1234567812345678x"] {
        server.command(&["HSET", &entries, "f", entry]);
        unsound(entry);
    }
    server.command(&[
        "EVAL",
        "redis.call('HSET', KEYS[1], 'f', string.rep('x', 80000))",
        "1",
        &entries,
    ]);
    unsound("too long");
    server.command(&["HDEL", &entries, "f"]);
    unsound("in the order alone");
    server.command(&["ZADD", &order, "5", &"x".repeat(300)]);
    server.command(&["HSET", &entries, &"x".repeat(300), "d12345678"]);
    server.command(&["ZREM", &order, "f"]);
    assert!(names.list(ROOT, 0, 10).is_err(), "a long name");
    server.command(&["HSET", &shard, "locked", "1"]);
    server.command(&["HSET", &locks, "nf", "no lock"]);
    unsound("a lock");
    server.command(&["HSET", &shard, "locked", "x"]);
    assert!(names.lookup(&at(ROOT, "f")).is_err());
    server.command(&["DEL", &shard]);
    server.command(&["SET", &shard, "x"]);
    unsound("another kind of value");
}

/// Nothing is half done in a full store, nothing stays locked, and files can be removed there.
#[test]
fn a_full_store_refuses_what_needs_room_and_does_what_makes_room() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let names = node(formatted(&server), 1, WaitLimit::default());
    let dir = names.make_directory(&at(ROOT, "d"), &directory()).unwrap().inode;
    for name in ["f", "g"] {
        names.create(&at(ROOT, name), &file()).unwrap();
    }
    let before = paths(&names);
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let refused = [
        names.create(&at(ROOT, "x"), &file()).map(drop),
        names.make_directory(&at(ROOT, "y"), &directory()).map(drop),
        names.link(&at(ROOT, "f"), &at(ROOT, "l")),
        names.rename(&at(ROOT, "f"), &at(dir, "f"), Flags::Replace).map(drop),
        names
            .rename(&at(ROOT, "d"), &at(ROOT, "e"), Flags::Replace)
            .map(drop)
            .and(names.rename(&at(ROOT, "f"), &at(dir, "z"), Flags::NoReplace).map(drop)),
    ];
    for (number, refused) in refused.into_iter().enumerate() {
        let refused = refused.unwrap_err();
        assert_eq!(refused.errno(), Errno::NOSPC, "{number}: {refused:?}");
        assert!(refused.to_string().contains("maxmemory"), "{refused}");
    }
    // What renames a name in one directory makes room first.
    let renamed = |path: &String| path.replace("/d", "/e");
    assert_eq!(paths(&names), before.iter().map(renamed).collect::<Vec<_>>());
    names.unlink(&at(ROOT, "g")).unwrap();
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    names.rename(&at(ROOT, "f"), &at(dir, "f"), Flags::Replace).unwrap();
    assert_eq!(paths(&names), ["/e", "/e/f"]);
    assert_eq!(names.counts().completed, 0, "no lock was left");
}

/// Regression: the removal of a directory, and of a name of a file that has several, takes locks, which need room; so
/// a store that was filled with either could not be emptied. Nor could files be opened or closed.
#[test]
fn in_a_full_store_all_can_be_read_and_removed() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let names = node(formatted(&server), 1, WaitLimit::default());
    assert_eq!(names.memory().unwrap(), None, "no limit");
    let dir = names.make_directory(&at(ROOT, "d"), &directory()).unwrap().inode;
    names.make_directory(&at(dir, "e"), &directory()).unwrap();
    let made = names.create(&at(ROOT, "f"), &file()).unwrap().inode;
    for name in ["g", "h"] {
        names.link(&at(ROOT, "f"), &at(dir, name)).unwrap();
    }
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let memory = names.memory().unwrap().unwrap();
    assert!(memory.limit == 1 && memory.used > 1 && memory.percent() > 100, "{memory:?}");
    let update = |change: &dyn Fn(&mut Attributes)| {
        let change = |attributes: &mut Attributes| {
            change(attributes);
            Ok(())
        };
        names.attributes().update_of((&at(dir, "g"), made), change)
    };
    for session in 1..20 {
        update(&|attributes| attributes.note_open(Session(session), true)).unwrap();
    }
    update(&|attributes| attributes.size = 1 << 40).unwrap();
    update(&|attributes| attributes.opens.clear()).unwrap();
    let larger = update(&|attributes| {
        attributes.xattrs.insert(b"user.a".to_vec(), vec![0; 100]);
    });
    assert_eq!(larger.unwrap_err().errno(), Errno::NOSPC);
    for (above, name) in [(dir, "h"), (ROOT, "f"), (dir, "g")] {
        names.unlink(&at(above, name)).unwrap();
    }
    for (above, name) in [(dir, "e"), (ROOT, "d")] {
        names.remove_directory(&at(above, name)).unwrap();
    }
    assert_eq!(paths(&names), [""; 0]);
    let refused = names.make_directory(&at(ROOT, "d"), &directory()).unwrap_err();
    assert_eq!(refused.errno(), Errno::NOSPC);
}

/// A check asks for all intents of a shard at once.
#[test]
fn more_intents_than_fit_into_an_answer_are_an_error() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let store = formatted(&server);
    let said = server.command(&["KEYS", "halocline:*:names:1:shard"]);
    let shard = said.lines().find(|line| line.starts_with("halocline")).unwrap().trim_end();
    let committed = shard.replace(":shard", ":committed");
    let script =
        "for at = 1, ARGV[1] do redis.call('HSET', KEYS[1], at, string.rep('x', 70000)) end";
    server.command(&["EVAL", script, "1", &committed, "200"]);
    // They fit, and are none of ours.
    let unsound = |error: NamesError, what: &str| match error {
        NamesError::Unsound(said) => assert!(said.contains(what), "{said}"),
        other => panic!("{other:?}"),
    };
    unsound(store.inspect(ROOT).unwrap_err(), "an intent");
    server.command(&["EVAL", script, "1", &committed, "250"]);
    unsound(store.inspect(ROOT).unwrap_err(), "too long");
}

/// Directories that a hostile store says to be above each other: the search upwards ends.
#[test]
fn a_store_that_leads_in_circles_is_left() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let names = node(formatted(&server), 1, WaitLimit::default());
    let make = |place| names.make_directory(&place, &directory()).unwrap().inode;
    let [a, b, c] = [make(at(ROOT, "a")), make(at(ROOT, "b")), make(at(ROOT, "c"))];
    for (of, parent) in [(a, b), (b, a)] {
        let said = server.command(&["KEYS", &format!("halocline:*:names:{:x}:shard", of.0)]);
        let key =
            said.lines().find(|line| line.starts_with("halocline")).unwrap().trim_end().to_owned();
        server.command(&["HSET", &key, "parent", &parent.0.to_string()]);
    }
    let moved = names.rename(&at(ROOT, "c"), &at(a, "c"), Flags::Replace);
    assert!(matches!(moved, Err(Failure::Store(NamesError::Unsound(_)))), "{moved:?}");
    let _ = c;
}
