//! The public calls: a call checks lengths and runs the kernel that was chosen when the reducer was made.
//!
//! Invariant: kernels see only jobs whose spans all have one length, a multiple of the element size, and run only at
//! levels that the processor has.
//!
//! Absent: arithmetic (`number`), loops (`scalar`, `vector`).

use std::fmt;

use consort_memory::{Span, SpanMut};
use half::{bf16, f16};

use crate::float_control::DefaultControls;
use crate::number::Factors;
use crate::portable::Portable;
use crate::reduce_op::{DividedSum, Formula, Max, Min, Prod, ScaledSum, Sum};
use crate::scalar::{Pair, Word};
use crate::vector::{Isa, Job, Kernel, Work};
use crate::{DataType, F8E4m3, F8E5m2, ReduceOp, Scalar, Source, Store, Target, scalar};

/// An instruction set that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// The reference: one element at a time.
    Scalar,
    /// The instructions that the compiler may assume of every processor of the architecture.
    Portable,
    /// x86-64 with AVX2 and F16C: 256-bit registers.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ and VL: 512-bit registers.
    Avx512,
}

impl Level {
    /// All levels, slowest first.
    pub const ALL: [Level; 4] = [Level::Scalar, Level::Portable, Level::Avx2, Level::Avx512];

    /// Whether this processor has the level.
    #[inline]
    pub fn is_available(self) -> bool {
        match self {
            Self::Scalar | Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                Self::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 => false,
        }
    }

    /// Runs what is compiled for each level. A level that the processor does not have is that of the compiler.
    #[inline]
    pub(crate) fn run(self, work: impl Work) {
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the processor has the level's features.
            Self::Avx512 if self.is_available() => unsafe { crate::x86::with_avx512(work) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Self::Avx2 if self.is_available() => unsafe { crate::x86::with_avx2(work) },
            _ => work.run(),
        }
    }

    /// The fastest level that this processor has.
    #[inline]
    pub fn best() -> Self {
        [Self::Avx512, Self::Avx2].into_iter().find(|level| level.is_available()).unwrap_or(Self::Portable)
    }
}

/// [`Reducer::fold_in_turn`] folds this many bytes of all sources before the next ones: they stay in the first cache.
const TILE_BYTES: usize = 4096;

/// Up to this many elements are folded one by one: filling a register would take longer.
const TINY_ELEMENTS: usize = 4;

/// The kernels of one operator on one data type.
#[derive(Clone, Copy)]
struct Kernels {
    /// The kernel at the reducer's level.
    vector: Kernel,
    /// The kernel at the scalar level, for [`TINY_ELEMENTS`] or fewer.
    tiny: Kernel,
    /// As `tiny`, for two sources.
    pair: Pair,
}

impl Kernels {
    fn new(level: Level, data_type: DataType, formula: Formula) -> Self {
        let tiny = kernel(Level::Scalar, data_type, formula);
        Self { vector: kernel(level, data_type, formula), tiny, pair: pair(data_type, formula) }
    }
}

/// A fold of one data type by one operator, with its kernels chosen.
#[derive(Clone, Copy)]
pub struct Reducer {
    /// The kernels for all folds but those that need `whole`.
    plain: Kernels,
    /// As the pair of `plain`, of eight bytes.
    word: Word,
    /// The kernels of the whole operator, with its factor and divisor.
    whole: Kernels,
    /// What the operator does, which decides the folds that need `whole`.
    formula: Formula,
    /// The kernel that copies bytes.
    copy: Kernel,
    factors: Factors,
    data_type: DataType,
    /// The element's size, and whether it is a float.
    element: u8,
    is_float: bool,
    op: ReduceOp,
    level: Level,
}

impl Reducer {
    /// A reducer at the best level of this processor. `contributions` is the number of ranks whose values are
    /// averaged; only [`ReduceOp::Avg`] uses it.
    ///
    /// # Panics
    /// If `contributions` is zero.
    pub fn new(data_type: DataType, op: ReduceOp, contributions: u32) -> Self {
        Self::averaging(data_type, op, contributions, Level::best())
    }

    /// A reducer at the given level, or `None` where the processor lacks it.
    ///
    /// # Panics
    /// If `contributions` is zero.
    pub fn with_level(data_type: DataType, op: ReduceOp, contributions: u32, level: Level) -> Option<Self> {
        level.is_available().then(|| Self::averaging(data_type, op, contributions, level))
    }

