//! `fsck` finds what is wrong with a cache, and mends what can be mended.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::UNIX_EPOCH;

use halocline_api::config::{Binding, Config, VolumeKind};
use halocline_api::control::Controlled;
use halocline_cache::ExtentEngine;
use halocline_meta::load::{Recovery, Shutdown};
use halocline_meta::table::{self, ExtentTable};
use halocline_meta::{FileId, OriginKey};
use halocline_model::evict;
use halocline_model::layout::{CacheGeometry, Layout, Placement};
use halocline_model::request::ByteRange;
use halocline_storage::volume::{CacheObjects, Volume};
use halocline_testkit::program;
use halocline_vfs::{Caller, Engine, Maker};
use serde_json::Value;
use tempfile::TempDir;

const PLACEMENT: Placement = Placement { layout: Layout::OneDh, group: 0 };
const EXTENT: ByteRange = ByteRange::new(8192, 24576);

/// One test at a time: a child that another test is just starting holds a copy of our cache's lock
/// until it runs its program, and `fsck` would find the cache in use.
static ALONE: Mutex<()> = Mutex::new(());

struct Scratch {
    dir: TempDir,
    _alone: MutexGuard<'static, ()>,
}

impl Scratch {
    /// A cache with one dirty extent of `origin/data`, and its data.
    fn new() -> (Self, FileId) {
        Self::left_on(None)
    }

