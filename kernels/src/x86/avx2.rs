//! 256-bit registers: AVX2 and F16C.
//!
//! Invariant: as in `x86`. 16-bit floats are held in two registers of `f32`, 8-bit ones in four, or
//! in their bytes (`float8_sum`); integers are left to the compiler. Absent: FMA, which rounds once where the definition rounds twice.

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::float_lanes::{FloatRegister, canonical, combine, float_lanes, float_register, scale};
use super::float8_sum::{ByteRegister, Table, byte_register, sum_of_two};
use crate::convert::{E4m3, E5m2, Format, NAN_F32, NAN_F64, denormal_magic, rebias, smallest_normal};
use crate::number::Number;
use crate::reduce_op::{Op, Sum};
use crate::vector::{Isa, Job, Lanes, array_lanes, fold};
use crate::{F8E4m3, F8E5m2};

#[derive(Clone, Copy)]
pub(crate) struct Avx2;

impl Isa for Avx2 {
    type Raw = __m256i;
    const STREAMS: bool = true;

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn load(from: *const u8) -> __m256i {
        // SAFETY: the trait's contract.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn store(to: *mut u8, raw: __m256i) {
        // SAFETY: the trait's contract.
        unsafe { _mm256_storeu_si256(to.cast(), raw) }
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn stream(to: *mut u8, raw: __m256i) {
        // SAFETY: the trait's contract; `fence` follows before the kernel returns.
        unsafe { _mm256_stream_si256(to.cast(), raw) }
    }

    #[inline]
    #[target_feature(enable = "sse")]
    unsafe fn fence() {
        _mm_sfence();
    }

    #[target_feature(enable = "avx2,f16c")]
    unsafe fn run<T: Number, O: Op>(job: &Job<'_>)
    where
        Self: Lanes<T>,
    {
        // SAFETY: the caller's promise; compiled with the level's features.
        unsafe { fold::<Self, T, O>(job) }
    }
}

array_lanes!(Avx2, 32, [target_feature(enable = "avx2,f16c")], i8, u8, i32, u32, i64, u64);

float_register!(
    "avx2,f16c",
    __m256,
    f32,
    _mm256_set1_ps,
    _mm256_add_ps,
    _mm256_mul_ps,
    _mm256_max_ps,
    _mm256_min_ps,
    _mm256_and_ps,
    _mm256_or_ps,
    |value, left, right| _mm256_blendv_ps(
        value,
        _mm256_castsi256_ps(_mm256_set1_epi32(NAN_F32 as i32)),
        _mm256_cmp_ps::<_CMP_UNORD_Q>(left, right),
    )
);
float_register!(
    "avx2,f16c",
    __m256d,
    f64,
    _mm256_set1_pd,
    _mm256_add_pd,
    _mm256_mul_pd,
    _mm256_max_pd,
    _mm256_min_pd,
    _mm256_and_pd,
    _mm256_or_pd,
    |value, left, right| _mm256_blendv_pd(
        value,
        _mm256_castsi256_pd(_mm256_set1_epi64x(NAN_F64 as i64)),
        _mm256_cmp_pd::<_CMP_UNORD_Q>(left, right),
    )
);

byte_register!(
    "avx2,f16c",
    __m256i,
    _mm256_set1_epi8,
    _mm256_and_si256,
    _mm256_or_si256,
    _mm256_xor_si256,
    _mm256_andnot_si256,
    _mm256_add_epi8,
    _mm256_sub_epi8,
    _mm256_subs_epu8,
    _mm256_max_epu8,
    _mm256_min_epu8,
    _mm256_max_epi8,
    _mm256_min_epi8,
    _mm256_avg_epu8,
    |bits| _mm256_and_si256(_mm256_srli_epi16::<3>(bits), _mm256_set1_epi8(15)),
    |value, limit| _mm256_movemask_epi8(_mm256_cmpgt_epi8(value, limit)) != 0,
    // SAFETY: a table has 64 bytes and is aligned to as many.
    |indices, table| _mm256_shuffle_epi8(unsafe { _mm256_load_si256(table.cast()) }, indices),
    |by, zero, one| {
        let by = match BIT {
            4 => _mm256_slli_epi16::<3>(by),
            5 => _mm256_slli_epi16::<2>(by),
            _ => by,
        };
        _mm256_blendv_epi8(zero, one, by)
    }
);

float_lanes!(
    Avx2,
    "avx2,f16c",
    f32,
    [__m256; 1],
    |raw| [_mm256_castsi256_ps(raw)],
    // SAFETY: compiled with the level's features.
    |vector| _mm256_castps_si256(unsafe { canonical(vector[0]) })
);
float_lanes!(
    Avx2,
    "avx2,f16c",
    f64,
    [__m256d; 1],
    |raw| [_mm256_castsi256_pd(raw)],
    // SAFETY: compiled with the level's features.
    |vector| _mm256_castpd_si256(unsafe { canonical(vector[0]) })
);
// Even elements in the first register, odd ones in the second: no lane ever moves.
float_lanes!(
    Avx2,
    "avx2,f16c",
    bf16,
    [__m256; 2],
    |raw| [
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(raw)),
        _mm256_castsi256_ps(_mm256_and_si256(raw, _mm256_set1_epi32(!0xffff))),
    ],
    |vector| _mm256_blend_epi16::<0xaa>(
        _mm256_srli_epi32::<16>(round_bf16(vector[0])),
        round_bf16(vector[1]),
    )
);
float_lanes!(
    Avx2,
    "avx2,f16c",
    f16,
    [__m256; 2],
    |raw| [_mm256_cvtph_ps(_mm256_castsi256_si128(raw)), _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(raw)),],
    |vector| _mm256_set_m128i(round_f16(vector[1]), round_f16(vector[0]))
);
float_lanes!(
    Avx2,
    "avx2,f16c",
    F8E5m2,
    [__m256; 4],
    |raw| {
        let quarters = quarters(raw);
        [
            decode_e5m2(quarters[0]),
            decode_e5m2(quarters[1]),
            decode_e5m2(quarters[2]),
            decode_e5m2(quarters[3]),
        ]
    },
    |vector| encode_f8::<E5m2, { 23 - E5m2::FRACTION as i32 }>(vector),
    sum_of_two: sum_of_two::<__m256i, E5m2>
);
float_lanes!(
    Avx2,
    "avx2,f16c",
    F8E4m3,
    [__m256; 4],
    |raw| {
        let quarters = quarters(raw);
        [
            decode_e4m3(quarters[0]),
            decode_e4m3(quarters[1]),
            decode_e4m3(quarters[2]),
            decode_e4m3(quarters[3]),
        ]
    },
    |vector| encode_f8::<E4m3, { 23 - E4m3::FRACTION as i32 }>(vector),
    sum_of_two: sum_of_two::<__m256i, E4m3>
);

