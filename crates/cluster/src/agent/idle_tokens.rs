//! Gives back the tokens of idle files, so that what a node holds does not grow with the number of files that its
//! programs ever opened. A node must assert all of it to a store that may have forgotten it, and give all of it up
//! before it leaves, each with one request per file.
//!
//! What must hold: a file in use keeps its tokens. Before tokens are given back, the file is flushed to the origin, as
//! if another node wanted it.

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

/// Wakes the thread that gives tokens back.
#[derive(Debug, Default)]
pub(super) struct IdleTokens {
    is_due: Mutex<bool>,
    changed: Condvar,
}

impl IdleTokens {
    /// There may be too many known files.
    pub(super) fn wake(&self) {
        *self.is_due.lock() = true;
        self.changed.notify_all();
    }
}

/// Gives back surplus tokens until the agent stops: the body of a thread.
pub(super) fn give_back(shared: &Arc<Shared>) {
    while !shared.is_stopped() {
        give_idle_back(shared);
        let clock = &shared.options.wait_clock;
        let until = clock.instant() + shared.options.poll;
        let mut is_due = shared.idle_tokens.is_due.lock();
        clock.wait_while(&shared.idle_tokens.changed, &mut is_due, |is_due| !*is_due, until);
        *is_due = false;
    }
}

/// If there are more files than the limit, gives back the tokens of those that were idle longest, down to seven
/// eighths of the limit; files with nothing cached come first.
fn give_idle_back(shared: &Shared) {
    let limit = shared.options.files_max.max(1);
    if shared.files.len() <= limit || shared.own_session.check_lease().is_err() {
        return;
    }
    let held: Vec<_> = shared.files.all().into_iter().filter(|file| !file.is_idle()).collect();
    if held.len() <= limit {
        return;
    }
    let excess = held.len() - (limit - limit / 8);
    for file in longest_at_rest(shared, &held, excess) {
        if shared.is_stopped() || shared.own_session.check_lease().is_err() {
            return;
        }
        match file.give_at_rest(ALL) {
            None => {}
            Some(true) => {
                add(&shared.counters.given_back);
                shared.files.forget(file);
            }
            // Whatever kept this one probably keeps others, too; it now counts as used, so the others come first next
            // time.
            Some(false) => return,
        }
    }
}

/// At most `number` of the idle files, in the order in which they are given back.
fn longest_at_rest(shared: &Shared, files: &[Arc<File>], number: usize) -> Vec<Arc<File>> {
    let local_cache = shared.local_cache.get().and_then(std::sync::Weak::upgrade);
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
