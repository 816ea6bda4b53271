//! Rows of real numbers: weighted sums of them, products of two, and their 8-bit form with scales.
//!
//! Invariant: what is written depends on the values, the weights and the order of the terms alone, as for all kernels. Sums are
//! made in [`Real::Sum`] and rounded once for each group of terms and once at the end; a product is rounded in [`Real::Sum`]
//! before it is added. Absent: which rows belong together.

use std::fmt::Debug;
use std::hint::black_box;
use std::ops::{Add, Mul};

use half::{bf16, f16};

use crate::Element;
use crate::convert::{E4m3, decode, encode};
use crate::float_control::DefaultControls;
use crate::number::Number;
use crate::reducer::Level;
use crate::vector::Work;

/// Values of a row that share a scale in 8-bit form.
pub const SCALED: usize = 128;
/// The largest value of E4M3.
const E4M3_MAX: f32 = 448.0;
/// The least magnitude that counts for a scale; its inverse and the scale itself are normal numbers.
const MAGNITUDE_MIN: f32 = E4M3_MAX * f32::MIN_POSITIVE;
/// Values that are summed at a time: their sums stay in registers.
const STRIP: usize = 64;
/// Partial sums of a product of two rows.
const LANES: usize = 8;

mod sealed {
    pub trait Sealed {}
}

/// An element whose rows are weighed and added: `f32`, `f64`, `half::bf16`, `half::f16`.
pub trait Real: Element + sealed::Sealed + Debug + Default + PartialEq {
    /// The type of sums and weights: `f64` for `f64`, `f32` for the others.
    type Sum: Real<Sum = Self::Sum> + Add<Output = Self::Sum> + Mul<Output = Self::Sum> + PartialOrd;
    /// The weight that changes nothing.
    const ONE: Self::Sum;

    /// The same value; exact.
    fn to_sum(self) -> Self::Sum;
    /// The nearest value, ties to even; NaN becomes the canonical NaN.
    fn of_sum(sum: Self::Sum) -> Self;
    /// The nearest `f32`, ties to even.
    fn to_single(self) -> f32;
    /// The nearest value of an `f32`, ties to even.
    fn of_single(single: f32) -> Self;
}

macro_rules! reals {
    ($($element:ty, $sum:ty);*) => {$(
        impl sealed::Sealed for $element {}
        impl Real for $element {
            type Sum = $sum;
            const ONE: $sum = 1.0;

            #[inline(always)]
            fn to_sum(self) -> $sum {
                self.widen()
            }
            #[inline(always)]
            fn of_sum(sum: $sum) -> Self {
                Self::narrow(sum)
            }
            #[inline(always)]
            fn to_single(self) -> f32 {
                self.widen() as f32
            }
            #[inline(always)]
            fn of_single(single: f32) -> Self {
                Self::narrow(<$sum>::from(single))
            }
        }
    )*};
}
reals!(f32, f32; f64, f64; f16, f32; bf16, f32);

/// Runs what is compiled for each level as the best one has it. Nothing is fused, so the bits are those of every level.
fn at_best_level(work: impl Work) {
    Level::best().run(work);
}

/// A row of a sum.
#[derive(Clone, Copy, Debug)]
pub struct Term<'a, T: Real> {
    /// The values; as many as the sum has.
    pub row: &'a [T],
    /// The weight of all of them.
    pub weight: T::Sum,
    /// Terms of one group, which follow each other, are added first, and their sum is rounded to `T`.
    pub group: u32,
}

/// `out` becomes the sum of the terms, each times its weight, in their order: by groups, then the groups. No terms give zeros.
///
/// # Panics
/// If a row is not as long as `out`.
pub fn weighted_sum<T: Real>(out: &mut [T], terms: &[Term<'_, T>]) {
    assert!(terms.iter().all(|term| term.row.len() == out.len()), "rows are as long as their sum");
    let _controls = DefaultControls::enter();
    at_best_level(WeightedSum { out, terms });
}

struct WeightedSum<'a, T: Real> {
    out: &'a mut [T],
    terms: &'a [Term<'a, T>],
}

impl<T: Real> Work for WeightedSum<'_, T> {
    #[inline(always)]
    fn run(self) {
        let is_one_group = self.terms.windows(2).all(|pair| pair[0].group == pair[1].group);
        let (strips, rest) = self.out.as_chunks_mut::<STRIP>();
        let rest_at = strips.len() * STRIP;
        for (number, out) in strips.iter_mut().enumerate() {
            sum_strip(out, number * STRIP, self.terms, is_one_group);
        }
        for (at, out) in rest.iter_mut().enumerate() {
            sum_strip(std::array::from_mut(out), rest_at + at, self.terms, is_one_group);
        }
    }
}

