//! The scalar that a rank multiplies its contribution by in a pre-multiplied sum.
//!
//! Invariant: a [`Scalar`] is one element of its data type, bit for bit; every number of that type can be one, also
//! infinities and NaN. Absent: the multiplication (`number`).

use std::fmt;

use consort_memory::{Span, SpanMut};
use half::{bf16, f16};

use crate::number::{Factors, Number};
use crate::{DataType, Element, F8E4m3, F8E5m2};

/// One element that is known only at run time: the factor of a pre-multiplied sum.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scalar {
    data_type: DataType,
    /// The element's bits; the bits above are zero.
    bits: u64,
}

impl Scalar {
    /// The element `value`.
    pub fn of<T: Element>(value: T) -> Self {
        let mut bytes = [0; 8];
        let bytes = &mut bytes[..size_of::<T>()];
        SpanMut::of(bytes).copy_from(Span::of(&[value]));
        Scalar { data_type: T::DATA_TYPE, bits: bits_of(bytes) }
    }

    /// The element whose bytes in memory are `bytes`.
    ///
    /// # Errors
    /// [`ScalarSizeError`] where their number is not the size of an element of `data_type`.
    pub fn from_bytes(data_type: DataType, bytes: &[u8]) -> Result<Self, ScalarSizeError> {
        if bytes.len() != data_type.size() {
            return Err(ScalarSizeError { data_type, bytes: bytes.len() });
        }
        Ok(Scalar { data_type, bits: bits_of(bytes) })
    }

    /// The type of the element.
    pub const fn data_type(self) -> DataType {
        self.data_type
    }

    /// The same factor in each type of arithmetic that the data type uses.
    pub(crate) fn factors(self) -> Factors {
        let Scalar { data_type, bits } = self;
        let single = |single| Factors { single, ..Factors::ONE };
        match data_type {
            DataType::Float16 => single(f16::from_bits(bits as u16).widen()),
            DataType::Bfloat16 => single(bf16::from_bits(bits as u16).widen()),
            DataType::Float8E4m3 => single(F8E4m3(bits as u8).widen()),
            DataType::Float8E5m2 => single(F8E5m2(bits as u8).widen()),
            DataType::Float32 => single(f32::from_bits(bits as u32)),
            DataType::Float64 => Factors { double: f64::from_bits(bits), ..Factors::ONE },
            DataType::Int8
            | DataType::Uint8
            | DataType::Int32
            | DataType::Uint32
            | DataType::Int64
            | DataType::Uint64 => Factors { whole: bits, ..Factors::ONE },
        }
    }
}

/// Eight bytes at most, in the order of this machine's memory.
fn bits_of(bytes: &[u8]) -> u64 {
    let shifted = |word: u64, byte: &u8| word << 8 | u64::from(*byte);
    if cfg!(target_endian = "little") {
        bytes.iter().rev().fold(0, shifted)
    } else {
        bytes.iter().fold(0, shifted)
    }
}

impl fmt::Debug for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scalar({} {:#x})", self.data_type, self.bits)
    }
}

/// Bytes whose number is not the size of an element of the data type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScalarSizeError {
    data_type: DataType,
    bytes: usize,
}

impl fmt::Display for ScalarSizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ScalarSizeError { data_type, bytes } = self;
        write!(f, "a scalar of type {data_type} has {} bytes, not {bytes}", data_type.size())
    }
}

impl std::error::Error for ScalarSizeError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_their_bytes_are_the_same_scalar() {
        assert_eq!(Scalar::of(2.5f32), Scalar::from_bytes(DataType::Float32, &2.5f32.to_ne_bytes()).unwrap());
        assert_eq!(Scalar::of(-3i8), Scalar::from_bytes(DataType::Int8, &[0xfd]).unwrap());
        let word = 0x0123_4567_89ab_cdef_u64;
        let scalar = Scalar::of(word);
        assert_eq!(scalar, Scalar::from_bytes(DataType::Uint64, &word.to_ne_bytes()).unwrap());
        assert_eq!((scalar.data_type(), scalar.factors().whole), (DataType::Uint64, word));
        assert_ne!(Scalar::of(1u8), Scalar::of(1i8));
        assert_eq!(Scalar::of(f16::from_f32(0.75)).factors().single, 0.75);
        assert_eq!(Scalar::of(F8E4m3(0x38)).factors().single, 1.0);
    }

    #[test]
    fn other_lengths_are_refused() {
        let text = Scalar::from_bytes(DataType::Bfloat16, &[0; 4]).unwrap_err().to_string();
        assert_eq!(text, "a scalar of type bfloat16 has 2 bytes, not 4");
    }
}
