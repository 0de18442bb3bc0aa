//! What `status` and `explain` tell.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use parking_lot::Mutex;

use halocline_api::control::tier::{MoveNow, ReadsAndWrites};
use halocline_api::control::{Controlled, FileExplanation, JobChange, Progress, RuleChange};
use halocline_os::error::Result;
use halocline_tier::Watcher;
use halocline_vfs::Engine;

use crate::fixture::{CALLER, Fixture, limited};

impl Fixture {
    fn why(&self, path: &str) -> FileExplanation {
        self.tier().explain_file(Path::new(path)).unwrap()
    }
}

fn says(sentences: &[String], part: &str) -> bool {
    sentences.iter().any(|sentence| sentence.contains(part))
}

#[test]
fn requests_are_counted_where_they_were_served() {
    let fixture = Fixture::new(limited(1 << 20));
    fixture.write("here", &[1; 5000]);
    fixture.read(&fixture.open_file("here", libc::O_RDONLY));
    let big = fixture.create("below");
    fixture.tier().write(&big, 0, &[2; 9000], CALLER).unwrap();
    fixture.demote("below");
    fixture.read(&big);
    fixture.tier().write(&big, 0, &[3; 100], CALLER).unwrap();
    let requests = fixture.tier().tier_status().unwrap().requests;
    let on_ssd = ReadsAndWrites { reads: 1, read_bytes: 5000, writes: 2, written_bytes: 14000 };
    let in_place = ReadsAndWrites { reads: 1, read_bytes: 9000, writes: 1, written_bytes: 100 };
    assert_eq!((requests.on_ssd, requests.in_place), (on_ssd, in_place));
}

#[test]
fn status_names_a_file_while_it_moves() {
    let fixture = Fixture::new(limited(64 << 20));
    fixture.write("file", &vec![1; 12 << 20]);
    let status = || fixture.tier().tier_status().unwrap();
    assert_eq!((status().moving, status().moving_rate), (vec![], 0));
    let seen = Mutex::new(Vec::new());
    fixture
        .tier()
        .evict(Path::new("file"), false, &mut |_: Progress| {
            seen.lock().push(status());
            ControlFlow::Continue(())
        })
        .unwrap();
    let seen = seen.into_inner();
    let MoveNow { path, from, to, done_bytes, total_bytes, .. } = seen[0].moving[0].clone();
    assert_eq!((path.as_path(), from, to), (Path::new("file"), 0, 1));
    assert_eq!(total_bytes, 12 << 20);
    assert!(done_bytes > 0 && done_bytes <= total_bytes, "{done_bytes}");
    assert!(seen[0].moving_rate > 0);
    assert_eq!(seen.last().unwrap().moving[0].done_bytes, total_bytes);
    assert_eq!(status().moving, vec![], "it has moved");
}

#[test]
fn a_file_on_the_ssd_is_explained() {
    let fixture = Fixture::new(limited(1 << 20));
    for name in ["a", "b", "c"] {
        fixture.write(name, &[1; 5000]);
    }
    let ranks: Vec<_> = ["a", "b", "c"].iter().map(|name| fixture.why(name).leaves_after).collect();
    let mut sorted: Vec<_> = ranks.iter().flatten().copied().collect();
    sorted.sort_unstable();
    assert_eq!(sorted, [0, 1, 2], "each has a rank of its own: {ranks:?}");
    let told = fixture.why("a");
    assert_eq!((told.file.tier, told.opens, told.may_leave, told.hard_links), (0, 1, Some(3), 1));
    assert!(told.last_open_ms.is_some() && told.jobs.is_empty() && told.stayed.is_none());
    assert!(says(&told.reasons, "of 3 files would leave before it"), "{told:?}");
    assert!(says(&told.remedies, "halocline demote"), "{told:?}");
    fixture.tier().change_rules(&RuleChange::Pin("a".into())).unwrap();
    let told = fixture.why("a");
    assert_eq!((told.file.pinned, told.leaves_after), (true, None));
    assert!(says(&told.reasons, "pin glob") && says(&told.remedies, "unpin"), "{told:?}");
    let (dir, name) = fixture.at("other");
    fixture.tier().link(&fixture.vnode("b").unwrap(), &dir, name).unwrap();
    let told = fixture.why("b");
    assert_eq!(told.hard_links, 2);
    assert!(says(&told.reasons, "hard links"), "{told:?}");
    let held = fixture.open_file("c", libc::O_RDONLY);
    assert_eq!((fixture.why("c").handles, fixture.why("c").opens), (1, 2));
    drop(held);
    assert_eq!(fixture.why("c").handles, 0);
}

