//! Two mounts of one origin, with caches of their own and a real store of tokens between them.

use std::fs::{self, File};
use std::ops::Deref;
use std::path::PathBuf;
use std::process::Output;

use rustix::process::{Signal, kill_process};

use crate::place::said;
use crate::redis_server::RedisServer;
use crate::scratch::Scratch;
use crate::waiting::eventually;

/// The nodes, which are called as their mount points.
pub const NODES: [&str; 2] = ["one", "other"];

/// Two nodes, `one` and `other`, over `origin`, with the caches `cache` and `cache2`.
#[derive(Debug)]
pub struct Nodes {
    /// Where they are.
    pub scratch: Scratch,
    /// Their store.
    pub store: RedisServer,
    options: Vec<String>,
}

impl Deref for Nodes {
    type Target = Scratch;

    fn deref(&self) -> &Scratch {
        &self.scratch
    }
}

impl Nodes {
    /// Mounts both, with more options; `None`, with the reason, where that cannot be tried.
    pub fn new(program: PathBuf, options: &[&str]) -> Option<Self> {
        let scratch = Scratch::with_mountpoints(program, &NODES)?;
        let store = RedisServer::start(&[])?;
        let options = options.iter().map(|&option| option.to_owned()).collect();
        let nodes = Self { scratch, store, options };
        for (node, cache) in NODES.into_iter().zip(["cache", "cache2"]) {
            fs::create_dir_all(nodes.path(cache)).unwrap();
            let mounted = nodes.mount(node, cache);
            assert!(mounted.status.success(), "{}", said(&mounted));
        }
        Some(nodes)
    }

    /// Mounts a node.
    pub fn mount(&self, node: &str, cache: &str) -> Output {
        let options: Vec<&str> = self.options.iter().map(String::as_str).collect();
        self.mount_with(node, cache, &options)
    }

    /// The same with other options.
    pub fn mount_with(&self, node: &str, cache: &str, options: &[&str]) -> Output {
        let place = ["mount", "origin", node, "--cache", cache, "--policy", "always"];
        let url = self.store.url();
        let quiet = ["--rebuild=false", "--cluster", &url, "--node", node];
        self.halocline(&[&place[..], &quiet, options].concat())
    }

    /// Ends a node's process with `kill -9`; its mount point is free again.
    pub fn kill(&self, node: &str) {
        kill_process(self.pid(node), Signal::KILL).unwrap();
        eventually("its mount is gone", || {
            self.halocline(&["umount", "--force", node]);
            fs::read_dir(self.path(node)).is_ok_and(|entries| entries.count() == 0)
        });
    }

    /// `halocline cluster`.
    pub fn cluster(&self, what: &str, rest: &[&str]) -> Output {
        let url = self.store.url();
        self.halocline(&[&["cluster", what, "origin", "--cluster", &url], rest].concat())
    }

    /// A file, made if need be, as each node has it, open to read and write.
    pub fn open(&self, name: &str) -> [File; 2] {
        NODES.map(|node| {
            let path = self.path(node).join(name);
            File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
        })
    }
}
