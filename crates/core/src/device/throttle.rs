//! Limits bytes a second: for movers in the background, and for tests that need a slow device.

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use halocline_model::request::ByteRange;
use parking_lot::Mutex;

use super::{Allocate, Device, ServerFile, Space};

/// What may pass at once after a pause, as time at the given rate.
const BURST: Duration = Duration::from_millis(100);

/// A rate that many devices and movers can share, changed while it is in use.
#[derive(Debug)]
pub struct Throttle {
    bytes_per_s: AtomicU64,
    start: Instant,
    bucket: Mutex<Bucket>,
}

/// A token bucket kept as the time at which it will be full again.
#[derive(Debug, Default)]
struct Bucket {
    full_at: Duration,
}

impl Bucket {
    /// Takes `bytes` at `now` and says how long to wait before using them.
    fn take(&mut self, now: Duration, bytes: u64, bytes_per_s: u64) -> Duration {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_s);
        let price = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        self.full_at = self.full_at.max(now).saturating_add(price);
        self.full_at.saturating_sub(now).saturating_sub(BURST)
    }
}

impl Throttle {
    /// A limit of `bytes_per_s` bytes a second; 0 is no limit.
    pub fn new(bytes_per_s: u64) -> Self {
        Self {
            bytes_per_s: AtomicU64::new(bytes_per_s),
            start: Instant::now(),
            bucket: Mutex::default(),
        }
    }

    /// Changes the limit for what comes; 0 is no limit.
    pub fn set_rate(&self, bytes_per_s: u64) {
        self.bytes_per_s.store(bytes_per_s, Ordering::Relaxed);
    }

    /// Waits until `bytes` may pass.
    pub fn pass(&self, bytes: u64) {
        let rate = self.bytes_per_s.load(Ordering::Relaxed);
        if rate > 0 && bytes > 0 {
            let wait = self.bucket.lock().take(self.start.elapsed(), bytes, rate);
            std::thread::sleep(wait);
        }
    }
}

/// A device that moves no more than its throttle lets pass, both directions together.
#[derive(Debug)]
pub struct ThrottledDevice {
    below: Arc<dyn Device>,
    throttle: Arc<Throttle>,
}

impl ThrottledDevice {
    /// Puts `throttle` in front of `below`.
    pub fn new(below: Arc<dyn Device>, throttle: Arc<Throttle>) -> Self {
        Self { below, throttle }
    }
}

impl Device for ThrottledDevice {
    fn read_at(
        &self,
        file: &ServerFile,
        offset: u64,
        bufs: &mut [IoSliceMut<'_>],
    ) -> io::Result<usize> {
        self.throttle.pass(bufs.iter().map(|buf| buf.len() as u64).sum());
        self.below.read_at(file, offset, bufs)
    }

    fn write_at(&self, file: &ServerFile, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.throttle.pass(bufs.iter().map(|buf| buf.len() as u64).sum());
        self.below.write_at(file, offset, bufs)
    }

    fn allocate(&self, file: &ServerFile, range: ByteRange, how: Allocate) -> io::Result<()> {
        self.below.allocate(file, range, how)
    }

    fn truncate(&self, file: &ServerFile, len: u64) -> io::Result<()> {
        self.below.truncate(file, len)
    }

    fn sync(&self, file: &ServerFile, data_only: bool) -> io::Result<()> {
        self.below.sync(file, data_only)
    }

    fn space(&self) -> io::Result<Space> {
        self.below.space()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_bucket_lets_a_burst_pass_and_then_the_rate() {
        let mut bucket = Bucket::default();
        let mut now = SECOND;
        assert_eq!(bucket.take(now, 100, 1000), Duration::ZERO, "a tenth of a second's worth");
        assert_eq!(bucket.take(now, 500, 1000), Duration::from_millis(500));
        assert_eq!(bucket.take(now, 500, 1000), SECOND, "callers queue up");
        now += 60 * SECOND;
        assert_eq!(bucket.take(now, 100, 1000), Duration::ZERO);
        assert_eq!(
            bucket.take(now, 100, 1000),
            Duration::from_millis(100),
            "a pause saves nothing"
        );
    }
}
