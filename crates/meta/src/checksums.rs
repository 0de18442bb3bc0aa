//! Checksums of the bytes on the cache's devices, by block.
//!
//! A sum covers some bytes of an object. What must hold here:
//! - whoever changes bytes of an object forgets their sums first ([`Checksums::forget`]) and notes the new ones last
//!   ([`Checksums::note`]), and holds the bytes exclusively meanwhile. So a kill in between leaves bytes without a sum,
//!   never bytes that are reported as damaged (I4);
//! - sums are stored through a mapping, and survive a kill as the bytes do. A slot torn by a kill is ignored;
//! - after a power loss any part of the sums or the bytes may be old: all sums are forgotten then.
//!
//! Bytes without a sum are not known to be right or wrong. A write of less than a block over bytes that have a sum
//! leaves the rest of them without one: reading it to compute a new sum would cost a request.

mod arena;
mod crc;
mod slot;

use std::fs::File;
use std::hash::{BuildHasher, BuildHasherDefault};
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use halocline_model::layout::Placement;
use halocline_model::request::{ByteRange, index};
use hashbrown::HashTable;
use parking_lot::Mutex;
use rustc_hash::FxHasher;
use rustix::fs::{MemfdFlags, memfd_create};

#[cfg(any(test, fuzzing))]
pub(crate) use self::slot::fuzzing;

use self::arena::Arena;
use self::slot::{Key, Slot, Sum, Words};
use super::load::Shutdown;
use super::{BLOCK, FileId};
use halocline_os::error::{Error, Result};
use halocline_os::private::{PrivateDir, Use};

/// Name of the file beside the store's own.
pub(super) const NAME: &str = "checksums";

/// Limit of the slots, whatever the cache's limit: 64 bytes of address space each.
const SLOTS_MAX: u64 = 1 << 30;
const BLOCK_BYTES: usize = 4096;
const _: () = assert!(BLOCK_BYTES as u64 == BLOCK, "a block has one length");
/// Locks: neighbouring groups share one.
const SHARDS: usize = 16;
const NEIGHBOURS: u64 = 64;
/// How often bytes are read again if another thread keeps changing them.
const TRIES: usize = 8;

/// The checksum of some bytes, as it is kept of what is cached: CRC-32C.
pub fn sum(bytes: &[u8]) -> u32 {
    crc::sum(bytes)
}

/// Fills the buffer with the bytes of an object at an offset.
pub(crate) type ReadObject<'a> = &'a mut dyn FnMut(u64, &mut [u8]) -> io::Result<()>;

/// What a comparison of bytes with their sums found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checked {
    /// Bytes that have a sum.
    pub known_bytes: u64,
    /// Ranges that fail their checksum, in order, each widened to all bytes that the checksum covers.
    pub damaged: Vec<ByteRange>,
}

/// The checksums of one cache. Cheap to share; locked inside.
#[derive(Debug)]
pub struct Checksums {
    table: Option<Table>,
}

#[derive(Debug)]
struct Table {
    arena: Arena,
    shards: [Mutex<Shard>; SHARDS],
}

#[derive(Debug, Default)]
struct Shard {
    slots: HashTable<u32>,
    /// Counts calls that forget sums: if it is as before, no bytes were changed in between.
    forgotten: u64,
}

/// How to open the checksums.
pub(super) struct Setting<'a> {
    /// Directory of the store.
    pub(super) dir: &'a PrivateDir,
    /// Boot id of the machine.
    pub(super) boot_id: &'a str,
    /// How the last session of the cache ended.
    pub(super) last_shutdown: Shutdown,
    /// Bytes of data that the cache may have.
    pub(super) limit_bytes: u64,
    /// Bytes that the checksums take on disk, counted before they take it (I5).
    pub(super) bytes: &'a Arc<AtomicU64>,
}

impl Checksums {
    /// Keeps no checksums; removes those of an earlier session, which would soon be out of date.
    pub(super) fn off(dir: &PrivateDir) -> Result<Self> {
        dir.remove(NAME)?;
        Ok(Self::none())
    }

    /// Knows no checksums, and leaves the file of an earlier session as it is.
    pub(super) fn none() -> Self {
        Self { table: None }
    }

    /// Opens the checksums of a cache; keeps those for whose bytes `is_mapped` says that the records map some.
    pub(super) fn open(
        setting: &Setting<'_>,
        is_mapped: &dyn Fn(FileId, Placement, ByteRange) -> bool,
    ) -> Result<Self> {
        let file = setting.dir.file(NAME, Use::Write)?;
        Self::open_in(file, setting, is_mapped)
    }

