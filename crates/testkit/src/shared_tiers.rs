//! Tiers of several nodes on one machine: mount points `NAME`, each with its tiers in `NAME-tiers` and one disk for all.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Output;

use crate::redis_server::RedisServer;
use crate::sandbox::said;
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

/// Mounts a node's tiers with the names in a store, and with these options.
pub fn mount_with(scratch: &Scratch, store_url: &str, node: &str, more: &[&str]) -> Output {
    let (root, peers) = (format!("{node}-tiers"), peers(scratch));
    let cluster = ["--cluster", store_url, "--node", node, "--peers", &peers];
    scratch.halocline(&[&["mount", "--tier", &root, node][..], &cluster, more].concat())
}

/// Nodes with a store of their own.
#[derive(Debug)]
pub struct SharedTiers {
    /// Where all lies.
    pub scratch: Scratch,
    /// The store of their names.
    pub store: RedisServer,
}

impl SharedTiers {
    /// Nodes with these names, not mounted yet; `None`, with the reason, where that cannot be tried.
    pub fn new(scratch: Scratch, nodes: &[&str]) -> Option<Self> {
        let store = RedisServer::start(&[])?;
        make(&scratch, nodes);
        Some(Self { scratch, store })
    }

    /// Mounts nodes.
    ///
    /// # Panics
    /// If one of them refuses.
    #[track_caller]
    #[must_use]
    pub fn mounted(self, nodes: &[&str], options: &[&str]) -> Self {
        for node in nodes {
            let mounted = self.mount(node, options);
            assert!(mounted.status.success(), "{}", said(&mounted));
        }
        self
    }

    /// Mounts a node, and returns what the command said.
    #[must_use]
    pub fn mount(&self, node: &str, options: &[&str]) -> Output {
        mount_with(&self.scratch, &self.store.url(), node, options)
    }

    /// A name as a node shows it.
    #[must_use]
    pub fn at(&self, node: &str, name: &str) -> PathBuf {
        self.scratch.path(node).join(name)
    }
}
