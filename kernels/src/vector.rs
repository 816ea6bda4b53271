//! The loop that all SIMD levels share: registers, blocks, alignment, streaming stores, and the ends.
//!
//! Invariant: the bytes that a store overwrites have been read before, so that a target may be a source. The ends of
//! the range are folded first, kept in registers and stored last; the blocks between them read a block of every
//! source before they write it. The ends may overlap a block: both then hold the same result.
//!
//! A level defines its register ([`Isa`]) and how the register holds each element type ([`Lanes`]).
//!
//! Absent: arithmetic, and the choice of a level (`reducer`).

use crate::number::{Factors, Number};
use crate::reduce_op::{Op, Sum};
use crate::{Source, Store, Target};

/// One fold, checked: every span has `bytes` bytes, a multiple of the element size; at least one source.
#[derive(Clone, Copy)]
pub(crate) struct Job<'a> {
    pub(crate) targets: &'a [Target<'a>],
    pub(crate) sources: &'a [Source<'a>],
    pub(crate) bytes: usize,
    pub(crate) factors: Factors,
}

/// A compiled fold.
///
/// Calling it is sound if the job is as [`Job`] requires and the processor has the features of the kernel's level.
pub(crate) type Kernel = unsafe fn(&Job<'_>);

/// Loops that the compiler makes vectors of, for each level; `run` is `#[inline(always)]`.
pub(crate) trait Work {
    fn run(self);
}

/// The registers of a level.
///
/// The functions are `unsafe` because they need the level's processor features, and where they take an
/// address, [`Isa::BYTES`] valid bytes there.
pub(crate) trait Isa: Copy + 'static {
    /// A register as it lies in memory.
    type Raw: Copy;
    /// Bytes of a register.
    const BYTES: usize = size_of::<Self::Raw>();
    /// Whether there are stores that bypass the cache.
    const STREAMS: bool;

    /// Any alignment.
    unsafe fn load(from: *const u8) -> Self::Raw;
    /// Any alignment.
    unsafe fn store(to: *mut u8, raw: Self::Raw);
    /// Bypasses the cache; `to` is a multiple of [`Isa::BYTES`].
    unsafe fn stream(to: *mut u8, raw: Self::Raw);
    /// Orders the streamed stores before all later stores.
    unsafe fn fence();
    /// Folds a job, compiled with the level's features.
    unsafe fn run<T: Number, O: Op>(job: &Job<'_>)
    where
        Self: Lanes<T>;
}

/// How a level holds the elements of one register while it folds them.
pub(crate) trait Lanes<T: Number>: Isa {
    /// [`Number::Wide`] for each element, in any order.
    type Vector: Copy;

    /// [`Number::widen`]
    unsafe fn unpack(raw: Self::Raw) -> Self::Vector;
    /// [`Number::narrow`]
    unsafe fn pack(vector: Self::Vector) -> Self::Raw;
    /// [`Number::combine`]
    unsafe fn combine<O: Op>(left: Self::Vector, right: Self::Vector) -> Self::Vector;
    /// [`Number::scale`]
    unsafe fn scale(vector: Self::Vector, factor: T::Wide) -> Self::Vector;
    /// [`Number::divide`]
    unsafe fn divide(vector: Self::Vector, divisor: u32) -> Self::Vector;

    /// Whether the sum of two registers has a shorter form than `unpack`, `combine` and `pack`.
    const HAS_SUM_OF_TWO: bool = false;
    /// `pack` of the sum of both, unpacked.
    #[inline(always)]
    unsafe fn sum_of_two(left: Self::Raw, right: Self::Raw) -> Self::Raw {
        // SAFETY: the trait's contract.
        unsafe { Self::pack(Self::combine::<Sum>(Self::unpack(left), Self::unpack(right))) }
    }
}

impl Source<'_> {
    #[inline(always)]
    pub(crate) fn factor<T: Number>(&self, factors: &Factors) -> T::Wide {
        if self.raw { T::factor(factors) } else { T::ONE }
    }
}

