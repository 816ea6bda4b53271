//! Rational numbers of bounds: never negative, in lowest terms, exact or absent.
//!
//! Invariant: an operation that would not fit gives `None` instead of a wrong number; a comparison always fits.

use std::cmp::Ordering;
use std::fmt;

/// A rational number of at least 0, in lowest terms.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ratio {
    numerator: u128,
    denominator: u128,
}

/// The greatest common divisor.
pub(crate) fn gcd(mut one: u128, mut other: u128) -> u128 {
    while other != 0 {
        (one, other) = (other, one % other);
    }
    one
}

impl Ratio {
    /// Zero.
    pub const ZERO: Ratio = Ratio { numerator: 0, denominator: 1 };

    /// `numerator / denominator` in lowest terms.
    ///
    /// # Panics
    ///
    /// When the denominator is 0.
    pub fn new(numerator: u128, denominator: u128) -> Ratio {
        assert!(denominator > 0, "{numerator} / 0 is no number");
        let common = gcd(numerator, denominator);
        Ratio { numerator: numerator / common, denominator: denominator / common }
    }

    /// The number above the line, in lowest terms.
    pub const fn numerator(self) -> u128 {
        self.numerator
    }

    /// The number below the line, in lowest terms; above 0.
    pub const fn denominator(self) -> u128 {
        self.denominator
    }

    /// Whether it is 0.
    pub const fn is_zero(self) -> bool {
        self.numerator == 0
    }

    /// The sum, where it fits.
    pub fn checked_add(self, other: Ratio) -> Option<Ratio> {
        let common = gcd(self.denominator, other.denominator);
        let one = self.numerator.checked_mul(other.denominator / common)?;
        let two = other.numerator.checked_mul(self.denominator / common)?;
        Some(Ratio::new(one.checked_add(two)?, (self.denominator / common).checked_mul(other.denominator)?))
    }

    /// The product, where it fits.
    pub fn checked_mul(self, other: Ratio) -> Option<Ratio> {
        let (one, two) = (gcd(self.numerator, other.denominator), gcd(other.numerator, self.denominator));
        Some(Ratio {
            numerator: (self.numerator / one.max(1)).checked_mul(other.numerator / two.max(1))?,
            denominator: (self.denominator / two.max(1)).checked_mul(other.denominator / one.max(1))?,
        })
    }

    /// `1 / self`; none for 0.
    pub fn inverse(self) -> Option<Ratio> {
        let Ratio { numerator, denominator } = self;
        (numerator > 0).then_some(Ratio { numerator: denominator, denominator: numerator })
    }

    /// The nearest `f64`, but for the last bit.
    pub fn value(self) -> f64 {
        self.numerator as f64 / self.denominator as f64
    }
}

impl Ord for Ratio {
    /// Compares continued fractions, whose terms never grow.
    fn cmp(&self, other: &Ratio) -> Ordering {
        let (mut a, mut b) = (self.numerator, self.denominator);
        let (mut c, mut d) = (other.numerator, other.denominator);
        loop {
            let order = (a / b).cmp(&(c / d));
            let (left, right) = (a % b, c % d);
            match (order, left, right) {
                (Ordering::Equal, 0, 0) => return Ordering::Equal,
                (Ordering::Equal, 0, _) => return Ordering::Less,
                (Ordering::Equal, _, 0) => return Ordering::Greater,
                (Ordering::Equal, _, _) => (a, b, c, d) = (d, right, b, left),
                _ => return order,
            }
        }
    }
}

impl PartialOrd for Ratio {
    fn partial_cmp(&self, other: &Ratio) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.denominator {
            1 => write!(f, "{}", self.numerator),
            _ => write!(f, "{}/{}", self.numerator, self.denominator),
        }
    }
}

impl fmt::Debug for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_compared_and_computed_exactly() {
        for a in 0..12u128 {
            for b in 1..12u128 {
                for c in 0..12u128 {
                    for d in 1..12u128 {
                        let (one, other) = (Ratio::new(a, b), Ratio::new(c, d));
                        assert_eq!(one.cmp(&other), (a * d).cmp(&(c * b)), "{one} and {other}");
                        assert_eq!(one.checked_add(other), Some(Ratio::new(a * d + c * b, b * d)));
                        assert_eq!(one.checked_mul(other), Some(Ratio::new(a * c, b * d)));
                    }
                }
            }
        }
        let large = Ratio::new(u128::MAX, u128::MAX - 1);
        assert!(large > Ratio::new(u128::MAX - 1, u128::MAX - 2).inverse().expect("above 0"));
        assert!(large < Ratio::new(u128::MAX - 1, u128::MAX - 2));
        assert_eq!(large.checked_add(large), None);
        assert_eq!(large.checked_mul(large), None);
        assert_eq!(Ratio::ZERO.inverse(), None);
        assert_eq!(format!("{} {}", Ratio::new(8, 6), Ratio::new(8, 4)), "4/3 2");
    }
}
