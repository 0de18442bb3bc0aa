//! Faults on demand: errors, short transfers and stalls, switched while the device is in use.

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;

use halocline_model::request::ByteRange;
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{Device, ServerFile, Space};
use halocline_vfs::Allocate;

/// The operations that a fault can affect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// [`Device::read_at`].
    Read,
    /// [`Device::write_at`].
    Write,
    /// [`Device::allocate`].
    Allocate,
    /// [`Device::truncate`].
    Truncate,
    /// [`Device::sync`].
    Sync,
}

/// The effect of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The operation fails with this errno and does nothing.
    Errno(i32),
    /// Half of the bytes are transferred: a read is short, a write then fails with `ENOSPC`.
    /// Other operations fail with `EIO`.
    Short,
    /// The operation waits until its fault is cleared, and then proceeds.
    Stall,
    /// The operation proceeds, and its caller gets the result when the fault is cleared.
    Linger,
    /// The operation does nothing and reports success, which no real device may do. A test that passes on such a device
    /// tests nothing.
    Lie,
    /// The operation panics, as with a defect of ours in it.
    Panic,
}

/// Which of the matching operations are affected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// All while the fault is set.
    Always,
    /// Only the nth from now; 0 is the next one.
    Nth(u64),
    /// The nth from now and all after it.
    From(u64),
}

#[derive(Debug)]
struct Fault {
    operation: Option<Operation>,
    effect: Effect,
    when: When,
    /// Matching operations so far.
    seen: u64,
}

/// The effect on one operation.
#[derive(Debug, Clone, Copy)]
struct Due {
    effect: Option<Effect>,
    /// How often faults had been cleared when this was decided.
    clears: u64,
}

/// Controls a faulty device: keep a clone of the `Arc` to change faults at run time.
#[derive(Debug, Default)]
pub struct Faults {
    state: Mutex<State>,
    cleared: Condvar,
}

#[derive(Debug, Default)]
struct State {
    faults: Vec<Fault>,
    /// Changes with each clear, after which stalled operations proceed.
    clears: u64,
    stalled: usize,
    hits: u64,
}

impl Faults {
    /// Adds a fault; `None` affects every operation. If several faults match an operation, the first one that is due
    /// acts; each counts the operation.
    pub fn set(&self, operation: Option<Operation>, effect: Effect, when: When) {
        self.state.lock().faults.push(Fault { operation, effect, when, seen: 0 });
    }

    /// Removes all faults; stalled operations proceed.
    pub fn clear(&self) {
        self.replace(None);
    }

    /// The same, and a new fault affects operations from then on.
    pub fn clear_to(&self, operation: Option<Operation>, effect: Effect, when: When) {
        self.replace(Some(Fault { operation, effect, when, seen: 0 }));
    }

    fn replace(&self, next: Option<Fault>) {
        let mut state = self.state.lock();
        state.faults.clear();
        state.faults.extend(next);
        state.clears += 1;
        self.cleared.notify_all();
    }

    /// Operations that are stalled or lingering now.
    pub fn stalled(&self) -> usize {
        self.state.lock().stalled
    }

    /// Number of operations affected so far.
    pub fn hits(&self) -> u64 {
        self.state.lock().hits
    }

    /// The effect on this operation; returns after a stall has ended.
    fn due(&self, operation: Operation) -> Due {
        let mut state = self.state.lock();
        let clears = state.clears;
        let mut due = None;
        for fault in &mut state.faults {
            if fault.operation.is_none_or(|wanted| wanted == operation) {
                let hit = match fault.when {
                    When::Always => true,
                    When::Nth(nth) => fault.seen == nth,
                    When::From(nth) => fault.seen >= nth,
                };
                fault.seen += 1;
                due = due.or(hit.then_some(fault.effect));
            }
        }
        state.hits += u64::from(due.is_some());
        if due == Some(Effect::Stall) {
            self.wait(&mut state, clears);
            due = None;
        }
        drop(state);
        assert!(due != Some(Effect::Panic), "a panic on purpose");
        Due { effect: due, clears }
    }