/// Shorter ranges than this do not align their blocks and are never streamed: the ends would cost more.
const ALIGN_FROM_BYTES: usize = 1024;
/// The largest register of any level.
const REGISTER_MAX_BYTES: usize = 64;

/// Folds all of `job` with the registers of level `L`.
///
/// # Safety
/// `job` is as [`Job`] requires, and the processor has the features of `L`, with which the caller is
/// compiled.
#[inline(always)]
pub(crate) unsafe fn fold<L: Lanes<T>, T: Number, O: Op>(job: &Job<'_>) {
    // SAFETY: the caller's promises are those of each of these.
    unsafe {
        if job.bytes < L::BYTES {
            return short::<L, T, O>(job);
        }
        if const { L::HAS_SUM_OF_TWO && O::IS_PLAIN_SUM } && job.sources.len() == 2 {
            // Whole cache lines a block: halves of lines (registers of AVX2) that are streamed to two targets in turn
            // reach memory as halves.
            return long::<L, T, O, 4, true>(job);
        }
        // As many registers a block as leave its accumulators within the register file.
        match size_of::<T::Wide>() / size_of::<T>() {
            4 => long::<L, T, O, 1, false>(job),
            2 => long::<L, T, O, 2, false>(job),
            _ => long::<L, T, O, 4, false>(job),
        }
    }
}

/// Less than a register: through buffers padded with zeros.
///
/// # Safety
/// As [`fold`]; `job.bytes` is less than a register.
#[inline(always)]
unsafe fn short<L: Lanes<T>, T: Number, O: Op>(job: &Job<'_>) {
    const { assert!(L::BYTES <= REGISTER_MAX_BYTES) };
    let mut buffer = [0u8; REGISTER_MAX_BYTES];
    // SAFETY: each copy is of `job.bytes`, the length of every span and less than the buffer; the spans are
    // not the buffer. A register fits the buffer.
    unsafe {
        let mut folded = None;
        for source in job.sources {
            std::ptr::copy_nonoverlapping(source.span.as_ptr(), buffer.as_mut_ptr(), job.bytes);
            let next = scaled::<L, T, O>(job, source, L::load(buffer.as_ptr()));
            folded = Some(match folded {
                None => next,
                Some(before) => L::combine::<O>(before, next),
            });
        }
        let Some(folded) = folded else { return };
        L::store(buffer.as_mut_ptr(), finished::<L, T, O>(job, folded));
        for target in job.targets {
            std::ptr::copy_nonoverlapping(buffer.as_ptr(), target.span.as_mut_ptr(), job.bytes);
        }
    }
}

/// At least a register: blocks of `BLOCK` registers, then single ones, then the last, which may overlap.
///
/// # Safety
/// As [`fold`]; `job.bytes` is at least a register. There are two sources if `SUM_OF_TWO`.
#[inline(always)]
unsafe fn long<L: Lanes<T>, T: Number, O: Op, const BLOCK: usize, const SUM_OF_TWO: bool>(job: &Job<'_>) {
    let last_at = job.bytes - L::BYTES;
    let lead = lead_bytes::<L, T>(job);
    // SAFETY: every access below is of whole registers at offsets of at most `last_at`.
    unsafe {
        let [last] = results::<L, T, O, 1, SUM_OF_TWO>(job, last_at);
        let first = if lead > 0 { Some(results::<L, T, O, 1, SUM_OF_TWO>(job, 0)) } else { None };

        let mut at = lead;
        while at + BLOCK * L::BYTES <= last_at {
            let block = results::<L, T, O, BLOCK, SUM_OF_TWO>(job, at);
            put::<L, BLOCK>(job, at, block, true);
            at += BLOCK * L::BYTES;
        }
        while at < last_at {
            // A step that reaches past `last_at` still ends within the range.
            let step = results::<L, T, O, 1, SUM_OF_TWO>(job, at);
            put::<L, 1>(job, at, step, true);
            at += L::BYTES;
        }
        if let Some(first) = first {
            put::<L, 1>(job, 0, first, false);
        }
        // Where the last register overlaps no block it is streamed like the others: mostly it completes a line, and
        // half a line by each kind of store costs far more. (It may begin a line; the first register, and a last one
        // that overlaps, are stored through the caches.)
        put::<L, 1>(job, last_at, [last], at == last_at);
        if L::STREAMS && job.targets.iter().any(|target| target.store == Store::Streaming) {
            L::fence();
        }
    }
}