    /// A reducer at the best level of this processor that multiplies raw sources by `scalar` and adds: NCCL's
    /// pre-multiplied sum. Its data type is the scalar's.
    pub fn pre_mul_sum(scalar: Scalar) -> Self {
        Self::scaling(scalar, Level::best())
    }

    /// As [`Reducer::pre_mul_sum`] at the given level, or `None` where the processor lacks it.
    pub fn pre_mul_sum_with_level(scalar: Scalar, level: Level) -> Option<Self> {
        level.is_available().then(|| Self::scaling(scalar, level))
    }

    /// The same pre-multiplied sum with another scalar.
    ///
    /// # Panics
    /// If this is no pre-multiplied sum, or one of another data type than the scalar's.
    #[inline]
    pub fn with_scalar(&self, scalar: Scalar) -> Self {
        let fits = self.is_pre_mul_sum() && self.data_type == scalar.data_type();
        assert!(fits, "{self:?} takes no {scalar:?}");
        Self { factors: scalar.factors(), ..*self }
    }

    /// `level` is available.
    fn averaging(data_type: DataType, op: ReduceOp, contributions: u32, level: Level) -> Self {
        assert!(contributions > 0, "a reduction of no contributions");
        let formula = match op {
            ReduceOp::Sum => Formula::Sum,
            ReduceOp::Prod => Formula::Prod,
            ReduceOp::Max => Formula::Max,
            ReduceOp::Min => Formula::Min,
            ReduceOp::Avg if data_type.is_float() => Formula::ScaledSum,
            ReduceOp::Avg => Formula::DividedSum,
        };
        Self::at(level, data_type, op, formula, mean(contributions))
    }

    /// `level` is available.
    fn scaling(scalar: Scalar, level: Level) -> Self {
        Self::at(level, scalar.data_type(), ReduceOp::Sum, Formula::ScaledSum, scalar.factors())
    }

    /// `level` is available.
    fn at(level: Level, data_type: DataType, op: ReduceOp, formula: Formula, factors: Factors) -> Self {
        let plain = match formula {
            Formula::ScaledSum | Formula::DividedSum => Formula::Sum,
            plain => plain,
        };
        Self {
            plain: Kernels::new(level, data_type, plain),
            word: word(data_type, plain),
            whole: Kernels::new(level, data_type, formula),
            formula,
            copy: kernel(level, DataType::Uint8, Formula::Sum),
            factors,
            data_type,
            element: data_type.size() as u8,
            is_float: data_type.is_float(),
            op,
            level,
        }
    }

    /// The type of the elements.
    pub fn data_type(&self) -> DataType {
        self.data_type
    }

    /// The operator; [`ReduceOp::Sum`] for a pre-multiplied sum.
    pub fn op(&self) -> ReduceOp {
        self.op
    }

    /// Whether it multiplies raw sources by a [`Scalar`].
    #[inline]
    pub fn is_pre_mul_sum(&self) -> bool {
        self.formula == Formula::ScaledSum && self.op == ReduceOp::Sum
    }

    /// Whether the operator multiplies raw sources by a factor, so that `raw` has an effect.
    pub fn scales(&self) -> bool {
        self.formula == Formula::ScaledSum
    }

    /// Whether the operator divides sums of integers, so that `finish` has an effect.
    pub fn divides(&self) -> bool {
        self.formula == Formula::DividedSum
    }

    /// The factors and the divisor.
    pub(crate) fn factors(&self) -> Factors {
        self.factors
    }

