//! Files with several names: what moves, what stays, and what programs see.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use halocline_api::control::{Controlled, RuleChange};
use halocline_vfs::{Engine, Make};

use crate::faults::{Fault, Injected};
use crate::fixture::{BY, CALLER, Fixture, files_below, limited};

/// Names that a file may have and still move.
const NAMES_MAX: u64 = 1024;

impl Fixture {
    /// Asserts that files have as many names as `st_nlink` says, and that what has the same bytes is
    /// one file, where it is small: none of the tests has two such.
    pub(super) fn check_names(&self, context: &dyn Fn() -> String) {
        let mut names: BTreeMap<u64, (u64, Vec<u8>)> = BTreeMap::new();
        let mut numbers: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
        for file in self.tier().files(Path::new("")).unwrap() {
            let path = file.path.to_str().unwrap();
            let vnode = self.vnode(path).unwrap();
            let number = self.tier().key(&vnode).1;
            let bytes = self.content(path).unwrap();
            if (1..100).contains(&bytes.len()) {
                let first = *numbers.entry(bytes.clone()).or_insert(number);
                assert_eq!(first, number, "{}: {path} is a file of its own", context());
            }
            let known = names.entry(number).or_insert((0, bytes.clone()));
            assert_eq!(known.1, bytes, "{}: {path} is another file", context());
            known.0 += 1;
        }
        for file in self.tier().files(Path::new("")).unwrap() {
            let path = file.path.to_str().unwrap();
            let (stat, number) = self.stat(path);
            assert_eq!(stat, names[&number].0, "{}: st_nlink of {path}", context());
        }
    }

    /// How many names a file has, and its number.
    fn stat(&self, path: &str) -> (u64, u64) {
        let vnode = self.vnode(path).unwrap();
        let stat = self.tier().stat(&vnode, None).unwrap();
        (stat.raw.st_nlink, self.tier().key(&vnode).1)
    }

    fn link(&self, from: &str, to: &str) {
        let (vnode, (dir, name)) = (self.vnode(from).unwrap(), self.at(to));
        let before = self.stat(from).0;
        let stat = self.tier().link(&vnode, &dir, name).unwrap();
        assert_eq!(stat.raw.st_nlink, before + 1, "{from} to {to}");
    }

    fn unlink(&self, path: &str) {
        let (dir, name) = self.at(path);
        self.tier().unlink(&dir, name, CALLER).unwrap();
    }

    fn rename(&self, from: &str, to: &str) {
        let (from, to) = (self.at(from), self.at(to));
        self.tier().rename((&from.0, from.1), (&to.0, to.1), 0, CALLER).unwrap();
    }

    fn make_dir(&self, path: &str) {
        let (dir, name) = self.at(path);
        self.tier().make((&dir, name), Make::Directory(0o755), BY).unwrap();
    }
}

/// A file with three names in two directories, on the SSD.
fn three_names() -> Fixture {
    let fixture = Fixture::new(limited(1 << 20));
    fixture.make_dir("dir");
    fixture.write("one", b"content");
    fixture.link("one", "dir/two");
    fixture.link("dir/two", "three");
    fixture
}

#[test]
fn all_names_of_a_file_move_together() {
    let mut fixture = three_names();
    let (count, number) = fixture.stat("one");
    assert_eq!(count, 3);
    let handle = fixture.open_file("three", libc::O_RDWR);
    for (round, up) in [false, true, false, false, true, true].into_iter().enumerate() {
        let moved = if up { fixture.warm("") } else { fixture.demote("dir/two") };
        assert_eq!(moved.skipped.len(), 0, "{moved:?}");
        let tier = usize::from(!up);
        let bytes = format!("round {round}").into_bytes();
        if round < 3 {
            fixture.tier().write(&handle, 0, &bytes, CALLER).unwrap();
        }
        for path in ["one", "dir/two", "three"] {
            assert_eq!(fixture.where_is(path), tier, "{path}");
            assert_eq!(fixture.stat(path), (3, number), "{path} in round {round}");
            let content = fixture.content(path).unwrap();
            assert_eq!(content, fixture.content("one").unwrap(), "{path} in round {round}");
            assert!(round > 2 || content.starts_with(&bytes), "{path} in round {round}");
        }
        fixture.check_places();
        if round >= 2 {
            fixture.open();
            assert_eq!(fixture.found.problems, []);
        }
    }
    let bytes = fixture.used();
    assert_eq!(bytes, fs::metadata(fixture.ssd("one")).unwrap().blocks() * 512, "counted once");
}

