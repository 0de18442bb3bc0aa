//! Directories that are split into buckets, as nodes see them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use halocline_cluster::names::check::clean;
use halocline_cluster::names::memory::MemoryNames;
use halocline_cluster::names::namespace::{AttributeUpdate, Namespace, WaitLimit};
use halocline_cluster::names::redis::RedisNames;
use halocline_cluster::names::{NameStore, PAGE_ENTRIES_MAX};
use halocline_model::namespace::{
    Answer, Body, Buckets, Flags, InodeNumber, Name, ROOT, Script, Slot,
};
use halocline_testkit::redis_server::RedisServer;
use halocline_testkit::waiting::SetOnDrop;
use rustix::io::Errno;

use super::world::{at, directory, file, node};

/// From how many entries on a directory is split here.
const ENTRIES_MAX: u64 = 20;

fn store(server: &RedisServer) -> Arc<RedisNames> {
    let store = RedisNames::connect(&server.url(), None, "test").unwrap();
    Arc::new(store.splitting_from(Some(ENTRIES_MAX)))
}

/// Two nodes, and a directory with so many files.
fn nodes(server: &RedisServer, files: u64) -> (Namespace, Namespace, InodeNumber) {
    Namespace::format(&*store(server), &directory()).unwrap();
    let [one, two] = [1, 2].map(|session| node(store(server), session, WaitLimit::default()));
    let dir = one.make_directory(&at(ROOT, "d"), &directory()).unwrap().inode;
    for number in 0..files {
        one.create(&at(dir, &format!("f{number}")), &file()).unwrap();
    }
    (one, two, dir)
}

fn buckets_of(store: &dyn NameStore, dir: InodeNumber) -> Option<Buckets> {
    match store.run(dir, &Script::Read(Slot::Name("any".into()))).unwrap() {
        Answer::Split(buckets) => Some(buckets),
        _ => None,
    }
}

fn list(names: &Namespace, dir: InodeNumber, limit: usize) -> Vec<Name> {
    let (mut all, mut cursor) = (Vec::new(), 0);
    loop {
        let (page, is_last) = names.list(dir, cursor, limit).unwrap();
        cursor = page.last().map_or(cursor, |last| last.cursor);
        all.extend(page.into_iter().map(|listed| listed.name));
        if is_last {
            return all;
        }
    }
}

fn expected(files: u64) -> BTreeSet<Name> {
    (0..files).map(|number| Name::from(format!("f{number}").as_str())).collect()
}

