//! Integers, bits and predicates.
//!
//! Invariant: results are masked to the type's width. A division by zero, which the ISA leaves open, gives all ones.

use super::{Binary, Compare, Function, Ternary};
use crate::value::{Kind, Type, mask, signed};

/// A function of the given width, with the width as the constant `$n`.
macro_rules! of_width {
    ($w:literal, $as:ident, ($($a:ident),*), $n:ident, $body:expr) => {{
        fn f($($a: u64),*) -> u64 {
            const $n: u32 = $w;
            ($body) & mask($n)
        }
        Some(Function::$as(f))
    }};
}

/// A function for whichever of the widths the type has.
macro_rules! widths {
    ($ty:expr, $as:ident, [$($w:literal)*], |$($a:ident),*; $n:ident| $body:expr) => {
        widths!(@ $ty, $as, [$($w)*], ($($a),*), $n, $body)
    };
    (@ $ty:expr, $as:ident, [$($w:literal)*], $a:tt, $n:ident, $body:expr) => {
        match $ty.bits {
            $($w => of_width!($w, $as, $a, $n, $body),)*
            _ => None,
        }
    };
}

fn by_sign(ty: Type, signed: Option<Function>, unsigned: Option<Function>) -> Option<Function> {
    if ty.kind == Kind::Signed { signed } else { unsigned }
}

