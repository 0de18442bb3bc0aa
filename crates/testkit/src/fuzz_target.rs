//! Fuzz targets (`fuzz/`) as plain tests: the same bodies over the same seeds, changed at random.
//!
//! cargo-fuzz finds its way by coverage and needs another compiler; what it starts from, and what it found, lies in
//! `fuzz/seeds/TARGET` and is tried by the ordinary tests, too (docs/TESTING.md, fuzz targets).

use std::fs;
use std::path::PathBuf;

use crate::hostile::attack;

/// Where the seeds of a target lie.
fn dir_of(target: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds")).join(target)
}

/// Calls `body`, that of the fuzz target `target`, with its seeds and `rounds` times with changed ones.
///
/// `made` are the seeds that our own writers make, with the names of their files: those in `fuzz/seeds` must be the
/// same, or a format changed and they did not. `HALOCLINE_WRITE_SEEDS=1` writes them. Other files there are what was
/// found; they are never written here.
///
/// # Panics
/// As `body` does, and where a seed is not what its writer makes.
pub fn run(target: &str, made: &[(&str, Vec<u8>)], rounds: u64, body: impl FnMut(&[u8])) {
    let dir = dir_of(target);
    if std::env::var_os("HALOCLINE_WRITE_SEEDS").is_some() {
        fs::create_dir_all(&dir).expect("a directory for seeds");
        for (name, bytes) in made {
            fs::write(dir.join(name), bytes).expect("a seed is written");
        }
    }
    for (name, bytes) in made {
        let found = fs::read(dir.join(name)).unwrap_or_default();
        assert!(
            found == *bytes,
            "fuzz/seeds/{target}/{name} is not what is written today: HALOCLINE_WRITE_SEEDS=1 writes it anew"
        );
    }
    let entries = fs::read_dir(&dir).expect("a target has seeds");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort_unstable();
    let seeds: Vec<Vec<u8>> =
        paths.iter().map(|path| fs::read(path).expect("a seed is read")).collect();
    let seeds: Vec<&[u8]> = seeds.iter().map(Vec::as_slice).collect();
    attack(&seeds, rounds, body);
}