/// The sums of the values from `at` on: few enough that they stay in registers.
#[inline(always)]
fn sum_strip<T: Real, const N: usize>(
    out: &mut [T; N],
    at: usize,
    terms: &[Term<'_, T>],
    is_one_group: bool,
) {
    let zero = T::default().to_sum();
    let (mut total, mut partial) = ([zero; N], [zero; N]);
    for (number, term) in terms.iter().enumerate() {
        let row: &[T; N] = term.row[at..].first_chunk().expect("rows are as long as their sum");
        for (sum, value) in partial.iter_mut().zip(row) {
            *sum = *sum + value.to_sum() * term.weight;
        }
        let is_last = terms.get(number + 1).is_none_or(|next| next.group != term.group);
        if is_last && !is_one_group {
            for (total, partial) in total.iter_mut().zip(&mut partial) {
                *total = *total + T::of_sum(*partial).to_sum();
                *partial = zero;
            }
        }
    }
    let sums = if is_one_group { partial } else { total };
    for (out, sum) in out.iter_mut().zip(sums) {
        *out = T::of_sum(sum);
    }
}

/// Multiplies a row by a weight.
pub fn scale<T: Real>(row: &mut [T], weight: T::Sum) {
    let _controls = DefaultControls::enter();
    at_best_level(Scale { row, weight });
}

struct Scale<'a, T: Real> {
    row: &'a mut [T],
    weight: T::Sum,
}

impl<T: Real> Work for Scale<'_, T> {
    #[inline(always)]
    fn run(self) {
        for value in self.row {
            *value = T::of_sum(value.to_sum() * self.weight);
        }
    }
}

/// The sum of the products of two rows, in eight partial sums that are added in their order.
///
/// # Panics
/// If the lengths differ.
pub fn dot<T: Real>(one: &[T], other: &[T]) -> T::Sum {
    assert_eq!(one.len(), other.len(), "a product is of two rows of one length");
    let zero = T::default().to_sum();
    let _controls = DefaultControls::enter();
    let mut lanes = [zero; LANES];
    at_best_level(Dot { one, other, lanes: &mut lanes });
    // The black box keeps the arithmetic between the changes of the controls.
    black_box(lanes.into_iter().fold(zero, |sum, lane| sum + lane))
}

struct Dot<'a, T: Real> {
    one: &'a [T],
    other: &'a [T],
    lanes: &'a mut [T::Sum; LANES],
}

impl<T: Real> Work for Dot<'_, T> {
    #[inline(always)]
    fn run(self) {
        let mut lanes = *self.lanes;
        let (ones, ones_rest) = self.one.as_chunks::<LANES>();
        let (others, others_rest) = self.other.as_chunks::<LANES>();
        for (one, other) in ones.iter().zip(others) {
            for (lane, (one, other)) in lanes.iter_mut().zip(one.iter().zip(other)) {
                *lane = *lane + one.to_sum() * other.to_sum();
            }
        }
        for (lane, (one, other)) in lanes.iter_mut().zip(ones_rest.iter().zip(others_rest)) {
            *lane = *lane + one.to_sum() * other.to_sum();
        }
        *self.lanes = lanes;
    }
}

/// Bytes of a row of `values` values in 8-bit form: a byte each, and a scale for each [`SCALED`] of them.
pub const fn eight_bit_bytes(values: usize) -> usize {
    values + values.div_ceil(SCALED) * size_of::<f32>()
}

/// Writes a row in 8-bit form: the E4M3 codes of all values, then the scales as little-endian `f32`. A code times its scale is
/// the value, up to a relative error of 2⁻⁴ for what is not much smaller than the largest of its [`SCALED`] neighbours. Beside an
/// infinity nothing is kept: all of them become NaN.
///
/// # Panics
/// If `out` is not as long as [`eight_bit_bytes`] says.
pub fn to_eight_bits<T: Real>(row: &[T], out: &mut [u8]) {
    assert_eq!(out.len(), eight_bit_bytes(row.len()), "the 8-bit form of a row has one length");
    let _controls = DefaultControls::enter();
    at_best_level(ToEightBits { row, out });
}

struct ToEightBits<'a, T: Real> {
    row: &'a [T],
    out: &'a mut [u8],
}

