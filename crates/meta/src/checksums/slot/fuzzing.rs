//! A slot of checksums: body of a fuzz target (`crate::fuzzing`).

use super::{GROUP, Slot, WORDS, Words, check_of};

/// A slot, as it stands and with the check that it ought to have: what is understood is sums of bytes of its group, and
/// is the same when it is written again.
pub fn checksum_slot(bytes: &[u8]) {
    let mut words: Words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(*bytes.first_chunk().expect("eight bytes"));
    }
    check(&words);
    words[2] = words[2] & !0xffff_0000 | u64::from(check_of(&words)) << 16;
    check(&words);
}

fn check(words: &Words) {
    let Some(slot) = Slot::decode(words) else { return };
    assert_eq!(Slot::decode(&slot.encode()), Some(slot));
    let group = slot.key().range();
    assert_eq!(group.len(), GROUP);
    let mut end = group.start;
    for sum in slot.sums() {
        assert!(end <= sum.range.start && !sum.range.is_empty() && group.contains(sum.range));
        end = sum.range.end;
    }
    let (mut newer, mut without) = (Slot::new(slot.key()), slot);
    let first = slot.sums().next().expect("a slot that says something").range;
    newer.note(first, &vec![0; usize::try_from(first.len()).expect("a block at most")]);
    assert!(without.forget(first) && !without.sums().any(|sum| sum.range.overlaps(first)));
    assert!(Slot::decode(&without.with(&newer).encode()).is_some());
}

/// Seeds of [`checksum_slot`].
#[cfg(test)]
pub(crate) fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    use halocline_model::layout::{Layout, Placement};
    use halocline_model::request::ByteRange;

    let key = super::Key {
        file: crate::FileId(5),
        placement: Placement { layout: Layout::TwoD, group: 3 },
        group: 2,
    };
    let bytes = |slot: &Slot| slot.encode().iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut whole = Slot::new(key);
    whole.note(key.range(), &vec![7; usize::try_from(GROUP).unwrap()]);
    let mut parts = Slot::new(key);
    let start = key.range().start;
    for (from, to) in [(100, 4000), (4096, 8192), (8192, 9000), (20_000, 20_001)] {
        let range = ByteRange::new(start + from, start + to);
        parts.note(range, &vec![1; usize::try_from(to - from).unwrap()]);
    }
    vec![("whole", bytes(&whole)), ("parts", bytes(&parts))]
}
