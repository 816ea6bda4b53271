//! Memory that an operation may use after the call that started it returned.
//!
//! Invariant: while a [`Held`] or a [`HeldRead`] lives, the bytes it names are allocated and belong to its
//! holder. Two ways lead there in Rust, and forgetting a value can break neither; a third, `from_raw`, takes a C caller's word:
//!
//! - [`Lease`] owns a [`Buffer`] jointly with what it handed out. Forgetting the lease leaks a count, so the
//!   allocation is never freed; forgetting a `Held` likewise, and [`Lease::try_take`] then never succeeds.
//! - [`lend`] borrows, shaped like `std::thread::scope`. It does not return before every loan was dropped, and
//!   that wait is not in a destructor of something the caller could forget: it is code of `lend` itself. A
//!   forgotten loan makes `lend` wait for ever; it cannot make it return early.
//!
//! Deliberately absent: peers, and giving a slice of the bytes to the caller while they are held.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

use crate::{Plain, Span, SpanMut};

/// Memory that may be read, kept until dropped. Clones refer to the same bytes. There is no way to write:
///
/// ```compile_fail,E0599
/// let numbers = [1u32, 2];
/// consort_memory::lend(|lender| lender.share(&numbers).span().len());
/// ```
#[derive(Clone)]
pub struct HeldRead {
    start: NonNull<u8>,
    bytes: usize,
    _keep: Arc<dyn Send + Sync>,
}

// SAFETY: an address range of plain bytes that `_keep`, itself `Send + Sync`, keeps allocated.
unsafe impl Send for HeldRead {}
// SAFETY: as above.
unsafe impl Sync for HeldRead {}

impl HeldRead {
    /// The bytes.
    #[inline]
    pub fn read(&self) -> Span<'_> {
        // SAFETY: readable while `_keep` lives, hence while `self` is borrowed; the maker gave the exclusive or
        // shared right to the bytes away for that long.
        unsafe { Span::from_raw(self.start.as_ptr(), self.bytes) }
    }

    /// The same for `bytes` bytes from `offset` on.
    ///
    /// # Panics
    /// If they are not inside.
    pub fn part(&self, offset: usize, bytes: usize) -> HeldRead {
        let span = self.read().slice(offset, bytes);
        HeldRead { start: start_of(span.as_ptr()), bytes, _keep: Arc::clone(&self._keep) }
    }

    /// Memory of a caller who promises to keep it, as C callers do.
    ///
    /// # Safety
    /// While the value or a clone of it lives, `bytes` bytes from `start` must stay readable and unwritten. `start` may
    /// be null if `bytes` is 0.
    pub unsafe fn from_raw(start: *const u8, bytes: usize) -> Self {
        HeldRead { start: start_of(start), bytes, _keep: elsewhere() }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}

impl fmt::Debug for HeldRead {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("HeldRead").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// Memory that may be read and written, kept until dropped. Clones refer to the same bytes.
#[derive(Clone)]
pub struct Held(HeldRead);

impl Held {
    /// The same for `bytes` bytes from `offset` on.
    ///
    /// # Panics
    /// If they are not inside.
    pub fn part(&self, offset: usize, bytes: usize) -> Held {
        Held(self.0.part(offset, bytes))
    }

    /// Memory that `keep` keeps and that its maker has given up.
    ///
    /// # Safety
    /// As [`SpanMut::from_raw`] for as long as `keep` lives.
    pub unsafe fn kept(start: NonNull<u8>, bytes: usize, keep: Arc<dyn Send + Sync>) -> Self {
        Held(HeldRead { start, bytes, _keep: keep })
    }

    /// The bytes, for writing.
    #[inline]
    pub fn span(&self) -> SpanMut<'_> {
        // SAFETY: as in `HeldRead::read`, and a `Held` is made only of memory that its maker could write.
        unsafe { SpanMut::from_raw(self.0.start.as_ptr(), self.0.bytes) }
    }

    /// Memory of a caller who promises to keep it, as C callers do.
    ///
    /// # Safety
    /// While the value or a clone of it lives, `bytes` bytes from `start` must stay writable, and have no other user.
    /// `start` may be null if `bytes` is 0.
    pub unsafe fn from_raw(start: *mut u8, bytes: usize) -> Self {
        // SAFETY: this function's own contract, which says more.
        Held(unsafe { HeldRead::from_raw(start, bytes) })
    }

    /// The bytes, for reading.
    #[inline]
    pub fn read(&self) -> Span<'_> {
        self.0.read()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.0.bytes
    }

    /// Whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.0.bytes == 0
    }
}

impl From<Held> for HeldRead {
    fn from(held: Held) -> Self {
        held.0
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Held").field("bytes", &self.0.bytes).finish_non_exhaustive()
    }
}

/// Of memory that another party keeps, by a promise.
struct Elsewhere;