pub(super) fn function(name: &str, modifiers: &[&str], ty: Type) -> Option<Function> {
    if ty.packed {
        return None;
    }
    match (name, modifiers) {
        ("mov", []) => Some(Function::One(|a| a)),
        ("add", []) => widths!(ty, Two, [16 32 64], |a, b; N| a.wrapping_add(b)),
        ("sub", []) => widths!(ty, Two, [16 32 64], |a, b; N| a.wrapping_sub(b)),
        ("add", ["sat"]) if ty.kind == Kind::Signed && ty.bits == 32 => {
            Some(Function::Two(|a, b| u64::from((a as i32).saturating_add(b as i32) as u32)))
        }
        ("sub", ["sat"]) if ty.kind == Kind::Signed && ty.bits == 32 => {
            Some(Function::Two(|a, b| u64::from((a as i32).saturating_sub(b as i32) as u32)))
        }
        ("mul", ["lo"]) => widths!(ty, Two, [16 32 64], |a, b; N| a.wrapping_mul(b)),
        ("mul", ["hi"]) => by_sign(
            ty,
            widths!(ty, Two, [16 32 64], |a, b; N| ((i128::from(signed(a, N)) * i128::from(signed(b, N))) >> N) as u64),
            widths!(ty, Two, [16 32 64], |a, b; N| ((u128::from(a) * u128::from(b)) >> N) as u64),
        ),
        ("mul", ["wide"]) => wide(ty).map(Function::Two),
        ("mad", ["lo"]) => widths!(ty, Three, [16 32 64], |a, b, c; N| a.wrapping_mul(b).wrapping_add(c)),
        ("mad", ["hi"]) => by_sign(
            ty,
            widths!(ty, Three, [16 32 64], |a, b, c; N| (((i128::from(signed(a, N)) * i128::from(signed(b, N))) >> N) as u64).wrapping_add(c)),
            widths!(ty, Three, [16 32 64], |a, b, c; N| (((u128::from(a) * u128::from(b)) >> N) as u64).wrapping_add(c)),
        ),
        ("mad", ["wide"]) => wide_add(ty).map(Function::Three),
        ("div", []) => by_sign(
            ty,
            widths!(ty, Two, [16 32 64], |a, b; N| if b == 0 { u64::MAX } else { signed(a, N).wrapping_div(signed(b, N)) as u64 }),
            widths!(ty, Two, [16 32 64], |a, b; N| a.checked_div(b).unwrap_or(u64::MAX)),
        ),
        ("rem", []) => by_sign(
            ty,
            widths!(ty, Two, [16 32 64], |a, b; N| if b == 0 { u64::MAX } else { signed(a, N).wrapping_rem(signed(b, N)) as u64 }),
            widths!(ty, Two, [16 32 64], |a, b; N| a.checked_rem(b).unwrap_or(u64::MAX)),
        ),
        ("min", []) => by_sign(
            ty,
            widths!(ty, Two, [16 32 64], |a, b; N| signed(a, N).min(signed(b, N)) as u64),
            widths!(ty, Two, [16 32 64], |a, b; N| a.min(b)),
        ),
        ("max", []) => by_sign(
            ty,
            widths!(ty, Two, [16 32 64], |a, b; N| signed(a, N).max(signed(b, N)) as u64),
            widths!(ty, Two, [16 32 64], |a, b; N| a.max(b)),
        ),
        ("abs", []) if ty.kind == Kind::Signed => {
            widths!(ty, One, [16 32 64], |a; N| signed(a, N).wrapping_abs() as u64)
        }
        ("neg", []) => widths!(ty, One, [16 32 64], |a; N| a.wrapping_neg()),
        ("and", []) => widths!(ty, Two, [1 16 32 64], |a, b; N| a & b),
        ("or", []) => widths!(ty, Two, [1 16 32 64], |a, b; N| a | b),
        ("xor", []) => widths!(ty, Two, [1 16 32 64], |a, b; N| a ^ b),
        ("not", []) => widths!(ty, One, [1 16 32 64], |a; N| !a),
        ("cnot", []) => widths!(ty, One, [16 32 64], |a; N| u64::from(a == 0)),
        ("shl", []) => {
            widths!(ty, Two, [16 32 64], |a, b; N| if b & 0xffff_ffff >= u64::from(N) { 0 } else { a << b })
        }
        ("shr", []) => by_sign(
            ty,
            widths!(ty, Two, [16 32 64], |a, b; N| (signed(a, N) >> (b & 0xffff_ffff).min(63)) as u64),
            widths!(ty, Two, [16 32 64], |a, b; N| if b & 0xffff_ffff >= u64::from(N) { 0 } else { a >> b }),
        ),
        ("shf", [direction, how]) if ty.bits == 32 => shift_pair(direction, how).map(Function::Three),
        ("prmt", []) if ty.bits == 32 => Some(Function::Three(permute)),
        ("popc", []) => widths!(ty, One, [32 64], |a; N| u64::from(a.count_ones())),
        ("clz", []) => widths!(ty, One, [32 64], |a; N| u64::from(a.leading_zeros() - (64 - N))),
        ("brev", []) => widths!(ty, One, [32 64], |a; N| a.reverse_bits() >> (64 - N)),
        ("bfind", []) if ty.kind == Kind::Unsigned => {
            widths!(ty, One, [32 64], |a; N| if a == 0 { 0xffff_ffff } else { u64::from(63 - a.leading_zeros()) })
        }
        ("bfe", []) => by_sign(
            ty,
            widths!(ty, Three, [32 64], |a, b, c; N| extract_signed(a, b, c, N)),
            widths!(ty, Three, [32 64], |a, b, c; N| extract(a, b, c)),
        ),
        ("sad", []) => by_sign(
            ty,
            widths!(ty, Three, [16 32 64], |a, b, c; N| signed(a, N).abs_diff(signed(b, N)).wrapping_add(c)),
            widths!(ty, Three, [16 32 64], |a, b, c; N| a.abs_diff(b).wrapping_add(c)),
        ),
        _ => None,
    }
}

fn wide(ty: Type) -> Option<Binary> {
    Some(match (ty.kind, ty.bits) {
        (Kind::Signed, 16) => |a, b| (signed(a, 16) * signed(b, 16)) as u64 & mask(32),
        (Kind::Unsigned, 16) => |a, b| a * b,
        (Kind::Signed, 32) => |a, b| (signed(a, 32) * signed(b, 32)) as u64,
        (Kind::Unsigned, 32) => |a, b| a * b,
        _ => return None,
    })
}

