//! Two mounts of one origin, with caches of their own and a real store of tokens between them.

use std::fs::{self, File};
use std::ops::Deref;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Output;

use crate::hostile::Random;
use crate::redis_cluster::RedisCluster;
use crate::redis_server::RedisServer;
use crate::sandbox::said;
use crate::scratch::Scratch;

/// The names of the nodes, which are those of their mount points.
pub const NODES: [&str; 2] = ["one", "other"];

/// Their cache directories, in the same order.
pub const CACHES: [&str; 2] = ["cache", "cache2"];

/// What may be the store of tokens.
pub trait TokenStore {
    /// Where clients find it.
    fn urls(&self) -> String;

    /// Where one of the nodes finds it.
    fn urls_of(&self, _node: &str) -> String {
        self.urls()
    }

    /// What is to be run in place of the command.
    fn stand_in(&self, program: PathBuf) -> PathBuf {
        program
    }

    /// Does something from where one of the nodes is: the programs that it starts reach what the node reaches.
    fn beside<T>(&self, _node: &str, act: impl FnOnce() -> T) -> T {
        act()
    }
}

impl TokenStore for RedisServer {
    fn urls(&self) -> String {
        self.url()
    }
}

impl TokenStore for RedisCluster {
    fn urls(&self) -> String {
        Self::urls(self)
    }
}

/// Two nodes, `one` and `other`, over one origin, with the caches `cache` and `cache2`.
#[derive(Debug)]
pub struct Nodes<S = RedisServer> {
    /// Where they are.
    pub scratch: Scratch,
    /// Their store.
    pub store: S,
    /// The origin as each reaches it.
    origins: [String; 2],
    options: Vec<String>,
}

impl<S> Deref for Nodes<S> {
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
        Some(Self::over(scratch, ["origin"; 2].map(str::to_owned), store, options))
    }
}

impl<S: TokenStore> Nodes<S> {
    /// Mounts both in a place with these mount points, over an origin that each reaches by a path of its own.
    pub fn over(scratch: Scratch, origins: [String; 2], store: S, options: &[&str]) -> Self {
        let options = options.iter().map(|&option| option.to_owned()).collect();
        let nodes = Self { scratch, store, origins, options };
        for (node, cache) in NODES.into_iter().zip(CACHES) {
            fs::create_dir_all(nodes.path(cache)).unwrap();
            let mounted = nodes.mount(node, cache);
            assert!(mounted.status.success(), "{}", said(&mounted));
        }
        nodes
    }

    /// Mounts a node.
    pub fn mount(&self, node: &str, cache: &str) -> Output {
        let options: Vec<&str> = self.options.iter().map(String::as_str).collect();
        self.mount_with(node, cache, &options)
    }

    /// The same with other options.
    pub fn mount_with(&self, node: &str, cache: &str, options: &[&str]) -> Output {
        let origin = &self.origins[usize::from(node == NODES[1])];
        let place = ["mount", origin, node, "--cache", cache, "--policy", "always"];
        let url = self.store.urls_of(node);
        let who = ["--cluster", &url, "--node", node];
        // Nothing is flushed before somebody wants it, unless a test says so.
        let is_said = options.iter().any(|option| option.starts_with("--rebuild"));
        let quiet: &[&str] = if is_said { &[] } else { &["--rebuild=false"] };
        let args = [&place[..], &who, quiet, options].concat();
        self.store.beside(node, || self.halocline(&args))
    }

    /// `halocline cluster`.
    pub fn cluster(&self, what: &str, rest: &[&str]) -> Output {
        let url = self.store.urls();
        self.halocline(&[&["cluster", what, &self.origins[0], "--cluster", &url], rest].concat())
    }

    /// The names of the entries in the list of sessions.
    pub fn listed(&self) -> Vec<String> {
        let list = fs::read_dir(self.path("origin/.halocline-cluster")).unwrap();
        let names = list.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("session-")).collect()
    }

    /// A file, made if need be, as each node has it, open to read and write.
    pub fn open(&self, name: &str) -> [File; 2] {
        NODES.map(|node| {
            let path = self.path(node).join(name);
            File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
        })
    }
}

/// Changes a file on either of two nodes at random, and sees size and bytes of each change on the other one at once (I11).
/// Returns what the file has then.
pub fn see_each_others_changes(files: &[File; 2], seed: u64) -> Vec<u8> {
    let (mut model, mut random) = (Vec::new(), Random(seed));
    for step in 0..200_usize {
        let writer = random.below(2);
        let (offset, length) = (random.below(200_000), random.below(20_000) + 1);
        let bytes = vec![u8::try_from(step % 251 + 1).unwrap(); length];
        if step % 16 == 15 {
            files[writer].set_len(offset as u64).unwrap();
            model.resize(offset, 0);
        } else {
            files[writer].write_all_at(&bytes, offset as u64).unwrap();
            model.resize(model.len().max(offset + length), 0);
            model[offset..offset + length].copy_from_slice(&bytes);
        }
        let reader = &files[1 - writer];
        assert_eq!(reader.metadata().unwrap().len(), model.len() as u64, "step {step}");
        let offset = random.below(model.len() + 1);
        let mut found = vec![0; (model.len() - offset).min(30_000)];
        reader.read_exact_at(&mut found, offset as u64).unwrap();
        assert!(found == model[offset..offset + found.len()], "step {step} at {offset}");
    }
    model
}
