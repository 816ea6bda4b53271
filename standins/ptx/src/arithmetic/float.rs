//! Floats.
//!
//! Invariant: each result is rounded once, to nearest even, from the exact value.

use super::{Compare, Function};
use crate::value::{Kind, Rounding, Type, canonical32, canonical64, mask, narrow, widen};

const F16: Type = Type { kind: Kind::Float, bits: 16, packed: false };
const BF16: Type = Type { kind: Kind::Brain, bits: 16, packed: false };

fn f32s(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

fn put32(value: f32) -> u64 {
    u64::from(canonical32(value))
}

/// `a + b` rounded to odd, so that a second rounding to fewer than 51 bits is as if from the exact sum.
fn odd_sum(a: f64, b: f64) -> f64 {
    let sum = a + b;
    if !sum.is_finite() {
        return sum;
    }
    let part = sum - a;
    let error = (a - (sum - part)) + (b - part);
    if error == 0.0 || sum.to_bits() & 1 == 1 {
        return sum;
    }
    // One step towards the exact value.
    let away = (error > 0.0) == (sum > 0.0);
    f64::from_bits(if away { sum.to_bits() + 1 } else { sum.to_bits() - 1 })
}

/// What is done with 16-bit floats.
mod op {
    pub(super) const ADD: u8 = 0;
    pub(super) const SUB: u8 = 1;
    pub(super) const MUL: u8 = 2;
    pub(super) const MIN: u8 = 3;
    pub(super) const MAX: u8 = 4;
    pub(super) const MIN_NAN: u8 = 5;
    pub(super) const MAX_NAN: u8 = 6;
}

/// The lesser or greater of two values; a NaN is passed over, or is the result where `nan` is set.
fn pick(x: f64, y: f64, greater: bool, nan: bool) -> f64 {
    if x.is_nan() || y.is_nan() {
        return if nan || x.is_nan() && y.is_nan() {
            f64::NAN
        } else if x.is_nan() {
            y
        } else {
            x
        };
    }
    let x_first = if x == y { x.is_sign_positive() == greater } else { (x > y) == greater };
    if x_first { x } else { y }
}

fn half<const BRAIN: bool, const OP: u8>(a: u64, b: u64) -> u64 {
    let ty = if BRAIN { BF16 } else { F16 };
    let (x, y) = (widen(a & 0xffff, ty), widen(b & 0xffff, ty));
    let value = match OP {
        op::ADD => odd_sum(x, y),
        op::SUB => odd_sum(x, -y),
        op::MUL => x * y,
        op::MIN => pick(x, y, false, false),
        op::MAX => pick(x, y, true, false),
        op::MIN_NAN => pick(x, y, false, true),
        _ => pick(x, y, true, true),
    };
    narrow(value, ty, Rounding::Nearest)
}

fn half_pair<const BRAIN: bool, const OP: u8>(a: u64, b: u64) -> u64 {
    half::<BRAIN, OP>(a & 0xffff, b & 0xffff) | half::<BRAIN, OP>(a >> 16, b >> 16) << 16
}

fn half_fma<const BRAIN: bool>(a: u64, b: u64, c: u64) -> u64 {
    let ty = if BRAIN { BF16 } else { F16 };
    // The product of two 16-bit floats is exact.
    let product = widen(a & 0xffff, ty) * widen(b & 0xffff, ty);
    narrow(odd_sum(product, widen(c & 0xffff, ty)), ty, Rounding::Nearest)
}

fn half_fma_pair<const BRAIN: bool>(a: u64, b: u64, c: u64) -> u64 {
    half_fma::<BRAIN>(a, b, c) | half_fma::<BRAIN>(a >> 16, b >> 16, c >> 16) << 16
}

fn halves<const OP: u8>(ty: Type) -> Option<Function> {
    Some(Function::Two(match (ty.kind == Kind::Brain, ty.packed) {
        (false, false) => half::<false, OP>,
        (false, true) => half_pair::<false, OP>,
        (true, false) => half::<true, OP>,
        (true, true) => half_pair::<true, OP>,
    }))
}

fn of_halves(name: &str, modifiers: &[&str], ty: Type) -> Option<Function> {
    match (name, modifiers) {
        ("mov", []) => Some(Function::One(|a| a)),
        ("add", [] | ["rn"]) => halves::<{ op::ADD }>(ty),
        ("sub", [] | ["rn"]) => halves::<{ op::SUB }>(ty),
        ("mul", [] | ["rn"]) => halves::<{ op::MUL }>(ty),
        ("min", []) => halves::<{ op::MIN }>(ty),
        ("max", []) => halves::<{ op::MAX }>(ty),
        ("min", ["NaN"]) => halves::<{ op::MIN_NAN }>(ty),
        ("max", ["NaN"]) => halves::<{ op::MAX_NAN }>(ty),
        ("neg", []) if !ty.packed => Some(Function::One(|a| a ^ 0x8000)),
        ("neg", []) => Some(Function::One(|a| a ^ 0x8000_8000)),
        ("abs", []) if !ty.packed => Some(Function::One(|a| a & 0x7fff)),
        ("abs", []) => Some(Function::One(|a| a & 0x7fff_7fff)),
        ("fma", ["rn"]) => Some(Function::Three(match (ty.kind == Kind::Brain, ty.packed) {
            (false, false) => half_fma::<false>,
            (false, true) => half_fma_pair::<false>,
            (true, false) => half_fma::<true>,
            (true, true) => half_fma_pair::<true>,
        })),
        _ => None,
    }
}

fn of_f32(name: &str, modifiers: &[&str]) -> Option<Function> {
    use Function::{One, Three, Two};
    Some(match (name, modifiers) {
        ("mov", []) => One(|a| a),
        ("add", [] | ["rn"]) => Two(|a, b| put32(f32s(a) + f32s(b))),
        ("sub", [] | ["rn"]) => Two(|a, b| put32(f32s(a) - f32s(b))),
        ("mul", [] | ["rn"]) => Two(|a, b| put32(f32s(a) * f32s(b))),
        ("div", ["rn"]) => Two(|a, b| put32(f32s(a) / f32s(b))),
        ("rcp", ["rn"]) => One(|a| put32(1.0 / f32s(a))),
        ("sqrt", ["rn"]) => One(|a| put32(f32s(a).sqrt())),
        ("fma" | "mad", ["rn"]) => Three(|a, b, c| put32(f32s(a).mul_add(f32s(b), f32s(c)))),
        // Widening and narrowing again change no value.
        ("min", []) => Two(|a, b| put32(pick(f32s(a).into(), f32s(b).into(), false, false) as f32)),
        ("max", []) => Two(|a, b| put32(pick(f32s(a).into(), f32s(b).into(), true, false) as f32)),
        ("min", ["NaN"]) => Two(|a, b| put32(pick(f32s(a).into(), f32s(b).into(), false, true) as f32)),
        ("max", ["NaN"]) => Two(|a, b| put32(pick(f32s(a).into(), f32s(b).into(), true, true) as f32)),
        ("neg", []) => One(|a| a ^ 0x8000_0000),
        ("abs", []) => One(|a| a & 0x7fff_ffff),
        ("copysign", []) => Two(|a, b| a & 0x8000_0000 | b & 0x7fff_ffff),
        _ => return None,
    })
}

/// The result of a computation on doubles: a NaN operand's bits go through, a NaN made new is the device's.
fn put64(value: f64, operands: &[u64]) -> u64 {
    if !value.is_nan() {
        return value.to_bits();
    }
    let from = operands.iter().find(|&&o| f64::from_bits(o).is_nan());
    from.map_or(0xfff8_0000_0000_0000, |&o| canonical64(f64::from_bits(o)))
}

fn pick64(a: u64, b: u64, greater: bool) -> u64 {
    put64(pick(f64::from_bits(a), f64::from_bits(b), greater, false), &[a, b])
}

fn of_f64(name: &str, modifiers: &[&str]) -> Option<Function> {
    use Function::{One, Three, Two};
    Some(match (name, modifiers) {
        ("mov", []) => One(|a| a),
        ("add", [] | ["rn"]) => Two(|a, b| put64(f64::from_bits(a) + f64::from_bits(b), &[a, b])),
        ("sub", [] | ["rn"]) => Two(|a, b| put64(f64::from_bits(a) - f64::from_bits(b), &[a, b])),
        ("mul", [] | ["rn"]) => Two(|a, b| put64(f64::from_bits(a) * f64::from_bits(b), &[a, b])),
        ("div", ["rn"]) => Two(|a, b| put64(f64::from_bits(a) / f64::from_bits(b), &[a, b])),
        ("rcp", ["rn"]) => One(|a| put64(1.0 / f64::from_bits(a), &[a])),
        ("sqrt", ["rn"]) => One(|a| put64(f64::from_bits(a).sqrt(), &[a])),
        ("fma" | "mad", ["rn"]) => Three(|a, b, c| {
            put64(f64::from_bits(a).mul_add(f64::from_bits(b), f64::from_bits(c)), &[a, b, c])
        }),
        ("min", []) => Two(|a, b| pick64(a, b, false)),
        ("max", []) => Two(|a, b| pick64(a, b, true)),
        ("neg", []) => One(|a| a ^ 1 << 63),
        ("abs", []) => One(|a| a & mask(63)),
        ("copysign", []) => Two(|a, b| a & 1 << 63 | b & mask(63)),
        _ => return None,
    })
}

pub(super) fn function(name: &str, modifiers: &[&str], ty: Type) -> Option<Function> {
    match ty.bits {
        16 => of_halves(name, modifiers, ty),
        32 => of_f32(name, modifiers),
        _ => of_f64(name, modifiers),
    }
}

/// A comparison of floats; the names that end in `u` hold for NaN too.
macro_rules! compared {
    ($name:expr, $get:expr) => {
        match $name {
            "eq" => |a, b| $get(a) == $get(b),
            "ne" => |a, b| $get(a) < $get(b) || $get(a) > $get(b),
            "lt" => |a, b| $get(a) < $get(b),
            "le" => |a, b| $get(a) <= $get(b),
            "gt" => |a, b| $get(a) > $get(b),
            "ge" => |a, b| $get(a) >= $get(b),
            "equ" => |a, b| $get(a) == $get(b) || $get(a).is_nan() || $get(b).is_nan(),
            "neu" => |a, b| $get(a) != $get(b),
            "ltu" => |a, b| $get(a) < $get(b) || $get(a).is_nan() || $get(b).is_nan(),
            "leu" => |a, b| $get(a) <= $get(b) || $get(a).is_nan() || $get(b).is_nan(),
            "gtu" => |a, b| $get(a) > $get(b) || $get(a).is_nan() || $get(b).is_nan(),
            "geu" => |a, b| $get(a) >= $get(b) || $get(a).is_nan() || $get(b).is_nan(),
            "num" => |a, b| !$get(a).is_nan() && !$get(b).is_nan(),
            "nan" => |a, b| $get(a).is_nan() || $get(b).is_nan(),
            _ => return None,
        }
    };
}

pub(super) fn comparison(name: &str, ty: Type) -> Option<Compare> {
    fn f16(bits: u64) -> f64 {
        widen(bits, F16)
    }
    fn bf16(bits: u64) -> f64 {
        widen(bits, BF16)
    }
    Some(match (ty.kind, ty.bits, ty.packed) {
        (_, _, true) => return None,
        (_, 64, _) => compared!(name, f64::from_bits),
        (_, 32, _) => compared!(name, f32s),
        (Kind::Brain, ..) => compared!(name, bf16),
        _ => compared!(name, f16),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_halves_are_rounded_once() {
        // 2^0 + 2^-11 + 2^-24: just above half way, lost by a rounding to 53 bits first only for bf16's range.
        let one_plus = half_fma::<false>(0x3c00, 0x3c00, 0x1000);
        assert_eq!(one_plus, 0x3c00, "1 + 2^-11 ties to even");
        assert_eq!(half::<false, { op::ADD }>(0x3c01, 0x1000), 0x3c02, "1 + 2^-10 + 2^-11 ties to even");
        // 2^60 times 1, plus 2^-60, in bf16: exact sum has more than 53 bits.
        let big = ((60 + 127) << 7) as u64;
        let small = ((-60 + 127) << 7) as u64;
        assert_eq!(half::<true, { op::ADD }>(big, small), big);
        // 1.0000001b * 1 + half a step + a speck: rounds up only if the speck is seen.
        let tie = ((127 - 8) << 7) as u64;
        let one = 127 << 7;
        assert_eq!(half::<true, { op::ADD }>(one, tie), one);
        assert_eq!(
            narrow(odd_sum(1.0 + f64::powi(2.0, -8), f64::powi(2.0, -100)), BF16, Rounding::Nearest),
            one + 1
        );
    }

    #[test]
    fn nan_is_the_devices() {
        assert_eq!(put32(f32::NAN), 0x7fff_ffff);
        assert_eq!(half::<false, { op::ADD }>(0x7c00, 0xfc00), 0x7fff);
        assert_eq!(pick64(f64::NAN.to_bits(), 1.0f64.to_bits(), true), 1.0f64.to_bits());
        assert_eq!(half::<true, { op::MAX }>(0x8000, 0x0000), 0x0000);
        assert_eq!(half::<true, { op::MIN }>(0x8000, 0x0000), 0x8000);
    }
}
