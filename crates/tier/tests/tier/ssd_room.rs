//! Room on the SSD: who makes it, for whom, and who stays.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use halocline_api::config::CacheSize;
use halocline_api::control::tier::PRIVATE;
use halocline_api::control::{Controlled, JobChange, MoveReport, RuleChange};
use halocline_tier::{Chore, TierOptions};
use halocline_vfs::Engine;

use crate::fixture::{BY, CALLER, Fixture, limited};

/// What could never come to the SSD pushes nothing out.
#[test]
fn no_room_is_made_for_a_file_larger_than_the_ssd() {
    let fixture = Fixture::new(limited(256 << 10));
    fixture.write("large", &vec![1; 512 << 10]);
    fixture.write("small", &[2; 4096]);
    assert_eq!(fixture.warm("large").skipped.len(), 1);
    let (root, name) = fixture.at("second");
    // Nor to make a hard link of it.
    let stat = fixture.tier().link(&fixture.vnode("large").unwrap(), &root, name).unwrap();
    assert_eq!(stat.raw.st_nlink, 2);
    assert_eq!((fixture.where_is("large"), fixture.where_is("small")), (1, 0));
}

/// I5, and no program fails while a lower tier has room.
#[test]
fn i5_a_file_that_outgrows_the_ssd_spills_while_it_is_open() {
    let fixture = Fixture::new(limited(256 << 10));
    let tier = fixture.tier();
    let handle = fixture.create("big");
    let block = vec![7; 64 << 10];
    for number in 0..16 {
        tier.write(&handle, number * block.len() as u64, &block, CALLER).unwrap();
        assert!(fixture.used() <= 256 << 10);
    }
    assert_eq!(fixture.where_is("big"), 1);
    assert_eq!(fixture.read(&handle), vec![7; 1 << 20]);
    // Removed files spill too, and an append in pieces keeps its order.
    let nameless = fixture.create("gone");
    let (root, name) = fixture.at("gone");
    tier.unlink(&root, name, CALLER).unwrap();
    for number in 0..8u8 {
        tier.write(&nameless, u64::from(number) << 16, &vec![number; 64 << 10], CALLER).unwrap();
    }
    let bytes = fixture.read(&nameless);
    assert!((0..8u8).all(|number| bytes[usize::from(number) << 16] == number));
    drop((handle, nameless));
    assert_eq!(fixture.used(), 0, "nothing is left on the SSD");
    fixture.check_places();
}

#[test]
fn a_full_ssd_makes_room_for_what_is_used_again() {
    let fixture = Fixture::new(TierOptions { policy: "lru".into(), ..limited(512 << 10) });
    for number in 0..4 {
        fixture.write(&format!("f{number}"), &vec![number; 120 << 10]);
    }
    fixture.demote("f0");
    fixture.write("f4", &vec![4; 120 << 10]);
    // f0 comes back, and f1 is what was longest unused.
    let handle = fixture.open_file("f0", libc::O_RDONLY);
    assert_eq!(fixture.read(&handle), vec![0; 120 << 10]);
    let places: Vec<usize> = (0..5).map(|number| fixture.where_is(&format!("f{number}"))).collect();
    assert_eq!(places, [0, 1, 0, 0, 0]);
    let opens = fixture.tier().tier_status().unwrap().opens;
    assert_eq!((opens.promoted, opens.in_place), (1, 0));
    fixture.check_places();
}

#[test]
fn pins_stay_excludes_go_and_a_pin_that_is_too_large_is_refused() {
    let fixture = Fixture::new(limited(256 << 10));
    let tier = fixture.tier();
    fixture.write("keep.idx", &vec![1; 64 << 10]);
    tier.change_rules(&RuleChange::Pin("*.idx".into())).unwrap();
    assert!(fixture.demote("keep.idx").skipped[0].reason.contains("pin"));
    fixture.write("out.log", b"log");
    tier.change_rules(&RuleChange::Exclude("*.log".into())).unwrap();
    assert_eq!(fixture.where_is("out.log"), 1);
    fixture.write("new.log", b"log");
    assert_eq!(fixture.where_is("new.log"), 1);
    drop(fixture.open_file("new.log", libc::O_RDONLY));
    assert_eq!(fixture.where_is("new.log"), 1);
    fixture.write("huge.bin", &vec![1; 600 << 10]);
    let refused = tier.change_rules(&RuleChange::Pin("huge.*".into())).unwrap_err();
    assert!(refused.to_string().contains("--ssd-limit"), "{refused}");
    assert!(!fs::exists(fixture.ssd(PRIVATE).join("rules.json.new")).unwrap());
}

