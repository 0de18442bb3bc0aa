//! One range of a file that is given up: others get it, or it is dropped because the lease lapsed.
//!
//! What must hold: no permit begins in the range from [`Handover::begin`] until the handover is dropped, so that what
//! is flushed to the origin is all that this node has of it.

use halocline_model::request::ByteRange;
use halocline_model::token::Mode;
use halocline_os::error::Error;

use super::{File, State};

/// A range that is being given up. It opens again even if a panic ends that.
pub(super) struct Handover<'f> {
    file: &'f File,
    range: ByteRange,
}

impl<'f> Handover<'f> {
    /// Lets no more permits begin in a range; `None` if part of it is closed already.
    pub(super) fn begin(file: &'f File, range: ByteRange) -> Option<Self> {
        let pieces = &mut file.state.lock().pieces;
        if pieces.is_closed(range) {
            return None;
        }
        pieces.close(range);
        Some(Self { file, range })
    }

    /// The same if the file is idle: nothing uses it or wants any of it.
    pub(super) fn begin_at_rest(file: &'f File, range: ByteRange) -> Option<Self> {
        let state = &mut *file.state.lock();
        let is_at_rest = state.active.is_empty() && !state.wanted;
        state.pieces.at_rest_since().filter(|_| is_at_rest)?;
        state.pieces.close(range);
        Some(Self { file, range })
    }

    /// Gives the range up, or keeps `keep` of exclusive tokens there. `false` if it must be tried again.
    pub(super) fn give(&self, keep: Option<Mode>) -> bool {
        self.wait_unused() && self.give_unused(keep)
    }

    /// The same for a range that nothing uses.
    pub(super) fn give_unused(&self, keep: Option<Mode>) -> bool {
        self.bring_to_origin(keep.is_some()) && self.tell_given(keep)
    }

    /// Drops the range from the caches, and the tokens for it that the node believes it holds, without a word to the
    /// store. `false` if it must be tried again.
    pub(super) fn drop_unasked(&self) -> bool {
        let dropped = self.wait_unused() && self.bring_to_origin(false);
        if dropped {
            self.file.state.lock().pieces.remove(self.range, None);
        }
        dropped
    }

    /// Waits until no permit is in progress in the range; `false` if that takes too long.
    fn wait_unused(&self) -> bool {
        let Self { file, range } = *self;
        let clock = &file.shared.options.wait_clock;
        let deadline = clock.instant() + file.shared.options.wait_limit;
        let mut state = file.state.lock();
        let is_used = |state: &mut State| state.pieces.is_used(range) && !file.shared.is_stopped();
        clock.wait_while(&file.changed, &mut state, is_used, deadline);
        !state.pieces.is_used(range)
    }

    /// Lets the engine flush the range to the origin and drop it.
    fn bring_to_origin(&self, keeps_clean: bool) -> bool {
        let id = self.file.id;
        let Some(local_cache) = self.file.shared.local_cache.get() else { return true };
        let given = match local_cache.upgrade() {
            Some(local_cache) => local_cache.give_up(id, self.range, keeps_clean),
            // The dirty bytes are still in the cache.
            None if self.is_exclusive() => Err(Error::invalid("the engine has ended", "")),
            None => Ok(()),
        };
        if let Err(error) = &given {
            tracing::warn!(
                "inode {}: cannot bring to the origin what others want: {error}",
                id.inode
            );
        }
        given.is_ok()
    }

    fn is_exclusive(&self) -> bool {
        let all = self.file.all();
        all.iter().any(|(held, mode)| *mode == Mode::Exclusive && held.overlaps(self.range))
    }

    /// Tells the store that the range, which was flushed, is given up.
    fn tell_given(&self, keep: Option<Mode>) -> bool {
        let Self { file, range } = *self;
        let session = file.shared.session;
        let change = file.stored.begin_change();
        // The node drops the token first, whether or not the store gets the change.
        file.state.lock().pieces.remove(range, keep);
        match change.make(|new, epoch| new.give_up(session, range, keep, epoch)) {
            Ok(Some(new)) => {
                file.stored.tell_waiters(&new);
                true
            }
            Ok(None) => true,
            Err(error) => {
                tracing::warn!("inode {}: not told that it was given up: {error}", file.id.inode);
                false
            }
        }
    }
}

impl Drop for Handover<'_> {
    fn drop(&mut self) {
        self.file.state.lock().pieces.open(self.range);
        self.file.changed.notify_all();
    }
}