impl<T: Real> Work for ToEightBits<'_, T> {
    #[inline(always)]
    fn run(self) {
        let (codes, scales) = self.out.split_at_mut(self.row.len());
        let blocks = self.row.chunks(SCALED).zip(codes.chunks_mut(SCALED)).zip(scales.chunks_exact_mut(4));
        for ((values, codes), scale) in blocks {
            let mut largest = MAGNITUDE_MIN;
            for value in values {
                largest = largest.max(value.to_single().abs());
            }
            let inverse = E4M3_MAX / largest;
            for (code, value) in codes.iter_mut().zip(values) {
                *code = encode::<E4m3>(value.to_single() * inverse) as u8;
            }
            scale.copy_from_slice(&(largest / E4M3_MAX).to_le_bytes());
        }
    }
}

/// Reads what [`to_eight_bits`] wrote.
///
/// # Panics
/// If `bytes` is not as long as [`eight_bit_bytes`] says.
pub fn from_eight_bits<T: Real>(bytes: &[u8], out: &mut [T]) {
    assert_eq!(bytes.len(), eight_bit_bytes(out.len()), "the 8-bit form of a row has one length");
    let _controls = DefaultControls::enter();
    at_best_level(FromEightBits { bytes, out });
}

struct FromEightBits<'a, T: Real> {
    bytes: &'a [u8],
    out: &'a mut [T],
}

