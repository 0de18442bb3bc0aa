//! Gives back the tokens of files that rest, so that what a node holds does not grow with the number of files that its
//! programs ever opened: a node must say all of it anew to a store that may have forgotten it, and give all of it up
//! before it leaves, each with a request per file.
//!
//! What must hold: a file that a program is using keeps its tokens. What is given back is brought to the origin before,
//! as if another node wanted it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Instant;

use halocline_model::request::ByteRange;
use parking_lot::{Condvar, Mutex};

use super::Shared;
use super::file::File;
use crate::counters::add;

/// All of a file.
const ALL: ByteRange = ByteRange::new(0, u64::MAX);

/// Wakes the thread that gives back.
#[derive(Debug, Default)]
pub(super) struct IdleTokens {
    is_due: Mutex<bool>,
    changed: Condvar,
}

impl IdleTokens {
    /// Files are known that may be too many.
    pub(super) fn wake(&self) {
        *self.is_due.lock() = true;
        self.changed.notify_all();
    }
}

impl Shared {
    /// Gives back what is held too much, until the agent stops.
    pub(super) fn give_back(self: &Arc<Self>) {
        while !self.is_stopped() {
            self.give_idle_back();
            let clock = &self.options.wait_clock;
            let until = clock.instant() + self.options.poll;
            let mut is_due = self.idle_tokens.is_due.lock();
            clock.wait_while(&self.idle_tokens.changed, &mut is_due, |is_due| !*is_due, until);
            *is_due = false;
        }
    }

    /// Gives back the tokens of the files that rested longest if there are more than the limit, down to seven eighths of
    /// it; of those first of which nothing is cached.
    fn give_idle_back(&self) {
        let limit = self.options.files_max.max(1);
        if self.files.lock().len() <= limit || self.check_lease().is_err() {
            return;
        }
        let files: Vec<_> = self.files.lock().values().cloned().collect();
        let held: Vec<_> = files.into_iter().filter(|file| !file.is_idle()).collect();
        if held.len() <= limit {
            return;
        }
        let excess = held.len() - (limit - limit / 8);
        for file in self.longest_at_rest(&held, excess) {
            if self.is_stopped() || self.check_lease().is_err() {
                return;
            }
            match file.give_at_rest(ALL) {
                None => {}
                Some(true) => {
                    add(&self.counters.given_back);
                    self.forget(file);
                }
                // What kept this one keeps others, too; it is tried again after them.
                Some(false) => return,
            }
        }
    }

    /// As many of the files, or those of them that rest, in the order in which they are to be given back.
    fn longest_at_rest(&self, files: &[Arc<File>], number: usize) -> Vec<Arc<File>> {
        let local_cache = self.local_cache.get().and_then(std::sync::Weak::upgrade);
        let caches = |file: &File| local_cache.as_ref().is_some_and(|cache| cache.caches(file.id));
        let mut at_rest: BinaryHeap<Reverse<(bool, Instant, usize)>> = files
            .iter()
            .enumerate()
            .filter_map(|(at, file)| {
                let since = file.at_rest_since()?;
                Some(Reverse((caches(file), since, at)))
            })
            .collect();
        std::iter::from_fn(|| at_rest.pop())
            .take(number)
            .map(|Reverse((_, _, at))| Arc::clone(&files[at]))
            .collect()
    }

    /// Forgets a file of which nothing is held, unless the engine knows it.
    fn forget(&self, file: Arc<File>) {
        let id = file.id;
        drop(file);
        let mut files = self.files.lock();
        let is_unused = |known: &Arc<File>| Arc::strong_count(known) == 1 && known.is_idle();
        if files.get(&id).is_some_and(is_unused) {
            files.remove(&id);
        }
    }
}
