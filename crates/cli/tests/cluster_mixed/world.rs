//! The mounts, the files that are open on them, and what was done so far.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use halocline_fuse::transport::uring;
use halocline_testkit::hostile::Random;
use halocline_testkit::program;
use halocline_testkit::redis_server::RedisServer;
use halocline_testkit::sandbox::{last_lines, said};
use halocline_testkit::scratch::Scratch;
use rustix::process::{Signal, kill_process};

use crate::model::{Content, Model, NAMES};

pub(crate) const NODES: [&str; 3] = ["one", "other", "third"];
const CACHES: [&str; 3] = ["cache", "cache2", "cache3"];
/// Calls that are shown where one answers wrongly.
const SHOWN: usize = 60;

/// Caches that fill up; whatever a user may choose differently on each node.
const KINDS: [&[&str]; 7] = [
    &["--size", "1M", "--max-dirty-age", "30s"],
    &["--size", "8M", "--rebuild=false", "--peers", "{cache}"],
    &["--size", "1M", "--mode", "write-through", "--peers", "{cache}"],
    &["--size", "2M", "--checksums=false", "--max-dirty-age", "300ms", "--peers", "{cache}"],
    &["--size", "4M", "--cache-volume", "striped", "--cache-servers", "3", "--cache-stripe", "16K"],
    &["--size", "1M", "--verify-reads=false", "--warm-passthrough=true", "--eviction", "lru"],
    &["--size", "1M", "--direct=true", "--flush-workers", "3", "--peers", "{cache}"],
];

/// How a file is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    Plain,
    Append,
    /// `O_APPEND` was set afterwards.
    AppendLater,
    /// `O_APPEND` was taken away afterwards.
    NotAnyMore,
    Direct,
}

#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) node: usize,
    pub(crate) file: File,
    pub(crate) of: usize,
    pub(crate) how: How,
}

/// The most that a node's status said at any time.
#[derive(Debug, Default, Clone, Copy)]
struct Most {
    admitted: u64,
    dirty: u64,
    handovers: u64,
    mapped: u64,
}

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) model: Model,
    pub(crate) open: Vec<Open>,
    pub(crate) step: u64,
    seed: u64,
    history: Vec<String>,
    options: [Vec<&'static str>; 3],
    most: [Most; 3],
    scratch: Scratch,
    store: RedisServer,
}

impl World {
    pub(crate) fn new(seed: u64, random: &mut Random) -> Option<Self> {
        let scratch = Scratch::with_mountpoints(program!(), &NODES)?;
        let store = RedisServer::start(&[])?;
        let has_ring = uring::obstacle().is_none();
        let options = [0, 1, 2].map(|node| {
            // One of them has dirty bytes for long.
            let kind = if node == 0 { random.below(2) } else { random.below(KINDS.len()) };
            let mut options = KINDS[kind].to_vec();
            options.push(if has_ring && random.below(4) == 0 {
                "--io-uring=true"
            } else {
                "--io-uring=false"
            });
            options
        });
        println!("{options:?}");
        let (most, history) = Default::default();
        let (model, open) = Default::default();
        let world = Self { model, open, step: 0, seed, history, options, most, scratch, store };
        for (node, cache) in CACHES.into_iter().enumerate() {
            fs::create_dir_all(world.scratch.path(cache)).unwrap();
            world.mount(node);
        }
        fs::create_dir(world.path(0, "dir")).unwrap();
        Some(world)
    }

    fn mount(&self, node: usize) {
        let url = self.store.url();
        let place = ["mount", "origin", NODES[node], "--cache", CACHES[node], "--cluster", &url];
        let who = ["--policy", "always", "--node", NODES[node]];
        let mounted = self.scratch.halocline(&[&place[..], &who, &self.options[node]].concat());
        assert!(mounted.status.success(), "{}", said(&mounted));
    }

    pub(crate) fn path(&self, node: usize, name: &str) -> PathBuf {
        self.scratch.path(NODES[node]).join(name)
    }

