//! What two files must hold, whatever fails: of each word of the one the last acknowledged write or a later one that
//! was not answered; in the other each acknowledged record once.
//!
//! Only one program writes a slot at a time, on whichever node, so that versions are written in their order: a write
//! that comes too late, after its node lost its token, is seen as an older version than one that was acknowledged.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};

use halocline_testkit::hostile::Random;

const WORDS: usize = 512;
const WORD: usize = 8;
const SLOT: usize = WORDS * WORD;
/// Slots lie behind each other, so that neighbours belong to different nodes at times.
const SLOTS: usize = 48;
/// Bytes of an appended record: who appended it and which of his it is, each twice.
const RECORD: usize = 32;

/// A stretch of the file that has one writer at a time.
#[derive(Debug)]
struct Slot {
    issued: AtomicU64,
    acknowledged: Mutex<[u64; WORDS]>,
    writing: Mutex<()>,
}

/// What is known of an appended record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Append {
    /// It is not answered, so it may be there.
    Issued,
    /// It was acknowledged, or seen when nothing was in progress: it stays.
    There,
    /// It was not answered, and not there when nothing was in progress: it does not come any more.
    Missing,
}

/// What was issued and acknowledged, by programs on all nodes.
#[derive(Debug)]
pub(crate) struct Ledger {
    slots: Vec<Slot>,
    appended: Mutex<BTreeMap<(u64, u64), Append>>,
    counts: Counts,
}

/// What the programs did.
#[derive(Debug, Default)]
struct Counts {
    writes: AtomicU64,
    appends: AtomicU64,
    reads: AtomicU64,
    unanswered: AtomicU64,
}

