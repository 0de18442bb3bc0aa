//! Fits the cost model's parameters to measured times. Pure arithmetic.

use std::time::Duration;

use halocline_model::profile::{DeviceProfile, ServiceProfile, whole};
use halocline_model::request::Direction;

/// Where a request goes relative to the previous one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pattern {
    Sequential,
    Random,
    /// To the same bytes each time: a server on another machine has them in memory.
    Same,
}

/// The measurements, in order.
pub(super) const SERIES: [(Direction, Pattern); 4] = [
    (Direction::Write, Pattern::Sequential),
    (Direction::Read, Pattern::Sequential),
    (Direction::Read, Pattern::Random),
    (Direction::Write, Pattern::Random),
];

/// The median time of requests of one kind and size.
#[derive(Debug, Clone, Copy)]
pub(super) struct Point {
    pub(super) direction: Direction,
    pub(super) pattern: Pattern,
    /// Bytes.
    pub(super) size: u64,
    pub(super) median_ps: f64,
}

/// The additional measurement for the network path to another machine.
pub(super) const NETWORK: (Direction, Pattern) = (Direction::Read, Pattern::Same);

/// Startup and time of a byte, in picoseconds, of the network path to another machine.
pub(super) fn network(points: &[Point]) -> (u64, u64) {
    let sums = Sums::of(points.iter().filter(|point| point.median_ps > 0.0));
    let slope = if sums.spread > 0.0 { (sums.slope / sums.spread).max(0.0) } else { 0.0 };
    (whole(sums.startup(slope)), whole(slope))
}

/// The profile that fits the points best.
pub(super) fn profile(points: &[Point]) -> DeviceProfile {
    DeviceProfile {
        read: service(points, Direction::Read),
        write: service(points, Direction::Write),
    }
}

/// Weighted least squares on the medians of one direction: each pattern has its own startup, and both have the same
/// time per byte. A point is weighted by the inverse square of its time, so that relative errors count equally and a
/// startup is not lost next to a long transfer.
fn service(points: &[Point], direction: Direction) -> ServiceProfile {
    let of = |pattern| {
        let wanted = move |point: &&Point| {
            (point.direction, point.pattern) == (direction, pattern) && point.median_ps > 0.0
        };
        Sums::of(points.iter().filter(wanted))
    };
    let (sequential, random) = (of(Pattern::Sequential), of(Pattern::Random));
    let spread = sequential.spread + random.spread;
    let slope = if spread > 0.0 { (sequential.slope + random.slope) / spread } else { 0.0 };
    let slope = slope.max(0.0);
    ServiceProfile {
        startup_sequential_ps: whole(sequential.startup(slope)),
        startup_random_ps: whole(random.startup(slope)),
        per_byte_ps: whole(slope),
    }
}

/// What the fit needs of one pattern's points.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    mean_size: f64,
    mean_time: f64,
    /// Weighted sum of squared size deviations.
    spread: f64,
    /// Weighted sum of size deviation times time deviation.
    slope: f64,
}

impl Sums {
    fn of<'a>(points: impl Iterator<Item = &'a Point> + Clone) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "requests are far shorter than 2^52 bytes")]
        let weighted =
            points.map(|point| (1.0 / point.median_ps.powi(2), point.size as f64, point.median_ps));
        let total: f64 = weighted.clone().map(|(weight, ..)| weight).sum();
        if total <= 0.0 {
            return Self::default();
        }
        let mean_size =
            weighted.clone().map(|(weight, size, _)| weight * size).sum::<f64>() / total;
        let mean_time =
            weighted.clone().map(|(weight, _, time)| weight * time).sum::<f64>() / total;
        let mut sums = Self { mean_size, mean_time, spread: 0.0, slope: 0.0 };
        for (weight, size, time) in weighted {
            sums.spread += weight * (size - mean_size).powi(2);
            sums.slope += weight * (size - mean_size) * (time - mean_time);
        }
        sums
    }

    fn startup(self, slope: f64) -> f64 {
        (self.mean_time - slope * self.mean_size).max(0.0)
    }
}

/// The median in picoseconds; 0 if there are no times.
pub(super) fn median_ps(times: &mut [Duration]) -> f64 {
    times.sort_unstable();
    let middle = |at: usize| times.get(at).map_or(0.0, |time| time.as_secs_f64() * 1e12);
    f64::midpoint(middle(times.len().saturating_sub(1) / 2), middle(times.len() / 2))
}

/// Positions for random requests: the same for the same seed (Weyl sequence, mixed).
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `limit`.
    pub(super) const fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(startups: [f64; 2], per_byte: f64, noise: impl Fn(usize) -> f64) -> Vec<Point> {
        let mut points = Vec::new();
        for (pattern, startup) in [Pattern::Sequential, Pattern::Random].into_iter().zip(startups) {
            for size in [4096_u32, 65_536, 1 << 20] {
                let time = startup + per_byte * f64::from(size);
                let median_ps = time * (1.0 + noise(points.len()));
                let size = u64::from(size);
                points.push(Point { direction: Direction::Read, pattern, size, median_ps });
            }
        }
        points
    }

    #[test]
    fn exact_times_give_exact_parameters() {
        let fitted = service(&points([1e6, 5e9], 8000.0, |_| 0.0), Direction::Read);
        assert_eq!(fitted.startup_sequential_ps, 1_000_000);
        assert_eq!(fitted.startup_random_ps, 5_000_000_000);
        assert_eq!(fitted.per_byte_ps, 8000);
    }

    #[test]
    fn a_small_startup_is_not_lost_beside_a_long_transfer() {
        let alternating = |at| if at % 2 == 0 { 0.01 } else { -0.01 };
        let fitted = service(&points([80e6, 80e6], 5000.0, alternating), Direction::Read);
        for startup in [fitted.startup_sequential_ps, fitted.startup_random_ps] {
            assert!(startup.abs_diff(80_000_000) < 4_000_000, "{startup}");
        }
        assert!(fitted.per_byte_ps.abs_diff(5000) < 100, "{}", fitted.per_byte_ps);
    }

    #[test]
    fn outliers_do_not_move_the_median() {
        let mut times = [3, 1, 900, 2, 4].map(Duration::from_millis);
        assert!((median_ps(&mut times) - 3e9).abs() < 1.0);
        assert!((median_ps(&mut times[..4]) - 2.5e9).abs() < 1.0);
        assert!(median_ps(&mut []).abs() < 1.0);
    }
}
