//! What the files of a log may hold: bodies of fuzz targets (`crate::fuzzing`).

use std::fs::File;
use std::io::{Seek, Write};

use super::files::{SYNCED, log_name, snapshot_name};
use super::log_file::{FILE_BYTES_MAX, HEAD, LogFile, batch_at, batch_behind, generation_of, sum};
use super::recover::contents;
use super::salvage::Salvaged;
use super::snapshot::{Head, Reader, Writer};
use crate::batch::{Batch, split};
use crate::fuzz_input::{memory_file, pieces, scratch};
use crate::record;
use crate::records::RecordStore;
use halocline_os::private::{PrivateDir, Use};

/// The generation of the logs of seeds, and of files that name none.
pub(crate) const GENERATION: u64 = 0x1122_3344_5566_7788;
/// Bytes of a batch before its changes, and of a block before its records.
const FRAME: usize = 20;
const BLOCK_FRAME: usize = 12;
const SNAPSHOT_HEAD: usize = 36;

/// A file of a log, unchanged and with corrected sums of its batches: each batch consists of complete changes or is
/// ignored, and what was read comes back from a file of our own.
pub(crate) fn segment(bytes: &[u8]) {
    let generation = generation_of(bytes).unwrap_or(GENERATION);
    walk(bytes, generation);
    let batches = walk(&with_sums_of_batches(bytes, generation), generation);
    let file = memory_file(&[]);
    let read = file.try_clone().expect("a second descriptor");
    let room = HEAD + bytes.len() + FRAME * (batches.len() + 1) + 8;
    let mut segment = LogFile::make(file, 3, generation, room).expect("memory takes it");
    for (number, durable, changes) in &batches {
        segment.append(*number, *durable, changes).expect("there is room");
    }
    let again = contents(&read, FILE_BYTES_MAX).expect("it is read");
    assert_eq!(walk(&again, generation), batches);
}

/// The batches of a file up to the first that is not complete: number, what was synced, changes.
fn walk(file: &[u8], generation: u64) -> Vec<(u64, u64, Vec<u8>)> {
    let (mut at, mut found) = (HEAD, Vec::new());
    while let Some(batch) = batch_at(file, at, generation) {
        assert!(
            at < batch.end && batch.end <= file.len().next_multiple_of(8),
            "it ends in the file"
        );
        assert!(batch.durable <= batch.number);
        let again = rebuilt(batch.changes);
        assert_eq!(again.bytes(), &batch.changes[..again.bytes().len()]);
        assert!(again.by_key().is_sorted_by(|one, other| one.0 < other.0));
        found.push((batch.number, batch.durable, batch.changes.to_vec()));
        at = batch.end;
    }
    if let Some(behind) = batch_behind(file, at, generation, |_| true) {
        assert!(behind >= at && batch_at(file, behind, generation).is_some());
    }
    found
}

/// A batch of the changes at the beginning of some bytes.
pub(crate) fn rebuilt(mut changes: &[u8]) -> Batch {
    let mut batch = Batch::default();
    while let Some(((key, value), behind)) = split(changes) {
        match value {
            Some(value) => batch.put(key, value),
            None => batch.remove(key),
        }
        changes = behind;
    }
    batch
}

/// Corrects the sums of the batches, so that the input reaches the code behind this check.
fn with_sums_of_batches(bytes: &[u8], generation: u64) -> Vec<u8> {
    let (mut out, mut at) = (bytes.to_vec(), HEAD);
    while at + FRAME < out.len() {
        // An impossible length is made to fit, so that what follows is read, too.
        let room = out.len() - at - FRAME - 1;
        let len = (u32_at(&out, at + 4) as usize).min(room);
        out[at + 4..at + 8].copy_from_slice(&u32::try_from(len).expect("short").to_le_bytes());
        out[at + FRAME + len] = 229;
        let sum = sum(&out[at + 4..=at + FRAME + len], generation);
        out[at..at + 4].copy_from_slice(&sum.to_le_bytes());
        at = (at + FRAME + len + 1).next_multiple_of(8);
    }
    out
}

/// A snapshot, unchanged and with corrected sums: what is read to its end comes back from a snapshot of our own.
pub(crate) fn snapshot(bytes: &[u8]) {
    read_snapshot(bytes);
    let Some((head, records)) = read_snapshot(&with_sums_of_blocks(bytes)) else { return };
    let again = memory_file(&written(head, &records));
    assert_eq!(whole(again), Some((head, records)));
}

/// The bytes of a snapshot with these records.
fn written(head: Head, records: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let file = memory_file(&[]);
    let read = file.try_clone().expect("a second descriptor");
    let mut writer = Writer::begin(file, head).expect("memory takes it");
    for (key, value) in records {
        writer.put(key, value).expect("memory takes it");
    }
    let bytes = writer.end().expect("memory takes it");
    let found = contents(&read, FILE_BYTES_MAX).expect("it is read");
    assert_eq!(found.len() as u64, bytes);
    found
}

type Records = Vec<(Vec<u8>, Vec<u8>)>;

fn read_snapshot(bytes: &[u8]) -> Option<(Head, Records)> {
    whole(memory_file(bytes))
}

