//! Requests about locks.

use std::fs::File;
use std::sync::Arc;

use fuser::Errno;
use halocline_vfs::{Caller, Engine, Tree};

use super::backing::Connection;
use super::inode_table::Inode;
use super::inodes::Inodes;
use super::lease_waits::LeaseWaits;
use super::locks::{LockKind, LockRange, LockRequest, Owner, Wait, Waiters, is_conflict, refused};
use super::open_files::OpenFiles;
use super::user_limits::UserLimits;
use super::{Answer, Refused};

/// Requests about locks.
#[derive(Debug)]
pub(crate) struct Locking<E: Engine> {
    pub(super) engine: Arc<E>,
    pub(super) inodes: Arc<Inodes<E>>,
    pub(super) open: Arc<OpenFiles<E>>,
    pub(super) limits: Arc<UserLimits>,
    pub(super) leases: Arc<LeaseWaits>,
    pub(super) connection: Arc<Connection>,
    pub(super) waiters: Waiters,
}

impl<E: Engine> Locking<E> {
    /// Whether this mount handles programs' locks.
    pub(crate) fn shares_locks(&self) -> bool {
        self.engine.shares_locks()
    }

    /// Sets or releases a lock. If another lock conflicts and `waits`, returns what to wait for.
    ///
    /// # Errors
    /// `EAGAIN` if other locks conflict; `ENOLCK` if the program cannot wait: too many programs wait already, or it is
    /// invisible in another PID namespace, so that no signal could end its wait.
    pub(crate) fn set(
        &self,
        request: LockRequest,
        waits: bool,
        caller: Caller,
    ) -> Answer<Option<Wait>> {
        let file = self.open.get(request.handle)?;
        let LockRequest { owner, range, .. } = request;
        if range.kind() == LockKind::Unlock {
            let owner = file.inode.locks.of(owner);
            owner
                .map_or(Ok(()), |owner| range.unlock(&owner.origin))
                .map_err(|error| refused(&error))?;
            return Ok(None);
        }
        let owner = self.lock_owner(&file.inode, request, caller)?;
        match range.try_lock(&owner.origin) {
            Ok(()) => Ok(None),
            Err(error) if waits && is_conflict(&error) => {
                let place = self.waiters.enter(caller, self.connection.weak())?;
                Ok(Some(Wait::new(owner, range, place)))
            }
            Err(error) => Err(refused(&error)),
        }
    }

    /// A lock that conflicts with the given one, if there is one. The process of its owner is not reported: if it is on
    /// another node, it means nothing here.
    pub(crate) fn find(&self, request: LockRequest, caller: Caller) -> Answer<Option<LockRange>> {
        let file = self.open.get(request.handle)?;
        let found = if let Some(owner) = file.inode.locks.of(request.owner) {
            request.range.find(&owner.origin)
        } else {
            let opened = self.open_for_locks(&file.inode, request.range.kind(), caller)?;
            request.range.find(&opened)
        };
        found.map_err(|error| refused(&error))
    }

    /// The owner named in a request, recorded as having taken locks through the request's handle.
    fn lock_owner(
        &self,
        inode: &Inode<E::Vnode>,
        request: LockRequest,
        caller: Caller,
    ) -> Answer<Arc<Owner>> {
        if let Some(owner) = inode.locks.entered(request.owner, request.handle) {
            return Ok(owner);
        }
        let counted = self.limits.take(caller.uid)?;
        let origin = self.open_for_locks(inode, request.range.kind(), caller)?;
        Ok(inode.locks.enter(request.owner, request.handle, Owner::new(origin, counted)))
    }

    /// Opens for writing if that is permitted, because an exclusive lock requires it. `ENOLCK` if a program's lease of the
    /// file forbids it: `EAGAIN` would say that somebody has locked it.
    fn open_for_locks(
        &self,
        inode: &Inode<E::Vnode>,
        kind: LockKind,
        caller: Caller,
    ) -> Answer<File> {
        let (tree, vnode) = self.engine.below(&inode.vnode);
        let of_its_own = || match kind {
            LockKind::Exclusive => tree.open_file(&vnode, libc::O_WRONLY),
            LockKind::Shared | LockKind::Unlock => tree.open_file(&vnode, libc::O_RDONLY),
        };
        let open = || tree.open_file(&vnode, libc::O_RDWR).or_else(|_| of_its_own());
        match self.leases.wait(caller, open) {
            Err(error) if error.is_leased() => Err(Refused(Errno::ENOLCK)),
            opened => opened.map_err(self.inodes.failed(inode, "lock")),
        }
    }
}
