//! What the store does not check itself before it acts on it, checked before it is opened.
//!
//! The store verifies its data blocks and the contents of journal batches. It does not verify the
//! lists of its tables, though it keeps their checksums, reads the directories of tables before
//! it verifies them, and takes journal batches in any order; and it
//! cuts a journal at the first batch that it cannot read. That is right for the last batch of a
//! killed process and for whatever a power loss left, but not for damage in the middle of a
//! journal: the batches behind it were acknowledged. A batch that it can read, but whose bytes are
//! not what was written, it takes for damage; after a power loss it is the end as well.

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// Bytes that end each batch.
const BATCH_END: [u8; 4] = *b"FJL\x03";
const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;
/// Bytes of a batch besides its items: tag, count and number; tag, checksum and its end.
const BATCH_FRAME: u64 = 13 + 13;
/// Fixed bytes of an item after its tag: type, compression, keyspace, three lengths.
const ITEM_FIXED: usize = 20;

/// Bytes at a table's end: mark, version, kind of checksum, checksum, place and length of its
/// directory.
const TRAILER_LEN: usize = 38;
/// A table's directory has about ten entries.
const DIRECTORY_MAX: usize = 1 << 16;

/// Why a store is refused.
pub(crate) type Damage = String;

/// Checks the store in `path`. `torn` says that a power loss may have left any part of the
/// journal unwritten.
pub(crate) fn verify(path: &Path, torn: bool) -> Result<(), Damage> {
    let read = |error: io::Error| format!("it cannot be read: {error}");
    if !path.join("version").exists() {
        return Err("its version marker is missing".to_owned());
    }
    for entry in fs::read_dir(path.join("keyspaces")).map_err(read)? {
        let entry = entry.map_err(read)?;
        if entry.path().join("current").exists() {
            verify_table_list(&entry.path())?;
            // A table that no list names yet, torn by a power loss, is not damage.
            if !torn {
                verify_tables(&entry.path().join("tables"))?;
            }
        }
    }
    let mut next = 0;
    let journals = journals(path).map_err(read)?;
    let Some((last, before)) = journals.split_last() else { return Ok(()) };
    for journal in before {
        if let Some((_, what)) = verify_journal(journal, torn, &mut next)? {
            return Err(what);
        }
    }
    match verify_journal(last, torn, &mut next)? {
        // Only the last one may have bytes that were never synced.
        Some((end, _)) if torn => cut(last, end).map_err(read),
        Some((_, what)) => Err(what),
        None => Ok(()),
    }
}

/// The list of tables that `current` names has the checksum that `current` says.
fn verify_table_list(tree: &Path) -> Result<(), Damage> {
    let read = |error: io::Error| format!("{}: {error}", tree.display());
    let current = fs::read(tree.join("current")).map_err(read)?;
    let (id, checksum) = current
        .split_first_chunk::<8>()
        .and_then(|(id, rest)| Some((u64::from_le_bytes(*id), rest.first_chunk::<16>()?)))
        .ok_or_else(|| format!("{}/current is too short", tree.display()))?;
    let list = fs::read(tree.join(format!("v{id}"))).map_err(read)?;
    if xxh3_128(&list) == u128::from_le_bytes(*checksum) {
        Ok(())
    } else {
        Err(format!("{}/v{id} does not match its checksum", tree.display()))
    }
}

/// The directory at the end of each table has its checksum: the store makes room for as many
/// entries as it says before it compares, and runs out of memory.
fn verify_tables(folder: &Path) -> Result<(), Damage> {
    let read = |error: io::Error| format!("{}: {error}", folder.display());
    for entry in fs::read_dir(folder).map_err(read)? {
        let path = entry.map_err(read)?.path();
        let file = File::open(&path).map_err(read)?;
        if !directory_is_whole(&file).map_err(read)? {
            return Err(format!("{} does not match its checksum", path.display()));
        }
    }
    Ok(())
}

/// A table without a trailer was never finished: the store refuses or removes it.
fn directory_is_whole(table: &File) -> io::Result<bool> {
    let Some(end) = table.metadata()?.len().checked_sub(TRAILER_LEN as u64) else {
        return Ok(true);
    };
    let mut trailer = [0; TRAILER_LEN];
    table.read_exact_at(&mut trailer, end)?;
    let Some(rest) = trailer.strip_prefix(b"SFA!\x01\x00") else { return Ok(true) };
    let (checksum, rest) = rest.split_first_chunk::<16>().expect("a trailer is 38 bytes long");
    let (start, _) = rest.split_first_chunk::<8>().expect("a trailer is 38 bytes long");
    let len = end.checked_sub(u64::from_le_bytes(*start));
    let Some(len) =
        len.and_then(|len| usize::try_from(len).ok()).filter(|&len| len < DIRECTORY_MAX)
    else {
        return Ok(false);
    };
    let mut directory = vec![0; len];
    table.read_exact_at(&mut directory, u64::from_le_bytes(*start))?;
    Ok(xxh3_128(&directory) == u128::from_le_bytes(*checksum))
}

