//! Where one node's part of a file probably ends and the next one's begins.

/// The probable border, between `low` and `high`, between one node's part of a file and the next node's: the roundest
/// number, because segments of shared files usually begin at round numbers. If the guess was wrong, the node is asked
/// again, and then at most half as much is left to guess from.
#[must_use]
pub const fn border(low: u64, high: u64) -> u64 {
    let below = low.saturating_sub(1);
    if low == 0 || below >= high {
        return low;
    }
    // The highest bit in which they differ is set in `high`; the bits above it are the same in both.
    let bit = u64::BITS - 1 - (below ^ high).leading_zeros();
    high >> bit << bit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_nodes_part_at_the_roundest_number_between_them() {
        for (low, high, expected) in [
            (60 << 20, 70 << 20, 64 << 20),
            (180 << 20, 200 << 20, 192 << 20),
            (200, 500, 256),
            (64, 70, 64),
            (64, 64, 64),
            (0, 70, 0),
            (u64::MAX - 1, u64::MAX, u64::MAX - 1),
        ] {
            assert_eq!(border(low, high), expected, "{low} to {high}");
            assert!((low..=high).contains(&border(low, high)));
        }
    }
}
