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
use std::os::unix::fs::FileExt;
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
    wipe(&File::create(path)?)
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

    /// What waits, for the store, with the number to keep with it.
    pub(super) fn take(&mut self) -> (Batch, u64) {
        (std::mem::take(&mut self.waiting), self.last)
    }

    /// The same with `more` behind it, which gets a number and no slot.
    pub(super) fn take_with(&mut self, more: &Batch) -> (Batch, u64) {
        self.last += 1;
        self.waiting.append(more.bytes());
        self.take()
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
