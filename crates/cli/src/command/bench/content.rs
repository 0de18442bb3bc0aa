//! Bytes that show where they belong: a function of seed, file, generation and position.
//!
//! Each block of 4 KiB begins at a hash of its location and continues in equal steps, so that making and checking run
//! at memory speed, and yet a byte that is stale, moved, zeroed or flipped differs from what is expected.

/// Bytes that share one hash.
const BLOCK: u64 = 4096;
const WORD: u64 = 8;
/// The difference between neighbouring words: odd, so that no two words of a block are alike.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Determines the bytes of one file in one generation.
#[derive(Debug, Clone, Copy)]
pub(in crate::command) struct Content {
    key: u64,
}

/// The first wrong byte of a piece, and how many are wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::command) struct Mismatch {
    pub(in crate::command) offset: u64,
    pub(in crate::command) expected: u8,
    pub(in crate::command) found: u8,
    pub(in crate::command) bytes: u64,
}

impl Content {
    pub(in crate::command) fn new(seed: u64, file: u64, generation: u64) -> Self {
        Self { key: spread(spread(spread(seed) ^ file) ^ generation) }
    }

    /// Fills `buf` with the bytes that belong at `offset`.
    pub(in crate::command) fn fill(self, offset: u64, buf: &mut [u8]) {
        let mut at = offset;
        let mut rest = buf;
        while !rest.is_empty() {
            let inside = at % BLOCK;
            let len = usize::try_from(BLOCK - inside).expect("4096").min(rest.len());
            let (piece, after) = rest.split_at_mut(len);
            self.fill_in_block(at, piece);
            at += len as u64;
            rest = after;
        }
    }

    /// Compares `found` with what belongs at `offset`, using `expected` as a buffer, which must be as long.
    pub(in crate::command) fn check(
        self,
        offset: u64,
        found: &[u8],
        expected: &mut [u8],
    ) -> Option<Mismatch> {
        self.fill(offset, expected);
        if found == expected {
            return None;
        }
        let mut wrong = found.iter().zip(&*expected).enumerate().filter(|(_, (a, b))| a != b);
        let (at, (&found, &expected)) = wrong.next()?;
        let bytes = 1 + wrong.count() as u64;
        Some(Mismatch { offset: offset + at as u64, expected, found, bytes })
    }

    /// The same for a `buf` that lies within one block.
    fn fill_in_block(self, offset: u64, buf: &mut [u8]) {
        let base = spread(self.key ^ (offset / BLOCK));
        let word = |index: u64| base.wrapping_add(index.wrapping_mul(STEP)).to_le_bytes();
        let first = offset % BLOCK / WORD;
        let skip = usize::try_from(offset % WORD).expect("less than 8");
        let (head, body) = buf.split_at_mut(if skip == 0 { 0 } else { buf.len().min(8 - skip) });
        head.copy_from_slice(&word(first)[skip..skip + head.len()]);
        let first = first + u64::from(skip > 0);
        for (index, piece) in (first..).zip(body.chunks_mut(8)) {
            piece.copy_from_slice(&word(index)[..piece.len()]);
        }
    }
}

/// Spreads neighbouring numbers over all of u64 (the finalizer of `SplitMix64`).
pub(super) fn spread(number: u64) -> u64 {
    let mut bits = number.wrapping_add(STEP);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_cut_gives_the_same_bytes() {
        let content = Content::new(1, 2, 3);
        let mut whole = vec![0; 20_000];
        content.fill(0, &mut whole);
        for (offset, len) in [(0, 1), (1, 3), (4090, 13), (4096, 4096), (5, 12_001), (8191, 2)] {
            let mut piece = vec![0; len];
            content.fill(offset as u64, &mut piece);
            assert_eq!(piece, whole[offset..offset + len], "{offset} {len}");
        }
    }

    #[test]
    fn other_places_files_generations_and_seeds_differ() {
        let first = |content: Content, offset| {
            let mut word = [0; 8];
            content.fill(offset, &mut word);
            word
        };
        let here = first(Content::new(1, 2, 3), 0);
        for (content, offset) in [
            (Content::new(1, 2, 3), 8),
            (Content::new(1, 2, 3), 4096),
            (Content::new(2, 2, 3), 0),
            (Content::new(1, 3, 3), 0),
            (Content::new(1, 2, 4), 0),
        ] {
            assert_ne!(first(content, offset), here);
        }
    }

    #[test]
    fn one_flipped_bit_is_found_where_it_is() {
        let content = Content::new(7, 0, 0);
        let mut bytes = vec![0; 9000];
        content.fill(100, &mut bytes);
        let mut scratch = vec![0; 9000];
        assert_eq!(content.check(100, &bytes, &mut scratch), None);
        bytes[5000] ^= 4;
        let mismatch = content.check(100, &bytes, &mut scratch).unwrap();
        assert_eq!((mismatch.offset, mismatch.bytes), (5100, 1));
        assert_eq!(mismatch.expected ^ mismatch.found, 4);
    }
}
