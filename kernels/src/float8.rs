//! The two 8-bit floating-point formats of the OCP 8-bit Floating Point Specification (OFP8), revision 1.0.
//!
//! Invariant: every byte is a value of either type; conversion to `f32` is exact, conversion from `f32` rounds
//! to nearest, ties to even, and saturates: magnitudes beyond the largest finite value, infinities included,
//! become the largest finite value, as in CUDA's `__NV_SATFINITE`. NaN becomes the canonical NaN.
//!
//! Absent: arithmetic on the types themselves; values are folded in `f32`.

use std::hint::black_box;

use consort_memory::Plain;

use crate::convert::{E4m3, E5m2, decode, encode};
use crate::float_control::DefaultControls;

/// E4M3: a sign, four bits of exponent with bias 7, three bits of fraction. Largest 448, smallest positive
/// 2⁻⁹, no infinities; NaN is 0x7f (and 0xff). Compared and hashed as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct F8E4m3(pub u8);

/// E5M2: a sign, five bits of exponent with bias 15, two bits of fraction. Largest 57344, smallest positive
/// 2⁻¹⁶, infinity 0x7c; NaN is 0x7d to 0x7f, canonically 0x7e. Compared and hashed as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct F8E5m2(pub u8);

// SAFETY: `repr(transparent)` over `u8`.
unsafe impl Plain for F8E4m3 {}
// SAFETY: `repr(transparent)` over `u8`.
unsafe impl Plain for F8E5m2 {}

macro_rules! conversions {
    ($element:ident, $format:ty) => {
        impl $element {
            /// The nearest value, ties to even, saturating; NaN becomes the canonical NaN.
            #[inline]
            pub fn from_f32(value: f32) -> Self {
                let _controls = DefaultControls::enter();
                // The black boxes keep the arithmetic between the changes of the controls.
                Self(black_box(encode::<$format>(black_box(value)) as u8))
            }

            /// The same value as an `f32`; exact.
            #[inline]
            pub fn to_f32(self) -> f32 {
                decode::<$format>(u32::from(self.0))
            }
        }
    };
}
conversions!(F8E4m3, E4m3);
conversions!(F8E5m2, E5m2);