fn wide_add(ty: Type) -> Option<Ternary> {
    Some(match (ty.kind, ty.bits) {
        (Kind::Signed, 16) => |a, b, c| ((signed(a, 16) * signed(b, 16)) as u64).wrapping_add(c) & mask(32),
        (Kind::Unsigned, 16) => |a, b, c| (a * b).wrapping_add(c) & mask(32),
        (Kind::Signed, 32) => |a, b, c| ((signed(a, 32) * signed(b, 32)) as u64).wrapping_add(c),
        (Kind::Unsigned, 32) => |a, b, c| (a * b).wrapping_add(c),
        _ => return None,
    })
}

/// `shf`: the pair is `b:a`.
fn shift_pair(direction: &str, how: &str) -> Option<Ternary> {
    Some(match (direction, how) {
        ("l", "wrap") => |a, b, c| (b << 32 | a) << (c & 31) >> 32,
        ("l", "clamp") => |a, b, c| (b << 32 | a) << c.min(32) >> 32,
        ("r", "wrap") => |a, b, c| (b << 32 | a) >> (c & 31) & mask(32),
        ("r", "clamp") => |a, b, c| (b << 32 | a) >> c.min(32) & mask(32),
        _ => return None,
    })
}

fn permute(a: u64, b: u64, selector: u64) -> u64 {
    let bytes = (b << 32 | a).to_le_bytes();
    let mut result = 0;
    for i in 0..4 {
        let choice = selector >> (4 * i);
        let byte = bytes[(choice & 7) as usize];
        let byte = if choice & 8 == 0 { byte } else { ((byte as i8) >> 7) as u8 };
        result |= u64::from(byte) << (8 * i);
    }
    result
}

fn extract(a: u64, b: u64, c: u64) -> u64 {
    let (from, length) = (b & 255, (c & 255) as u32);
    if from >= 64 { 0 } else { a >> from & mask(length) }
}

fn extract_signed(a: u64, b: u64, c: u64, bits: u32) -> u64 {
    let (from, length) = ((b & 255) as u32, (c & 255) as u32);
    if length == 0 {
        return 0;
    }
    let sign = signed(a, bits) >> (from + length - 1).min(bits - 1) & 1;
    let shifted = signed(a, bits) >> from.min(63);
    let field = shifted as u64 & mask(length);
    if sign == 1 { field | !mask(length) } else { field }
}

/// `bfi`: `a` into `b` from bit `from`, `length` bits; the value is masked to the type by the caller.
pub(crate) fn insert(a: u64, b: u64, from: u64, length: u64, bits: u32) -> u64 {
    let (from, length) = (from & 255, (length & 255) as u32);
    if from >= u64::from(bits) {
        return b;
    }
    let field = mask(length) << from & mask(bits);
    b & !field | a << from & field
}

pub(super) fn comparison(name: &str, ty: Type) -> Option<Compare> {
    macro_rules! signed_ones {
        ($($w:literal)*, $op:tt) => {
            match ty.bits {
                $($w => |a, b| signed(a, $w) $op signed(b, $w),)*
                _ => return None,
            }
        };
    }
    if ty.kind == Kind::Signed {
        return Some(match name {
            "eq" => |a, b| a == b,
            "ne" => |a, b| a != b,
            "lt" => signed_ones!(16 32 64, <),
            "le" => signed_ones!(16 32 64, <=),
            "gt" => signed_ones!(16 32 64, >),
            "ge" => signed_ones!(16 32 64, >=),
            _ => return None,
        });
    }
    Some(match (name, ty.kind) {
        ("eq", _) => |a, b| a == b,
        ("ne", _) => |a, b| a != b,
        ("lt" | "lo", Kind::Unsigned) => |a, b| a < b,
        ("le" | "ls", Kind::Unsigned) => |a, b| a <= b,
        ("gt" | "hi", Kind::Unsigned) => |a, b| a > b,
        ("ge" | "hs", Kind::Unsigned) => |a, b| a >= b,
        _ => return None,
    })
}