    /// The same, left by a process of the boot with this id: after a power loss, if that is not ours.
    fn left_on(boot: Option<&str>) -> (Self, FileId) {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let scratch = Self { dir: TempDir::new().unwrap(), _alone: alone };
        for name in ["origin", "cache"] {
            fs::create_dir(scratch.path(name)).unwrap();
        }
        let data = scratch.path("origin/data");
        fs::write(&data, vec![1; 32768]).unwrap();
        let dmt = match boot {
            Some(boot) => scratch.tables_on(boot).0,
            None => scratch.tables(),
        };
        Binding::of(&scratch.path("origin"), &Config::default())
            .unwrap()
            .record(&scratch.path("cache"))
            .unwrap();
        let found = fs::metadata(&data).unwrap();
        let born = found.created().ok().and_then(|born| born.duration_since(UNIX_EPOCH).ok());
        let born_ns = born.map_or(0, |born| u64::try_from(born.as_nanos()).unwrap());
        let key = OriginKey { inode: found.ino(), born_ns };
        let file = dmt.files().register(key, Path::new("data")).unwrap();
        assert!(dmt.blocks().reserve(file, EXTENT, PLACEMENT));
        scratch
            .objects()
            .open(file.0, PLACEMENT)
            .unwrap()
            .write_at(EXTENT.start, &[2; 16384])
            .unwrap();
        dmt.changes().map(file, EXTENT, PLACEMENT, true).unwrap();
        (scratch, file)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn tables(&self) -> ExtentTable {
        let options = table::Options::new(1 << 30, (evict::POLICIES[0].make)(), 16);
        ExtentTable::open(&self.path("cache"), options).unwrap().0
    }

    fn tables_on(&self, boot: &str) -> (ExtentTable, Recovery) {
        let options = table::Options::new(1 << 30, (evict::POLICIES[0].make)(), 16);
        ExtentTable::open_on_boot(&self.path("cache"), options, boot).unwrap()
    }

    fn objects(&self) -> CacheObjects {
        let volume = Volume::in_directory(&self.path("cache"), 1, 4096, &|_, device| device);
        CacheObjects::new(volume.unwrap(), CacheGeometry::new(1, 4096, 0))
    }

    /// What a mount does that nobody uses: it puts in order what a crash left.
    fn mounted_once(&self) {
        let config = Config { rebuild: false, ..Config::default() };
        let engine = ExtentEngine::open(&self.path("origin"), &self.path("cache"), &config);
        engine.unwrap().close().unwrap();
    }

    /// Status and findings.
    fn fsck(&self, flags: &[&str]) -> (Option<i32>, Value) {
        let output = Command::new(program!())
            .args(["fsck", "--json"])
            .args(flags)
            .arg(self.path("cache"))
            .output()
            .unwrap();
        let found = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
        (output.status.code(), found)
    }

    fn problems(&self, flags: &[&str]) -> Vec<String> {
        let (status, found) = self.fsck(flags);
        let names: Vec<_> = found["problems"]
            .as_array()
            .unwrap()
            .iter()
            .map(|problem| problem["problem"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(status, Some(i32::from(!names.is_empty())), "{found}");
        names
    }
}

#[test]
fn a_cache_in_order_is_clean() {
    let (scratch, _) = Scratch::new();
    let (status, found) = scratch.fsck(&[]);
    assert_eq!(status, Some(0), "{found}");
    assert_eq!((&found["files"], &found["dirty_bytes"]), (&1.into(), &16384.into()));
}

/// Opening a cache marks it as in use; left so, the next boot would take it for one that lost
/// power and drop what is clean.
#[test]
fn a_check_leaves_the_cache_as_it_was() {
    let (scratch, _) = Scratch::new();
    scratch.tables().close().unwrap();
    assert_eq!(scratch.fsck(&[]).0, Some(0));
    assert_eq!(scratch.tables_on("the next boot").1.last_shutdown, Shutdown::Closed);
    assert_eq!(scratch.fsck(&[]).0, Some(0));
}

/// The first check after a power loss forgot what it had told: a second one, and the mount, said clean.
#[test]
fn i6_what_a_power_loss_took_is_told_until_a_mount_or_a_repair() {
    for repair in [false, true] {
        let (scratch, _) = Scratch::left_on(Some("the last boot"));
        for _ in 0..2 {
            assert_eq!(scratch.problems(&[]), ["lost-at-power-loss"]);
        }
        if repair {
            assert_eq!(scratch.problems(&["--repair"]), ["lost-at-power-loss"]);
            let (status, found) = scratch.fsck(&[]);
            assert_eq!((status, &found["dirty_bytes"]), (Some(0), &0.into()), "{found}");
            continue;
        }
        let (dmt, recovery) = scratch.tables_on("the next boot");
        assert_eq!(recovery.last_shutdown, Shutdown::PowerLost);
        let lost: Vec<_> = recovery.dropped.iter().map(|lost| lost.dirty_bytes).collect();
        assert_eq!(lost, [EXTENT.len()]);
        drop(dmt);
    }
}

/// What a failed store could not forget stays listed beside it until a mount has honoured it.
#[test]
fn a_check_leaves_what_must_not_be_trusted() {
    let (scratch, _) = Scratch::new();
    let lock = scratch.path("cache/halocline.lock");
    let mut listed = fs::read(&lock).unwrap();
    listed.truncate(256);
    listed.extend_from_slice(b"all\n");
    fs::write(&lock, listed).unwrap();
    for _ in 0..2 {
        let (status, found) = scratch.fsck(&[]);
        assert_eq!((status, &found["dirty_bytes"]), (Some(0), &0.into()), "{found}");
        assert_eq!(fs::read(&lock).unwrap()[256..], *b"all\n");
    }
    scratch.mounted_once();
    assert_eq!(fs::read(&lock).unwrap().len(), 256);
}

#[test]
fn missing_data_is_found_and_its_records_dropped() {
    let (scratch, file) = Scratch::new();
    let hole = ByteRange::new(12288, 16384);
    scratch.objects().open(file.0, PLACEMENT).unwrap().punch(hole).unwrap();
    let (status, found) = scratch.fsck(&[]);
    assert_eq!(status, Some(1));
    let problem = &found["problems"][0];
    assert_eq!(problem["problem"], "missing-data", "{found}");
    assert_eq!((&problem["offset"], &problem["length"]), (&12288.into(), &4096.into()));
    assert_eq!(problem["dirty"], true);
    scratch.problems(&["--repair"]);
    assert!(scratch.problems(&[]).is_empty());
    assert_eq!(scratch.tables().index().usage().dirty, 12288);
}

#[test]
fn stray_objects_are_found_and_removed() {
    let (scratch, _) = Scratch::new();
    scratch.mounted_once();
    scratch.objects().open(0x77, PLACEMENT).unwrap().write_at(0, &[3; 4096]).unwrap();
    assert_eq!(scratch.problems(&[]), ["stray-object"]);
    assert_eq!(scratch.problems(&["--repair"]), ["stray-object"]);
    assert!(scratch.problems(&[]).is_empty());
}

/// A killed mount leaves objects whose records it had not written yet, and `fsck` called that wrong.
#[test]
fn what_the_next_mount_removes_is_told_and_nothing_wrong() {
    let (scratch, _) = Scratch::new();
    scratch.objects().open(0x77, PLACEMENT).unwrap().write_at(0, &[3; 4096]).unwrap();
    let (status, found) = scratch.fsck(&[]);
    assert_eq!(status, Some(0), "{found}");
    assert_eq!(found["problems"][0]["problem"], "stray-object", "{found}");
    assert_eq!(found["problems"][0]["next_mount_removes"], true, "{found}");
    scratch.mounted_once();
    assert!(scratch.problems(&[]).is_empty());
}

/// A server of the cache that is gone: fsck lists what it had, file by file; a repair drops that
/// and lets the next mount go on with the rest (I6).
#[test]
fn i6_what_a_lost_server_had_is_listed_file_by_file() {
    let scratch = TempDir::new().unwrap();
    let path = |name: &str| scratch.path().join(name);
    for name in ["origin", "cache"] {
        fs::create_dir(path(name)).unwrap();
    }
    let mut config = Config { policy: "always".into(), rebuild: false, ..Config::default() };
    config.cache.kind = VolumeKind::Striped;
    config.cache.servers = 2;
    let open = || ExtentEngine::open(&path("origin"), &path("cache"), &config);
    let engine = open().unwrap();
    let (me, flags) = (Caller { uid: 0, gid: 0, pid: 1 }, libc::O_RDWR | libc::O_CREAT);
    let by = Maker { caller: me, umask: 0 };
    let create = |engine: &ExtentEngine, name: &str| {
        engine.create((&engine.root(), OsStr::new(name)), 0o600, flags, by).unwrap().2
    };
    engine.write(&create(&engine, "wide"), 0, &vec![5; 192 << 10], me).unwrap();
    engine.close().unwrap();
    drop(engine);
    fs::remove_dir_all(path("cache/server-1")).unwrap();

    let fsck = |flag: Option<&str>| {
        let mut command = Command::new(program!());
        let output = command.args(["fsck", "--json"]).args(flag).arg(path("cache")).output();
        let output = output.unwrap();
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), found)
    };
    for flag in [None, Some("--repair")] {
        let (status, found) = fsck(flag);
        assert_eq!(status, Some(1), "{found}");
        let (server, missing) = (&found["problems"][0], &found["problems"][1]);
        assert_eq!(server["problem"], "lost-server", "{found}");
        assert_eq!(missing["problem"], "missing-data", "{found}");
        assert_eq!(missing["path"], "wide", "{found}");
        assert_eq!((&missing["offset"], &missing["length"]), (&65536.into(), &65536.into()));
        assert_eq!(missing["dirty"], true);
    }
    assert_eq!(fsck(None).0, Some(0));
    let engine = open().unwrap();
    let handle = create(&engine, "wide");
    let mut found = vec![1; 192 << 10];
    engine.read(&handle, 0, &mut found, me).unwrap();
    let want = [5, 0, 5].map(|byte| vec![byte; 64 << 10]).concat();
    assert!(found == want, "what the other server has is kept");
}

/// An unlink takes the name first and the object later: a kill in between leaves the object.
#[test]
fn objects_of_a_striped_origin_without_a_name_are_removed_by_one_who_knows() {
    let scratch = TempDir::new().unwrap();
    let path = |name: &str| scratch.path().join(name);
    for name in ["origin", "cache"] {
        fs::create_dir(path(name)).unwrap();
    }
    let mut config = Config::default();
    config.origin.kind = VolumeKind::Striped;
    config.origin.servers = 2;
    let engine = ExtentEngine::open(&path("origin"), &path("cache"), &config).unwrap();
    let (me, flags) = (Caller { uid: 0, gid: 0, pid: 1 }, libc::O_RDWR | libc::O_CREAT);
    let by = Maker { caller: me, umask: 0 };
    for name in ["kept", "gone"] {
        let made = engine.create((&engine.root(), OsStr::new(name)), 0o600, flags, by).unwrap();
        engine.write(&made.2, 0, &vec![5; 200_000], me).unwrap();
    }
    engine.close().unwrap();
    drop(engine);
    fs::remove_file(path("origin/namespace/gone")).unwrap();

    let fsck = |flags: &[&str]| {
        let mut command = Command::new(program!());
        let output = command.arg("fsck").args(flags).arg(path("cache")).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&said).into_owned())
    };
    let objects = || -> usize {
        let dirs = ["origin/server-0/objects", "origin/server-1/objects"];
        let dirs = dirs.iter().flat_map(|dir| fs::read_dir(path(dir)).unwrap());
        dirs.map(|dir| fs::read_dir(dir.unwrap().path()).unwrap().count()).sum()
    };
    // Nobody but its owner knows whether the file comes back: it is only told how the object is removed.
    for flags in [&[][..], &["--repair"], &["--repair"]] {
        let (status, said) = fsck(flags);
        assert!(status == Some(1) && said.contains("no file names it"), "{said}");
        assert!(said.contains("no file names 1 of 2 objects of the origin"), "{said}");
        assert!(said.contains("--repair --remove-unnamed 1"), "{said}");
        assert_eq!(objects(), 4);
    }
    let (status, said) = fsck(&["--repair", "--remove-unnamed", "2"]);
    assert!(status == Some(1) && said.contains("no file names 1 object, not 2"), "{said}");
    assert_eq!(objects(), 4);
    // Regression: without its tree a repair removed all data of the volume.
    fs::rename(path("origin/namespace"), path("aside")).unwrap();
    fs::create_dir(path("origin/namespace")).unwrap();
    for flags in [&[][..], &["--repair"], &["--repair", "--remove-unnamed", "2"]] {
        let (status, said) = fsck(flags);
        assert_eq!(status, Some(1), "{said}");
        assert!(said.contains("its files name 0 of the 2 objects"), "{said}");
        assert_eq!(objects(), 4);
    }
    fs::remove_dir(path("origin/namespace")).unwrap();
    fs::rename(path("aside"), path("origin/namespace")).unwrap();
    assert_eq!(fsck(&["--repair", "--remove-unnamed", "1"]).0, Some(1));
    let (status, said) = fsck(&[]);
    assert_eq!(status, Some(0), "{said}");
    assert_eq!(objects(), 2, "both halves of what has a name");
}