/// Bytes before the first block, so that blocks are aligned in one target: the first that is streamed, else
/// the first. Zero where that is impossible or does not pay.
#[inline(always)]
fn lead_bytes<L: Lanes<T>, T: Number>(job: &Job<'_>) -> usize {
    if job.bytes < ALIGN_FROM_BYTES {
        return 0;
    }
    let streamed = job.targets.iter().find(|target| target.store == Store::Streaming);
    let Some(target) = streamed.or(job.targets.first()) else { return 0 };
    let lead = (target.span.as_mut_ptr() as usize).wrapping_neg() % L::BYTES;
    if lead.is_multiple_of(size_of::<T>()) { lead } else { 0 }
}

/// The finished results of `BLOCK` registers at `at`.
///
/// # Safety
/// As [`fold`]; the registers lie within the range. There are two sources if `SUM_OF_TWO`.
#[allow(clippy::needless_range_loop, reason = "other forms leave the arrays on the stack")]
#[inline(always)]
unsafe fn results<L: Lanes<T>, T: Number, O: Op, const BLOCK: usize, const SUM_OF_TWO: bool>(
    job: &Job<'_>,
    at: usize,
) -> [L::Raw; BLOCK] {
    // SAFETY: caller's promise; there is at least one source.
    unsafe {
        let first = &job.sources[0];
        let mut raw = load::<L, BLOCK>(first, at);
        if SUM_OF_TWO {
            let second = job.sources[1].span.as_ptr().add(at);
            for register in 0..BLOCK {
                raw[register] = L::sum_of_two(raw[register], L::load(second.add(register * L::BYTES)));
            }
            return raw;
        }
        let mut folded = [scaled::<L, T, O>(job, first, raw[0]); BLOCK];
        for register in 1..BLOCK {
            folded[register] = scaled::<L, T, O>(job, first, raw[register]);
        }
        for source in &job.sources[1..] {
            raw = load::<L, BLOCK>(source, at);
            for register in 0..BLOCK {
                let next = scaled::<L, T, O>(job, source, raw[register]);
                folded[register] = L::combine::<O>(folded[register], next);
            }
        }
        for register in 0..BLOCK {
            raw[register] = finished::<L, T, O>(job, folded[register]);
        }
        raw
    }
}

/// # Safety
/// `BLOCK` registers at `at` lie within the source.
#[allow(clippy::needless_range_loop, reason = "other forms leave the arrays on the stack")]
#[inline(always)]
unsafe fn load<L: Isa, const BLOCK: usize>(source: &Source<'_>, at: usize) -> [L::Raw; BLOCK] {
    // SAFETY: caller's promise.
    unsafe {
        let from = source.span.as_ptr().add(at);
        let mut raw = [L::load(from); BLOCK];
        for register in 1..BLOCK {
            raw[register] = L::load(from.add(register * L::BYTES));
        }
        raw
    }
}

/// Writes `BLOCK` registers at `at` to every target, past the cache where the target wants that, `may_stream`
/// allows it and the address is aligned.
///
/// # Safety
/// `BLOCK` registers at `at` lie within every target.
#[inline(always)]
unsafe fn put<L: Isa, const BLOCK: usize>(job: &Job<'_>, at: usize, raw: [L::Raw; BLOCK], may_stream: bool) {
    for target in job.targets {
        // SAFETY: caller's promise; the alignment is checked before a streaming store.
        unsafe {
            let to = target.span.as_mut_ptr().add(at);
            let streams = L::STREAMS
                && may_stream
                && target.store == Store::Streaming
                && job.bytes >= ALIGN_FROM_BYTES
                && (to as usize).is_multiple_of(L::BYTES);
            for (register, &raw) in raw.iter().enumerate() {
                let to = to.add(register * L::BYTES);
                if streams { L::stream(to, raw) } else { L::store(to, raw) }
            }
        }
    }
}

