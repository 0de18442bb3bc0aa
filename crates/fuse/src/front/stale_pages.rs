//! Direct writes beside reads through the kernel's page cache.
//!
//! A direct write goes past the pages that the kernel keeps of the file. The kernel drops those in its
//! range before it sends the write, and again when it is done, but not where the program does not wait
//! for it (`io_submit`, `io_uring`). A page that was read from us in between has old bytes, and stays.
//!
//! What must hold: a direct write is answered when no page of its range has older bytes (I1). While a
//! file has direct handles it is noted that pages of it were read; from then on, until the last of those
//! handles is closed, the kernel is told to drop the pages that a direct write changed.
//!
//! The kernel does that when it has the answer to every read of these pages that is under way. All our
//! threads may be writing just now, so that nobody answers it: the kernel is told by a thread of its
//! own, for which a write waits no longer than [`WAIT_LIMIT`].

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use fuser::{INodeNo, Notifier};
use halocline_os::catch_panic::unpanicked;

/// How long a write waits at most. Only if all threads wait does it last so long, and then its pages are dropped as
/// soon as one is free again.
const WAIT_LIMIT: Duration = Duration::from_millis(500);

/// What is known of one file.
#[derive(Debug, Default)]
pub(super) struct Pages {
    /// Open handles past the page cache.
    direct: AtomicU32,
    /// Whether the kernel may have read pages since the first of them was opened.
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

/// A part of a file whose pages are to go.
#[derive(Debug)]
struct Part {
    number: u64,
    offset: u64,
    len: u64,
    gone: SyncSender<()>,
}

/// Has the kernel drop pages, and attributes.
#[derive(Debug, Default)]
pub(crate) struct Dropper(OnceLock<(Sender<Part>, Notifier)>);

impl Dropper {
    /// Begins, before anybody uses the mount. The thread ends with the front end.
    pub(crate) fn start(&self, notifier: Notifier) -> std::io::Result<()> {
        let (parts, asked) = channel();
        let own = notifier.clone();
        Builder::new().name("stale-pages".into()).spawn(move || drop_pages(&own, &asked))?;
        assert!(self.0.set((parts, notifier)).is_ok(), "a mount begins once");
        Ok(())
    }

    /// After a direct write of `len` bytes at `offset`.
    pub(super) fn written(&self, number: u64, pages: &Pages, offset: u64, len: u64) {
        if !pages.may_be_stale() {
            return;
        }
        let Some((parts, _)) = self.0.get() else { return };
        let (gone, done) = sync_channel(1);
        if parts.send(Part { number, offset, len, gone }).is_ok() {
            let waited = done.recv_timeout(WAIT_LIMIT);
            if waited.is_err() {
                tracing::debug!(number, "pages that a direct write made old are still in use");
            }
        }
    }

    /// Has the kernel drop the attributes that it keeps of an inode. Does not wait.
    pub(super) fn forget_attributes(&self, number: u64) {
        if let Some((_, notifier)) = self.0.get() {
            // A kernel that does not know the inode keeps nothing of it.
            let _unknown = notifier.inval_inode(INodeNo(number), -1, 0);
        }
    }
}

fn drop_pages(notifier: &Notifier, asked: &Receiver<Part>) {
    for Part { number, offset, len, gone } in asked {
        let dropped = unpanicked(|| {
            notifier.inval_inode(INodeNo(number), offset.cast_signed(), len.cast_signed())
        });
        if let Err(error) = dropped {
            // The kernel has forgotten the inode, and its pages with it; or the mount is gone.
            tracing::debug!(number, %error, "pages were not dropped");
        }
        let _nobody_waits = gone.send(());
    }
}
