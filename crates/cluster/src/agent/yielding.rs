//! Receives requests of other nodes for tokens, and has threads that give these up.

use std::collections::VecDeque;
use std::sync::Arc;

use halocline_cache::coherence::SharedFile;
use parking_lot::{Condvar, Mutex};

use super::Shared;

/// A queue of files that other nodes want.
#[derive(Debug, Default)]
pub(super) struct Queue {
    files: Mutex<VecDeque<SharedFile>>,
    filled: Condvar,
}

impl Queue {
    pub(super) fn push(&self, file: SharedFile) {
        let mut files = self.files.lock();
        if !files.contains(&file) {
            files.push_back(file);
            self.filled.notify_one();
        }
    }

    /// The next file; `None` if none comes in time, or the agent stops.
    fn pop(&self, shared: &Shared) -> Option<SharedFile> {
        let clock = &shared.options.wait_clock;
        let deadline = clock.instant() + shared.options.poll;
        let mut files = self.files.lock();
        let is_empty = |files: &mut VecDeque<SharedFile>| files.is_empty() && !shared.is_stopped();
        clock.wait_while(&self.filled, &mut files, is_empty, deadline);
        files.pop_front()
    }

    /// Ends all waits of an agent that was stopped.
    pub(super) fn wake(&self) {
        // A thread that has just checked for the stop holds this lock until it waits, so it is woken.
        drop(self.files.lock());
        self.filled.notify_all();
    }
}

/// Listens for what others want, until the agent stops: the body of a thread.
pub(super) fn listen(shared: &Arc<Shared>) {
    while !shared.is_stopped() {
        for file in shared.store.listen(shared.session, shared.options.poll) {
            shared.file(file).note_message();
            shared.queue.push(file);
        }
    }
}

/// Gives up what others want, until the agent stops: the body of a thread.
pub(super) fn give_up(shared: &Arc<Shared>) {
    while !shared.is_stopped() {
        let Some(file) = shared.queue.pop(shared) else { continue };
        if let Err(error) = shared.file(file).give_what_is_wanted() {
            // The node that wants it will send another message.
            tracing::warn!("inode {} cannot be given up now: {error}", file.inode);
        }
    }
}
