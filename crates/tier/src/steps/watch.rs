//! What tests do at the steps of their thread: fail them, stop after them, look at them.

use std::cell::RefCell;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;

use halocline_os::error::Result;
use halocline_vfs::namespace::stat_descriptor;

/// What is done at each step.
pub(crate) trait Watch {
    /// Before a step of a tier; an errno fails it.
    fn before(&mut self, _tier: usize, _what: &'static str) -> Option<Errno> {
        None
    }

    /// After a step that succeeded; `true` kills the mount.
    fn after(&mut self, _tier: usize, _what: &'static str) -> bool {
        false
    }

    /// The inode with this number was made durable.
    fn synced(&mut self, _inode: u64) {}

    /// A tier was made durable.
    fn synced_all(&mut self, _tier: usize) {}
}

/// What a killed mount unwinds with: the step it had done.
pub(crate) struct Killed(pub(crate) &'static str);

thread_local! {
    static WATCH: RefCell<Option<Box<dyn Watch>>> = const { RefCell::new(None) };
    static KILL: RefCell<Option<KillAll>> = const { RefCell::new(None) };
}

/// Watches the steps of this thread from now on, or no more.
pub(crate) fn set(watch: Option<Box<dyn Watch>>) {
    WATCH.set(watch);
}

/// Kills a mount after some more steps of several threads: each stops at its next.
#[derive(Debug, Clone)]
pub(crate) struct KillAll(Arc<AtomicIsize>);

impl KillAll {
    pub(crate) fn after(steps: isize) -> Self {
        Self(Arc::new(AtomicIsize::new(steps)))
    }

    /// Concerns this thread, and those that it starts to do its work.
    pub(crate) fn begin(&self) {
        KILL.set(Some(self.clone()));
    }

    /// Steps that were left.
    pub(crate) fn end(self) -> isize {
        KILL.set(None);
        self.0.load(Ordering::Relaxed)
    }
}

fn is_killed(by: isize) -> bool {
    KILL.with_borrow(|kill| {
        kill.as_ref().is_some_and(|kill| kill.0.fetch_sub(by, Ordering::Relaxed) - by < 0)
    })
}

/// What threads of one change share.
pub(crate) struct Inherited(Option<KillAll>);

impl Inherited {
    /// For the thread that calls.
    pub(crate) fn take(&self) {
        KILL.set(self.0.clone());
    }
}

/// `None` where the steps of this thread are watched one by one: it does all work by itself.
pub(crate) fn inherit() -> Option<Inherited> {
    let watched = WATCH.with_borrow(Option::is_some);
    (!watched).then(|| Inherited(KILL.with_borrow(Clone::clone)))
}

fn with<T>(act: impl FnOnce(&mut Box<dyn Watch>) -> T) -> Option<T> {
    WATCH.with_borrow_mut(|watch| watch.as_mut().map(act))
}

/// What is free on a tier: what a test says, so that no machine's own disk decides.
#[derive(Debug)]
pub(crate) struct Room(Mutex<Option<u64>>);

impl Room {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// The file system has so many bytes from now on, all of them free.
    pub(crate) fn set(&self, bytes: u64) {
        *self.0.lock() = Some(bytes);
    }

    pub(crate) fn shown(&self, mut totals: libc::statvfs64) -> libc::statvfs64 {
        if let Some(bytes) = *self.0.lock() {
            let blocks = bytes / totals.f_frsize.max(1);
            (totals.f_blocks, totals.f_bfree, totals.f_bavail) = (blocks, blocks, blocks);
        }
        totals
    }
}

pub(super) fn before(tier: usize, what: &'static str) -> Result<()> {
    if is_killed(0) {
        std::panic::resume_unwind(Box::new(Killed(what)));
    }
    with(|watch| watch.before(tier, what)).flatten().map_or(Ok(()), |errno| Err(errno.into()))
}

pub(super) fn after(tier: usize, what: &'static str) {
    if is_killed(1) {
        std::panic::resume_unwind(Box::new(Killed(what)));
    }
    if with(|watch| watch.after(tier, what)) == Some(true) {
        set(None);
        std::panic::resume_unwind(Box::new(Killed(what)));
    }
}

pub(super) fn synced(fd: &impl AsFd) {
    with(|watch| watch.synced(stat_descriptor(fd).expect("an open file").raw.st_ino));
}

pub(super) fn synced_all(tier: usize) {
    with(|watch| watch.synced_all(tier));
}
