//! Files of which nothing is cached any more: they leave no record and no object behind.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use halocline_api::config::Config;
use halocline_api::control::Controlled;
use halocline_testkit::waiting::{SetOnDrop, eventually};
use halocline_vfs::{Engine, SetAttr};

use crate::fixture::{Fixture, ME, still};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 16;
/// How often a file is forgotten while another program changes it.
const FORGOTTEN: u32 = 1000;

fn config() -> Config {
    Config {
        rebuild: true,
        max_dirty_age: Duration::from_millis(1),
        ..still(BLOCKS * BLOCK as u64, "always")
    }
}

/// Objects of the cache, empty or not.
fn objects(cache: &Path) -> usize {
    let Ok(dirs) = fs::read_dir(cache.join("objects")) else { return 0 };
    dirs.map(|dir| fs::read_dir(dir.unwrap().path()).unwrap().count()).sum()
}

/// A cache that many files pass through remembered each of them, with some kilobytes of memory and
/// an empty object on the SSD, for as long as the origin had it.
#[test]
fn files_that_were_evicted_leave_nothing_behind() {
    let mut fixture = Fixture::new(config());
    for number in 0..200 {
        fixture.write(&number.to_string(), 0, &[number; BLOCK]);
        if number % 8 == 7 {
            eventually("all is flushed", || fixture.engine().status().dirty_bytes == 0);
        }
    }
    let kept = || usize::try_from(fixture.engine().status().extents).unwrap();
    assert!(kept() > 0 && kept() <= usize::try_from(BLOCKS).unwrap());
    eventually("objects are those of extents", || objects(fixture.cache.path()) == kept());
    for number in 0..200 {
        assert_eq!(fixture.read(&number.to_string(), 0, BLOCK), [number; BLOCK], "I1: {number}");
    }
    fixture.close();
    fixture.open();
    eventually("nothing comes back", || {
        let extents = usize::try_from(fixture.engine().status().extents).unwrap();
        objects(fixture.cache.path()) == extents
    });
}

/// What a program missed and wanted lay in memory until the rebuilder looked; a file that was closed before that was
/// forgotten, and its next reader missed again.
#[test]
fn what_is_wanted_of_a_file_that_was_closed_is_fetched() {
    let mut fixture = Fixture::new(still(BLOCKS * BLOCK as u64, "always"));
    fs::write(fixture.origin.path().join("file"), [7; 4 * BLOCK]).unwrap();
    assert_eq!(fixture.read("file", 0, 4 * BLOCK), [7; 4 * BLOCK]);
    fixture.close();
    fixture.open();
    assert_eq!(fixture.engine().fetch_wanted().unwrap(), 4 * BLOCK as u64);
}

/// One whose bytes had left the cache before its name went kept an empty object for ever: nothing
/// was left to be freed, and with that nobody who looked.
#[test]
fn an_emptied_file_that_is_removed_leaves_no_object() {
    let mut fixture = Fixture::new(config());
    fixture.write("cut", 0, &[1; BLOCK]);
    let handle = fixture.handle("cut");
    fixture.truncate("cut", 0);
    fixture.flush();
    fixture.engine().unlink(&fixture.engine().root(), OsStr::new("cut"), ME).unwrap();
    drop(handle);
    fixture.close();
    assert_eq!(objects(fixture.cache.path()), 0);
}

/// I1: a file is opened, written, evicted, removed and made again while it is being forgotten.
#[test]
fn i1_files_that_are_forgotten_while_they_are_used_keep_their_bytes() {
    let fixture = Fixture::new(config());
    thread::scope(|scope| {
        for worker in 0..4_u8 {
            let fixture = &fixture;
            scope.spawn(move || {
                let mut random = u64::from(worker) + 1;
                let mut truth = [None; 24];
                for _ in 0..1500 {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let (file, value) = ((random >> 33) % 24, (random >> 48).to_le_bytes()[0]);
                    let name = format!("{worker}-{file}");
                    let known = &mut truth[usize::try_from(file).unwrap()];
                    match ((random >> 40) % 8, *known) {
                        (0, Some(_)) => {
                            let engine = fixture.engine();
                            engine.unlink(&engine.root(), OsStr::new(&name), ME).unwrap();
                            *known = None;
                        }
                        (1..4, _) => {
                            fixture.write(&name, 0, &[value; BLOCK]);
                            *known = Some(value);
                        }
                        (_, Some(value)) => {
                            assert_eq!(fixture.read(&name, 0, BLOCK), [value; BLOCK], "{name}");
                        }
                        (_, None) => assert!(!fixture.exists(&name), "{name}"),
                    }
                }
            });
        }
    });
    let mut fixture = fixture;
    fixture.close();
}

/// That failed with "the cache does not know file 1".
#[test]
fn a_file_that_is_forgotten_meanwhile_changes_all_the_same() {
    let mut fixture = Fixture::new(Config { max_dirty_age: Duration::ZERO, ..config() });
    fixture.write("file", 0, &[1; BLOCK]);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let (fixture, is_over) = (&fixture, &is_over);
        scope.spawn(move || {
            let _over = SetOnDrop(is_over);
            for round in 0..FORGOTTEN {
                fixture.write("file", 0, &[u8::try_from(round % 251).unwrap(); BLOCK]);
                fixture.evict("file");
                fixture.flush();
            }
        });
        while !is_over.load(Ordering::SeqCst) {
            let change = SetAttr { mode: Some(0o600), ..SetAttr::default() };
            fixture.engine().set_attr(&fixture.vnode("file"), None, &change, ME).unwrap();
        }
    });
    fixture.close();
}
