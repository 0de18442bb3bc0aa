//! Bodies of this crate's fuzz targets (`fuzz/`): each takes bytes that anybody may have written. They are called by
//! cargo-fuzz, and by the tests below with the same seeds (docs/TESTING.md, fuzz targets).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use halocline_model::evict;
use halocline_model::request::ByteRange;
use halocline_os::error::Result;
use halocline_os::private::PrivateDir;

use crate::batch::Batch;
use crate::block_accounting::Space;
use crate::cdt::Cdt;
use crate::eviction_queue::EvictionQueue;
use crate::fuzz_input::{memory_file, pieces, scratch};
use crate::identity::{CACHE_FILE, FORMAT, FORMAT_NOW, identity_in, write_identity};
use crate::invalidations::{HEADER_BYTES, Invalidation, InvalidationList};
use crate::load::{self, Source};
use crate::log::fuzzing::rebuilt;
use crate::owner::{LOCK_FILE, Owner};
use crate::record;
use crate::records::{RecordStore, Visit};

pub use crate::checksums::fuzzing::checksum_slot;
pub use crate::cluster_mark::fuzzing::cluster_mark;
pub use crate::lease::fuzzing::lease;
pub use crate::migrate::fuzzing::migrated_slot;
pub use crate::origin_mark::fuzzing::origin_mark;

/// A file of the log.
pub fn log_segment(bytes: &[u8]) {
    crate::log::fuzzing::segment(bytes);
}

/// A snapshot.
pub fn log_snapshot(bytes: &[u8]) {
    crate::log::fuzzing::snapshot(bytes);
}

/// The directory of a log: opened, and salvaged.
pub fn log_directory(bytes: &[u8]) {
    if let Some(salvaged) = crate::log::fuzzing::directory(bytes) {
        load(&salvaged);
    }
}

/// A record: its key in a piece, and its value. What decodes is bounded, and encodes to the same again.
pub fn record(bytes: &[u8]) {
    let [key, value] = pieces(bytes);
    if let Ok((file, extent)) = record::decode_extent(key, value) {
        assert!(!extent.range.is_empty() && extent.range.len() < 1 << 48);
        assert!(extent.epoch <= record::EPOCH_MAX && extent.dirty == (extent.dirty_since_ms != 0));
        assert_eq!(record::extent_key(file, extent.range.start)[1..], key[1..]);
        assert_eq!(record::encode_extent(&extent), value);
    }
    if let Ok(file) = record::decode_file(key, value) {
        assert!(file.id.0 <= record::COUNTER_MAX);
        assert_eq!(record::file_key(file.id)[1..], key[1..]);
        assert_eq!(record::decode_file(key, &record::encode_file(&file)), Ok(file));
    }
    if let Ok((wanted, order)) = record::decode_critical(key, value) {
        assert!(!wanted.range.is_empty() && order <= record::COUNTER_MAX);
        assert_eq!(record::critical_key(wanted.file, wanted.range)[1..], key[1..]);
        assert_eq!(record::encode_critical(wanted.placement, order), value);
    }
    if let Ok(state) = record::decode_state(value) {
        assert_eq!(record::encode_state(&state), value);
    }
    if let Ok(counter) = record::decode_counter_within(value, record::COUNTER_MAX) {
        assert!(counter <= record::COUNTER_MAX);
        assert_eq!(record::encode_counter(counter), value);
    }
}

/// Records of a batch: the tables loaded from them are consistent.
pub fn records(bytes: &[u8]) {
    let mut given = InputRecords::default();
    for (key, value) in rebuilt(bytes).iter() {
        match value {
            Some(value) => given.0.insert(key.to_vec(), value.to_vec()),
            None => given.0.remove(key),
        };
    }
    load(&given);
}

/// Records given by the input.
#[derive(Debug, Default)]
struct InputRecords(BTreeMap<Vec<u8>, Vec<u8>>);

