//! Types of instructions and the float formats behind them.
//!
//! Registers hold raw bits, zero-extended to 64. Invariant: results that are NaN have the device's bits: all ones
//! below the sign for 16 and 32 bits. For `f64`, the bits of a NaN operand are kept, made quiet.
//! Absent: fp8 and tf32 formats, which compute_80 has no instructions for that consort uses.

/// What the bits mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Bits,
    Unsigned,
    Signed,
    Float,
    Brain,
    Predicate,
}

/// A type of an instruction: `u32`, `bf16x2`, …
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Type {
    pub(crate) kind: Kind,
    /// Bits of a value; of one half for the packed types.
    pub(crate) bits: u32,
    /// Whether two halves are packed into a register.
    pub(crate) packed: bool,
}

impl Type {
    pub(crate) fn parse(word: &str) -> Option<Self> {
        let plain = |kind, bits| Some(Self { kind, bits, packed: false });
        match word {
            "pred" => plain(Kind::Predicate, 1),
            "b8" => plain(Kind::Bits, 8),
            "b16" => plain(Kind::Bits, 16),
            "b32" => plain(Kind::Bits, 32),
            "b64" => plain(Kind::Bits, 64),
            "u8" => plain(Kind::Unsigned, 8),
            "u16" => plain(Kind::Unsigned, 16),
            "u32" => plain(Kind::Unsigned, 32),
            "u64" => plain(Kind::Unsigned, 64),
            "s8" => plain(Kind::Signed, 8),
            "s16" => plain(Kind::Signed, 16),
            "s32" => plain(Kind::Signed, 32),
            "s64" => plain(Kind::Signed, 64),
            "f16" => plain(Kind::Float, 16),
            "f32" => plain(Kind::Float, 32),
            "f64" => plain(Kind::Float, 64),
            "bf16" => plain(Kind::Brain, 16),
            "f16x2" => Some(Self { kind: Kind::Float, bits: 16, packed: true }),
            "bf16x2" => Some(Self { kind: Kind::Brain, bits: 16, packed: true }),
            _ => None,
        }
    }

    pub(crate) fn is_float(self) -> bool {
        matches!(self.kind, Kind::Float | Kind::Brain)
    }

    pub(crate) fn is_integer(self) -> bool {
        matches!(self.kind, Kind::Bits | Kind::Unsigned | Kind::Signed)
    }

    /// Bytes in memory.
    pub(crate) fn bytes(self) -> u8 {
        (self.bits / 8).max(1) as u8 * if self.packed { 2 } else { 1 }
    }

    /// Bits of a register of the type.
    pub(crate) fn width(self) -> u32 {
        if self.packed { self.bits * 2 } else { self.bits }
    }
}

/// The low `bits` bits set.
pub(crate) fn mask(bits: u32) -> u64 {
    if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
}

/// The value of the low `bits` bits as a signed number.
pub(crate) fn signed(value: u64, bits: u32) -> i64 {
    ((value << (64 - bits)) as i64) >> (64 - bits)
}

/// The bits of `value`, those of the device if it is NaN.
pub(crate) fn canonical32(value: f32) -> u32 {
    if value.is_nan() { 0x7fff_ffff } else { value.to_bits() }
}

/// The bits of `value`; NaN made quiet.
pub(crate) fn canonical64(value: f64) -> u64 {
    if value.is_nan() { value.to_bits() | 1 << 51 } else { value.to_bits() }
}

/// How a result is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Rounding {
    Nearest,
    Zero,
    Down,
    Up,
}