#[test]
fn names_of_a_lower_file_are_made_renamed_and_removed() {
    let mut fixture = Fixture::new(limited(1 << 20));
    fixture.make_dir("dir");
    fixture.write("one", b"content");
    fixture.demote("one");
    let number = fixture.stat("one").1;
    fixture.link("one", "two");
    fixture.link("two", "dir/three");
    assert_eq!(fixture.where_is("two"), 1, "the file stays where it is");
    for _ in 0..2 {
        for path in ["one", "two", "dir/three"] {
            assert_eq!(fixture.stat(path), (3, number), "{path}");
            assert_eq!(fixture.content(path).unwrap(), b"content");
        }
        fixture.open();
        assert_eq!(fixture.found.problems, []);
    }
    // Two names of one file: POSIX wants nothing to happen.
    fixture.rename("one", "two");
    assert_eq!(fixture.stat("one"), (3, number));
    fixture.rename("one", "dir/four");
    fixture.write("other", b"other");
    fixture.rename("other", "two");
    assert_eq!(fixture.stat("dir/three"), (2, number));
    fixture.check_names(&String::new);
    fixture.open();
    assert_eq!(fixture.found.problems, []);
    fixture.unlink("dir/three");
    fixture.check_places();
    assert_eq!(fixture.content("dir/four").unwrap(), b"content");
    assert_eq!(fixture.stat("dir/four"), (1, number));
    let handle = fixture.open_file("dir/four", libc::O_RDONLY);
    let vnode = fixture.vnode("dir/four").unwrap();
    fixture.unlink("dir/four");
    assert_eq!(fixture.tier().stat(&vnode, None).unwrap().raw.st_nlink, 0);
    assert_eq!(fixture.read(&handle), b"content", "as long as it is open");
    drop((vnode, handle));
    fixture.check_places();
    fixture.open();
    assert_eq!((fixture.found.problems.len(), fixture.found.adopted.len()), (0, 0));
    assert_eq!(files_below(&fixture.hdd("")).len(), 0, "its data went with its last name");
}

#[test]
fn a_name_outside_the_tier_keeps_a_file_where_it_is() {
    let mut fixture = three_names();
    fs::hard_link(fixture.ssd("one"), fixture.dir.path().join("outside")).unwrap();
    fixture.open();
    let stays = |fixture: &Fixture| {
        let report = fixture.demote("one");
        assert_eq!((report.files, report.skipped.len()), (0, 1));
        assert!(report.skipped[0].reason.contains("4 names"), "{report:?}");
        assert_eq!(fixture.where_is("dir/two"), 0);
        let told = fixture.tier().explain_file(Path::new("one")).unwrap();
        assert_eq!((told.hard_links, told.known_names), (4, 3));
        assert!(told.reasons.iter().any(|why| why.contains("the mount knows 3")), "{told:?}");
    };
    stays(&fixture);
    // One that appears while it is mounted counts, too.
    fs::remove_file(fixture.dir.path().join("outside")).unwrap();
    assert_eq!(fixture.demote("one").files, 1);
    fixture.warm("one");
    fs::hard_link(fixture.ssd("one"), fixture.dir.path().join("outside")).unwrap();
    stays(&fixture);
    fs::remove_file(fixture.dir.path().join("outside")).unwrap();
    let told = fixture.tier().explain_file(Path::new("one")).unwrap();
    assert!(told.reasons.iter().any(|why| why.contains("move together")), "{told:?}");
}

