//! Decides which use is advised, and how sure that is: from times alone.

use halocline_plan::gain_range::{GAIN_MIN, GainRange, gain};

/// Possible uses of an SSD; the order breaks ties.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::command) enum Use {
    /// Nothing: the slowest servers alone.
    None,
    /// Stripes of files on it.
    Stripes,
    /// An extent cache.
    Cache,
    /// A file tier.
    Tier,
}

impl Use {
    pub(in crate::command) const ALL: [Self; 4] =
        [Self::None, Self::Stripes, Self::Cache, Self::Tier];

    /// The name in JSON.
    pub(in crate::command) const fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Stripes => "stripes",
            Self::Cache => "cache",
            Self::Tier => "tier",
        }
    }

    /// The name for people.
    pub(in crate::command) const fn text(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Stripes => "stripe target",
            Self::Cache => "extent cache",
            Self::Tier => "file tier",
        }
    }
}

/// Seconds with each use, in the order of [`Use::ALL`]; `None` if it is impossible. No use is always possible.
pub(in crate::command) type Seconds = [Option<f64>; 4];

/// The advice.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::command) struct Advice {
    /// The advised use; none if there is nothing to gain.
    pub(in crate::command) answer: Use,
    /// The fastest, whether it is advised or not.
    pub(in crate::command) best: Use,
    /// Gain of throughput of the fastest over no use, as a share.
    pub(in crate::command) gain: f64,
    /// The same over the next fastest.
    pub(in crate::command) gain_over_next: f64,
    /// The gains of the fastest in all variants.
    pub(in crate::command) gains: GainRange,
    /// Share of the variants in which the same use is the fastest, or, if none is advised, in which nothing gains.
    pub(in crate::command) stays: f64,
    /// Other uses that cannot be distinguished from the fastest.
    pub(in crate::command) ties: Vec<Use>,
}

/// The fastest use.
fn fastest(seconds: &Seconds) -> (Use, f64) {
    let known = Use::ALL.into_iter().zip(seconds).filter_map(|(what, s)| Some((what, (*s)?)));
    let first = known.min_by(|(_, one), (_, other)| one.total_cmp(other));
    first.expect("no use is always possible")
}

/// The fastest use if it gains anything, otherwise none.
pub(in crate::command) fn answer(seconds: &Seconds) -> Use {
    let (best, least) = fastest(seconds);
    let none = seconds[0].unwrap_or(least);
    if gain(none, least) > GAIN_MIN { best } else { Use::None }
}

/// Advises from the `base` case and the results of `variants` of it; `weight`, from 0 to 1, says how much the trace can
/// be trusted.
pub(in crate::command) fn advise(base: &Seconds, variants: &[Seconds], weight: f64) -> Advice {
    let (best, least) = fastest(base);
    let of = |seconds: &Seconds| Some(gain(seconds[0]?, seconds[best as usize]?));
    let total_gain = of(base).unwrap_or(0.0);
    let gains = GainRange::new(total_gain, variants.iter().filter_map(of), weight);
    let others = Use::ALL.into_iter().zip(base).filter(|(what, _)| *what != best);
    let others: Vec<_> = others.filter_map(|(what, s)| Some((what, (*s)?))).collect();
    let next = others.iter().map(|(_, s)| *s).fold(f64::INFINITY, f64::min);
    let ties = others.iter().filter(|(_, s)| gain(*s, least) <= GAIN_MIN);
    let worth = best != Use::None && gains.is_sure();
    let usual = answer(base);
    let same = variants.iter().filter(|seconds| answer(seconds) == usual).count();
    #[expect(clippy::cast_precision_loss, reason = "a share of a few")]
    let stays = if variants.is_empty() { 1.0 } else { same as f64 / variants.len() as f64 };
    Advice {
        answer: if worth { best } else { Use::None },
        best,
        gain: total_gain,
        gain_over_next: if next.is_finite() { gain(next, least) } else { 0.0 },
        gains,
        stays,
        ties: ties.map(|(what, _)| *what).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(of: [f64; 4]) -> Seconds {
        of.map(Some)
    }

    #[test]
    fn the_fastest_is_advised_where_it_gains_in_every_variant() {
        let base = seconds([10.0, 8.0, 4.0, 5.0]);
        let sure = advise(&base, &[seconds([10.0, 8.0, 4.1, 5.0]); 4], 1.0);
        assert_eq!((sure.answer, sure.best), (Use::Cache, Use::Cache));
        assert!((sure.gain - 1.5).abs() < 1e-9 && (sure.gain_over_next - 0.25).abs() < 1e-9);
        assert!((sure.stays - 1.0).abs() < 1e-9 && sure.ties.is_empty());
        // In half of the variants another one is faster.
        let variants = [seconds([10.0, 8.0, 4.0, 5.0]), seconds([10.0, 8.0, 4.0, 3.9])];
        assert!((advise(&base, &variants, 1.0).stays - 0.5).abs() < 1e-9);
        // The disks alone are far slower in one of them.
        let slow = [seconds([900.0, 8.0, 4.0, 5.0]), seconds([9.0, 8.0, 4.0, 5.0])];
        let sure = advise(&base, &slow, 1.0);
        assert_eq!(sure.answer, Use::Cache, "{sure:?}");
        assert!((sure.gains.least - 1.25).abs() < 1e-9 && (sure.gains.most - 224.0).abs() < 1e-9);
        // A trace of which little is known allows no advice.
        assert_eq!(advise(&base, &variants, 1e-3).answer, Use::None);
    }

    #[test]
    fn nothing_is_advised_where_nothing_is_gained() {
        let advice = advise(&seconds([4.0, 4.0, 5.0, 3.99]), &[], 1.0);
        assert_eq!((advice.answer, advice.best), (Use::None, Use::Tier));
        assert_eq!(advice.ties, [Use::None, Use::Stripes]);
        let slower = advise(&seconds([4.0, 5.0, 5.0, 5.0]), &[], 1.0);
        assert_eq!((slower.answer, slower.best, slower.gain), (Use::None, Use::None, 0.0));
        // A gain that might equally be a loss.
        let variants = [seconds([4.0, 4.0, 2.0, 4.0]), seconds([4.0, 4.0, 8.0, 4.0])];
        assert_eq!(advise(&seconds([4.0, 4.0, 3.5, 4.0]), &variants, 1.0).answer, Use::None);
    }

    #[test]
    fn what_is_not_possible_is_not_advised() {
        let advice = advise(&[Some(4.0), None, Some(2.0), None], &[], 1.0);
        assert_eq!((advice.answer, advice.ties.len()), (Use::Cache, 0));
    }
}