    /// Waits until the faults that were set after `clears` clears are cleared.
    fn wait(&self, state: &mut MutexGuard<'_, State>, clears: u64) {
        state.stalled += 1;
        while state.clears == clears {
            self.cleared.wait(state);
        }
        state.stalled -= 1;
    }

    /// Holds back the result of a lingering operation, unless its fault was cleared meanwhile.
    fn answer<T>(&self, due: Due, answer: T) -> T {
        if due.effect == Some(Effect::Linger) {
            self.wait(&mut self.state.lock(), due.clears);
        }
        answer
    }

    /// Runs an operation that cannot be short.
    fn run(&self, operation: Operation, below: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let due = self.due(operation);
        match due.effect {
            None | Some(Effect::Stall | Effect::Linger | Effect::Panic) => {
                self.answer(due, below())
            }
            Some(Effect::Lie) => Ok(()),
            Some(Effect::Short) => Err(io::Error::from_raw_os_error(libc::EIO)),
            Some(Effect::Errno(errno)) => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

/// A device that fails as its [`Faults`] demand.
#[derive(Debug)]
pub struct FaultyDevice {
    below: Arc<dyn Device>,
    faults: Arc<Faults>,
}

impl FaultyDevice {
    /// Applies `faults` to operations on `below`.
    pub fn new(below: Arc<dyn Device>, faults: Arc<Faults>) -> Self {
        Self { below, faults }
    }
}

impl Device for FaultyDevice {
    fn read_at(
        &self,
        file: &ServerFile,
        offset: u64,
        bufs: &mut [IoSliceMut<'_>],
    ) -> io::Result<usize> {
        let due = self.faults.due(Operation::Read);
        match due.effect {
            Some(Effect::Errno(errno)) => Err(io::Error::from_raw_os_error(errno)),
            Some(Effect::Short) => {
                let mut half = bufs.iter().map(|buf| buf.len()).sum::<usize>() / 2;
                let mut cut = Vec::new();
                for buf in bufs {
                    let take = buf.len().min(half);
                    half -= take;
                    cut.push(IoSliceMut::new(&mut buf[..take]));
                }
                self.below.read_at(file, offset, &mut cut)
            }
            Some(Effect::Lie) => Ok(bufs.iter().map(|buf| buf.len()).sum()),
            None | Some(Effect::Stall | Effect::Linger | Effect::Panic) => {
                self.faults.answer(due, self.below.read_at(file, offset, bufs))
            }
        }
    }

    fn write_at(&self, file: &ServerFile, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        let due = self.faults.due(Operation::Write);
        match due.effect {
            Some(Effect::Errno(errno)) => Err(io::Error::from_raw_os_error(errno)),
            Some(Effect::Short) => {
                let mut half = bufs.iter().map(|buf| buf.len()).sum::<usize>() / 2;
                let mut cut = Vec::new();
                for buf in bufs {
                    let take = buf.len().min(half);
                    half -= take;
                    cut.push(IoSlice::new(&buf[..take]));
                }
                self.below.write_at(file, offset, &cut)?;
                Err(io::Error::from_raw_os_error(libc::ENOSPC))
            }
            Some(Effect::Lie) => Ok(()),
            None | Some(Effect::Stall | Effect::Linger | Effect::Panic) => {
                self.faults.answer(due, self.below.write_at(file, offset, bufs))
            }
        }
    }

    fn allocate(&self, file: &ServerFile, range: ByteRange, how: Allocate) -> io::Result<()> {
        self.faults.run(Operation::Allocate, || self.below.allocate(file, range, how))
    }

    fn truncate(&self, file: &ServerFile, len: u64) -> io::Result<()> {
        self.faults.run(Operation::Truncate, || self.below.truncate(file, len))
    }

    fn sync(&self, file: &ServerFile, data_only: bool) -> io::Result<()> {
        self.faults.run(Operation::Sync, || self.below.sync(file, data_only))
    }

    fn space(&self) -> io::Result<Space> {
        self.below.space()
    }
}
