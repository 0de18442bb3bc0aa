//! Migrates caches of format 3 and earlier, whose records are in the files of a library with our own ring ahead of it
//! (`docs/decisions/0008-ring-ahead-of-the-store.md`): they are read once, and written as a log.
//!
//! Only the library's public interface is used. If the library does not notice damage to its own files, it is not
//! noticed here either; the ring does not help if the library's journal lost something. This module and the library
//! will be removed in the first version that may refuse such caches.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;

use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use fjall::{Database, KeyspaceCreateOptions};
use xxhash_rust::xxh3::xxh3_64;

use super::batch::{self, Batch};
use super::record::{self, COUNTER_MAX};
use super::{checksums, log, records};
use halocline_os::error::{Error, Result};
use halocline_os::private::PrivateDir;

/// The directory in which every version of the library keeps its keyspaces.
const LIBRARY: &str = "keyspaces";
const RING: &str = "ring";
const SLOT: usize = 256;
const SLOTS: u64 = 256;
/// Bytes of a slot before its batch: checksum, number, length.
const SLOT_HEAD: usize = 18;
/// The number of the last change from the ring, or of one that bypassed it.
const RING_KEY: &[u8] = b"s/ring";

/// Whether a directory has records of an earlier version.
pub(super) fn is_in(dir: &PrivateDir) -> Result<bool> {
    Ok(dir.names()?.iter().any(|name| name == LIBRARY))
}

/// Makes a log of the records in `dir`. After a kill at any point it starts again, or was already done. `torn` means
/// that power was lost since the cache was last open.
pub(super) fn migrate(dir: &PrivateDir, torn: bool) -> Result<()> {
    // The library opens its files by their paths.
    dir.check_below()?;
    if !log::is_in(dir)? {
        let path = dir.path();
        // The library may panic on bytes that it did not write.
        let read = catch_unwind(AssertUnwindSafe(|| read(path)));
        let (mut records, kept) = read
            .map_err(|_| damaged(path, "its library cannot read it"))?
            .map_err(|error| damaged(path, &format!("its library cannot read it: {error}")))?;
        let kept = kept.as_deref().map(|value| record::decode_counter_within(value, COUNTER_MAX));
        // Without a number, the records are from a version without a ring.
        if let Some(kept) = kept.transpose().map_err(|bad| damaged(path, bad.0))? {
            replay(dir, kept, torn, &mut records)?;
        }
        tracing::info!(records = records.len(), "the records of an earlier version become a log");
        log::write_first(dir, &mut |writer| {
            records.iter().try_for_each(|(key, value)| {
                writer.put(key, value).map_err(Error::at(path, "write the records in"))
            })
        })?;
    }
    remove_library(dir)
}

type Records = BTreeMap<Vec<u8>, Vec<u8>>;

/// All records in the library, and its number of the last change from the ring.
fn read(path: &Path) -> fjall::Result<(Records, Option<Vec<u8>>)> {
    let database = Database::builder(path).open()?;
    let keyspace = database.keyspace("dmt", KeyspaceCreateOptions::default)?;
    let mut records = Records::new();
    for found in keyspace.iter() {
        let (key, value) = found.into_inner()?;
        records.insert(key.to_vec(), value.to_vec());
    }
    let kept = records.remove(RING_KEY);
    Ok((records, kept))
}

/// Applies the changes in the ring that the library lacks: those that follow `kept` without a gap. Changes after a gap
/// are left from a power loss; if there was none, a gap is damage.
fn replay(dir: &PrivateDir, kept: u64, torn: bool, records: &mut Records) -> Result<()> {
    let ring = dir.read(RING, SLOT as u64 * SLOTS)?;
    let ring = match ring {
        Some(ring) if ring.len() as u64 == SLOT as u64 * SLOTS => ring,
        _ if torn => return Ok(()),
        _ => return Err(damaged(dir.path(), "its ring of changes is missing or not whole")),
    };
    let slots = ring.chunks_exact(SLOT).zip(0_u64..).filter_map(|(slot, at)| {
        read_slot(slot).filter(|(number, _)| number % SLOTS == at && *number > kept)
    });
    let newer: BTreeMap<u64, &[u8]> = slots.collect();
    let mut changes = Batch::default();
    let mut taken = 0;
    for ((&number, batch), next) in newer.iter().zip(kept + 1..) {
        if number != next {
            break;
        }
        changes.append(batch);
        taken += 1;
    }
    if taken < newer.len() && !torn {
        return Err(damaged(dir.path(), "changes that it was to get are not in its ring"));
    }
    for (key, value) in changes.iter() {
        match value {
            Some(value) => records.insert(key.to_vec(), value.to_vec()),
            None => records.remove(key),
        };
    }
    Ok(())
}

/// The number and the batch of a slot, if it is whole.
fn read_slot(slot: &[u8]) -> Option<(u64, &[u8])> {
    let (checksum, rest) = slot.split_first_chunk::<8>()?;
    let (number, tail) = rest.split_first_chunk::<8>()?;
    let (len, tail) = tail.split_first_chunk::<2>()?;
    let len = usize::from(u16::from_le_bytes(*len));
    let batch = tail.get(..len)?;
    let checked = rest.get(..SLOT_HEAD - 8 + len)?;
    let is_right = xxh3_64(checked) == u64::from_le_bytes(*checksum) && is_whole(batch);
    is_right.then_some((u64::from_le_bytes(*number), batch))
}

/// Whether a batch ends with a change: what is left of one would be read as part of the next batch.
fn is_whole(mut batch: &[u8]) -> bool {
    while let Some((_, rest)) = batch::split(batch) {
        batch = rest;
    }
    batch.is_empty()
}

