//! What tests do at the steps of their thread: fail them, stop after them, look at them.

use std::cell::RefCell;
use std::os::fd::AsFd;

use rustix::io::Errno;

use crate::error::Result;
use crate::namespace::stat_descriptor;

/// What is done at each step.
pub(in crate::tier) trait Watch {
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
pub(in crate::tier) struct Killed(pub(in crate::tier) &'static str);

thread_local! {
    static WATCH: RefCell<Option<Box<dyn Watch>>> = const { RefCell::new(None) };
}

/// Watches the steps of this thread from now on, or no more.
pub(in crate::tier) fn set(watch: Option<Box<dyn Watch>>) {
    WATCH.set(watch);
}

fn with<T>(act: impl FnOnce(&mut Box<dyn Watch>) -> T) -> Option<T> {
    WATCH.with_borrow_mut(|watch| watch.as_mut().map(act))
}

pub(super) fn before(tier: usize, what: &'static str) -> Result<()> {
    with(|watch| watch.before(tier, what)).flatten().map_or(Ok(()), |errno| Err(errno.into()))
}

pub(super) fn after(tier: usize, what: &'static str) {
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