/// The nearest bfloat16 in the upper half of each lane.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn round_bf16(value: __m256) -> __m256i {
    // SAFETY: compiled with the level's features.
    let bits = _mm256_castps_si256(unsafe { canonical(value) });
    let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
    _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)))
}

/// The processor's conversion never flushes (Intel SDM, VCVTPS2PH); it truncates payloads, hence `canonical`.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn round_f16(value: __m256) -> __m128i {
    // SAFETY: compiled with the level's features.
    _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(unsafe { canonical(value) })
}

/// Each quarter in the lower eight bytes.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn quarters(raw: __m256i) -> [__m128i; 4] {
    let (low, high) = (_mm256_castsi256_si128(raw), _mm256_extracti128_si256::<1>(raw));
    [low, _mm_unpackhi_epi64(low, low), high, _mm_unpackhi_epi64(high, high)]
}

/// E5M2 is the upper half of a binary16.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn decode_e5m2(codes: __m128i) -> __m256 {
    _mm256_cvtph_ps(_mm_slli_epi16::<8>(_mm_cvtepu8_epi16(codes)))
}

/// E4M3 moved into a binary16 is 2⁸ too small (the biases differ by eight), and its NaN looks finite.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn decode_e4m3(codes: __m128i) -> __m256 {
    let signed = _mm_cvtepi8_epi16(codes);
    // The shift leaves a copy of the sign below the sign.
    let moved = _mm_and_si128(_mm_slli_epi16::<7>(signed), _mm_set1_epi16(0xbf80_u16 as i16));
    // One more than all ones carries into the top of the exponent, and all ones with that is a NaN.
    let carried = _mm_add_epi16(moved, _mm_set1_epi16(0x80));
    let half = _mm_or_si128(moved, _mm_and_si128(carried, _mm_set1_epi16(0x4000)));
    _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256.0))
}

/// `convert::encode`; `DROP` is `23 - F::FRACTION`.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn encode_f8<F: Format, const DROP: i32>(vector: [__m256; 4]) -> __m256i {
    let mut quarters = [_mm256_setzero_si256(); 4];
    for (quarter, &value) in quarters.iter_mut().zip(&vector) {
        let bits = _mm256_castps_si256(value);
        let magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(i32::MAX));

        let odd = _mm256_and_si256(_mm256_srli_epi32::<DROP>(magnitude), _mm256_set1_epi32(1));
        let rebias = _mm256_set1_epi32(rebias::<F>() as i32);
        let normal = _mm256_srli_epi32::<DROP>(_mm256_add_epi32(_mm256_add_epi32(magnitude, rebias), odd));

        let magic = _mm256_set1_epi32(denormal_magic::<F>() as i32);
        let limit = _mm256_set1_epi32(smallest_normal::<F>() as i32);
        let sum = _mm256_add_ps(_mm256_castsi256_ps(magnitude), _mm256_castsi256_ps(magic));
        let denormal = _mm256_sub_epi32(_mm256_castps_si256(sum), magic);
        let is_small = _mm256_cmpgt_epi32(limit, magnitude);
        let code = _mm256_min_epu32(
            _mm256_blendv_epi8(normal, denormal, is_small),
            _mm256_set1_epi32(F::LIMIT as i32),
        );
        let sign = _mm256_and_si256(_mm256_srli_epi32::<24>(bits), _mm256_set1_epi32(0x80));
        let is_nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(value, value));
        let signed = _mm256_or_si256(code, sign);
        *quarter = _mm256_blendv_epi8(signed, _mm256_set1_epi32(F::NAN as i32), is_nan);
    }
    // Packing works within 128-bit halves; the permutation puts their groups of four bytes in order.
    let low = _mm256_packus_epi32(quarters[0], quarters[1]);
    let high = _mm256_packus_epi32(quarters[2], quarters[3]);
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order)
}
