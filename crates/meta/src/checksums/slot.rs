//! The checksums of 32 KiB of an object: 64 bytes, laid out as described in `docs/FORMAT.md`.
//!
//! For each block of 4 KiB there is a sum of all of it, of one part of it, or none. A part is the share of an extent
//! that begins or ends in the block; three of the blocks may have one.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;

use halocline_model::layout::{Layout, Placement};
use halocline_model::request::{ByteRange, index};
use xxhash_rust::xxh3::xxh3_64;

use super::crc;
use crate::{BLOCK, FileId};

/// Blocks of a slot.
pub(super) const BLOCKS: usize = 8;
/// Bytes of an object that a slot covers.
pub(super) const GROUP: u64 = BLOCK * BLOCKS as u64;
/// Words of 8 bytes that a slot takes.
pub(super) const WORDS: usize = 8;
/// Groups are numbered with 48 bits.
const GROUPS: u64 = 1 << 48;

const WHOLE: u16 = 4096;
const _: () = assert!(WHOLE as u64 == BLOCK, "a block has one length");
const PARTS: usize = 3;

/// The words of a slot as they lie in the file.
pub(super) type Words = [u64; WORDS];

/// Which bytes a slot covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) file: FileId,
    pub(super) placement: Placement,
    pub(super) group: u64,
}

/// Bytes of an object with their sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) range: ByteRange,
    pub(super) crc: u32,
}

/// The part of a block that its sum covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    block: u8,
    start: u16,
    end: u16,
}

/// A slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot {
    key: Key,
    /// One bit for each block that has a sum of all its bytes.
    whole: u8,
    parts: [Option<Part>; PARTS],
    sums: [u32; BLOCKS],
}

impl Key {
    /// The keys of the groups that `range` touches, each with its part of the range.
    pub(super) fn of(
        file: FileId,
        placement: Placement,
        range: ByteRange,
    ) -> impl Iterator<Item = (Self, ByteRange)> {
        let groups = range.start / GROUP..range.end.div_ceil(GROUP).min(GROUPS);
        let groups = if range.is_empty() { 0..0 } else { groups };
        groups.map(move |group| {
            let key = Self { file, placement, group };
            (key, key.range().intersect(range).expect("the group overlaps"))
        })
    }

    /// The bytes of the object.
    pub(super) fn range(self) -> ByteRange {
        ByteRange::at(self.group * GROUP, GROUP)
    }

    /// The key in the words of a slot; only its first three are looked at.
    pub(super) fn in_words(words: &[u64]) -> Option<Self> {
        let layout = match words[1] >> 48 & 0xff {
            0 => Layout::OneDh,
            1 => Layout::OneDv,
            2 => Layout::TwoD,
            _ => return None,
        };
        let placement = Placement { layout, group: low16(words[2]) };
        Some(Self { file: FileId(words[0]), placement, group: words[1] & (GROUPS - 1) })
    }
}

impl Part {
    fn overlaps(self, start: u16, end: u16) -> bool {
        self.start < end && start < self.end
    }
}

impl Slot {
    /// A slot without sums.
    pub(super) fn new(key: Key) -> Self {
        Self { key, whole: 0, parts: [None; PARTS], sums: [0; BLOCKS] }
    }

    /// Decodes words that were read; `None` if they are torn or empty.
    pub(super) fn decode(words: &Words) -> Option<Self> {
        if low16(words[2] >> 16) != check_of(words) {
            return None;
        }
        let parts = [words[2] >> 32, words[3], words[3] >> 32];
        let parts = parts.map(|part| decode_part(part & u64::from(u32::MAX)));
        let mut sums = [0; BLOCKS];
        for (pair, word) in sums.chunks_exact_mut(2).zip(&words[4..]) {
            pair.copy_from_slice(&[low32(*word), low32(word >> 32)]);
        }
        let [.., whole] = words[1].to_le_bytes();
        let slot = Self { key: Key::in_words(words)?, whole, parts, sums };
        (slot.key.file.0 != 0 && !slot.is_empty()).then_some(slot)
    }

    /// The words of the slot.
    pub(super) fn encode(&self) -> Words {
        let layout = match self.key.placement.layout {
            Layout::OneDh => 0,
            Layout::OneDv => 1,
            Layout::TwoD => 2,
        };
        let part = |at: usize| self.parts[at].map_or(0, encode_part);
        let mut words = [0; WORDS];
        words[0] = self.key.file.0;
        words[1] = self.key.group | layout << 48 | u64::from(self.whole) << 56;
        words[2] = u64::from(self.key.placement.group) | part(0) << 32;
        words[3] = part(1) | part(2) << 32;
        for (word, pair) in words[4..].iter_mut().zip(self.sums.chunks_exact(2)) {
            *word = u64::from(pair[0]) | u64::from(pair[1]) << 32;
        }
        words[2] |= u64::from(check_of(&words)) << 16;
        words
    }

