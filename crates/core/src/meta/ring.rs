//! Changes ahead of the store: a ring of slots in a small file beside the store's own.
//!
//! A change of few records is one slot, written in place through a mapping of the file; the store
//! gets many of them at once, later. What must hold here:
//! - every change has a number, one more than the one before. The number of the last one that the
//!   store has is kept in the store, written together with it ([`RING_KEY`](super::record::RING_KEY));
//! - a slot is written again only when the store has what it says. So after a kill the slots
//!   with higher numbers than the store's follow it without a gap (I4);
//! - after a power loss a slot may be missing or of old. What follows without a gap continues the
//!   prefix that the store has; the rest is wiped, durably, before a new change gets its number.
//!
//! A slot: checksum:8 number:8 length:2 and the batch ([`Batch`]), integers little-endian.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use xxhash_rust::xxh3::xxh3_64;

use super::batch::Batch;
use super::mapping::Mapping;

/// Bytes of a slot: four extents, what splitting one takes.
const SLOT: usize = 256;
const HEAD: usize = 18;
/// Few, so that they stay in the processor's cache.
const SLOTS: u64 = 256;
const BYTES: usize = 256 * SLOT;

/// What a slot cannot hold goes to the store at once.
pub(super) const BATCH_MAX: usize = SLOT - HEAD;

/// The file, and what of it the store does not have yet.
#[derive(Debug)]
pub(super) struct Ring {
    file: File,
    /// Where a file system maps no file for writing, slots are written with calls of the system.
    mapping: Option<Mapping>,
    /// The last change that has a number.
    last: u64,
    /// The last change that the store has.
    kept: u64,
    /// What lies between the two.
    waiting: Batch,
}

/// The slots are not what a kill can leave.
#[derive(Debug)]
pub(super) struct Gap;

/// Makes an empty ring in `path`.
pub(super) fn create(path: &Path) -> io::Result<()> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(true).mode(0o600);
    // The store's directory is ours, and was looked through: this is for good measure.
    options.custom_flags(libc::O_NOFOLLOW);
    wipe(&options.open(path)?)
}

impl Ring {
    /// Opens a ring whose store has the changes up to number `kept`.
    pub(super) fn open(path: &Path, kept: u64) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        if file.metadata()?.len() != BYTES as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mapping = Mapping::new(&file, BYTES).ok();
        Ok(Self { file, mapping, last: kept, kept, waiting: Batch::default() })
    }

    /// Finds the changes that the store does not have. `torn` says that a power loss may have left
    /// any slot unwritten; without one a gap is damage.
    pub(super) fn recover(&mut self, torn: bool) -> io::Result<Result<(), Gap>> {
        let mut bytes = vec![0; BYTES];
        self.file.read_exact_at(&mut bytes, 0)?;
        let newer: BTreeMap<u64, &[u8]> = bytes
            .chunks_exact(SLOT)
            .enumerate()
            .filter_map(|(at, slot)| {
                let (number, batch) = read_slot(slot)?;
                (place(number) == at && number > self.kept).then_some((number, batch))
            })
            .collect();
        let follows = self.kept + 1..;
        let whole: Vec<_> = newer.iter().zip(follows).take_while(|((n, _), at)| *n == at).collect();
        if whole.len() < newer.len() && !torn {
            return Ok(Err(Gap));
        }
        for ((&number, batch), _) in whole {
            self.waiting.append(batch);
            self.last = number;
        }
        Ok(Ok(()))
    }

    /// Forgets what follows a gap, so that no later change can close it.
    pub(super) fn wipe(&self) -> io::Result<()> {
        wipe(&self.file)
    }

    /// Whether all slots hold what the store does not have.
    pub(super) fn is_full(&self) -> bool {
        self.last - self.kept >= SLOTS
    }

    /// Whether the last change filled another quarter of the slots.
    pub(super) fn ends_a_quarter(&self) -> bool {
        self.last.is_multiple_of(SLOTS / 4)
    }

    /// Hands a batch of at most [`BATCH_MAX`] bytes to the operating system. The caller made sure
    /// that the ring is not full. After an error the slot is not valid.
    pub(super) fn append(&mut self, batch: &Batch) -> io::Result<()> {
        debug_assert!(!self.is_full(), "I4: a slot that the store does not have is overwritten");
        let number = self.last + 1;
        let batch = batch.bytes();
        let mut slot = [0; SLOT];
        let used = HEAD + batch.len();
        slot[8..16].copy_from_slice(&number.to_le_bytes());
        let len = u16::try_from(batch.len()).expect("a batch fits a slot");
        slot[16..HEAD].copy_from_slice(&len.to_le_bytes());
        slot[HEAD..used].copy_from_slice(batch);
        let checksum = xxh3_64(&slot[8..used]);
        slot[..8].copy_from_slice(&checksum.to_le_bytes());
        let at = place(number) * SLOT;
        match &mut self.mapping {
            Some(mapping) => mapping.store(at, &slot[..used])?,
            None => self.file.write_all_at(&slot[..used], at as u64)?,
        }
        self.last = number;
        self.waiting.append(batch);
        Ok(())
    }

    /// What waits, for the store, with the number to keep with it; `None` where it has all.
    pub(super) fn take(&mut self) -> Option<(Batch, u64)> {
        (self.kept < self.last).then(|| (std::mem::take(&mut self.waiting), self.last))
    }

    /// The same with `more` behind it, which gets a number and no slot.
    pub(super) fn take_with(&mut self, more: &Batch) -> (Batch, u64) {
        self.last += 1;
        self.waiting.append(more.bytes());
        (std::mem::take(&mut self.waiting), self.last)
    }

    /// The store has the changes up to `number`.
    pub(super) fn keep(&mut self, number: u64) {
        debug_assert!(
            (self.kept..=self.last).contains(&number),
            "changes go to the store in order"
        );
        self.kept = number;
    }
}