    /// The instruction set.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Folds the sources, strictly left to right, and writes the result to every target.
    ///
    /// The result is `((s₀ ∘ s₁) ∘ s₂) ∘ …`, element by element:
    ///
    /// * **Integers** wrap. For Avg, `finish` divides the sum, truncating toward zero; without `finish` the
    ///   result is a partial sum. For a pre-multiplied sum, sources that are `raw` are multiplied by the scalar
    ///   before they are added; `finish` does nothing.
    /// * **Floats** of fewer than 32 bits are folded in binary32 and rounded once, to nearest with ties to
    ///   even, when all sources of the call are folded. binary16, bfloat16, binary32 and binary64 overflow to
    ///   infinity; the 8-bit formats saturate (see [`crate::F8E4m3`]). For Avg and for a pre-multiplied sum,
    ///   sources that are `raw` are multiplied (by 1/n, rounded to the type of the arithmetic, or by the scalar)
    ///   and rounded to the data type before they are added, so that a contribution has the same bits whether it
    ///   travelled first or not; `finish` does nothing.
    /// * **Max and Min** are IEEE 754-2019 `maximum` and `minimum`: NaN propagates and −0 is less than +0.
    /// * **NaN**: a NaN that an arithmetic fold gives is the type's canonical quiet NaN (positive, no payload).
    ///   A fold is arithmetic if it has two sources or more, or scales. One source that is not scaled is
    ///   copied, every bit of it.
    /// * **Denormals** are honoured and rounding is to nearest whatever the calling thread's floating-point
    ///   controls say; they are put back before the call returns. Exception flags are not part of the contract.
    ///
    /// A target may be exactly the range of a source; apart from that, a range that is written overlaps no other
    /// range. (If it does, the bytes written are unspecified.) Alignment affects nothing but speed.
    ///
    /// # Panics
    /// If there is no source, if lengths differ, or if the length is no multiple of the element size.
    #[inline]
    pub fn fold(&self, targets: &[Target<'_>], sources: &[Source<'_>], finish: bool) {
        let bytes = check(targets, sources, self.data_type);
        if bytes == 0 {
            return;
        }
        let is_whole = match self.formula {
            Formula::ScaledSum => sources.iter().any(|source| source.raw),
            Formula::DividedSum => finish,
            _ => false,
        };
        let job = Job { targets, sources, bytes, factors: self.factors };
        if !is_whole && sources.len() == 1 {
            // SAFETY: `job` was checked, and the level is one that the processor has.
            return unsafe { run_copy(self.copy, &job) };
        }
        let kernels = if is_whole { &self.whole } else { &self.plain };
        let is_tiny = bytes <= TINY_ELEMENTS * self.data_type.size();
        let kernel = if is_tiny { kernels.tiny } else { kernels.vector };
        // The arithmetic cannot move across the guard: it is behind a call through a pointer.
        let _controls = self.data_type.is_float().then(DefaultControls::enter);
        // SAFETY: `job` was checked, and the level is one that the processor has.
        unsafe { kernel(&job) }
    }
}

impl Reducer {
    /// Whether sources are multiplied before they are folded, or the result is divided.
    pub fn scales_or_divides(&self) -> bool {
        self.scales() || self.divides()
    }

    /// As [`Reducer::fold`], rounded to the data type after each source, as a chain of folds of two sources rounds.
    /// The results differ for floats of fewer than 32 bits and three sources or more.
    ///
    /// # Panics
    /// As [`Reducer::fold`].
    pub fn fold_in_turn(&self, targets: &[Target<'_>], sources: &[Source<'_>], finish: bool) {
        let is_wide =
            !self.data_type.is_float() || matches!(self.data_type, DataType::Float32 | DataType::Float64);
        let [first, second, rest @ .., last] = sources else { return self.fold(targets, sources, finish) };
        if is_wide {
            return self.fold(targets, sources, finish);
        }
        let bytes = check(targets, sources, self.data_type);
        let mut tile = [0u8; TILE_BYTES];
        let tile = SpanMut::of(&mut tile);
        for at in (0..bytes).step_by(TILE_BYTES) {
            let length = TILE_BYTES.min(bytes - at);
            let partial = tile.slice(0, length);
            let to = Target { span: partial, store: Store::Cached };
            let folded = Source { span: partial.read(), raw: false };
            self.fold(&[to], &[first.slice(at, length), second.slice(at, length)], false);
            for next in rest {
                self.fold(&[to], &[folded, next.slice(at, length)], false);
            }
            self.fold(&[to], &[folded, last.slice(at, length)], finish);
            for target in targets {
                let target = Target { span: target.span.slice(at, length), store: target.store };
                copy(&[target], folded.span);
            }
        }
    }