/// Contents of a snapshot, if it can be read to its end.
fn whole(mut file: File) -> Option<(Head, Records)> {
    file.rewind().expect("a file in memory");
    let mut reader = Reader::begin(file).ok()?;
    let mut records = Vec::new();
    while reader.advance().ok()? {
        let (key, value) = reader.record().expect("it advanced to one");
        records.push((key.to_vec(), value.to_vec()));
    }
    Some((reader.head, records))
}

/// Corrects the sums of the head and blocks, and the number of records.
fn with_sums_of_blocks(bytes: &[u8]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    if out.len() < SNAPSHOT_HEAD {
        return out;
    }
    let generation = generation_of(&out).expect("a head has one");
    let head = sum(&out[..SNAPSHOT_HEAD - 4], generation);
    out[SNAPSHOT_HEAD - 4..SNAPSHOT_HEAD].copy_from_slice(&head.to_le_bytes());
    let (mut at, mut records) = (SNAPSHOT_HEAD, 0_u64);
    while at + BLOCK_FRAME + 8 <= out.len() {
        let packed = u32_at(&out, at + 4) as usize;
        let is_end = packed == 0 && u32_at(&out, at + 8) == 0;
        let len = if is_end { 8 } else { packed.min(out.len() - at - BLOCK_FRAME) };
        let content = at + BLOCK_FRAME..at + BLOCK_FRAME + len;
        if is_end {
            out[content.clone()].copy_from_slice(&records.to_le_bytes());
        } else {
            let field = u32::try_from(len).expect("short");
            out[at + 4..at + 8].copy_from_slice(&field.to_le_bytes());
            let most = (u32_at(&out, at + 8) as usize).min(1 << 18);
            let block = lz4_flex::block::decompress(&out[content.clone()], most);
            records += rebuilt(&block.unwrap_or_default()).iter().count() as u64;
        }
        let sum = sum(&out[at + 4..content.end], generation);
        out[at..at + 4].copy_from_slice(&sum.to_le_bytes());
        at = content.end;
    }
    out
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().expect("four bytes"))
}

/// A directory with a snapshot, a sync point and two files of a log, in pieces ([`pieces`]): whether power was lost or
/// not, it is opened or refused; salvaged records are of known kinds; and a log that can be opened can be salvaged, and
/// opened again.
pub(crate) fn directory(bytes: &[u8]) -> Option<Salvaged> {
    let [snapshot, synced, first, second] = pieces(bytes);
    let generation = generation_of(snapshot).unwrap_or(GENERATION);
    let files = [
        (snapshot_name(0), with_sums_of_blocks(snapshot)),
        (SYNCED.to_owned(), synced.to_vec()),
        (log_name(1), with_sums_of_batches(first, generation)),
        (log_name(2), with_sums_of_batches(second, generation)),
    ];
    let scratch = scratch();
    let dir = PrivateDir::open(scratch.path()).expect("a directory of our own");
    for (name, bytes) in files.iter().filter(|(_, bytes)| !bytes.is_empty()) {
        let mut file = dir.file(name, Use::New).expect("a new file");
        file.write_all(bytes).expect("it is written");
    }
    let salvaged = super::salvage(&dir, "boot");
    if let Ok(salvaged) = &salvaged {
        let scanned = salvaged.scan(&mut |key, value| {
            let is_understood = match key.first() {
                Some(&record::EXTENT) => record::decode_extent(key, value).is_ok(),
                Some(&record::FILE) => record::decode_file(key, value).is_ok(),
                kind => kind != Some(&record::CRITICAL),
            };
            assert!(is_understood, "what cannot be understood is left out");
            Ok(())
        });
        scanned.expect("what is in memory is read");
    }
    // Damage is refused without a change, so that the second try sees the same files.
    for torn in [false, true] {
        if let Ok(found) = super::recover::recover(&dir, torn) {
            assert!(found.before <= found.batch && found.snapshot.batch <= found.before);
            assert!(salvaged.is_ok(), "what can be opened can be salvaged");
            let again = super::recover::recover(&dir, torn).expect("it is whole now");
            assert_eq!((again.batch, again.snapshot), (found.batch, found.snapshot));
        }
    }
    salvaged.ok()
}

/// Seeds of [`log_file`], [`snapshot`] and [`directory`].
#[cfg(test)]
pub(crate) mod seeds {
    use super::*;

    const HEAD_OF_SNAPSHOT: Head = Head { number: 0, generation: GENERATION, batch: 2 };

    /// A file of the log with a batch for each of `batches`, of which the first has the number `first`.
    pub(crate) fn segment(number: u64, first: u64, batches: &[Batch]) -> Vec<u8> {
        let file = memory_file(&[]);
        let read = file.try_clone().unwrap();
        let mut segment = LogFile::make(file, number, GENERATION, 4096).unwrap();
        for (number, batch) in (first..).zip(batches) {
            segment.append(number, number / 2, batch.bytes()).unwrap();
        }
        let end = segment.end();
        let mut bytes = contents(&read, FILE_BYTES_MAX).unwrap();
        bytes.truncate(end);
        bytes
    }

    pub(crate) fn snapshot(batch: &Batch) -> Vec<u8> {
        let records: Vec<_> = batch
            .by_key()
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_vec(), value?.to_vec())))
            .collect();
        written(HEAD_OF_SNAPSHOT, &records)
    }
}
