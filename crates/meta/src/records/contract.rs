//! Tests of the contract of a store of records ([`RecordStore`]), for each implementation.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use super::{Opening, RecordStore, StoreKind};
use crate::batch::Batch;
use crate::record_stores::STORES;
use halocline_os::error::{Error, Result};
use halocline_os::private::PrivateDir;

pub(crate) type Records = BTreeMap<Vec<u8>, Vec<u8>>;

/// A store and its environment. A store implements this in its own file, or next to the first test of its kind.
pub(crate) trait Bench {
    /// Opens the store as it was left. What was opened earlier is gone, as after a kill.
    fn open(&mut self) -> Arc<dyn RecordStore>;
    /// Simulates a power loss for everything that is not open; `false` if that is impossible.
    fn lose_power(&mut self) -> bool;
    /// From now on no write succeeds, or all do; `false` if that cannot be simulated.
    fn fail(&mut self, fails: bool) -> bool;
}

/// A store of a row of the table, in a directory.
struct OnDisk(&'static StoreKind, tempfile::TempDir);

impl OnDisk {
    fn path(&self) -> PathBuf {
        self.1.path().join("store")
    }

    /// Names of the log's next files.
    fn names(&self) -> impl Iterator<Item = PathBuf> {
        let dir = self.path();
        (1_u64..200).map(move |number| dir.join(format!("log-{number:016x}")))
    }
}

impl Bench for OnDisk {
    fn open(&mut self) -> Arc<dyn RecordStore> {
        if !self.path().exists() {
            self.0.create(&self.path()).unwrap();
        }
        let dir = PrivateDir::open(&self.path()).unwrap();
        // Small files, so that every rule applies across many of them and across snapshots.
        let rewrite_bytes = Some(64 << 10);
        (self.0.open)(dir, Opening { torn: false, set_aside_bytes: u64::MAX, rewrite_bytes })
            .unwrap()
    }

    /// Of the log, simulated in `log/tests.rs`.
    fn lose_power(&mut self) -> bool {
        false
    }

    /// Of the log: something that cannot be removed takes the name of the next file.
    fn fail(&mut self, fails: bool) -> bool {
        for name in self.names() {
            if fails && !name.exists() {
                fs::create_dir(&name).unwrap();
            } else if !fails && name.is_dir() {
                fs::remove_dir(&name).unwrap();
            }
        }
        self.0.name == "log"
    }
}

fn rows() -> impl Iterator<Item = OnDisk> {
    STORES.iter().map(|kind| OnDisk(kind, tempfile::tempdir().unwrap()))
}

/// Each rule as a test of all stores of a row: its name, and how to make new ones.
macro_rules! stores {
    ($($store:ident: $new:expr),+ $(,)?) => {
        $(mod $store {
            rules! {
                $new;
                a_store_is_empty_at_first,
                i4_what_was_committed_is_there_after_a_kill_in_the_order_of_keys,
                of_one_record_the_last_change_counts,
                a_batch_may_be_large,
                i4_what_was_synced_is_there_after_a_power_loss_and_the_rest_is_a_prefix,
                i4_after_a_failure_nothing_is_taken_and_what_was_refused_stays_away,
                a_closed_store_takes_nothing_and_has_its_last_batch,
                i4_batches_of_many_threads_are_all_there,
                a_scan_ends_with_the_first_error,
                i5_bytes_are_counted,
            }
        })+
    };
}

macro_rules! rules {
    ($new:expr; $($rule:ident),+ $(,)?) => {
        $(#[test] fn $rule() { $new.for_each(|mut bench| super::$rule(&mut bench)); })+
    };
}

stores! {
    memory_store: std::iter::once(crate::records::memory::Disk::default()),
    each_row_of_the_table: super::rows(),
}

fn batch(changes: &[(&str, Option<&str>)]) -> Batch {
    let mut batch = Batch::default();
    for (key, value) in changes {
        match value {
            Some(value) => batch.put(key.as_bytes(), value.as_bytes()),
            None => batch.remove(key.as_bytes()),
        }
    }
    batch
}

/// All records, if they can be read; fails the test if keys are out of order.
pub(crate) fn scanned(store: &dyn RecordStore) -> Result<Records> {
    let mut found: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    store.scan(&mut |key, value| {
        assert!(found.last().is_none_or(|(last, _)| last.as_slice() < key), "out of order");
        found.push((key.to_vec(), value.to_vec()));
        Ok(())
    })?;
    Ok(found.into_iter().collect())
}

fn records(store: &dyn RecordStore) -> Records {
    scanned(store).unwrap()
}

fn text(pairs: &[(&str, &str)]) -> Records {
    pairs.iter().map(|(k, v)| (k.as_bytes().to_vec(), v.as_bytes().to_vec())).collect()
}

fn is_refused(answer: Result<()>) {
    assert!(matches!(answer.err(), Some(Error::Store { .. })));
}

fn a_store_is_empty_at_first(bench: &mut dyn Bench) {
    let store = bench.open();
    assert_eq!(records(&*store), Records::new());
    store.commit(&Batch::default()).unwrap();
    store.sync().unwrap();
    store.usable().unwrap();
}

/// Makes random changes; returns the contents after each.
fn live(store: &dyn RecordStore, seed: u64, changes: usize) -> Vec<Records> {
    let mut random = seed;
    let mut below = |bound: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed | 1);
        (random >> 33) % bound
    };
    let mut states = vec![records(store)];
    for _ in 0..changes {
        let mut next = states.last().unwrap().clone();
        let mut batch = Batch::default();
        for _ in 0..=below(5) {
            let key = below(40).to_be_bytes();
            if below(3) == 0 {
                batch.remove(&key);
                next.remove(&key[..]);
            } else {
                let len = usize::try_from(below(90)).unwrap();
                let value = vec![u8::try_from(below(256)).unwrap(); len];
                batch.put(&key, &value);
                next.insert(key.to_vec(), value);
            }
        }
        store.commit(&batch).unwrap();
        states.push(next);
    }
    states
}