/// Removes all files except those of the log and the checksums.
fn remove_library(dir: &PrivateDir) -> Result<()> {
    for name in dir.names()? {
        let path = dir.path().join(&name);
        // This one last, because its presence means that there is something to remove.
        if log::is_name(&name) || name == checksums::NAME || name == LIBRARY {
            continue;
        }
        let is_dir = path.symlink_metadata().is_ok_and(|found| found.is_dir());
        let removed = if is_dir { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.map_err(Error::at(&path, "remove"))?;
    }
    let path = dir.path().join(LIBRARY);
    fs::remove_dir_all(&path).map_err(Error::at(path, "remove"))
}

fn damaged(path: &Path, what: &str) -> Error {
    match records::damaged(path, what) {
        Error::Store { path, what, remedy } => Error::Store {
            path,
            what,
            remedy: format!("flush it with the version that wrote it, or {remedy}"),
        },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::{Log, Pace};
    use crate::records::contract::scanned;

    /// Writes the files of an earlier version: `kept` numbered changes in the library, and the last ones up to `last`
    /// in the ring. Change n writes record n mod 50.
    fn write(path: &Path, kept: u64, last: u64) {
        let database = Database::builder(path).open().unwrap();
        let options = || KeyspaceCreateOptions::default().max_memtable_size(2048);
        let keyspace = database.keyspace("dmt", options).unwrap();
        for number in 1..=kept {
            let mut batch = database.batch();
            let (key, value) = change(number);
            match value {
                Some(value) => batch.insert(&keyspace, key, value),
                None => batch.remove(&keyspace, key),
            }
            batch.insert(&keyspace, RING_KEY, record::encode_counter(number));
            batch.commit().unwrap();
        }
        database.persist(fjall::PersistMode::SyncAll).unwrap();
        let mut ring = vec![0; SLOT * 256];
        for number in last.saturating_sub(255).max(1)..=last {
            let (key, value) = change(number);
            let mut batch = Batch::default();
            match value {
                Some(value) => batch.put(&key, &value),
                None => batch.remove(&key),
            }
            let at = usize::try_from(number % SLOTS).unwrap() * SLOT;
            let slot = fuzzing::written(number, batch.bytes());
            ring[at..at + slot.len()].copy_from_slice(&slot);
        }
        fs::write(path.join(RING), ring).unwrap();
        fs::write(path.join(checksums::NAME), "kept").unwrap();
    }

    fn change(number: u64) -> ([u8; 9], Option<Vec<u8>>) {
        let mut key = [b'x'; 9];
        key[1..].copy_from_slice(&(number % 50).to_be_bytes());
        (key, (!number.is_multiple_of(7)).then(|| number.to_be_bytes().to_vec()))
    }

    fn expected(last: u64) -> Records {
        let mut records = Records::new();
        for (key, value) in (1..=last).map(change) {
            match value {
                Some(value) => records.insert(key.to_vec(), value),
                None => records.remove(&key[..]),
            };
        }
        records
    }

    /// Opens the directory as the tables do.
    fn open(path: &Path, torn: bool) -> Result<Records> {
        let dir = PrivateDir::open(path).unwrap();
        if is_in(&dir)? {
            migrate(&dir, torn)?;
        }
        scanned(&Log::open(dir, torn, Pace::of(u64::MAX))?)
    }

    #[test]
    fn i4_records_of_an_earlier_version_become_a_log() {
        for (kept, last) in [(1, 1), (900, 900), (900, 930), (900, 1156), (64, 64)] {
            let dir = tempfile::tempdir().unwrap();
            write(dir.path(), kept, last);
            for opening in 0..2 {
                let found = open(dir.path(), false).unwrap();
                assert!(found == expected(last), "{kept} {last}, opening {opening}");
            }
            let names = PrivateDir::open(dir.path()).unwrap().names().unwrap();
            assert!(names.iter().all(|name| log::is_name(name) || name == checksums::NAME));
            assert!(names.iter().any(|name| name == checksums::NAME), "what is not the store's");
        }
    }

    #[test]
    fn i4_a_ring_that_does_not_follow_is_damage_or_a_power_loss() {
        for (kept, last) in [(900, 1200), (900, 1157)] {
            let dir = tempfile::tempdir().unwrap();
            write(dir.path(), kept, last);
            let error = open(dir.path(), false).unwrap_err().to_string();
            assert!(error.contains("ring") && error.contains("version that wrote it"), "{error}");
            assert!(open(dir.path(), true).unwrap() == expected(kept));
        }
    }

    /// Regression: half a change in one slot made other changes of the next slot's bytes.
    #[test]
    fn i4_a_slot_that_ends_within_a_change_is_damage() {
        let mut whole = Batch::default();
        whole.put(b"xyz", b"value");
        let whole = whole.bytes();
        assert_eq!(read_slot(&fuzzing::written(901, whole)), Some((901, whole)));
        for len in 1..whole.len() {
            assert_eq!(read_slot(&fuzzing::written(901, &whole[..len])), None, "{len}");
        }
    }

    #[test]
    fn a_migration_that_a_kill_interrupts_is_done_by_the_next_opening() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), 300, 310);
        // The snapshot exists, and part of the library is gone.
        let private = PrivateDir::open(dir.path()).unwrap();
        log::write_first(&private, &mut |writer| {
            let records = expected(310);
            records.iter().try_for_each(|(key, value)| {
                writer.put(key, value).map_err(Error::at("snapshot", "write"))
            })
        })
        .unwrap();
        fs::remove_file(dir.path().join(RING)).unwrap();
        assert!(open(dir.path(), false).unwrap() == expected(310));
        assert!(!dir.path().join(LIBRARY).exists());
    }
}
