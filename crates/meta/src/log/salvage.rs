//! Reads the intact part of a damaged log, without changing it.
//!
//! The snapshot up to its first bad block, then the batches up to the first incomplete one: what was recorded after
//! that is unknown. So the result is older than the objects, and its dirty extents may since have been flushed or
//! replaced. Records that refer to missing ones are left out.

use std::collections::{BTreeMap, HashSet};

use super::files::{LOG, SNAPSHOT, log_name, number_in, snapshot_name};
use super::log_file::{HEAD, batch_at, batch_behind, generation_of, is_segment};
use super::recover::contents;
use super::snapshot::Reader;
use super::sync_point::synced;
use crate::batch::{Batch, split};
use crate::record::{self, State};
use crate::records::{RecordStore, Visit};
use halocline_os::error::{Error, Result};
use halocline_os::private::{PrivateDir, Use};

/// Records of a damaged log. Accepts changes and records none.
#[derive(Debug)]
pub(crate) struct Salvaged {
    records: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Where and why reading ended; `None` if nothing is damaged.
    pub(crate) damage: Option<String>,
}

/// Reads what is intact in `dir`. It is treated as left by a process of the boot `boot_id`, so that nothing is dropped
/// as after a power loss: the contents of the objects are taken as they are.
///
/// # Errors
/// Neither a snapshot nor a file of the log begins as one.
pub(crate) fn salvage(dir: &PrivateDir, boot_id: &str) -> Result<Salvaged> {
    let mut reading = Reading::default();
    reading.take_snapshot(dir)?;
    reading.take_files(dir)?;
    let Some((generation, batch)) = reading.last else {
        return Err(Error::Store {
            path: dir.path().to_owned(),
            what: "neither a snapshot nor a log can be read: nothing says which bytes of the objects are whose".to_owned(),
            remedy: "restore the directory from a copy".to_owned(),
        });
    };
    let synced = synced(dir, generation);
    if batch < synced {
        reading.damaged(format!("it ends with batch {batch}, and batch {synced} was synced"));
    }
    reading.drop_unfounded();
    let state = State { closed: false, untrimmed: true, boot_id: boot_id.to_owned() };
    reading.records.insert(record::STATE_KEY.to_vec(), record::encode_state(&state));
    Ok(Salvaged { records: reading.records, damage: reading.damage })
}

#[derive(Debug, Default)]
struct Reading {
    records: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The log's generation and the last batch.
    last: Option<(u64, u64)>,
    /// The last file of the log that the snapshot covers.
    covered: u64,
    damage: Option<String>,
}

impl Reading {
    /// Only the first damage counts: reading ended there.
    fn damaged(&mut self, what: String) {
        self.damage.get_or_insert(what);
    }

    /// Takes the newest snapshot whose head can be read.
    fn take_snapshot(&mut self, dir: &PrivateDir) -> Result<()> {
        for number in numbers(dir, SNAPSHOT)?.into_iter().rev() {
            let name = snapshot_name(number);
            let begun = dir.file(&name, Use::Read).map(Reader::begin);
            let mut reader = match begun {
                Ok(Ok(reader)) if reader.head.number == number => reader,
                Ok(Ok(_)) => {
                    self.damaged(format!("{name} is of another number"));
                    continue;
                }
                Ok(Err(bad)) => {
                    self.damaged(format!("{name} at byte {}: {}", bad.offset, bad.what));
                    continue;
                }
                Err(error) => {
                    self.damaged(error.to_string());
                    continue;
                }
            };
            self.last = Some((reader.head.generation, reader.head.batch));
            self.covered = number;
            loop {
                match reader.advance() {
                    Ok(true) => {}
                    Ok(false) => return Ok(()),
                    Err(bad) => {
                        self.damaged(format!("{name} at byte {}: {}", bad.offset, bad.what));
                        return Ok(());
                    }
                }
                let (key, value) = reader.record().expect("it advanced to one");
                self.records.insert(key.to_vec(), value.to_vec());
            }
        }
        self.damaged("its snapshot is missing".to_owned());
        Ok(())
    }

