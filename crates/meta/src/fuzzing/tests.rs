//! Each target with its seeds, as our own writers make them, and with mutations of these.

use std::path::PathBuf;

use halocline_model::layout::{Layout, Placement};
use halocline_testkit::fuzz_target::run;

use super::*;
use crate::log::fuzzing::seeds::{segment, snapshot};
use crate::record::{ExtentRecord, State};
use crate::{CriticalRange, FileId, FileRecord, OriginKey, Removal, Stamp};

type Seeds = Vec<(&'static str, Vec<u8>)>;

/// Bytes that [`pieces`] cuts into these pieces.
fn joined(pieces: &[&[u8]]) -> Vec<u8> {
    let (last, others) = pieces.split_last().unwrap();
    let mut bytes = Vec::new();
    for piece in others {
        bytes.extend_from_slice(&u16::try_from(piece.len()).unwrap().to_le_bytes());
        bytes.extend_from_slice(piece);
    }
    bytes.extend_from_slice(last);
    bytes
}

fn file(id: u64) -> FileRecord {
    let mount = (id == 2).then_some(OriginKey { inode: 2, born_ns: 56 });
    let stamp = Stamp::Closed { size: 1 << 20, mtime_ns: 5, ctime_ns: 6 };
    let path = PathBuf::from(format!("d/file {id}"));
    let removal = if id == 2 { Removal::Begun } else { Removal::None };
    let key = OriginKey { inode: id + 10, born_ns: 3 };
    FileRecord { id: FileId(id), key, path, stamp, removal, mount }
}

fn extent(start: u64, is_dirty: bool) -> ExtentRecord {
    ExtentRecord {
        range: ByteRange::at(start, 8192),
        placement: Placement { layout: Layout::OneDv, group: 1 },
        dirty: is_dirty,
        epoch: 4,
        dirty_since_ms: if is_dirty { 1_763_000_000_000 } else { 0 },
        last_use_ms: 1_763_000_000_001,
    }
}

/// Records of two files, as one batch.
fn tables() -> Batch {
    let mut batch = Batch::default();
    for id in [1, 2] {
        batch.put(&record::file_key(FileId(id)), &record::encode_file(&file(id)));
        for (start, is_dirty) in [(0, true), (8192, false), (65_537, true)] {
            let key = record::extent_key(FileId(id), start);
            batch.put(&key, &record::encode_extent(&extent(start, is_dirty)));
        }
        let wanted = CriticalRange {
            file: FileId(id),
            range: ByteRange::new(1 << 20, 1 << 21),
            placement: Placement { layout: Layout::OneDh, group: 0 },
        };
        let key = record::critical_key(wanted.file, wanted.range);
        batch.put(&key, &record::encode_critical(wanted.placement, id));
    }
    let state = State { closed: false, untrimmed: false, boot_id: "boot".to_owned() };
    batch.put(record::STATE_KEY, &record::encode_state(&state));
    batch.put(record::EPOCH_KEY, &record::encode_counter(3));
    batch.put(record::NEXT_FILE_KEY, &record::encode_counter(3));
    batch
}

/// A change that follows [`tables`].
fn change() -> Batch {
    let mut batch = Batch::default();
    batch.remove(&record::extent_key(FileId(1), 0));
    batch.put(&record::extent_key(FileId(2), 0), &record::encode_extent(&extent(0, false)));
    batch
}

#[test]
fn hostile_files_of_a_log() {
    let seeds =
        [("two-batches", segment(1, 1, &[tables(), change()])), ("empty", segment(1, 1, &[]))];
    run("meta_log_segment", &seeds, 2_000, log_segment);
}

#[test]
fn hostile_snapshots() {
    let seeds = [("tables", snapshot(&tables())), ("empty", snapshot(&Batch::default()))];
    run("meta_log_snapshot", &seeds, 4_000, log_snapshot);
}

#[test]
fn hostile_directories_of_a_log() {
    let (one, two) = (segment(1, 3, &[change()]), segment(2, 4, &[tables(), change()]));
    let whole = joined(&[&snapshot(&tables()), b"", &one, &two]);
    let without_snapshot = joined(&[b"", b"", &one, &two]);
    let seeds = [("whole", whole), ("without-snapshot", without_snapshot)];
    run("meta_log_directory", &seeds, 500, log_directory);
}

#[test]
fn hostile_records() {
    let tables = tables();
    let seeds: Seeds = [
        ("file", record::file_key(FileId(2)).to_vec()),
        ("extent", record::extent_key(FileId(2), 0).to_vec()),
        ("critical", {
            let range = ByteRange::new(1 << 20, 1 << 21);
            record::critical_key(FileId(2), range).to_vec()
        }),
        ("state", record::STATE_KEY.to_vec()),
        ("counter", record::EPOCH_KEY.to_vec()),
    ]
    .into_iter()
    .map(|(name, key)| {
        let (_, value) = tables.iter().find(|change| change.0 == key).unwrap();
        (name, joined(&[&key, value.unwrap()]))
    })
    .collect();
    run("meta_record", &seeds, 20_000, record);
}

#[test]
fn hostile_tables() {
    run("meta_records", &[("tables", tables().bytes().to_vec())], 10_000, records);
}

#[test]
fn hostile_slots_of_checksums() {
    run("meta_checksum_slot", &crate::checksums::fuzzing::seeds(), 10_000, checksum_slot);
}

#[test]
fn hostile_slots_of_an_earlier_version() {
    run("meta_migrated_slot", &crate::migrate::fuzzing::seeds(), 20_000, migrated_slot);
}

#[test]
fn hostile_leases() {
    run("meta_lease", &crate::lease::fuzzing::seeds(), 4_000, lease);
}

#[test]
fn hostile_identities() {
    let text = |format| format!("format = {format}\ncache_id = \"0e1c2d3f-4455\"\n").into_bytes();
    run("meta_identity", &[("now", text(4)), ("first", text(1))], 1_000, identity);
}

#[test]
fn hostile_lists_of_what_is_not_trusted() {
    let lines = "clean\nbytes 7 10 20\nbytes 7 30 18446744073709551615\nbytes 8 0 1\n\n\n";
    run(
        "meta_invalidations",
        &[("lines", lines.into()), ("all", b"all\n".to_vec())],
        3_000,
        invalidations,
    );
}

#[test]
fn hostile_lock_files() {
    let mut header = b"pid 1 boot 0e1c2d3f started 12 ".to_vec();
    header.resize(255, b' ');
    header.push(b'\n');
    let lines = [&header[..], b"clean\nbytes 7 10 20\n"].concat();
    run("meta_lock_file", &[("signed", header), ("with-lines", lines)], 1_000, lock_file);
}

#[test]
fn hostile_marks_on_an_origin() {
    run("meta_origin_mark", &crate::origin_mark::fuzzing::seeds(), 10_000, origin_mark);
}

#[test]
fn hostile_marks_of_shared_origins() {
    run("meta_cluster_mark", &crate::cluster_mark::fuzzing::seeds(), 10_000, cluster_mark);
}

#[test]
fn hostile_semaphores_and_processes() {
    let semaphores = "       key      semid perms      nsems   uid   gid  cuid  cgid      otime      ctime\n   \
        1234567      32770   600          1  1000  1000  1000  1000 1795577225 1795577221\n";
    let stat = "7 (a) R 1 (b) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 8 9\n";
    let header = "pid 1 boot 0e1c2d3f started 12 ";
    let seeds = [("semaphores", semaphores), ("stat", stat), ("header", header)];
    run("meta_processes", &seeds.map(|(name, text)| (name, text.into())), 10_000, processes);
}
