//! The requests that one thread has served, until the writer takes them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use crate::request::Op;

/// Limit of the requests in each of a thread's two buffers.
const ROOM: usize = 4096;
/// No request is being served.
const IDLE: u64 = u64::MAX;
/// One is about to begin: its start is not known yet.
const BEGINNING: u64 = u64::MAX - 1;

/// A request that was served.
#[derive(Debug, Clone, Copy)]
pub(super) struct ServedRequest {
    /// Nanoseconds since the recorder's zero.
    pub(super) start_ns: u64,
    pub(super) took_ns: u64,
    pub(super) offset: u64,
    pub(super) length: u64,
    /// The recorder's number of the file.
    pub(super) file: u32,
    /// The thread that issued it.
    pub(super) by: u32,
    pub(super) op: Op,
}

/// The state of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Now {
    /// It serves no request.
    Idle,
    /// It is beginning one, whose start is not known yet.
    Beginning,
    /// It has been serving a request since then.
    Since(u64),
}

/// One thread's slot in the recorder.
#[derive(Debug)]
pub(super) struct Slot {
    /// Start of the current request, or [`IDLE`] or [`BEGINNING`].
    now: AtomicU64,
    buffers: [Mutex<Vec<ServedRequest>>; 2],
    lost: AtomicU64,
}

impl Default for Slot {
    fn default() -> Self {
        let buffer = || Mutex::new(Vec::with_capacity(ROOM));
        Self { now: AtomicU64::new(IDLE), buffers: [buffer(), buffer()], lost: AtomicU64::new(0) }
    }
}

/// A request being served; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Begun<'a> {
    slot: &'a Slot,
    start_ns: u64,
}

impl Slot {
    /// Begins a request. The order matters: a reader that saw the thread idle before it announced the beginning has
    /// read the clock before the thread did, so the request's start is later than that reading.
    pub(super) fn begin(&self, zero: Instant) -> Begun<'_> {
        self.now.store(BEGINNING, Ordering::SeqCst);
        let start_ns = passed(zero);
        self.now.store(start_ns, Ordering::Release);
        Begun { slot: self, start_ns }
    }

    /// Stores a request, without waiting; returns whether the writer should be woken.
    pub(super) fn push(&self, served: ServedRequest) -> bool {
        for buffer in &self.buffers {
            let Some(mut buffer) = buffer.try_lock() else { continue };
            if buffer.len() < ROOM {
                buffer.push(served);
                return buffer.len() == ROOM / 2;
            }
        }
        self.lost.fetch_add(1, Ordering::Relaxed);
        false
    }

    /// The state of the thread; its earlier requests are in the buffers.
    pub(super) fn now(&self) -> Now {
        match self.now.load(Ordering::SeqCst) {
            IDLE => Now::Idle,
            BEGINNING => Now::Beginning,
            start_ns => Now::Since(start_ns),
        }
    }

    /// Takes the contents; `spare` is empty, with capacity for a buffer. Returns how many were lost meanwhile.
    pub(super) fn take(
        &self,
        into: &mut Vec<ServedRequest>,
        spare: &mut Vec<ServedRequest>,
    ) -> u64 {
        for buffer in &self.buffers {
            // The thread finds the other buffer free.
            std::mem::swap(&mut *buffer.lock(), spare);
            into.append(spare);
        }
        self.lost.swap(0, Ordering::Relaxed)
    }

    /// Whether it has contents that were not taken.
    pub(super) fn is_used(&self) -> bool {
        let used = |buffer: &Mutex<Vec<ServedRequest>>| !buffer.lock().is_empty();
        self.buffers.iter().any(used) || self.lost.load(Ordering::Relaxed) > 0
    }

    /// An empty buffer with its capacity.
    pub(super) fn spare() -> Vec<ServedRequest> {
        Vec::with_capacity(ROOM)
    }
}

impl Begun<'_> {
    /// Nanoseconds from the clock's zero until it began.
    pub(super) const fn start_ns(&self) -> u64 {
        self.start_ns
    }

    /// Nanoseconds until now.
    pub(super) fn took(&self, zero: Instant) -> u64 {
        passed(zero).saturating_sub(self.start_ns)
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        // A reader that sees this also sees what was pushed before.
        self.slot.now.store(IDLE, Ordering::Release);
    }
}

/// Nanoseconds since `zero`.
pub(super) fn passed(zero: Instant) -> u64 {
    u64::try_from(zero.elapsed().as_nanos()).unwrap_or(IDLE / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(start_ns: u64) -> ServedRequest {
        ServedRequest { start_ns, took_ns: 1, offset: 0, length: 1, file: 0, by: 1, op: Op::Read }
    }

    #[test]
    fn what_does_not_fit_is_counted_and_nobody_waits() {
        let slot = Slot::default();
        // While the writer holds a buffer, the other one accepts everything, and nothing waits.
        let held = slot.buffers[0].lock();
        for start in 0..ROOM as u64 {
            assert_eq!(slot.push(served(start)), start + 1 == ROOM as u64 / 2);
        }
        slot.push(served(0));
        drop(held);
        for start in 0..ROOM as u64 {
            slot.push(served(start));
        }
        slot.push(served(0));
        let (mut all, mut spare) = (Vec::new(), Slot::spare());
        assert_eq!(slot.take(&mut all, &mut spare), 2);
        assert_eq!(all.len(), 2 * ROOM);
        assert_eq!(slot.take(&mut all, &mut spare), 0);
    }

    #[test]
    fn a_request_in_service_is_seen() {
        let (slot, zero) = (Slot::default(), Instant::now());
        assert_eq!(slot.now(), Now::Idle);
        let begun = slot.begin(zero);
        assert_eq!(slot.now(), Now::Since(begun.start_ns()));
        drop(begun);
        assert_eq!(slot.now(), Now::Idle);
    }
}
