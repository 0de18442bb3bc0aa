//! A cache with a record store of another kind, made as `CONTRIBUTING.md` says: one file, this one, and one row
//! ([`ROW`]), which the configuration selects by its name.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use halocline_api::config::Config;
use halocline_meta::identity::identity_of;
use halocline_meta::records::{Batch, Opening, RecordStore, Salvage, StoreKind, Visit};
use halocline_os::error::{Error, Result};
use halocline_os::private::{PrivateDir, Use};
use proptest::prelude::*;

use crate::fixture::{Fixture, still};
use crate::reference::{LIMIT, op, run_on};

/// The row.
pub(crate) static ROW: [StoreKind; 1] =
    [StoreKind { name: "plain", fill: PlainFile::fill, open: PlainFile::open, salvage }];

const NAME: &str = "records";
const BYTES_MAX: u64 = 64 << 20;

/// One file, to which each batch is appended: the number of its changes, then each as key and value.
#[derive(Debug)]
struct PlainFile {
    path: PathBuf,
    records: BTreeMap<Vec<u8>, Vec<u8>>,
    /// `None` once it failed or was closed.
    file: Mutex<Option<File>>,
}

impl PlainFile {
    fn fill(dir: &PrivateDir) -> Result<()> {
        dir.file(NAME, Use::New)?.sync_all().map_err(Error::at(dir.path(), "sync"))
    }

    fn read(dir: &PrivateDir) -> Result<Self> {
        let (bytes, path) = (dir.read(NAME, BYTES_MAX)?, dir.path().join(NAME));
        let mut rest = bytes.as_deref().unwrap_or_default();
        let mut records = BTreeMap::new();
        // What a kill left unfinished was not acknowledged.
        while let Some(batch) = take_batch(&mut rest) {
            for (key, value) in batch {
                match value {
                    Some(value) => records.insert(key, value),
                    None => records.remove(&key),
                };
            }
        }
        Ok(Self { path, records, file: Mutex::default() })
    }

    #[expect(clippy::needless_pass_by_value, reason = "the row's form: other stores keep it")]
    fn open(dir: PrivateDir, _: Opening) -> Result<Arc<dyn RecordStore>> {
        let mut store = Self::read(&dir)?;
        let mut all = Vec::new();
        let records = store.records.iter();
        put_batch(&mut all, records.map(|(key, value)| (&key[..], Some(&value[..]))).collect());
        dir.replace(NAME, &all)?;
        let mut file = dir.file(NAME, Use::Write)?;
        let end = std::io::Seek::seek(&mut file, std::io::SeekFrom::End(0));
        end.map_err(Error::at(&store.path, "read"))?;
        store.file = Mutex::new(Some(file));
        Ok(Arc::new(store))
    }

    /// Has `act` use the file, for the last time if it fails.
    fn with_file(&self, act: impl FnOnce(&mut File) -> std::io::Result<()>) -> Result<()> {
        let mut file = self.file.lock().unwrap();
        let used = act(file.as_mut().ok_or_else(|| self.closed())?);
        if used.is_err() {
            *file = None;
        }
        used.map_err(|_| self.closed())
    }

    fn closed(&self) -> Error {
        let (what, remedy) = ("it failed or was closed".to_owned(), "open it again".to_owned());
        Error::Store { path: self.path.clone(), what, remedy }
    }
}

impl RecordStore for PlainFile {
    fn scan(&self, each: Visit<'_>) -> Result<()> {
        self.records.iter().try_for_each(|(key, value)| each(key, value))
    }

    fn commit(&self, batch: &Batch) -> Result<()> {
        let mut bytes = Vec::new();
        put_batch(&mut bytes, batch.iter().collect());
        self.with_file(|file| file.write_all(&bytes))
    }

    fn sync(&self) -> Result<()> {
        self.with_file(|file| file.sync_all())
    }

    fn close(&self, last: &Batch) -> Result<()> {
        self.commit(last)?;
        self.sync()?;
        *self.file.lock().unwrap() = None;
        Ok(())
    }

    fn bytes(&self) -> u64 {
        // A rewrite takes as much again, for a moment.
        2 * fs::metadata(&self.path).map_or(0, |found| found.len())
    }

