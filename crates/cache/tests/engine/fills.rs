//! A reader that never pauses is served by the cache: what it misses again is filled from the bytes
//! it was given, and nothing that changed meanwhile is (I1, I9), nor more than there is room (I5).

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use halocline_api::config::{Config, Emulation, Mode};
use halocline_api::control::{Controlled, Question, RuleChange, Side};
use halocline_cache::ExtentEngine;
use halocline_model::request::Direction;
use halocline_storage::device::fault::{Effect, Operation, When};
use halocline_vfs::Allocate;
use halocline_vfs::{Engine, SetAttr};

use crate::fixture::{Fixture, ME, still};
use crate::truth::{at, pattern};

const KIB: u64 = 1 << 10;
const BLOCK: u64 = 4 * KIB;
/// What takes this long never happens.
const FOR_EVER: Duration = Duration::from_mins(5);

/// Like [`still`], but what is read again is filled.
fn filling(size: u64, policy: &str) -> Config {
    Config { fill: true, ..still(size, policy) }
}

fn on_origin(fixture: &Fixture, name: &str, seed: u8, len: u64) {
    fs::write(fixture.origin.path().join(name), pattern(seed, 0, len)).unwrap();
}

fn cached_bytes(fixture: &Fixture, name: &str) -> u64 {
    let extents = fixture.engine().locate(Path::new(name), None).unwrap();
    extents.iter().filter(|e| e.side == Side::Cache).map(|e| e.length).sum()
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < FOR_EVER, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Passes over the same random requests until the cache serves one whole, without a fetch; `None` if
/// it never does.
fn passes_until_served(policy: &str) -> Option<u64> {
    const REQUESTS: u64 = 30;
    let emulation = Emulation::parse("hdd+ssd", |_| None).unwrap();
    let fixture = Fixture::new(Config { emulate: Some(emulation), ..filling(4 << 20, policy) });
    let len = 64 << 20;
    fs::File::create(fixture.origin.path().join("file")).unwrap().set_len(len).unwrap();
    let handle = fixture.handle("file");
    let offset = |number: u64| number * 7_919 % (len / BLOCK) * BLOCK;
    let mut buf = vec![0xEE; at(BLOCK)];
    (1..=12).find(|_| {
        let before = fixture.engine().report().read;
        for number in 0..REQUESTS {
            let got = fixture.engine().read(&handle, offset(number), &mut buf, ME).unwrap();
            assert!(got == buf.len() && buf.iter().all(|byte| *byte == 0));
        }
        let after = fixture.engine().report().read;
        after.cache_requests - before.cache_requests == REQUESTS
    })
}

#[test]
fn a_reader_that_never_pauses_is_served_by_the_cache_under_every_policy() {
    for policy in ["adaptive", "sla", "sla-paper", "s4d", "always"] {
        let passes = passes_until_served(policy);
        assert!(passes.is_some_and(|passes| passes > 1), "{policy}: {passes:?}");
    }
    assert_eq!(passes_until_served("never"), None);
}

type Handle = <ExtentEngine as Engine>::Handle;

/// A cache that has a fill of `file` waiting behind one that is stalled on the device.
struct Waiting {
    fixture: Fixture,
    handle: Handle,
    /// A close would wait for its fill.
    first: Handle,
}

impl Waiting {
    fn new() -> Self {
        Self::under(Mode::WriteBack)
    }

    fn under(mode: Mode) -> Self {
        let fixture = Fixture::new(Config { mode, ..filling(4 << 20, "always") });
        for name in ["first", "file", "last"] {
            on_origin(&fixture, name, 1, 8 * BLOCK);
        }
        let (first, handle) = (fixture.handle("first"), fixture.handle("file"));
        let faults = &fixture.cache_faults;
        faults.set(Some(Operation::Write), Effect::Stall, When::Always);
        let twice = |handle| {
            let mut found = vec![0; at(8 * BLOCK)];
            for _ in 0..2 {
                fixture.engine().read(handle, 0, &mut found, ME).unwrap();
                assert!(found == pattern(1, 0, 8 * BLOCK));
            }
        };
        twice(&first);
        until("a fill of what was read twice", || faults.stalled() > 0);
        twice(&handle);
        Self { fixture, handle, first }
    }

    /// Lets fills go on and waits until all that waited are dealt with.
    fn go_on(&self) {
        self.fixture.cache_faults.clear();
        until("fills in order", || {
            self.fixture.read("last", 0, at(8 * BLOCK));
            cached_bytes(&self.fixture, "last") == 8 * BLOCK
        });
        assert!(cached_bytes(&self.fixture, "first") == 8 * BLOCK);
    }

    /// What programs and the origin have of the file, now and after a kill.
    fn holds(self, bytes: &[u8]) {
        self.go_on();
        let Self { mut fixture, handle, first } = self;
        assert!(fixture.read("file", 0, at(9 * BLOCK)) == bytes, "I1: an old byte came back");
        drop((handle, first));
        fixture.crash();
        fixture.open();
        assert!(fixture.read("file", 0, at(9 * BLOCK)) == bytes, "I1: after a kill");
    }
}

#[test]
fn what_did_not_change_is_filled() {
    let waiting = Waiting::new();
    waiting.go_on();
    until("a fill", || cached_bytes(&waiting.fixture, "file") == 8 * BLOCK);
    waiting.holds(&pattern(1, 0, 8 * BLOCK));
}

#[test]
fn i1_a_write_before_the_fill_stays() {
    for length in [100, BLOCK, 8 * BLOCK] {
        // So that the write goes to the origin and does not wait behind the stalled fill.
        let waiting = Waiting::under(Mode::ReadOnly);
        let mut bytes = pattern(1, 0, 8 * BLOCK);
        bytes[..at(length)].copy_from_slice(&pattern(2, 0, length));
        let engine = waiting.fixture.engine();
        engine.write(&waiting.handle, 0, &bytes[..at(length)], ME).unwrap();
        waiting.holds(&bytes);
    }
}

#[test]
fn i1_a_change_of_size_or_a_hole_before_the_fill_stays() {
    let waiting = Waiting::new();
    let (fixture, handle) = (&waiting.fixture, &waiting.handle);
    let resize = |size| {
        let change = SetAttr { size: Some(size), ..SetAttr::default() };
        fixture.engine().set_attr(&fixture.vnode("file"), Some(handle), &change, ME).unwrap();
    };
    resize(3 * BLOCK);
    resize(8 * BLOCK);
    fixture.engine().allocate(handle, BLOCK, BLOCK, Allocate::PunchHole).unwrap();
    let mut bytes = pattern(1, 0, 8 * BLOCK);
    bytes[at(BLOCK)..at(2 * BLOCK)].fill(0);
    bytes[at(3 * BLOCK)..].fill(0);
    waiting.holds(&bytes);
}

#[test]
fn i9_a_change_behind_the_mount_before_the_fill_is_not_undone() {
    let waiting = Waiting::new();
    // Another size, so that a coarse clock hides nothing.
    on_origin(&waiting.fixture, "file", 3, 9 * BLOCK);
    waiting.go_on();
    // Through the open file: a look-up would discover the change.
    let mut found = vec![0; at(8 * BLOCK)];
    waiting.fixture.engine().read(&waiting.handle, 0, &mut found, ME).unwrap();
    assert!(found == pattern(3, 0, 8 * BLOCK), "I9: an old byte came back");
}

#[test]
fn a_removal_before_the_fill_leaves_nothing_behind() {
    let waiting = Waiting::new();
    let fixture = &waiting.fixture;
    fixture.engine().unlink(&fixture.engine().root(), std::ffi::OsStr::new("file"), ME).unwrap();
    on_origin(fixture, "file", 4, 8 * BLOCK);
    let Waiting { handle, .. } = &waiting;
    let mut old = vec![0; at(8 * BLOCK)];
    fixture.engine().read(handle, 0, &mut old, ME).unwrap();
    assert!(old == pattern(1, 0, 8 * BLOCK), "the open file is still there");
    waiting.holds(&pattern(4, 0, 8 * BLOCK));
}

#[test]
fn what_the_origin_did_not_give_is_no_byte_of_the_file() {
    let fixture = Fixture::new(filling(4 << 20, "always"));
    on_origin(&fixture, "file", 1, 8 * BLOCK);
    on_origin(&fixture, "last", 1, BLOCK);
    let handle = fixture.handle("file");
    // Of a file that we change nobody can tell whether others do, too.
    fixture.engine().write(&handle, 0, &pattern(1, 0, BLOCK), ME).unwrap();
    let shorter = fs::File::options().write(true).open(fixture.origin.path().join("file")).unwrap();
    shorter.set_len(2 * BLOCK).unwrap();
    let mut buf = vec![0; at(8 * BLOCK)];
    for _ in 0..4 {
        fixture.engine().read(&handle, 0, &mut buf, ME).unwrap();
    }
    until("fills in order", || {
        fixture.read("last", 0, at(BLOCK));
        cached_bytes(&fixture, "last") == BLOCK
    });
    shorter.write_all_at(&pattern(1, 0, 8 * BLOCK), 0).unwrap();
    fixture.engine().read(&handle, 0, &mut buf, ME).unwrap();
    assert!(buf == pattern(1, 0, 8 * BLOCK), "zeros were cached in place of what was missing");
}

/// Four times as much as the cache holds, over and over: under LRU each pass would evict all that
/// the one before brought, and wear the SSD for nothing.
#[test]
fn i5_a_loop_over_more_than_fits_wears_the_cache_within_bounds() {
    const ROOM: u64 = 256 * KIB;
    for eviction in ["lru", "s3fifo"] {
        let fixture =
            Fixture::new(Config { eviction: eviction.to_owned(), ..filling(ROOM, "always") });
        on_origin(&fixture, "file", 1, 4 * ROOM);
        let handle = fixture.handle("file");
        let mut buf = vec![0; at(BLOCK)];
        for _ in 0..20 {
            for offset in (0..4 * ROOM).step_by(at(BLOCK)) {
                fixture.engine().read(&handle, offset, &mut buf, ME).unwrap();
                assert!(buf == pattern(1, offset, BLOCK));
            }
            let status = fixture.engine().status();
            assert!(status.used_bytes <= status.limit_bytes, "I5");
        }
        let report = fixture.engine().report();
        // Free room once: what came instead would be read no more often.
        let most = ROOM + ROOM / 64;
        assert!(report.filled_bytes > 0, "{eviction}");
        assert!(report.filled_bytes <= most, "{eviction}: {} of {most}", report.filled_bytes);
    }
}

/// A larger cache evicts for several requests at once, and only the first of them had to earn it: loops over a little
/// more than fits wrote all that they read, eight times what they may, and found nothing when they came round.
#[test]
fn i5_evicting_for_several_fills_at_once_is_earned_by_all() {
    const ROOM: u64 = 2048 * KIB;
    let fixture = Fixture::simulated(filling(ROOM, "always"), "hdd+ssd");
    on_origin(&fixture, "file", 1, ROOM / 2 * 3);
    let handle = fixture.handle("file");
    let mut buf = vec![0; at(KIB)];
    for _ in 0..5 {
        for offset in (0..ROOM / 2 * 3).step_by(at(KIB)) {
            fixture.engine().read(&handle, offset, &mut buf, ME).unwrap();
        }
    }
    let report = fixture.engine().report();
    let most = ROOM + ROOM / 64 + report.read.bytes / 8;
    assert!(report.filled_bytes <= most, "{} of {most}", report.filled_bytes);
    assert!(report.read.cache_bytes > ROOM / 2, "{:?}", report.read);
}

/// What is on the cache leaves for what programs read instead, although a loop that does not fit exchanges nothing. Once
/// half of the limit is read every round, nothing leaves any more (0049): the rest of a set may then stay on the origin.
#[test]
fn other_bytes_take_over_after_a_few_passes() {
    // More than half of what the cache holds beside its records.
    const SET: u64 = 256 * KIB;
    let fixture = Fixture::simulated(filling(4 * SET, "always"), "hdd+ssd");
    for (name, seed) in [("before", 1), ("now", 2)] {
        on_origin(&fixture, name, seed, SET);
    }
    let mut buf = vec![0; at(16 * KIB)];
    let mut read = |name, passes| {
        let handle = fixture.handle(name);
        for offset in (0..passes).flat_map(|_| (0..SET).step_by(at(16 * KIB))) {
            fixture.engine().read(&handle, offset, &mut buf, ME).unwrap();
        }
    };
    read("before", 20);
    read("now", 16);
    // The filler's thread may still be busy with what the last pass queued, and a full queue drops what the next offers.
    until("most of what is read now is on the cache", || {
        let taken_over = cached_bytes(&fixture, "now") * 2 > fixture.engine().status().limit_bytes;
        if !taken_over {
            read("now", 1);
        }
        taken_over
    });
    assert!(cached_bytes(&fixture, "before") < SET, "nothing left for it");
}

/// Wishes waited until no program had used the origin for a while, which some never allow.
#[test]
fn what_is_wanted_is_fetched_although_the_origin_is_never_idle() {
    let fixture = Fixture::new(Config { rebuild: true, ..still(1 << 20, "always") });
    on_origin(&fixture, "wanted", 1, BLOCK);
    on_origin(&fixture, "busy", 1, BLOCK);
    let handles = ["wanted", "busy"].map(|name| fixture.handle(name));
    fixture.engine().change_rules(&RuleChange::Exclude("busy".to_owned())).unwrap();
    let mut buf = vec![0; at(BLOCK)];
    fixture.engine().read(&handles[0], 0, &mut buf, ME).unwrap();
    until("a fetch beside a program", || {
        for _ in 0..100 {
            fixture.engine().read(&handles[1], 0, &mut buf, ME).unwrap();
        }
        cached_bytes(&fixture, "wanted") == BLOCK
    });
}

#[test]
fn explain_says_why_something_is_not_cached_now() {
    let fixture = Fixture::new(still(64 * KIB, "always"));
    on_origin(&fixture, "file", 1, 64 * BLOCK);
    let now = |offset| {
        let question = Question {
            path: "file".into(),
            offset,
            length: BLOCK,
            direction: Direction::Read,
            processes: None,
        };
        fixture.engine().explain(&question).unwrap().now.unwrap_or_default()
    };
    assert!(now(0).contains("has not been read"), "{}", now(0));
    fixture.read("file", 0, at(BLOCK));
    assert!(now(0).contains("`rebuild`") && now(0).contains("`fill`"), "{}", now(0));
    fixture.engine().fetch_wanted().unwrap();
    assert_eq!(now(0), "");
    fixture.engine().change_rules(&RuleChange::Exclude("file".to_owned())).unwrap();
    assert!(now(0).contains("exclude"), "{}", now(0));
    fixture.engine().change_rules(&RuleChange::Include("file".to_owned())).unwrap();
    fixture.write("dirty", 0, &vec![1; 60 * 1024]);
    fixture.read("file", 8 * BLOCK, at(8 * BLOCK));
    fixture.engine().fetch_wanted().unwrap();
    assert!(now(8 * BLOCK).contains("no room"), "{}", now(8 * BLOCK));
    fixture.cache_faults.set(Some(Operation::Write), Effect::Errno(libc::EIO), When::Always);
    fixture.write("dirty", 0, &[1; 4096]);
    assert!(now(8 * BLOCK).contains("device"), "{}", now(8 * BLOCK));
}
