//! The reference: one element at a time.
//!
//! Invariant: an element's sources are all read before any target is written, so that a target may be a source. The
//! other levels are tested against this one and use it for a handful of elements.
//!
//! Absent: speed.

use crate::Source;
use crate::number::Number;
use crate::reduce_op::Op;
use crate::vector::Job;

/// Folds all of `job`.
///
/// # Safety
/// Every span in `job` has `job.bytes` bytes, and there is at least one source.
pub(crate) unsafe fn run<T: Number, O: Op>(job: &Job<'_>) {
    for at in (0..job.bytes).step_by(size_of::<T>()) {
        // SAFETY: `at` is the offset of a whole element of each source (caller's promise).
        let mut folded = unsafe { contribution::<T, O>(job, &job.sources[0], at) };
        for source in &job.sources[1..] {
            // SAFETY: as above.
            folded = T::combine::<O>(folded, unsafe { contribution::<T, O>(job, source, at) });
        }
        if O::DIVIDES {
            folded = T::divide(folded, job.factors.divisor);
        }
        let result = T::narrow(folded);
        for target in job.targets {
            // SAFETY: `at` is the offset of a whole element of each target (caller's promise).
            unsafe { target.span.as_mut_ptr().add(at).cast::<T>().write_unaligned(result) };
        }
    }
}

/// A compiled fold of two sources that are not scaled into one target. Its arguments are the target, the sources and
/// the number of elements.
///
/// Calling it is sound if all three have that many elements, at any alignment, and the target is one of the sources
/// or apart from both.
pub(crate) type Pair = unsafe fn(*mut u8, *const u8, *const u8, usize);

/// As [`run`], for a handful of elements, without the loops over targets and sources.
///
/// # Safety
/// As for [`Pair`].
#[inline]
pub(crate) unsafe fn pair<T: Number, O: Op>(to: *mut u8, left: *const u8, right: *const u8, elements: usize) {
    let (to, left, right) = (to.cast::<T>(), left.cast::<T>(), right.cast::<T>());
    for at in 0..elements {
        // SAFETY: all three have this many elements (caller's promise); any alignment is allowed.
        unsafe {
            let (left, right) = (left.add(at).read_unaligned(), right.add(at).read_unaligned());
            to.add(at).write_unaligned(T::narrow(T::combine::<O>(left.widen(), right.widen())));
        }
    }
}

/// A compiled fold of as many elements as eight bytes have, of two sources that are not scaled.
pub(crate) type Word = fn(u64, u64) -> u64;

/// As [`pair`], from registers to a register.
pub(crate) fn word<T: Number, O: Op>(left: u64, right: u64) -> u64 {
    let mut folded = 0u64;
    let elements = size_of::<u64>() / size_of::<T>();
    // SAFETY: all three words have this many elements, which are no larger than a word; elements are plain.
    unsafe {
        pair::<T, O>((&raw mut folded).cast(), (&raw const left).cast(), (&raw const right).cast(), elements)
    };
    folded
}

/// # Safety
/// `at` is the offset of a whole element of `source`.
#[inline(always)]
unsafe fn contribution<T: Number, O: Op>(job: &Job<'_>, source: &Source<'_>, at: usize) -> T::Wide {
    // SAFETY: caller's promise; elements are plain.
    let element = unsafe { source.span.as_ptr().add(at).cast::<T>().read_unaligned() };
    if !O::SCALES {
        return element.widen();
    }
    let scaled = T::scale(element.widen(), source.factor::<T>(&job.factors));
    // Rounded at once, as a contribution is that travels first: every rank then folds the same bits.
    if source.raw && size_of::<T>() < size_of::<T::Wide>() { T::narrow(scaled).widen() } else { scaled }
}