fn i4_what_was_committed_is_there_after_a_kill_in_the_order_of_keys(bench: &mut dyn Bench) {
    for life in 0..6 {
        let store = bench.open();
        let states = live(&*store, life, 300);
        drop(store);
        assert_eq!(records(&*bench.open()), *states.last().unwrap(), "life {life}");
    }
}

fn of_one_record_the_last_change_counts(bench: &mut dyn Bench) {
    let store = bench.open();
    store.commit(&batch(&[("a", Some("1")), ("a", None), ("b", None), ("b", Some(""))])).unwrap();
    store.commit(&batch(&[("c", Some("1"))])).unwrap();
    store.commit(&batch(&[("c", Some("2")), ("gone", None)])).unwrap();
    let expected = text(&[("b", ""), ("c", "2")]);
    drop(store);
    assert_eq!(records(&*bench.open()), expected);
}

fn a_batch_may_be_large(bench: &mut dyn Bench) {
    let store = bench.open();
    let (mut large, mut expected) = (Batch::default(), Records::new());
    for number in 0..200_u64 {
        let value = vec![number.to_be_bytes()[7]; 32_000];
        large.put(&number.to_be_bytes(), &value);
        expected.insert(number.to_be_bytes().to_vec(), value);
    }
    store.commit(&large).unwrap();
    store.commit(&batch(&[("small", Some("1"))])).unwrap();
    expected.insert(b"small".to_vec(), b"1".to_vec());
    drop(store);
    assert_eq!(records(&*bench.open()), expected);
}

fn i4_what_was_synced_is_there_after_a_power_loss_and_the_rest_is_a_prefix(bench: &mut dyn Bench) {
    for life in 0..4 {
        let store = bench.open();
        let synced = live(&*store, 2 * life, 50).pop().unwrap();
        store.sync().unwrap();
        let after = live(&*store, 2 * life + 1, 50);
        assert_eq!(after[0], synced);
        drop(store);
        if !bench.lose_power() {
            return;
        }
        let found = records(&*bench.open());
        assert!(after.contains(&found), "life {life}: no prefix: {found:?}");
    }
}

