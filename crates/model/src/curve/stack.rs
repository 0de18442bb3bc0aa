//! Stack distances (Mattson et al., 1970): one pass finds what LRU misses at every size.

/// How often each stack distance occurs.
#[derive(Debug)]
pub(super) struct Distances {
    /// Number of accesses by how many different blocks, including their own, were used since the last access to it.
    counts: Vec<u64>,
    first: u64,
}

impl Distances {
    /// Misses of a cache of `slots` blocks.
    pub(super) fn misses(&self, slots: usize) -> u64 {
        let far = self.counts.iter().skip(slots.saturating_add(1));
        self.first + far.sum::<u64>()
    }
}

/// A Fenwick tree: counts by position, and prefix sums in logarithmic time.
struct Tree(Vec<u32>);

impl Tree {
    fn add(&mut self, place: usize, one_more: bool) {
        let mut at = place + 1;
        while at < self.0.len() {
            self.0[at] = if one_more { self.0[at] + 1 } else { self.0[at] - 1 };
            at += at & at.wrapping_neg();
        }
    }

    fn up_to(&self, place: usize) -> u32 {
        let (mut at, mut sum) = (place + 1, 0);
        while at > 0 {
            sum += self.0[at];
            at &= at - 1;
        }
        sum
    }
}

/// Distances of accesses to blocks with numbers below `distinct`.
pub(super) fn distances(blocks: &[u32], distinct: usize) -> Distances {
    let mut last: Vec<Option<usize>> = vec![None; distinct];
    // Marks the last access to each block.
    let mut tree = Tree(vec![0; blocks.len() + 1]);
    let mut marked = 0_u32;
    let mut found = Distances { counts: vec![0; distinct + 1], first: 0 };
    for (now, &block) in blocks.iter().enumerate() {
        match last[block as usize].replace(now) {
            None => {
                found.first += 1;
                marked += 1;
            }
            Some(before) => {
                let since = marked - tree.up_to(before) + 1;
                found.counts[since as usize] += 1;
                tree.add(before, false);
            }
        }
        tree.add(now, true);
    }
    found
}
