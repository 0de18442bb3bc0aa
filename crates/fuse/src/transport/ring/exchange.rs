//! One buffer and the ring that hands it to and fro.
//!
//! What must hold: the kernel writes into the buffer and reads it only inside the system calls of
//! the ring's own thread (the ring defers its work to them), from registering or committing the
//! buffer until a completion says that a request is in it. In between nobody else touches it, so
//! that here it may be borrowed as memory of our own.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr;

use io_uring::cqueue::Entry as Completion;
use io_uring::squeue::Entry128;
use io_uring::{IoUring, opcode, types};
use zerocopy::{FromZeros, IntoBytes};

use super::wire::{Command, InHeader, OutHeader, RequestHeader};
use crate::front::Answer;
use crate::transport::device::negotiation::REQUEST_MAX;

const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;
/// Where a submission says how many pieces of memory it names.
const SUBMISSION_LEN: usize = 24;

/// A request that the kernel put into the buffer.
#[derive(Debug)]
pub(super) struct Message<'a> {
    pub(super) header: InHeader,
    /// The operation's own fields; older bytes follow them.
    pub(super) fields: &'a [u8],
    /// Bytes of names or data at the beginning of the payload.
    pub(super) payload: usize,
}

/// A ring with its buffer.
#[derive(Debug)]
pub(super) struct Exchange {
    queue: u16,
    // Dropped before the memory it was told of.
    ring: Ring,
    header: Box<RequestHeader>,
    payload: Payload,
}

struct Ring(IoUring<Entry128, Completion>);

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ring")
    }
}

/// Memory for the largest request or answer, from a page's start and not touched before it is used.
#[derive(Debug)]
struct Payload(*mut libc::c_void);

impl Exchange {
    /// A ring for this thread and a queue of the kernel's.
    pub(super) fn new(queue: u16) -> io::Result<Self> {
        let ring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(2)?;
        Ok(Self {
            queue,
            ring: Ring(ring),
            header: Box::new(RequestHeader::new_zeroed()),
            payload: Payload::new()?,
        })
    }

    /// Serves a mount's requests with `answer`, which is given a request and the payload, and says
    /// how many bytes of the payload its answer takes. Ends when the mount is gone.
    pub(super) fn serve(
        &mut self,
        device: BorrowedFd<'_>,
        answer: impl Fn(&Message<'_>, &mut [u8]) -> Answer<usize>,
    ) -> io::Result<()> {
        let device = device.as_raw_fd();
        self.register(device)?;
        while self.receive()? {
            self.respond(&answer);
            let commit = self.command(device, COMMIT_AND_FETCH, self.header.entry.commit_id);
            self.submit(&commit.build());
        }
        Ok(())
    }

    fn respond(&mut self, answer: impl Fn(&Message<'_>, &mut [u8]) -> Answer<usize>) {
        let message = Message {
            header: self.header.input(),
            fields: &self.header.fields,
            payload: self.header.entry.payload_bytes as usize,
        };
        // SAFETY: the module's invariant: the memory is ours until the answer is committed.
        let payload = unsafe { self.payload.bytes() };
        let (error, bytes) = match answer(&message, payload) {
            Ok(bytes) => (0, bytes),
            Err(refused) => (-refused.0.code(), 0),
        };
        let unique = message.header.unique;
        self.header.set_output(&OutHeader { len: 0, error, unique });
        self.header.entry.payload_bytes = u32::try_from(bytes).expect("at most 1 MiB");
    }

    /// Tells the kernel of the buffer and asks for the first request.
    fn register(&mut self, device: RawFd) -> io::Result<()> {
        let pieces = [
            libc::iovec {
                iov_base: ptr::from_mut(&mut *self.header).cast(),
                iov_len: size_of::<RequestHeader>(),
            },
            libc::iovec { iov_base: self.payload.0, iov_len: Payload::BYTES },
        ];
        let command = self.command(device, REGISTER, 0).addr(Some(pieces.as_ptr() as u64));
        let mut entry = command.build();
        // SAFETY: a submission is 128 bytes without padding, this field 4 of them. The library
        // has no name for it here.
        unsafe {
            ptr::from_mut(&mut entry)
                .cast::<u8>()
                .add(SUBMISSION_LEN)
                .cast::<u32>()
                .write_unaligned(u32::try_from(pieces.len()).expect("two"));
        }
        self.submit(&entry);
        // The kernel copies the list of pieces while it takes the submission.
        self.ring.0.submit().map(drop)
    }

    /// Waits for a request; `false` if the mount is gone.
    fn receive(&mut self) -> io::Result<bool> {
        loop {
            match self.ring.0.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            let Some(completion) = self.ring.0.completion().next() else { continue };
            return match -completion.result() {
                0 => Ok(true),
                libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED | libc::ENODEV => Ok(false),
                errno => Err(io::Error::from_raw_os_error(errno)),
            };
        }
    }

    fn command(&self, device: RawFd, operation: u32, commit_id: u64) -> opcode::UringCmd80 {
        let command = Command { flags: 0, commit_id, queue: self.queue, padding: [0; 3] };
        let mut bytes = [0; 80];
        bytes[..size_of::<Command>()].copy_from_slice(command.as_bytes());
        opcode::UringCmd80::new(types::Fd(device), operation).cmd(bytes)
    }

    fn submit(&mut self, entry: &Entry128) {
        // SAFETY: what the entry points to lives as long as the exchange, or until `register` has
        // submitted it.
        let pushed = unsafe { self.ring.0.submission().push(entry) };
        pushed.expect("one entry at a time in a queue of two");
    }
}

impl Payload {
    const BYTES: usize = REQUEST_MAX as usize;

    fn new() -> io::Result<Self> {
        let (access, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new anonymous mapping.
        let at = unsafe { libc::mmap(ptr::null_mut(), Self::BYTES, access, kind, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(at))
    }

    /// # Safety
    /// Neither the kernel nor another borrow uses the memory.
    unsafe fn bytes<'a>(&self) -> &'a mut [u8] {
        // SAFETY: mapped, as large, zeroed at first, and the caller's alone.
        unsafe { std::slice::from_raw_parts_mut(self.0.cast(), Self::BYTES) }
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nobody borrows it any more.
        unsafe { libc::munmap(self.0, Self::BYTES) };
    }
}
