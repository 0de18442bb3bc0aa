//! Kernel passthrough of origin files that are wholly in the page cache (ours).
//!
//! A file that was read a moment ago is in the page cache below us. Reading it again costs neither side a request but
//! takes twice the time through us, so the kernel is asked to serve such a file by itself to programs that open it
//! for reading.
//!
//! What must hold while [`read_below`](CachedFile::read_below) is set, because programs then see the origin without
//! us (I1): the origin has the newest bytes, and all writes go there.
//! - It is set when the file is not open for writing, no handle is served by us, and nothing is dirty.
//! - An open for writing that finds it set first drops what the cache has of the file: stores to a mapping reach the
//!   origin unseen. Writes through that handle come to us and are not admitted.
//! - It is cleared when no one else has the origin's file open: mappings outlive handles.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use bon::Builder;
use parking_lot::Mutex;

use super::open_file::OpenFile;
use crate::extent::file::{CachedFile, WHOLE};
use crate::extent::store::ExtentStore;
use crate::known_files::KnownFiles;
use crate::mappings::Mappings;
use crate::origin_access::OriginAccess;
use crate::status_notes::Notes;
use halocline_api::config::Config;
use halocline_os::error::Result;
use halocline_os::kernel_passthrough;
use halocline_os::write_lease::is_exclusive;
use halocline_storage::volume::origin::OriginFile;

/// One page in this many may be missing from memory.
const MISSING_SHARE: u64 = 64;

/// Whether the configuration enables it, and the kernel can read the origin as we do: a plain one, without emulated
/// devices.
pub(crate) fn is_wanted(config: &Config, origin: &OriginAccess) -> bool {
    let plain = !origin.data.is_striped();
    config.warm_passthrough && plain && config.emulate.is_none() && !config.direct
}

/// State of passthrough.
#[derive(Debug, Builder)]
pub(crate) struct PageCachePassthrough {
    store: Arc<ExtentStore>,
    notes: Arc<Notes>,
    origin: Arc<OriginAccess>,
    known: Arc<KnownFiles>,
    mappings: Arc<Mappings>,
    wanted: AtomicBool,
    #[builder(skip)]
    opens: AtomicU64,
    /// Files that are not open, but may still be mapped.
    #[builder(skip)]
    mapped: Mutex<VecDeque<Weak<CachedFile>>>,
}

impl PageCachePassthrough {
    /// Whether files are offered to the kernel.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Handles whose reads the kernel serves or served.
    pub(crate) fn opens(&self) -> u64 {
        self.opens.load(Ordering::Relaxed)
    }
}