/// Which slot a change is written to.
fn place(number: u64) -> usize {
    usize::try_from(number % SLOTS).expect("there are few")
}

fn wipe(file: &File) -> io::Result<()> {
    // Zeros and not a hole: no later write to a slot may want for space.
    file.write_all_at(&vec![0; BYTES], 0)?;
    file.sync_all()
}

/// The number and the batch of a slot, if it is whole.
fn read_slot(slot: &[u8]) -> Option<(u64, &[u8])> {
    let (checksum, rest) = slot.split_first_chunk::<8>()?;
    let (number, tail) = rest.split_first_chunk::<8>()?;
    let (len, tail) = tail.split_first_chunk::<2>()?;
    let len = usize::from(u16::from_le_bytes(*len));
    let batch = tail.get(..len)?;
    let checked = rest.get(..HEAD - 8 + len)?;
    (xxh3_64(checked) == u64::from_le_bytes(*checksum))
        .then_some((u64::from_le_bytes(*number), batch))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(number: u64) -> Batch {
        let mut batch = Batch::default();
        batch.put(&number.to_be_bytes(), b"value");
        batch
    }

    /// More changes than there are slots; the store has all but the last 100. What is in the file
    /// then, and what a kill leaves to be recovered.
    fn story(path: &Path, is_mapped: bool) -> (Vec<u8>, Option<(Batch, u64)>) {
        create(path).unwrap();
        let mut ring = Ring::open(path, 0).unwrap();
        assert!(ring.mapping.is_some(), "this file system maps files");
        if !is_mapped {
            ring.mapping = None;
        }
        for number in 1..=400 {
            ring.append(&change(number)).unwrap();
            if number == 200 || number == 300 {
                let (_, taken) = ring.take().unwrap();
                ring.keep(taken);
            }
        }
        drop(ring);
        let mut ring = Ring::open(path, 300).unwrap();
        ring.recover(false).unwrap().unwrap();
        (std::fs::read(path).unwrap(), ring.take())
    }

    #[test]
    fn i4_slots_that_cannot_be_mapped_are_written_to_the_same_effect() {
        let dir = tempfile::tempdir().unwrap();
        let (mapped, recovered) = story(&dir.path().join("mapped"), true);
        let (written, recovered_too) = story(&dir.path().join("written"), false);
        assert!(mapped == written, "the files differ");
        for (batch, number) in [recovered.unwrap(), recovered_too.unwrap()] {
            let expected: Vec<_> = (301..=400).map(change).collect();
            let expected: Vec<u8> = expected.iter().flat_map(Batch::bytes).copied().collect();
            assert_eq!((batch.bytes(), number), (&*expected, 400));
        }
    }

    #[test]
    fn i4_a_slot_that_cannot_be_written_is_an_error_and_no_change() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ring");
        create(&path).unwrap();
        let mut ring = Ring::open(&path, 0).unwrap();
        ring.mapping = None;
        ring.append(&change(1)).unwrap();
        ring.file = File::open(&path).unwrap();
        ring.append(&change(2)).unwrap_err();
        let (batch, number) = ring.take().unwrap();
        assert_eq!((batch.bytes(), number), (change(1).bytes(), 1));
    }

    #[test]
    fn changes_of_nothing_wait_for_the_store_too() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ring");
        create(&path).unwrap();
        let mut ring = Ring::open(&path, 0).unwrap();
        assert!(ring.take().is_none());
        while !ring.is_full() {
            ring.append(&Batch::default()).unwrap();
        }
        let (batch, number) = ring.take().expect("the slots are free only when the store knows");
        assert!(batch.is_empty());
        ring.keep(number);
        assert!(!ring.is_full() && ring.take().is_none());
    }
}
