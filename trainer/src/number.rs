//! The numbers that a model computes in: `f32`, and `f64` where a test needs to see rounding apart from mistakes.
//!
//! Invariant: sums have one order, whatever instructions the processor has: sixteen partial sums, folded at the end. So the
//! same values give the same bits with AVX2 and without. Products of matrices are elsewhere.

use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub};

use consort::Communicator;
use consort::experts::{ExpertOptions, Experts};

use crate::routes::{Routes, Ways};

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

/// A floating-point number of a model: `f32` or `f64`.
pub trait Number:
    consort::Element
    + sealed::Sealed
    + Copy
    + Default
    + PartialOrd
    + std::fmt::Debug
    + Send
    + Sync
    + 'static
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + MulAssign
{
    /// Zero.
    const ZERO: Self;
    /// One.
    const ONE: Self;

    /// The number nearest to `value`.
    fn of(value: f64) -> Self;

    /// This number, exactly.
    fn wide(self) -> f64;

    /// e to this power, within three units in the last place. For `f32`, powers beyond ±87 count as ±87.
    fn exp(self) -> Self;

    /// The ways of rows to experts that the ranks of `comm` share, in this type.
    ///
    /// # Errors
    /// As [`consort::experts::Experts::new`].
    fn routes(comm: &Communicator, options: ExpertOptions) -> consort::Result<Box<dyn Routes<Self>>>;

    /// The same elements, if they are `f32`.
    fn f32s(values: &[Self]) -> Option<&[f32]>;

    /// The same elements, if they are `f32`.
    fn f32s_mut(values: &mut [Self]) -> Option<&mut [f32]>;

    /// The square root.
    fn sqrt(self) -> Self;

    /// The bfloat16 nearest to this number; of `f64`, to the `f32` nearest to it.
    fn bfloat16(self) -> Self;

    /// Its name in files.
    const NAME: &str;

    /// Writes its bits to as many bytes as it has, the lowest first.
    ///
    /// # Panics
    /// If there are more or fewer bytes.
    fn put(self, bytes: &mut [u8]);

    /// The number that [`Number::put`] wrote.
    ///
    /// # Panics
    /// If there are more or fewer bytes.
    fn get(bytes: &[u8]) -> Self;
}

macro_rules! bytes {
    ($name:literal) => {
        const NAME: &str = $name;

        fn put(self, bytes: &mut [u8]) {
            bytes.copy_from_slice(&self.to_le_bytes());
        }

        fn get(bytes: &[u8]) -> Self {
            Self::from_le_bytes(bytes.try_into().expect("as many bytes as a number has"))
        }
    };
}

impl Number for f64 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;

    fn routes(comm: &Communicator, options: ExpertOptions) -> consort::Result<Box<dyn Routes<Self>>> {
        Ok(Box::new(Ways::new(Experts::<Self>::new(comm, options)?)))
    }

    fn f32s(_: &[Self]) -> Option<&[f32]> {
        None
    }

    fn f32s_mut(_: &mut [Self]) -> Option<&mut [f32]> {
        None
    }

    #[inline(always)]
    fn of(value: f64) -> Self {
        value
    }

    #[inline(always)]
    fn wide(self) -> f64 {
        self
    }

    #[inline(always)]
    fn exp(self) -> Self {
        f64::exp(self)
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        f64::sqrt(self)
    }

    #[inline(always)]
    fn bfloat16(self) -> Self {
        f64::from((self as f32).bfloat16())
    }

    bytes!("F64");
}

impl Number for f32 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;

    fn routes(comm: &Communicator, options: ExpertOptions) -> consort::Result<Box<dyn Routes<Self>>> {
        Ok(Box::new(Ways::new(Experts::<Self>::new(comm, options)?)))
    }

    fn f32s(values: &[Self]) -> Option<&[f32]> {
        Some(values)
    }

    fn f32s_mut(values: &mut [Self]) -> Option<&mut [f32]> {
        Some(values)
    }

    #[inline(always)]
    fn of(value: f64) -> Self {
        value as f32
    }

    #[inline(always)]
    fn wide(self) -> f64 {
        f64::from(self)
    }

    /// The standard library's function is a call for each number; this one has no branch, so loops over it are vectors.
    /// The power is n ln 2 + r with |r| ≤ ln 2 / 2, and e^r is the sum of Taylor to the seventh power.
    #[inline(always)]
    fn exp(self) -> Self {
        /// 1.5 * 2^23: what is added to it is rounded to an integer, which its lowest bits then have.
        const ROUNDER: f32 = 12_582_912.0;
        // ln 2 in two parts: n times the first is exact for every n that occurs.
        const LN_2_HIGH: f32 = 355.0 / 512.0;
        const LN_2_LOW: f32 = -2.121_944_4e-4;
        // Comparisons, not `clamp`: a value that is no number stays one that is not.
        let x = if self > 87.0 { 87.0 } else { self };
        let x = if x < -87.0 { -87.0 } else { x };
        let rounded = x * std::f32::consts::LOG2_E + ROUNDER;
        let n = rounded - ROUNDER;
        let r = (x - n * LN_2_HIGH) - n * LN_2_LOW;
        let mut sum = 1.0 / 5040.0;
        for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
            sum = sum * r + coefficient;
        }
        sum * f32::from_bits(rounded.to_bits().wrapping_add(127) << 23)
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        f32::sqrt(self)
    }

    #[inline(always)]
    fn bfloat16(self) -> Self {
        f32::from_bits(rounded_bits(self) & 0xffff_0000)
    }

    bytes!("F32");
}

