//! Changes of records as one byte string: the form in which they are made and written to the log, and in which the
//! store reads them back.
//!
//! A change: length of the key:1, length of the value:2, key, value; if the second length is all ones, the change
//! removes the record.

use std::iter;

/// Changes in order; the last change of a record counts.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    bytes: Vec<u8>,
}

const REMOVED: u16 = u16::MAX;

/// A change: the key, and the value unless the record is removed.
pub type Change<'a> = (&'a [u8], Option<&'a [u8]>);

impl Batch {
    /// Writes a record.
    pub(super) fn put(&mut self, key: &[u8], value: &[u8]) {
        self.push(key, Some(value));
    }

    /// Removes a record.
    pub(super) fn remove(&mut self, key: &[u8]) {
        self.push(key, None);
    }

    /// Adds a change.
    fn push(&mut self, key: &[u8], value: Option<&[u8]>) {
        let key_len = u8::try_from(key.len()).expect("keys are short");
        let value_len = value.map_or(REMOVED, |value| {
            let len = u16::try_from(value.len()).ok().filter(|&len| len != REMOVED);
            len.expect("the longest value has a path in it")
        });
        let value = value.unwrap_or_default();
        self.bytes.reserve(3 + key.len() + value.len());
        self.bytes.push(key_len);
        self.bytes.extend_from_slice(&value_len.to_le_bytes());
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
    }

    /// Adds the changes in the bytes of another batch.
    pub(super) fn append(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The changes in order.
    pub fn iter(&self) -> impl Iterator<Item = Change<'_>> {
        let mut rest = self.bytes.as_slice();
        iter::from_fn(move || {
            let (change, behind) = split(rest)?;
            rest = behind;
            Some(change)
        })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Removes all changes.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The last change of each record, by key: the order in which a snapshot is written.
    pub(super) fn by_key(&self) -> Vec<Change<'_>> {
        let mut changes: Vec<_> = self.iter().collect();
        // Stable, so the last of equal keys is the latest.
        changes.sort_by_key(|change| change.0);
        changes.dedup_by(|later, earlier| {
            let is_same = later.0 == earlier.0;
            if is_same {
                *earlier = *later;
            }
            is_same
        });
        changes
    }
}

/// The first change in `bytes`, and the bytes that follow it.
pub(super) fn split(bytes: &[u8]) -> Option<(Change<'_>, &[u8])> {
    let (&key_len, rest) = bytes.split_first()?;
    let (value_len, rest) = rest.split_first_chunk::<2>()?;
    let (key, rest) = rest.split_at_checked(usize::from(key_len))?;
    match u16::from_le_bytes(*value_len) {
        REMOVED => Some(((key, None), rest)),
        len => {
            let (value, rest) = rest.split_at_checked(usize::from(len))?;
            Some(((key, Some(value)), rest))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_change_of_each_record_counts() {
        let mut batch = Batch::default();
        batch.put(b"b", b"1");
        batch.remove(b"a");
        batch.remove(b"b");
        batch.put(b"a", b"");
        batch.put(b"c", b"2");
        let expected: [Change<'_>; 3] = [(b"a", Some(b"")), (b"b", None), (b"c", Some(b"2"))];
        assert_eq!(batch.by_key(), expected);
    }
}
