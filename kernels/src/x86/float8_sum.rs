//! The sum of two registers of 8-bit floats in their own bytes, with AVX2: 32 elements at a time, in integers.
//!
//! Invariant: the bits of `narrow(widen(a) + widen(b))`.
//!
//! With `F` bits of fraction and the larger magnitude `a`, the smaller `b`:
//!
//! 1. Denormals are renumbered as if exponents went on below the least (`renumbered`), with an offset that keeps all
//!    positive. Then a code is `2^F` for each exponent and one for each step of the significand, everywhere; zero is a number
//!    so far below that it changes no sum.
//! 2. The significand of `a` is `2^F` to `2^(F+1) - 1` times 8. That of `b`, moved down by the difference of the exponents,
//!    depends on how far `b` is below the last code of `a`'s exponent, and on nothing else (`aligned`). What falls off its end is
//!    kept as a one in the last place. From `REACH` on it is less than the rounding can see.
//! 3. Their sum, or twice their difference, has a leading one in the place of twice `a`'s, of `a`'s, or (a difference of codes
//!    that are nearly equal, which is exact) below. In the first case it is halved. Its upper places are the significand, or tell
//!    it; its last three round it, to nearest with ties to even.
//! 4. Back from the renumbered codes (`restored`); no more than the largest; the sign.
//!
//! A register with an infinity or NaN takes the general way.
//!
//! Absent: more than two sources, which are added in binary32 and rounded once, and all other operators.

use std::arch::x86_64::*;

use super::Avx2;
use crate::convert::Format;
use crate::number::Number;
use crate::reduce_op::Sum;
use crate::vector::Lanes;

/// Sixteen bytes that a shuffle looks up, for both halves of a register.
#[repr(align(32))]
struct Table([u8; 32]);

impl Table {
    const ZEROS: Table = Table([0; 32]);

    const fn set(&mut self, at: i32, value: i32) {
        self.0[at as usize % 16] = value as u8;
        self.0[at as usize % 16 + 16] = value as u8;
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn look_up(&self, indices: __m256i) -> __m256i {
        // SAFETY: 32 bytes, aligned to as many.
        let table = unsafe { _mm256_load_si256(self.0.as_ptr().cast()) };
        _mm256_shuffle_epi8(table, indices)
    }
}

/// What is looked up for a format.
struct Tables {
    /// From a code below 16 to what is added to renumber it, as the larger and as the smaller.
    larger: Table,
    smaller: Table,
    /// From the codes that `b` is above the last that matters (`REACH` below `a`'s last) to its significand.
    aligned: [Table; 3],
    /// From the fraction of `a` to its significand.
    significand: Table,
    /// From the upper places of a sum to what is taken from the code.
    taken: Table,
    /// From the last four places to whether it is rounded up.
    rounded: Table,
    /// From half a renumbered code with `HALVED` to what is added.
    restored: Table,
}

/// The numbers of a format with `FRACTION` bits of fraction.
struct Numbers<F: Format>(std::marker::PhantomData<F>);

impl<F: Format> Numbers<F> {
    /// One exponent.
    const STEP: i32 = 1 << F::FRACTION;
    /// Added to what is renumbered: whole exponents, as many as keep the least denormal positive, and such that no two entries
    /// of `restored` meet.
    const OFFSET: i32 = 3 * Self::STEP;
    /// How far below the last code of the larger's exponent a code has no effect.
    const REACH: i32 = if F::FRACTION == 3 { 47 } else { 19 };
    /// Added to a renumbered code before it is halved: from the first code that is not changed on, the half has its top bit,
    /// for which a shuffle gives zero.
    const HALVED: i32 = 256 - Self::STEP - Self::OFFSET;

    const TABLES: Tables = Self::tables();

    /// `code`, not zero, as if exponents went on below the least.
    const fn renumbered(code: i32) -> i32 {
        if code >= Self::STEP {
            return code;
        }
        let shift = F::FRACTION as i32 - code.ilog2() as i32;
        (code << shift) - Self::STEP - (shift - 1) * Self::STEP
    }