fn i4_after_a_failure_nothing_is_taken_and_what_was_refused_stays_away(bench: &mut dyn Bench) {
    let store = bench.open();
    let before = live(&*store, 3, 20).pop().unwrap();
    store.sync().unwrap();
    if !bench.fail(true) {
        return;
    }
    // Some stores notice it only when they next need the disk.
    let mut taken = before;
    let mut number = 0_u64;
    while store.usable().is_ok() {
        let mut batch = Batch::default();
        batch.put(&number.to_be_bytes(), &[1; 900]);
        if store.commit(&batch).is_ok() {
            taken.insert(number.to_be_bytes().to_vec(), vec![1; 900]);
        }
        number += 1;
        assert!(number < 100_000, "it never failed");
    }
    bench.fail(false);
    is_refused(store.commit(&batch(&[("refused", Some("1"))])));
    is_refused(store.commit(&Batch::default()));
    is_refused(store.sync());
    is_refused(store.close(&batch(&[("last", Some("1"))])));
    drop(store);
    let store = bench.open();
    assert_eq!(records(&*store), taken);
    store.commit(&batch(&[("z", Some("1"))])).unwrap();
}

fn a_closed_store_takes_nothing_and_has_its_last_batch(bench: &mut dyn Bench) {
    let store = bench.open();
    store.commit(&batch(&[("a", Some("1"))])).unwrap();
    store.close(&batch(&[("closed", Some("1"))])).unwrap();
    is_refused(store.commit(&batch(&[("b", Some("1"))])));
    is_refused(store.commit(&Batch::default()));
    is_refused(store.sync());
    is_refused(store.usable());
    drop(store);
    bench.lose_power();
    assert_eq!(records(&*bench.open()), text(&[("a", "1"), ("closed", "1")]));
}

fn i4_batches_of_many_threads_are_all_there(bench: &mut dyn Bench) {
    const EACH: u64 = 2_000;
    let store = bench.open();
    thread::scope(|scope| {
        for thread in 0..4_u8 {
            let store = &store;
            scope.spawn(move || {
                for number in 0..EACH {
                    let mut batch = Batch::default();
                    let key = number.to_be_bytes();
                    batch.put(&[&[thread], &key[..]].concat(), &key);
                    batch.put(&[thread], &key);
                    store.commit(&batch).unwrap();
                    if number % 500 == 0 {
                        store.sync().unwrap();
                    }
                }
            });
        }
    });
    drop(store);
    let found = records(&*bench.open());
    assert_eq!(found.len() as u64, 4 * (EACH + 1));
    for thread in 0..4 {
        assert_eq!(found[&[thread][..]], (EACH - 1).to_be_bytes(), "a thread's last is last");
    }
}

fn a_scan_ends_with_the_first_error(bench: &mut dyn Bench) {
    let store = bench.open();
    store.commit(&batch(&[("a", Some("1")), ("b", Some("2")), ("c", Some("3"))])).unwrap();
    let mut seen = 0;
    let result = store.scan(&mut |_, _| {
        seen += 1;
        if seen == 2 { Err(Error::invalid("enough", "stop")) } else { Ok(()) }
    });
    assert!(matches!(result, Err(Error::Invalid { .. })) && seen == 2);
    store.usable().unwrap();
}

fn i5_bytes_are_counted(bench: &mut dyn Bench) {
    let store = bench.open();
    let before = store.bytes();
    let mut large = Batch::default();
    for number in 0..4_096_u64 {
        // Incompressible bytes.
        let bytes: Vec<u8> = (0..64).flat_map(|at| hash(number * 64 + at).to_be_bytes()).collect();
        large.put(&number.to_be_bytes(), &bytes);
    }
    store.commit(&large).unwrap();
    assert!(store.bytes() >= before + 4_096 * 512, "{} of {before}", store.bytes());
}

fn hash(number: u64) -> u64 {
    let mixed = (number ^ number >> 31).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9)
}
