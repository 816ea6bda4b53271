//! The element types that a collective moves and folds.
//!
//! Invariant: codes and names are those of NCCL (`ncclDataType_t` in `nccl.h`, the `-d` argument of
//! nccl-tests); they travel on the wire and through the C interface, so they never change.
//!
//! Absent: arithmetic, which is in `number`.

use std::str::FromStr;

use consort_memory::Plain;
use half::{bf16, f16};

use crate::named::named;
use crate::{F8E4m3, F8E5m2};

/// The type of one element. The discriminants are NCCL's `ncclDataType_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum DataType {
    /// Two's complement, 1 byte.
    Int8 = 0,
    /// Unsigned, 1 byte.
    Uint8 = 1,
    /// Two's complement, 4 bytes.
    Int32 = 2,
    /// Unsigned, 4 bytes.
    Uint32 = 3,
    /// Two's complement, 8 bytes.
    Int64 = 4,
    /// Unsigned, 8 bytes.
    Uint64 = 5,
    /// IEEE 754 binary16.
    Float16 = 6,
    /// IEEE 754 binary32.
    Float32 = 7,
    /// IEEE 754 binary64.
    Float64 = 8,
    /// The upper half of a binary32.
    Bfloat16 = 9,
    /// OCP FP8 E4M3 (see [`F8E4m3`]).
    Float8E4m3 = 10,
    /// OCP FP8 E5M2 (see [`F8E5m2`]).
    Float8E5m2 = 11,
}

impl DataType {
    /// All types, in the order of their codes.
    pub const ALL: [DataType; 12] = [
        DataType::Int8,
        DataType::Uint8,
        DataType::Int32,
        DataType::Uint32,
        DataType::Int64,
        DataType::Uint64,
        DataType::Float16,
        DataType::Float32,
        DataType::Float64,
        DataType::Bfloat16,
        DataType::Float8E4m3,
        DataType::Float8E5m2,
    ];

    /// Bytes of one element: 1, 2, 4 or 8.
    #[inline]
    pub const fn size(self) -> usize {
        match self {
            Self::Int8 | Self::Uint8 | Self::Float8E4m3 | Self::Float8E5m2 => 1,
            Self::Float16 | Self::Bfloat16 => 2,
            Self::Int32 | Self::Uint32 | Self::Float32 => 4,
            Self::Int64 | Self::Uint64 | Self::Float64 => 8,
        }
    }

    /// Whether results are rounded, so that Avg scales contributions instead of dividing the sum.
    #[inline]
    pub(crate) const fn is_float(self) -> bool {
        matches!(
            self,
            Self::Float16
                | Self::Float32
                | Self::Float64
                | Self::Bfloat16
                | Self::Float8E4m3
                | Self::Float8E5m2
        )
    }

    /// The type with this code, if there is one.
    #[inline]
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(code).ok()?).copied()
    }

    /// NCCL's number for the type.
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// The spelling of nccl-tests.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Uint8 => "uint8",
            Self::Int32 => "int32",
            Self::Uint32 => "uint32",
            Self::Int64 => "int64",
            Self::Uint64 => "uint64",
            Self::Float16 => "half",
            Self::Float32 => "float",
            Self::Float64 => "double",
            Self::Bfloat16 => "bfloat16",
            Self::Float8E4m3 => "f8e4m3",
            Self::Float8E5m2 => "f8e5m2",
        }
    }
}

named!(DataType, ParseDataTypeError, "data type");

impl FromStr for DataType {
    type Err = ParseDataTypeError;

    /// Accepts [`DataType::name`] and the usual other spellings (`fp16`, `float32`, `bf16`, `fp8_e4m3`, …),
    /// upper or lower case.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let lower = text.to_ascii_lowercase();
        if let Some(known) = Self::ALL.into_iter().find(|known| known.name() == lower) {
            return Ok(known);
        }
        Ok(match lower.as_str() {
            "i8" | "char" => Self::Int8,
            "u8" => Self::Uint8,
            "i32" | "int" => Self::Int32,
            "u32" => Self::Uint32,
            "i64" => Self::Int64,
            "u64" => Self::Uint64,
            "fp16" | "f16" | "float16" => Self::Float16,
            "fp32" | "f32" | "float32" => Self::Float32,
            "fp64" | "f64" | "float64" => Self::Float64,
            "bf16" => Self::Bfloat16,
            "fp8e4m3" | "fp8_e4m3" | "f8_e4m3" | "float8e4m3" | "float8_e4m3" => Self::Float8E4m3,
            "fp8e5m2" | "fp8_e5m2" | "f8_e5m2" | "float8e5m2" | "float8_e5m2" => Self::Float8E5m2,
            _ => return Err(ParseDataTypeError(text.to_owned())),
        })
    }
}

/// A Rust type whose values are elements of a [`DataType`].
///
/// # Safety
/// The size must be `DATA_TYPE.size()` and the bits must mean what the data type says.
pub unsafe trait Element: Plain {
    /// The data type whose elements these are.
    const DATA_TYPE: DataType;
}

macro_rules! elements {
    ($($element:ty => $data_type:ident),* $(,)?) => {$(
        const _: () = assert!(size_of::<$element>() == DataType::$data_type.size());
        // SAFETY: the size was just compared, and the type's bits are the format's.
        unsafe impl Element for $element {
            const DATA_TYPE: DataType = DataType::$data_type;
        }
    )*};
}
elements! {
    i8 => Int8, u8 => Uint8, i32 => Int32, u32 => Uint32, i64 => Int64, u64 => Uint64,
    f16 => Float16, f32 => Float32, f64 => Float64, bf16 => Bfloat16,
    F8E4m3 => Float8E4m3, F8E5m2 => Float8E5m2,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_names_come_back() {
        for (code, data_type) in DataType::ALL.into_iter().enumerate() {
            assert_eq!(data_type.code() as usize, code);
            assert_eq!(DataType::from_code(code as u32), Some(data_type));
            assert_eq!(data_type.to_string().parse(), Ok(data_type));
        }
        assert_eq!(DataType::from_code(12), None);
        assert_eq!(DataType::from_code(u32::MAX), None);
    }

    #[test]
    fn other_spellings() {
        for (text, expected) in [
            ("fp16", DataType::Float16),
            ("float16", DataType::Float16),
            ("float32", DataType::Float32),
            ("float64", DataType::Float64),
            ("BF16", DataType::Bfloat16),
            ("fp8_e4m3", DataType::Float8E4m3),
            ("fp8e5m2", DataType::Float8E5m2),
        ] {
            assert_eq!(text.parse(), Ok(expected));
        }
        let error = "int7".parse::<DataType>().unwrap_err().to_string();
        assert!(error.contains("int7") && error.contains("bfloat16"), "{error}");
    }
}
