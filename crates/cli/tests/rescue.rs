//! `rescue` saves dirty bytes whose origin is gone, and drops only what it saved.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use halocline_api::config::Config;
use halocline_cache::ExtentEngine;
use halocline_testkit::program;
use halocline_testkit::skipping::skip;
use halocline_vfs::{Caller, Engine, Maker};
use serde_json::{Value, json};
use tempfile::TempDir;

const ME: Caller = Caller { uid: 0, gid: 0, pid: 1 };
const NAMES: [&str; 2] = ["one", "two"];

struct Scratch(TempDir);

impl Scratch {
    /// A cache with dirty bytes of files of these names: 8 KiB at 0, and 12 KiB at 64 KiB.
    fn dirty(names: &[OsString]) -> Self {
        let scratch = Self(TempDir::new().unwrap());
        for name in ["origin", "cache"] {
            fs::create_dir(scratch.path(name)).unwrap();
        }
        let config = Config { policy: "always".into(), rebuild: false, ..Config::default() };
        let open = ExtentEngine::open(&scratch.path("origin"), &scratch.path("cache"), &config);
        let engine = open.unwrap();
        let by = Maker { caller: ME, umask: 0 };
        for (name, byte) in names.iter().zip(1..) {
            let at = (&engine.root(), OsStr::new(name));
            let flags = libc::O_RDWR | libc::O_CREAT;
            let handle = engine.create(at, 0o600, flags, by).unwrap().2;
            engine.write(&handle, 0, &[byte; 8 << 10], ME).unwrap();
            engine.write(&handle, 64 << 10, &[byte; 12 << 10], ME).unwrap();
        }
        engine.close().unwrap();
        scratch
    }

    fn two() -> Self {
        Self::dirty(&NAMES.map(OsString::from))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, command: &[&str], cache: &str) -> (Option<i32>, Value) {
        let output = Command::new(program!())
            .current_dir(self.0.path())
            .args(command)
            .args(["--json", cache])
            .output()
            .unwrap();
        let found = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| String::from_utf8_lossy(&output.stderr).into());
        (output.status.code(), found)
    }

    fn rescue(&self, flags: &[&str], cache: &str) -> (Option<i32>, Value) {
        self.run(&[&["rescue", "--to", "saved"], flags].concat(), cache)
    }

    fn dirty_bytes(&self) -> u64 {
        self.run(&["fsck"], "cache").1["dirty_bytes"].as_u64().unwrap()
    }

    fn lose_origin(&self) {
        fs::rename(self.path("origin"), self.path("lost")).unwrap();
    }

    fn copy_cache(&self) {
        let places = [self.path("cache"), self.path("copy")];
        let copied = Command::new("cp").arg("-a").args(places).status();
        assert!(copied.unwrap().success());
    }

    fn saved(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path("saved")).unwrap();
        let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths
    }
}

fn extent((offset, length): (u64, u64)) -> Value {
    json!({"offset": offset, "length": length})
}

/// The saved bytes of the file that was made with `byte`, and its manifest's path.
fn check_saved(bytes: &Path, byte: u8) -> Value {
    assert_eq!(fs::metadata(bytes).unwrap().mode() & 0o7777, 0o600);
    let found = fs::read(bytes).unwrap();
    assert_eq!(found.len(), 76 << 10);
    assert!(found[..8 << 10].iter().chain(&found[64 << 10..]).all(|found| *found == byte));
    let manifest = format!("{}.json", bytes.display());
    assert_eq!(fs::metadata(&manifest).unwrap().mode() & 0o7777, 0o600);
    let manifest: Value = serde_json::from_slice(&fs::read(&manifest).unwrap()).unwrap();
    let extents = [(0, 8192), (65536, 12288)].map(extent);
    assert_eq!(manifest["extents"], json!(extents));
    manifest["path"].clone()
}

#[test]
fn what_an_origin_that_is_gone_cannot_get_is_saved_and_dropped() {
    // A name that is not UTF-8 has its bytes in JSON.
    let odd = OsString::from_vec(vec![b'a', 0xff]);
    let scratch = Scratch::dirty(&["one".into(), odd]);
    scratch.lose_origin();
    assert_eq!(scratch.dirty_bytes(), 40 << 10);
    let (status, found) = scratch.rescue(&["--dry-run"], "cache");
    assert_eq!((status, &found["rescued_bytes"]), (Some(0), &(40 << 10).into()), "{found}");
    assert!(!scratch.path("saved").exists());
    assert_eq!(scratch.dirty_bytes(), 40 << 10);

    let (status, found) = scratch.rescue(&[], "cache");
    assert_eq!((status, &found["rescued_bytes"]), (Some(0), &(40 << 10).into()), "{found}");
    assert_eq!(fs::metadata(scratch.path("saved")).unwrap().mode() & 0o7777, 0o700);
    let paths = scratch.saved();
    assert_eq!(paths.len(), 4);
    assert_eq!(check_saved(&paths[0], 1), json!("one"));
    assert_eq!(check_saved(&paths[2], 2), json!([b'a', 0xff]));
    assert_eq!(scratch.dirty_bytes(), 0);
    let (status, found) = scratch.rescue(&[], "cache");
    assert_eq!((status, &found["rescued_bytes"]), (Some(0), &0.into()), "{found}");
    assert_eq!(scratch.saved(), paths);
}

