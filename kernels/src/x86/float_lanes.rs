//! Folding in float registers, for both levels and both widths.
//!
//! Invariant: lane by lane the arithmetic of `number`. Absent: loads, stores and conversions.

use crate::reduce_op::{Combination, Op};

/// A register of `f32` or `f64`. The functions are `unsafe` because they need the level's features.
pub(super) trait FloatRegister: Copy {
    type Lane: Copy;

    unsafe fn splat(lane: Self::Lane) -> Self;
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn multiply(self, other: Self) -> Self;
    /// The larger; `other` if either is NaN or both are zero.
    unsafe fn larger(self, other: Self) -> Self;
    /// The smaller; `other` if either is NaN or both are zero.
    unsafe fn smaller(self, other: Self) -> Self;
    unsafe fn and(self, other: Self) -> Self;
    unsafe fn or(self, other: Self) -> Self;
    /// The canonical quiet NaN where `left` or `right` is NaN, `self` elsewhere.
    unsafe fn nan_where_unordered(self, left: Self, right: Self) -> Self;
}

/// # Safety
/// The processor has the features of the level of `R`.
#[inline(always)]
pub(super) unsafe fn combine<O: Op, R: FloatRegister, const N: usize>(
    mut left: [R; N],
    right: [R; N],
) -> [R; N] {
    for (left, &b) in left.iter_mut().zip(&right) {
        let a = *left;
        // SAFETY: caller's promise. Larger and smaller are computed in both orders, which differ only for NaN and
        // zeros of different sign; of the latter AND gives +0 and OR −0.
        *left = unsafe {
            match O::COMBINES {
                Combination::Add => a.add(b),
                Combination::Multiply => a.multiply(b),
                Combination::Larger => a.larger(b).and(b.larger(a)).nan_where_unordered(a, b),
                Combination::Smaller => a.smaller(b).or(b.smaller(a)).nan_where_unordered(a, b),
            }
        };
    }
    left
}

/// # Safety
/// The processor has the features of the level of `R`.
#[inline(always)]
pub(super) unsafe fn scale<R: FloatRegister, const N: usize>(mut vector: [R; N], factor: R::Lane) -> [R; N] {
    // SAFETY: caller's promise.
    unsafe {
        let factor = R::splat(factor);
        for register in &mut vector {
            *register = register.multiply(factor);
        }
    }
    vector
}

/// Canonical NaN where a lane is NaN.
///
/// # Safety
/// The processor has the features of the level of `R`.
#[inline(always)]
pub(super) unsafe fn canonical<R: FloatRegister>(register: R) -> R {
    // SAFETY: caller's promise.
    unsafe { register.nan_where_unordered(register, register) }
}

/// Implements `FloatRegister` with the intrinsics named, in the order of the trait.
macro_rules! float_register {
    (
        $features:literal, $register:ty, $lane:ty, $splat:ident, $add:ident, $multiply:ident, $larger:ident,
        $smaller:ident, $and:ident, $or:ident, |$value:ident, $left:ident, $right:ident| $nan:expr
    ) => {
        impl FloatRegister for $register {
            type Lane = $lane;

            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn splat(lane: $lane) -> Self {
                $splat(lane)
            }
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn add(self, other: Self) -> Self {
                $add(self, other)
            }
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn multiply(self, other: Self) -> Self {
                $multiply(self, other)
            }
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn larger(self, other: Self) -> Self {
                $larger(self, other)
            }
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn smaller(self, other: Self) -> Self {
                $smaller(self, other)
            }
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn and(self, other: Self) -> Self {
                $and(self, other)
            }
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn or(self, other: Self) -> Self {
                $or(self, other)
            }
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn nan_where_unordered(self, $left: Self, $right: Self) -> Self {
                let $value = self;
                $nan
            }
        }
    };
}
pub(super) use float_register;

/// Implements `Lanes` for a float type held in `$count` registers, given its conversions and, where it has one, the
/// shorter form of the sum of two, which also gets the general one.
macro_rules! float_lanes {
    (
        $level:ty, $features:literal, $element:ty, [$register:ty; $count:literal],
        |$raw:ident| $unpack:expr, |$vector:ident| $pack:expr $(, sum_of_two: $sum_of_two:expr)?
    ) => {
        impl Lanes<$element> for $level {
            type Vector = [$register; $count];

            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn unpack($raw: Self::Raw) -> Self::Vector {
                $unpack
            }
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn pack($vector: Self::Vector) -> Self::Raw {
                $pack
            }
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn combine<O: Op>(left: Self::Vector, right: Self::Vector) -> Self::Vector {
                // SAFETY: compiled with the level's features.
                unsafe { combine::<O, _, _>(left, right) }
            }
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn scale(vector: Self::Vector, factor: <$element as Number>::Wide) -> Self::Vector {
                // SAFETY: compiled with the level's features.
                unsafe { scale(vector, factor) }
            }
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn divide(vector: Self::Vector, _: u32) -> Self::Vector {
                vector
            }
            $(
                const HAS_SUM_OF_TWO: bool = true;
                #[inline]
                #[target_feature(enable = $features)]
                unsafe fn sum_of_two(left: Self::Raw, right: Self::Raw) -> Self::Raw {
                    type Raw = <$level as Isa>::Raw;
                    #[cold]
                    #[inline(never)]
                    #[target_feature(enable = $features)]
                    fn by_way_of_binary32(left: Raw, right: Raw) -> Raw {
                        // SAFETY: compiled with the level's features.
                        unsafe {
                            let [left, right] = [left, right].map(|raw| <$level as Lanes<$element>>::unpack(raw));
                            <$level as Lanes<$element>>::pack(combine::<Sum, _, _>(left, right))
                        }
                    }
                    // SAFETY: compiled with the level's features.
                    unsafe { $sum_of_two(left, right, by_way_of_binary32) }
                }
            )?
        }
    };
}
pub(super) use float_lanes;