impl PageCachePassthrough {
    /// Hands an open file to the kernel if that pays; see `Engine::pass_through`.
    pub(crate) fn pass_through(
        &self,
        handle: &OpenFile,
        must: bool,
        register: &mut dyn FnMut(BorrowedFd<'_>) -> io::Result<()>,
    ) -> bool {
        let file = &handle.file;
        let reads = !handle.writable && !handle.is_direct();
        let mut take = || register(handle.origin.namespace_file().as_fd());
        let taken = if must || file.read_below.load(Ordering::Acquire) {
            take()
        } else if reads
            && file.size() >= kernel_passthrough::SMALL_BYTES
            && is_in_memory(handle.origin.namespace_file())
            && let Some(_range) = self.with_readers_only(file)
        {
            take().inspect(|()| file.read_below.store(true, Ordering::Release))
        } else {
            return false;
        };
        if let Err(error) = taken {
            if self.wanted.swap(false, Ordering::Relaxed) {
                self.notes.note(format!(
                    "warm_passthrough is off: {}",
                    kernel_passthrough::explain(&error)
                ));
            }
            return false;
        }
        if reads {
            handle.reads_below.store(true, Ordering::Release);
            self.opens.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    /// Locks all of a file if nothing of it is dirty and it is not open for writing.
    fn with_readers_only<'a>(&self, file: &'a CachedFile) -> Option<impl Sized + use<'a>> {
        let range = file.range.exclusive(WHOLE);
        let dirty = |id| !self.store.dmt.index().dirty(id, WHOLE, 1).is_empty();
        let only = file.writers.load(Ordering::Acquire) == 0 && !file.id().is_some_and(dirty);
        only.then_some(range)
    }

    /// A handle was opened, perhaps on a file that is read without us.
    pub(crate) fn opened(&self, handle: &OpenFile) -> Result<()> {
        let file = &handle.file;
        if !file.read_below.load(Ordering::Acquire) {
            return Ok(());
        }
        let _range = file.range.exclusive(WHOLE);
        if is_exclusive(handle.origin.namespace_file()) {
            file.read_below.store(false, Ordering::Release);
            return Ok(());
        }
        match file.id() {
            Some(id) if handle.writable => self.mappings.unmap(id, WHOLE),
            _ => Ok(()),
        }
    }

    /// The last handle of a file was closed; `origin` is still open.
    pub(crate) fn closed(&self, file: &Arc<CachedFile>, origin: &OriginFile) {
        if !file.read_below.load(Ordering::Acquire) {
            return;
        }
        if !end_read_below(file, Some(origin)) {
            self.mapped.lock().push_back(Arc::downgrade(file));
        }
        // A file that was mapped when it was closed may be unmapped by now.
        let other = self.mapped.lock().pop_front().and_then(|file| file.upgrade());
        let Some(other) = other.filter(|other| !Arc::ptr_eq(other, file)) else { return };
        let vnode = other.vnode.read().clone();
        let origin = self.origin.open(&vnode, libc::O_RDONLY).ok();
        if end_read_below(&other, origin.as_ref()) {
            self.known.forget_idle(&other);
        } else {
            self.mapped.lock().push_back(Arc::downgrade(&other));
        }
    }
}

/// Clears `read_below` of a file that is neither open nor mapped, or cannot be opened again.
fn end_read_below(file: &CachedFile, origin: Option<&OriginFile>) -> bool {
    let _range = file.range.exclusive(WHOLE);
    let free = file.opens.load(Ordering::Acquire) == 0
        && (file.unlinked.load(Ordering::Acquire)
            || origin.is_some_and(|origin| is_exclusive(origin.namespace_file())));
    if free {
        file.read_below.store(false, Ordering::Release);
    }
    free
}

/// `cachestat(2)`: range asked for, in bytes; a length of 0 reaches to the end.
#[repr(C)]
struct CachestatRange {
    offset: u64,
    length: u64,
}

/// `cachestat(2)`: the answer, in pages.
#[repr(C)]
#[derive(Default)]
struct Cachestat {
    cached: u64,
    dirty: u64,
    under_writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// The same number on every architecture.
const SYS_CACHESTAT: libc::c_long = 451;

/// Whether the page cache holds nearly all of `file`. `false` before Linux 6.5.
fn is_in_memory(file: &File) -> bool {
    let Ok(size) = file.metadata().map(|found| found.len()) else { return false };
    let pages = size.div_ceil(rustix::param::page_size() as u64);
    let range = CachestatRange { offset: 0, length: 0 };
    let mut found = Cachestat::default();
    // SAFETY: both point to structures of the layout that the kernel expects, alive for the call.
    let done = unsafe {
        libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut found, 0)
    };
    done == 0 && found.cached + pages / MISSING_SHARE >= pages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_in_memory_until_it_is_dropped_from_there() {
        use std::io::Write;

        // Not in /tmp, which may be memory.
        let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(&vec![1; 1 << 20]).unwrap();
        assert!(is_in_memory(file.as_file()));
        file.as_file().sync_all().unwrap();
        rustix::fs::fadvise(file.as_file(), 0, None, rustix::fs::Advice::DontNeed).unwrap();
        assert!(!is_in_memory(file.as_file()));
    }
}