#[test]
fn files_that_the_origin_has_stay_unless_all_are_asked_for() {
    let scratch = Scratch::two();
    fs::remove_file(scratch.path("origin/two")).unwrap();
    let (status, found) = scratch.rescue(&[], "cache");
    assert_eq!((status, &found["rescued"][0]["path"]), (Some(3), &"two".into()), "{found}");
    assert_eq!((&found["kept"][0]["path"], scratch.dirty_bytes()), (&"one".into(), 20 << 10));
    let (status, found) = scratch.rescue(&["--all"], "cache");
    assert_eq!((status, scratch.dirty_bytes()), (Some(0), 0), "{found}");
}

/// As a kill leaves it after a manifest was written, and before the records went; and in the middle of
/// the bytes.
#[test]
fn a_rescue_that_was_interrupted_goes_on() {
    let scratch = Scratch::two();
    scratch.lose_origin();
    scratch.copy_cache();
    assert_eq!(scratch.rescue(&[], "copy").0, Some(0));
    let paths = scratch.saved();
    fs::remove_file(&paths[3]).unwrap();
    fs::write(&paths[2], vec![7; 100_000]).unwrap();
    let (status, found) = scratch.rescue(&[], "cache");
    assert_eq!((status, &found["rescued_bytes"]), (Some(0), &(40 << 10).into()), "{found}");
    assert_eq!(scratch.saved(), paths, "nothing was saved twice");
    for (at, name) in [(0, "one"), (2, "two")] {
        assert_eq!(check_saved(&paths[at], u8::try_from(at / 2 + 1).unwrap()), json!(name));
    }
    assert_eq!(scratch.dirty_bytes(), 0);
}

/// What an earlier rescue saved is not written over, whatever became of it.
#[test]
fn what_was_saved_before_stays() {
    let scratch = Scratch::two();
    scratch.lose_origin();
    scratch.copy_cache();
    assert_eq!(scratch.rescue(&[], "copy").0, Some(0));
    let paths = scratch.saved();
    let bytes = fs::File::options().write(true).open(&paths[0]).unwrap();
    bytes.write_all_at(b"changed", 0).unwrap();
    assert_eq!(scratch.rescue(&[], "cache").0, Some(0));
    assert_eq!(fs::read(&paths[0]).unwrap()[..7], *b"changed");
    assert_eq!(scratch.saved().len(), 6);
    assert_eq!(scratch.dirty_bytes(), 0);
}

#[test]
fn damaged_and_missing_bytes_stay_on_the_cache() {
    let scratch = Scratch::two();
    scratch.lose_origin();
    let mut objects: Vec<_> = fs::read_dir(scratch.path("cache/objects"))
        .unwrap()
        .flat_map(|dir| fs::read_dir(dir.unwrap().path()).unwrap())
        .map(|object| object.unwrap().path())
        .collect();
    objects.sort();
    let object = fs::File::options().read(true).write(true).open(&objects[0]).unwrap();
    object.write_all_at(&[9], 5000).unwrap();
    object.set_len(72 << 10).unwrap();
    let (status, found) = scratch.rescue(&[], "cache");
    assert_eq!((status, &found["kept_bytes"]), (Some(3), &(8 << 10).into()), "{found}");
    let ranges = &found["rescued"][0]["extents"];
    assert_eq!(*ranges, json!([(0, 4096), (65536, 8192)].map(extent)), "{found}");
    let (status, found) = scratch.run(&["fsck", "--repair"], "cache");
    assert_eq!((status, scratch.dirty_bytes()), (Some(1), 0), "{found}");
}

#[test]
fn a_directory_with_something_else_and_one_in_the_cache_are_refused() {
    let scratch = Scratch::two();
    scratch.lose_origin();
    fs::create_dir(scratch.path("saved")).unwrap();
    fs::write(scratch.path("saved/thesis"), "x").unwrap();
    let (status, found) = scratch.rescue(&[], "cache");
    assert!(status == Some(2) && found.to_string().contains("thesis"), "{found}");
    let (status, found) = scratch.run(&["rescue", "--to", "cache/saved"], "cache");
    assert!(status == Some(2) && found.to_string().contains("in the cache"), "{found}");
    let (status, found) = scratch.run(&["rescue", "--to", "else"], "lost");
    assert!(status == Some(2) && found.to_string().contains("is not a cache"), "{found}");
    assert!(!scratch.path("else").exists());
    assert_eq!(scratch.dirty_bytes(), 40 << 10);
}