/// The bits of an `f32` whose upper half is the nearest bfloat16, ties to the even one; subnormal numbers are kept, and a value
/// that is no number stays one. The lower half means nothing. No instruction is used, as the one that rounds takes subnormal
/// numbers for zero.
#[inline(always)]
pub(crate) fn rounded_bits(value: f32) -> u32 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    // Rounded like a number, a value that is none could become one.
    if value.is_nan() { bits | 0x0040_0000 } else { rounded }
}

/// The partial sums of a sum.
const LANES: usize = 16;

/// The sum of `term` over two slices of equal length, in the one order.
#[inline(always)]
pub(crate) fn sum2<T: Number>(a: &[T], b: &[T], term: impl Fn(T, T) -> T) -> T {
    let mut lanes = [T::ZERO; LANES];
    let (a_whole, a_rest) = a.as_chunks::<LANES>();
    let (b_whole, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a_whole.iter().zip(b_whole) {
        for lane in 0..LANES {
            lanes[lane] += term(a[lane], b[lane]);
        }
    }
    for (lane, (a, b)) in a_rest.iter().zip(b_rest).enumerate() {
        lanes[lane] += term(*a, *b);
    }
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// The sum of `term` over a slice, in the one order.
#[inline(always)]
pub(crate) fn sum<T: Number>(a: &[T], term: impl Fn(T) -> T) -> T {
    sum2(a, a, |a, _| term(a))
}

/// Runs `body` compiled for the vector instructions that this processor has. What `body` calls must be inlined to profit.
#[inline(always)]
pub(crate) fn with_vectors<R>(body: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_e_are_near_the_exact_ones() {
        let mut worst = 0f64;
        for step in -870_000..=870_000 {
            let x = step as f32 * 1e-4;
            let exact = f64::from(x).exp();
            worst = worst.max((f64::from(Number::exp(x)) / exact - 1.0).abs());
        }
        assert!(worst < 3.0 * f64::from(f32::EPSILON), "{worst:e}");
        assert_eq!(Number::exp(0f32), 1.0);
        assert!(Number::exp(f32::NAN).is_nan());
        assert!(Number::exp(-1e30f32) < 1e-37 && Number::exp(1e30f32) > 1e37);
    }

    #[test]
    fn bfloat16_is_that_of_the_library() {
        const SEED: u64 = 20_261_130;
        // Numbers, ties and their neighbours, subnormal numbers, both ends of the range, infinities and values that are none.
        let edges =
            [0u32, 1, 0x7fff, 0x8000, 0x8001, 0x1_8000, 0x7f_ffff, 0x80_0000, 0x3f80_8000, 0x3f81_8000];
        let ends =
            [0x7f7f_7fff, 0x7f7f_8000, 0x7f7f_ffff, 0x7f80_0000, 0x7f80_0001, 0x7fff_ffff, 0x7fc0_0000];
        let edges = edges.iter().chain(&ends).flat_map(|bits| [*bits, bits | 1 << 31]);
        let random = crate::random::Random::new(SEED, "bits");
        for bits in edges.chain((0..10_001).map(|index| random.bits(index) as u32)) {
            let value = f32::from_bits(bits);
            let expected = u32::from(consort::bf16::from_f32(value).to_bits()) << 16;
            assert_eq!(value.bfloat16().to_bits(), expected, "seed {SEED}: {bits:#x}");
        }
    }

    #[test]
    fn sums_are_the_same_with_and_without_vectors() {
        for len in [0, 1, 15, 16, 17, 100, 1000] {
            let values: Vec<f32> = (0..len).map(|at| (at as f32 * 0.1).sin()).collect();
            let plain = sum(&values, |a| a * a);
            let vectors = with_vectors(|| sum(&values, |a| a * a));
            assert_eq!(plain.to_bits(), vectors.to_bits());
            let exact: f64 = values.iter().map(|a| f64::from(*a) * f64::from(*a)).sum();
            assert!((f64::from(plain) - exact).abs() <= 1e-5 * exact, "{len}");
        }
    }
}
