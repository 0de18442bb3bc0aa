//! Which of several rules keeps the right files, found out by what each would have cost.
//!
//! Every rule has a shadow: the files it would keep on an SSD of the same size, without their
//! bytes. What each would have read from the disk and written back to it is summed, with less
//! weight the longer ago it was, and the rule that would have cost least is followed. Where there
//! are many files only a sample of them is watched, chosen by their numbers, on a shadow SSD that
//! is smaller by as much: memory and time are bounded however many files there are.
//!
//! ARC and CACHEUS weigh lists with weights that move with each ghost hit; there the order of two
//! files would change with references to others, which a prepared order cannot follow
//! ([`Keep`](super::Keep)). Set duelling on real files gives half of the SSD to the worse rule.
//! Margins of an 8th and a 16th of the SSD were up to 17 and 15 % behind LRU on phased work.

use std::collections::{BTreeSet, HashMap};

use super::FileId;

/// Files watched at most.
const WATCHED_MAX: usize = 1 << 13;
/// References after which what was paid counts half.
const HALF_LIFE: u32 = 2048;
/// Share of the SSD's size, as a divisor, by which a rule must have been worse to be left.
const MARGIN: u64 = 32;

/// A rule by which files are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// Every file comes, who was used longest ago leaves.
    Recency,
    /// Every file comes, who was used least leaves.
    Frequency,
    /// A file comes if it was used more, by bytes, than those together that leave for it.
    Worth,
    /// A file comes with its second use, and stays before those used once.
    Again,
}

/// All rules; the first is followed until another is better.
const RULES: [Rule; 4] = [Rule::Again, Rule::Recency, Rule::Frequency, Rule::Worth];

/// What is known of a file's uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Uses {
    /// Number of uses.
    pub(super) count: u64,
    /// The last one.
    pub(super) last: u64,
    /// Used again since it came or was first seen.
    pub(super) again: bool,
}

/// Where a file stands in the order in which files leave.
pub(super) type Rank = (u64, u64);

impl Rule {
    /// The rank of a file with these uses: smaller leaves earlier.
    pub(super) fn rank(self, uses: &Uses) -> Rank {
        match self {
            Self::Recency => (0, uses.last),
            Self::Frequency | Self::Worth => (uses.count, uses.last),
            Self::Again => (u64::from(uses.again), uses.last),
        }
    }

    /// Whether a file with these uses and so many bytes comes where others, with so many bytes
    /// times uses together, would have to leave for it.
    pub(super) fn admits(self, uses: &Uses, bytes: u64, leaving_worth: u128) -> bool {
        match self {
            Self::Recency | Self::Frequency => true,
            Self::Worth => u128::from(uses.count) * u128::from(bytes) > leaving_worth,
            Self::Again => uses.again,
        }
    }
}

/// What a rule would keep, and what that would have cost.
#[derive(Debug)]
struct Shadow {
    rule: Rule,
    used: u64,
    order: BTreeSet<(Rank, FileId)>,
    /// Bytes and uses, as in `order`, of the files kept.
    kept: HashMap<FileId, (u64, Uses)>,
    /// Bytes read from the disk and written back to it, those of late counting more.
    cost: f64,
}

impl Shadow {
    fn new(rule: Rule) -> Self {
        Self { rule, used: 0, order: BTreeSet::new(), kept: HashMap::new(), cost: 0.0 }
    }

    /// A file with `bytes` bytes was used; returns what that costs.
    fn used(&mut self, file: FileId, bytes: u64, watched: &Uses, limit: u64) -> u64 {
        let mut uses = *watched;
        if self.remove(file).is_some() {
            uses.again = true;
            if self.used.saturating_add(bytes) <= limit {
                self.insert(file, bytes, uses);
                return 0;
            }
            // It has grown beyond what is free: it comes anew.
        }
        if bytes > limit {
            return bytes;
        }
        let missing = self.used.saturating_add(bytes).saturating_sub(limit);
        let (mut freed, mut worth, mut leaving) = (0, 0_u128, Vec::new());
        for (_, other) in &self.order {
            if freed >= missing {
                break;
            }
            let (size, uses) = self.kept[other];
            freed += size;
            worth += u128::from(size) * u128::from(uses.count);
            leaving.push(*other);
        }
        if missing > 0 && !self.rule.admits(&uses, bytes, worth) {
            return bytes;
        }
        for other in leaving {
            self.remove(other);
        }
        self.insert(file, bytes, uses);
        bytes + freed
    }