    fn usable(&self) -> Result<()> {
        self.with_file(|_| Ok(()))
    }
}

fn salvage(dir: &PrivateDir, _: &str) -> Result<Salvage> {
    Ok((Arc::new(PlainFile::read(dir)?), None))
}

fn put_batch(bytes: &mut Vec<u8>, changes: Vec<(&[u8], Option<&[u8]>)>) {
    let mut put = |part: &[u8]| bytes.extend_from_slice(part);
    let len = |part: &[u8]| u32::try_from(part.len()).unwrap().to_le_bytes();
    put(&u32::try_from(changes.len()).unwrap().to_le_bytes());
    for (key, value) in changes {
        put(&len(key));
        put(key);
        match value {
            Some(value) => {
                put(&len(value));
                put(value);
            }
            None => put(&u32::MAX.to_le_bytes()),
        }
    }
}

type Changes = Vec<(Vec<u8>, Option<Vec<u8>>)>;

fn take_batch(rest: &mut &[u8]) -> Option<Changes> {
    let mut behind = *rest;
    let count = take_number(&mut behind)?;
    let mut changes = Vec::new();
    for _ in 0..count {
        let key_len = take_number(&mut behind)?;
        let key = take(&mut behind, key_len)?;
        let value = match take_number(&mut behind)? {
            u32::MAX => None,
            len => Some(take(&mut behind, len)?),
        };
        changes.push((key, value));
    }
    *rest = behind;
    Some(changes)
}

fn take_number(rest: &mut &[u8]) -> Option<u32> {
    let (number, behind) = rest.split_first_chunk()?;
    *rest = behind;
    Some(u32::from_le_bytes(*number))
}

fn take(rest: &mut &[u8], len: u32) -> Option<Vec<u8>> {
    let (part, behind) = rest.split_at_checked(usize::try_from(len).unwrap())?;
    *rest = behind;
    Some(part.to_vec())
}

/// An engine whose records are in a plain file.
fn fixture() -> Fixture {
    let record_store = ROW[0].name.to_owned();
    Fixture::in_memory(Config { record_store, ..still(LIMIT, "always") })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn with_a_store_of_another_row_the_engine_equals_byte_arrays(ops in prop::collection::vec(op(), 1..60)) {
        run_on(fixture(), &ops);
    }
}

/// The store is the one that the row makes, and the cache keeps it: no mount takes its records for those of another.
#[test]
fn a_cache_names_its_store_and_a_mount_that_names_another_is_refused() {
    let mut fixture = fixture();
    fixture.write("a", 0, &[7; 8192]);
    fixture.close_dirty();
    let records = fixture.cache.path().join(halocline_meta::table::STORE_DIR).join(NAME);
    let mut bytes = Vec::new();
    File::open(records).unwrap().read_to_end(&mut bytes).unwrap();
    assert!(!bytes.is_empty());
    let identity = identity_of(fixture.cache.path()).unwrap().unwrap();
    assert_eq!(identity.record_store.as_deref(), Some("plain"));
    for (name, said) in [("log", "--record-store plain"), ("nothing", "log, plain")] {
        fixture.config.record_store = name.to_owned();
        let refused = fixture.try_open().unwrap_err().to_string();
        assert!(refused.contains(said) && refused.contains(name), "{refused}");
    }
    fixture.config.record_store = "plain".to_owned();
    fixture.open();
    assert_eq!(fixture.read("a", 0, 8192), [7; 8192]);
    assert_eq!(fixture.flush().bytes, 8192);
    fixture.close();
}

/// The store that the configuration names by default is named by no cache: programs before this option read it.
#[test]
fn a_cache_with_the_default_store_names_none() {
    let mut fixture = Fixture::new(still(LIMIT, "always"));
    fixture.close();
    let identity = fs::read_to_string(fixture.cache.path().join("halocline-cache.toml")).unwrap();
    assert!(!identity.contains("record_store"), "{identity}");
    let mut moved = |config: &str| {
        fixture.config.record_store = config.to_owned();
        fixture.try_open().map(drop)
    };
    assert!(moved("plain").is_err());
    assert!(moved("log").is_ok());
}
