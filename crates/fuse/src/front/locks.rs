//! Locks that programs take (`fcntl`, `flock`), held on the origin's files, so that they exclude programs on other mounts of the
//! origin, too. Only where the engine wants that ([`Engine::shares_locks`]): otherwise the kernel keeps them by itself.
//!
//! What must hold:
//! - Each owner of locks of a file has an open file description of its own on the origin, and locks of open file
//!   descriptions there: those of a process would be one owner for all programs, and any close would drop them.
//! - An owner's locks go when a descriptor of the file is closed in its process (`flush`), and at the latest when the
//!   last handle goes that it took locks through (`release`): locks of an open file description and `flock`.
//! - Nobody waits in a thread that requests need: a transport provides for that before it lets a [`Wait`] finish.
//!
//! The kernel does not tell the library's event loop which locks are `flock`'s, so both kinds are ranges of bytes
//! there, `flock` one over all of them, as on NFS.

mod interrupted;
mod range;
mod waiters;

use std::fs::File;
use std::io;
use std::sync::Arc;

use fuser::{Errno, FileHandle};
use halocline_vfs::{Caller, Engine};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::fair::Place;
use super::inode_table::Inode;
use super::{Answer, Front, Refused};

pub(crate) use range::{LockKind, LockRange};
pub(super) use waiters::Waiters;

/// What a request about a lock names.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LockRequest {
    /// The open file that it was asked through.
    pub(crate) handle: FileHandle,
    /// Whose lock it is: the kernel's number of a process's table of descriptors, or of an open file description.
    pub(crate) owner: u64,
    /// Which bytes, and how.
    pub(crate) range: LockRange,
}

/// The owners of locks of one file.
#[derive(Debug, Default)]
pub(super) struct Locks(Mutex<FxHashMap<u64, Arc<Owner>>>);

/// Who holds locks of a file, or may.
#[derive(Debug)]
struct Owner {
    /// The open file description on the origin that its locks belong to.
    origin: File,
    /// Handles that it took locks through.
    handles: Mutex<Vec<FileHandle>>,
    _place: Place,
}

/// A lock that somebody else holds, and that a program waits for.
#[derive(Debug)]
#[must_use = "the program waits for the answer"]
pub(crate) struct Wait {
    owner: Arc<Owner>,
    range: LockRange,
    place: waiters::Waiting,
}

impl Wait {
    /// Waits until the lock is there. In a thread that no other request needs.
    ///
    /// # Errors
    /// `EINTR` if the program gets a signal, `ENOTCONN` if the mount is gone.
    pub(crate) fn finish(self) -> Answer<()> {
        self.place.wait(|| self.range.lock_waiting(&self.owner.origin))
    }
}

impl Locks {
    /// The owner `id`, if it has locks.
    fn of(&self, id: u64) -> Option<Arc<Owner>> {
        self.0.lock().get(&id).cloned()
    }

    /// The locks of `id` go: its process closed a descriptor of the file.
    pub(super) fn closed(&self, id: u64) {
        let mut owners = self.0.lock();
        if let Some(owner) = owners.get(&id) {
            owner.drop_locks();
            // Somebody who still waits gets a lock that counts.
            if Arc::strong_count(owner) == 1 {
                owners.remove(&id);
            }
        }
    }

    /// The locks of those go that took theirs through `handle` alone, which is closed.
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
    fn drop_locks(&self) {
        if let Err(error) = LockRange::ALL.unlock(&self.origin) {
            // Closing the descriptor drops them, too.
            tracing::debug!(%error, "locks could not be dropped");
        }
    }

    fn note(&self, handle: FileHandle) {
        let mut handles = self.handles.lock();
        if !handles.contains(&handle) {
            handles.push(handle);
        }
    }
}

impl<E: Engine> Front<E> {
    /// Whether programs' locks come here.
    pub(crate) fn shares_locks(&self) -> bool {
        self.engine.shares_locks()
    }

    /// Takes or drops a lock. Where others are in its way and `waits`, what is to be waited for.
    ///
    /// # Errors
    /// `EAGAIN` where others are in its way; `ENOLCK` where nobody could wait: too many do, or the program is out of sight in
    /// another PID namespace, so that no signal could end its wait.
    pub(crate) fn set_lock(
        &self,
        request: LockRequest,
        waits: bool,
        caller: Caller,
    ) -> Answer<Option<Wait>> {
        let file = self.file(request.handle)?;
        let LockRequest { owner, range, .. } = request;
        if range.kind() == LockKind::Unlock {
            let owner = file.inode.locks.of(owner);
            owner.map_or(Ok(()), |owner| range.unlock(&owner.origin)).map_err(refused)?;
            return Ok(None);
        }
        let owner = self.lock_owner(&file.inode, request, caller)?;
        match range.try_lock(&owner.origin) {
            Ok(()) => Ok(None),
            Err(error) if waits && is_conflict(&error) => {
                let place = self.waiters.enter(caller, self.connection.weak())?;
                Ok(Some(Wait { owner, range, place }))
            }
            Err(error) => Err(refused(error)),
        }
    }

    /// The lock that is in the way of one, if there is one. Its owner's process is not known: on another node it means
    /// nothing here.
    pub(crate) fn find_lock(&self, request: LockRequest) -> Answer<Option<LockRange>> {
        let file = self.file(request.handle)?;
        let found = match file.inode.locks.of(request.owner) {
            Some(owner) => request.range.find(&owner.origin),
            None => request.range.find(&self.open_for_locks(&file.inode, request.range.kind())?),
        };
        found.map_err(refused)
    }

    /// The owner that a request names, as one who took locks through its handle.
    fn lock_owner(
        &self,
        inode: &Inode<E::Node>,
        request: LockRequest,
        caller: Caller,
    ) -> Answer<Arc<Owner>> {
        if let Some(owner) = inode.locks.of(request.owner) {
            owner.note(request.handle);
            return Ok(owner);
        }
        let place = self.place_for(caller.uid)?;
        let origin = self.open_for_locks(inode, request.range.kind())?;
        let owner = Owner { origin, handles: Mutex::default(), _place: place };
        // Another thread of it may have been faster.
        let mut owners = inode.locks.0.lock();
        let owner = Arc::clone(owners.entry(request.owner).or_insert_with(|| Arc::new(owner)));
        owner.note(request.handle);
        Ok(owner)
    }

    /// To write where that is allowed: an exclusive lock needs it.
    fn open_for_locks(&self, inode: &Inode<E::Node>, kind: LockKind) -> Answer<File> {
        let (tree, node) = self.engine.below(&inode.node);
        let of_its_own = || match kind {
            LockKind::Exclusive => tree.open_file(&node, libc::O_WRONLY),
            LockKind::Shared | LockKind::Unlock => tree.open_file(&node, libc::O_RDONLY),
        };
        let opened = tree.open_file(&node, libc::O_RDWR).or_else(|_| of_its_own());
        opened.map_err(self.failed(inode, "lock"))
    }
}

fn is_conflict(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES))
}

fn refused(error: io::Error) -> Refused {
    if is_conflict(&error) {
        return Refused(Errno::EAGAIN);
    }
    Refused(error.raw_os_error().map_or(Errno::EIO, Errno::from_i32))
}
