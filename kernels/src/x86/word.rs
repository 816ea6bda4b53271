//! Two floats in a word.

use std::arch::x86_64::*;

use crate::convert::NAN_F32;

/// As [`crate::scalar::word`] of a sum of binary32, for which the compiler takes the word apart: both elements at once, by
/// instructions that every x86-64 has.
pub(crate) fn sum_of_two_floats(left: u64, right: u64) -> u64 {
    // SAFETY: every x86-64 processor has SSE2, and nothing here touches memory.
    unsafe {
        let floats = |word: u64| _mm_castsi128_ps(_mm_cvtsi64_si128(word.cast_signed()));
        let sum = _mm_add_ps(floats(left), floats(right));
        let is_nan = _mm_cmpunord_ps(sum, sum);
        let nan = _mm_set1_ps(f32::from_bits(NAN_F32));
        let folded = _mm_or_ps(_mm_and_ps(is_nan, nan), _mm_andnot_ps(is_nan, sum));
        _mm_cvtsi128_si64(_mm_castps_si128(folded)).cast_unsigned()
    }
}
