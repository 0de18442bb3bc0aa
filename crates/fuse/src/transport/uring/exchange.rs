//! One buffer, and the ring that exchanges it with the kernel.
//!
//! What must hold: the kernel accesses the buffer only inside system calls of the ring's own thread (the ring defers
//! its work to them), from the registration or commit of the buffer until a completion reports a request in it. We
//! borrow it only outside that time, and no borrow extends over such a call.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::{self, NonNull};

use halocline_os::catch_panic::catch_panic;
use io_uring::cqueue::Entry as Completion;
use io_uring::squeue::Entry128;
use io_uring::{IoUring, opcode, types};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use zerocopy::IntoBytes;

use super::busy_poll::BusyPoll;
use super::message::Message;
use super::wire::{Command, OutHeader, RequestHeader};
use crate::front::Answer;
use crate::transport::device::negotiation::REQUEST_MAX;

const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;
/// Where a submission stores the number of its memory pieces.
const SUBMISSION_LEN: usize = 24;

/// A ring with its buffer.
#[derive(Debug)]
pub(super) struct Exchange {
    queue: u16,
    // Dropped before the memory that was registered with it.
    ring: Ring,
    buffer: Buffer,
    poll: BusyPoll,
}

struct Ring(IoUring<Entry128, Completion>);

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ring")
    }
}

/// A page for the headers, followed by room for the largest request or answer. It is not touched before it is used.
#[derive(Debug)]
struct Buffer(NonNull<u8>);

impl Exchange {
    /// A ring for this thread and the kernel's queue `queue`.
    pub(super) fn new(queue: u16, poll: BusyPoll) -> io::Result<Self> {
        // With this flag the kernel sets a bit in shared memory when it has work for the thread: a request.
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .build(2)?;
        Ok(Self { queue, ring: Ring(ring), buffer: Buffer::new()?, poll })
    }