fn elsewhere() -> Arc<dyn Send + Sync> {
    static ELSEWHERE: OnceLock<Arc<Elsewhere>> = OnceLock::new();
    ELSEWHERE.get_or_init(|| Arc::new(Elsewhere)).clone()
}

/// A vector's allocation, without a reference to its elements.
#[doc(hidden)]
pub struct Allocation<T: Plain> {
    start: NonNull<T>,
    elements: usize,
    capacity: usize,
}

// SAFETY: it owns the allocation; elements are reached only through spans, or by the party that takes the vector back.
unsafe impl<T: Plain> Send for Allocation<T> {}
// SAFETY: as above.
unsafe impl<T: Plain> Sync for Allocation<T> {}
impl<T: Plain> Allocation<T> {
    fn of(vector: Vec<T>) -> Self {
        let mut vector = ManuallyDrop::new(vector);
        let start = NonNull::new(vector.as_mut_ptr()).expect("a vector's pointer is not null");
        Allocation { start, elements: vector.len(), capacity: vector.capacity() }
    }

    fn into_vec(self) -> Vec<T> {
        let this = ManuallyDrop::new(self);
        // SAFETY: the parts of the vector given to `Allocation::of`; `this` is not dropped, so they are used once.
        unsafe { Vec::from_raw_parts(this.start.as_ptr(), this.elements, this.capacity) }
    }
}

impl<T: Plain> Drop for Allocation<T> {
    fn drop(&mut self) {
        // SAFETY: as in `into_vec`, which does not run this.
        drop(unsafe { Vec::from_raw_parts(self.start.as_ptr(), self.elements, self.capacity) });
    }
}

pub(crate) mod sealed {
    /// A type of this crate, or one that it knows.
    pub trait Sealed {}
}

/// A buffer of elements that owns its memory, which stays where it is when the buffer moves: a `Vec`, or memory of
/// `SharedBuffer`, which the ranks of a host map and nothing has to be copied for.
pub trait Buffer: sealed::Sealed + Send + Sized + 'static {
    /// What it holds.
    type Element: Plain;
    /// The buffer without a reference to its elements.
    #[doc(hidden)]
    type Kept: Send + Sync + 'static;

    /// The buffer, the first byte of its elements, and how many bytes they have.
    #[doc(hidden)]
    fn keep(self) -> (Self::Kept, NonNull<u8>, usize);

    /// The buffer again.
    #[doc(hidden)]
    fn back(kept: Self::Kept) -> Self;

    /// One of no elements.
    ///
    /// # Panics
    /// If there is no memory for that.
    #[doc(hidden)]
    fn none() -> Self;
}

impl<T: Plain> sealed::Sealed for Vec<T> {}
impl<T: Plain> Buffer for Vec<T> {
    type Element = T;
    type Kept = Allocation<T>;

    fn keep(self) -> (Allocation<T>, NonNull<u8>, usize) {
        let kept = Allocation::of(self);
        let (start, bytes) = (kept.start.cast(), kept.elements * size_of::<T>());
        (kept, start, bytes)
    }

    fn back(kept: Allocation<T>) -> Self {
        kept.into_vec()
    }

    fn none() -> Self {
        Vec::new()
    }
}

/// A buffer that operations may use; given back when none does any more.
pub struct Lease<B: Buffer> {
    kept: Arc<B::Kept>,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: an address range that `kept`, itself `Send + Sync`, keeps allocated, as of `HeldRead`.
unsafe impl<B: Buffer> Send for Lease<B> {}
// SAFETY: as above.
unsafe impl<B: Buffer> Sync for Lease<B> {}

impl<B: Buffer> Lease<B> {
    /// Takes the buffer.
    pub fn new(buffer: B) -> Self {
        let (kept, start, bytes) = buffer.keep();
        Self { kept: Arc::new(kept), start, bytes }
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.bytes / size_of::<B::Element>()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The right to use the elements, for as long as it is kept.
    pub fn hold(&self) -> Held {
        let keep = Arc::clone(&self.kept) as Arc<dyn Send + Sync>;
        Held(HeldRead { start: self.start, bytes: self.bytes, _keep: keep })
    }

    /// The buffer, once no [`Held`] is left.
    ///
    /// # Errors
    /// The lease itself while the memory is in use.
    pub fn try_take(self) -> Result<B, Self> {
        let Self { kept, start, bytes } = self;
        Arc::try_unwrap(kept).map(B::back).map_err(|kept| Self { kept, start, bytes })
    }
}

impl<B: Buffer> fmt::Debug for Lease<B> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Lease").field("elements", &self.len()).finish_non_exhaustive()
    }
}

/// What an operation owns and gives back: a [`Buffer`], or two.
pub trait Buffers: Sized {
    /// Of each of them.
    type Leases: Send + Sync + 'static;

    /// All of it, once no [`Held`] is left.
    ///
    /// # Errors
    /// The leases while some memory is in use.
    fn try_take(leases: Self::Leases) -> Result<Self, Self::Leases>;

