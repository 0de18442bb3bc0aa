//! Detects whether a device has become slower than when it was calibrated: then the cost models decide wrongly, and
//! often the device is about to fail.
//!
//! Only requests that are alone on the device are compared, with the longest time that they may take. Answers from a
//! page cache are faster and prove nothing, so a device that became faster is not detected.

use std::path::PathBuf;
use std::time::Duration;

use halocline_model::profile::DeviceProfile;
use halocline_model::request::Direction;
use parking_lot::Mutex;

use halocline_os::clock::Clock;

/// Ratio of measured to calibrated time above which a device counts as drifted, as in `verify`.
const DRIFTED: f64 = 1.5;
/// Number of requests that are compared together.
const WINDOW: u32 = 256;

/// The times of one device's requests, compared with its calibration.
#[derive(Debug)]
pub struct Drift {
    /// The server's directory, for the log.
    dir: PathBuf,
    calibrated: DeviceProfile,
    pub(crate) clock: Clock,
    window: Mutex<Window>,
}

#[derive(Debug, Default)]
struct Window {
    requests: u32,
    measured_s: f64,
    calibrated_s: f64,
    /// Ratio of measured to calibrated time in the last full window.
    last: Option<f64>,
}

impl Drift {
    /// Watches the server in `dir`, whose service times were calibrated.
    pub fn new(dir: PathBuf, calibrated: DeviceProfile, clock: &Clock) -> Self {
        Self { dir, calibrated, clock: clock.clone(), window: Mutex::default() }
    }

    /// How many times its calibrated time it takes, if that is more than calibrations vary.
    pub(crate) fn slower(&self) -> Option<f64> {
        self.window.lock().last.filter(|ratio| *ratio > DRIFTED)
    }

    /// Notes how long a request of `bytes` took that was alone on the device.
    #[expect(clippy::cast_precision_loss, reason = "a ratio of sums, not an amount")]
    pub(crate) fn note(&self, direction: Direction, bytes: u64, took: Duration) {
        let service = self.calibrated.of(direction);
        let startup_ps = service.startup_random_ps.max(service.startup_sequential_ps);
        let longest_ps = service.per_byte_ps as f64 * bytes as f64 + startup_ps as f64;
        let mut window = self.window.lock();
        window.requests += 1;
        window.measured_s += took.as_secs_f64();
        window.calibrated_s += longest_ps * 1e-12;
        if window.requests < WINDOW {
            return;
        }
        let before = window.last.is_some_and(|ratio| ratio > DRIFTED);
        let ratio = window.measured_s / window.calibrated_s.max(f64::MIN_POSITIVE);
        *window = Window { last: Some(ratio), ..Window::default() };
        drop(window);
        if ratio > DRIFTED && !before {
            tracing::warn!(
                "{}: takes {ratio:.1} times as long as it was calibrated: see what is wrong with it, or calibrate it again",
                self.dir.display()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use halocline_model::profile::ServiceProfile;

    use super::*;

    fn drift() -> Drift {
        // A millisecond, and a microsecond for each byte.
        let service = ServiceProfile {
            startup_sequential_ps: 0,
            startup_random_ps: 1_000_000_000,
            per_byte_ps: 1_000_000,
        };
        Drift::new("/d".into(), DeviceProfile { read: service, write: service }, &Clock::MACHINE)
    }

    fn pass(drift: &Drift, took: Duration) {
        for _ in 0..WINDOW {
            drift.note(Direction::Read, 1000, took);
        }
    }

    #[test]
    fn only_what_is_slower_than_any_request_may_be_is_told() {
        let drift = drift();
        pass(&drift, Duration::from_micros(2900));
        assert_eq!(drift.slower(), None);
        pass(&drift, Duration::from_micros(10));
        assert_eq!(drift.slower(), None, "answered from memory");
        pass(&drift, Duration::from_millis(8));
        assert!(drift.slower().is_some_and(|ratio| (ratio - 4.0).abs() < 1e-6), "{drift:?}");
        drift.note(Direction::Write, 1, Duration::ZERO);
        assert!(drift.slower().is_some(), "until a whole window says otherwise");
        pass(&drift, Duration::from_millis(2));
        assert_eq!(drift.slower(), None);
    }
}