    /// Serves a mount's requests with `answer`, which gets a request and the payload and returns how many bytes of the
    /// payload its answer takes. `registered` is called once the kernel may put requests into the buffer. Returns when the
    /// mount is gone.
    pub(super) fn serve(
        &mut self,
        device: BorrowedFd<'_>,
        registered: impl FnOnce(),
        answer: impl Fn(&Message<'_>, &mut [u8]) -> Answer<usize>,
    ) -> io::Result<()> {
        let device = device.as_raw_fd();
        self.register(device)?;
        registered();
        while self.receive()? {
            let commit_id = self.respond(&answer);
            let commit = self.command(device, COMMIT_AND_FETCH, commit_id);
            self.submit(&commit.build());
        }
        Ok(())
    }

    /// Replaces the request with its answer; returns the id of the request.
    fn respond(&mut self, answer: impl Fn(&Message<'_>, &mut [u8]) -> Answer<usize>) -> u64 {
        // SAFETY: a completion has just said that a request is here, and it is not committed yet.
        let (header, payload) = unsafe { self.buffer.borrow() };
        let message = Message {
            header: header.input(),
            fields: &header.fields,
            payload: header.entry.payload_bytes as usize,
        };
        let (error, bytes) = match catch_panic(|| answer(&message, payload)) {
            Ok(bytes) => (0, bytes),
            Err(refused) => (-refused.0.code(), 0),
        };
        let unique = message.header.unique;
        header.set_output(&OutHeader { len: 0, error, unique });
        header.entry.payload_bytes = u32::try_from(bytes).expect("at most 1 MiB");
        header.entry.commit_id
    }

    /// Registers the buffer with the kernel and asks for the first request.
    fn register(&mut self, device: RawFd) -> io::Result<()> {
        let pieces = self.buffer.pieces();
        let command = self.command(device, REGISTER, 0).addr(Some(pieces.as_ptr() as u64));
        let mut entry = command.build();
        // SAFETY: a submission is 128 bytes without padding, and this field is 4 of them. The library has no name for
        // the field.
        unsafe {
            ptr::from_mut(&mut entry)
                .cast::<u8>()
                .add(SUBMISSION_LEN)
                .cast::<u32>()
                .write_unaligned(u32::try_from(pieces.len()).expect("two"));
        }
        self.submit(&entry);
        // The kernel copies the list of pieces when it takes the submission.
        self.ring.0.submit().map(drop)
    }

    /// Waits for a request; `false` if the mount is gone.
    fn receive(&mut self) -> io::Result<bool> {
        let ring = &mut self.ring.0;
        let mut looks = self.poll.is_due();
        loop {
            let submitted =
                if looks { ring.submit() } else { self.poll.asleep(|| ring.submit_and_wait(1)) };
            match submitted {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            if let Some(completion) = ring.completion().next() {
                return match -completion.result() {
                    0 => Ok(true),
                    libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED | libc::ENODEV => {
                        Ok(false)
                    }
                    errno => Err(io::Error::from_raw_os_error(errno)),
                };
            }
            if mem::take(&mut looks) {
                self.poll.poll(|| ring.submission().taskrun());
            }
        }
    }

    fn command(&self, device: RawFd, operation: u32, commit_id: u64) -> opcode::UringCmd80 {
        let command = Command { flags: 0, commit_id, queue: self.queue, padding: [0; 3] };
        let mut bytes = [0; 80];
        bytes[..size_of::<Command>()].copy_from_slice(command.as_bytes());
        opcode::UringCmd80::new(types::Fd(device), operation).cmd(bytes)
    }

    fn submit(&mut self, entry: &Entry128) {
        // SAFETY: the memory that the entry points to lives as long as the exchange, or until `register` has submitted
        // it.
        let pushed = unsafe { self.ring.0.submission().push(entry) };
        pushed.expect("one entry at a time in a queue of two");
    }
}

impl Buffer {
    const HEADER: usize = 4096;
    const PAYLOAD: usize = REQUEST_MAX as usize;
    const BYTES: usize = Self::HEADER + Self::PAYLOAD;

    fn new() -> io::Result<Self> {
        const { assert!(size_of::<RequestHeader>() <= Self::HEADER) };
        let (access, kind) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing.
        let at = unsafe { mmap_anonymous(ptr::null_mut(), Self::BYTES, access, kind) }?;
        Ok(Self(NonNull::new(at.cast()).expect("no mapping begins at 0")))
    }

    /// The pieces to register with the kernel: the headers and the payload.
    fn pieces(&self) -> [libc::iovec; 2] {
        let header = self.0.as_ptr();
        [
            libc::iovec { iov_base: header.cast(), iov_len: size_of::<RequestHeader>() },
            libc::iovec {
                iov_base: header.wrapping_add(Self::HEADER).cast(),
                iov_len: Self::PAYLOAD,
            },
        ]
    }

    /// # Safety
    /// The kernel does not use the memory while it is borrowed.
    unsafe fn borrow(&mut self) -> (&mut RequestHeader, &mut [u8]) {
        // SAFETY: mapped, a page and `PAYLOAD` bytes large, page-aligned, initially zeroed; every content is a valid
        // header. The exclusive borrow of `self` excludes other borrows, and the caller excludes the kernel.
        unsafe {
            let payload = self.0.add(Self::HEADER);
            let payload = std::slice::from_raw_parts_mut(payload.as_ptr(), Self::PAYLOAD);
            (self.0.cast().as_mut(), payload)
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and no longer borrowed.
        let unmapped = unsafe { munmap(self.0.as_ptr().cast(), Self::BYTES) };
        debug_assert!(unmapped.is_ok(), "a mapping can be unmapped");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use zerocopy::FromBytes;

    use super::*;
    use crate::transport::uring::busy_poll::Awake;

    /// Regression: its program waited until the mount was gone, and no signal could end the wait.
    #[test]
    fn a_call_that_panics_is_answered() {
        let Ok(mut exchange) = Exchange::new(0, BusyPoll::new(Arc::new(Awake::off()))) else {
            return;
        };
        exchange.respond(|_, _| panic!("on purpose"));
        // SAFETY: the buffer was not registered with the kernel.
        let (header, _) = unsafe { exchange.buffer.borrow() };
        let (answer, _) = OutHeader::read_from_prefix(&header.in_out).unwrap();
        assert_eq!((answer.error, header.entry.payload_bytes), (-libc::EIO, 0));
    }
}
