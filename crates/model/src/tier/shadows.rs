//! Finds out which of several rules keeps the right files, by what each would have cost.
//!
//! Every rule has a shadow: the files that it would keep on an SSD of the same size, without their bytes. The bytes
//! that each would have read from the disk and written back to it are summed, weighted less the older they are, and the
//! rule with the lowest cost is followed. If there are many files, only a sample of them is watched, chosen by their
//! numbers, on a shadow SSD that is scaled down accordingly: memory and time are bounded however many files there are.
//!
//! Changing the rule has a cost, too: the SSD holds the files of the previous rule. So recency is followed first, and
//! another rule only while the risk is insured. One more shadow, ours, changes its rule as we do. The bytes that it has
//! moved since the beginning, plus half of what returning to recency could move at most (each byte by which its shadow
//! and ours differ, once), must not exceed the bytes that recency has moved by more than a 20th; otherwise recency is
//! followed again. After each change the rules compete anew. If recency has moved more than frequency, returning would
//! not help, and the margins alone decide. Blum and Burch (Machine Learning 39, 2000) treat experts between which
//! switching has a cost.
//!
//! ARC and CACHEUS use lists whose weights change with each ghost hit; with them the order of two files would change
//! with references to others, which a prepared order cannot follow ([`Keep`](super::Keep)). Set duelling on real files
//! gives half of the SSD to the worse rule.

use std::collections::{BTreeSet, HashMap};

use super::FileId;

/// Limit of the files watched.
const WATCHED_MAX: usize = 1 << 13;
/// After this many references a past cost counts half.
const HALF_LIFE: u32 = 2048;
/// Recency must have been worse by this fraction of the SSD's size (as a divisor) before another rule replaces it.
const LEAVING_RECENCY: f64 = 4.0;
/// The same for any other rule.
const LEAVING_ANOTHER: f64 = 16.0;
/// How much more than recency we may have moved; bytes by which the contents differ count half.
const INSURED: f64 = 1.05;

/// A rule by which files are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// Every file comes, the least recently used leaves.
    Recency,
    /// Every file comes, the least frequently used leaves.
    Frequency,
    /// A file comes if it was used more, by bytes, than those together that leave for it.
    Worth,
    /// A file comes with its second use, and stays before those used once.
    Again,
}

/// All rules; the first is followed until another is better.
const RULES: [Rule; 4] = [Rule::Recency, Rule::Again, Rule::Frequency, Rule::Worth];
/// The index of recency, which is followed if another rule is not insured.
const SAFE: usize = 0;
/// The index of frequency.
const FREQUENCY: usize = 2;

/// What is known about a file's uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Uses {
    /// Number of uses.
    pub(super) count: u64,
    /// The last one.
    pub(super) last: u64,
    /// Whether it was used again since it came or was first seen.
    pub(super) again: bool,
}

/// A file's position in the order in which files leave.
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

    /// Whether a file with these uses and this many bytes comes if others, with this total of bytes times uses, would
    /// have to leave for it.
    pub(super) fn admits(self, uses: &Uses, bytes: u64, leaving_worth: u128) -> bool {
        match self {
            Self::Recency | Self::Frequency => true,
            Self::Worth => u128::from(uses.count) * u128::from(bytes) > leaving_worth,
            Self::Again => uses.again,
        }
    }
}

/// The files that a rule would keep, and the cost of that.
#[derive(Debug)]
struct Shadow {
    rule: Rule,
    used: u64,
    order: BTreeSet<(Rank, FileId)>,
    /// Bytes and uses, as in `order`, of the files kept.
    kept: HashMap<FileId, (u64, Uses)>,
    /// Bytes read from the disk and written back to it, recent ones counting more.
    cost: f64,
    /// The same since the beginning, all counting equally.
    total: f64,
}

impl Shadow {
    fn new(rule: Rule) -> Self {
        Self { rule, used: 0, order: BTreeSet::new(), kept: HashMap::new(), cost: 0.0, total: 0.0 }
    }

    /// Continues with another rule and the files that are kept.
    fn follow(&mut self, rule: Rule) {
        self.rule = rule;
        self.order = self.kept.iter().map(|(file, (_, uses))| (rule.rank(uses), *file)).collect();
    }

