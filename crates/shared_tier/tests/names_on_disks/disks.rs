//! The disks of a node, and what is on them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::Arc;

use halocline_cluster::names::memory::MemoryNames;
use halocline_cluster::store::memory::MemoryStore;
use halocline_model::namespace::Shards;
use halocline_shared_tier::{Alone, SharedTier, repair};
use halocline_vfs::{Engine, Tree};

use crate::mounted::CALLER;

/// The names of the nodes.
pub(crate) const NODES: [&str; 2] = ["n1", "n2"];

/// The nodes' SSDs, the disk that they share, and their stores.
pub(crate) struct Disks {
    scratch: tempfile::TempDir,
    /// That of names.
    pub(crate) names: MemoryNames,
    /// That of sessions; its clock stands still.
    pub(crate) store: Arc<MemoryStore>,
}

impl Disks {
    /// Empty ones.
    pub(crate) fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        fs::create_dir(scratch.path().join("shared")).unwrap();
        for node in NODES {
            fs::create_dir_all(scratch.path().join(node).join("ssd")).unwrap();
            symlink("../shared", scratch.path().join(node).join("hdd")).unwrap();
        }
        Self { scratch, names: MemoryNames::default(), store: Arc::new(MemoryStore::new(1)) }
    }

    /// How nodes reach each other's SSDs.
    pub(crate) fn peers(&self) -> String {
        format!("{}/{{node}}/ssd", self.scratch.path().display())
    }

    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.scratch.path().join(path)
    }

    /// Rebuilds the names from the disks, if they have to be.
    pub(crate) fn repair(&self) {
        let (peers, alone) = (self.peers(), self.alone());
        repair::run(&self.at("n1"), Some(&peers), &self.names, Some(&alone)).unwrap();
    }

    /// That no node is mounted.
    pub(crate) fn alone(&self) -> Alone {
        Alone::on(&self.at("n1"), Some(&self.peers())).unwrap()
    }

    /// As an operator does who knows that a node never goes on: the locks of all of them no longer count.
    pub(crate) fn give_up_locks(&self) {
        fs::remove_dir_all(self.at("shared/.halocline/mounted")).unwrap();
        for node in fs::read_dir(self.scratch.path()).unwrap() {
            // Not all of these are the directories of nodes.
            let _missing = fs::remove_file(node.unwrap().path().join("ssd/.halocline/in-use"));
        }
    }

    /// Whatever was repaired is as the store has it.
    pub(crate) fn are_as_in_store(&self, after: &str) {
        let problems = self.problems();
        assert!(problems.is_empty(), "{after}: {problems}");
    }

    /// What a check finds.
    pub(crate) fn problems(&self) -> String {
        let found = repair::run(&self.at("n1"), Some(&self.peers()), &self.names, None).unwrap();
        if found.is_clean() { String::new() } else { format!("{found:?}") }
    }

    /// The store comes back empty.
    pub(crate) fn forget(&self) {
        self.names.restart(Shards(BTreeMap::new()));
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

pub(crate) fn names(tier: &SharedTier, directory: &<SharedTier as Engine>::Vnode) -> Vec<OsString> {
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
