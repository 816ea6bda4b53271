//! Floating-point formats of fewer than 32 bits, to and from binary32.
//!
//! Invariant: decoding is exact whatever the floating-point controls; encoding rounds to nearest, ties to even,
//! under the default controls. The code is free of branches so that it vectorises.
//!
//! Absent: bfloat16 decoding by table, stochastic rounding, and the processor's own bfloat16 conversion, which
//! flushes denormals.

/// The canonical quiet NaN of binary32.
pub(crate) const NAN_F32: u32 = 0x7fc0_0000;
/// The canonical quiet NaN of binary64.
pub(crate) const NAN_F64: u64 = 0x7ff8_0000_0000_0000;

/// A sign, an exponent and a fraction in at most 16 bits.
pub(crate) trait Format {
    /// Bits of the fraction.
    const FRACTION: u32;
    /// Exponent of 1.0.
    const BIAS: u32;
    /// Position of the sign bit.
    const SIGN: u32;
    /// The largest code without sign that a number may round to: infinity, or the largest finite value where
    /// the format saturates.
    const LIMIT: u32;
    /// The canonical quiet NaN.
    const NAN: u32;
    /// The code of infinity without sign. A format without infinities names its only NaN here.
    const INFINITY: u32;
}

/// IEEE 754-2019 binary16: overflow gives infinity.
pub(crate) struct Binary16;
/// OCP 8-bit Floating Point Specification (OFP8) revision 1.0, E4M3: no infinities, one NaN per sign.
pub(crate) struct E4m3;
/// OFP8 E5M2: like binary16 with two bits of fraction, but encoding saturates (the specification's SAT mode).
pub(crate) struct E5m2;

impl Format for Binary16 {
    const FRACTION: u32 = 10;
    const BIAS: u32 = 15;
    const SIGN: u32 = 15;
    const LIMIT: u32 = 0x7c00;
    const NAN: u32 = 0x7e00;
    const INFINITY: u32 = 0x7c00;
}

impl Format for E4m3 {
    const FRACTION: u32 = 3;
    const BIAS: u32 = 7;
    const SIGN: u32 = 7;
    const LIMIT: u32 = 0x7e;
    const NAN: u32 = 0x7f;
    const INFINITY: u32 = 0x7f;
}

impl Format for E5m2 {
    const FRACTION: u32 = 2;
    const BIAS: u32 = 15;
    const SIGN: u32 = 7;
    const LIMIT: u32 = 0x7b;
    const NAN: u32 = 0x7e;
    const INFINITY: u32 = 0x7c;
}

/// The binary32 of equal value; exact.
#[inline(always)]
pub(crate) fn decode<F: Format>(code: u32) -> f32 {
    let sign = (code >> F::SIGN) << 31;
    let magnitude = code & ((1 << F::SIGN) - 1);
    let aligned = magnitude << (23 - F::FRACTION);
    let normal = aligned + ((127 - F::BIAS) << 23);
    // A small integer times a power of two: exact in every rounding mode, and no denormal appears.
    let unit = f32::from_bits((127 + 1 - F::BIAS - F::FRACTION) << 23);
    let denormal = (magnitude as i32 as f32 * unit).to_bits();
    let special = if magnitude == F::INFINITY && F::INFINITY != F::NAN { 0x7f80_0000 } else { NAN_F32 };
    let finite = if magnitude >> F::FRACTION == 0 { denormal } else { normal };
    f32::from_bits(sign | if magnitude >= F::INFINITY { special } else { finite })
}

/// The nearest value of the format, ties to even; beyond its range [`Format::LIMIT`]; NaN becomes the canonical
/// one.
///
/// The float controls must be the default ones: denormals are rounded by an addition.
#[inline(always)]
pub(crate) fn encode<F: Format>(value: f32) -> u32 {
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let drop = 23 - F::FRACTION;
    let odd = (magnitude >> drop) & 1;
    let normal = magnitude.wrapping_add(rebias::<F>()).wrapping_add(odd) >> drop;
    let magic = denormal_magic::<F>();
    let denormal = (f32::from_bits(magnitude) + f32::from_bits(magic)).to_bits().wrapping_sub(magic);
    let code = if magnitude < smallest_normal::<F>() { denormal } else { normal };
    // Signed comparisons, which every vector unit has; none of the operands is negative.
    let code = (code as i32).min(F::LIMIT as i32) as u32;
    let signed = code | ((bits >> 31) << F::SIGN);
    if magnitude as i32 > 0x7f80_0000 { F::NAN } else { signed }
}

/// Added to the magnitude of a binary32, with its last place to be kept: rounds to that place, ties to even,
/// and moves the exponent to the format's bias.
pub(crate) const fn rebias<F: Format>() -> u32 {
    let half = 1 << (22 - F::FRACTION);
    (half - 1_u32).wrapping_sub((127 - F::BIAS) << 23)
}

/// The binary32 in which one unit in the last place is one denormal step of the format: added to a magnitude
/// below [`smallest_normal`], it leaves the code in the last places.
pub(crate) const fn denormal_magic<F: Format>() -> u32 {
    (127 + 24 - F::BIAS - F::FRACTION) << 23
}

/// The smallest normal value of the format as a binary32.
pub(crate) const fn smallest_normal<F: Format>() -> u32 {
    (128 - F::BIAS) << 23
}

/// The bfloat16 nearest to `value`, ties to even; NaN becomes the canonical one.
#[inline(always)]
pub(crate) fn encode_bf16(value: f32) -> u16 {
    let bits = if value.is_nan() { NAN_F32 } else { value.to_bits() };
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

/// The binary32 of equal value; exact.
#[inline(always)]
pub(crate) fn decode_bf16(code: u16) -> f32 {
    f32::from_bits(u32::from(code) << 16)
}