#[test]
fn a_file_with_more_names_than_move_together_stays() {
    let fixture = Fixture::new(limited(1 << 20));
    fixture.write("file", b"content");
    for number in 1..NAMES_MAX {
        fixture.link("file", &format!("name{number}"));
    }
    assert_eq!(fixture.demote("name7").files, 1);
    assert_eq!(fixture.stat("name700").0, NAMES_MAX);
    fixture.check_places();
    assert_eq!(fixture.warm("").files, 1, "one file, whatever its names");
    fixture.link("file", "one too many");
    let report = fixture.demote("");
    assert!(report.skipped[0].reason.contains("no more than 1024"), "{report:?}");
    assert_eq!((report.files, report.skipped.len()), (0, 1));
}

#[test]
fn one_pinned_name_keeps_all_and_all_must_be_excluded() {
    let mut fixture = three_names();
    fixture.tier().change_rules(&RuleChange::Pin("dir/*".into())).unwrap();
    assert!(fixture.demote("one").skipped[0].reason.contains("pin"));
    assert!(!fixture.empties_the_ssd(), "what is pinned stays");
    fixture.open();
    assert_eq!(fixture.where_is("three"), 0);
    fixture.tier().change_rules(&RuleChange::Unpin("dir/*".into())).unwrap();
    fixture.tier().change_rules(&RuleChange::Exclude("dir/*".into())).unwrap();
    assert_eq!(fixture.where_is("one"), 0, "two of its names are not excluded");
    assert_eq!(fixture.demote("one").files, 1);
    assert_eq!(fixture.warm("one").files, 1);
    fixture.tier().change_rules(&RuleChange::Exclude("*".into())).unwrap();
    assert_eq!(fixture.where_is("one"), 1, "all are");
    assert!(fixture.warm("one").skipped[0].reason.contains("exclude"));
}

/// Names come, go and are renamed by one thread, bytes are written by another, while the file moves.
#[test]
fn names_may_change_while_a_file_with_several_moves() {
    let mut fixture = three_names();
    let (done, rounds) = (AtomicBool::new(false), 200);
    // A file that changes while it is copied stays: now and then the others wait, so that some moves
    // are made whatever the machine does.
    let turn = parking_lot::RwLock::new(());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let handle = fixture.open_file("three", libc::O_RDWR);
            for number in 0_u64.. {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                let _turn = turn.read();
                let bytes = number.to_le_bytes();
                fixture.tier().write(&handle, 0, &bytes, CALLER).unwrap();
                assert_eq!(fixture.read(&handle)[..8], bytes);
                let other = fixture.open_file("three", libc::O_RDONLY);
                assert_eq!(fixture.read(&other)[..8], bytes, "by another handle");
            }
        });
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let _turn = turn.read();
                fixture.link("one", "dir/more");
                fixture.rename("dir/more", "again");
                assert!((3..=4).contains(&fixture.stat("dir/two").0));
                fixture.unlink("again");
            }
        });
        let mut moved = 0;
        for round in 0..rounds {
            let _alone = (round % 10 == 0).then(|| turn.write());
            moved += fixture.demote("dir/two").files;
            moved += fixture.warm("dir/two").files;
        }
        done.store(true, Ordering::Relaxed);
        assert!(moved > 0);
    });
    let content = fixture.content("one").unwrap();
    for _ in 0..2 {
        fixture.check_names(&String::new);
        for path in ["one", "dir/two", "three"] {
            assert_eq!(fixture.stat(path).0, 3);
            assert_eq!(fixture.content(path).unwrap(), content);
        }
        fixture.open();
        assert_eq!(fixture.found.problems, []);
    }
    fixture.check_places();
}