/// Widens a value of a float type; exact.
pub(crate) fn widen(bits: u64, ty: Type) -> f64 {
    match (ty.kind, ty.bits) {
        (Kind::Brain, _) => f64::from(f32::from_bits((bits as u32) << 16)),
        (_, 64) => f64::from_bits(bits),
        (_, 32) => f64::from(f32::from_bits(bits as u32)),
        _ => {
            let (sign, exponent, fraction) = (bits >> 15 & 1, bits >> 10 & 31, bits & 1023);
            let magnitude = match exponent {
                0 => fraction as f64 * f64::from_bits((1023 - 24) << 52),
                31 if fraction == 0 => f64::INFINITY,
                31 => f64::NAN,
                _ => f64::from_bits((exponent + 1023 - 15) << 52 | fraction << 42),
            };
            if sign == 1 { -magnitude } else { magnitude }
        }
    }
}

/// Rounds `value` once to a float type narrower than, or as wide as, `f64`.
pub(crate) fn narrow(value: f64, ty: Type, rounding: Rounding) -> u64 {
    let (exponent_bits, fraction_bits) = match (ty.kind, ty.bits) {
        (_, 64) => return canonical64(value),
        (Kind::Brain, _) => (8, 7),
        (_, 32) => (8, 23),
        _ => (5, 10),
    };
    let sign_at = exponent_bits + fraction_bits;
    if value.is_nan() {
        return mask(sign_at);
    }
    let sign = value.is_sign_negative();
    let bits = value.to_bits() & mask(63);
    let infinity = mask(exponent_bits) << fraction_bits;
    let put = |magnitude: u64| magnitude | u64::from(sign) << sign_at;
    if bits == 0 || value.is_infinite() {
        return put(if bits == 0 { 0 } else { infinity });
    }
    let bias = (1 << (exponent_bits - 1)) - 1;
    // `f64` subnormals are far below every narrower subnormal: their exponent may be read as if normal.
    let exponent = (bits >> 52) as i64 - 1023;
    let significand = bits & mask(52) | 1 << 52;
    let biased = exponent + bias;
    // Bits to cut, more when the result is subnormal.
    let cut = (52 - fraction_bits as i64 + (1 - biased).max(0)).min(63) as u32;
    let kept = significand >> cut;
    let rest = significand & mask(cut);
    let half = 1u64 << (cut - 1);
    let up = match rounding {
        Rounding::Nearest => rest > half || rest == half && kept & 1 == 1,
        Rounding::Zero => false,
        Rounding::Down => sign && rest != 0,
        Rounding::Up => !sign && rest != 0,
    };
    // The hidden bit adds one to the exponent field, so that a carry does too.
    let field = ((biased.max(1) - 1) as u64) << fraction_bits;
    let magnitude = field + kept + u64::from(up);
    if magnitude >= infinity {
        let to_infinity = match rounding {
            Rounding::Nearest => true,
            Rounding::Zero => false,
            Rounding::Down => sign,
            Rounding::Up => !sign,
        };
        return put(if to_infinity { infinity } else { infinity - 1 });
    }
    put(magnitude)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f32_is_rounded_as_the_host_rounds_it() {
        let ty = Type::parse("f32").unwrap();
        let mut state = 1u64;
        for _ in 0..200_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Exponents about those of f32, subnormals too.
            let exponent = 1023 - 152 + (state >> 20) % 285;
            let value = f64::from_bits(state & (1 << 63 | mask(52)) | exponent << 52);
            assert_eq!(narrow(value, ty, Rounding::Nearest) as u32, (value as f32).to_bits(), "{value:e}");
        }
        for value in [0.0, -0.0, f64::INFINITY, f64::MIN_POSITIVE, f64::from_bits(1), f64::MAX] {
            assert_eq!(narrow(value, ty, Rounding::Nearest) as u32, (value as f32).to_bits(), "{value:e}");
        }
    }

    #[test]
    fn half_formats_survive_widening() {
        for name in ["f16", "bf16"] {
            let ty = Type::parse(name).unwrap();
            for bits in 0..=0xffffu64 {
                let wide = widen(bits, ty);
                let back = narrow(wide, ty, Rounding::Nearest);
                assert_eq!(back, if wide.is_nan() { 0x7fff } else { bits }, "{name} {bits:#x}");
                assert_eq!(narrow(wide, ty, Rounding::Up), back);
            }
        }
    }
}
