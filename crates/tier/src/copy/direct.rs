//! Copying past the page cache of the destination tier.
//!
//! Pages of the source go through pipes to the device, with several requests at a time: the processor copies nothing,
//! and bytes that nobody will use soon push nothing out of memory. What must hold: only whole blocks are copied in this
//! way, into space that was allocated (so that file systems write in parallel).

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{Errno, retry_on_intr};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

use halocline_vfs::namespace::proc_path;

/// Offsets and lengths are multiples of this: a page, and a block of every common device.
pub(super) const BLOCK: u64 = 4096;
/// Fewer consecutive bytes are not worth the preparations.
pub(super) const BYTES_MIN: u64 = 1 << 20;
/// Bytes of one request: as many as a pipe may hold without privileges.
const REQUEST: u64 = 1 << 20;
/// The number of simultaneous requests: they keep a fast SSD busy.
const REQUESTS: usize = 4;

/// A way from one file to another past the page cache of the second one.
#[derive(Debug)]
pub(super) struct Direct<'a> {
    from: &'a File,
    to: File,
    /// One for each request, through which its pages pass.
    pipes: Vec<(OwnedFd, OwnedFd)>,
}

impl<'a> Direct<'a> {
    /// # Errors
    /// `EINVAL` if the file system of `to` has no such way.
    pub(super) fn between(from: &'a File, to: &File) -> rustix::io::Result<Self> {
        let flags = OFlags::WRONLY | OFlags::DIRECT | OFlags::CLOEXEC;
        let to = File::from(openat(CWD, proc_path(to), flags, Mode::empty())?);
        let pipe = |_| {
            let pipe = pipe_with(PipeFlags::CLOEXEC)?;
            // If that is refused, requests are smaller.
            let _ = fcntl_setpipe_size(&pipe.1, usize::try_from(REQUEST).expect("1 MiB"));
            Ok(pipe)
        };
        Ok(Self { from, to, pipes: (0..REQUESTS).map(pipe).collect::<rustix::io::Result<_>>()? })
    }

    /// Copies `len` bytes at `at`, both multiples of [`BLOCK`].
    ///
    /// # Errors
    /// Errors of reading or writing; `ENODATA` if the source ends before that. The bytes are then undefined, and the
    /// pipes can no longer be used.
    pub(super) fn copy(&self, at: u64, len: u64) -> rustix::io::Result<()> {
        assert!(at.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK), "whole blocks only");
        let (next, end) = (AtomicU64::new(at), at + len);
        let some = |pipe| loop {
            let at = next.fetch_add(REQUEST, Ordering::Relaxed);
            if at >= end {
                return Ok(());
            }
            self.through(pipe, at, end.min(at + REQUEST))?;
        };
        let (own, others) = self.pipes.split_first().expect("there are several");
        thread::scope(|scope| {
            // Continues without threads that cannot be started. The others inherit our priorities.
            let help = |pipe| thread::Builder::new().spawn_scoped(scope, move || some(pipe)).ok();
            let needed = usize::try_from(len.div_ceil(REQUEST)).unwrap_or(REQUESTS);
            let helpers: Vec<_> = others.iter().take(needed - 1).filter_map(help).collect();
            let done = some(own);
            let helped = helpers.into_iter().map(|helper| helper.join().expect("no panics there"));
            helped.fold(done, Result::and)
        })
    }

    fn through(
        &self,
        (out, into): &(OwnedFd, OwnedFd),
        mut at: u64,
        end: u64,
    ) -> rustix::io::Result<()> {
        let moved = SpliceFlags::empty();
        let (mut from, mut to) = (at, at);
        while at < end {
            let len = usize::try_from(end - at).expect("a request is small");
            let read =
                retry_on_intr(|| splice(self.from, Some(&mut from), into, None, len, moved))?;
            if read == 0 {
                return Err(Errno::NODATA);
            }
            at += read as u64;
            while to < at {
                let len = usize::try_from(at - to).expect("a request is small");
                retry_on_intr(|| splice(out, None, &self.to, Some(&mut to), len, moved))?;
            }
        }
        Ok(())
    }
}