    /// A file with `bytes` bytes was used: adds the cost, and returns the files that leave.
    fn used(&mut self, file: FileId, bytes: u64, watched: &Uses, limit: u64) -> Vec<FileId> {
        let (cost, leaving) = self.bring(file, bytes, watched, limit);
        #[expect(clippy::cast_precision_loss, reason = "costs are compared, not counted")]
        let cost = cost as f64;
        self.cost = self.cost * 0.5_f64.powf(1.0 / f64::from(HALF_LIFE)) + cost;
        self.total += cost;
        leaving
    }

    /// The cost of a use, and the files that leave.
    fn bring(
        &mut self,
        file: FileId,
        bytes: u64,
        watched: &Uses,
        limit: u64,
    ) -> (u64, Vec<FileId>) {
        let mut uses = *watched;
        if self.remove(file).is_some() {
            uses.again = true;
            if self.used.saturating_add(bytes) <= limit {
                self.insert(file, bytes, uses);
                return (0, Vec::new());
            }
            // It has grown beyond the free space, so it comes anew.
        }
        if bytes > limit {
            return (bytes, Vec::new());
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
            return (bytes, Vec::new());
        }
        for other in &leaving {
            self.remove(*other);
        }
        self.insert(file, bytes, uses);
        (bytes + freed, leaving)
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

/// The competing rules.
#[derive(Debug)]
pub(super) struct Shadows {
    of_rules: [Shadow; RULES.len()],
    /// The files that following the rules has kept, and their cost.
    ours: Shadow,
    followed: usize,
    /// Bytes kept both by us and by the safe rule.
    shared: u64,
    /// Uses of the watched files, whether on an SSD or not.
    watched: HashMap<FileId, Uses>,
    clock: u64,
    /// One file in two to the power of this is watched.
    sampling: u32,
    limit: u64,
}

impl Default for Shadows {
    fn default() -> Self {
        Self {
            of_rules: RULES.map(Shadow::new),
            ours: Shadow::new(RULES[SAFE]),
            followed: SAFE,
            shared: 0,
            watched: HashMap::new(),
            clock: 0,
            sampling: 0,
            limit: 0,
        }
    }
}

impl Shadows {
    /// The rule to follow.
    pub(super) const fn followed(&self) -> Rule {
        self.ours.rule
    }

    /// The SSD holds this many bytes.
    pub(super) fn set_limit(&mut self, bytes: u64) {
        if self.limit != bytes {
            let (followed, ours) = (self.followed, Shadow::new(self.ours.rule));
            *self = Self { limit: bytes, followed, ours, ..Self::default() };
        }
    }

    /// A file was removed.
    pub(super) fn removed(&mut self, file: FileId) {
        if self.watched.remove(&file).is_some() {
            self.shared -= self.shared_of(file);
            self.ours.remove(file);
            for shadow in &mut self.of_rules {
                shadow.remove(file);
            }
        }
    }

    /// A file with `bytes` bytes is used. Returns whether another rule is followed from now on.
    pub(super) fn used(&mut self, file: FileId, bytes: u64) -> bool {
        if !is_sampled(file, self.sampling) {
            return false;
        }
        self.clock += 1;
        let uses = self.watched.entry(file).or_default();
        uses.again = uses.count > 0;
        (uses.count, uses.last) = (uses.count + 1, self.clock);
        let (uses, limit) = (*uses, self.limit >> self.sampling);
        self.shared -= self.shared_of(file);
        for (at, shadow) in self.of_rules.iter_mut().enumerate() {
            let left = shadow.used(file, bytes, &uses, limit);
            if at == SAFE {
                self.shared -= bytes_kept(&self.ours, &left);
            }
        }
        let left = self.ours.used(file, bytes, &uses, limit);
        self.shared -= bytes_kept(&self.of_rules[SAFE], &left);
        self.shared += self.shared_of(file);
        if self.watched.len() > WATCHED_MAX {
            self.watch_fewer();
        }
        self.choose()
    }

    /// Bytes of a file that both we and the safe rule keep, with the same last use of it.
    fn shared_of(&self, file: FileId) -> u64 {
        match (self.ours.kept.get(&file), self.of_rules[SAFE].kept.get(&file)) {
            (Some((bytes, _)), Some(_)) => *bytes,
            _ => 0,
        }
    }

    fn choose(&mut self) -> bool {
        let cost = |at: usize| self.of_rules[at].cost;
        let least = (0..RULES.len()).min_by(|one, other| cost(*one).total_cmp(&cost(*other)));
        let least = least.expect("there are rules");
        #[expect(clippy::cast_precision_loss, reason = "a margin needs no exact bytes")]
        let limit = (self.limit >> self.sampling) as f64;
        let is_worse_by = |margin: f64, other: usize| cost(other) + margin < cost(self.followed);
        let next = if self.followed == SAFE {
            if is_worse_by(limit / LEAVING_RECENCY, least) && self.is_insured() {
                least
            } else {
                SAFE
            }
        } else if is_worse_by(limit / LEAVING_ANOTHER, SAFE) || !self.is_insured() {
            SAFE
        } else if is_worse_by(limit / LEAVING_ANOTHER, least) {
            least
        } else {
            self.followed
        };
        if next == self.followed {
            return false;
        }
        self.followed = next;
        self.ours.follow(RULES[next]);
        for shadow in &mut self.of_rules {
            shadow.cost = 0.0;
        }
        true
    }

    /// Whether we could return to recency and would have moved little more than it, or should not return because
    /// frequency would have moved less.
    fn is_insured(&self) -> bool {
        let safe = &self.of_rules[SAFE];
        #[expect(clippy::cast_precision_loss, reason = "a bound needs no exact bytes")]
        let apart = self.apart() as f64;
        self.of_rules[FREQUENCY].total < safe.total
            || self.ours.total + apart / 2.0 <= INSURED * safe.total
    }

    /// Bytes that either we or recency keeps, but not both.
    fn apart(&self) -> u64 {
        (self.of_rules[SAFE].used - self.shared) + (self.ours.used - self.shared)
    }

    /// Watches only half of the files watched so far.
    fn watch_fewer(&mut self) {
        self.sampling += 1;
        let sampling = self.sampling;
        self.watched.retain(|file, _| is_sampled(*file, sampling));
        for shadow in self.of_rules.iter_mut().chain([&mut self.ours]) {
            let gone: Vec<_> =
                shadow.kept.keys().filter(|file| !is_sampled(**file, sampling)).copied().collect();
            for file in gone {
                shadow.remove(file);
            }
            shadow.cost /= 2.0;
            shadow.total /= 2.0;
        }
        self.shared = self.ours.kept.keys().map(|file| self.shared_of(*file)).sum();
    }
}

/// Bytes of those of `files` that a shadow keeps.
fn bytes_kept(shadow: &Shadow, files: &[FileId]) -> u64 {
    files.iter().filter_map(|file| shadow.kept.get(file)).map(|(bytes, _)| bytes).sum()
}

/// Whether a file is one of those watched.
const fn is_sampled(file: FileId, sampling: u32) -> bool {
    // Files that were created one after another have adjacent numbers (the finalizer of MurmurHash3).
    let mut bits = file.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    bits = (bits ^ (bits >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    bits ^= bits >> 33;
    bits.trailing_zeros() >= sampling
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The sum, which each use only updates, equals that over the files.
        #[test]
        fn bytes_in_common_are_those_of_the_files_in_common(
            limit in 1..200u64,
            uses in prop::collection::vec((0..24u64, 0..40u64, 0..24u64), 0..400),
        ) {
            let mut shadows = Shadows::default();
            shadows.set_limit(limit);
            for (file, bytes, gone) in uses {
                shadows.used(file, bytes);
                if gone < 2 {
                    shadows.removed(gone);
                }
                let (safe, ours) = (&shadows.of_rules[SAFE], &shadows.ours);
                let common: u64 = safe.kept.keys().map(|file| shadows.shared_of(*file)).sum();
                prop_assert_eq!(shadows.shared, common);
                let all: u64 = ours.kept.values().map(|(bytes, _)| bytes).sum();
                prop_assert_eq!(ours.used, all);
                prop_assert!(ours.used <= limit);
            }
        }
    }

    /// With more files than are watched, the sums stay consistent.
    #[test]
    fn a_sample_has_its_own_bytes_in_common() {
        let mut shadows = Shadows::default();
        shadows.set_limit(1 << 16);
        for at in 0..6 * WATCHED_MAX as u64 {
            shadows.used(if at % 3 == 0 { at } else { at % 64 }, 1 + at % 7);
        }
        assert!(shadows.sampling > 0);
        let common: u64 = shadows.ours.kept.keys().map(|file| shadows.shared_of(*file)).sum();
        assert_eq!(shadows.shared, common);
    }
}
