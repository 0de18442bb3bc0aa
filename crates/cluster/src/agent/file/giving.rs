//! Gives up what others want of a file.

use halocline_model::request::ByteRange;
use halocline_model::token::Mode;
use halocline_os::error::{Error, Result};

use super::super::cluster_error;
use super::{File, State};
use crate::counters::add;
use crate::store::{Reading, StoreError};

/// The most attempts to give everything up when the session ends.
const TRIES: u32 = 8;
/// Handovers of one file after which other files get their turn.
const TURNS: u32 = 64;

impl File {
    /// Gives up what others want of the file.
    pub(in crate::agent) fn give_what_is_wanted(&self) -> Result<()> {
        let shared = &self.shared;
        for _ in 0..TURNS {
            // A node without a lease deals with its tokens once it has one again.
            shared.own_session.check_lease()?;
            let Reading { tokens, epoch } = shared.store.read(self.id).map_err(cluster_error)?;
            let active = self.state.lock().active.clone();
            if tokens.epoch() == epoch && tokens.waits_in_vain(shared.session, &active) {
                self.leave_queue().map_err(cluster_error)?;
            }
            let now_ms = shared.own_session.roll.now_ms();
            let wanted = (tokens.epoch() == epoch).then(|| tokens.wanted_from(shared.session));
            let Some((wanted, keep)) = wanted.flatten() else {
                self.state.lock().wanted = false;
                return Ok(());
            };
            let contended = tokens.is_contended(wanted, now_ms);
            let range = self.state.lock().pieces.to_give(wanted, keep.is_some(), contended);
            if !self.give(range, keep) {
                return Ok(());
            }
            add(&shared.counters.handovers);
        }
        shared.queue.push(self.id);
        Ok(())
    }

    /// Removes entries from the queue for which no request waits any more, because others are queued behind them.
    fn leave_queue(&self) -> Result<(), StoreError> {
        let change = self.stored.begin_change();
        let active = self.state.lock().active.clone();
        let session = self.shared.session;
        let new = change.make(|new, epoch| new.forget_vain(session, &active, epoch))?;
        if let Some(new) = new {
            self.stored.tell_waiters(&new);
        }
        Ok(())
    }

    /// Gives up everything that is held.
    pub(in crate::agent) fn give_all_up(&self) -> Result<()> {
        let all = ByteRange::new(0, u64::MAX);
        let clock = &self.shared.options.wait_clock;
        let deadline = clock.instant() + self.shared.options.wait_limit;
        let mut failures = 0;
        while failures < TRIES && clock.instant() < deadline {
            if self.all().is_empty() || self.give(all, None) {
                return Ok(());
            }
            let mut state = self.state.lock();
            if state.pieces.is_closed(all) {
                // Some of it is being given to others right now.
                let is_closed = |state: &mut State| state.pieces.is_closed(all);
                clock.wait_while(&self.changed, &mut state, is_closed, deadline);
            } else {
                drop(state);
                failures += 1;
                // Without the pause, a short outage of the store would use up all attempts.
                clock.sleep(self.shared.options.poll * 2);
            }
        }
        Err(Error::Cluster {
            what: format!("inode {} could not be given up", self.id.inode),
            remedy: "mount again, and unmount when the store and the origin answer".to_owned(),
        })
    }

    /// Gives up a range, or keeps `keep` of exclusive tokens there. `false` if that is already in progress, or must be
    /// tried again.
    pub(super) fn give(&self, range: ByteRange, keep: Option<Mode>) -> bool {
        let Some(_closed) = self.close(range) else { return false };
        self.wait_unused(range)
            && self.bring_to_origin(range, keep.is_some())
            && self.tell_given(range, keep)
    }

    /// Gives up a range if the file is idle: nothing uses it or wants any of it. `None` if it is not idle; `false` if
    /// it must be tried again.
    pub(in crate::agent) fn give_at_rest(&self, range: ByteRange) -> Option<bool> {
        let _closed = {
            let state = &mut *self.state.lock();
            let is_at_rest = state.active.is_empty() && !state.wanted;
            state.pieces.at_rest_since().filter(|_| is_at_rest)?;
            state.pieces.close(range);
            Closed { file: self, range }
        };
        let given = self.bring_to_origin(range, false) && self.tell_given(range, None);
        if !given {
            let now = self.shared.options.clock.boot_instant();
            self.state.lock().pieces.note_use(now);
        }
        Some(given)
    }

    /// Drops everything that is not exclusive, whatever the store says. `false` if it must be tried again.
    pub(in crate::agent) fn drop_what_is_unsure(&self) -> bool {
        let ranges = self.state.lock().pieces.unsure();
        ranges.into_iter().all(|range| self.drop_range(range))
    }

    /// Drops a range from the caches, and the tokens for it that the node believes it holds, because its lease lapsed.
    /// `false` if it must be tried again.
    fn drop_range(&self, range: ByteRange) -> bool {
        let Some(_closed) = self.close(range) else { return false };
        let dropped = self.wait_unused(range) && self.bring_to_origin(range, false);
        if dropped {
            self.state.lock().pieces.remove(range, None);
        }
        dropped
    }

    /// Lets no permit begin in a range until the returned value is dropped; `None` if part of it is closed already.
    fn close(&self, range: ByteRange) -> Option<Closed<'_>> {
        let pieces = &mut self.state.lock().pieces;
        if pieces.is_closed(range) {
            return None;
        }
        pieces.close(range);
        Some(Closed { file: self, range })
    }

    /// Lets the engine flush a closed range to the origin and drop it.
    fn bring_to_origin(&self, range: ByteRange, keeps_clean: bool) -> bool {
        let Some(local_cache) = self.shared.local_cache.get() else { return true };
        let given = match local_cache.upgrade() {
            Some(local_cache) => local_cache.give_up(self.id, range, keeps_clean),
            // The dirty bytes are still in the cache.
            None if self.is_exclusive(range) => Err(Error::invalid("the engine has ended", "")),
            None => Ok(()),
        };
        if let Err(error) = &given {
            tracing::warn!(
                "inode {}: cannot bring to the origin what others want: {error}",
                self.id.inode
            );
        }
        given.is_ok()
    }

    fn is_exclusive(&self, range: ByteRange) -> bool {
        let all = self.all();
        all.iter().any(|(held, mode)| *mode == Mode::Exclusive && held.overlaps(range))
    }

    /// Tells the store that a closed and flushed range is given up.
    fn tell_given(&self, range: ByteRange, keep: Option<Mode>) -> bool {
        let session = self.shared.session;
        let change = self.stored.begin_change();
        // The node drops the token first, whether or not the store gets the change.
        self.state.lock().pieces.remove(range, keep);
        match change.make(|new, epoch| new.give_up(session, range, keep, epoch)) {
            Ok(Some(new)) => {
                self.stored.tell_waiters(&new);
                true
            }
            Ok(None) => true,
            Err(error) => {
                tracing::warn!("inode {}: not told that it was given up: {error}", self.id.inode);
                false
            }
        }
    }
}

/// A range that is being given up. It opens again even if a panic ends that.
struct Closed<'f> {
    file: &'f File,
    range: ByteRange,
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.file.state.lock().pieces.open(self.range);
        self.file.changed.notify_all();
    }
}