    /// Opens a copy of the checksums in memory and leaves the file as it is: the records are incomplete, and how the
    /// cache was left is not known. Sums stored at a power loss are not believed.
    pub(super) fn open_copy(
        setting: &Setting<'_>,
        is_mapped: &dyn Fn(FileId, Placement, ByteRange) -> bool,
    ) -> Result<Self> {
        let path = setting.dir.path().join(NAME);
        let mut file = match setting.dir.file(NAME, Use::Read) {
            Err(error) if error.errno() == libc::ENOENT => return Ok(Self::none()),
            file => file?,
        };
        let copy = memfd_create("checksums", MemfdFlags::CLOEXEC).map_err(io::Error::from);
        let mut copy = copy.map(File::from).map_err(Error::at(&path, "copy"))?;
        io::copy(&mut file, &mut copy).map_err(Error::at(&path, "copy"))?;
        Self::open_in(copy, &Setting { last_shutdown: Shutdown::Closed, ..*setting }, is_mapped)
    }

    fn open_in(
        file: File,
        setting: &Setting<'_>,
        is_mapped: &dyn Fn(FileId, Placement, ByteRange) -> bool,
    ) -> Result<Self> {
        let Setting { dir, boot_id, last_shutdown, limit_bytes, bytes } = *setting;
        let max = (limit_bytes / BLOCK).saturating_add(1024).min(SLOTS_MAX);
        let max = u32::try_from(max).expect("it was bounded");
        let mut found: Vec<(u32, Key)> = Vec::new();
        let mut take = |at: u32, words: &Words| {
            let Some(slot) = Slot::decode(words) else { return false };
            let key = slot.key();
            let mapped = is_mapped(key.file, key.placement, key.range());
            if mapped {
                found.push((at, key));
            }
            mapped
        };
        let arena = Arena::open(file, (boot_id, last_shutdown), max, Arc::clone(bytes), &mut take)
            .map_err(Error::at(dir.path().join(NAME), "open"))?;
        let table = Table { arena, shards: Default::default() };
        for (at, key) in found {
            table.add(at, key);
        }
        Ok(Self { table: Some(table) })
    }

    /// To be called before bytes of an object change: forgets their sums. The caller holds the bytes exclusively until
    /// it has called [`note`](Self::note), if it does.
    pub fn forget(&self, file: FileId, placement: Placement, range: ByteRange) {
        let Some(table) = &self.table else { return };
        for (key, part) in Key::of(file, placement, range) {
            table.forget(key, part, false);
        }
    }

    /// As `forget`, for bytes that are no longer needed.
    pub fn drop_range(&self, file: FileId, placement: Placement, range: ByteRange) {
        let Some(table) = &self.table else { return };
        for (key, part) in Key::of(file, placement, range) {
            table.forget(key, part, true);
        }
    }

    /// To be called after `data` was written at `offset` of an object.
    pub fn note(&self, file: FileId, placement: Placement, offset: u64, data: &[u8]) {
        let Some(table) = &self.table else { return };
        let range = ByteRange::at(offset, data.len() as u64);
        for (key, part) in Key::of(file, placement, range) {
            table.note(key, part, &data[index(part.start - offset)..index(part.end - offset)]);
        }
    }

    /// Compares `data`, which was read at `offset` of an object, with its sums. The caller has held the bytes at least
    /// shared since before it read them. Where a sum covers more bytes than `data`, `read` gets the rest.
    pub fn check(
        &self,
        (file, placement): (FileId, Placement),
        offset: u64,
        data: &[u8],
        read: ReadObject<'_>,
    ) -> io::Result<Checked> {
        let mut checked = Checked::default();
        let Some(table) = &self.table else { return Ok(checked) };
        let range = ByteRange::at(offset, data.len() as u64);
        for (key, part) in Key::of(file, placement, range) {
            let Some(slot) = table.slot(key) else { continue };
            for sum in slot.sums() {
                let Some(within) = sum.range.intersect(part) else { continue };
                let right = if range.contains(sum.range) {
                    let bytes =
                        &data[index(sum.range.start - offset)..index(sum.range.end - offset)];
                    crc::sum(bytes) == sum.crc
                } else {
                    table.is_right(key, sum, read)?
                };
                checked.known_bytes += within.len();
                if !right {
                    push_joined(&mut checked.damaged, sum.range);
                }
            }
        }
        Ok(checked)
    }

    /// The blocks of `range` that have a sum of all their bytes, in order: each block's number, and its sum.
    pub fn whole_blocks(
        &self,
        file: FileId,
        placement: Placement,
        range: ByteRange,
    ) -> Vec<(u64, u32)> {
        let Some(table) = &self.table else { return Vec::new() };
        let mut blocks = Vec::new();
        for (key, part) in Key::of(file, placement, range) {
            let Some(slot) = table.slot(key) else { continue };
            let whole =
                slot.sums().filter(|sum| sum.range.len() == BLOCK && part.contains(sum.range));
            blocks.extend(whole.map(|sum| (sum.range.start / BLOCK, sum.crc)));
        }
        blocks
    }

