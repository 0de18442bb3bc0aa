//! Receives what others want, and has threads that give it up.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use halocline_cache::coherence::SharedFile;
use parking_lot::{Condvar, Mutex};

use super::Shared;

/// Files of which others want something.
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

    fn pop(&self, wait_limit: Duration) -> Option<SharedFile> {
        let mut files = self.files.lock();
        if files.is_empty() {
            let _ = self.filled.wait_for(&mut files, wait_limit);
        }
        files.pop_front()
    }

    pub(super) fn wake(&self) {
        self.filled.notify_all();
    }
}

impl Shared {
    /// Listens for what others want.
    pub(super) fn listen(self: &Arc<Self>) {
        while !self.is_stopped() {
            for file in self.store.listen(self.session, self.options.poll) {
                self.file(file).note_told();
                self.queue.push(file);
            }
        }
    }

    /// Gives up what others want.
    pub(super) fn work(self: &Arc<Self>) {
        while !self.is_stopped() {
            let Some(file) = self.queue.pop(self.options.poll) else { continue };
            if let Err(error) = self.file(file).give_what_is_wanted() {
                // The node that wants it sends another message.
                tracing::warn!("inode {} cannot be given up now: {error}", file.inode);
            }
        }
    }
}
