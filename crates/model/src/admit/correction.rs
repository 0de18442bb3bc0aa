//! How far one side deviates from its profile, learnt from measured times (ours).
//!
//! Predictions do not include what the profile does not know: congestion, a failing device, RAM in front of it. The
//! number of requests that really wait is unknown, too, so a measured time between the service time alone and that
//! behind a full queue reveals nothing. Outside that band, the logarithm of the factor moves by 1/32 of the distance,
//! which counts as at most a factor of 4: one outlier changes the factor by less than 5 %, and reaching a factor of 8
//! takes about a hundred requests. Inside the band the factor drifts back to 1.

use std::sync::atomic::{AtomicI32, Ordering};

/// Fixed point: this is a factor of 2.
const OCTAVE: f64 = 65_536.0;
/// Share of the distance by which one observation moves the factor.
const GAIN: f64 = 1.0 / 32.0;
/// Share of the distance to 1 by which an observation inside the band moves the factor.
const DRIFT: f64 = 1.0 / 256.0;
/// Limit of the distance of one observation, in octaves.
const CLAIM_MAX: f64 = 2.0;
/// Limit of the factor, in octaves from 1.
const OCTAVES_MAX: f64 = 10.0;

/// A learnt factor for predicted times; initially 1.
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

    /// Learns that a request took `measured`, where anything from `least` to `most` (including the factor) was to be
    /// expected. With `hides_work`, a shorter time than expected is not a sign of a faster device. If threads race, a lost
    /// update costs one observation.
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
