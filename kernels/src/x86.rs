//! The levels of x86-64. Each file defines a level's registers and how they hold each element type.
//!
//! Invariant: functions here are compiled with their level's features, or into functions that are, and called only
//! where the processor has them; `Level::is_available` alone decides that.
//!
//! Absent: AVX512-BF16 and AVX512-FP16, whose conversions and sums flush denormals or round more often than
//! once.

mod avx2;
mod avx512;
mod float8_sum;
mod float_lanes;
mod word;

pub(crate) use avx2::Avx2;
pub(crate) use avx512::Avx512;
pub(crate) use word::sum_of_two_floats;