impl<T: Real> Work for FromEightBits<'_, T> {
    #[inline(always)]
    fn run(self) {
        let (codes, scales) = self.bytes.split_at(self.out.len());
        let blocks = self.out.chunks_mut(SCALED).zip(codes.chunks(SCALED)).zip(scales.as_chunks::<4>().0);
        for ((values, codes), scale) in blocks {
            let scale = f32::from_le_bytes(*scale);
            for (value, code) in values.iter_mut().zip(codes) {
                *value = T::of_single(decode::<E4m3>(u32::from(*code)) * scale);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_rounded_before_they_are_added() {
        let rows = [1.0f32, 1.0 / 256.0, 1.0 / 256.0].map(|value| vec![bf16::from_f32(value); 700]);
        let sum = |groups: [u32; 3]| {
            let terms: Vec<_> =
                rows.iter().zip(groups).map(|(row, group)| Term { row, weight: 1.0, group }).collect();
            let mut out = vec![bf16::ZERO; 700];
            weighted_sum(&mut out, &terms);
            assert!(out.iter().all(|value| *value == out[0]));
            out[0].to_f32()
        };
        // A bfloat16 has eight bits: half a last place is lost, two halves are not.
        assert_eq!(sum([0, 0, 0]), 1.0 + 1.0 / 128.0);
        assert_eq!(sum([0, 0, 1]), 1.0);
        assert_eq!(sum([0, 1, 1]), 1.0 + 1.0 / 128.0);
        let mut nothing = [3.0f64; 2];
        weighted_sum(&mut nothing, &[]);
        assert_eq!(nothing, [0.0; 2]);
    }

    #[test]
    fn products_of_rows() {
        let row: Vec<f64> = (1..=19).map(f64::from).collect();
        assert_eq!(dot(&row, &row), 19.0 * 20.0 * 39.0 / 6.0);
        let mut doubled = row.clone();
        scale(&mut doubled, 2.0);
        assert!(doubled.iter().zip(&row).all(|(doubled, value)| *doubled == 2.0 * value));
    }

    #[test]
    fn eight_bits_keep_what_is_near_the_largest() {
        for (length, unit) in [(1, 1.0f32), (128, 1e-20), (129, 3e30), (300, 1.0), (5, 0.0), (7, 1e-44)] {
            let row: Vec<f32> = (0..length).map(|at| ((at % 37) as f32 - 18.0) * unit).collect();
            let mut bytes = vec![0; eight_bit_bytes(length)];
            to_eight_bits(&row, &mut bytes);
            let mut back = vec![1f32; length];
            from_eight_bits(&bytes, &mut back);
            for (value, back) in row.iter().zip(&back) {
                let error = (value - back).abs();
                assert!(
                    error <= value.abs() / 16.0 + 18.0 * unit / 448.0 + MAGNITUDE_MIN,
                    "{value} became {back}"
                );
            }
        }
        let mut bytes = vec![0; eight_bit_bytes(3)];
        to_eight_bits(&[1.0f32, f32::NAN, 2.0], &mut bytes);
        let mut back = [0f32; 3];
        from_eight_bits(&bytes, &mut back);
        assert!(back[1].is_nan() && back[0] == 1.0 && back[2] == 2.0, "{back:?}");
    }

    /// Values of all magnitudes with both zeros, an infinity and NaN among them.
    fn values<T: Real>(length: usize, seed: u32) -> Vec<T> {
        let mut drawn = seed.wrapping_mul(2_654_435_761) | 1;
        let value = |at| {
            drawn = drawn.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let special = [0.0, -0.0, f32::INFINITY, f32::NAN, f32::from_bits(3)];
            let ordinary = (drawn >> 8) as f32 / 8e6 - 1.0;
            T::of_single(if at % 97 == 96 { special[at / 97 % special.len()] } else { ordinary })
        };
        (0..length).map(value).collect()
    }

    /// What each kind of work writes at a level, as text, which tells apart all numbers but the NaNs.
    fn written<T: Real>(level: Level, length: usize) -> String {
        let rows: Vec<Vec<T>> = (0..5).map(|seed| values(length, seed)).collect();
        let weights: Vec<T::Sum> = values(5, 9);
        let mut text = String::new();
        for groups in [[0; 5], [0, 0, 1, 2, 2]] {
            let term = |(row, (weight, group)): (usize, _)| Term { row: &rows[row][..], weight, group };
            let terms: Vec<_> = weights.iter().copied().zip(groups).enumerate().map(term).collect();
            let mut out = vec![T::default(); length];
            level.run(WeightedSum { out: &mut out, terms: &terms });
            text += &format!("{out:?}");
        }
        let mut lanes = [T::default().to_sum(); LANES];
        level.run(Dot { one: &rows[0], other: &rows[1], lanes: &mut lanes });
        let mut row = rows[2].clone();
        level.run(Scale { row: &mut row, weight: weights[0] });
        let mut bytes = vec![0; eight_bit_bytes(length)];
        level.run(ToEightBits { row: &rows[3], out: &mut bytes });
        let mut back = vec![T::default(); length];
        level.run(FromEightBits { bytes: &bytes, out: &mut back });
        text + &format!("{lanes:?} {row:?} {bytes:?} {back:?}")
    }

    #[test]
    fn every_level_writes_the_same() {
        let missing = Level::ALL.into_iter().find(|level| !level.is_available());
        missing.into_iter().for_each(|level| println!("SKIP: this processor has no {level:?}"));
        for level in Level::ALL.into_iter().filter(|level| level.is_available()) {
            for length in [1, 9, 130, 515, 1100] {
                assert_eq!(written::<f32>(level, length), written::<f32>(Level::Scalar, length), "{level:?}");
                assert_eq!(written::<f64>(level, length), written::<f64>(Level::Scalar, length), "{level:?}");
                assert_eq!(
                    written::<bf16>(level, length),
                    written::<bf16>(Level::Scalar, length),
                    "{level:?}"
                );
                assert_eq!(written::<f16>(level, length), written::<f16>(Level::Scalar, length), "{level:?}");
            }
        }
    }

    #[test]
    #[ignore = "prints speeds: cargo test --release -p consort-kernels --lib rows -- --ignored --nocapture"]
    fn speed_of_levels() {
        // More than caches hold: what is summed comes from memory.
        let (rows, mut out) = (vec![vec![bf16::ONE; 7168]; 8192], vec![bf16::ZERO; 7168]);
        let mut bytes = vec![0; eight_bit_bytes(7168)];
        for level in Level::ALL.into_iter().filter(|level| level.is_available()) {
            let mut sums = [0.0; 3];
            for turn in 0..200 {
                let row = |term: usize| &rows[(turn * 4 + term) * 4111 % rows.len()][..];
                let terms: Vec<_> =
                    (0..4).map(|term| Term { row: row(term), weight: 0.25, group: 0 }).collect();
                let begun = std::time::Instant::now();
                level.run(WeightedSum { out: &mut out, terms: &terms });
                let summed = begun.elapsed().as_secs_f64();
                level.run(ToEightBits { row: &rows[0], out: &mut bytes });
                let there = begun.elapsed().as_secs_f64();
                level.run(FromEightBits { bytes: &bytes, out: &mut out });
                let times = [summed, there - summed, begun.elapsed().as_secs_f64() - there];
                sums.iter_mut().zip(times).for_each(|(sum, time)| *sum += time);
            }
            let [sum, there, back] = sums.map(|seconds| seconds * 1e9 / 200.0 / 7168.0);
            println!("{level:?}: a sum of 4 rows {sum:.3} ns a value, to 8 bits {there:.3}, back {back:.3}");
        }
    }
}
