//! Arithmetic on one element: the definition of every result.
//!
//! Invariant: `narrow(combine(widen(a), widen(b)))` is what each level must reproduce bit for bit. NaN travels
//! through `combine` and `scale` with any payload and is made canonical by `narrow`, once, at the end.
//!
//! Absent: memory, order of the sources (`scalar`, `vector`).

use half::{bf16, f16};

use crate::convert::{Binary16, E4m3, E5m2, NAN_F32, NAN_F64, decode, decode_bf16, encode, encode_bf16};
use crate::reduce_op::{Combination, Op};
use crate::{Element, F8E4m3, F8E5m2};

/// The factor of contributions, in every type of arithmetic, and the divisor of sums.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Factors {
    /// For floats of up to 32 bits.
    pub(crate) single: f32,
    /// For binary64.
    pub(crate) double: f64,
    /// For integers, whose low bits count.
    pub(crate) whole: u64,
    /// For the mean of integers.
    pub(crate) divisor: u32,
}

impl Factors {
    /// Nothing is scaled or divided.
    pub(crate) const ONE: Factors = Factors { single: 1.0, double: 1.0, whole: 1, divisor: 1 };
}

/// An element that can be folded.
pub(crate) trait Number: Element {
    /// The type of its arithmetic.
    type Wide: Copy;
    /// The factor of a contribution that is not scaled.
    const ONE: Self::Wide;

    fn widen(self) -> Self::Wide;
    /// Rounds; NaN becomes the type's canonical NaN.
    fn narrow(wide: Self::Wide) -> Self;
    fn combine<O: Op>(left: Self::Wide, right: Self::Wide) -> Self::Wide;
    /// The factor in this type's arithmetic.
    fn factor(factors: &Factors) -> Self::Wide;
    /// Multiplies by `factor`; integers wrap.
    fn scale(wide: Self::Wide, factor: Self::Wide) -> Self::Wide;
    /// Divides an integer, truncating toward zero; leaves a float as it is.
    fn divide(wide: Self::Wide, divisor: u32) -> Self::Wide;
}

macro_rules! integers {
    ($($element:ty, $exact:ty);*) => {$(
        impl Number for $element {
            type Wide = $element;
            const ONE: $element = 1;

            #[inline(always)]
            fn widen(self) -> $element {
                self
            }
            #[inline(always)]
            fn narrow(wide: $element) -> $element {
                wide
            }
            #[inline(always)]
            fn combine<O: Op>(left: $element, right: $element) -> $element {
                match O::COMBINES {
                    Combination::Add => left.wrapping_add(right),
                    Combination::Multiply => left.wrapping_mul(right),
                    Combination::Larger => left.max(right),
                    Combination::Smaller => left.min(right),
                }
            }
            #[inline(always)]
            fn factor(factors: &Factors) -> $element {
                factors.whole as $element
            }
            #[inline(always)]
            fn scale(wide: $element, factor: $element) -> $element {
                wide.wrapping_mul(factor)
            }
            #[inline(always)]
            fn divide(wide: $element, divisor: u32) -> $element {
                // Divided in a type that holds both exactly; the quotient is no larger than the dividend.
                (<$exact>::from(wide) / <$exact>::from(divisor)) as $element
            }
        }
    )*};
}
integers!(i8, i64; u8, u32; i32, i64; u32, u32; i64, i64; u64, u64);

macro_rules! floats {
    ($($element:ty, $wide:ident, $factor:ident, $widen:expr, $narrow:expr);* $(;)?) => {$(
        impl Number for $element {
            type Wide = $wide;
            const ONE: $wide = 1.0;

            #[inline(always)]
            fn widen(self) -> $wide {
                $widen(self)
            }
            #[inline(always)]
            fn narrow(wide: $wide) -> $element {
                $narrow(wide)
            }
            #[inline(always)]
            fn combine<O: Op>(left: $wide, right: $wide) -> $wide {
                match O::COMBINES {
                    Combination::Add => left + right,
                    Combination::Multiply => left * right,
                    Combination::Larger => $wide::maximum_of(left, right),
                    Combination::Smaller => $wide::minimum_of(left, right),
                }
            }
            #[inline(always)]
            fn factor(factors: &Factors) -> $wide {
                factors.$factor
            }
            #[inline(always)]
            fn scale(wide: $wide, factor: $wide) -> $wide {
                wide * factor
            }
            #[inline(always)]
            fn divide(wide: $wide, _: u32) -> $wide {
                wide
            }
        }
    )*};
}
floats! {
    f32, f32, single, std::convert::identity,
        |wide: f32| f32::from_bits(if wide.is_nan() { NAN_F32 } else { wide.to_bits() });
    f64, f64, double, std::convert::identity,
        |wide: f64| f64::from_bits(if wide.is_nan() { NAN_F64 } else { wide.to_bits() });
    f16, f32, single, |element: f16| decode::<Binary16>(u32::from(element.to_bits())),
        |wide| f16::from_bits(encode::<Binary16>(wide) as u16);
    bf16, f32, single, |element: bf16| decode_bf16(element.to_bits()),
        |wide| bf16::from_bits(encode_bf16(wide));
    F8E4m3, f32, single, |element: F8E4m3| decode::<E4m3>(u32::from(element.0)),
        |wide| F8E4m3(encode::<E4m3>(wide) as u8);
    F8E5m2, f32, single, |element: F8E5m2| decode::<E5m2>(u32::from(element.0)),
        |wide| F8E5m2(encode::<E5m2>(wide) as u8);
}

/// IEEE 754-2019 `minimum` and `maximum`, section 9.6.
trait Extremes: Sized {
    fn maximum_of(left: Self, right: Self) -> Self;
    fn minimum_of(left: Self, right: Self) -> Self;
}

macro_rules! extremes {
    ($($float:ident),*) => {$(
        impl Extremes for $float {
            #[inline(always)]
            fn maximum_of(left: $float, right: $float) -> $float {
                // Equal values differ at most in the sign of zero, which the AND clears if it can.
                let tie = $float::from_bits(left.to_bits() & right.to_bits());
                let larger = if left > right { left } else { right };
                let number = if left == right { tie } else { larger };
                if left.is_nan() || right.is_nan() { $float::NAN } else { number }
            }
            #[inline(always)]
            fn minimum_of(left: $float, right: $float) -> $float {
                let tie = $float::from_bits(left.to_bits() | right.to_bits());
                let smaller = if left < right { left } else { right };
                let number = if left == right { tie } else { smaller };
                if left.is_nan() || right.is_nan() { $float::NAN } else { number }
            }
        }
    )*};
}
extremes!(f32, f64);