    /// Notes what is done next.
    pub(crate) fn note(&mut self, what: &str) {
        self.history.push(format!("{}: {what}", self.step));
    }

    #[track_caller]
    pub(crate) fn fail(&self, what: &str) -> ! {
        let from = self.history.len().saturating_sub(SHOWN);
        for cache in CACHES {
            println!("{}", last_lines(&self.scratch.path(cache).join("halocline.log")));
        }
        let before = self.history[from..].join("\n");
        panic!("seed {}, step {}: {what} after\n{before}", self.seed, self.step);
    }

    /// The answer of a call.
    #[track_caller]
    pub(crate) fn expect<T>(&self, answer: Result<T, impl std::fmt::Display>) -> T {
        match answer {
            Ok(answer) => answer,
            Err(error) => self.fail(&format!("{error}")),
        }
    }

    /// What was found of a file is what it has.
    #[track_caller]
    pub(crate) fn compare(&self, found: &[u8], of: usize, (offset, length): (usize, usize)) {
        let wanted = self.model.files[of].read(offset, length);
        if found.len() != wanted.len() {
            self.fail(&format!("{} bytes of file {of}, not {}", found.len(), wanted.len()));
        }
        let wrong = found.iter().zip(wanted).position(|(found, wanted)| found != wanted);
        if let Some(at) = wrong {
            let (found, wanted) = (found[at], wanted[at]);
            self.fail(&format!("file {of} has {found} at {}, not {wanted}", offset + at));
        }
    }

    /// Opens a name, or makes it, on some node.
    pub(crate) fn open_name(&mut self, name: &'static str, random: &mut Random) -> usize {
        let node = random.below(NODES.len());
        let how =
            [How::Plain, How::Plain, How::Append, How::AppendLater, How::NotAnyMore, How::Direct]
                [random.below(6)];
        let of = self.model.names.get(name).copied();
        self.note(&format!("{}: open {name} {how:?}, file {of:?}", NODES[node]));
        let flags = match how {
            How::Append | How::NotAnyMore => libc::O_APPEND,
            How::Direct => libc::O_DIRECT,
            How::Plain | How::AppendLater => 0,
        };
        let mut options = File::options();
        options.read(true).write(true).custom_flags(flags).create_new(of.is_none());
        let file = self.expect(options.open(self.path(node, name)));
        let of = of.unwrap_or_else(|| self.model.create(name));
        let later = match how {
            How::AppendLater => Some(rustix::fs::OFlags::APPEND),
            How::NotAnyMore => Some(rustix::fs::OFlags::empty()),
            _ => None,
        };
        if let Some(flags) = later {
            self.expect(rustix::fs::fcntl_setfl(&file, flags));
        }
        self.open.push(Open { node, file, of, how });
        self.open.len() - 1
    }

    /// A file that is open on some node.
    pub(crate) fn any_open(&mut self, random: &mut Random) -> usize {
        if self.open.len() < 4 || self.open.len() < 12 && random.below(10) == 0 {
            return self.open_name(NAMES[random.below(NAMES.len())], random);
        }
        random.below(self.open.len())
    }

    /// The same file on each node, opened for this, and long enough.
    pub(crate) fn on_all_nodes(
        &mut self,
        least: usize,
        random: &mut Random,
        appends: bool,
    ) -> (usize, [File; 3]) {
        let name = NAMES[random.below(NAMES.len())];
        if !self.model.names.contains_key(name) {
            self.open_name(name, random);
        }
        let of = self.model.names[name];
        let files = [0, 1, 2].map(|node| {
            let mut options = File::options();
            options.read(true).write(!appends).append(appends);
            self.expect(options.open(self.path(node, name)))
        });
        if self.model.files[of].bytes.len() < least {
            self.note(&format!("file {of} gets {least} bytes"));
            self.expect(files[random.below(3)].set_len(least as u64));
            self.model.files[of].resize(least);
        }
        (of, files)
    }

