//! Requests that need a token: at once where the node holds it, else they wait for the store and for others.

use std::time::{Duration, Instant};

use halocline_cache::coherence::{FileTokens, Grant, Want};
use halocline_model::request::{ByteRange, Direction};
use halocline_os::error::{Error, Result};

use super::{Attempt, File};
use crate::counters::add;

/// How long a request waits before it looks again, at first.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

impl File {
    /// Waits for a token, and stands among those who wait meanwhile.
    fn wait(&self, want: Want) -> Result<Grant> {
        let stands_for = (queued_as(want), want.range);
        self.state.lock().active.push(stands_for);
        let granted = self.wait_actively(want);
        let active = &mut self.state.lock().active;
        if let Some(at) = active.iter().position(|one| *one == stands_for) {
            active.swap_remove(at);
        }
        granted
    }

    fn wait_actively(&self, want: Want) -> Result<Grant> {
        let began = Instant::now();
        let mut pause = FIRST_PAUSE;
        let mut attempts = 0;
        let waits_for = loop {
            let told = self.state.lock().told;
            match self.attempt(want, attempts, began + self.shared.options.wait_limit)? {
                Attempt::Granted(grant) => {
                    if attempts > 0 {
                        self.shared.counters.note_wait(began.elapsed());
                    }
                    return Ok(grant);
                }
                Attempt::Waits(what) if began.elapsed() >= self.shared.options.wait_limit => {
                    break what;
                }
                Attempt::Waits(_) => {}
                Attempt::Again => {
                    attempts += 1;
                    continue;
                }
            }
            if self.shared.is_stopped() {
                break "this mount to end".to_owned();
            }
            attempts += 1;
            let mut state = self.state.lock();
            if state.told == told {
                let _ = self.changed.wait_for(&mut state, pause);
            }
            pause = (pause * 2).min(self.shared.options.poll);
        };
        self.shared.counters.note_wait(began.elapsed());
        // Whoever stands behind it tells, and then it leaves the queue.
        Err(Error::Cluster {
            what: format!("waited {} s for {waits_for}", self.shared.options.wait_limit.as_secs()),
            remedy: "see `halocline cluster nodes`".to_owned(),
        })
    }
}

/// As what a request stands in the queue.
fn queued_as(want: Want) -> Direction {
    if want.alone { Direction::Write } else { want.direction }
}

/// A range has a byte at least: a request for none still asks whether others changed the file.
fn filled(want: Want) -> Want {
    let range = match want.range {
        ByteRange { start: u64::MAX, .. } => ByteRange::new(u64::MAX - 1, u64::MAX),
        range if range.is_empty() => ByteRange::at(range.start, 1),
        range => range,
    };
    Want { range, ..want }
}

impl FileTokens for File {
    fn begin(&self, want: Want) -> Result<Grant> {
        let want = filled(want);
        if let Some(grant) = self.permit(want) {
            return Ok(grant);
        }
        let granted = self.wait(want);
        if granted.is_err() {
            add(&self.shared.counters.refused);
        }
        granted
    }

    fn try_begin(&self, want: Want) -> Option<Grant> {
        if self.state.lock().wanted { None } else { self.permit(filled(want)) }
    }

    fn end(&self, grant: Grant) {
        if self.state.lock().pieces.end(grant) {
            self.changed.notify_all();
        }
    }
}