#[test]
fn a_directory_is_split_by_the_name_that_is_one_too_many() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let (one, two, dir) = nodes(&server, ENTRIES_MAX);
    let looks = store(&server);
    looks.refresh().unwrap();
    assert_eq!(buckets_of(&*looks, dir), None);
    let before = two.directory(dir).unwrap().attributes.mtime_ns;
    // It reads the beginning of the directory before it is split, and the rest afterwards.
    let (page, is_last) = two.list(dir, 0, 7).unwrap();
    assert!(page.len() == 7 && !is_last);
    one.create(&at(dir, "f20"), &file()).unwrap();
    let buckets = buckets_of(&*looks, dir).expect("it was split");
    assert_eq!(buckets.numbers().len(), Buckets::COUNT);
    // Checks of versions that know no buckets end here, before they remove any.
    let marked = format!("{:x}:finished", dir.0);
    assert!(server.command(&["KEYS", &format!("*:{marked}")]).contains(&marked));
    assert!(two.directory(dir).unwrap().attributes.mtime_ns > before);
    let mut seen: Vec<_> = page.iter().map(|listed| listed.name.clone()).collect();
    let mut cursor = page.last().unwrap().cursor;
    loop {
        let (page, is_last) = two.list(dir, cursor, 3).unwrap();
        cursor = page.last().map_or(cursor, |last| last.cursor);
        seen.extend(page.into_iter().map(|listed| listed.name));
        if is_last {
            break;
        }
    }
    // What came after the listing began may be missing.
    seen.retain(|name| *name != Name::from("f20"));
    assert_eq!(seen.len(), 20, "{seen:?}");
    assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), expected(20));
    for names in [&one, &two] {
        for limit in [1, 5, PAGE_ENTRIES_MAX] {
            let listed = list(names, dir, limit);
            assert_eq!(listed.len(), 21);
            assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), expected(21));
        }
    }
    // All is as in other directories, for who split it and for who knows nothing of it yet.
    let three = node(store(&server), 3, WaitLimit::default());
    assert_eq!(three.create(&at(dir, "f3"), &file()).unwrap_err().errno(), Errno::EXIST);
    three.rename(&at(dir, "f3"), &at(dir, "g3"), Flags::Replace).unwrap();
    two.rename(&at(dir, "f4"), &at(ROOT, "up"), Flags::Replace).unwrap();
    two.link(&at(dir, "f5"), &at(dir, "g5")).unwrap();
    assert_eq!(one.lookup(&at(dir, "g5")).unwrap().links, 2);
    assert_eq!(one.lookup(&at(dir, "f3")).unwrap_err().errno(), Errno::NOENT);
    assert_eq!(one.remove_directory(&at(ROOT, "d")).unwrap_err().errno(), Errno::NOTEMPTY);
    let found = clean(&*looks).unwrap();
    assert_eq!((found.contradictions, found.leftovers, found.names), (0, 0, 23), "{found:?}");
    for name in list(&one, dir, 9) {
        let place = halocline_model::namespace::EntryName { directory: dir, name };
        one.unlink(&place).unwrap();
    }
    three.remove_directory(&at(ROOT, "d")).unwrap();
    assert_eq!(two.lookup(&at(dir, "f7")).unwrap_err().errno(), Errno::NOENT);
    assert_eq!(two.create(&at(dir, "f7"), &file()).unwrap_err().errno(), Errno::NOENT);
    assert_eq!(two.list(dir, 0, 9).unwrap_err().errno(), Errno::NOENT);
    assert_eq!(looks.shards().unwrap(), [ROOT], "nothing is left");
}

/// What one node changes in a bucket changes the directory's time for all, and a time that is set stays.
#[test]
fn the_time_of_a_directory_with_buckets_is_that_of_its_last_change() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let (one, two, dir) = nodes(&server, ENTRIES_MAX + 1);
    let time = |names: &Namespace| names.directory(dir).unwrap().attributes.mtime_ns;
    for round in 0..6 {
        for (names, other) in [(&one, &two), (&two, &one)] {
            let before = time(other);
            names.create(&at(dir, &format!("new{round}")), &file()).unwrap();
            assert!(time(other) > before, "round {round}");
            assert!(time(names) > before, "round {round}");
            let before = time(other);
            names.unlink(&at(dir, &format!("new{round}"))).unwrap();
            assert!(time(other) > before, "round {round}");
        }
        let set = AttributeUpdate { mtime_ns: Some(round), ..AttributeUpdate::default() };
        let names = if round % 2 == 0 { &one } else { &two };
        names.attributes().set_attributes(&at(ROOT, "d"), &set).unwrap();
        assert_eq!((time(&one), time(&two)), (round, round));
        // Attributes of files are no change of the directory.
        let mode = AttributeUpdate { mode: Some(0o600), ..AttributeUpdate::default() };
        one.attributes().set_attributes(&at(dir, "f1"), &mode).unwrap();
        two.attributes().set_attributes(&at(dir, "f2"), &mode).unwrap();
        assert_eq!((time(&one), time(&two)), (round, round));
    }
}