    /// All that a file has, as each node shows it.
    #[track_caller]
    pub(crate) fn compare_all(&self, of: usize, files: &[File; 3]) {
        for file in files {
            let found = self.expect(whole(file));
            self.compare(&found, of, (0, usize::MAX / 2));
        }
    }

    /// Some name's size and time, as some node shows them.
    pub(crate) fn compare_sizes(&mut self, random: &mut Random) {
        let (name, node) = (NAMES[random.below(NAMES.len())], random.below(NODES.len()));
        let found = fs::metadata(self.path(node, name));
        let Some(&of) = self.model.names.get(name) else {
            if found.is_ok() {
                self.fail(&format!("{}: {name} is there", NODES[node]));
            }
            return;
        };
        let found = self.expect(found);
        let Content { bytes, time } = &self.model.files[of];
        if found.len() != bytes.len() as u64 {
            let (found, wanted) = (found.len(), bytes.len());
            self.fail(&format!("{}: {name} has {found} bytes, not {wanted}", NODES[node]));
        }
        if let Some(time) = time.filter(|time| *time != found.mtime()) {
            self.fail(&format!("{}: {name} is of {}, not {time}", NODES[node], found.mtime()));
        }
    }

    /// A node dies, and comes back with its cache.
    pub(crate) fn kill_and_mount(&mut self, random: &mut Random) {
        self.look_at_status();
        let node = random.below(NODES.len());
        self.note(&format!("kill {}", NODES[node]));
        self.open.retain(|open| open.node != node);
        self.expect(kill_process(self.scratch.pid(NODES[node]), Signal::KILL));
        self.scratch.clear(NODES[node]);
        self.mount(node);
    }

    /// Flushes a node, or evicts a file.
    pub(crate) fn command(&mut self, random: &mut Random) {
        let node = NODES[random.below(NODES.len())];
        let name = NAMES[random.below(NAMES.len())];
        let done = if random.below(2) == 0 {
            self.note(&format!("flush {node}"));
            self.scratch.halocline(&["flush", node])
        } else {
            self.note(&format!("evict {node}/{name}"));
            // There may be no such file.
            self.scratch.halocline(&["evict", &format!("{node}/{name}")]);
            return;
        };
        if !done.status.success() {
            self.fail(&said(&done));
        }
    }

    pub(crate) fn look_at_status(&mut self) {
        for (node, most) in NODES.iter().zip(&mut self.most) {
            let status = self.scratch.status(node);
            let report = &status["report"];
            let count = |value: &serde_json::Value| value.as_u64().unwrap_or(0);
            most.admitted = most.admitted.max(count(&report["admitted"]["requests"]));
            most.dirty = most.dirty.max(count(&status["dirty_bytes"]));
            most.handovers = most.handovers.max(count(&report["cluster"]["handovers"]));
            most.mapped = most.mapped.max(count(&status["mapped_bytes"]));
        }
    }

    /// The origin has everything, and nobody is left.
    pub(crate) fn end(mut self) {
        self.look_at_status();
        println!("{:?}", self.most);
        let all = |count: fn(&Most) -> u64| self.most.iter().map(count);
        assert!(all(|most| most.admitted).all(|count| count > 0), "nothing was cached");
        assert!(all(|most| most.dirty).any(|bytes| bytes > 0), "nothing was dirty");
        assert!(all(|most| most.handovers).all(|count| count > 0), "nothing changed hands");
        assert!(all(|most| most.mapped).any(|bytes| bytes > 380 << 10), "no cache was full");
        self.open.clear();
        for node in NODES {
            self.scratch.succeed(&["umount", node]);
        }
        let contents: BTreeMap<_, _> = self.model.names.clone();
        for (name, of) in contents {
            let found = fs::read(self.scratch.path("origin").join(name)).unwrap();
            self.compare(&found, of, (0, usize::MAX / 2));
        }
        for cache in CACHES {
            self.scratch.succeed(&["fsck", cache]);
        }
    }
}

/// All bytes of a file.
pub(crate) fn whole(file: &File) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(file.metadata()?.len()).expect("it fits in memory")];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}
