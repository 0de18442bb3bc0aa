//! Requests that were queued before a thread was added to their queue.
//!
//! The kernel queues a request where no thread of the queue is free, and hands it out when a thread returns an answer. A
//! buffer that is registered gets none of those that are queued by then: only the next one that a program makes on that
//! processor, and with its answer the queued ones. If all threads of the queue wait for a lock by then, and the request that
//! releases it is among those that are queued, nobody would ever fetch it. So the added thread has the kernel make one
//! request on its processor: it asks for no bytes of the file that is to be locked (`FUSE_NOTIFY_RETRIEVE`); they come as a
//! request (`FUSE_NOTIFY_REPLY`) whose answer nobody reads.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::{Errno, write};
use zerocopy::IntoBytes;

use super::binding;
use super::wire::{NotifyRetrieve, OutHeader};

/// `FUSE_NOTIFY_RETRIEVE`
const RETRIEVE: i32 = 5;
/// Numbers of our own requests begin here: the kernel counts from 0 by twos, and marks what is sent again by the highest
/// bit, and interrupts by the lowest.
const OWN_NUMBERS: u64 = 1 << 62;

/// Makes one request in the queue of `processor`, so that those before it are fetched, too. To be called by a thread whose
/// buffer was just registered there. `file` is the kernel's number for a regular file that is open.
pub(super) fn fetch_queued(device: BorrowedFd<'_>, processor: u16, file: u64) {
    if let Err(error) = binding::on(processor, || make_request(device, file)).flatten() {
        tracing::debug!(%error, processor, "requests may stay queued until the next one");
    }
}

fn make_request(device: BorrowedFd<'_>, file: u64) -> Result<(), Errno> {
    static NEXT: AtomicU64 = AtomicU64::new(OWN_NUMBERS);
    let len = size_of::<OutHeader>() + size_of::<NotifyRetrieve>();
    let len = u32::try_from(len).expect("48 bytes");
    let header = OutHeader { len, error: RETRIEVE, unique: 0 };
    let unique = NEXT.fetch_add(2, Ordering::Relaxed);
    let wanted = NotifyRetrieve { unique, nodeid: file, offset: 0, size: 0, padding: 0 };
    write(device, &[header.as_bytes(), wanted.as_bytes()].concat()).map(drop)
}
