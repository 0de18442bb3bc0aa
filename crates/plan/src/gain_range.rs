//! How sure a gain of throughput is: from what parts or variants of a workload gain.

/// A smaller gain does not count: simulated devices are not real ones.
pub const GAIN_MIN: f64 = 0.01;
/// Limit of the gains that are reported: a trace that deserves no trust has no limit of its own.
const GAIN_MAX: f64 = 1e9;

/// The least and the largest gain of a layout, or of a use: of the whole workload, and of parts or variants of it.
///
/// A gain that each of them has is one, however much larger it is in some: half the distance between 30 and 300 times the
/// throughput says nothing against 30 times.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GainRange {
    /// The least, as a share: -0.1 means a tenth less throughput.
    pub least: f64,
    /// The largest.
    pub most: f64,
    /// What the least must be above.
    needed: f64,
}

impl GainRange {
    /// Of a gain of the `whole`, and those of its parts or variants. `weight`, from 0 to 1, says how much the trace can be
    /// trusted: with half of the trust, the logarithms of the others' ratios to the whole count twice, and the least gain
    /// that is one is twice as large.
    pub fn new(whole: f64, others: impl IntoIterator<Item = f64>, weight: f64) -> Self {
        let weight = weight.clamp(1e-9, 1.0);
        let (mut least, mut most) = (whole, whole);
        for gain in others {
            (least, most) = (least.min(gain), most.max(gain));
        }
        let ratio = |gain: f64| (1.0 + gain).max(f64::MIN_POSITIVE);
        let trusted = |gain: f64| {
            if weight < 1.0 {
                ratio(whole) * (ratio(gain) / ratio(whole)).powf(1.0 / weight) - 1.0
            } else {
                gain
            }
        };
        let [least, most] = [least, most].map(|gain| trusted(gain).min(GAIN_MAX));
        Self { least, most, needed: GAIN_MIN / weight }
    }

    /// Whether something is gained in each of them.
    pub fn is_sure(&self) -> bool {
        self.least > self.needed
    }

    /// Half the distance between the least and the largest, at least [`GAIN_MIN`], and more for incomplete traces.
    pub fn spread(&self) -> f64 {
        ((self.most - self.least) / 2.0).max(self.needed).min(GAIN_MAX)
    }
}

/// In another run of a program the parts that gain nothing may be so many times as much of it.
pub const MORE_OF_WEAK_PARTS: f64 = 4.0;

/// Seconds that a part of a workload takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PartSeconds {
    /// Under the default layout.
    pub default: f64,
    /// Under the other one.
    pub seconds: f64,
}

impl PartSeconds {
    /// How much more throughput it has under the other layout, as a share.
    pub fn gain(self) -> f64 {
        gain(self.default, self.seconds)
    }

    /// Whether what it gains counts.
    fn is_weak(self) -> bool {
        self.gain() <= GAIN_MIN
    }
}

/// How much more throughput `seconds` means than `default`, as a share.
pub fn gain(default: f64, seconds: f64) -> f64 {
    if seconds > 0.0 { default / seconds - 1.0 } else { 0.0 }
}

/// The gain of all parts together if those that gain nothing, or lose, were [`MORE_OF_WEAK_PARTS`] times as much of them as they
/// are. What a part loses counts by its seconds: a loss of a hundredth in a part says little against others that take half as
/// long. Where each part gains, it is the gain of their sum.
pub fn gain_with_more_of_weak_parts(parts: &[PartSeconds]) -> f64 {
    let sums = parts.iter().fold((0.0, 0.0), |(default, seconds), part| {
        let times = if part.is_weak() { MORE_OF_WEAK_PARTS } else { 1.0 };
        (default + times * part.default, seconds + times * part.seconds)
    });
    gain(sums.0, sums.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: +111 % of the whole were withheld for 3 % in one of four parts.
    #[test]
    fn a_loss_in_a_part_counts_by_its_seconds() {
        let parts = |all: [(f64, f64); 4]| {
            let parts = all.map(|(default, seconds)| PartSeconds { default, seconds });
            gain_with_more_of_weak_parts(&parts)
        };
        let little = parts([(1.0, 1.03), (1.0, 0.3), (1.0, 0.3), (1.0, 0.27)]);
        assert!(little > 0.4, "{little}");
        // A tenth of all, which loses half: in four times as much of it the gain is gone.
        let much = parts([(1.0, 2.0), (3.0, 2.2), (3.0, 2.2), (3.0, 2.2)]);
        assert!(much < -0.1, "{much}");
        let even = parts([(1.0, 0.5), (2.0, 1.0), (4.0, 2.0), (8.0, 4.0)]);
        assert!(is_near(even, 1.0), "{even}");
        // Some that gain too little to count weigh as much as those that lose.
        let half = parts([(1.0, 1.0), (1.0, 1.0), (1.0, 1.0), (1.0, 0.5)]);
        assert!(is_near(half, 13.0 / 12.5 - 1.0), "{half}");
        assert!(gain_with_more_of_weak_parts(&[]).abs() < 1e-9);
    }

    fn is_near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9 * b.abs().max(1.0)
    }

    /// Regression: half the distance was compared with the gain, so that 45 times the throughput did not count, because it
    /// was 300 times in one of ten variants and never less than 30.
    #[test]
    fn a_gain_that_all_parts_have_is_one_and_one_that_a_part_has_not_is_none() {
        let disks_vary = GainRange::new(44.4, [32.0, 44.4, 310.0], 1.0);
        assert!(disks_vary.is_sure() && disks_vary.spread() > 44.4, "{disks_vary:?}");
        assert!(is_near(disks_vary.least, 32.0) && is_near(disks_vary.most, 310.0));
        assert!(!GainRange::new(2.0, [3.0, 4.0, 0.009], 1.0).is_sure(), "a part gains nothing");
        assert!(!GainRange::new(2.0, [3.0, 4.0, -0.01], 1.0).is_sure(), "a part loses");
        assert!(!GainRange::new(0.009, [3.0, 4.0], 1.0).is_sure(), "the whole gains nothing");
        assert!(is_near(GainRange::new(0.5, [], 1.0).spread(), GAIN_MIN));
    }

    #[test]
    fn of_an_incomplete_trace_more_is_needed() {
        // Half and twice the ratio of the whole count as a quarter and four times.
        let half = GainRange::new(7.0, [3.0, 15.0], 0.5);
        assert!(is_near(half.least, 1.0) && is_near(half.most, 31.0), "{half:?}");
        assert!(half.is_sure());
        assert!(!GainRange::new(7.0, [1.0], 0.5).is_sure());
        assert!(
            !GainRange::new(0.015, [], 0.5).is_sure() && GainRange::new(0.015, [], 1.0).is_sure()
        );
        for gains in [vec![], vec![1e6, -1.0], vec![f64::NAN]] {
            let none = GainRange::new(50.0, gains, 0.0);
            assert!(!none.is_sure() && none.spread().is_finite() && none.least >= -1.0, "{none:?}");
        }
    }
}