    pub(super) fn key(&self) -> Key {
        self.key
    }

    /// Whether nothing is known.
    pub(super) fn is_empty(&self) -> bool {
        self.whole == 0 && self.parts.iter().all(Option::is_none)
    }

    /// The sums, in order.
    pub(super) fn sums(&self) -> impl Iterator<Item = Sum> {
        let first = self.key.range().start;
        self.known_blocks().filter_map(move |block| {
            let (start, end) = self.known(block)?;
            let block_start = first + block as u64 * BLOCK;
            let (start, end) = (block_start + u64::from(start), block_start + u64::from(end));
            Some(Sum { range: ByteRange::new(start, end), crc: self.sums[block] })
        })
    }

    /// Forgets every sum that covers a byte of `range`, which lies in the group; returns whether there was one.
    pub(super) fn forget(&mut self, range: ByteRange) -> bool {
        let before = (self.whole, self.parts);
        for (block, start, end) in self.pieces(range) {
            self.whole &= !(1 << block);
            for part in &mut self.parts {
                if part.is_some_and(|part| {
                    usize::from(part.block) == block && part.overlaps(start, end)
                }) {
                    *part = None;
                }
            }
        }
        before != (self.whole, self.parts)
    }

    /// Notes the bytes of `range`, which is in the group; their earlier sums are forgotten. `data` begins with the
    /// first byte of `range`.
    pub(super) fn note(&mut self, range: ByteRange, data: &[u8]) {
        let mut rest = data;
        for (block, start, end) in self.pieces(range) {
            let (bytes, behind) = rest.split_at(usize::from(end - start));
            rest = behind;
            self.note_piece(block, (start, end), crc::sum(bytes));
        }
    }

    /// The slot with the sums that `newer` has for the same group. This one has none for those bytes.
    pub(super) fn with(mut self, newer: &Self) -> Self {
        assert_eq!(self.key, newer.key, "of one group");
        for block in newer.known_blocks() {
            if let Some(known) = newer.known(block) {
                self.note_piece(block, known, newer.sums[block]);
            }
        }
        self
    }

    fn note_piece(&mut self, block: usize, (start, end): (u16, u16), crc: u32) {
        let old = self.known(block).map(|known| (known, self.sums[block]));
        let ((start, end), crc) = match old {
            Some(((from, to), old)) if to == start => {
                ((from, end), crc::join(old, crc, usize::from(end - start)))
            }
            Some(((from, to), old)) if from == end => {
                ((start, to), crc::join(crc, old, usize::from(to - from)))
            }
            // One part for a block: the longer, unless it was just overwritten.
            Some(((from, to), _)) if to - from > end - start && (to <= start || end <= from) => {
                return;
            }
            _ => ((start, end), crc),
        };
        let number = u8::try_from(block).expect("a slot has few blocks");
        self.whole &= !(1 << block);
        for part in &mut self.parts {
            if part.is_some_and(|part| part.block == number) {
                *part = None;
            }
        }
        if (start, end) == (0, WHOLE) {
            self.whole |= 1 << block;
        } else if let Some(free) = self.parts.iter_mut().find(|part| part.is_none()) {
            *free = Some(Part { block: number, start, end });
        } else {
            return;
        }
        self.sums[block] = crc;
    }

    /// The blocks that have a sum, of all or of a part of them, in order.
    fn known_blocks(&self) -> impl Iterator<Item = usize> + use<> {
        let parts = self.parts.iter().flatten();
        let mut left = parts.fold(self.whole, |blocks, part| blocks | 1 << part.block);
        std::iter::from_fn(move || {
            let block = left.trailing_zeros();
            // Without the lowest one; there is none of zero.
            left &= left.checked_sub(1)?;
            Some(block as usize)
        })
    }

    /// The part of a block that its sum covers.
    fn known(&self, block: usize) -> Option<(u16, u16)> {
        if self.whole >> block & 1 == 1 {
            return Some((0, WHOLE));
        }
        let part = self.parts.iter().flatten().find(|part| usize::from(part.block) == block)?;
        Some((part.start, part.end))
    }

    /// The parts of `range`, which lies in the group, in each block.
    fn pieces(&self, range: ByteRange) -> impl Iterator<Item = (usize, u16, u16)> + use<> {
        let first = self.key.range().start;
        assert!(self.key.range().contains(range), "a range beside its group");
        let blocks = (range.start - first) / BLOCK..(range.end - first).div_ceil(BLOCK);
        (index(blocks.start)..index(blocks.end)).filter_map(move |block| {
            let whole = ByteRange::at(first + block as u64 * BLOCK, BLOCK);
            let piece = whole.intersect(range)?;
            let within = |offset: u64| u16::try_from(offset - whole.start).expect("in a block");
            Some((block, within(piece.start), within(piece.end)))
        })
    }
}