/// Two programs remove the last two names, or one does while the other makes another: the data goes
/// with the last of them, and not before.
#[test]
fn a_files_data_goes_with_its_last_name_whoever_removes_it() {
    let mut fixture = Fixture::new(limited(1 << 20));
    for round in 0..300 {
        let below = round % 2 == 0;
        fixture.write("one", b"content");
        fixture.link("one", "two");
        if below {
            fixture.demote("one");
        }
        let links = round % 3 == 0;
        let vnode = fixture.vnode("one").unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| fixture.unlink("one"));
            scope.spawn(|| fixture.unlink("two"));
            let (root, three) = fixture.at("three");
            // The file may be gone.
            let _linked = links && fixture.tier().link(&vnode, &root, three).is_ok();
        });
        drop(vnode);
        fixture.reap().unwrap();
        if let Some(content) = fixture.content("three") {
            assert_eq!(content, b"content", "in round {round}");
            assert_eq!(fixture.stat("three").0, 1, "in round {round}");
            fixture.unlink("three");
        }
        fixture.check_places();
    }
    assert_eq!(fixture.used(), 0);
    fixture.open();
    assert_eq!((fixture.found.problems.len(), fixture.found.adopted.len()), (0, 0));
}

/// The SSD fails in the middle of a cutover, and its being taken back fails too.
#[test]
fn i10_torn_names_are_not_changed_and_the_next_mount_mends_them() {
    let mut steps = 0;
    for up in [false, true] {
        for after in 0.. {
            let mut fixture = three_names();
            if up {
                fixture.demote("one");
            }
            let fault = Fault { after, errno: rustix::io::Errno::IO, for_good: true, hit: None };
            let injected = Injected::of(fault);
            fixture.watch(injected.clone());
            if up {
                fixture.warm("one")
            } else {
                fixture.demote("one")
            };
            fixture.unwatch();
            let fault = injected.fault();
            let Some((0, _)) = fault.hit else {
                if fault.hit.is_none() {
                    break;
                }
                continue;
            };
            let context = || format!("{up}, {fault:?}");
            let names = ["one", "dir/two", "three"];
            let told: Vec<_> = names.iter().map(|path| fixture.content(path)).collect();
            assert!(told.iter().all(|told| told.as_deref() == Some(b"content")), "{}", context());
            let mut expected = b"content".to_vec();
            let written: Vec<bool> = names
                .iter()
                .map(|path| {
                    let flags = libc::O_RDWR;
                    let handle = fixture.tier().open(&fixture.vnode(path).unwrap(), flags, CALLER);
                    let bytes = path.as_bytes();
                    let wrote = fixture.tier().write(&handle.unwrap(), 0, bytes, CALLER).is_ok();
                    if wrote {
                        expected[..bytes.len()].copy_from_slice(bytes);
                    }
                    wrote
                })
                .collect();
            assert!(written.iter().all(|done| *done == written[0]), "{}: {written:?}", context());
            steps += usize::from(!written[0]);
            fixture.open();
            for path in names {
                assert_eq!(fixture.content(path).unwrap(), expected, "{path}: {}", context());
            }
            fixture.assert_in_order(&context);
        }
    }
    assert!(steps > 4, "only {steps} steps tore the names");
}

/// The tiers are mounted by another path.
#[test]
fn names_stay_together_where_the_root_has_moved() {
    let mut fixture = three_names();
    fixture.demote("one");
    let number = fixture.stat("one").1;
    fixture.held.lock().clear();
    fixture.tier = None;
    let other = tempfile::tempdir().unwrap();
    for tier in ["ssd", "hdd"] {
        fs::rename(fixture.dir.path().join(tier), other.path().join(tier)).unwrap();
    }
    fixture.dir = other;
    for _ in 0..2 {
        fixture.open();
        assert_eq!(fixture.found.problems, []);
        for path in ["one", "dir/two", "three"] {
            assert_eq!(fixture.stat(path), (3, number), "{path}");
            assert_eq!(fs::read(fixture.ssd(path)).unwrap(), b"content", "without us, too");
        }
        fixture.check_places();
    }
}
