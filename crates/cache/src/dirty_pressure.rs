//! How much of the cache dirty bytes fill, and whether flushing takes precedence over programs.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use super::settings::Settings;
use crate::extent::flush_handle::FlushHandles;
use crate::extent::store::ExtentStore;

/// Decides whether flushing takes precedence over programs.
#[derive(Debug)]
pub(crate) struct DirtyPressure {
    store: Arc<ExtentStore>,
    flush_handles: Arc<FlushHandles>,
    settings: Arc<Settings>,
    /// When a program last wrote to the cache, in nanoseconds since the epoch.
    written_ns: AtomicI64,
    /// Dirty bytes that no flush can make clean.
    stuck: AtomicU64,
}

impl DirtyPressure {
    /// The pressure on a cache and the files that can be flushed.
    pub(crate) fn new(
        store: &Arc<ExtentStore>,
        flush_handles: &Arc<FlushHandles>,
        settings: &Arc<Settings>,
    ) -> Self {
        let (store, flush_handles) = (Arc::clone(store), Arc::clone(flush_handles));
        let (settings, written_ns) = (Arc::clone(settings), AtomicI64::new(0));
        Self { store, flush_handles, settings, written_ns, stuck: AtomicU64::new(0) }
    }

    /// Share of the cache that dirty bytes fill, 0 to 1.
    pub(crate) fn share(&self) -> f32 {
        let limit = self.store.dmt.space().limit().max(1);
        #[expect(clippy::cast_precision_loss, reason = "a share, not an amount")]
        let share = self.store.dmt.index().usage().dirty as f32 / limit as f32;
        share.min(1.0)
    }

    /// Whether flushing takes precedence over programs: there are too many dirty bytes or files.
    pub(crate) fn is_pressed(&self) -> bool {
        self.is_short_of_room() || self.flush_handles.press()
    }

    /// Whether dirty bytes fill more of the cache than they may.
    pub(crate) fn is_short_of_room(&self) -> bool {
        self.flushable_bytes() > self.dirty_high_bytes()
    }

    /// How many dirty bytes a flush for room must make clean.
    pub(crate) fn too_dirty_bytes(&self) -> u64 {
        self.flushable_bytes().saturating_sub(self.dirty_low_bytes())
    }

    /// Dirty bytes that a flush can make clean, as far as is known.
    pub(crate) fn flushable_bytes(&self) -> u64 {
        self.store.dmt.index().usage().dirty.saturating_sub(self.stuck.load(Ordering::Relaxed))
    }

    /// Sets how many dirty bytes no flush can make clean: they press nobody.
    pub(crate) fn set_stuck(&self, bytes: u64) {
        self.stuck.store(bytes, Ordering::Relaxed);
    }

    /// A flush for room ends at this many dirty bytes.
    fn dirty_low_bytes(&self) -> u64 {
        self.dirty_high_bytes() / 2
    }

    /// Dirty bytes above which flushing no longer yields to programs.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a threshold needs no exact bytes"
    )]
    pub(crate) fn dirty_high_bytes(&self) -> u64 {
        (self.store.dmt.space().limit() as f64 * self.settings.config.dirty_high / 100.0) as u64
    }

    /// A program wrote to the cache at `now_ns`.
    pub(crate) fn note_write(&self, now_ns: i64) {
        self.written_ns.store(now_ns, Ordering::Relaxed);
    }

    /// When a program last wrote to the cache, in nanoseconds since the epoch.
    pub(crate) fn written_ns(&self) -> i64 {
        self.written_ns.load(Ordering::Relaxed)
    }
}