/// As `i15_nobody_sees_what_was_before_an_answer`, in a directory that is split meanwhile.
#[test]
fn i15_nobody_sees_what_was_before_an_answer_in_a_directory_that_is_split() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let (one, two, dir) = nodes(&server, ENTRIES_MAX - 6);
    let f = at(dir, "f0");
    let (answered, is_done) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for names in [&one, &two, &two] {
            let (answered, is_done, f) = (&answered, &is_done, &f);
            scope.spawn(move || {
                while !is_done.load(Ordering::SeqCst) {
                    let before = answered.load(Ordering::SeqCst);
                    let listed = list(names, dir, 50).len() as u64;
                    assert!(listed >= ENTRIES_MAX - 6 + before, "{listed} of {before} new ones");
                    for _ in 0..50 {
                        let before = answered.load(Ordering::SeqCst);
                        let size = names.lookup(f).unwrap().attributes.size;
                        assert!(size >= before, "{size}, though {before} was answered");
                        if before > 0 {
                            names.lookup(&at(dir, &format!("new{before}"))).unwrap();
                        }
                    }
                }
            });
        }
        let _done = SetOnDrop(&is_done);
        for number in 1..=12 {
            let names = if number % 2 == 0 { &one } else { &two };
            let changes = AttributeUpdate { size: Some(number), ..AttributeUpdate::default() };
            names.attributes().set_attributes(&f, &changes).unwrap();
            names.create(&at(dir, &format!("new{number}")), &file()).unwrap();
            answered.store(number, Ordering::SeqCst);
            thread::sleep(std::time::Duration::from_millis(number * 37));
        }
    });
    let looks = store(&server);
    looks.refresh().unwrap();
    assert!(buckets_of(&*looks, dir).is_some());
}

/// Several nodes fill one directory at once: one of them splits it, and nothing is lost.
#[test]
fn i15_many_make_names_in_a_directory_while_it_is_split() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let (one, two, dir) = nodes(&server, 0);
    thread::scope(|scope| {
        for thread in 0..4 {
            let names = if thread % 2 == 0 { &one } else { &two };
            scope.spawn(move || {
                for number in 0..40 {
                    let name = at(dir, &format!("f{}", thread * 40 + number));
                    names.create(&name, &file()).unwrap();
                    let changes =
                        AttributeUpdate { size: Some(number), ..AttributeUpdate::default() };
                    names.attributes().set_attributes(&name, &changes).unwrap();
                }
            });
        }
    });
    for names in [&one, &two] {
        assert_eq!(list(names, dir, 33).into_iter().collect::<BTreeSet<_>>(), expected(160));
    }
    let looks = store(&server);
    let found = clean(&*looks).unwrap();
    assert_eq!((found.contradictions, found.names), (0, 161), "{found:?}");
    assert_eq!(list(&one, dir, 33).len(), 160);
}

/// What a split leaves whose node died is removed; the buckets of a directory are not, even if that lost its name.
#[test]
fn a_check_removes_only_buckets_that_nobody_has() {
    let names = MemoryNames::default().splitting_from(Some(3));
    Namespace::format(&names, &directory()).unwrap();
    let store = Arc::new(names);
    let one = node(Arc::clone(&store) as _, 1, WaitLimit::default());
    let dir = one.make_directory(&at(ROOT, "d"), &directory()).unwrap().inode;
    for number in 0..9 {
        one.create(&at(dir, &format!("f{number}")), &file()).unwrap();
    }
    let buckets = buckets_of(&*store, dir).unwrap();
    let left = InodeNumber(1 << 40);
    store.run(left, &Script::Make(Body::bucket(dir))).unwrap();
    let entry = match store.run(buckets.of(&"f1".into()).unwrap(), &Script::List(0, 1)).unwrap() {
        Answer::Entries { entries, .. } => entries,
        other => panic!("{other:?}"),
    };
    store.run(left, &Script::Fill(entry)).unwrap();
    let found = clean(&*store).unwrap();
    assert_eq!((found.contradictions, found.leftovers), (0, 1), "{found:?}");
    assert_eq!(list(&one, dir, 4).len(), 9);
    // The directory has lost its name, which no change of ours does.
    let forged = halocline_model::namespace::Change::Name(
        "d".into(),
        Some(halocline_model::namespace::Entry::Directory(dir)),
        None,
    );
    assert_eq!(store.run(ROOT, &Script::Alone(vec![forged])).unwrap(), Answer::Done);
    let found = clean(&*store).unwrap();
    assert_eq!((found.contradictions, found.leftovers), (1, 0), "{found:?}");
    assert_eq!(list(&one, dir, 4).len(), 9, "it still has its names");
}