    /// `left ∘ right` into `target`, as [`Reducer::fold`] of two sources that are not raw, with nothing to finish. It
    /// is for short ranges, where the checks of a fold would take a good part of the time.
    ///
    /// # Panics
    /// If lengths differ, or if the length is no multiple of the element size.
    #[inline(always)]
    pub fn fold_two(&self, target: SpanMut<'_>, left: Span<'_>, right: Span<'_>) {
        let bytes = target.len();
        if bytes == size_of::<u64>() && left.len() == bytes && right.len() == bytes {
            return self.fold_word(target, left, right);
        }
        let element = self.element as usize;
        // Sizes of elements are powers of two.
        let is_tiny = left.len() == bytes
            && right.len() == bytes
            && bytes & (element - 1) == 0
            && bytes <= TINY_ELEMENTS * element;
        if !is_tiny {
            return self.fold_two_longer(target, left, right);
        }
        let _controls = self.is_float.then(DefaultControls::enter);
        let elements = bytes >> element.trailing_zeros();
        // SAFETY: all three have this many bytes; they may overlap as in every fold.
        unsafe { (self.plain.pair)(target.as_mut_ptr(), left.as_ptr(), right.as_ptr(), elements) }
    }

    /// All three have eight bytes: some whole elements.
    #[inline(always)]
    fn fold_word(&self, target: SpanMut<'_>, left: Span<'_>, right: Span<'_>) {
        // SAFETY: both have eight bytes.
        let (left, right) = unsafe {
            (left.as_ptr().cast::<u64>().read_unaligned(), right.as_ptr().cast::<u64>().read_unaligned())
        };
        // The arithmetic cannot move across the look at the controls: it is behind a call through a pointer.
        let folded = if self.is_float && !DefaultControls::are_set() {
            under_default_controls(self.word, left, right)
        } else {
            (self.word)(left, right)
        };
        // SAFETY: it has eight bytes.
        unsafe { target.as_mut_ptr().cast::<u64>().write_unaligned(folded) }
    }

    #[inline(never)]
    fn fold_two_longer(&self, target: SpanMut<'_>, left: Span<'_>, right: Span<'_>) {
        let bytes = target.len();
        let targets = [Target { span: target, store: Store::Cached }];
        let sources = [left, right].map(|span| Source { span, raw: false });
        if left.len() != bytes || right.len() != bytes || bytes & (self.element as usize - 1) != 0 {
            return self.fold(&targets, &sources, false);
        }
        let _controls = self.is_float.then(DefaultControls::enter);
        let job = Job { targets: &targets, sources: &sources, bytes, factors: self.factors };
        // SAFETY: `job` was checked, and the level is one that the processor has.
        unsafe { (self.plain.vector)(&job) }
    }
}

impl fmt::Debug for Reducer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reducer")
            .field("data_type", &self.data_type)
            .field("op", &self.op)
            .field("pre_mul_sum", &self.is_pre_mul_sum())
            .field("factors", &self.factors)
            .field("level", &self.level)
            .finish()
    }
}