    const fn tables() -> Tables {
        let (step, offset) = (Self::STEP, Self::OFFSET);
        // Zero stays zero: the smaller is then below everything, and of two zeros nothing is added to or taken away.
        let [mut larger, mut smaller, mut significand] = [Table::ZEROS; 3];
        let [mut taken, mut rounded, mut restored] = [Table::ZEROS; 3];
        let mut aligned = [Table::ZEROS; 3];

        taken.set(0, 255);
        let mut at = 0;
        while at < 16 {
            if at > 0 {
                let renumbered = Self::renumbered(at);
                larger.set(at, renumbered - at + offset);
                smaller.set(at, renumbered - at + offset + Self::REACH);
                taken.set(at, 3 * step - 1 - renumbered);
            }
            significand.set(at, (step + at % step) * 8);
            rounded.set(at, (at % 8 > 4 || at % 8 == 4 && at >= 8) as i32);
            at += 1;
        }
        let mut above = 1;
        while above <= Self::REACH {
            let below = Self::REACH - above;
            let whole = (2 * step - 1 - below % step) * 8;
            let shift = below / step;
            let lost = whole & ((1 << shift) - 1) != 0;
            aligned[above as usize / 16].set(above, whole >> shift | lost as i32);
            above += 1;
        }
        let mut code = 1;
        while code < step {
            let renumbered = Self::renumbered(code);
            let kept = if renumbered < 0 { 0 } else { renumbered };
            restored.set((renumbered + offset + Self::HALVED + 1) / 2, code - kept);
            code += 1;
        }
        Tables { larger, smaller, aligned, significand, taken, rounded, restored }
    }
}

/// The sum of two registers of `T`, whose format is `F`.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn sum_of_two<T: Number, F: Format>(left: __m256i, right: __m256i) -> __m256i
where
    Avx2: Lanes<T>,
{
    let tables = const { &Numbers::<F>::TABLES };
    let byte = |value: i32| _mm256_set1_epi8(value as i8);
    let (step, last) = (byte(Numbers::<F>::STEP), byte(Numbers::<F>::STEP - 1));

    let (a, b) = (_mm256_and_si256(left, byte(0x7f)), _mm256_and_si256(right, byte(0x7f)));
    let (larger, smaller) = (_mm256_max_epu8(a, b), _mm256_min_epu8(a, b));
    let is_special = _mm256_cmpgt_epi8(larger, byte(F::LIMIT as i32));
    if _mm256_movemask_epi8(is_special) != 0 {
        return general::<T>(left, right);
    }
    // The top bit says whether the magnitudes are subtracted.
    let subtracts = _mm256_xor_si256(left, right);

    let renumber =
        |table: &Table, code| _mm256_add_epi8(code, table.look_up(_mm256_min_epu8(code, byte(15))));
    let larger = renumber(&tables.larger, larger);
    let smaller = renumber(&tables.smaller, smaller);

    let last_of_exponent = _mm256_or_si256(larger, last);
    let above = _mm256_subs_epu8(smaller, last_of_exponent);
    // Sixteen entries a table, of which bits 4 and 5 choose.
    let mut aligned = _mm256_blendv_epi8(
        tables.aligned[0].look_up(above),
        tables.aligned[1].look_up(above),
        _mm256_slli_epi16::<3>(above),
    );
    if const { Numbers::<F>::REACH >= 32 } {
        let third = tables.aligned[2].look_up(above);
        aligned = _mm256_blendv_epi8(aligned, third, _mm256_slli_epi16::<2>(above));
    }
    let significand = tables.significand.look_up(_mm256_and_si256(larger, last));

    let sum = _mm256_add_epi8(significand, aligned);
    let difference = _mm256_sub_epi8(significand, aligned);
    let result = _mm256_blendv_epi8(sum, _mm256_add_epi8(difference, difference), subtracts);
    // The place above that of the larger's leading one, moved to the top.
    let is_high = if F::FRACTION == 3 { result } else { _mm256_add_epi8(result, result) };
    // An odd sum that is halved is never near a tie.
    let half = _mm256_avg_epu8(result, _mm256_setzero_si256());
    let result = _mm256_blendv_epi8(result, half, is_high);

    let upper = _mm256_and_si256(_mm256_srli_epi16::<3>(result), byte(15));
    let code = _mm256_blendv_epi8(_mm256_add_epi8(last_of_exponent, step), last_of_exponent, subtracts);
    let code = _mm256_blendv_epi8(code, _mm256_add_epi8(code, step), is_high);
    let code = _mm256_add_epi8(code, tables.rounded.look_up(result));
    // A difference of nothing becomes the least code.
    let code = _mm256_subs_epu8(code, tables.taken.look_up(upper));

    let restored = tables.restored.look_up(_mm256_avg_epu8(code, byte(Numbers::<F>::HALVED)));
    let code = _mm256_add_epi8(_mm256_subs_epu8(code, byte(Numbers::<F>::OFFSET)), restored);
    let code = _mm256_min_epu8(code, byte(F::LIMIT as i32));

    // As signed bytes the lower operand is negative if one is, and less than 128 below the upper if both are negative or
    // if it is the negative one and larger in magnitude: then the sum is negative. Opposite numbers give +0.
    let (low, high) = (_mm256_min_epi8(left, right), _mm256_max_epi8(left, right));
    let sign = _mm256_andnot_si256(_mm256_sub_epi8(high, low), low);
    _mm256_or_si256(code, _mm256_and_si256(sign, byte(0x80)))
}

/// By way of binary32.
#[cold]
#[inline(never)]
#[target_feature(enable = "avx2,f16c")]
fn general<T: Number>(left: __m256i, right: __m256i) -> __m256i
where
    Avx2: Lanes<T>,
{
    // SAFETY: compiled with the level's features.
    unsafe { Avx2::pack(Avx2::combine::<Sum>(Avx2::unpack(left), Avx2::unpack(right))) }
}
