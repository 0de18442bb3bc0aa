//! Answers to requests about locks.

use std::thread::Builder;

use fuser::{FileHandle, LockOwner, ReplyEmpty, ReplyLock};
use halocline_os::catch_panic::catch_panic;
use halocline_vfs::{Caller, Engine};

use crate::front::locks::{LockRange, LockRequest, Wait};
use crate::front::{Answer, Front, Refused};

/// The open file through which a lock is requested, and its owner.
type Through = (FileHandle, LockOwner);
/// `fcntl`'s lock type, the first byte and the last.
type RawLock = (i32, u64, u64);

fn request((handle, owner): Through, (kind, first, last): RawLock) -> Answer<LockRequest> {
    Ok(LockRequest { handle, owner: owner.0, range: LockRange::new(kind, first, last)? })
}

/// Answers with a conflicting lock, if there is one.
pub(super) fn find<E: Engine>(
    front: &Front<E>,
    through: Through,
    (asked, caller): (RawLock, Caller),
    reply: ReplyLock,
) {
    match catch_panic(|| front.locking.find(request(through, asked)?, caller)) {
        Ok(found) => {
            let asked_for = (libc::F_UNLCK, asked.1, asked.2);
            let (kind, first, last) = found.map_or(asked_for, LockRange::for_kernel);
            reply.locked(first, last, kind, 0);
        }
        Err(Refused(errno)) => reply.error(errno),
    }
}

/// Sets or releases a lock, and answers when that is done.
pub(super) fn set<E: Engine>(
    front: &Front<E>,
    through: Through,
    asked: RawLock,
    (waits, caller): (bool, Caller),
    reply: ReplyEmpty,
) {
    match catch_panic(|| front.locking.set(request(through, asked)?, waits, caller)) {
        Ok(None) => reply.ok(),
        Ok(Some(wait)) => later(wait, reply),
        Err(Refused(errno)) => reply.error(errno),
    }
}

/// Answers when the lock is granted, from a thread of its own: the event loop's threads are needed for other requests,
/// including the one that ends the wait.
fn later(wait: Wait, reply: ReplyEmpty) {
    let finish = move || match catch_panic(|| wait.finish()) {
        Ok(()) => reply.ok(),
        Err(Refused(errno)) => reply.error(errno),
    };
    let started = Builder::new().name("lock wait".to_owned()).spawn(finish);
    if let Err(error) = started {
        // The reply was dropped, and with that answered with an error.
        tracing::warn!(%error, "no thread to wait for a lock");
    }
}