    fn insert(&mut self, file: FileId, bytes: u64, uses: Uses) {
        self.order.insert((self.rule.rank(&uses), file));
        self.kept.insert(file, (bytes, uses));
        self.used += bytes;
    }

    fn remove(&mut self, file: FileId) -> Option<(u64, Uses)> {
        let (bytes, uses) = self.kept.remove(&file)?;
        self.order.remove(&(self.rule.rank(&uses), file));
        self.used -= bytes;
        Some((bytes, uses))
    }
}

/// The rules in competition.
#[derive(Debug)]
pub(super) struct Rivals {
    shadows: [Shadow; RULES.len()],
    followed: usize,
    /// Uses of the files watched, on an SSD or not.
    watched: HashMap<FileId, Uses>,
    clock: u64,
    /// One file in two to the power of this is watched.
    sampling: u32,
    limit: u64,
}

impl Default for Rivals {
    fn default() -> Self {
        Self {
            shadows: RULES.map(Shadow::new),
            followed: 0,
            watched: HashMap::new(),
            clock: 0,
            sampling: 0,
            limit: 0,
        }
    }
}

impl Rivals {
    /// The rule to follow.
    pub(super) const fn followed(&self) -> Rule {
        self.shadows[self.followed].rule
    }

    /// The SSD holds so many bytes.
    pub(super) fn set_limit(&mut self, bytes: u64) {
        if self.limit != bytes {
            *self = Self { limit: bytes, followed: self.followed, ..Self::default() };
        }
    }

    /// A file is no more.
    pub(super) fn removed(&mut self, file: FileId) {
        if self.watched.remove(&file).is_some() {
            for shadow in &mut self.shadows {
                shadow.remove(file);
            }
        }
    }

    /// A file with `bytes` bytes is used. Whether another rule is followed from now on.
    pub(super) fn used(&mut self, file: FileId, bytes: u64) -> bool {
        if !is_sampled(file, self.sampling) {
            return false;
        }
        self.clock += 1;
        let uses = self.watched.entry(file).or_default();
        uses.again = uses.count > 0;
        (uses.count, uses.last) = (uses.count + 1, self.clock);
        let (uses, limit) = (*uses, self.limit >> self.sampling);
        for shadow in &mut self.shadows {
            let cost = shadow.used(file, bytes, &uses, limit);
            #[expect(clippy::cast_precision_loss, reason = "costs are compared, not counted")]
            let cost = cost as f64;
            shadow.cost = shadow.cost * 0.5_f64.powf(1.0 / f64::from(HALF_LIFE)) + cost;
        }
        if self.watched.len() > WATCHED_MAX {
            self.watch_fewer();
        }
        self.choose()
    }

    fn choose(&mut self) -> bool {
        let cost = |at: &usize| self.shadows[*at].cost;
        let least = (0..RULES.len()).min_by(|one, other| cost(one).total_cmp(&cost(other)));
        let least = least.expect("there are rules");
        #[expect(clippy::cast_precision_loss, reason = "a margin needs no exact bytes")]
        let margin = ((self.limit >> self.sampling) / MARGIN) as f64;
        let better = cost(&least) + margin < cost(&self.followed);
        if better {
            self.followed = least;
        }
        better
    }

    /// Half of the files watched so far.
    fn watch_fewer(&mut self) {
        self.sampling += 1;
        let sampling = self.sampling;
        self.watched.retain(|file, _| is_sampled(*file, sampling));
        for shadow in &mut self.shadows {
            let gone: Vec<_> =
                shadow.kept.keys().filter(|file| !is_sampled(**file, sampling)).copied().collect();
            for file in gone {
                shadow.remove(file);
            }
            shadow.cost /= 2.0;
        }
    }
}

/// Whether a file is one of those watched.
const fn is_sampled(file: FileId, sampling: u32) -> bool {
    // Numbers of files made one after the other are neighbours (the finalizer of MurmurHash3).
    let mut bits = file.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    bits = (bits ^ (bits >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    bits ^= bits >> 33;
    bits.trailing_zeros() >= sampling
}