/// Regression: only the directory itself was checked, but the owner of a directory above it could put another in its
/// place.
#[test]
fn a_directory_that_another_user_could_replace_is_refused() {
    let scratch = Scratch::two();
    fs::create_dir(scratch.path("above")).unwrap();
    if chown(scratch.path("above"), Some(65534), None).is_err() {
        return skip("only root can give a directory to another user");
    }
    fs::remove_dir_all(scratch.path("origin")).unwrap();
    let rescue = || scratch.run(&["rescue", "--to", "above/saved"], "cache");
    let (code, said) = rescue();
    assert_eq!(code, Some(2), "{said}");
    assert!(said.as_str().unwrap().contains("another user owns"), "{said}");
    assert!(!scratch.path("above/saved").exists());
    chown(scratch.path("above"), Some(0), None).unwrap();
    let (code, said) = rescue();
    assert_eq!(code, Some(0), "{said}");
}

/// A mount with damaged records is refused, but what can be read of them is saved all the same.
#[test]
fn what_damaged_records_still_say_is_saved_and_the_cache_left_as_it_is() {
    let scratch = Scratch::two();
    let last = fs::read_dir(scratch.path("cache/meta")).unwrap().map(|entry| entry.unwrap().path());
    let is_log =
        |path: &PathBuf| path.file_name().unwrap().as_encoded_bytes().starts_with(b"log-0");
    let log = last.filter(is_log).max().unwrap();
    let file = fs::OpenOptions::new().write(true).open(&log).unwrap();
    file.set_len(fs::metadata(&log).unwrap().len() - 16).unwrap();
    let refused = scratch.rescue(&[], "cache");
    assert_eq!(refused.0, Some(2), "{}", refused.1);
    let told = refused.1.as_str().unwrap();
    assert!(told.contains("was synced") && told.contains("rescue --salvage"), "{told}");
    scratch.copy_cache();
    let (status, found) = scratch.rescue(&["--salvage"], "cache");
    assert_eq!((status, found["rescued_bytes"].as_u64()), (Some(3), Some(40 << 10)), "{found}");
    assert!(found["damage"].as_str().unwrap().contains("was synced"), "{found}");
    let saved = scratch.saved();
    assert_eq!(saved.len(), 4);
    for (bytes, byte) in [(&saved[0], 1), (&saved[2], 2)] {
        check_saved(bytes, byte);
        let manifest = fs::read_to_string(format!("{}.json", bytes.display())).unwrap();
        assert!(manifest.contains("was synced"), "{manifest}");
    }
    let places = [scratch.path("cache"), scratch.path("copy")];
    let same = Command::new("diff").arg("-r").args(places).args(["-x", "halocline.lock"]).status();
    assert!(same.unwrap().success(), "the cache was changed");
    // Once more finds the same, and a whole cache is only looked at.
    assert_eq!(scratch.rescue(&["--salvage"], "cache").0, Some(3));
    assert_eq!(scratch.saved().len(), 4);
    fs::remove_dir_all(scratch.path("cache/meta")).unwrap();
    fs::create_dir(scratch.path("cache/meta")).unwrap();
    let nothing = scratch.rescue(&["--salvage"], "cache");
    assert_eq!(nothing.0, Some(2), "{}", nothing.1);
    assert!(!nothing.1.as_str().unwrap().contains("--salvage"), "{}", nothing.1);
}

/// It was called no cache at all, where nothing was ever cached.
#[test]
fn a_cache_that_lost_its_name_says_how_to_restore_it() {
    let scratch = Scratch::two();
    let file = scratch.path("cache/halocline-cache.toml");
    let before = fs::read_to_string(&file).unwrap();
    fs::remove_file(&file).unwrap();
    for found in [scratch.run(&["fsck"], "cache"), scratch.rescue(&["--salvage"], "cache")] {
        assert_eq!(found.0, Some(2), "{}", found.1);
        let told = found.1.as_str().unwrap();
        assert!(told.contains("is missing") && told.contains("cache_id"), "{told}");
    }
    let id = before.lines().find(|line| line.starts_with("cache_id")).unwrap();
    fs::write(&file, format!("format = 4\n{id}\n")).unwrap();
    assert_eq!(scratch.dirty_bytes(), 40 << 10);
}
