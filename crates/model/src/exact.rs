//! Exact rational numbers, so that costs that tie compare as equal.

use std::cmp::Ordering;
use std::fmt;
use std::ops::{Add, Mul, Sub};

/// A fraction of 128-bit integers with a positive denominator. Arithmetic panics instead of rounding or wrapping;
/// callers limit their inputs ([`crate::query`]) or use realistic ones.
#[derive(Debug, Clone, Copy)]
pub struct Exact {
    num: i128,
    den: i128,
}

const ROOM: &str = "cost inputs are bounded so that exact arithmetic fits 128 bits";

/// Fractions with smaller denominators are not reduced until they are printed.
const SMALL_DENOMINATOR: i128 = 1 << 32;

impl Exact {
    /// Zero.
    pub const ZERO: Self = Self { num: 0, den: 1 };

    /// `num / den`.
    ///
    /// # Panics
    /// If `den` is not positive.
    pub const fn new(num: i128, den: i128) -> Self {
        assert!(den > 0, "a denominator is positive");
        Self { num, den }
    }

    /// A whole number.
    pub const fn whole(num: i128) -> Self {
        Self { num, den: 1 }
    }

    /// Numerator and denominator in lowest terms.
    pub(crate) const fn reduced(self) -> (i128, i128) {
        let (mut a, mut b) = (self.num.unsigned_abs(), self.den.unsigned_abs());
        while b != 0 {
            (a, b) = (b, a % b);
        }
        let divisor = a.cast_signed();
        (self.num / divisor, self.den / divisor)
    }

    /// Rounded to the nearest picosecond that fits, 0 when negative.
    pub(crate) fn to_ps(self) -> u64 {
        u64::try_from(((self.num + self.den / 2) / self.den).max(0)).unwrap_or(u64::MAX)
    }

    /// As a floating-point number, only for people.
    #[expect(clippy::cast_precision_loss, reason = "for people only; never compared")]
    pub(crate) fn to_f64(self) -> f64 {
        self.num as f64 / self.den as f64
    }

    fn times(a: i128, b: i128) -> i128 {
        a.checked_mul(b).expect(ROOM)
    }

    fn joined(self, other: Self, join: fn(i128, i128) -> Option<i128>) -> Self {
        if self.den == other.den {
            return Self { num: join(self.num, other.num).expect(ROOM), den: self.den };
        }
        let (a, b) = (Self::times(self.num, other.den), Self::times(other.num, self.den));
        let sum = Self { num: join(a, b).expect(ROOM), den: Self::times(self.den, other.den) };
        // Reducing costs more than the sum itself; it is for denominators that accumulate.
        if sum.den < SMALL_DENOMINATOR {
            return sum;
        }
        let (num, den) = sum.reduced();
        Self { num, den }
    }
}

impl Add for Exact {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        self.joined(other, i128::checked_add)
    }
}

impl Sub for Exact {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        self.joined(other, i128::checked_sub)
    }
}

impl Mul for Exact {
    type Output = Self;
    fn mul(self, other: Self) -> Self {
        Self { num: Self::times(self.num, other.num), den: Self::times(self.den, other.den) }
    }
}

impl Ord for Exact {
    fn cmp(&self, other: &Self) -> Ordering {
        if self.den == other.den {
            return self.num.cmp(&other.num);
        }
        Self::times(self.num, other.den).cmp(&Self::times(other.num, self.den))
    }
}

impl PartialOrd for Exact {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Exact {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Exact {}

impl fmt::Display for Exact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (num, den) = self.reduced();
        write!(f, "{num}/{den}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_exact_and_print_in_lowest_terms() {
        let third = Exact::new(2, 6);
        assert_eq!(third + third + third, Exact::whole(1));
        assert_eq!((third - Exact::new(1, 2)).to_string(), "-1/6");
        assert_eq!((third * Exact::whole(6)).to_string(), "2/1");
        assert!(Exact::new(-1, 3) < Exact::ZERO);
        assert_eq!(Exact::ZERO.to_string(), "0/1");
        assert_eq!((Exact::new(5, 2).to_ps(), Exact::new(-5, 2).to_ps()), (3, 0));
    }
}