    /// Makes the checksums durable before the cache counts as closed.
    pub(super) fn close(&self) -> io::Result<()> {
        self.table.as_ref().map_or(Ok(()), |table| table.arena.close())
    }
}

impl Table {
    fn shard(&self, key: Key) -> &Mutex<Shard> {
        let stretch = Key { group: key.group / NEIGHBOURS, ..key };
        &self.shards[index(hash(stretch) >> 60)]
    }

    /// The slot of a key, and its words.
    fn find(&self, shard: &Shard, key: Key) -> Option<(u32, Words)> {
        // The last one that was compared is the one that was found.
        let mut words = Words::default();
        let found = shard.slots.find(hash(key), |&at| {
            words = self.arena.load(at);
            Key::in_words(&words) == Some(key)
        });
        found.map(|&at| (at, words))
    }

    fn key_of(&self, at: u32) -> Option<Key> {
        Key::in_words(&self.arena.load::<3>(at))
    }

    /// What is known of a group.
    fn slot(&self, key: Key) -> Option<Slot> {
        let shard = self.shard(key).lock();
        let (_, words) = self.find(&shard, key)?;
        Slot::decode(&words)
    }

    /// Adds a slot that was found. If two slots have the same group, neither can be trusted.
    fn add(&self, at: u32, key: Key) {
        let mut shard = self.shard(key).lock();
        if let Some((other, _)) = self.find(&shard, key) {
            self.arena.store(other, &Slot::new(key).encode());
            self.arena.store(at, &Words::default());
            self.arena.release(at);
        } else {
            self.insert(&mut shard, at, key);
        }
    }

    fn insert(&self, shard: &mut Shard, at: u32, key: Key) {
        let hash_of = |at: &u32| self.key_of(*at).map_or(0, hash);
        shard.slots.insert_unique(hash(key), at, hash_of);
    }

    /// Forgets what is known of `part`; `dropped` means that nothing new is about to be noted.
    fn forget(&self, key: Key, part: ByteRange, dropped: bool) {
        let mut shard = self.shard(key).lock();
        let Some((at, words)) = self.find(&shard, key) else { return };
        let mut slot = Slot::decode(&words).unwrap_or_else(|| Slot::new(key));
        if slot.forget(part) {
            shard.forgotten += 1;
            self.arena.store(at, &slot.encode());
        }
        if dropped && slot.is_empty() {
            let entry = shard.slots.find_entry(hash(key), |&other| other == at);
            entry.expect("it was just found").remove();
            self.arena.store(at, &Words::default());
            self.arena.release(at);
        }
    }

    /// Notes `data`, the bytes of `part`. If there is no room, they have no sum.
    fn note(&self, key: Key, part: ByteRange, data: &[u8]) {
        // Computed before taking the lock.
        let mut fresh = Slot::new(key);
        fresh.note(part, data);
        let mut shard = self.shard(key).lock();
        if let Some((at, words)) = self.find(&shard, key) {
            let slot = Slot::decode(&words).unwrap_or_else(|| Slot::new(key));
            self.arena.store(at, &slot.with(&fresh).encode());
        } else if let Some(at) = self.arena.allocate() {
            self.arena.store(at, &fresh.encode());
            self.insert(&mut shard, at, key);
        }
    }

    /// Whether the bytes match a sum that covers more of them than its reader holds. Other threads may change the rest
    /// meanwhile; they forget the sum first.
    fn is_right(&self, key: Key, mut sum: Sum, read: ReadObject<'_>) -> io::Result<bool> {
        let mut bytes = [0; BLOCK_BYTES];
        let bytes = &mut bytes[..];
        for _ in 0..TRIES {
            let before = self.shard(key).lock().forgotten;
            let bytes = &mut bytes[..index(sum.range.len())];
            read(sum.range.start, bytes)?;
            if crc::sum(bytes) == sum.crc {
                return Ok(true);
            }
            let now = self.slot(key).and_then(|slot| {
                let mut sums = slot.sums();
                sums.find(|other| other.range.overlaps(sum.range))
            });
            let Some(now) = now else { return Ok(true) };
            if now == sum && self.shard(key).lock().forgotten == before {
                return Ok(false);
            }
            sum = now;
        }
        Ok(true)
    }
}

fn hash(key: Key) -> u64 {
    let mixed = BuildHasherDefault::<FxHasher>::default().hash_one(key);
    // The table uses the highest bits, too.
    mixed ^ mixed.rotate_left(32).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn push_joined(ranges: &mut Vec<ByteRange>, next: ByteRange) {
    match ranges.last_mut() {
        Some(last) if last.end == next.start => last.end = next.end,
        _ => ranges.push(next),
    }
}

#[cfg(test)]
mod tests;
