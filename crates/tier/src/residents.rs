//! The account of the SSD: which regular files are there and how many blocks they have.
//!
//! What must hold (I5): `used` is never less than the blocks of the files on the SSD, and every write has reserved its
//! worst case before it is made. Files that are open in kernel passthrough grow without asking: they are counted when
//! they are examined, and are passed through only with ample headroom.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use super::copy_records::CopyState;
use super::tiers::Entry;
use halocline_vfs::namespace::{Vnode, stat_descriptor};

/// A write may need this much more than its bytes: partial blocks at both ends, and the file
/// system's map of the file.
const SLACK: u64 = 16 << 10;

/// The SSD's space.
#[derive(Debug)]
pub(super) struct Account {
    /// The most bytes that files may have on the SSD.
    pub(super) limit: u64,
    used: AtomicU64,
}

impl Account {
    /// Takes `bytes` if they fit.
    fn take(&self, bytes: u64) -> bool {
        let add = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.limit);
        self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, add).is_ok()
    }

    fn give(&self, bytes: u64) {
        let before = self.used.fetch_sub(bytes, Ordering::AcqRel);
        assert!(before >= bytes, "I5: more was given back than taken");
    }
}

/// A regular file on the SSD.
#[derive(Debug)]
pub(super) struct Resident {
    /// The number by which the policy identifies it.
    pub(super) number: u64,
    /// One of its names, by which it can be found.
    pub(super) name: Mutex<(Vnode, OsString)>,
    /// Bytes that `used` holds for it.
    counted: Mutex<u64>,
    /// It has no name any more: its bytes are freed with its last user.
    nameless: AtomicBool,
    /// Its clean copy on a lower tier.
    pub(super) clean: CopyState,
    account: Arc<Account>,
}

impl Resident {
    /// Bytes on disk, as last counted.
    pub(super) fn bytes(&self) -> u64 {
        *self.counted.lock()
    }

    /// Counts the blocks that the file has now.
    pub(super) fn settle(&self, file: &impl AsFd) {
        // The file is read under the lock: an older count must not overwrite a newer one.
        let mut counted = self.counted.lock();
        let Ok(stat) = stat_descriptor(file) else { return };
        self.store(&mut counted, stat.disk_bytes());
    }

    fn set(&self, now: u64) {
        self.store(&mut self.counted.lock(), now);
    }

    fn store(&self, counted: &mut u64, now: u64) {
        if now > *counted {
            self.account.used.fetch_add(now - *counted, Ordering::AcqRel);
        } else {
            self.account.give(*counted - now);
        }
        *counted = now;
    }

    /// Reserves room for a write of `len` bytes at `at`, made by `write`, and counts what it took. `None` if it does
    /// not fit; then nothing was written.
    pub(super) fn growing<T>(
        &self,
        file: &File,
        at: Option<u64>,
        len: u64,
        write: impl FnOnce() -> T,
    ) -> Option<T> {
        let need = if at.is_some_and(|at| is_dense(file, at + len)) { 0 } else { len + SLACK };
        if !self.account.take(need) {
            return None;
        }
        let done = write();
        // The new blocks are counted before the reservation is released, so the count is never too low (I5).
        self.settle(file);
        self.account.give(need);
        Some(done)
    }

    /// Called when the file has lost its last name, or left the SSD, while somebody may still use it.
    pub(super) fn loses_name(&self) {
        self.nameless.store(true, Ordering::Release);
    }

    /// Called when nobody uses it through the mount any more.
    pub(super) fn dropped(&self) {
        if self.nameless.load(Ordering::Acquire) {
            self.set(0);
        }
    }
}

/// Whether all bytes before `end` have blocks, so that overwriting them needs none.
fn is_dense(file: &File, end: u64) -> bool {
    stat_descriptor(file).is_ok_and(|stat| {
        let size = stat.raw.st_size.unsigned_abs();
        end <= size && stat.disk_bytes() >= size
    })
}

#[derive(Debug, Default)]
struct Files {
    by_entry: HashMap<Entry, Arc<Resident>>,
    by_number: HashMap<u64, Entry>,
}

impl Files {
    fn add(&mut self, entry: Entry, resident: &Arc<Resident>) {
        self.by_entry.insert(entry, resident.clone());
        self.by_number.insert(resident.number, entry);
    }

    fn remove(&mut self, entry: Entry) -> Option<Arc<Resident>> {
        let resident = self.by_entry.remove(&entry)?;
        if self.by_number.get(&resident.number) == Some(&entry) {
            self.by_number.remove(&resident.number);
        }
        Some(resident)
    }
}

/// All regular files on the SSD.
#[derive(Debug)]
pub(super) struct Residents {
    files: RwLock<Files>,
    pub(super) account: Arc<Account>,
}