    /// Of no elements.
    #[doc(hidden)]
    fn none() -> Self;
}

impl<B: Buffer> Buffers for B {
    type Leases = Lease<B>;

    fn try_take(lease: Lease<B>) -> Result<Self, Lease<B>> {
        lease.try_take()
    }

    fn none() -> Self {
        <B as Buffer>::none()
    }
}

impl<A: Buffer, B: Buffer> Buffers for (A, B) {
    type Leases = (Lease<A>, Lease<B>);

    fn try_take((first, second): Self::Leases) -> Result<Self, Self::Leases> {
        match (first.try_take(), second.try_take()) {
            (Ok(first), Ok(second)) => Ok((first, second)),
            (first, second) => Err((
                first.map_or_else(|lease| lease, Lease::new),
                second.map_or_else(|lease| lease, Lease::new),
            )),
        }
    }

    fn none() -> Self {
        (<A as Buffer>::none(), <B as Buffer>::none())
    }
}

/// How many loans are out.
#[derive(Default)]
struct Loans {
    out: Mutex<usize>,
    returned: Condvar,
}

/// One loan; shared by the clones of a `Held`.
struct Loan(Arc<Loans>);
impl Drop for Loan {
    fn drop(&mut self) {
        let mut out = self.0.out.lock().unwrap_or_else(PoisonError::into_inner);
        *out -= 1;
        if *out == 0 {
            self.0.returned.notify_all();
        }
    }
}

/// Lends slices out inside [`lend`].
pub struct Lender<'scope, 'env: 'scope> {
    loans: Arc<Loans>,
    /// Invariant in both, as `std::thread::Scope` is: neither may be shortened to lend what lives less long.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

impl<'env> Lender<'_, 'env> {
    /// Lends a slice for reading.
    pub fn share<T: Plain>(&self, slice: &'env [T]) -> HeldRead {
        self.loan(NonNull::from(slice).cast(), size_of_val(slice))
    }

    /// Lends a slice for reading and writing.
    pub fn share_mut<T: Plain>(&self, slice: &'env mut [T]) -> Held {
        let bytes = size_of_val(slice);
        Held(self.loan(NonNull::from(slice).cast(), bytes))
    }

    /// Lends a span for reading.
    pub fn share_span(&self, span: Span<'env>) -> HeldRead {
        self.loan(start_of(span.as_ptr()), span.len())
    }

    /// Lends a span for reading and writing; its copies stay as they are, and alias the loan.
    pub fn share_span_mut(&self, span: SpanMut<'env>) -> Held {
        Held(self.loan(start_of(span.as_mut_ptr()), span.len()))
    }

    fn loan(&self, start: NonNull<u8>, bytes: usize) -> HeldRead {
        *self.loans.out.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        HeldRead { start, bytes, _keep: Arc::new(Loan(Arc::clone(&self.loans))) }
    }
}

fn start_of(address: *const u8) -> NonNull<u8> {
    NonNull::new(address.cast_mut()).unwrap_or(NonNull::dangling())
}

impl fmt::Debug for Lender<'_, '_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Lender").finish_non_exhaustive()
    }
}

/// Runs `f` with a [`Lender`] of slices, and returns when everything lent has come back: also when `f`
/// panics. The slices outlive the call (`'env`), so nothing that was lent can dangle.
///
/// A loan that is forgotten, or returned by `f` itself, never comes back: the call then waits for ever.
///
/// ```
/// let mut numbers = [1u32, 2];
/// let bytes = consort_memory::lend(|lender| lender.share_mut(&mut numbers).len());
/// assert_eq!((bytes, numbers), (8, [1, 2]));
/// ```
/// What lives less long than the call cannot be lent, nor what is lent already, nor can the lender be kept:
/// ```compile_fail,E0597
/// consort_memory::lend(|lender| {
///     let numbers = [1u32, 2];
///     lender.share(&numbers);
/// });
/// ```
/// ```compile_fail,E0499
/// let mut numbers = [1u32, 2];
/// consort_memory::lend(|lender| (lender.share_mut(&mut numbers).len(), lender.share_mut(&mut numbers).len()));
/// ```
/// ```compile_fail
/// let kept = consort_memory::lend(|lender| lender);
/// ```
///
/// # Panics
/// With what `f` panicked with.
pub fn lend<'env, R>(f: impl for<'scope> FnOnce(&'scope Lender<'scope, 'env>) -> R) -> R {
    let lender = Lender { loans: Arc::default(), scope: PhantomData, env: PhantomData };
    let result = catch_unwind(AssertUnwindSafe(|| f(&lender)));
    let mut out = lender.loans.out.lock().unwrap_or_else(PoisonError::into_inner);
    while *out > 0 {
        out = lender.loans.returned.wait(out).unwrap_or_else(PoisonError::into_inner);
    }
    drop(out);
    match result {
        Ok(value) => value,
        Err(panic) => resume_unwind(panic),
    }
}
