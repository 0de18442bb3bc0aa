//! Records in memory, for tests: on a disk that outlives its stores and can be made to fail.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::contract::Bench;
use super::{RecordStore, Visit};
use crate::batch::Batch;
use halocline_os::error::{Error, Result};

/// What outlives a store: batches in order, and how many of them survive a power loss.
#[derive(Debug, Clone, Default)]
pub(crate) struct Disk(Arc<Mutex<Content>>);

#[derive(Debug, Default)]
struct Content {
    batches: Vec<Batch>,
    synced: usize,
    /// Number of writes until one fails.
    sound: Option<usize>,
}

impl Disk {
    /// Opens a store over the disk's contents. Only one may be used at a time.
    pub(crate) fn open(&self) -> MemoryStore {
        MemoryStore { disk: self.clone(), failed: OnceLock::new() }
    }

    /// Simulates a power loss after which `kept` of the unsynced batches are on the disk.
    pub(crate) fn lose_power(&self, kept: usize) {
        let mut content = self.0.lock();
        let left = (content.synced + kept).min(content.batches.len());
        content.batches.truncate(left);
        content.synced = left;
    }

    /// Lets `calls` more writes succeed, and no others; `None`: all.
    pub(crate) fn fail_after(&self, calls: Option<usize>) {
        self.0.lock().sound = calls;
    }

    /// How many batches were accepted.
    pub(crate) fn batches(&self) -> usize {
        self.0.lock().batches.len()
    }
}

/// A store over a [`Disk`].
#[derive(Debug)]
pub(crate) struct MemoryStore {
    disk: Disk,
    failed: OnceLock<&'static str>,
}

impl MemoryStore {
    fn write(&self, change: impl FnOnce(&mut Content)) -> Result<()> {
        let mut content = self.disk.0.lock();
        self.usable()?;
        match &mut content.sound {
            Some(0) => {
                self.failed.get_or_init(|| "a write failed");
            }
            Some(calls) => *calls -= 1,
            None => {}
        }
        self.usable()?;
        change(&mut content);
        Ok(())
    }
}

impl Bench for Disk {
    fn open(&mut self) -> Arc<dyn RecordStore> {
        Arc::new(Disk::open(self))
    }

    fn lose_power(&mut self) -> bool {
        Disk::lose_power(self, 2);
        true
    }

    fn fail(&mut self, fails: bool) -> bool {
        self.fail_after(fails.then_some(0));
        true
    }
}

impl RecordStore for MemoryStore {
    fn scan(&self, each: Visit<'_>) -> Result<()> {
        let mut records: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        let content = self.disk.0.lock();
        for (key, value) in content.batches.iter().flat_map(Batch::iter) {
            match value {
                Some(value) => records.insert(key.to_vec(), value.to_vec()),
                None => records.remove(key),
            };
        }
        drop(content);
        records.iter().try_for_each(|(key, value)| each(key, value))
    }

    fn commit(&self, batch: &Batch) -> Result<()> {
        self.write(|content| content.batches.push(batch.clone()))
    }

    fn sync(&self) -> Result<()> {
        self.write(|content| content.synced = content.batches.len())
    }

    fn close(&self, last: &Batch) -> Result<()> {
        self.write(|content| {
            content.batches.push(last.clone());
            content.synced = content.batches.len();
            self.failed.get_or_init(|| "it was closed");
        })
    }

    fn bytes(&self) -> u64 {
        self.disk.0.lock().batches.iter().map(|batch| batch.bytes().len() as u64).sum()
    }

    fn usable(&self) -> Result<()> {
        let Some(what) = self.failed.get() else { return Ok(()) };
        let (path, remedy) = ("memory".into(), "open it again".to_owned());
        Err(Error::Store { path, what: (*what).to_owned(), remedy })
    }
}
