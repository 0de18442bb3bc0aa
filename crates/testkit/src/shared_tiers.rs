//! Tiers of several nodes on one machine: mount points `NAME`, each with its tiers in `NAME-tiers` and one disk for all.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Output;

use crate::scratch::Scratch;

/// Makes the directories of so many nodes.
///
/// # Panics
/// If they cannot be made.
pub fn make(scratch: &Scratch, nodes: &[&str]) {
    fs::create_dir(scratch.path("disk")).unwrap();
    for node in nodes {
        fs::create_dir_all(scratch.path(&format!("{node}-tiers/ssd"))).unwrap();
        symlink("../disk", scratch.path(&format!("{node}-tiers/hdd"))).unwrap();
    }
}

/// Where each finds the others' SSDs: the value of `--peers`.
///
/// # Panics
/// If the directory's name is not UTF-8.
pub fn peers(scratch: &Scratch) -> String {
    scratch.path("{node}-tiers/ssd").to_str().unwrap().to_owned()
}

/// Mounts a node's tiers with the names in a store.
pub fn mount(scratch: &Scratch, store_url: &str, node: &str) -> Output {
    mount_with(scratch, store_url, node, &[])
}

/// The same with more options.
pub fn mount_with(scratch: &Scratch, store_url: &str, node: &str, more: &[&str]) -> Output {
    let (root, peers) = (format!("{node}-tiers"), peers(scratch));
    let cluster = ["--cluster", store_url, "--node", node, "--peers", &peers];
    scratch.halocline(&[&["mount", "--tier", &root, node][..], &cluster, more].concat())
}