    /// Takes the batches since the snapshot.
    fn take_files(&mut self, dir: &PrivateDir) -> Result<()> {
        let covered = self.covered;
        let mut before = self.last.map(|_| covered);
        for number in numbers(dir, LOG)?.into_iter().filter(|&number| number > covered) {
            if before.is_some_and(|before| number != before + 1) {
                self.damaged(format!("{} is missing", log_name(number - 1)));
                break;
            }
            before = Some(number);
            let name = log_name(number);
            let file = dir.file(&name, Use::Read);
            let read = file.and_then(|file| {
                contents(&file, u64::MAX).map_err(Error::at(dir.path().join(&name), "read"))
            });
            let bytes = match read {
                Ok(bytes) => bytes,
                Err(error) => {
                    self.damaged(error.to_string());
                    break;
                }
            };
            if !self.take_file(&name, number, &bytes) {
                break;
            }
        }
        Ok(())
    }

    /// Takes the batches of a file; returns whether it is complete.
    fn take_file(&mut self, name: &str, number: u64, bytes: &[u8]) -> bool {
        let known = self.last.map(|(generation, _)| generation);
        let Some(generation) = known.or_else(|| generation_of(bytes)) else {
            self.damaged(format!("{name} at byte 0: its head is not whole"));
            return false;
        };
        if !is_segment(bytes, number, generation) {
            self.damaged(format!("{name} at byte 0: its head is not whole"));
            return false;
        }
        let mut at = HEAD;
        while let Some(batch) = batch_at(bytes, at, generation) {
            if self.last.is_some_and(|(_, last)| batch.number != last + 1) {
                break;
            }
            self.last = Some((generation, batch.number));
            self.apply(batch.changes);
            at = batch.end;
        }
        let next = self.last.map_or(0, |(_, last)| last + 1);
        if batch_behind(bytes, at, generation, |later| later.number >= next).is_some() {
            self.damaged(format!("{name} at byte {at}: a batch is missing or not whole"));
            return false;
        }
        true
    }

    fn apply(&mut self, mut changes: &[u8]) {
        while let Some(((key, value), behind)) = split(changes) {
            match value {
                Some(value) => self.records.insert(key.to_vec(), value.to_vec()),
                None => self.records.remove(key),
            };
            changes = behind;
        }
    }

    /// Leaves out records that depend on missing ones.
    fn drop_unfounded(&mut self) {
        let mut files = HashSet::new();
        let mut unfounded = 0_usize;
        // Files come before extents: keys are in order.
        self.records.retain(|key, value| {
            let is_founded = match key.first() {
                Some(&record::FILE) => record::decode_file(key, value).map(|file| {
                    files.insert(file.id);
                    true
                }),
                Some(&record::EXTENT) => {
                    record::decode_extent(key, value).map(|(file, _)| files.contains(&file))
                }
                // Entries of the critical data table are not worth reading.
                Some(&record::CRITICAL) => return false,
                _ => Ok(true),
            };
            let keep = is_founded.unwrap_or(false);
            unfounded += usize::from(!keep);
            keep
        });
        if unfounded > 0 {
            self.damaged(format!("{unfounded} records refer to others that are missing"));
        }
    }
}

fn numbers(dir: &PrivateDir, prefix: &str) -> Result<Vec<u64>> {
    let names = dir.names()?;
    let mut numbers: Vec<_> = names.iter().filter_map(|name| number_in(name, prefix)).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

impl RecordStore for Salvaged {
    fn scan(&self, each: Visit<'_>) -> Result<()> {
        self.records.iter().try_for_each(|(key, value)| each(key, value))
    }

    fn commit(&self, _: &Batch) -> Result<()> {
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn close(&self, _: &Batch) -> Result<()> {
        Ok(())
    }

    fn bytes(&self) -> u64 {
        0
    }

    fn usable(&self) -> Result<()> {
        Ok(())
    }
}
