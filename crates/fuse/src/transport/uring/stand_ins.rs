//! Threads that replace others while these wait for locks.
//!
//! What must hold: each queue always has as many threads for requests as it began with, however many are waiting: the
//! request that releases the lock may be queued behind them. A thread that was added stays, for the next wait.

use std::io;
use std::thread::JoinHandle;

use halocline_vfs::Engine;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::message::Message;
use super::wire::LockIn;
use crate::front::{Answer, Front, Refused};

/// `FUSE_SETLKW`
pub(super) const SETLKW: u32 = 33;

/// The stand-ins of one mount.
#[derive(Debug, Default)]
pub(super) struct StandIns {
    queues: Mutex<FxHashMap<u16, Queue>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: usize,
    made: usize,
}

/// A waiting thread that has a stand-in.
struct Absent<'a> {
    all: &'a StandIns,
    queue: u16,
}

impl StandIns {
    /// Takes a lock, waiting if necessary; before a wait, `make` starts another thread for the queue if it has none to
    /// spare.
    pub(super) fn lock<E: Engine>(
        &self,
        front: &Front<E>,
        request: &Message<'_>,
        (queue, make): (u16, impl FnOnce() -> io::Result<JoinHandle<()>>),
    ) -> Answer<usize> {
        let asked: &LockIn = request.fields()?;
        if let Some(wait) = front.locking.set(asked.request()?, true, request.caller())? {
            let _absent = self.leave(queue, make).map_err(|error| {
                tracing::warn!(%error, "no thread to wait for a lock");
                Refused(fuser::Errno::ENOLCK)
            })?;
            wait.finish()?;
        }
        Ok(0)
    }

    fn leave(
        &self,
        queue: u16,
        make: impl FnOnce() -> io::Result<JoinHandle<()>>,
    ) -> io::Result<Absent<'_>> {
        let mut queues = self.queues.lock();
        let counts = queues.entry(queue).or_default();
        if counts.made == counts.waiting {
            self.threads.lock().push(make()?);
            counts.made += 1;
        }
        counts.waiting += 1;
        Ok(Absent { all: self, queue })
    }

    /// Takes the threads that were added since the last call.
    pub(super) fn take(&self) -> Vec<JoinHandle<()>> {
        std::mem::take(&mut *self.threads.lock())
    }

    /// Whether all have ended.
    pub(super) fn are_finished(&self) -> bool {
        self.threads.lock().iter().all(JoinHandle::is_finished)
    }
}

impl Drop for Absent<'_> {
    fn drop(&mut self) {
        let mut queues = self.all.queues.lock();
        queues.get_mut(&self.queue).expect("it was counted").waiting -= 1;
    }
}
