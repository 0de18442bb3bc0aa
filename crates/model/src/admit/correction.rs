//! How far one side is from its profile, learnt from measured times (ours).
//!
//! A prediction is off by what the profile does not know: congestion, a sick device, RAM in front
//! of it. The number of requests that really wait is not known either, so a measured time between
//! service alone and service behind a full queue says nothing. Beyond that band, the logarithm of
//! the factor moves by 1/32 of the distance, itself taken for at most a factor of 4: one outlier
//! moves the factor by less than 5 %, and a factor of 8 takes about a hundred requests. Inside
//! the band the factor drifts back to 1.

use std::sync::atomic::{AtomicI32, Ordering};

/// Fixed point: this is a factor of 2.
const OCTAVE: f64 = 65_536.0;
/// Share of the distance that one observation moves.
const GAIN: f64 = 1.0 / 32.0;
/// Share of the way back to 1 that an observation inside the band moves.
const DRIFT: f64 = 1.0 / 256.0;
/// Octaves of distance that one observation can claim.
const CLAIM_MAX: f64 = 2.0;
/// Octaves that the factor may differ from 1.
const OCTAVES_MAX: f64 = 10.0;

/// A learnt factor on predicted times; 1 until something was learnt.
#[derive(Debug, Default)]
pub(super) struct Correction {
    octaves: AtomicI32,
}

impl Correction {
    /// The factor.
    pub(super) fn factor(&self) -> f64 {
        match self.octaves.load(Ordering::Relaxed) {
            0 => 1.0,
            octaves => (f64::from(octaves) / OCTAVE).exp2(),
        }
    }

    /// Learns that a request took `measured`, where anything from `least` to `most` (factor
    /// included) was to be expected. With `hides_work`, less time than expected is no sign of a
    /// faster device. A lost update of a racing thread costs one observation.
    pub(super) fn learn(&self, least: f64, most: f64, measured: f64, hides_work: bool) {
        if measured <= 0.0 || least <= 0.0 {
            return;
        }
        let now = f64::from(self.octaves.load(Ordering::Relaxed)) / OCTAVE;
        let step = if measured > most {
            (measured / most).log2().min(CLAIM_MAX) * GAIN
        } else if measured < least {
            (measured / least).log2().max(-CLAIM_MAX) * GAIN
        } else {
            -now * DRIFT
        };
        let floor = if hides_work { 0.0 } else { -OCTAVES_MAX };
        let next = (now + step).clamp(floor, OCTAVES_MAX) * OCTAVE;
        #[expect(clippy::cast_possible_truncation, reason = "within ten octaves")]
        self.octaves.store(next as i32, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_outlier_moves_it_by_less_than_five_percent() {
        let correction = Correction::default();
        correction.learn(1.0, 2.0, 1e9, false);
        assert!(correction.factor() > 1.0 && correction.factor() < 1.05, "{correction:?}");
    }

    #[test]
    fn it_finds_a_lasting_factor_and_forgets_it_again() {
        let correction = Correction::default();
        for _ in 0..300 {
            let factor = correction.factor();
            correction.learn(factor, factor, 8.0, false);
        }
        assert!((7.0..=8.1).contains(&correction.factor()), "{}", correction.factor());
        for _ in 0..2000 {
            correction.learn(0.5, 100.0, 1.0, false);
        }
        assert!(correction.factor() < 1.01, "{}", correction.factor());
    }

    #[test]
    fn writes_into_ram_do_not_make_a_disk_fast() {
        let correction = Correction::default();
        for _ in 0..300 {
            correction.learn(1000.0, 2000.0, 1.0, true);
        }
        assert!(correction.factor() >= 1.0);
    }
}
