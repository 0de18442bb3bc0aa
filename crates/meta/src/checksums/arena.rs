//! The file of the slots: their positions, which are free, and whether its contents can be trusted.
//!
//! A header of one page, then slots of 64 bytes. The file grows by steps that are counted before they are allocated
//! (I5), and is truncated when it is opened and holds nothing valid.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use rustix::fs::FallocateFlags;

use super::slot::{WORDS, Words};
use crate::load::Shutdown;
use crate::mapped_file::Mapping;

const HEAD_BYTES: usize = 4096;
const HEAD: u64 = HEAD_BYTES as u64;
const SLOT_BYTES: usize = WORDS * 8;
const SLOT: u64 = SLOT_BYTES as u64;
const MAGIC: &[u8; 8] = b"hclsums1";
/// The file grows by an eighth of what it has, by whole pages from one to this many bytes.
const STEP_MAX: u64 = 1 << 20;
/// Bytes read at once when it is opened.
const READ: usize = 1 << 20;

/// The slots.
#[derive(Debug)]
pub(super) struct Arena {
    file: File,
    mapping: Mapping,
    boot_id: String,
    space: Mutex<ArenaSpace>,
    /// Whether a page could not be used: then nothing is trusted any more.
    lost: AtomicBool,
    /// Bytes on disk, or about to be allocated.
    bytes: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct ArenaSpace {
    /// Slots that were given back.
    free: Vec<u32>,
    /// Slots from here on were never used.
    next: u32,
    /// Number of slots in the file.
    have: u32,
    /// Number of slots in the mapping.
    max: u32,
}

impl Arena {
    /// Opens the file of a cache that ended its last session as `last_shutdown` says, or makes it, for at most `max` slots. Passes its
    /// contents to `take`, slot by slot, unless a power loss may have torn them; slots that `take` refuses are free.
    pub(super) fn open(
        file: File,
        (boot_id, last_shutdown): (&str, Shutdown),
        max: u32,
        bytes: Arc<AtomicU64>,
        take: &mut dyn FnMut(u32, &Words) -> bool,
    ) -> io::Result<Self> {
        let believed = is_believed(&file, boot_id, last_shutdown)?;
        let slots = if believed { slots_in(file.metadata()?.len()) } else { 0 };
        let mut refused = Vec::new();
        let mapped = map(|bytes| Mapping::new(&file, bytes), max.max(slots), slots);
        let (mapping, max, next) = if let Ok((mapping, max)) = mapped {
            let next = read_slots(&file, slots, &mut |at, words| {
                let taken = take(at, words);
                if !taken {
                    refused.push((at, *words != Words::default()));
                }
                taken
            })?;
            (mapping, max, next)
        } else {
            // Without a mapped file the sums last only as long as the process.
            let (mapping, max) = map(Mapping::anonymous, max, 0)?;
            (mapping, max, 0)
        };
        if next == 0 {
            file.set_len(0)?;
        }
        file.set_len(end_of(next))?;
        refused.retain(|&(at, _)| at < next);
        let free = refused.iter().map(|&(at, _)| at).collect();
        let space = Mutex::new(ArenaSpace { free, next, have: next, max });
        bytes.store(end_of(next).next_multiple_of(HEAD), Relaxed);
        let (boot_id, lost) = (boot_id.to_owned(), AtomicBool::new(false));
        let arena = Self { file, mapping, boot_id, space, lost, bytes };
        // Otherwise they would be trusted once the bytes that they cover are cached again.
        for (at, _) in refused.into_iter().filter(|&(_, is_written)| is_written) {
            arena.store(at, &Words::default());
        }
        arena.sign(false)?;
        Ok(arena)
    }

    /// Writes who uses the file, and whether it was closed.
    fn sign(&self, closed: bool) -> io::Result<()> {
        let mut head = MAGIC.to_vec();
        head.push(u8::from(closed));
        head.extend_from_slice(self.boot_id.as_bytes());
        head.resize(HEAD_BYTES, 0);
        self.file.write_all_at(&head, 0)
    }

    /// Makes the file durable, and marks it as closed.
    pub(super) fn close(&self) -> io::Result<()> {
        if self.is_lost() {
            return Ok(());
        }
        self.file.sync_data()?;
        self.sign(true)?;
        self.file.sync_all()
    }

    /// Whether a page could not be used.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Relaxed)
    }

    /// An unused slot; `None` if there is no room for one.
    pub(super) fn allocate(&self) -> Option<u32> {
        let mut space = self.space.lock();
        if let Some(free) = space.free.pop() {
            return Some(free);
        }
        if space.next == space.have {
            self.grow(&mut space)?;
        }
        space.next += 1;
        Some(space.next - 1)
    }

