//! The level without intrinsics: arrays of 64 bytes, which the compiler maps to the registers of the target.
//!
//! Invariant: the arithmetic is that of `number`, lane by lane. Absent: streaming stores.

use half::{bf16, f16};

use crate::number::Number;
use crate::reduce_op::Op;
use crate::vector::{Isa, Job, Lanes, array_lanes, fold};
use crate::{F8E4m3, F8E5m2};

#[derive(Clone, Copy)]
pub(crate) struct Portable;

impl Isa for Portable {
    type Raw = [u8; 64];
    const STREAMS: bool = false;

    #[inline]
    unsafe fn load(from: *const u8) -> Self::Raw {
        // SAFETY: the trait's contract.
        unsafe { from.cast::<Self::Raw>().read() }
    }

    #[inline]
    unsafe fn store(to: *mut u8, raw: Self::Raw) {
        // SAFETY: the trait's contract.
        unsafe { to.cast::<Self::Raw>().write(raw) }
    }

    #[inline]
    unsafe fn stream(to: *mut u8, raw: Self::Raw) {
        // SAFETY: the trait's contract.
        unsafe { Self::store(to, raw) }
    }

    #[inline]
    unsafe fn fence() {}

    unsafe fn run<T: Number, O: Op>(job: &Job<'_>)
    where
        Self: Lanes<T>,
    {
        // SAFETY: the caller's promise; this level needs no features.
        unsafe { fold::<Self, T, O>(job) }
    }
}

array_lanes!(Portable, 64, [], i8, u8, i32, u32, i64, u64, f16, f32, f64, bf16, F8E4m3, F8E5m2);
