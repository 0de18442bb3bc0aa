//! Bodies of this crate's fuzz targets (`fuzz/`): each takes bytes that anyone may have written. They are called by
//! cargo-fuzz, and by the tests below with the same seeds (docs/TESTING.md, fuzz targets).

use std::fs;
use std::path::{Component, Path};

use tempfile::TempDir;

use crate::config::{BINDING_FILE, Binding, Config, OPTIONS, SERVERS_MAX, STRIPE_BYTES_MAX};
use crate::globs::{Globs, is_glob};
use crate::jobs::job_file::{JobFile, REFERENCES_MAX};

pub use crate::control::claim::acl_fuzzing::acl;
pub use crate::control::claim::fuzzing::claims;
pub use crate::control::client::fuzzing::answer;
pub use crate::control::mount::fuzzing::mounts;
pub use crate::control::server::fuzzing::request;
pub use crate::jobs::opener::fuzzing::opener;

/// A directory of our own, in memory if possible.
fn scratch() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.expect("a directory")
}

/// A configuration file: either it is refused with its place, or each option has a value that can be written and read
/// again, and the cost models can calculate with its devices.
pub fn config(bytes: &[u8]) {
    let scratch = scratch();
    let path = scratch.path().join("halocline.toml");
    fs::write(&path, bytes).expect("it is written");
    let config = match Config::load(&path) {
        Ok(config) => config,
        Err(error) => return assert!(error.to_string().contains("halocline.toml"), "{error}"),
    };
    comes_back(&config);
    for profile in config.devices.values() {
        for service in [&profile.read, &profile.write] {
            let startup = service.startup_sequential_ps.max(service.startup_random_ps);
            let longest = (1 << 30) * u128::from(service.per_byte_ps);
            assert!(u64::try_from(u128::from(startup) + longest).is_ok(), "{profile:?}");
        }
    }
    for shape in [config.origin_shape(), config.cache_shape()] {
        assert!((1..=SERVERS_MAX).contains(&shape.servers), "{shape:?}");
    }
    let _ = config.cache_bytes(1 << 40);
}

/// A job file: what is accepted is bounded, and plain paths below the mount.
pub fn job_file(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    for node in [Some("n1"), Some("other"), None] {
        let Ok(job) = JobFile::parse(text, node) else { continue };
        assert!((1..=120).contains(&job.name.len()));
        let total: u64 = job.references.iter().map(|(_, times)| u64::from(*times)).sum();
        let least = u64::from(!job.is_for_others);
        assert!((least..=REFERENCES_MAX as u64).contains(&total));
        for (path, times) in &job.references {
            assert!(
                *times > 0 && path.components().all(|part| matches!(part, Component::Normal(_)))
            );
            assert!(path.as_os_str().len() <= bytes.len());
        }
    }
}

/// Setting each option to its own text changes nothing.
fn comes_back(config: &Config) {
    for option in OPTIONS {
        let text = (option.get)(config);
        let mut again = Config { profiles: config.profiles.clone(), ..Config::default() };
        // An empty text, as of an empty list, is allowed for the default only.
        if (option.set)(&mut again, &text).is_some() {
            assert_eq!((option.get)(&again), text, "{}", option.key);
        } else {
            assert_eq!(text, option.default_value(), "{}", option.key);
        }
    }
}

/// The text of one option (the first byte selects which), as a flag gives it.
pub fn option(bytes: &[u8]) {
    let Some((&which, text)) = bytes.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let option = &OPTIONS[usize::from(which) % OPTIONS.len()];
    let mut config = Config::default();
    match config.set(option, text) {
        Ok(()) => comes_back(&config),
        Err(error) => assert!(error.to_string().contains(&option.flag()), "{error}"),
    }
}

/// The binding of a cache: either it is refused, or its geometry can be used in calculations.
pub fn binding(bytes: &[u8]) {
    let scratch = scratch();
    fs::write(scratch.path().join(BINDING_FILE), bytes).expect("it is written");
    let Ok(Some(binding)) = Binding::load(scratch.path()) else { return };
    let geometry = binding.geometry();
    assert!((1..=SERVERS_MAX).contains(&geometry.servers()));
    assert!(geometry.servers() == 1 || geometry.stripe() <= STRIPE_BYTES_MAX);
    assert!(geometry.groups().is_none_or(|groups| groups <= geometry.servers()));
}

/// Pins and excludes that commands set in an earlier session: what is accepted stays the same when it is saved, and
/// matches in bounded time and memory.
pub fn rules(bytes: &[u8]) {
    let scratch = scratch();
    fs::write(scratch.path().join("rules.json"), bytes).expect("it is written");
    let Ok(globs) = Globs::load(scratch.path(), &[], &[]) else { return };
    for glob in globs.pin_sources().iter().chain(globs.exclude_sources()) {
        let _ = (is_glob(glob), globs.pins(Path::new(glob)), globs.excludes(Path::new(glob)));
    }
    globs.save(scratch.path()).expect("it is written");
    let again = Globs::load(scratch.path(), &[], &[]).expect("our own");
    assert_eq!(again.pin_sources(), globs.pin_sources());
    assert_eq!(again.exclude_sources(), globs.exclude_sources());
}

#[cfg(test)]
mod tests;
