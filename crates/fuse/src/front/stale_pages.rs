//! Direct writes concurrent with reads through the kernel's page cache.
//!
//! A direct write bypasses the pages that the kernel caches of the file. The kernel drops those in its range before it
//! sends the write, and again when it is done, but not if the program does not wait for it (`io_submit`, `io_uring`). A
//! page read from us in between has old bytes, and stays.
//!
//! What must hold: a direct write is answered when no page of its range has older bytes (I1). While a file has direct
//! handles, we note whether pages of it were read; if so, until the last of those handles is closed, the kernel is told
//! to drop the pages that a direct write changed.
//!
//! Where other nodes change the file, too, it is also told to drop the pages of what they are about to change
//! ([`halocline_vfs::engine::DropPages`]).
//!
//! The kernel does that once it has the answers to all reads of these pages in progress. All of our threads may be
//! writing at that moment, so that none would answer them: the kernel is told by a separate thread, for which a write
//! waits no longer than [`WAIT_LIMIT`].

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use fuser::{INodeNo, Notifier};
use halocline_os::catch_panic::catch_panic;

/// How long a write waits at most. It waits that long only if all threads wait, and then its pages are dropped as soon
/// as one is free again.
const WAIT_LIMIT: Duration = Duration::from_millis(500);

/// State of one file.
#[derive(Debug, Default)]
pub(super) struct Pages {
    /// Number of open handles that bypass the page cache.
    direct: AtomicU32,
    /// Whether the kernel may have read pages since the first such handle was opened.
    read: AtomicBool,
}

impl Pages {
    /// A direct handle was opened.
    pub(super) fn opened_direct(&self) {
        self.direct.fetch_add(1, SeqCst);
    }

    /// A direct handle was closed: its writes are done.
    pub(super) fn closed_direct(&self) {
        if self.direct.fetch_sub(1, SeqCst) == 1 {
            self.read.store(false, SeqCst);
        }
    }

    /// Pages are about to be read.
    pub(super) fn reading(&self) {
        if self.direct.load(SeqCst) > 0 && !self.read.load(SeqCst) {
            self.read.store(true, SeqCst);
        }
    }

    /// Whether pages may be older than what was just written.
    fn may_be_stale(&self) -> bool {
        self.read.load(SeqCst)
    }
}

/// A part of a file whose pages are to be dropped.
#[derive(Debug)]
struct Part {
    number: u64,
    offset: u64,
    len: u64,
    gone: SyncSender<()>,
}

/// Makes the kernel drop pages and attributes.
#[derive(Debug, Default)]
pub(crate) struct StalePages(OnceLock<(Sender<Part>, Notifier)>);

impl StalePages {
    /// Starts the thread, before the mount is used. It ends with the front end.
    pub(crate) fn start(&self, notifier: Notifier) -> std::io::Result<()> {
        let (parts, asked) = channel();
        let own = notifier.clone();
        Builder::new().name("stale-pages".into()).spawn(move || drop_pages(&own, &asked))?;
        assert!(self.0.set((parts, notifier)).is_ok(), "a mount begins once");
        Ok(())
    }

    /// After a direct write of `len` bytes at `offset`.
    pub(super) fn written(&self, number: u64, pages: &Pages, offset: u64, len: u64) {
        self.drop_part((number, pages), (offset, len));
    }

    /// Drops pages of `len` bytes at `offset`, if there may be any.
    pub(super) fn drop_part(&self, (number, pages): (u64, &Pages), (offset, len): (u64, u64)) {
        if !pages.may_be_stale() {
            return;
        }
        let Some((parts, _)) = self.0.get() else { return };
        let (gone, done) = sync_channel(1);
        if parts.send(Part { number, offset, len, gone }).is_ok() {
            let waited = done.recv_timeout(WAIT_LIMIT);
            if waited.is_err() {
                tracing::debug!(number, "pages that became old are still in use");
            }
        }
    }

    /// Makes the kernel drop its cached attributes of an inode. Does not wait.
    pub(super) fn forget_attributes(&self, number: u64) {
        if let Some((_, notifier)) = self.0.get() {
            // A kernel that does not know the inode caches nothing of it.
            let _unknown = notifier.inval_inode(INodeNo(number), -1, 0);
        }
    }
}

fn drop_pages(notifier: &Notifier, asked: &Receiver<Part>) {
    for Part { number, offset, len, gone } in asked {
        let dropped = catch_panic(|| {
            // The kernel takes 0 for all that follows.
            let len =
                i64::try_from(len).ok().filter(|len| len.checked_add_unsigned(offset).is_some());
            notifier.inval_inode(INodeNo(number), offset.cast_signed(), len.unwrap_or(0))
        });
        if let Err(error) = dropped {
            // The kernel has forgotten the inode and its pages, or the mount is gone.
            tracing::debug!(number, %error, "pages were not dropped");
        }
        let _nobody_waits = gone.send(());
    }
}
