//! Accesses to blocks, all of them or a sample by block.

use rustc_hash::FxHashMap;

/// Hashes of blocks are below this.
const HASHES: u64 = 1 << 32;

/// Accepts accesses in time order, in bounded memory: if there are too many, it keeps those of half of the blocks,
/// repeatedly.
#[derive(Debug)]
pub struct Sampler {
    most: usize,
    /// Blocks with a hash below it are kept.
    below: u64,
    all: u64,
    numbers: FxHashMap<(u32, u64), u32>,
    /// Hash of each number.
    hashes: Vec<u32>,
    kept: Vec<u32>,
}

/// The accesses to analyse.
#[derive(Debug)]
pub struct Accesses {
    all: u64,
    share: f64,
    hashes: Vec<u32>,
    kept: Vec<u32>,
}

impl Sampler {
    /// Keeps at most `most` accesses.
    pub fn new(most: usize) -> Self {
        let (numbers, hashes, kept) = (FxHashMap::default(), Vec::new(), Vec::new());
        Self { most: most.max(2), below: HASHES, all: 0, numbers, hashes, kept }
    }

    /// Takes the next access.
    pub fn push(&mut self, file: u32, block: u64) {
        self.all += 1;
        let hash = hash(file, block);
        if u64::from(hash) >= self.below {
            return;
        }
        let next = u32::try_from(self.hashes.len()).expect("less than what is kept");
        let number = *self.numbers.entry((file, block)).or_insert(next);
        if number == next {
            self.hashes.push(hash);
        }
        self.kept.push(number);
        while self.kept.len() > self.most && self.below > 1 {
            self.halve();
        }
    }

    /// Forgets the upper half of the blocks by hash.
    fn halve(&mut self) {
        self.below /= 2;
        let mut renamed = vec![None; self.hashes.len()];
        let mut hashes = Vec::new();
        for (hash, name) in self.hashes.iter().zip(&mut renamed) {
            if u64::from(*hash) < self.below {
                *name = u32::try_from(hashes.len()).ok();
                hashes.push(*hash);
            }
        }
        self.hashes = hashes;
        self.kept = self.kept.iter().filter_map(|number| renamed[*number as usize]).collect();
        self.numbers.retain(|_, number| match renamed[*number as usize] {
            Some(name) => {
                *number = name;
                true
            }
            None => false,
        });
    }

    /// What was kept.
    #[expect(clippy::cast_precision_loss, reason = "at most 2^32")]
    pub fn finish(self) -> Accesses {
        let share = self.below as f64 / HASHES as f64;
        Accesses { all: self.all, share, hashes: self.hashes, kept: self.kept }
    }
}

impl Accesses {
    /// Accesses of the whole trace.
    pub const fn all(&self) -> u64 {
        self.all
    }

    /// Share of the blocks that is sampled, 0 to 1.
    pub const fn share(&self) -> f64 {
        self.share
    }

    /// Whether that is the whole trace.
    pub fn is_whole(&self) -> bool {
        self.share >= 1.0
    }

    /// Number of different blocks of the whole trace: exact if all are sampled, otherwise an estimate.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an estimate"
    )]
    pub fn footprint(&self) -> u64 {
        (self.hashes.len() as f64 / self.share).round() as u64
    }

    /// Numbers of the sampled blocks, in the order of time.
    pub(super) fn blocks(&self) -> &[u32] {
        &self.kept
    }

    /// All block numbers are below this.
    pub(super) const fn distinct(&self) -> usize {
        self.hashes.len()
    }

    /// The average number of accesses in a sample of this share. A deviation from it is due to frequently used blocks,
    /// so it consists of hits (the adjustment of SHARDS).
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    pub(super) fn expected(&self) -> f64 {
        self.all as f64 * self.share
    }

    /// Size, in blocks, of the cache for one of `parts` parts of the sample that stands for a cache of `blocks` blocks.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an estimate, bounded by `blocks`"
    )]
    pub(super) fn scaled(&self, blocks: u64, parts: u64) -> usize {
        let slots = blocks as f64 * self.share / parts as f64;
        if blocks == 0 { 0 } else { slots.round().max(1.0) as usize }
    }

    /// The accesses of one part of the blocks, renumbered, and how many blocks these are.
    pub(super) fn part(&self, part: usize, parts: usize) -> (Vec<u32>, usize) {
        let mut names = vec![u32::MAX; self.hashes.len()];
        let mut distinct = 0;
        for (hash, name) in self.hashes.iter().zip(&mut names) {
            if *hash as usize % parts == part {
                *name = distinct;
                distinct += 1;
            }
        }
        let of_part = self.kept.iter().map(|number| names[*number as usize]);
        (of_part.filter(|name| *name != u32::MAX).collect(), distinct as usize)
    }
}

/// Mixes all bits into each (the finisher of `SplitMix64`).
fn hash(file: u32, block: u64) -> u32 {
    let mut mixed = block ^ (u64::from(file) << 40) ^ (u64::from(file) >> 24);
    mixed = mixed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    u32::try_from(mixed >> 32).expect("32 bits")
}
