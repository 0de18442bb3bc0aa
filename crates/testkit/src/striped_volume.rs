//! A striped volume with files, made through a mount.

use std::fs;

use crate::scratch::Scratch;

/// Bytes that differ from file to file, and from place to place.
pub fn content(file: &str, bytes: usize) -> Vec<u8> {
    let seed: usize = file.bytes().map(usize::from).sum();
    (0..bytes).map(|at| u8::try_from((at * 31 / 7 + seed) % 251).unwrap()).collect()
}

/// Makes the volume `volume`, of three servers, with `files` of so many bytes of [`content`], which are in `data`, too.
///
/// # Panics
/// If it cannot be made.
pub fn make(scratch: &Scratch, files: &[&str], bytes: usize) {
    for file in files {
        let path = scratch.path("data").join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content(file, bytes)).unwrap();
    }
    make_of_data(scratch, 3);
}

/// Makes the volume `volume`, of so many servers, with all that is in `data`, by a command that has the cache `cache`. The directory
/// of the volume, and those of its servers, may be there.
///
/// # Panics
/// If it cannot be made.
pub fn make_of_data(scratch: &Scratch, servers: u32) {
    fs::create_dir_all(scratch.path("volume")).unwrap();
    let run = ["run", "--origin", "volume", "--cache", "cache", "--origin-volume", "striped"];
    let servers = servers.to_string();
    let copy = ["--origin-servers", &servers, "--", "cp", "-r", "data/.", "volume/"];
    scratch.succeed(&[&run[..], &copy].concat());
}