/// What would be moved was told without a look at what keeps files where they are.
#[test]
fn a_dry_run_tells_what_stays() {
    let fixture = Fixture::new(limited(256 << 10));
    let tier = fixture.tier();
    for name in ["pinned", "linked", "free", "away", "out"] {
        fixture.write(name, b"some");
    }
    fixture.write("large", &vec![1; 400 << 10]);
    fixture.demote("away");
    let (root, two) = fixture.at("two");
    tier.link(&fixture.vnode("linked").unwrap(), &root, two).unwrap();
    fs::hard_link(fixture.ssd("linked"), fixture.dir.path().join("outside")).unwrap();
    tier.change_rules(&RuleChange::Pin("pinned".into())).unwrap();
    tier.change_rules(&RuleChange::Exclude("out".into())).unwrap();
    let names = |report: &MoveReport| -> Vec<String> {
        report.skipped.iter().map(|skipped| skipped.path.display().to_string()).collect()
    };
    let all = Path::new("");
    for dry_run in [true, false] {
        let sink = &mut |_| ControlFlow::Continue(());
        let brought = tier.warm(&[all.into()], dry_run, sink).unwrap();
        assert_eq!((brought.files, names(&brought)), (1, vec!["large".into(), "out".into()]));
    }
    for dry_run in [true, false] {
        let sent = tier.evict(all, dry_run, &mut |_| ControlFlow::Continue(())).unwrap();
        let stay = ["linked", "pinned"].map(str::to_owned).to_vec();
        assert_eq!((sent.files, names(&sent)), (2, stay));
    }
}

/// The last files of a list pushed out its first ones, all of them copied for nothing, and the answer
/// was that they had come.
#[test]
fn what_is_asked_for_does_not_push_out_what_was_asked_for() {
    let names = ["a", "b", "c", "d", "e", "f"];
    let fixture = with_room_for_four("lru", &names);
    fixture.write("other", &vec![1; 120 << 10]);
    let twice: Vec<PathBuf> = names.iter().chain(&names).map(PathBuf::from).collect();
    let report = fixture.tier().warm(&twice, false, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!((report.files, report.skipped.len()), (4, 2), "{report:?}");
    assert!(report.skipped[0].reason.contains("no room"), "{report:?}");
    assert_eq!(names.map(|name| fixture.where_is(name)), [0, 0, 0, 0, 1, 1]);
    assert_eq!(fixture.where_is("other"), 1);
}

/// What was told to have come was demoted again at once, because it filled the SSD above the watermark.
#[test]
fn what_is_brought_is_not_demoted_for_the_watermark() {
    let fixture = Fixture::new(limited(2 << 20));
    let names: Vec<String> = (0..40).map(|number| format!("f{number}")).collect();
    for name in &names {
        fixture.write(name, &vec![1; 60 << 10]);
        fixture.demote(name);
    }
    let report = fixture.warm("");
    assert!(report.files > 20 && !report.skipped.is_empty(), "{report:?}");
    assert!(fixture.used() <= fixture.tier().tier_status().unwrap().high_bytes);
    fixture.work(Chore::Demote);
    let here = names.iter().filter(|name| fixture.where_is(name) == 0).count();
    assert_eq!(here as u64, report.files);
    assert_eq!(fixture.warm("").files, 0, "nothing is copied again and again");
}

/// A glob that matched directories only was answered with nothing done, and success.
#[test]
fn a_glob_that_matches_no_file_is_refused() {
    let fixture = Fixture::new(limited(1 << 20));
    let (root, name) = fixture.at("dir");
    fixture.tier().make((&root, name), halocline_vfs::Make::Directory(0o755), BY).unwrap();
    fixture.write("dir/file", b"x");
    let evict = |glob: &str| {
        fixture.tier().evict(Path::new(glob), false, &mut |_| ControlFlow::Continue(()))
    };
    let refused = evict("d*").unwrap_err().to_string();
    assert!(refused.contains("\"d*\"") && refused.contains("**"), "{refused}");
    assert_eq!(evict("d*/**").unwrap().files, 1);
}

/// A sparse file takes the room of its data.
#[test]
fn holes_take_no_room_of_the_limit() {
    let fixture = Fixture::new(limited(1 << 20));
    let handle = fixture.create("sparse");
    fixture.tier().write(&handle, 1 << 40, b"end", CALLER).unwrap();
    drop(handle);
    assert!(fixture.demote("sparse").bytes < 1 << 20);
    assert!(fixture.warm("sparse").bytes < 1 << 20);
    fixture.tier().change_rules(&RuleChange::Pin("sparse".into())).unwrap();
}

/// A file tier that four of the files fit into, and files on the lower tier that will want in.
fn with_room_for_four(policy: &str, below: &[&str]) -> Fixture {
    // To the last byte: nothing is kept free for the background.
    let options = TierOptions { policy: policy.into(), high: 100.0, ..limited(512 << 10) };
    let fixture = Fixture::new(options);
    for name in below {
        fixture.write(name, &vec![1; 120 << 10]);
        fixture.demote(name);
    }
    fixture
}

/// Opens a file that is not on the SSD so that it comes, and tells which of `others` left for it.
fn leaves_for<'o>(fixture: &Fixture, file: &str, others: &[&'o str]) -> Vec<&'o str> {
    let here = |name: &&&str| fixture.where_is(name) == 0;
    let before: Vec<&str> = others.iter().filter(here).copied().collect();
    // Once is not enough for every policy.
    for _ in 0..2 {
        drop(fixture.open_file(file, libc::O_RDONLY));
    }
    assert_eq!(fixture.where_is(file), 0, "{file} comes");
    before.into_iter().filter(|name| fixture.where_is(name) == 1).collect()
}