fn encode_part(part: Part) -> u64 {
    u64::from(part.block) << 26 | u64::from(part.start) << 13 | u64::from(part.end)
}

fn decode_part(part: u64) -> Option<Part> {
    let block = u8::try_from(part >> 26).ok().filter(|&block| usize::from(block) < BLOCKS)?;
    let (start, end) = (low16(part >> 13) & 0x1fff, low16(part) & 0x1fff);
    (start < end && end <= WHOLE).then_some(Part { block, start, end })
}

/// A check value that distinguishes valid words from torn or damaged ones.
fn check_of(words: &Words) -> u16 {
    let mut words = *words;
    words[2] &= !0xffff_0000;
    low16(xxh3_64(words.map(u64::to_le_bytes).as_flattened()))
}

#[expect(clippy::cast_possible_truncation, reason = "the low bits are asked for")]
fn low16(word: u64) -> u16 {
    word as u16
}

#[expect(clippy::cast_possible_truncation, reason = "the low bits are asked for")]
fn low32(word: u64) -> u32 {
    word as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        let placement = Placement { layout: Layout::TwoD, group: 513 };
        Key { file: FileId(7), placement, group: 3 }
    }

    fn range(start: u64, end: u64) -> ByteRange {
        ByteRange::new(3 * GROUP + start, 3 * GROUP + end)
    }

    fn data() -> Vec<u8> {
        (0..GROUP).map(|at| (at * 31).to_le_bytes()[1]).collect()
    }

    fn bytes(start: u64, end: u64) -> std::ops::Range<usize> {
        usize::try_from(start).unwrap()..usize::try_from(end).unwrap()
    }

    fn note(slot: &mut Slot, start: u64, end: u64) {
        let data = data();
        slot.note(range(start, end), &data[bytes(start, end)]);
    }

    fn known(slot: &Slot) -> Vec<(u64, u64)> {
        let data = data();
        let sums = slot.sums().map(|sum| {
            let (start, end) = (sum.range.start - 3 * GROUP, sum.range.end - 3 * GROUP);
            assert_eq!(sum.crc, crc::sum(&data[bytes(start, end)]));
            (start, end)
        });
        sums.collect()
    }

    #[test]
    fn a_slot_comes_back_as_it_went() {
        let mut slot = Slot::new(key());
        note(&mut slot, 100, GROUP - 5);
        let words = slot.encode();
        assert_eq!(Slot::decode(&words), Some(slot));
        assert_eq!(Key::in_words(&words[..3]), Some(key()));
        for (at, bit) in (0..WORDS).flat_map(|at| (0..64).map(move |bit| (at, bit))) {
            let mut bad = words;
            bad[at] ^= 1 << bit;
            assert_eq!(Slot::decode(&bad), None, "bit {bit} of word {at}");
        }
        assert_eq!(Slot::decode(&[0; WORDS]), None);
        assert_eq!(Slot::decode(&Slot::new(key()).encode()), None, "it says nothing");
    }

    #[test]
    fn parts_that_meet_become_whole() {
        for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0]] {
            let mut slot = Slot::new(key());
            for at in order {
                let cuts = [4096, 4196, 5000, 8192];
                note(&mut slot, cuts[at], cuts[at + 1]);
            }
            assert_eq!(known(&slot), [(4096, 8192)]);
        }
    }

    #[test]
    fn what_is_written_over_is_forgotten() {
        let mut slot = Slot::new(key());
        note(&mut slot, 0, GROUP);
        assert!(slot.forget(range(4095, 4097)));
        assert_eq!(known(&slot)[0], (8192, 12288));
        note(&mut slot, 4090, 4100);
        assert_eq!(known(&slot)[..2], [(4090, 4096), (4096, 4100)]);
        assert!(!slot.forget(range(0, 4090)), "the rest of a block is not what is known of it");
        assert!(slot.forget(range(0, 4091)));
        assert_eq!(known(&slot)[0], (4096, 4100));
    }

    #[test]
    fn of_two_parts_apart_the_longer_is_kept() {
        let mut slot = Slot::new(key());
        note(&mut slot, 10, 20);
        note(&mut slot, 30, 32);
        assert_eq!(known(&slot), [(10, 20)]);
        note(&mut slot, 40, 60);
        assert_eq!(known(&slot), [(40, 60)]);
        for block in 1..5 {
            note(&mut slot, block * 4096 + 1, block * 4096 + 2);
        }
        assert_eq!(known(&slot).len(), 3, "three blocks may have a part");
    }
}