#[test]
fn a_file_below_is_explained() {
    let fixture = Fixture::new(limited(1 << 20));
    fixture.write("file", &[1; 5000]);
    fixture.demote("file");
    let told = fixture.why("file");
    assert_eq!((told.file.tier, told.leaves_after, told.opens), (1, None, 1));
    assert!(says(&told.reasons, "opened once only"), "{told:?}");
    assert!(says(&told.remedies, "halocline warm"), "{told:?}");
    let job = r#"{"job": "j", "references": ["x", "file", "file"]}"#;
    fixture.tier().change_jobs(&JobChange::Add(job.into())).unwrap();
    let told = fixture.why("file");
    assert_eq!((told.jobs[0].coming, told.jobs[0].next), (2, Some(2)));
    assert!(says(&told.reasons, "job j wants it: 2 more times"), "{told:?}");
    fixture.tier().change_rules(&RuleChange::Exclude("file".into())).unwrap();
    let told = fixture.why("file");
    assert!(told.file.excluded && says(&told.reasons, "exclude glob"), "{told:?}");
    fixture.warm("file");
    std::fs::write(fixture.hdd("large"), vec![1; 2 << 20]).unwrap();
    let mut fixture = fixture;
    fixture.open();
    let told = fixture.why("large");
    assert!(told.too_large && says(&told.reasons, "larger than the SSD"), "{told:?}");
    assert_eq!(told.opens, 0);
    fixture.warm("large");
    assert!(fixture.tier().explain_file(Path::new("")).is_err(), "a directory");
    assert!(fixture.tier().explain_file(Path::new("nothing")).is_err());
}

#[test]
fn a_move_that_failed_is_remembered_until_one_succeeds() {
    let fixture = Fixture::new(limited(1 << 20));
    fixture.write("file", &[1; 5000]);
    let held = fixture.open_file("file", libc::O_RDONLY);
    let pass = &mut |_: std::os::fd::BorrowedFd<'_>| Ok(());
    assert!(fixture.tier().pass_through(&held, true, pass), "the kernel has it open now");
    assert_eq!(fixture.demote("file").files, 0);
    let told = fixture.why("file");
    assert!(told.file.passed_through && told.stayed_ms.is_some(), "{told:?}");
    assert!(told.stayed.unwrap().contains("until it is closed"));
    assert!(says(&told.remedies, "close it"));
    drop(held);
    assert_eq!(fixture.demote("file").files, 1);
    assert_eq!(fixture.why("file").stayed, None);
}

/// `explain` told of the limit only, and `status` nothing of a disk that takes no file.
#[test]
fn status_tells_what_each_tiers_file_system_has_free() {
    let fixture = Fixture::new(limited(1 << 30));
    fixture.write("file", &[1; 5000]);
    fixture.set_room(0, 1 << 20);
    assert!(fixture.why("file").ssd_free_bytes <= 1 << 20);
    assert_eq!(fixture.tier().status().notes, Vec::<String>::new());
    fixture.set_room(1, 0);
    let notes = fixture.tier().status().notes;
    let hdd = fixture.hdd("");
    let hdd = hdd.to_str().unwrap().trim_end_matches('/');
    assert!(notes.iter().any(|note| note.contains(hdd) && note.contains("df")), "{notes:?}");
}

/// Lets the first step of the demoter panic.
#[derive(Debug, Default)]
struct PanicsOnce(AtomicBool);

impl Watcher for PanicsOnce {
    fn before(&self, tier: usize, what: &'static str) -> Result<()> {
        let goes_on =
            thread::current().name() != Some("tier-demoter") || self.0.swap(true, Ordering::AcqRel);
        assert!(goes_on, "on purpose, before: {what} on tier {tier}");
        Ok(())
    }

    fn one_by_one(&self) -> bool {
        true
    }
}

/// The thread ended, nothing was demoted any more, and `status` said that all was well.
#[test]
fn a_demoter_that_panics_is_told_and_goes_on() {
    use halocline_api::control::Health;

    let mut fixture = Fixture::new(limited(1 << 20));
    fixture.own_threads = true;
    fixture.open();
    fixture.watch(Arc::<PanicsOnce>::default());
    fixture.write("old", &vec![1; 600 << 10]);
    fixture.write("new", &vec![2; 400 << 10]);
    let status = || fixture.tier().status();
    halocline_testkit::waiting::eventually(
        "the panic is told",
        || matches!(status().health, Health::Degraded { reason } if reason.contains("on purpose")),
    );
    let notes = status().notes;
    assert!(notes.iter().any(|note| note.contains("tier-demoter: a defect")), "{notes:?}");
    halocline_testkit::waiting::eventually("a demotion", || fixture.hdd("old").exists());
    assert_eq!(fixture.read(&fixture.open_file("old", libc::O_RDONLY)), vec![1; 600 << 10]);
    fixture.tier().close().unwrap();
}
