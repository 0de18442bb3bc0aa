//! The disks of a node, and what is on them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use halocline_cluster::names::memory::MemoryNames;
use halocline_model::namespace::Shards;
use halocline_shared_tier::{SharedTier, repair};
use halocline_vfs::{Engine, Tree};

use crate::CALLER;

/// A node's SSD, the disk that all nodes share, and the store of names.
pub(crate) struct Disks {
    scratch: tempfile::TempDir,
    pub(crate) store: MemoryNames,
}

impl Disks {
    /// Empty ones.
    pub(crate) fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        fs::create_dir(scratch.path().join("shared")).unwrap();
        fs::create_dir_all(scratch.path().join("n1/ssd")).unwrap();
        symlink("../shared", scratch.path().join("n1/hdd")).unwrap();
        Self { scratch, store: MemoryNames::default() }
    }

    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.scratch.path().join(path)
    }

    /// Rebuilds the names from the disks, if they have to be.
    pub(crate) fn repair(&self) {
        let peers = format!("{}/{{node}}/ssd", self.scratch.path().display());
        repair::run(&self.at("n1"), Some(&peers), &self.store, true).unwrap();
    }

    /// Whatever was repaired is as the store has it.
    pub(crate) fn are_as_in_store(&self, after: &str) {
        let peers = format!("{}/{{node}}/ssd", self.scratch.path().display());
        let found = repair::run(&self.at("n1"), Some(&peers), &self.store, false).unwrap();
        assert!(found.is_clean(), "{after}: {found:?}");
    }

    /// The store comes back empty.
    pub(crate) fn forget(&self) {
        self.store.restart(Shards(BTreeMap::new()));
    }
}

/// Every path with its content: a file's text, or what else it is.
pub(crate) fn tree(tier: &SharedTier) -> BTreeMap<String, String> {
    let mut tree = BTreeMap::new();
    let mut todo = vec![(String::new(), Engine::root(tier))];
    while let Some((path, directory)) = todo.pop() {
        for name in names(tier, &directory) {
            let path = format!("{path}/{}", name.to_str().unwrap());
            let (vnode, stat) = tier.lookup(&directory, &name).unwrap();
            let what = match stat.raw.st_mode & libc::S_IFMT {
                libc::S_IFDIR => {
                    todo.push((path.clone(), vnode));
                    "directory".to_owned()
                }
                libc::S_IFLNK => {
                    let (names, vnode) = tier.below(&vnode);
                    format!("link to {}", names.read_link(&vnode).unwrap().display())
                }
                _ => text(tier, &vnode),
            };
            tree.insert(path, what);
        }
    }
    tree
}

fn names(tier: &SharedTier, directory: &<SharedTier as Engine>::Vnode) -> Vec<OsString> {
    let opened = tier.open_dir(directory).unwrap();
    let mut names = Vec::new();
    let mut take = |entry: halocline_vfs::DirEntry| {
        names.push(entry.name);
        true
    };
    tier.read_dir(&opened, 0, &mut take).unwrap();
    names.retain(|name| name != "." && name != "..");
    names
}

fn text(tier: &SharedTier, vnode: &<SharedTier as Engine>::Vnode) -> String {
    let handle = match tier.open(vnode, libc::O_RDONLY, CALLER) {
        Ok(handle) => handle,
        Err(error) => return format!("error {}", error.errno()),
    };
    let mut bytes = vec![0; 100];
    let len = tier.read(&handle, 0, &mut bytes, CALLER).unwrap();
    bytes.truncate(len);
    String::from_utf8(bytes).unwrap()
}
