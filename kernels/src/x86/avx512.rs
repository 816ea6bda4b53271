//! 512-bit registers: AVX-512 F, BW, DQ and VL.
//!
//! Invariant: as in `x86`. 16-bit floats are held in two registers of `f32`, 8-bit ones in four, or
//! in their bytes (`float8_sum`); integers are left to the compiler. Absent: masked loads; the shared loop has no use for them.

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
pub(crate) struct Avx512;

impl Isa for Avx512 {
    type Raw = __m512i;
    const STREAMS: bool = true;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn load(from: *const u8) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn store(to: *mut u8, raw: __m512i) {
        // SAFETY: the trait's contract.
        unsafe { _mm512_storeu_si512(to.cast(), raw) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn stream(to: *mut u8, raw: __m512i) {
        // SAFETY: the trait's contract; `fence` follows before the kernel returns.
        unsafe { _mm512_stream_si512(to.cast(), raw) }
    }

    #[inline]
    #[target_feature(enable = "sse")]
    unsafe fn fence() {
        _mm_sfence();
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn run<T: Number, O: Op>(job: &Job<'_>)
    where
        Self: Lanes<T>,
    {
        // SAFETY: the caller's promise; compiled with the level's features.
        unsafe { fold::<Self, T, O>(job) }
    }
}

array_lanes!(
    Avx512,
    64,
    [target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")],
    i8,
    u8,
    i32,
    u32,
    i64,
    u64,
);

float_register!(
    "avx512f,avx512bw,avx512dq,avx512vl",
    __m512,
    f32,
    _mm512_set1_ps,
    _mm512_add_ps,
    _mm512_mul_ps,
    _mm512_max_ps,
    _mm512_min_ps,
    _mm512_and_ps,
    _mm512_or_ps,
    |value, left, right| _mm512_mask_blend_ps(
        _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(left, right),
        value,
        _mm512_castsi512_ps(_mm512_set1_epi32(NAN_F32 as i32)),
    )
);
float_register!(
    "avx512f,avx512bw,avx512dq,avx512vl",
    __m512d,
    f64,
    _mm512_set1_pd,
    _mm512_add_pd,
    _mm512_mul_pd,
    _mm512_max_pd,
    _mm512_min_pd,
    _mm512_and_pd,
    _mm512_or_pd,
    |value, left, right| _mm512_mask_blend_pd(
        _mm512_cmp_pd_mask::<_CMP_UNORD_Q>(left, right),
        value,
        _mm512_castsi512_pd(_mm512_set1_epi64(NAN_F64 as i64)),
    )
);

byte_register!(
    "avx512f,avx512bw,avx512dq,avx512vl",
    __m512i,
    _mm512_set1_epi8,
    _mm512_and_si512,
    _mm512_or_si512,
    _mm512_xor_si512,
    _mm512_andnot_si512,
    _mm512_add_epi8,
    _mm512_sub_epi8,
    _mm512_subs_epu8,
    _mm512_max_epu8,
    _mm512_min_epu8,
    _mm512_max_epi8,
    _mm512_min_epi8,
    _mm512_avg_epu8,
    |bits| _mm512_and_si512(_mm512_srli_epi16::<3>(bits), _mm512_set1_epi8(15)),
    |value, limit| _mm512_cmpgt_epi8_mask(value, limit) != 0,
    // SAFETY: a table has 64 bytes and is aligned to as many.
    |indices, table| _mm512_shuffle_epi8(unsafe { _mm512_load_si512(table.cast()) }, indices),
    |by, zero, one| {
        let is_one = match BIT {
            7 => _mm512_movepi8_mask(by),
            bit => _mm512_test_epi8_mask(by, _mm512_set1_epi8(1 << bit)),
        };
        _mm512_mask_blend_epi8(is_one, zero, one)
    }
);

float_lanes!(
    Avx512,
    "avx512f,avx512bw,avx512dq,avx512vl",
    f32,
    [__m512; 1],
    |raw| [_mm512_castsi512_ps(raw)],
    // SAFETY: compiled with the level's features.
    |vector| _mm512_castps_si512(unsafe { canonical(vector[0]) })
);
float_lanes!(
    Avx512,
    "avx512f,avx512bw,avx512dq,avx512vl",
    f64,
    [__m512d; 1],
    |raw| [_mm512_castsi512_pd(raw)],
    // SAFETY: compiled with the level's features.
    |vector| _mm512_castpd_si512(unsafe { canonical(vector[0]) })
);
// Even elements in the first register, odd ones in the second: no lane ever moves.
float_lanes!(
    Avx512,
    "avx512f,avx512bw,avx512dq,avx512vl",
    bf16,
    [__m512; 2],
    |raw| [
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(raw)),
        _mm512_castsi512_ps(_mm512_and_si512(raw, _mm512_set1_epi32(!0xffff))),
    ],
    |vector| _mm512_mask_blend_epi16(
        0xaaaa_aaaa,
        _mm512_srli_epi32::<16>(round_bf16(vector[0])),
        round_bf16(vector[1]),
    )
);
float_lanes!(
    Avx512,
    "avx512f,avx512bw,avx512dq,avx512vl",
    f16,
    [__m512; 2],
    |raw| [
        _mm512_cvtph_ps(_mm512_castsi512_si256(raw)),
        _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(raw)),
    ],
    |vector| _mm512_inserti64x4::<1>(_mm512_castsi256_si512(round_f16(vector[0])), round_f16(vector[1]))
);
float_lanes!(
    Avx512,
    "avx512f,avx512bw,avx512dq,avx512vl",
    F8E5m2,
    [__m512; 4],
    |raw| decode_e5m2(raw),
    |vector| encode_f8::<E5m2, { 23 - E5m2::FRACTION }>(vector),
    sum_of_two: sum_of_two::<__m512i, E5m2>
);
float_lanes!(
    Avx512,
    "avx512f,avx512bw,avx512dq,avx512vl",
    F8E4m3,
    [__m512; 4],
    |raw| decode_e4m3(raw),
    |vector| encode_f8::<E4m3, { 23 - E4m3::FRACTION }>(vector),
    sum_of_two: sum_of_two::<__m512i, E4m3>
);

/// The nearest bfloat16 in the upper half of each lane.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn round_bf16(value: __m512) -> __m512i {
    let bits = _mm512_castps_si512(value);
    let is_number = _mm512_cmp_ps_mask::<_CMP_ORD_Q>(value, value);
    let nan = _mm512_set1_epi32(NAN_F32 as i32);
    let sum = _mm512_mask_add_epi32(nan, is_number, bits, _mm512_set1_epi32(0x7fff));
    // In a NaN the one lands in the half that is dropped.
    let is_odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x1_0000));
    _mm512_mask_add_epi32(sum, is_odd, sum, _mm512_set1_epi32(1))
}

