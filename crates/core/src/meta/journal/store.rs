//! The embedded store: how it is set up, and its files as far as we make any.

use std::fs::File;
use std::io;
use std::path::Path;

use fjall::config::{BlockSizePolicy, CompressionPolicy, FilterPolicy};
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions};

use crate::meta::verify::journals;

/// Journals are recycled once they reach this size together.
const JOURNALS_BYTES_MAX: u64 = 256 << 20;
/// Blocks of the store are only read while it is opened, so a small cache is enough.
const BLOCK_CACHE_BYTES: u64 = 8 << 20;
/// Blocks are read in order, so large ones cost nothing and compress better.
const BLOCK_BYTES: u32 = 16 << 10;

/// An open store.
pub(super) struct Store {
    pub(super) database: Database,
    pub(super) keyspace: Keyspace,
}

/// Makes an empty journal that follows those of the closed store in `path`.
pub(super) fn begin_journal(path: &Path) -> io::Result<()> {
    let last = journals(path)?.pop().ok_or(io::ErrorKind::NotFound)?;
    let number = last.file_stem().and_then(|stem| stem.to_str()?.parse::<u64>().ok());
    let number = number.ok_or(io::ErrorKind::InvalidData)?;
    File::create_new(path.join(format!("{}.jnl", number + 1)))?.sync_all()?;
    File::open(path)?.sync_all()
}

/// Opens the store in `path`, or makes one.
pub(super) fn build(path: &Path, memtable_bytes: u64) -> fjall::Result<Store> {
    let database = Database::builder(path)
        .cache_size(BLOCK_CACHE_BYTES)
        .max_journaling_size(JOURNALS_BYTES_MAX)
        .worker_threads(2)
        .open()?;
    let options = || {
        KeyspaceCreateOptions::default()
            .max_memtable_size(memtable_bytes)
            .data_block_size_policy(BlockSizePolicy::all(BLOCK_BYTES))
            .data_block_compression_policy(CompressionPolicy::all(CompressionType::Lz4))
            // Nothing is looked up by key while the store is open, so filters would be dead weight.
            .filter_policy(FilterPolicy::disabled())
    };
    let keyspace = database.keyspace("dmt", options)?;
    Ok(Store { database, keyspace })
}
