//! Pseudo-random orders that take no memory.

/// A permutation of `0..count`, without a table: a Feistel network over the next power of four, iterated until the
/// result is in range.
pub(crate) fn permuted(index: u64, count: u64, seed: u64) -> u64 {
    let bits = (u64::BITS - (count - 1).leading_zeros()).div_ceil(2).max(1);
    let mask = (1u64 << bits) - 1;
    let mut at = index;
    loop {
        let (mut left, mut right) = (at >> bits, at & mask);
        for round in 0..4 {
            let mixed = mix(right ^ seed.wrapping_add(round << 56)) & mask;
            (left, right) = (right, left ^ mixed);
        }
        at = left << bits | right;
        if at < count {
            return at;
        }
    }
}

/// Pseudo-random bits (splitmix64).
pub(crate) const fn mix(bits: u64) -> u64 {
    let bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