/// A directory that cannot be split now, because somebody always changes it first, grows instead.
#[test]
fn a_directory_in_which_attributes_keep_changing_grows() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let (one, two, dir) = nodes(&server, ENTRIES_MAX);
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let _done = SetOnDrop(&is_done);
        for thread in 0..3_u64 {
            let (two, is_done) = (&two, &is_done);
            scope.spawn(move || {
                for size in 0.. {
                    if is_done.load(Ordering::SeqCst) {
                        return;
                    }
                    let changes =
                        AttributeUpdate { size: Some(size), ..AttributeUpdate::default() };
                    let name = at(dir, &format!("f{thread}"));
                    two.attributes().set_attributes(&name, &changes).unwrap();
                }
            });
        }
        for number in ENTRIES_MAX..ENTRIES_MAX + 60 {
            one.create(&at(dir, &format!("f{number}")), &file()).unwrap();
        }
    });
    assert_eq!(list(&one, dir, 33).into_iter().collect::<BTreeSet<_>>(), expected(80));
    assert_eq!(list(&two, dir, 33).len(), 80);
}

/// A check begins an epoch while a node splits a directory, and takes its buckets for leftovers: they are not used.
#[test]
fn a_split_that_a_check_comes_between_is_begun_anew() {
    #[derive(Debug)]
    struct Checked {
        store: MemoryNames,
        other: MemoryNames,
        at: u64,
        sent: AtomicU64,
    }
    impl NameStore for Checked {
        fn run(
            &self,
            shard: InodeNumber,
            script: &Script,
        ) -> halocline_cluster::names::Result<Answer> {
            if self.sent.fetch_add(1, Ordering::SeqCst) == self.at {
                clean(&self.other).unwrap();
            }
            self.store.run(shard, script)
        }
        fn refresh(&self) -> halocline_cluster::names::Result<halocline_cluster::names::State> {
            self.store.refresh()
        }
        fn begin_epoch(&self, is_alone: bool) -> halocline_cluster::names::Result<()> {
            self.store.begin_epoch(is_alone)
        }
        fn reserve(&self, count: u64) -> halocline_cluster::names::Result<u64> {
            self.store.reserve(count)
        }
        fn shards(&self) -> halocline_cluster::names::Result<Vec<InodeNumber>> {
            self.store.shards()
        }
        fn inspect(
            &self,
            shard: InodeNumber,
        ) -> halocline_cluster::names::Result<Option<halocline_cluster::names::InspectedShard>>
        {
            self.store.inspect(shard)
        }
        fn remove(&self, shard: InodeNumber) -> halocline_cluster::names::Result<()> {
            self.store.remove(shard)
        }
        fn round_trips(&self) -> u64 {
            self.store.round_trips()
        }
    }
    for at_script in 0..60 {
        let first = MemoryNames::default().splitting_from(Some(ENTRIES_MAX));
        Namespace::format(&first, &directory()).unwrap();
        let other = first.for_another_node();
        let one = node(Arc::new(first.for_another_node()), 1, WaitLimit::default());
        let dir = one.make_directory(&at(ROOT, "d"), &directory()).unwrap().inode;
        for number in 0..ENTRIES_MAX {
            one.create(&at(dir, &format!("f{number}")), &file()).unwrap();
        }
        let checked = Checked { store: first, other, at: at_script, sent: AtomicU64::new(0) };
        checked.refresh().unwrap();
        let two = node(Arc::new(checked), 2, WaitLimit::default());
        two.create(&at(dir, "f20"), &file()).unwrap();
        assert_eq!(list(&two, dir, 8).into_iter().collect::<BTreeSet<_>>(), expected(21));
        assert_eq!(list(&one, dir, 8).into_iter().collect::<BTreeSet<_>>(), expected(21));
    }
}