/// The journals of the store in `path`, oldest first.
pub(crate) fn journals(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path)? {
        let path = entry?.path();
        let number = path.file_stem().and_then(|stem| stem.to_str()?.parse::<u64>().ok());
        if let (Some(number), Some("jnl")) = (number, path.extension().and_then(|e| e.to_str())) {
            found.push((number, path));
        }
    }
    found.sort();
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// Lets a journal end at `end`.
fn cut(path: &Path, end: u64) -> io::Result<()> {
    let journal = File::options().write(true).open(path)?;
    journal.set_len(end)?;
    journal.sync_all()
}

/// Batches follow each other with rising numbers, and no batch follows one that cannot be read.
/// Returns where a batch begins whose bytes are not what was written.
fn verify_journal(
    path: &Path,
    torn: bool,
    next: &mut u64,
) -> Result<Option<(u64, Damage)>, Damage> {
    let mut journal = BufReader::with_capacity(
        1 << 18,
        File::open(path).map_err(|error| format!("{}: {error}", path.display()))?,
    );
    let name = path.display();
    let mut end = 0;
    loop {
        match batch(&mut journal) {
            Ok(batch) if !batch.is_whole => {
                let what = format!("{name}: batch {next} does not match its checksum");
                return Ok(Some((end, what)));
            }
            Ok(batch) if batch.number >= *next => {
                *next = batch.number.saturating_add(1);
                end += batch.bytes;
            }
            Ok(Batch { number, .. }) => {
                return Err(format!("{name}: batch {number} where {next} or more must follow"));
            }
            Err(_) if torn => return Ok(None),
            Err(_) => break,
        }
    }
    let mut rest = Vec::new();
    journal.read_to_end(&mut rest).map_err(|error| format!("{}: {error}", path.display()))?;
    if rest.windows(BATCH_END.len()).any(|bytes| bytes == BATCH_END) {
        return Err(format!("{name}: batch {next} or a later one is damaged"));
    }
    Ok(None)
}

/// A batch of which all parts are in their places.
#[derive(Debug)]
struct Batch {
    number: u64,
    bytes: u64,
    /// Its items are what was written.
    is_whole: bool,
}

fn batch(journal: &mut impl Read) -> io::Result<Batch> {
    if tag(journal)? != START {
        return Err(malformed());
    }
    let _items = array::<4>(journal)?;
    let number = u64::from_le_bytes(array(journal)?);
    let (mut items, mut bytes, mut part) = (Xxh3::new(), 0, Vec::new());
    loop {
        let tag = tag(journal)?;
        part.clear();
        match tag {
            ITEM => {
                let fixed: [u8; ITEM_FIXED] = array(journal)?;
                let key = u16::from_le_bytes([fixed[10], fixed[11]]);
                let value = u32::from_le_bytes([fixed[16], fixed[17], fixed[18], fixed[19]]);
                part.extend_from_slice(&fixed);
                append(journal, u64::from(key) + u64::from(value), &mut part)?;
            }
            CLEAR => append(journal, 8, &mut part)?,
            END => {
                let is_whole = items.digest() == u64::from_le_bytes(array(journal)?);
                let ends = array(journal)? == BATCH_END;
                let bytes = bytes + BATCH_FRAME;
                return if ends { Ok(Batch { number, bytes, is_whole }) } else { Err(malformed()) };
            }
            _ => return Err(malformed()),
        }
        items.update(&[tag]);
        items.update(&part);
        bytes += 1 + part.len() as u64;
    }
}

fn tag(journal: &mut impl Read) -> io::Result<u8> {
    array::<1>(journal).map(|[tag]| tag)
}

fn array<const N: usize>(journal: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    journal.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Not at once, as many bytes as a damaged length says.
fn append(journal: &mut impl Read, bytes: u64, to: &mut Vec<u8>) -> io::Result<()> {
    let read = journal.take(bytes).read_to_end(to)?;
    if read as u64 == bytes { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn malformed() -> io::Error {
    io::ErrorKind::InvalidData.into()
}
