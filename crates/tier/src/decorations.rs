//! What stands between a file tier and the machine.

use std::sync::Arc;

use super::watcher::Watcher;
use halocline_os::clock::Clock;

/// What tests and simulations put between a file tier and the machine.
#[derive(Debug, Clone)]
pub struct Decorations {
    /// Is told of all steps.
    pub watcher: Option<Arc<dyn Watcher>>,
    /// The time of the tier.
    pub clock: Clock,
    /// Which moves are done as a batch.
    pub batches: BatchBounds,
    /// Whether threads of the tier do its background work; if not, its opener does, by
    /// [`FileTier::work`](crate::FileTier::work).
    pub own_threads: bool,
}

impl Decorations {
    /// No decorations.
    pub const NONE: Self = Self {
        watcher: None,
        clock: Clock::MACHINE,
        batches: BatchBounds::DEFAULT,
        own_threads: true,
    };
}

/// From which point moving many small files together is cheaper than one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchBounds {
    /// Fewer files are better moved alone, each with syncs of its own: a sync of a whole file system also waits for
    /// the writes of others.
    pub files_min: usize,
    /// The most bytes that the machine may have to write back: a sync of a file system may wait for them.
    pub dirty_bytes_max: u64,
    /// In more directories than these, names are made durable by one sync of their file system instead of
    /// one of each.
    pub directories_max: usize,
}

impl BatchBounds {
    /// The bounds used in production; a disk needs some seconds for this amount of bytes to write back.
    pub const DEFAULT: Self =
        Self { files_min: 4, dirty_bytes_max: 512 << 20, directories_max: 16 };
}
