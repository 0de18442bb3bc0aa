//! Locks of programs (`fcntl`, `flock`), held on the origin's files, so that they also exclude programs on other mounts
//! of the origin. Only if the engine wants that ([`halocline_vfs::Engine::shares_locks`]); otherwise the kernel handles
//! them.
//!
//! What must hold:
//! - Each owner of locks on a file has an open file description of its own on the origin, and takes OFD locks through
//!   it: with process locks all programs would be one owner, and any close would release the locks.
//! - An owner's locks are released when a descriptor of the file is closed in its process (`flush`), and at the latest
//!   when the last handle through which it took locks is closed (`release`): OFD locks and `flock`.
//! - No wait blocks a thread that requests need: a transport ensures that before it lets a [`Wait`] finish.
//!
//! The kernel does not tell the library's event loop which locks are `flock`'s, so both kinds are byte ranges there;
//! `flock` covers all bytes, as on NFS.

mod interrupted;
mod range;
mod waiters;

use std::fs::File;
use std::io;
use std::sync::Arc;

use fuser::{Errno, FileHandle};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::user_limits::CountedOpen;
use super::{Answer, Refused};

pub(crate) use range::{LockKind, LockRange};
pub(super) use waiters::{Waiters, Waiting};

/// A request about a lock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LockRequest {
    /// The open file through which it was made.
    pub(crate) handle: FileHandle,
    /// The lock's owner: the kernel's number for a process's descriptor table, or for an open file description.
    pub(crate) owner: u64,
    /// Which bytes, and how.
    pub(crate) range: LockRange,
}

/// The owners of locks of one file.
#[derive(Debug, Default)]
pub(super) struct Locks(Mutex<FxHashMap<u64, Arc<Owner>>>);

/// An owner that holds, or may hold, locks on a file.
#[derive(Debug)]
pub(super) struct Owner {
    /// The open file description on the origin to which its locks belong.
    pub(super) origin: File,
    /// Handles through which it took locks.
    handles: Mutex<Vec<FileHandle>>,
    _counted: CountedOpen,
}

/// A lock that conflicts with another owner's, and for which a program waits.
#[derive(Debug)]
#[must_use = "the program waits for the answer"]
pub(crate) struct Wait {
    owner: Arc<Owner>,
    range: LockRange,
    place: Waiting,
}

impl Wait {
    pub(super) fn new(owner: Arc<Owner>, range: LockRange, place: Waiting) -> Self {
        Self { owner, range, place }
    }

    /// Waits until the lock is granted. To be called in a thread that no other request needs.
    ///
    /// # Errors
    /// `EINTR` if the program gets a signal, `ENOTCONN` if the mount is gone.
    pub(crate) fn finish(self) -> Answer<()> {
        self.place.wait(|| self.range.lock_waiting(&self.owner.origin))
    }
}

impl Locks {
    /// The owner `id`, if it has locks.
    pub(super) fn of(&self, id: u64) -> Option<Arc<Owner>> {
        self.0.lock().get(&id).cloned()
    }

    /// The owner `id`, if it has locks, recorded as taking more through `handle`. This is recorded during the lookup;
    /// otherwise another handle that is closed meanwhile would remove the owner and its locks.
    pub(super) fn entered(&self, id: u64, handle: FileHandle) -> Option<Arc<Owner>> {
        let owners = self.0.lock();
        let owner = owners.get(&id)?;
        owner.note(handle);
        Some(Arc::clone(owner))
    }

    /// The same, with `owner` if there is none yet. Another thread may have been faster.
    pub(super) fn enter(&self, id: u64, handle: FileHandle, owner: Owner) -> Arc<Owner> {
        let mut owners = self.0.lock();
        let owner = owners.entry(id).or_insert_with(|| Arc::new(owner));
        owner.note(handle);
        Arc::clone(owner)
    }

    /// Releases the locks of `id`, whose process closed a descriptor of the file.
    pub(super) fn closed(&self, id: u64) {
        let mut owners = self.0.lock();
        if let Some(owner) = owners.get(&id) {
            owner.drop_locks();
            // The lock of a thread that is still waiting must count once it is granted.
            if Arc::strong_count(owner) == 1 {
                owners.remove(&id);
            }
        }
    }

    /// Releases the locks of all owners that took theirs only through `handle`, which is closed.
    pub(super) fn released(&self, handle: FileHandle) {
        self.0.lock().retain(|_, owner| {
            let mut handles = owner.handles.lock();
            let Some(at) = handles.iter().position(|one| *one == handle) else { return true };
            handles.swap_remove(at);
            if handles.is_empty() {
                owner.drop_locks();
            }
            !handles.is_empty()
        });
    }
}

impl Owner {
    /// An owner that has no locks yet.
    pub(super) fn new(origin: File, counted: CountedOpen) -> Self {
        Self { origin, handles: Mutex::default(), _counted: counted }
    }

    fn drop_locks(&self) {
        if let Err(error) = LockRange::ALL.unlock(&self.origin) {
            // Closing the descriptor releases them, too.
            tracing::debug!(%error, "locks could not be dropped");
        }
    }

    /// Records that it takes locks through `handle`.
    fn note(&self, handle: FileHandle) {
        let mut handles = self.handles.lock();
        if !handles.contains(&handle) {
            handles.push(handle);
        }
    }
}

/// Whether the error means that another owner's lock conflicts.
pub(super) fn is_conflict(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES))
}

pub(super) fn refused(error: &io::Error) -> Refused {
    if is_conflict(error) {
        return Refused(Errno::EAGAIN);
    }
    Refused(error.raw_os_error().map_or(Errno::EIO, Errno::from_i32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::front::user_limits::CountedOpen;

    const OWNER: u64 = 7;

    fn owner(path: &std::path::Path) -> Owner {
        let origin = File::options().read(true).write(true).open(path).unwrap();
        Owner::new(origin, CountedOpen::nobodys())
    }

    /// Regression: a thread had found the owner when another closed the handle through which the owner was known. The
    /// owner was removed, and the lock that the first thread then got belonged to nobody.
    #[test]
    fn an_owner_that_was_found_stays_while_another_of_its_handles_is_closed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (first, second) = (FileHandle(1), FileHandle(2));
        let locks = Locks::default();
        assert!(locks.entered(OWNER, first).is_none());
        locks.enter(OWNER, first, owner(file.path()));
        let found = locks.entered(OWNER, second).expect("it is known");
        locks.released(first);
        assert!(locks.of(OWNER).is_some_and(|now| Arc::ptr_eq(&now, &found)));
        locks.released(second);
        assert!(locks.of(OWNER).is_none());
    }

    /// The same if another thread of the owner was faster.
    #[test]
    fn an_owner_that_two_threads_begin_is_one_and_has_both_handles() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (first, second) = (FileHandle(1), FileHandle(2));
        let locks = Locks::default();
        let one = locks.enter(OWNER, first, owner(file.path()));
        let other = locks.enter(OWNER, second, owner(file.path()));
        assert!(Arc::ptr_eq(&one, &other));
        locks.released(first);
        assert!(locks.of(OWNER).is_some());
        locks.released(second);
        assert!(locks.of(OWNER).is_none());
    }
}
