//! A cache belongs to one origin and one shape: the engine refuses any other, whoever opens it,
//! and leaves both directories as they were (I1, I2, I8).

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::fixture::{Fixture, still};
use halocline_api::config::{Binding, Config, VolumeKind, VolumeShape};
use halocline_cache::ExtentEngine;

/// An index beyond the servers that were asked for ended the process with a panic.
#[test]
fn a_striped_origin_is_opened_as_what_it_is_whatever_is_asked_for() {
    let shape = VolumeShape { kind: VolumeKind::Striped, servers: 2, stripe: 65_536 };
    let striped = Config { origin: shape, ..still(4 << 20, "always") };
    let mut fixture = Fixture::new(striped.clone());
    fixture.write("file", 0, &vec![7; 200_000]);
    fixture.flush();
    fixture.close();
    fixture.config = Config { origin: Config::default().origin, ..striped };
    fixture.open();
    assert!(fixture.read("file", 0, 200_000) == vec![7; 200_000]);
}

#[test]
fn a_cache_of_another_origin_is_refused_and_nothing_is_made_there() {
    let mut fixture = Fixture::new(still(1 << 20, "always"));
    fixture.write("a", 0, b"dirty");
    fixture.close_dirty();
    let bound = Binding::load(fixture.cache.path()).unwrap().unwrap();
    assert_eq!(bound.origin, fixture.origin.path());

    let other = tempfile::tempdir().unwrap();
    let mut striped = fixture.config.clone();
    striped.origin.kind = VolumeKind::Striped;
    for config in [&fixture.config, &striped] {
        let refused = ExtentEngine::open(other.path(), fixture.cache.path(), config);
        let message = refused.unwrap_err().to_string();
        assert!(message.contains("belongs to the origin"), "{message}");
        assert_eq!(fs::read_dir(other.path()).unwrap().count(), 0, "the other origin is untouched");
    }
    fixture.open();
    assert_eq!(fixture.read("a", 0, 5), b"dirty");
}

/// Regression: the origin was a striped volume for good before the cache was looked at.
#[test]
fn an_origin_becomes_a_striped_volume_only_if_nothing_refuses_the_mount() {
    let shape = VolumeShape { kind: VolumeKind::Striped, servers: 2, stripe: 65_536 };
    let config = Config { origin: shape, ..still(1 << 20, "always") };
    let scratch = tempfile::tempdir().unwrap();
    let (origin, full) = (scratch.path().join("origin"), scratch.path().join("full"));
    let (open, cache) = (scratch.path().join("open/cache"), scratch.path().join("cache"));
    for dir in [&origin, &full, &open, &cache] {
        fs::create_dir_all(dir).unwrap();
    }
    fs::write(full.join("data"), b"another's").unwrap();
    fs::set_permissions(open.parent().unwrap(), fs::Permissions::from_mode(0o777)).unwrap();
    let unknown = Config { policy: "best".to_owned(), ..config.clone() };
    let glob = Config { pin: vec!["[".to_owned()], ..config.clone() };
    for (cache, config, what) in [
        (&full, &config, "full"),
        (&open, &config, "open"),
        (&cache, &unknown, "best"),
        (&cache, &glob, "["),
    ] {
        let refused = ExtentEngine::open(&origin, cache, config).unwrap_err().to_string();
        assert!(refused.contains(what), "{what}: {refused}");
        assert_eq!(fs::read_dir(&origin).unwrap().count(), 0, "{what}: {refused}");
    }
    ExtentEngine::open(&origin, &cache, &config).unwrap().close().unwrap();
    assert!(origin.join("namespace").is_dir());
}

#[test]
fn a_cache_in_another_shape_is_refused() {
    let mut fixture = Fixture::new(still(1 << 20, "always"));
    fixture.close();
    let mut wide = fixture.config.clone();
    wide.cache.kind = VolumeKind::Striped;
    wide.cache.servers = 4;
    let refused = ExtentEngine::open(fixture.origin.path(), fixture.cache.path(), &wide);
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("another shape"), "{message}");
    assert!(!fixture.cache.path().join("server-0").exists());
}

#[test]
fn i8_a_second_engine_on_one_cache_is_refused_and_a_crashed_one_is_not() {
    let mut fixture = Fixture::new(still(1 << 20, "always"));
    fixture.write("a", 0, b"first");
    let second = ExtentEngine::open(fixture.origin.path(), fixture.cache.path(), &fixture.config);
    let message = second.unwrap_err().to_string();
    assert!(message.contains("in use by process"), "{message}");
    assert_eq!(fixture.read("a", 0, 5), b"first", "the owner goes on");
    fixture.crash();
    fixture.open();
    assert_eq!(fixture.read("a", 0, 5), b"first");
}