/// Copies the source to every target, reading it once. A target may be exactly the source's range; apart from
/// that, ranges do not overlap.
///
/// # Panics
/// If lengths differ.
#[inline]
pub fn copy(targets: &[Target<'_>], source: Span<'_>) {
    let sources = [Source { span: source, raw: false }];
    let bytes = check(targets, &sources, DataType::Uint8);
    if bytes == 0 {
        return;
    }
    let kernel = kernel(Level::best(), DataType::Uint8, Formula::Sum);
    let job = Job { targets, sources: &sources, bytes, factors: Factors::ONE };
    // SAFETY: `job` was checked, and the level is one that the processor has.
    unsafe { run_copy(kernel, &job) }
}

/// # Safety
/// `job` is as [`Job`] requires and has one source; the processor has the level of `kernel`, which copies
/// bytes.
#[inline]
unsafe fn run_copy(kernel: Kernel, job: &Job<'_>) {
    let source = job.sources[0].span;
    // A copy onto itself writes nothing: a streaming store to the bytes' own place would cost as much as any other.
    let is_there = |target: &Target<'_>| target.span.as_mut_ptr().cast_const() == source.as_ptr();
    let targets = match job.targets {
        [first, others @ ..] if is_there(first) => others,
        [others @ .., last] if is_there(last) => others,
        targets => targets,
    };
    match targets {
        [] => {}
        [target] if target.store == Store::Cached => target.span.copy_from(source),
        // SAFETY: caller's promise; these are some of its targets.
        _ => unsafe { kernel(&Job { targets, ..*job }) },
    }
}

/// The common length in bytes.
#[inline]
fn check(targets: &[Target<'_>], sources: &[Source<'_>], data_type: DataType) -> usize {
    let Some(first) = sources.first() else { panic!("a fold of no source") };
    let bytes = first.span.len();
    let equal = sources.iter().all(|source| source.span.len() == bytes)
        && targets.iter().all(|target| target.span.len() == bytes);
    if !equal || !bytes.is_multiple_of(data_type.size()) {
        refuse(targets, sources, data_type);
    }
    bytes
}

#[cold]
#[inline(never)]
fn refuse(targets: &[Target<'_>], sources: &[Source<'_>], data_type: DataType) -> ! {
    let written: Vec<_> = targets.iter().map(|target| target.span.len()).collect();
    let read: Vec<_> = sources.iter().map(|source| source.span.len()).collect();
    panic!(
        "lengths of a fold must be equal and multiples of {} bytes ({data_type}): \
         targets have {written:?}, sources {read:?} bytes",
        data_type.size()
    );
}

/// The factors of Avg: 1/n, rounded to nearest. The black boxes keep the divisions between the changes of the
/// controls.
fn mean(contributions: u32) -> Factors {
    let _controls = DefaultControls::enter();
    let count = std::hint::black_box(contributions);
    let (single, double) = (1.0 / count as f32, 1.0 / f64::from(count));
    let factors = Factors { single, double, divisor: count, ..Factors::ONE };
    std::hint::black_box(factors)
}

/// The kernel at `$path` for a data type and a formula known only at run time.
macro_rules! choose {
    ($data_type:expr, $formula:expr, $($path:tt)+) => {
        match $data_type {
            DataType::Int8 => choose!(@integer $formula, i8, $($path)+),
            DataType::Uint8 => choose!(@integer $formula, u8, $($path)+),
            DataType::Int32 => choose!(@integer $formula, i32, $($path)+),
            DataType::Uint32 => choose!(@integer $formula, u32, $($path)+),
            DataType::Int64 => choose!(@integer $formula, i64, $($path)+),
            DataType::Uint64 => choose!(@integer $formula, u64, $($path)+),
            DataType::Float16 => choose!(@float $formula, f16, $($path)+),
            DataType::Float32 => choose!(@float $formula, f32, $($path)+),
            DataType::Float64 => choose!(@float $formula, f64, $($path)+),
            DataType::Bfloat16 => choose!(@float $formula, bf16, $($path)+),
            DataType::Float8E4m3 => choose!(@float $formula, F8E4m3, $($path)+),
            DataType::Float8E5m2 => choose!(@float $formula, F8E5m2, $($path)+),
        }
    };
    (@integer $formula:expr, $element:ty, $($path:tt)+) => {
        choose!(@ $formula, $element, DividedSum, $($path)+)
    };
    // The mean of floats is a scaled sum, without a division.
    (@float $formula:expr, $element:ty, $($path:tt)+) => {
        choose!(@ $formula, $element, Sum, $($path)+)
    };
    (@ $formula:expr, $element:ty, $divided:ty, $($path:tt)+) => {
        match $formula {
            Formula::Sum => $($path)+::<$element, Sum> as _,
            Formula::Prod => $($path)+::<$element, Prod> as _,
            Formula::Max => $($path)+::<$element, Max> as _,
            Formula::Min => $($path)+::<$element, Min> as _,
            Formula::ScaledSum => $($path)+::<$element, ScaledSum> as _,
            Formula::DividedSum => $($path)+::<$element, $divided> as _,
        }
    };
}

#[inline]
fn kernel(level: Level, data_type: DataType, formula: Formula) -> Kernel {
    match level {
        Level::Scalar => choose!(data_type, formula, scalar::run),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => choose!(data_type, formula, <crate::x86::Avx2 as Isa>::run),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => choose!(data_type, formula, <crate::x86::Avx512 as Isa>::run),
        _ => choose!(data_type, formula, <Portable as Isa>::run),
    }
}

#[cold]
#[inline(never)]
fn under_default_controls(fold: Word, left: u64, right: u64) -> u64 {
    let _controls = DefaultControls::enter();
    fold(left, right)
}

/// The kernel of two words.
#[inline]
fn word(data_type: DataType, formula: Formula) -> Word {
    match (data_type, formula) {
        #[cfg(target_arch = "x86_64")]
        (DataType::Float32, Formula::Sum) => crate::x86::sum_of_two_floats,
        _ => choose!(data_type, formula, scalar::word),
    }
}

/// The kernel of two sources for [`TINY_ELEMENTS`] or fewer.
#[inline]
fn pair(data_type: DataType, formula: Formula) -> Pair {
    choose!(data_type, formula, scalar::pair)
}