/// The processor's conversion never flushes (Intel SDM, VCVTPS2PH); it truncates payloads, hence `canonical`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn round_f16(value: __m512) -> __m256i {
    // SAFETY: compiled with the level's features.
    _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(unsafe { canonical(value) })
}

/// E5M2 is the upper half of a binary16.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn decode_e5m2(raw: __m512i) -> [__m512; 4] {
    let [low, high] = sign_extended(raw);
    quarters(_mm512_slli_epi16::<8>(low), _mm512_slli_epi16::<8>(high))
}

/// E4M3 moved into a binary16 is 2⁸ too small (the biases differ by eight), and its NaN looks finite.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn decode_e4m3(raw: __m512i) -> [__m512; 4] {
    let mut halves = sign_extended(raw);
    for half in &mut halves {
        // The shift leaves a copy of the sign below the sign.
        let moved = _mm512_and_si512(_mm512_slli_epi16::<7>(*half), _mm512_set1_epi16(0xbf80_u16 as i16));
        // One more than all ones carries into the top of the exponent, and all ones with that is a NaN.
        let carried = _mm512_add_epi16(moved, _mm512_set1_epi16(0x80));
        *half = _mm512_ternarylogic_epi32::<A_OR_B_AND_C>(moved, carried, _mm512_set1_epi16(0x4000));
    }
    let mut values = quarters(halves[0], halves[1]);
    for value in &mut values {
        *value = _mm512_mul_ps(*value, _mm512_set1_ps(256.0));
    }
    values
}

/// The truth table of `a | (b & c)`.
const A_OR_B_AND_C: i32 = 0xf8;

/// Bytes to 16 bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn sign_extended(raw: __m512i) -> [__m512i; 2] {
    [
        _mm512_cvtepi8_epi16(_mm512_castsi512_si256(raw)),
        _mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64::<1>(raw)),
    ]
}

/// Two registers of binary16 as four of binary32.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn quarters(low: __m512i, high: __m512i) -> [__m512; 4] {
    [
        _mm512_cvtph_ps(_mm512_castsi512_si256(low)),
        _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(low)),
        _mm512_cvtph_ps(_mm512_castsi512_si256(high)),
        _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(high)),
    ]
}

/// `convert::encode`; `DROP` is `23 - F::FRACTION`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn encode_f8<F: Format, const DROP: u32>(vector: [__m512; 4]) -> __m512i {
    let mut quarters = [_mm512_setzero_si512(); 4];
    for (quarter, &value) in quarters.iter_mut().zip(&vector) {
        let bits = _mm512_castps_si512(value);
        let magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(i32::MAX));

        let rebias = _mm512_set1_epi32(rebias::<F>() as i32);
        let is_odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(1 << DROP));
        let sum = _mm512_add_epi32(magnitude, rebias);
        let sum = _mm512_mask_add_epi32(sum, is_odd, sum, _mm512_set1_epi32(1));
        let normal = _mm512_srli_epi32::<DROP>(sum);

        let magic = _mm512_set1_epi32(denormal_magic::<F>() as i32);
        let limit = _mm512_set1_epi32(smallest_normal::<F>() as i32);
        let sum = _mm512_add_ps(_mm512_castsi512_ps(magnitude), _mm512_castsi512_ps(magic));
        let is_small = _mm512_cmplt_epu32_mask(magnitude, limit);
        let code = _mm512_mask_sub_epi32(normal, is_small, _mm512_castps_si512(sum), magic);

        let is_number = _mm512_cmp_ps_mask::<_CMP_ORD_Q>(value, value);
        let nan = _mm512_set1_epi32(F::NAN as i32);
        let code = _mm512_mask_min_epu32(nan, is_number, code, _mm512_set1_epi32(F::LIMIT as i32));
        let sign = _mm512_srli_epi32::<24>(bits);
        *quarter =
            _mm512_mask_ternarylogic_epi32::<A_OR_B_AND_C>(code, is_number, sign, _mm512_set1_epi32(0x80));
    }
    // Packing works within 128-bit lanes; the permutation puts their groups of four bytes in order.
    let low = _mm512_packus_epi32(quarters[0], quarters[1]);
    let high = _mm512_packus_epi32(quarters[2], quarters[3]);
    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_permutexvar_epi32(order, _mm512_packus_epi16(low, high))
}
