//! Counts requests, bytes and errors by direction, and compares some requests with the calibration.

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use halocline_model::request::{ByteRange, Direction};

use super::{Device, ServerFile, Space};
use crate::calibration_drift::Drift;
use halocline_vfs::Allocate;

/// Counters of one direction.
#[derive(Debug, Default)]
struct Counter {
    begun: AtomicU64,
    requests: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
}

/// The traffic in one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Completed requests, including failed ones.
    pub requests: u64,
    /// Bytes moved by requests that succeeded.
    pub bytes: u64,
    /// Requests that failed.
    pub errors: u64,
}

/// Counters of one device, shared by the device and its reports.
#[derive(Debug, Default)]
pub struct Meter {
    read: Counter,
    write: Counter,
    /// Syncs, truncates and allocations, without bytes.
    other: Counter,
    /// Present if the device was calibrated.
    drift: Option<Drift>,
}

/// One request in this many is compared with its calibrated time: reading the clock costs more than counting.
const COMPARED_ONE_IN: u64 = 8;

impl Meter {
    /// Counters of a calibrated device.
    pub fn with_drift(drift: Drift) -> Self {
        Self { drift: Some(drift), ..Self::default() }
    }

    /// How many times its calibrated time the device takes, if that is much more.
    pub fn slower(&self) -> Option<f64> {
        self.drift.as_ref()?.slower()
    }

    /// Performs and counts a read or write, and compares its time if it is due and was alone.
    fn transfer<T>(
        &self,
        direction: Direction,
        work: impl FnOnce() -> io::Result<T>,
        bytes: impl Fn(&T) -> u64,
    ) -> io::Result<T> {
        let counter = match direction {
            Direction::Read => &self.read,
            Direction::Write => &self.write,
        };
        let compared = self.drift.as_ref().filter(|_| {
            counter.begun.load(Ordering::Relaxed).is_multiple_of(COMPARED_ONE_IN)
                && self.under_way() == 0
        });
        let Some(drift) = compared else { return counter.count(work, bytes) };
        let (begun, since) = (self.begun(), drift.clock.instant());
        let outcome = counter.count(work, &bytes);
        if let Ok(value) = &outcome
            && self.begun() == begun + 1
        {
            drift.note(direction, bytes(value), drift.clock.elapsed(since));
        }
        outcome
    }

    /// Requests of any kind that have begun.
    fn begun(&self) -> u64 {
        let begun = |counter: &Counter| counter.begun.load(Ordering::Relaxed);
        [&self.read, &self.write, &self.other].into_iter().map(begun).sum()
    }

    /// The traffic in this direction so far.
    pub fn traffic(&self, direction: Direction) -> Traffic {
        match direction {
            Direction::Read => self.read.value(),
            Direction::Write => self.write.value(),
        }
    }

    /// Requests of any kind in progress.
    pub fn under_way(&self) -> u64 {
        [&self.read, &self.write, &self.other].iter().map(|counter| counter.under_way()).sum()
    }

    /// Syncs, truncates and allocations so far.
    pub fn other(&self) -> Traffic {
        self.other.value()
    }
}

impl Counter {
    fn value(&self) -> Traffic {
        Traffic {
            requests: self.requests.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            errors: self.errors.load(Ordering::Relaxed),
        }
    }

    fn under_way(&self) -> u64 {
        let ended = self.requests.load(Ordering::Relaxed);
        self.begun.load(Ordering::Relaxed).saturating_sub(ended)
    }

    fn count<T>(
        &self,
        work: impl FnOnce() -> io::Result<T>,
        bytes: impl FnOnce(&T) -> u64,
    ) -> io::Result<T> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        let outcome = work();
        self.requests.fetch_add(1, Ordering::Relaxed);
        match &outcome {
            Ok(value) => self.bytes.fetch_add(bytes(value), Ordering::Relaxed),
            Err(_) => self.errors.fetch_add(1, Ordering::Relaxed),
        };
        outcome
    }
}

/// A device whose traffic is counted.
#[derive(Debug)]
pub struct MeteredDevice {
    below: Arc<dyn Device>,
    meter: Arc<Meter>,
}

impl MeteredDevice {
    /// Counts on `meter` the requests to `below`.
    pub fn new(below: Arc<dyn Device>, meter: Arc<Meter>) -> Self {
        Self { below, meter }
    }
}

impl Device for MeteredDevice {
    fn read_at(
        &self,
        file: &ServerFile,
        offset: u64,
        bufs: &mut [IoSliceMut<'_>],
    ) -> io::Result<usize> {
        let work = || self.below.read_at(file, offset, bufs);
        self.meter.transfer(Direction::Read, work, |count| *count as u64)
    }

    fn write_at(&self, file: &ServerFile, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        let bytes = |(): &()| bufs.iter().map(|buf| buf.len() as u64).sum();
        self.meter.transfer(Direction::Write, || self.below.write_at(file, offset, bufs), bytes)
    }

    fn allocate(&self, file: &ServerFile, range: ByteRange, how: Allocate) -> io::Result<()> {
        self.meter.other.count(|| self.below.allocate(file, range, how), |()| 0)
    }

    fn truncate(&self, file: &ServerFile, len: u64) -> io::Result<()> {
        self.meter.other.count(|| self.below.truncate(file, len), |()| 0)
    }

    fn sync(&self, file: &ServerFile, data_only: bool) -> io::Result<()> {
        self.meter.other.count(|| self.below.sync(file, data_only), |()| 0)
    }

    fn space(&self) -> io::Result<Space> {
        self.below.space()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_under_way_until_it_ends_and_a_failed_one_moves_nothing() {
        let meter = Meter::default();
        let work = || {
            assert_eq!(meter.under_way(), 1);
            Ok(7)
        };
        meter.read.count(work, |bytes| *bytes).unwrap();
        let failure = || Err::<u64, _>(io::ErrorKind::Other.into());
        meter.write.count(failure, |bytes| *bytes).unwrap_err();
        assert_eq!(meter.under_way(), 0);
        let (read, write) = (meter.traffic(Direction::Read), meter.traffic(Direction::Write));
        assert_eq!((read.requests, read.bytes, read.errors), (1, 7, 0));
        assert_eq!((write.requests, write.bytes, write.errors), (1, 0, 1));
    }
}