    fn grow(&self, space: &mut ArenaSpace) -> Option<()> {
        let now = end_of(space.have).next_multiple_of(HEAD);
        let step = (now / 8).clamp(HEAD, STEP_MAX) / HEAD * HEAD;
        let more =
            slots_in(now + step).min(space.max).checked_sub(space.have).filter(|&m| m > 0)?;
        // Counted before it is allocated (I5).
        self.bytes.store(now + step, Relaxed);
        let allocated = rustix::fs::fallocate(&self.file, FallocateFlags::empty(), now, step);
        let allocated = allocated.map_err(io::Error::from).or_else(|error| {
            let unknown = error.raw_os_error() == Some(libc::EOPNOTSUPP);
            let zeros = || vec![0; usize::try_from(step).expect("a short step")];
            if unknown { self.file.write_all_at(&zeros(), now) } else { Err(error) }
        });
        if allocated.is_err() {
            self.bytes.store(now, Relaxed);
            return None;
        }
        space.have += more;
        Some(())
    }

    /// Releases a slot that was wiped.
    pub(super) fn release(&self, slot: u32) {
        self.space.lock().free.push(slot);
    }

    /// The first words of a slot; zeros if the page is lost.
    pub(super) fn load<const N: usize>(&self, slot: u32) -> [u64; N] {
        let mut words = [0; N];
        if self.is_lost() || self.mapping.load_words(place(slot), &mut words).is_err() {
            self.lose();
            return [0; N];
        }
        words.map(u64::from_le)
    }

    /// Writes a slot.
    pub(super) fn store(&self, slot: u32, words: &Words) {
        let words = words.map(u64::to_le);
        if self.is_lost() || self.mapping.store_words(place(slot), &words).is_err() {
            self.lose();
        }
    }

    /// From now on nothing is trusted, nor in the next process.
    fn lose(&self) {
        if !self.lost.swap(true, Relaxed) {
            tracing::warn!("the checksums of cached data cannot be written; going on without them");
            let _ = self.file.set_len(0);
        }
    }
}

/// Maps room for `max` slots, or for fewer, but for no fewer than the file has: address space may be limited (`ulimit
/// -v`). Bytes without a slot have no checksum.
fn map(
    make: impl Fn(usize) -> io::Result<Mapping>,
    mut max: u32,
    slots: u32,
) -> io::Result<(Mapping, u32)> {
    loop {
        match make(place(max)) {
            Err(_) if max / 2 >= slots.max(1) => max /= 2,
            Err(error) => return Err(error),
            Ok(mapping) => return Ok((mapping, max)),
        }
    }
}

/// Whether the file matches the cache as it was left: it has all that a killed process stored, and all that the owner
/// of a closed cache synced. After a power loss any page of it may be older or newer than the data.
fn is_believed(file: &File, boot_id: &str, last_shutdown: Shutdown) -> io::Result<bool> {
    let mut head = [0; 256];
    if file.read_at(&mut head, 0)? < head.len() || !head.starts_with(MAGIC) {
        return Ok(false);
    }
    let [closed, id @ ..] = &head[MAGIC.len()..] else { return Ok(false) };
    let id = id.split(|&byte| byte == 0).next().unwrap_or_default();
    let same_boot = id == boot_id.as_bytes();
    Ok(match last_shutdown {
        Shutdown::Closed => same_boot || *closed == 1,
        Shutdown::Crashed => same_boot,
        Shutdown::Never | Shutdown::PowerLost => false,
    })
}

/// Passes every slot of the file to `take`; returns the number of slots up to the last one taken.
fn read_slots(
    file: &File,
    slots: u32,
    take: &mut dyn FnMut(u32, &Words) -> bool,
) -> io::Result<u32> {
    let mut bytes = vec![0; READ];
    let (mut at, mut end) = (0, 0);
    while at < slots {
        let count = slots_in(HEAD + READ as u64).min(slots - at);
        let part = &mut bytes[..count as usize * SLOT_BYTES];
        file.read_exact_at(part, end_of(at))?;
        for slot in part.chunks_exact(SLOT_BYTES) {
            let mut words = Words::default();
            for (word, bytes) in words.iter_mut().zip(slot.chunks_exact(8)) {
                *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
            }
            if take(at, &words) {
                end = at + 1;
            }
            at += 1;
        }
    }
    Ok(end)
}

/// Where the first `slots` slots end.
const fn end_of(slots: u32) -> u64 {
    HEAD + slots as u64 * SLOT
}

fn slots_in(bytes: u64) -> u32 {
    u32::try_from(bytes.saturating_sub(HEAD) / SLOT).unwrap_or(u32::MAX)
}

fn place(slot: u32) -> usize {
    usize::try_from(end_of(slot)).expect("the mapping has it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_slots_are_mapped_as_there_are_addresses_for() {
        let limited = |bytes| match bytes {
            0..=1_000_000 => Mapping::anonymous(bytes),
            _ => Err(io::ErrorKind::OutOfMemory.into()),
        };
        assert_eq!(map(limited, 1 << 20, 0).unwrap().1, 1 << 13);
        assert_eq!(map(limited, 100, 0).unwrap().1, 100);
        map(limited, 1 << 20, 1 << 15).unwrap_err();
    }
}
