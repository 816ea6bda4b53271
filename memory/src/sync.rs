//! The only door to atomics, and ownership by one compare-and-swap.
//!
//! Invariant: whatever is shared between threads goes through the types named here, so that the model checker
//! can stand in for them (`--cfg loom`). Deliberately absent: locks that block, waiting, spinning.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

#[cfg(not(loom))]
mod cell {
    /// `std`'s cell with the model checker's method names.
    #[derive(Debug)]
    pub(super) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(super) const fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        #[inline]
        pub(super) fn get_mut(&self) -> MutPtr<T> {
            MutPtr(self.0.get())
        }

        pub(super) fn into_inner(self) -> T {
            self.0.into_inner()
        }
    }

    #[derive(Debug)]
    pub(super) struct MutPtr<T>(*mut T);

    impl<T> MutPtr<T> {
        /// # Safety
        /// As for dereferencing the pointer mutably.
        #[inline]
        #[allow(clippy::mut_from_ref)]
        pub(super) unsafe fn deref(&self) -> &mut T {
            // SAFETY: the caller's promise.
            unsafe { &mut *self.0 }
        }
    }
}
#[cfg(loom)]
use loom::cell;

/// A value that one thread at a time owns; a second taker is refused at once.
///
/// Taking it is one compare-and-swap and giving it back one store: no system call, no waiting, and no
/// poisoning (a panic while it is owned releases it).
pub struct Exclusive<T> {
    owned: AtomicBool,
    value: cell::UnsafeCell<T>,
}

// SAFETY: the value is reached only through the guard, and `owned` admits one at a time; handing it from
// thread to thread is what `T: Send` allows.
unsafe impl<T: Send> Sync for Exclusive<T> {}
// SAFETY: moving it moves the value.
unsafe impl<T: Send> Send for Exclusive<T> {}

impl<T: Send> Exclusive<T> {
    /// A value without an owner.
    #[cfg(not(loom))]
    pub const fn new(value: T) -> Self {
        Self { owned: AtomicBool::new(false), value: cell::UnsafeCell::new(value) }
    }

    /// A value without an owner.
    #[cfg(loom)]
    pub fn new(value: T) -> Self {
        Self { owned: AtomicBool::new(false), value: cell::UnsafeCell::new(value) }
    }

    /// The value, unless it is owned.
    #[inline]
    pub fn try_acquire(&self) -> Option<ExclusiveGuard<'_, T>> {
        // Acquire: pairs with the Release in ExclusiveGuard::drop; sees what the last owner wrote.
        self.owned.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).ok()?;
        Some(ExclusiveGuard {
            value: std::mem::ManuallyDrop::new(self.value.get_mut()),
            owned: &self.owned,
            life: PhantomData,
        })
    }

    /// The value, when nothing can refer to it any more.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T> fmt::Debug for Exclusive<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Exclusive").finish_non_exhaustive()
    }
}

/// Ownership of an [`Exclusive`]; given back on drop.
pub struct ExclusiveGuard<'a, T> {
    value: std::mem::ManuallyDrop<cell::MutPtr<T>>,
    owned: &'a AtomicBool,
    life: PhantomData<&'a mut T>,
}

// SAFETY: the guard is a `&mut T` that tells its owner when it goes.
unsafe impl<T: Send> Send for ExclusiveGuard<'_, T> {}
// SAFETY: a shared guard gives out `&T` only.
unsafe impl<T: Sync> Sync for ExclusiveGuard<'_, T> {}

impl<T> Deref for ExclusiveGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: `owned` was won, so no other guard exists; `&self` keeps `deref_mut` away.
        unsafe { self.value.deref().deref() }
    }
}

impl<T> DerefMut for ExclusiveGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: `owned` was won, so no other guard exists; `&mut self` makes this the only reference.
        unsafe { self.value.deref().deref() }
    }
}

impl<T> Drop for ExclusiveGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: dropped once, here, and not used after. (The model checker ends the access with it.)
        unsafe { std::mem::ManuallyDrop::drop(&mut self.value) }
        // Release: pairs with the Acquire in Exclusive::try_acquire; publishes what this owner wrote.
        self.owned.store(false, Ordering::Release);
    }
}

impl<T: fmt::Debug> fmt::Debug for ExclusiveGuard<'_, T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(out)
    }
}