impl Residents {
    /// Starts with no files, and a limit.
    pub(super) fn new(limit: u64) -> Self {
        let account = Arc::new(Account { limit, used: AtomicU64::new(0) });
        Self { files: RwLock::default(), account }
    }

    /// Counts a file with `bytes` bytes on disk, seen as `name` in `parent`.
    pub(super) fn add(
        &self,
        entry: Entry,
        number: u64,
        name: (Vnode, OsString),
        bytes: u64,
    ) -> Arc<Resident> {
        let resident = Arc::new(Resident {
            number,
            name: Mutex::new(name),
            counted: Mutex::new(0),
            nameless: AtomicBool::new(false),
            clean: CopyState::default(),
            account: self.account.clone(),
        });
        let mut files = self.files.write();
        if let Some(present) = files.by_entry.get(&entry) {
            return present.clone();
        }
        resident.set(bytes);
        files.add(entry, &resident);
        resident
    }

    /// The account of a file.
    pub(super) fn get(&self, entry: Entry) -> Option<Arc<Resident>> {
        self.files.read().by_entry.get(&entry).cloned()
    }

    /// The file that the policy knows by `number`.
    pub(super) fn numbered(&self, number: u64) -> Option<(Entry, Arc<Resident>)> {
        let files = self.files.read();
        let entry = *files.by_number.get(&number)?;
        Some((entry, files.by_entry.get(&entry)?.clone()))
    }

    /// Removes from the list a file that is gone or leaving; its bytes stay counted while it is `in_use`.
    pub(super) fn remove(&self, entry: Entry, in_use: bool) -> Option<Arc<Resident>> {
        let resident = self.files.write().remove(entry)?;
        resident.loses_name();
        if !in_use {
            resident.set(0);
        }
        Some(resident)
    }

    /// Every file, in no particular order.
    pub(super) fn all(&self) -> Vec<(Entry, Arc<Resident>)> {
        self.files.read().by_entry.iter().map(|(entry, file)| (*entry, file.clone())).collect()
    }

    /// Number of files.
    pub(super) fn len(&self) -> usize {
        self.files.read().by_entry.len()
    }

    /// Bytes that files have on the SSD or that writes in progress have reserved.
    pub(super) fn used(&self) -> u64 {
        self.account.used.load(Ordering::Acquire)
    }

    /// Bytes left below the limit.
    pub(super) fn free(&self) -> u64 {
        self.account.limit.saturating_sub(self.used())
    }

    /// Bytes that must leave the SSD before `bytes` are free there: more than that if files have more than the limit
    /// (because it was lowered, or the kernel wrote past it).
    pub(super) fn missing(&self, bytes: u64) -> u64 {
        self.used().saturating_add(bytes).saturating_sub(self.account.limit)
    }

    /// Reserves `bytes` until the guard is dropped.
    pub(super) fn reserve(&self, bytes: u64) -> Option<Reserved> {
        let taken = self.account.take(bytes);
        taken.then(|| Reserved { bytes, account: self.account.clone() })
    }
}

/// Room that is reserved for a copy in progress.
#[derive(Debug)]
pub(super) struct Reserved {
    bytes: u64,
    account: Arc<Account>,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.account.give(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use halocline_vfs::namespace::Namespace;

    #[test]
    #[should_panic(expected = "I5: more was given back than taken")]
    fn i5_what_was_never_taken_is_not_given_back() {
        let residents = Residents::new(64 << 10);
        let reserved = residents.reserve(10).unwrap();
        residents.account.give(1);
        drop(reserved);
    }

    #[test]
    fn i5_a_write_that_does_not_fit_is_not_made() {
        let dir = tempfile::tempdir().unwrap();
        let root = Namespace::open(dir.path()).unwrap().root();
        let residents = Residents::new(64 << 10);
        let file = tempfile::tempfile_in(dir.path()).unwrap();
        let one = residents.add((1, 1), 1, (root, "x".into()), 0);
        let write = |at, len: u64| {
            one.growing(&file, Some(at), len, || {
                file.write_all_at(&vec![1; usize::try_from(len).unwrap()], at).unwrap();
            })
        };
        assert!(write(0, 32 << 10).is_some());
        assert_eq!(residents.used(), 32 << 10);
        assert!(write(32 << 10, 32 << 10).is_none(), "with its slack it passes the limit");
        assert_eq!(file.metadata().unwrap().len(), 32 << 10);
        assert!(write(0, 32 << 10).is_some(), "writing over blocks needs none");
        assert_eq!(residents.used(), 32 << 10);
        residents.remove((1, 1), true);
        assert_eq!(residents.used(), 32 << 10, "its blocks stay while it is used");
        one.dropped();
        assert_eq!(residents.used(), 0);
    }
}