#[test]
fn dirty_bytes_without_a_place_are_told() {
    let (scratch, _) = Scratch::new();
    fs::rename(scratch.path("origin/data"), scratch.path("origin/elsewhere")).unwrap();
    assert_eq!(scratch.problems(&[]), ["no-origin"]);
    fs::rename(scratch.path("origin"), scratch.path("unmounted")).unwrap();
    assert_eq!(scratch.problems(&[]), ["not-reachable"], "the origin is not there");
    fs::create_dir(scratch.path("origin")).unwrap();
    assert_eq!(scratch.problems(&[]), ["not-reachable"], "its mount point is");
    fs::remove_dir(scratch.path("origin")).unwrap();
    fs::rename(scratch.path("unmounted"), scratch.path("origin")).unwrap();
    fs::rename(scratch.path("origin/elsewhere"), scratch.path("origin/data")).unwrap();
    assert_eq!(scratch.problems(&[]), <[&str; 0]>::default());
}

/// Dirty bytes under which the origin was changed were called clean, and the next mount put them over what
/// others had written.
#[test]
fn i9_what_others_changed_under_dirty_bytes_is_told() {
    let (scratch, _) = Scratch::new();
    let (origin, cache) = (scratch.path("origin"), scratch.path("second"));
    fs::create_dir(&cache).unwrap();
    let config = Config { policy: "always".to_owned(), rebuild: false, ..Config::default() };
    let engine = ExtentEngine::open(&origin, &cache, &config).unwrap();
    let me = Caller { uid: 0, gid: 0, pid: 1 };
    let (vnode, _) = engine.lookup(&engine.root(), OsStr::new("data")).unwrap();
    let handle = engine.open(&vnode, libc::O_RDWR, me).unwrap();
    engine.write(&handle, 0, &[3; 4096], me).unwrap();
    drop((handle, vnode));
    // As a kill leaves it.
    drop(engine);
    let fsck = |dir: &Path| {
        let output = Command::new(program!()).args(["fsck", "--json"]).arg(dir).output().unwrap();
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), found["problems"].clone())
    };
    assert_eq!(fsck(&cache).0, Some(0));
    let copy = scratch.path("copy");
    let copied = std::process::Command::new("cp").arg("-a").arg(&cache).arg(&copy).status();
    assert!(copied.unwrap().success());
    let (status, problems) = fsck(&copy);
    assert_eq!((status, &problems[0]["problem"]), (Some(0), &"copy".into()), "{problems}");

    fs::write(origin.join("data"), vec![9; 32768]).unwrap();
    for dir in [&cache, &copy] {
        let (status, problems) = fsck(dir);
        assert_eq!(status, Some(1), "{problems}");
        let last = problems.as_array().unwrap().last().unwrap();
        assert_eq!((&last["problem"], &last["path"]), (&"conflict".into(), &"data".into()));
    }
}

