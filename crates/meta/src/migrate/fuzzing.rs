//! The fuzz target of a slot of the ring that earlier versions had ahead of their store.

use xxhash_rust::xxh3::xxh3_64;

use super::{SLOT, SLOT_HEAD, read_slot};
use crate::batch::Batch;

/// A slot as those versions wrote it.
pub(super) fn written(number: u64, batch: &[u8]) -> Vec<u8> {
    let len = u16::try_from(batch.len()).expect("a batch in a slot is short");
    let rest = [&number.to_le_bytes()[..], &len.to_le_bytes(), batch].concat();
    [&xxh3_64(&rest).to_le_bytes()[..], &rest].concat()
}

/// A slot: what is accepted is a number with a whole batch, and is the same when it is written again. So is it if the
/// checksum of any content is right.
pub fn migrated_slot(bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(SLOT)];
    check(bytes);
    if let Some((head, batch)) = bytes.split_at_checked(SLOT_HEAD) {
        let number = head[8..16].try_into().map(u64::from_le_bytes).expect("eight bytes");
        check(&written(number, batch));
    }
}

fn check(slot: &[u8]) {
    let Some((number, batch)) = read_slot(slot) else { return };
    assert!(slot.starts_with(&written(number, batch)));
    let (mut given, mut again) = (Batch::default(), Batch::default());
    given.append(batch);
    for (key, value) in given.iter() {
        match value {
            Some(value) => again.put(key, value),
            None => again.remove(key),
        }
    }
    assert_eq!(again.bytes(), batch, "a part of a change would become part of the next slot's");
}

/// Slots with and without changes.
#[cfg(test)]
pub(crate) fn seeds() -> [(&'static str, Vec<u8>); 2] {
    let mut batch = Batch::default();
    batch.put(b"x1", b"value");
    batch.remove(b"x2");
    [("changes", written(901, batch.bytes())), ("empty", written(7, &[]))]
}
