//! Keeps the store's files small beside the cache they describe (I5).
//!
//! The store begins a new journal at 64 MB, which is more than a small cache has. One thread
//! measures the store whenever enough was appended, and has the journal begun anew where it is
//! large for this cache. No request waits for the measuring.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::batch::Batch;
use super::journal::Journal;
use super::records::{RecordStore, Visit};
use crate::error::Result;

/// Of what is set aside for records, a journal takes at most one part in this many; tables that its
/// records go to and the journal after it share the rest.
const JOURNAL_SHARE: u64 = 2;

/// Changes wait while a journal is begun anew, a tenth of a second and longer the more it holds: no
/// more than this.
const JOURNAL_BYTES_MAX: u64 = 4 << 20;

/// With this much set aside the store may do as it would: it begins a new journal at 64 MB, as soon
/// as it next makes a table of 32 MB of records.
const ROOMY_BYTES: u64 = 160 << 20;

/// The store goes on making tables after a journal was begun: time until it is measured again.
const SETTLE: Duration = Duration::from_millis(100);

/// When the journal is begun anew, and when the store is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// A journal of this many bytes is replaced.
    pub(crate) journal_bytes_max: u64,
    /// The store is measured whenever this many bytes were appended.
    pub(crate) measure_bytes: u64,
}

impl Pace {
    /// The pace where `set_aside` bytes are meant for records.
    pub(crate) fn of(set_aside: u64) -> Self {
        let part = (set_aside / JOURNAL_SHARE).min(JOURNAL_BYTES_MAX);
        let journal_bytes_max = if set_aside < ROOMY_BYTES { part } else { u64::MAX };
        Self { journal_bytes_max, measure_bytes: (part / 8).max(1) }
    }
}

/// A journal whose files are kept small.
#[derive(Debug)]
pub(crate) struct TendedJournal {
    // Field order is drop order: the thread ends before the journal does.
    _upkeep: Option<Upkeep>,
    journal: Arc<Journal>,
}

/// The thread.
#[derive(Debug)]
struct Upkeep {
    bell: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
}

/// Rung by changes when there is something to look at.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    state: Mutex<State>,
    rung: Condvar,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Quiet,
    Rung,
    Over,
}

impl Bell {
    pub(crate) fn ring(&self) {
        let mut state = self.state.lock();
        if *state == State::Quiet {
            *state = State::Rung;
            self.rung.notify_one();
        }
    }

    /// Waits for the bell, for at most `timeout`; `false` when it is over.
    fn wait(&self, timeout: Option<Duration>) -> bool {
        let mut state = self.state.lock();
        match timeout {
            _ if *state != State::Quiet => {}
            Some(timeout) => drop(self.rung.wait_for(&mut state, timeout)),
            None => self.rung.wait(&mut state),
        }
        if *state == State::Rung {
            *state = State::Quiet;
        }
        *state != State::Over
    }
}

impl TendedJournal {
    /// Keeps an open journal small where `set_aside` bytes are meant for records, and not all there
    /// are.
    pub(crate) fn new(journal: Journal, set_aside: u64) -> Self {
        let journal = Arc::new(journal);
        Self { _upkeep: (set_aside < u64::MAX).then(|| Upkeep::start(&journal)), journal }
    }
}

impl RecordStore for TendedJournal {
    fn scan(&self, each: Visit<'_>) -> Result<()> {
        self.journal.scan(each)
    }

    fn commit(&self, batch: &Batch) -> Result<()> {
        self.journal.commit(batch)
    }

    fn sync(&self) -> Result<()> {
        self.journal.sync()
    }

    fn close(&self, last: &Batch) -> Result<()> {
        self.journal.close(last)
    }

    fn bytes(&self) -> u64 {
        self.journal.bytes()
    }

    fn usable(&self) -> Result<()> {
        self.journal.usable()
    }
}

impl Upkeep {
    /// Starts the thread; it ends when this is dropped.
    fn start(journal: &Arc<Journal>) -> Self {
        let bell = Arc::clone(journal.bell());
        let thread = thread::Builder::new()
            .name("records".to_owned())
            .spawn({
                let (journal, bell) = (Arc::clone(journal), Arc::clone(&bell));
                move || run(&journal, &bell)
            })
            .expect("the system can start one more thread");
        Self { bell, thread: Some(thread) }
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        *self.bell.state.lock() = State::Over;
        self.bell.rung.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic there was reported where it happened.
            let _ = thread.join();
        }
    }
}

fn run(journal: &Journal, bell: &Bell) {
    let mut settling = false;
    while bell.wait(settling.then_some(SETTLE)) {
        // A failure latches in the journal, and the next change tells it.
        let _ = journal.catch_up();
        if settling || journal.has_grown() {
            settling = journal.keep_small();
            journal.measure();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The end of a batch that failed lies in the store's buffer, and goes to the journal with the
    /// next table: what was refused would come true.
    #[test]
    fn i4_no_tables_are_made_of_a_store_that_refuses_changes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        Journal::create(&path, 1 << 20).unwrap();
        let journal = Journal::open(&path, 1 << 20, false, 64 << 10).unwrap();
        let put = |number: u64| {
            let mut batch = Batch::default();
            batch.put(&number.to_be_bytes(), &[0; 100]);
            batch
        };
        for number in 0..1000 {
            journal.commit(&put(number)).unwrap();
        }
        let tables = || std::fs::read_dir(path.join("keyspaces/1/tables")).unwrap().count();
        assert_eq!(tables(), 0);
        journal.close(&put(1000)).unwrap();
        assert!(!journal.keep_small());
        assert_eq!(tables(), 0);
    }
}