#[test]
fn a_cache_in_use_and_a_directory_that_is_none_are_refused() {
    let (scratch, _) = Scratch::new();
    let fsck = |dir: &str| {
        let mut command = Command::new(program!());
        let output = command.arg("fsck").arg(scratch.path(dir)).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (status, message) = fsck("origin");
    assert_eq!(status, Some(2), "{message}");
    assert!(message.contains("is not a cache"), "{message}");
    let owner = scratch.tables();
    let (status, message) = fsck("cache");
    assert_eq!(status, Some(2), "{message}");
    assert!(message.contains("cache"), "{message}");
    drop(owner);
    assert_eq!(fsck("cache").0, Some(0));
}

/// What the cache holds of two files, one dirty and one clean, is flipped in three places.
#[test]
fn damaged_data_is_found_saved_and_dropped() {
    let scratch = TempDir::new().unwrap();
    let path = |name: &str| scratch.path().join(name);
    for name in ["origin", "cache"] {
        fs::create_dir(path(name)).unwrap();
    }
    fs::write(path("origin/dirty"), vec![1; 64 << 10]).unwrap();
    fs::write(path("origin/clean"), vec![4; 64 << 10]).unwrap();
    let config = Config { policy: "always".into(), rebuild: false, ..Config::default() };
    let open = || ExtentEngine::open(&path("origin"), &path("cache"), &config).unwrap();
    let me = Caller { uid: 0, gid: 0, pid: 1 };
    let handle = |engine: &ExtentEngine, name: &str| {
        let vnode = engine.lookup(&engine.root(), OsStr::new(name)).unwrap().0;
        engine.open(&vnode, libc::O_RDWR, me).unwrap()
    };
    let mut silent = |_| std::ops::ControlFlow::Continue(());
    let engine = open();
    engine.warm(&[PathBuf::from("clean")], false, &mut silent).unwrap();
    engine.write(&handle(&engine, "dirty"), 0, &vec![2; 64 << 10], me).unwrap();
    engine.close().unwrap();
    drop(engine);
    for object in objects_below(&path("cache/objects")) {
        let mut bytes = fs::read(&object).unwrap();
        for at in [9_000, 40_000] {
            bytes[at] ^= 0x80;
        }
        fs::write(&object, bytes).unwrap();
    }
    let fsck = |flag: Option<&str>| {
        let mut command = Command::new(program!());
        let output = command.args(["fsck", "--json"]).args(flag).arg(path("cache")).output();
        let output = output.unwrap();
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), found)
    };
    let want = [("clean", 8192), ("clean", 36864), ("dirty", 8192), ("dirty", 36864)];
    let want = want.map(|(name, at)| (name.to_owned(), at, 4096, name == "dirty"));
    let (status, found) = fsck(None);
    assert_eq!((status, places(&found)), (Some(1), want.to_vec()), "{found}");
    assert_eq!(found["verified_bytes"], 128 << 10, "{found}");
    let (status, found) = fsck(Some("--repair"));
    assert_eq!((status, places(&found)), (Some(1), want.to_vec()), "{found}");
    let problems = found["problems"].as_array().unwrap();
    let saved = problems.iter().find_map(|problem| problem["saved"].as_str()).unwrap();
    assert_eq!(fs::metadata(saved).unwrap().mode() & 0o7777, 0o600);
    let bytes = fs::read(saved).unwrap();
    assert_eq!((bytes[8192], bytes[9000], bytes[40_000]), (2, 0x82, 0x82));
    let described: Value =
        serde_json::from_slice(&fs::read(format!("{saved}.json")).unwrap()).unwrap();
    assert_eq!(described["extents"], serde_json::json!([[8192, 4096], [36864, 4096]]));
    assert_eq!(fsck(None).0, Some(0));

    let engine = open();
    let mut found = vec![0; 64 << 10];
    engine.read(&handle(&engine, "clean"), 0, &mut found, me).unwrap();
    assert!(found.iter().all(|byte| *byte == 4));
    Controlled::flush(&engine, None, false, &mut silent).unwrap();
    let on_origin = fs::read(path("origin/dirty")).unwrap();
    let old = |at: usize| [2, 9].contains(&(at / 4096));
    assert!(on_origin.iter().enumerate().all(|(at, byte)| *byte == if old(at) { 1 } else { 2 }));
}

/// Path, offset, length and whether it is dirty of each range that `fsck` calls damaged.
fn places(found: &Value) -> Vec<(String, u64, u64, bool)> {
    let problems = found["problems"].as_array().unwrap().iter();
    let place = problems.map(|problem| {
        assert_eq!(problem["problem"], "damaged-data", "{found}");
        let number = |key: &str| problem[key].as_u64().unwrap();
        let path = problem["path"].as_str().unwrap().to_owned();
        (path, number("offset"), number("length"), problem["dirty"].as_bool().unwrap())
    });
    let mut places: Vec<_> = place.collect();
    places.sort();
    places
}

fn objects_below(dir: &Path) -> Vec<PathBuf> {
    let dirs = fs::read_dir(dir).unwrap().map(|dir| dir.unwrap().path());
    dirs.flat_map(|dir| fs::read_dir(dir).unwrap()).map(|object| object.unwrap().path()).collect()
}
