//! Instructions that compute a register from registers: opcode to function.
//!
//! Registers hold raw bits, zero-extended to 64; every function gives its result so. Floats are IEEE exact without
//! flushing to zero. Absent: `.ftz`, directed rounding of sums and products, approximations (`.approx`, `.full`):
//! unknown opcodes to the parser.

mod convert;
mod float;
mod integer;

pub(crate) use convert::Convert;
pub(crate) use integer::insert;

use crate::value::Type;

pub(crate) type Unary = fn(u64) -> u64;
pub(crate) type Binary = fn(u64, u64) -> u64;
pub(crate) type Ternary = fn(u64, u64, u64) -> u64;
pub(crate) type Compare = fn(u64, u64) -> bool;

/// A function with the type of its result and of each of its operands.
#[derive(Clone, Copy)]
pub(crate) enum Function {
    One(Unary),
    Two(Binary),
    Three(Ternary),
}

/// What computes `opcode`, whose words are `words`; the type is the last of them.
pub(crate) fn function(words: &[&str], ty: Type) -> Option<Function> {
    let modifiers = &words[1..words.len() - 1];
    if ty.is_float() {
        float::function(words[0], modifiers, ty)
    } else {
        integer::function(words[0], modifiers, ty)
    }
}

/// The comparison `name` of values of `ty`.
pub(crate) fn comparison(name: &str, ty: Type) -> Option<Compare> {
    if ty.is_float() { float::comparison(name, ty) } else { integer::comparison(name, ty) }
}
