//! A file mapped into memory: a store needs no system call, and survives a kill just as well, because the pages belong
//! to the kernel.
//!
//! What must hold here: if a device fails, or others cut a file short, [`Mapping::store`] and the like fail, but not
//! the process (D11). The kernel reports this with `SIGBUS` at the access itself; the handler replaces the lost page by
//! a page of memory, and the access continues there.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst, compiler_fence};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use rustix::param::page_size;

/// The first bytes of a file, mapped.
#[derive(Debug)]
pub(super) struct Mapping {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: the pages belong to the mapping alone. Bytes are written through `&mut` only; through `&`, words are read and
// written atomically.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// Addresses that a thread is accessing, and whether their page was lost meanwhile.
#[derive(Clone, Copy)]
struct GuardedAccess {
    start: usize,
    end: usize,
    lost: bool,
}

impl GuardedAccess {
    const NOWHERE: Self = Self { start: 0, end: 0, lost: false };
}

thread_local! {
    static GUARDED: Cell<GuardedAccess> = const { Cell::new(GuardedAccess::NOWHERE) };
}

/// The action for `SIGBUS` before ours.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

impl Mapping {
    /// Maps the first `len` bytes of `file`.
    pub(super) fn new(file: &File, len: usize) -> io::Result<Self> {
        install_bus_error_handler()?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing.
        let at = unsafe { mmap(ptr::null_mut(), len, protection, flags, file, 0) }?;
        let at = NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { at, len })
    }

    /// The same without a file: its contents end with the process.
    pub(super) fn anonymous(len: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing.
        let at = unsafe { mmap_anonymous(ptr::null_mut(), len, protection, flags) }?;
        let at = NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { at, len })
    }

    /// Writes `bytes` at `offset`. After an error any of them may have been written.
    pub(super) fn store(&mut self, offset: usize, bytes: &[u8]) -> io::Result<()> {
        self.guarded(offset..offset + bytes.len(), |to| {
            // SAFETY: the bytes lie in the mapping, which nothing else refers to.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
        })
    }

    /// Writes words of 8 bytes at `offset`, a multiple of 8, each atomically. After an error any of them may have been
    /// written.
    pub(super) fn store_words(&self, offset: usize, words: &[u64]) -> io::Result<()> {
        self.guarded(offset..offset + size_of_val(words), |to| {
            for (word, at) in words.iter().zip(words_at(to)) {
                at.store(*word, Relaxed);
            }
        })
    }

    /// Reads words of 8 bytes at `offset`, a multiple of 8. After an error they are undefined.
    pub(super) fn load_words(&self, offset: usize, words: &mut [u64]) -> io::Result<()> {
        self.guarded(offset..offset + size_of_val(words), |from| {
            for (word, at) in words.iter_mut().zip(words_at(from)) {
                *word = at.load(Relaxed);
            }
        })
    }

    /// Calls `access` with the address of `bytes` of the mapping.
    fn guarded(&self, bytes: Range<usize>, access: impl FnOnce(*mut u8)) -> io::Result<()> {
        let Range { start, end } = bytes;
        assert!(start <= end && end <= self.len, "an access beside the mapping");
        let first = self.at.as_ptr() as usize;
        GUARDED.set(GuardedAccess { start: first + start, end: first + end, lost: false });
        compiler_fence(SeqCst);
        access(self.at.as_ptr().wrapping_add(start));
        compiler_fence(SeqCst);
        let lost = GUARDED.replace(GuardedAccess::NOWHERE).lost;
        if lost {
            Err(io::Error::other(
                "a page of it cannot be used: there is no space or quota for it, or its device failed",
            ))
        } else {
            Ok(())
        }
    }
}

/// The words from an address in a mapping on. The caller must not take more than the mapping has.
fn words_at<'a>(at: *mut u8) -> impl Iterator<Item = &'a AtomicU64> {
    #[expect(clippy::cast_ptr_alignment, reason = "asserted in the next line")]
    let first = at.cast::<AtomicU64>();
    assert!(first.is_aligned(), "words lie at multiples of 8");
    // SAFETY: the callers take as many as they were guarded for; these lie in the mapping and are accessed atomically
    // as long as it is shared.
    (0..).map(move |index| unsafe { &*first.wrapping_add(index) })
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is owned by this value, and nothing refers to it any more.
        let unmapped = unsafe { munmap(self.at.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "a mapping can be unmapped");
    }
}

/// Installs [`on_bus_error`], once in a process.
fn install_bus_error_handler() -> io::Result<()> {
    static INSTALLED: OnceLock<Option<i32>> = OnceLock::new();
    let failed = INSTALLED.get_or_init(|| {
        // SAFETY: all zeros are a valid `sigaction`, and both calls get valid ones. The handler is async-signal-safe:
        // it reads and sets plain memory and makes system calls.
        let done = unsafe {
            let mut before: libc::sigaction = std::mem::zeroed();
            let mut ours: libc::sigaction = std::mem::zeroed();
            let known = libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut before);
            BEFORE.get_or_init(|| before);
            ours.sa_sigaction = on_bus_error as *const () as usize;
            ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            known | libc::sigaction(libc::SIGBUS, &raw const ours, ptr::null_mut())
        };
        (done != 0).then(|| io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL))
    });
    failed.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
}

/// Replaces a page of ours that cannot be accessed by memory.
extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel passes a valid description of the signal.
    let (at, code) = unsafe { ((*info).si_addr() as usize, (*info).si_code) };
    let guarded_access = GUARDED.get();
    let page = page_size();
    // The processor may report only the page.
    let touched = guarded_access.start & !(page - 1)..guarded_access.end;
    if code > 0 && touched.contains(&at) {
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED);
        let lost = ptr::without_provenance_mut(at & !(page - 1));
        // SAFETY: the page lies in a mapping that this thread uses, where others use it with
        // guarded accesses only.
        if unsafe { mmap_anonymous(lost, page, protection, flags) }.is_ok() {
            GUARDED.set(GuardedAccess { lost: true, ..guarded_access });
            return;
        }
    }
    // Not our access: the previous handler gets the signal, at the same instruction or raised again.
    if let Some(before) = BEFORE.get() {
        // SAFETY: this is the action that the kernel returned before.
        unsafe { libc::sigaction(signal, before, ptr::null_mut()) };
    }
    if code <= 0 {
        // SAFETY: raising a signal touches no memory.
        unsafe { libc::raise(signal) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn what_is_stored_is_in_the_file() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        let mut mapping = Mapping::new(&file, 8192).unwrap();
        mapping.store(4090, b"over a page's end").unwrap();
        let mut found = [0; 17];
        file.read_exact_at(&mut found, 4090).unwrap();
        assert_eq!(&found, b"over a page's end");
    }

    #[test]
    fn d11_a_page_that_is_lost_is_an_error_and_no_end() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        let mut mapping = Mapping::new(&file, 8192).unwrap();
        mapping.store(0, b"here").unwrap();
        file.set_len(4096).unwrap();
        mapping.store(0, b"here").unwrap();
        mapping.store(5000, b"not here").unwrap_err();
        file.set_len(0).unwrap();
        mapping.store(0, b"nor here").unwrap_err();
        let other = tempfile::tempfile().unwrap();
        other.set_len(4096).unwrap();
        Mapping::new(&other, 4096).unwrap().store(0, b"elsewhere").unwrap();
    }
}
