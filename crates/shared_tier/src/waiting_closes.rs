//! The closes of files that wait to be noted in the store.

use std::time::Instant;

use parking_lot::Mutex;

use crate::inodes::Vnode;

/// The closes that wait; `closes.rs` notes them.
#[derive(Debug, Default)]
pub(crate) struct WaitingCloses {
    pub(crate) waiting: Mutex<Waiting>,
    /// Locked while waiting closes are noted, so that whoever wants them noted waits for those that are under way.
    pub(crate) noting: Mutex<()>,
}

/// Files whose last close waits.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    pub(crate) files: Vec<Vnode>,
    /// When a file was closed last.
    pub(crate) last: Option<Instant>,
    /// Whether a thread will note them.
    pub(crate) has_thread: bool,
}