fn add(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

/// The word that a version of a slot has at a place: one that lies elsewhere is no other place's.
fn word(slot: usize, at: usize, version: u64) -> u64 {
    if version == 0 { 0 } else { (slot as u64) << 52 | (at as u64) << 40 | version }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ledger {
    pub(crate) fn new() -> Self {
        let slot = || Slot {
            issued: AtomicU64::new(0),
            acknowledged: Mutex::new([0; WORDS]),
            writing: Mutex::new(()),
        };
        Self {
            slots: std::iter::repeat_with(slot).take(SLOTS).collect(),
            appended: Mutex::default(),
            counts: Counts::default(),
        }
    }

    /// Writes some words of a slot, unless another program is writing it just now; returns whether it did.
    pub(crate) fn write(&self, file: &File, random: &mut Random) -> io::Result<bool> {
        let number = random.below(SLOTS);
        let slot = &self.slots[number];
        let _writing = match slot.writing.try_lock() {
            Ok(writing) => writing,
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
        };
        let start = random.below(WORDS);
        let end = (start + 1 + random.below(WORDS)).min(WORDS);
        let version = slot.issued.fetch_add(1, Ordering::SeqCst) + 1;
        let words = (start..end).flat_map(|at| word(number, at, version).to_le_bytes());
        let bytes: Vec<u8> = words.collect();
        let written = file.write_all_at(&bytes, (number * SLOT + start * WORD) as u64);
        add(if written.is_ok() { &self.counts.writes } else { &self.counts.unanswered });
        written?;
        lock(&slot.acknowledged)[start..end].fill(version);
        Ok(true)
    }

    /// Reads a slot, which others may be writing (I1, I11, I13).
    pub(crate) fn read(&self, file: &File, random: &mut Random) -> io::Result<()> {
        self.check_slot(file, random.below(SLOTS))?;
        add(&self.counts.reads);
        Ok(())
    }

    /// What was found of each word.
    fn check_slot(&self, file: &File, number: usize) -> io::Result<[u64; WORDS]> {
        let slot = &self.slots[number];
        let before = *lock(&slot.acknowledged);
        let mut bytes = [0; SLOT];
        file.read_exact_at(&mut bytes, (number * SLOT) as u64)?;
        let issued = slot.issued.load(Ordering::SeqCst);
        let mut found = [0; WORDS];
        for (at, bytes) in bytes.chunks_exact(WORD).enumerate() {
            let value = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
            let version = value & ((1 << 40) - 1);
            assert!(
                value == word(number, at, version) && (before[at]..=issued).contains(&version),
                "slot {number}, word {at}: {value:x} is there, of version {version}, where {} to {issued} may be",
                before[at]
            );
            found[at] = version;
        }
        Ok(found)
    }

    /// Appends a record.
    pub(crate) fn append(&self, file: &File, program: u64) -> io::Result<()> {
        let number = {
            let mut appended = lock(&self.appended);
            let last = appended.range((program, 0)..(program + 1, 0)).next_back();
            let number = last.map_or(1, |((_, number), _)| number + 1);
            appended.insert((program, number), Append::Issued);
            number
        };
        let record: Vec<u8> =
            [program, number, program, number].into_iter().flat_map(u64::to_le_bytes).collect();
        let written = io::Write::write_all(&mut &*file, &record);
        add(if written.is_ok() { &self.counts.appends } else { &self.counts.unanswered });
        written?;
        lock(&self.appended).insert((program, number), Append::There);
        Ok(())
    }

    /// Holds both files, which nobody changes now, against the ledger. What was not answered counts from now on as it
    /// was found.
    pub(crate) fn settle(&self, slots: &File, appended: &File) {
        for number in 0..SLOTS {
            let found = self.check_slot(slots, number).expect("the slots can be read");
            *lock(&self.slots[number].acknowledged) = found;
        }
        let mut expected = lock(&self.appended);
        let mut bytes = vec![0; usize::try_from(appended.metadata().unwrap().len()).unwrap()];
        appended.read_exact_at(&mut bytes, 0).expect("the records can be read");
        assert_eq!(bytes.len() % RECORD, 0, "no append was torn or lies over another");
        let mut found = BTreeSet::new();
        let mut holes = 0;
        for record in bytes.chunks_exact(RECORD) {
            let words: Vec<u64> = record
                .chunks_exact(WORD)
                .map(|bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
                .collect();
            if words == [0; 4] {
                holes += 1;
                continue;
            }
            assert_eq!(words[..2], words[2..], "a record is torn");
            let key = (words[0], words[1]);
            let known = expected.get(&key);
            assert!(known.is_some(), "nobody appended {key:?}");
            assert_ne!(
                known,
                Some(&Append::Missing),
                "{key:?} came after it was seen to be missing"
            );
            assert!(found.insert(key), "{key:?} is there twice");
        }
        let mut open = 0;
        for (key, append) in expected.iter_mut() {
            let is_there = found.contains(key);
            assert!(is_there || *append != Append::There, "the record {key:?} is lost");
            open += usize::from(*append != Append::There);
            *append = if is_there { Append::There } else { Append::Missing };
        }
        // The size of the file may have been there before the bytes.
        assert!(holes <= open, "{holes} holes where {open} appends were not answered");
    }

    /// The first words that are older than what was acknowledged: slot, word, found, acknowledged.
    pub(crate) fn lost(&self, slots: &File) -> Vec<(usize, usize, u64, u64)> {
        let mut lost = Vec::new();
        for (number, slot) in self.slots.iter().enumerate() {
            let acknowledged = *lock(&slot.acknowledged);
            let mut bytes = [0; SLOT];
            if slots.read_exact_at(&mut bytes, (number * SLOT) as u64).is_err() {
                continue;
            }
            for (at, bytes) in bytes.chunks_exact(WORD).enumerate() {
                let value = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
                let version = value & ((1 << 40) - 1);
                if version < acknowledged[at] {
                    lost.push((number, at, version, acknowledged[at]));
                }
            }
        }
        lost.dedup_by(|two, one| two.0 == one.0 && (two.2, two.3) == (one.2, one.3));
        lost.truncate(20);
        lost
    }

    /// Makes what all programs find at first.
    pub(crate) fn make(slots: &File) {
        slots.set_len((SLOTS * SLOT) as u64).unwrap();
    }

    /// For people.
    pub(crate) fn summary(&self) -> String {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Counts { writes, appends, reads, unanswered } = &self.counts;
        format!(
            "{} writes and {} appends acknowledged, {} reads checked, {} not answered",
            count(writes),
            count(appends),
            count(reads),
            count(unanswered)
        )
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    fn refuses(check: impl FnOnce()) -> bool {
        catch_unwind(AssertUnwindSafe(check)).is_err()
    }

    /// The canary: what is lost, late, misplaced or doubled is noticed.
    #[test]
    fn the_ledger_finds_what_is_wrong() {
        let (slots, records) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let ledger = Ledger::new();
        Ledger::make(&slots);
        let mut random = Random(1);
        for _ in 0..2000 {
            ledger.write(&slots, &mut random).unwrap();
        }
        for program in [1, 2, 1] {
            ledger.append(&records, program).unwrap();
        }
        ledger.settle(&slots, &records);
        let at = |number: usize, place: usize| (number * SLOT + place * WORD) as u64;
        let mut there = [0; WORD];
        slots.read_exact_at(&mut there, at(3, 5)).unwrap();
        let version = u64::from_le_bytes(there) & ((1 << 40) - 1);
        for wrong in [0, word(3, 5, version - 1), word(3, 6, version), word(3, 5, 1 << 30)] {
            slots.write_all_at(&wrong.to_le_bytes(), at(3, 5)).unwrap();
            assert!(refuses(|| drop(ledger.check_slot(&slots, 3))), "{wrong:x}");
        }
        slots.write_all_at(&there, at(3, 5)).unwrap();
        ledger.settle(&slots, &records);
        let mut first = [0; RECORD];
        records.read_exact_at(&mut first, 0).unwrap();
        for wrong in [[0; RECORD], [7; RECORD]] {
            records.write_all_at(&wrong, 0).unwrap();
            assert!(refuses(|| ledger.settle(&slots, &records)), "{wrong:?}");
        }
        records.write_all_at(&first, 0).unwrap();
        records.write_all_at(&first, 3 * RECORD as u64).unwrap();
        assert!(refuses(|| ledger.settle(&slots, &records)), "it is there twice");
        records.set_len(3 * RECORD as u64).unwrap();
        ledger.settle(&slots, &records);
        // One that was not answered may come, but not after all was quiet.
        let late: Vec<u8> = [1_u64, 3, 1, 3].into_iter().flat_map(u64::to_le_bytes).collect();
        for may_come in [true, false] {
            lock(&ledger.appended).insert((1, 3), Append::Issued);
            if !may_come {
                records.set_len(3 * RECORD as u64).unwrap();
                ledger.settle(&slots, &records);
            }
            records.write_all_at(&late, 3 * RECORD as u64).unwrap();
            assert_eq!(refuses(|| ledger.settle(&slots, &records)), !may_come);
        }
    }
}
