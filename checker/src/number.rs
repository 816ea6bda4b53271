//! Fractions of whole numbers, in lowest terms, exact or absent.

use std::fmt;

/// A fraction in lowest terms, at least 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fraction {
    above: u128,
    below: u128,
}

impl Fraction {
    /// `above / below`; none where `below` is 0.
    pub(crate) fn new(above: u128, below: u128) -> Option<Fraction> {
        let (mut one, mut other) = (above, below);
        while other != 0 {
            (one, other) = (other, one % other);
        }
        (below > 0).then(|| Fraction { above: above / one, below: below / one })
    }

    /// Whether it is below another; none where a product does not fit.
    pub(crate) fn is_below(self, other: Fraction) -> Option<bool> {
        Some(self.above.checked_mul(other.below)? < other.above.checked_mul(self.below)?)
    }

    /// The quotient; none where it does not fit or the other is 0.
    pub(crate) fn through(self, other: Fraction) -> Option<Fraction> {
        Fraction::new(self.above.checked_mul(other.below)?, self.below.checked_mul(other.above)?)
    }

    /// How many whole `parts`-ths it has; none where that does not fit.
    pub(crate) fn parts_of(self, parts: u128) -> Option<u128> {
        Some(self.above.checked_mul(parts)? / self.below)
    }

    /// The nearest `f64`, but for the last bit; for people alone.
    pub(crate) fn value(self) -> f64 {
        self.above as f64 / self.below as f64
    }
}

impl fmt::Display for Fraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.above, self.below)
    }
}
