//! Tiers of several nodes on one machine: mount points `NAME`, each with its tiers in `NAME-tiers` and one disk for all.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Output;
use std::thread;
use std::time::{Duration, Instant};

use crate::redis_server::RedisServer;
use crate::sandbox::{said, written};
use crate::scratch::Scratch;
use crate::waiting::{WAIT_LIMIT, eventually};

/// The pause before something is tried again.
const PAUSE: Duration = Duration::from_millis(20);

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

/// Unmounts a node in order, as soon as no program has a file there.
///
/// # Panics
/// If it stays mounted.
#[track_caller]
pub fn unmount(scratch: &Scratch, node: &str) {
    let begun = Instant::now();
    loop {
        let unmounted = scratch.halocline(&["umount", node]);
        // It says also that it could not leave a store that knows it no more.
        if unmounted.status.success() || said(&unmounted).contains("not on a halocline mount") {
            return;
        }
        assert!(begun.elapsed() < WAIT_LIMIT, "{node}: {}", said(&unmounted));
        thread::sleep(PAUSE);
    }
}

/// What `halocline cluster fsck` of the tier says, with these options.
pub fn fsck(scratch: &Scratch, store_url: &str, more: &[&str]) -> Output {
    let peers = peers(scratch);
    let tier = ["cluster", "fsck", "--tier", "one-tiers", "--cluster", store_url];
    scratch.halocline(&[&tier[..], &["--peers", &peers], more].concat())
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

    /// Nodes with these names, which `program` mounts with these options; `None`, with the reason, where that cannot be tried.
    ///
    /// # Panics
    /// If one of them refuses.
    #[track_caller]
    pub fn started(
        program: PathBuf,
        nodes: &'static [&'static str],
        options: &[&str],
    ) -> Option<Self> {
        let scratch = Scratch::with_mountpoints(program, nodes)?;
        Some(Self::new(scratch, nodes)?.mounted(nodes, options))
    }

    /// What `halocline cluster fsck` of the tier says, with these options.
    pub fn fsck(&self, more: &[&str]) -> Output {
        fsck(&self.scratch, &self.store.url(), more)
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

    /// Runs a command that moves files, which must succeed; returns what it wrote to standard output. A file that a program has just closed
    /// is open until the kernel has told its mount of that, and until the store has it: then the command is run again.
    ///
    /// # Panics
    /// If it fails for another reason, or something stays open.
    #[track_caller]
    pub fn moves(&self, args: &[&str]) -> String {
        let mut moved = None;
        eventually("that nothing is open any more", || {
            let done = self.scratch.halocline(args);
            let all = [written(&done), said(&done)].concat();
            let is_open = all.contains("has it open");
            assert!(done.status.success() || is_open, "{args:?}: {all}");
            moved = (!is_open).then(|| written(&done));
            moved.is_some()
        });
        moved.unwrap_or_default()
    }

    /// Waits until no program has a file open, or one below a directory, as far as the store knows.
    ///
    /// # Panics
    /// If something stays open.
    #[track_caller]
    pub fn until_closed(&self, node: &str, name: &str) {
        let path = format!("{node}/{name}");
        eventually("that it is closed", || {
            let done = self.scratch.halocline(&["demote", "--dry-run", &path]);
            ![written(&done), said(&done)].concat().contains("has it open")
        });
    }

    /// Demotes a file; whether that was done.
    #[must_use]
    pub fn demotes(&self, node: &str, name: &str) -> bool {
        self.scratch.halocline(&["demote", &format!("{node}/{name}")]).status.success()
    }

    /// How many requests a node has sent to the store of names.
    ///
    /// # Panics
    /// If its status does not say that.
    #[must_use]
    pub fn requests(&self, node: &str) -> u128 {
        let status = self.scratch.status(node);
        let notes = status["notes"].as_array().unwrap().iter().filter_map(|note| note.as_str());
        let told = notes.filter_map(|note| note.split_once(" request")?.0.rsplit_once("; "));
        told.map(|(_, count)| count.parse().unwrap()).next().unwrap()
    }

    /// A name as a node shows it.
    #[must_use]
    pub fn at(&self, node: &str, name: &str) -> PathBuf {
        self.scratch.path(node).join(name)
    }
}
