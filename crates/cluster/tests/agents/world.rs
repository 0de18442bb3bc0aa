//! Nodes with caches in memory over one origin in memory, and a ledger of what was written last. What a node does under
//! its permits is what an engine does; each step looks whether anything is wrong.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use halocline_cache::coherence::{Coherence, FileTokens, LocalCache, Permit, SharedFile, Want};
use halocline_cluster::agent::{Agent, Options};
use halocline_cluster::registry::Registry;
use halocline_cluster::store::Store;
use halocline_model::request::{ByteRange, Direction};
use halocline_os::clock::Clock;
use halocline_os::error::Result;
use parking_lot::Mutex;

pub(crate) const BLOCK: u64 = 4096;
pub(crate) const BLOCKS: u64 = 8;
pub(crate) const FILES: u64 = 2;

type Block = (SharedFile, u64);

pub(crate) fn file(number: u64) -> SharedFile {
    SharedFile { inode: number, born_ns: 1 }
}

/// What all nodes share besides the store.
#[derive(Debug, Default)]
pub(crate) struct Origin {
    blocks: Mutex<BTreeMap<Block, u64>>,
    /// What was written last, and acknowledged.
    ledger: Mutex<BTreeMap<Block, u64>>,
    writers: Mutex<BTreeMap<Block, u64>>,
    next: AtomicU64,
}

impl Origin {
    fn read(&self, block: Block) -> u64 {
        self.blocks.lock().get(&block).copied().unwrap_or(0)
    }

    fn newest(&self, block: Block) -> u64 {
        self.ledger.lock().get(&block).copied().unwrap_or(0)
    }

    /// All that was written is there.
    #[track_caller]
    pub(crate) fn check(&self) {
        assert_eq!(*self.blocks.lock(), *self.ledger.lock(), "I14: nothing is lost");
    }
}

/// A block on a node's cache.
#[derive(Debug, Clone, Copy)]
struct Copy {
    value: u64,
    dirty: bool,
}

/// What an engine does when others want something.
#[derive(Debug)]
pub(crate) struct Cache {
    origin: Arc<Origin>,
    copies: Mutex<BTreeMap<Block, Copy>>,
    /// How many permits are under way over each block.
    used: Mutex<BTreeMap<Block, u64>>,
}

fn blocks(range: ByteRange) -> std::ops::Range<u64> {
    (range.start / BLOCK)..range.end.div_ceil(BLOCK).min(BLOCKS)
}

impl Cache {
    /// What is dirty goes to the origin: what recovers a node that is gone does this, too.
    pub(crate) fn bring_to_origin(&self) {
        for number in 0..FILES {
            self.give_up(file(number), ByteRange::new(0, u64::MAX), false).unwrap();
        }
    }
}

impl LocalCache for Cache {
    fn give_up(&self, file: SharedFile, range: ByteRange, keeps_clean: bool) -> Result<()> {
        for number in blocks(range) {
            let block = (file, number);
            let used = self.used.lock().get(&block).copied().unwrap_or(0);
            assert_eq!(used, 0, "given up while a request is under way: {block:?}");
            let mut copies = self.copies.lock();
            let Some(copy) = copies.get_mut(&block) else { continue };
            if std::mem::take(&mut copy.dirty) {
                self.origin.blocks.lock().insert(block, copy.value);
            }
            if !keeps_clean {
                copies.remove(&block);
            }
        }
        Ok(())
    }
}

/// A node.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) agent: Agent,
    pub(crate) cache: Arc<Cache>,
    pub(crate) clock: Clock,
    tokens: Vec<Arc<dyn FileTokens>>,
}

impl Node {
    pub(crate) fn new(
        name: &str,
        store: Arc<dyn Store>,
        registry: &Path,
        origin: &Arc<Origin>,
        change: impl Fn(&mut Options),
    ) -> Self {
        let mut options = Options::new(name.to_owned(), "/ssd".into(), format!("cache of {name}"));
        options.poll = Duration::from_millis(50);
        options.wait_limit = Duration::from_mins(5);
        change(&mut options);
        let clock = options.clock.clone();
        let agent = Agent::begin(options, store, Registry::open(registry).unwrap()).unwrap();
        let cache = Arc::new(Cache {
            origin: Arc::clone(origin),
            copies: Mutex::default(),
            used: Mutex::default(),
        });
        let local_cache: Weak<dyn LocalCache> =
            Arc::downgrade(&(Arc::clone(&cache) as Arc<dyn LocalCache>));
        agent.attach(local_cache);
        let tokens = (0..FILES).map(|number| agent.tokens(file(number)).unwrap()).collect();
        Self { agent, cache, clock, tokens }
    }

    pub(crate) fn tokens(&self, number: u64) -> &dyn FileTokens {
        &*self.tokens[usize::try_from(number).unwrap()]
    }

    pub(crate) fn want(direction: Direction, block: u64, alone: bool) -> Want {
        let range = ByteRange::at(block * BLOCK, BLOCK);
        Want { direction, range, touches: range, alone }
    }

    /// A program's request for one block; it fails as the permit does.
    pub(crate) fn request(&self, number: u64, want: Want) -> Result<()> {
        let permit = Permit::wait(self.tokens(number), want)?;
        let block = (file(number), want.range.start / BLOCK);
        *self.cache.used.lock().entry(block).or_default() += 1;
        if want.direction == Direction::Write {
            self.write(block, permit.grant().caches);
        } else {
            self.read(block, permit.grant().caches);
        }
        *self.cache.used.lock().get_mut(&block).unwrap() -= 1;
        drop(permit);
        Ok(())
    }

    fn write(&self, block: Block, caches: bool) {
        let origin = &self.cache.origin;
        let value = origin.next.fetch_add(1, Ordering::Relaxed) + 1;
        if !caches {
            // Beside others, each by itself; and after a while, as on a disk.
            std::thread::sleep(Duration::from_micros(200));
            let mut blocks = origin.blocks.lock();
            blocks.insert(block, value);
            origin.ledger.lock().insert(block, value);
            return;
        }
        // Others on the same node may write beside it; an engine locks then.
        let mut copies = self.cache.copies.lock();
        let writers = *origin.writers.lock().entry(block).and_modify(|n| *n += 1).or_insert(1);
        assert_eq!(writers, 1, "I11: two nodes write {block:?}");
        std::thread::yield_now();
        copies.insert(block, Copy { value, dirty: true });
        origin.ledger.lock().insert(block, value);
        *origin.writers.lock().get_mut(&block).unwrap() -= 1;
    }

    fn read(&self, block: Block, caches: bool) {
        let origin = &self.cache.origin;
        if !caches {
            let blocks = origin.blocks.lock();
            assert_eq!(blocks.get(&block).copied().unwrap_or(0), origin.newest(block), "direct");
            return;
        }
        let mut copies = self.cache.copies.lock();
        let copy =
            copies.entry(block).or_insert_with(|| Copy { value: origin.read(block), dirty: false });
        assert_eq!(copy.value, origin.newest(block), "I13: {block:?} was read, but is older");
    }
}

/// Numbers that look random, the same ones for the same seed.
#[derive(Debug, Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}

/// Some requests of a program; `Err` where one was refused.
pub(crate) fn run(node: &Node, seed: u64, requests: u64) -> Result<()> {
    let mut random = Random(seed);
    for _ in 0..requests {
        let direction = if random.below(2) == 0 { Direction::Read } else { Direction::Write };
        let want = Node::want(direction, random.below(BLOCKS), random.below(8) == 0);
        node.request(random.below(FILES), want)?;
    }
    Ok(())
}
