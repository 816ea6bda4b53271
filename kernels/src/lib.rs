//! How values combine: data types, reduction operators, and the kernels that fold and copy memory.
//!
//! Invariant: the bytes that [`Reducer::fold`] writes are a function of the bytes it reads, the operator and the
//! order of the sources alone. They do not depend on the processor's instruction set, the [`Level`], the length, the
//! alignment, the kind of store, or the caller's floating-point control register. Tests compare every level with the
//! scalar reference bit for bit.
//!
//! All choices are made when a [`Reducer`] is made; a fold is a check of the lengths and one indirect call. No kernel
//! allocates, locks, or enters the operating system.
//!
//! Deliberately absent: peers, schedules, threads, and rules for which bytes may be touched when.
//!
//! | file | subject |
//! |---|---|
//! `data_type`, `reduce_op`, `named` | types and operators with their codes and names |
//! | `float8`, `convert` | formats of fewer than 32 bits |
//! | `number` | arithmetic on one element, which defines all results |
//! | `factor` | the scalar of a pre-multiplied sum |
//! | `operand` | the memory of a fold |
//! | `scalar` | the reference: one element at a time |
//! | `vector` | the loop that all SIMD levels share: blocks, alignment, streaming |
//! | `portable`, `x86` | what a register is and does at each level |
//! | `float_control` | MXCSR and FPCR |
//! | `reducer` | lengths, choice of kernel, the public calls |
//! | `rows` | weighted sums of rows, and rows in 8-bit form |
//! `cuda` | the kernels of GPUs: their launch records, and their images |

mod convert;
pub mod cuda;
mod data_type;
mod factor;
mod float8;
mod float_control;
mod named;
mod number;
mod operand;
mod portable;
mod reduce_op;
mod reducer;
pub mod rows;
mod scalar;
mod vector;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use data_type::{DataType, Element, ParseDataTypeError};
pub use factor::{Scalar, ScalarSizeError};
pub use float8::{F8E4m3, F8E5m2};
pub use half::{bf16, f16};
pub use operand::{Source, Store, Target};
pub use reduce_op::{ParseReduceOpError, ReduceOp};
pub use reducer::{Level, Reducer, copy};