/// # Safety
/// The processor has the features of `L`.
#[inline(always)]
unsafe fn scaled<L: Lanes<T>, T: Number, O: Op>(
    job: &Job<'_>,
    source: &Source<'_>,
    raw: L::Raw,
) -> L::Vector {
    // SAFETY: caller's promise.
    unsafe {
        let vector = L::unpack(raw);
        if !O::SCALES {
            return vector;
        }
        let scaled = L::scale(vector, source.factor::<T>(&job.factors));
        // Rounded at once, as a contribution is that travels first: every rank then folds the same bits.
        if source.raw && size_of::<T>() < size_of::<T::Wide>() { L::unpack(L::pack(scaled)) } else { scaled }
    }
}

/// # Safety
/// The processor has the features of `L`.
#[inline(always)]
unsafe fn finished<L: Lanes<T>, T: Number, O: Op>(job: &Job<'_>, folded: L::Vector) -> L::Raw {
    // SAFETY: caller's promise.
    unsafe { L::pack(if O::DIVIDES { L::divide(folded, job.factors.divisor) } else { folded }) }
}

/// Implements [`Lanes`] by loops over arrays, for the compiler to vectorise with the features given.
macro_rules! array_lanes {
    ($level:ty, $bytes:literal, $attributes:tt, $($element:ty),* $(,)?) => {
        $(array_lanes!(@ $level, $bytes, $attributes, $element);)*
    };
    (@ $level:ty, $bytes:literal, [$($attribute:meta)?], $element:ty) => {
        #[allow(clippy::useless_transmute, reason = "an array of bytes is its own register")]
        #[allow(clippy::needless_range_loop, reason = "other forms do not vectorise reliably")]
        impl Lanes<$element> for $level {
            type Vector = [<$element as Number>::Wide; $bytes / size_of::<$element>()];

            #[inline]
            $(#[$attribute])?
            unsafe fn unpack(raw: Self::Raw) -> Self::Vector {
                type Elements = [$element; $bytes / size_of::<$element>()];
                // SAFETY: sizes are equal (checked by the compiler) and elements are plain.
                let elements = unsafe { std::mem::transmute::<Self::Raw, Elements>(raw) };
                let mut vector = [<$element as Number>::ONE; $bytes / size_of::<$element>()];
                for lane in 0..vector.len() {
                    vector[lane] = elements[lane].widen();
                }
                vector
            }

            #[inline]
            $(#[$attribute])?
            unsafe fn pack(vector: Self::Vector) -> Self::Raw {
                let mut elements = [<$element as Number>::narrow(vector[0]); $bytes / size_of::<$element>()];
                for lane in 0..vector.len() {
                    elements[lane] = <$element as Number>::narrow(vector[lane]);
                }
                // SAFETY: sizes are equal (checked by the compiler); any bits are a register.
                unsafe { std::mem::transmute(elements) }
            }

            #[inline]
            $(#[$attribute])?
            unsafe fn combine<O: Op>(mut left: Self::Vector, right: Self::Vector) -> Self::Vector {
                for lane in 0..left.len() {
                    left[lane] = <$element as Number>::combine::<O>(left[lane], right[lane]);
                }
                left
            }

            #[inline]
            $(#[$attribute])?
            unsafe fn scale(
                mut vector: Self::Vector,
                factor: <$element as Number>::Wide,
            ) -> Self::Vector {
                for lane in 0..vector.len() {
                    vector[lane] = <$element as Number>::scale(vector[lane], factor);
                }
                vector
            }

            #[inline]
            $(#[$attribute])?
            unsafe fn divide(mut vector: Self::Vector, divisor: u32) -> Self::Vector {
                for lane in 0..vector.len() {
                    vector[lane] = <$element as Number>::divide(vector[lane], divisor);
                }
                vector
            }
        }
    };
}
pub(crate) use array_lanes;