/// The order in which files leave is kept from one open to the next; what rules say of a file may
/// change meanwhile.
#[test]
fn a_file_that_is_pinned_no_more_leaves_in_its_turn() {
    let fixture = with_room_for_four("lru", &["one", "two", "three", "four"]);
    let tier = fixture.tier();
    for dir in ["keep", "sub"] {
        let (root, name) = fixture.at(dir);
        tier.make((&root, name), halocline_vfs::Make::Directory(0o755), BY).unwrap();
    }
    for (file, pin) in [("keep/a", "keep/*"), ("sub/b", "sub/*"), ("c", "c")] {
        fixture.write(file, &vec![1; 120 << 10]);
        tier.change_rules(&RuleChange::Pin(pin.into())).unwrap();
    }
    fixture.write("d", &vec![1; 120 << 10]);
    let rename = |from, to| {
        let ((old_dir, old), (new_dir, new)) = (fixture.at(from), fixture.at(to));
        tier.rename((&old_dir, old), (&new_dir, new), 0, CALLER).unwrap();
    };
    assert_eq!(leaves_for(&fixture, "one", &["keep/a", "sub/b", "c", "d"]), ["d"]);
    rename("keep/a", "a");
    assert_eq!(leaves_for(&fixture, "two", &["a", "sub/b", "c", "one"]), ["a"]);
    rename("sub", "other");
    assert_eq!(leaves_for(&fixture, "three", &["other/b", "c", "one", "two"]), ["other/b"]);
    tier.change_rules(&RuleChange::Unpin("c".into())).unwrap();
    assert_eq!(leaves_for(&fixture, "four", &["c", "one", "two", "three"]), ["c"]);
    fixture.check_places();
}

/// So may what jobs say.
#[test]
fn a_file_stays_while_a_job_wants_it() {
    let fixture = with_room_for_four("foresight", &["one", "two", "three"]);
    let residents = ["a", "b", "c", "d"];
    for file in residents {
        fixture.write(file, &vec![1; 120 << 10]);
    }
    assert_eq!(leaves_for(&fixture, "one", &residents), ["a"]);
    let job = r#"{"job": "job", "references": ["b", "d"]}"#;
    fixture.tier().change_jobs(&JobChange::Add(job.into())).unwrap();
    assert_eq!(leaves_for(&fixture, "two", &["b", "c", "d", "one"]), ["c"]);
    // It skips one.
    drop(fixture.open_file("d", libc::O_RDONLY));
    assert_eq!(leaves_for(&fixture, "three", &["b", "d", "one", "two"]), ["b"]);
    fixture.check_places();
}

/// The paper's worked example through the engine: references announced by a job, files opened in
/// their order.
#[test]
fn the_heuristic_keeps_what_the_papers_example_keeps() {
    // Bytes scaled so that what is kept for a file's own attributes does not count.
    const UNIT: usize = 1 << 20;
    let options = TierOptions { policy: "heuristic".into(), ..limited(101 * UNIT as u64) };
    let fixture = Fixture::new(options);
    for (name, size) in [("F1", 20), ("F2", 40), ("F3", 9), ("F4", 40)] {
        fixture.write(name, &vec![1; size * UNIT]);
        assert_eq!(fixture.demote(name).skipped, []);
    }
    let order = ["F1", "F2", "F3", "F4", "F3", "F1", "F2", "F4", "F3"];
    let job = serde_json::json!({ "job": "example", "references": order }).to_string();
    fixture.tier().change_jobs(&JobChange::Add(job)).unwrap();
    for file in order {
        drop(fixture.open_file(file, libc::O_RDONLY));
    }
    let opens = fixture.tier().tier_status().unwrap().opens;
    assert_eq!((opens.promoted, opens.hits, opens.in_place), (4, 3, 2));
    assert_eq!(["F1", "F2", "F3", "F4"].map(|file| fixture.where_is(file)), [0, 0, 1, 0]);
}

/// The SSD was emptied where it held more than the limit: what was above it was asked for twice.
#[test]
fn where_the_ssd_holds_more_than_the_limit_only_the_excess_leaves() {
    let mut fixture = Fixture::new(TierOptions { policy: "lru".into(), ..limited(2 << 20) });
    let names: Vec<String> = (0..8).map(|number| format!("f{number}")).collect();
    for name in &names {
        fixture.write(name, &vec![1; 128 << 10]);
    }
    let here = |fixture: &Fixture| names.iter().filter(|name| fixture.where_is(name) == 0).count();
    fixture.options.limit = CacheSize::Bytes(580 << 10);
    fixture.open();
    assert!(fixture.work(Chore::Demote), "in vain");
    assert_eq!(here(&fixture), 4);
    // A file that is brought to an SSD above its limit pushes out what it must, and comes.
    fixture.options.limit = CacheSize::Bytes(400 << 10);
    fixture.open();
    let away = names.iter().find(|name| fixture.where_is(name) == 1).unwrap();
    drop(fixture.open_file(away, libc::O_RDONLY));
    assert_eq!((fixture.where_is(away), here(&fixture)), (0, 3));
    fixture.check_places();
}