impl RecordStore for InputRecords {
    fn scan(&self, each: Visit<'_>) -> Result<()> {
        self.0.iter().try_for_each(|(key, value)| each(key, value))
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

/// Loads records, which are refused or result in consistent tables.
fn load(records: &dyn RecordStore) {
    let nothing = std::sync::Arc::new(InputRecords::default());
    let space = Space::new(1 << 40, nothing, 1 << 20);
    let eviction_queue = EvictionQueue::new((evict::POLICIES[0].make)());
    let source = Source { records, path: Path::new("records"), space: &space };
    let Ok(loaded) = load::load(source, eviction_queue, Cdt::new(64), "boot") else { return };
    let (mut extents, mut bytes, mut dirty) = (0, 0, 0);
    for state in loaded.files.all() {
        let mut end = 0;
        for extent in state.mapped().extents.all() {
            assert!(end <= extent.range.start && !extent.range.is_empty(), "extents overlap");
            end = extent.range.end;
            extents += 1;
            bytes += extent.range.len();
            dirty += if extent.dirty { extent.range.len() } else { 0 };
        }
    }
    let counts = loaded.counts;
    assert_eq!((counts.extents, counts.mapped, counts.dirty), (extents, bytes, dirty));
    assert!(loaded.completed <= loaded.epoch && loaded.epoch <= record::EPOCH_MAX);
    for wanted in loaded.cdt.wanted(usize::MAX) {
        assert!(!wanted.range.is_empty());
    }
}

/// The identity file of a cache.
pub fn identity(bytes: &[u8]) {
    let scratch = scratch();
    let dir = PrivateDir::open(scratch.path()).expect("a directory of our own");
    fs::write(scratch.path().join(CACHE_FILE), bytes).expect("it is written");
    let Ok(Some(identity)) = identity_in(&dir) else { return };
    assert!((FORMAT..=FORMAT_NOW).contains(&identity.format));
    write_identity(&dir, &identity).expect("it is written");
    assert_eq!(identity_in(&dir).expect("our own"), Some(identity));
}

/// Invalidations behind the header of the lock file: what is parsed is unambiguous, and accepts more.
pub fn invalidations(bytes: &[u8]) {
    let header = vec![b' '; usize::try_from(HEADER_BYTES).expect("small")];
    let file = memory_file(&[&header[..], bytes].concat());
    let again = file.try_clone().expect("a second descriptor");
    let (list, said) = InvalidationList::load(file, None, "id").expect("memory is read");
    let Ok(said) = said else { return };
    let before = Invalidation::Bytes(crate::FileId(7), ByteRange::new(1, 2));
    let expected = list.add(before).is_ok();
    let third = again.try_clone().expect("a third descriptor");
    let (_, now) = InvalidationList::load(again, None, "id").expect("memory is read");
    let now = now.expect("what we wrote ourselves");
    let covers = |what: &Invalidation| match (what, before) {
        (Invalidation::All, _) => true,
        (Invalidation::Bytes(file, range), Invalidation::Bytes(other, wanted)) => {
            *file == other && range.contains(wanted)
        }
        _ => false,
    };
    assert!(!expected || now.iter().any(covers), "{now:?} of {said:?}");
    list.clear().expect("memory is emptied");
    let (_, cleared) = InvalidationList::load(third, None, "id").expect("memory is read");
    assert_eq!(cleared, Ok(Vec::new()));
}

/// The lock file of a cache: it is taken, or refused; once taken it is ours.
pub fn lock_file(bytes: &[u8]) {
    let scratch = scratch();
    let dir = PrivateDir::open(scratch.path()).expect("a directory of our own");
    let identity = crate::identity::CacheIdentity {
        format: FORMAT,
        cache_id: "id".into(),
        record_store: None,
    };
    write_identity(&dir, &identity).expect("it is written");
    fs::write(scratch.path().join(LOCK_FILE), bytes).expect("it is written");
    let Ok((owner, said)) = Owner::take_with_witness(scratch.path(), None) else { return };
    assert_eq!(*owner.identity(), identity);
    owner.opened_on("boot").expect("it is written");
    drop(owner);
    let (owner, again) = Owner::take_with_witness(scratch.path(), None).expect("our own");
    assert_eq!((owner.last_boot(), again), (Some("boot"), said));
}

/// What the kernel says of semaphores and processes of anybody.
pub fn processes(bytes: &[u8]) {
    crate::exit_time::fuzzing::semaphores(bytes);
    crate::owner::process(bytes);
}

#[cfg(test)]
mod tests;
