//! The boundary to C: pointers from callers, panics, refusals in a forked child, the log of calls.
//!
//! Invariant: no panic leaves; an [`Out`], [`In`] or [`Text`] exists only as an argument of an exported function, whose
//! caller vouches for it. Absent: what the functions do.

use std::cell::Cell;
use std::ffi::{CStr, c_char};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::code::{Answer, Code};
use crate::driver;

/// A `T*` that the function writes.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Out<T>(*mut T);

/// A `const T*` that the function reads, one or several.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct In<T>(*const T);

/// A `const char*`, a text that ends with a zero.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Text(*const c_char);

impl<T: Copy> Out<T> {
    /// What is there, of a place that the function reads and writes.
    pub(crate) fn get(self) -> Answer<T> {
        self.check()?;
        // SAFETY: not null; the caller of the exported function vouches for a `T` there.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Writes the value; a null pointer is `CUDA_ERROR_INVALID_VALUE`.
    pub(crate) fn put(self, value: T) -> Answer {
        self.check()?;
        // SAFETY: not null; the caller of the exported function vouches that a `T` can be written there.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Writes the value unless the pointer is null.
    pub(crate) fn put_if_wanted(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: as in `put`.
            unsafe { self.0.write_unaligned(value) };
        }
    }

    /// Writes the values one after the other, as many as the caller has said there is room for.
    pub(crate) fn put_all(self, values: &[T]) -> Answer {
        self.check()?;
        for (index, value) in values.iter().enumerate() {
            // SAFETY: as in `put`, for that many.
            unsafe { self.0.add(index).write_unaligned(*value) };
        }
        Ok(())
    }

    /// `CUDA_ERROR_INVALID_VALUE` if it is null.
    pub(crate) fn check(self) -> Answer {
        if self.0.is_null() { Err(Code::INVALID_VALUE) } else { Ok(()) }
    }

    /// This address, for a caller that has it as a number.
    pub(crate) fn from_address(address: u64) -> Self {
        Out(address as *mut T)
    }

    /// None.
    pub(crate) fn none() -> Self {
        Out(std::ptr::null_mut())
    }

    /// The same place for values of another type.
    pub(crate) fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }
}

impl<T: Copy> In<T> {
    /// The value; a null pointer is `CUDA_ERROR_INVALID_VALUE`.
    pub(crate) fn get(self) -> Answer<T> {
        self.at(0)
    }

    /// The `index`th value.
    pub(crate) fn at(self, index: usize) -> Answer<T> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null; the caller of the exported function vouches for as many values as it said.
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }

    /// Whether it is null.
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }
}

impl<T> In<T> {
    /// This address, for a caller that has it as a number.
    pub(crate) fn from_address(address: u64) -> Self {
        In(address as *const T)
    }
}

impl Text {
    /// The text; a null pointer is `CUDA_ERROR_INVALID_VALUE`.
    pub(crate) fn get<'a>(self) -> Answer<&'a CStr> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null; the caller of the exported function vouches for a text that stays while it is called.
        Ok(unsafe { CStr::from_ptr(self.0) })
    }
}

thread_local! {
    /// Whether this thread is in a function that a stream calls.
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Runs what a stream calls on the host; the driver's functions are refused in it.
pub(crate) fn in_host_function(function: impl FnOnce()) {
    IN_HOST_FUNCTION.set(true);
    let _ = catch_unwind(AssertUnwindSafe(function));
    IN_HOST_FUNCTION.set(false);
}

fn log(name: &str) {
    let Some(path) = driver::get().ok().and_then(|driver| driver.settings.log.as_ref()) else { return };
    let line = format!("{name} {}\n", std::process::id());
    if let Ok(mut file) = std::fs::OpenOptions::new().append(true).create(true).open(path) {
        let _ = file.write_all(line.as_bytes());
    }
}

/// Runs the body of an exported function. Every exported function goes through here.
pub(crate) fn call(name: &str, body: impl FnOnce() -> Answer) -> u32 {
    let guarded = || {
        if driver::is_forked_child() {
            return Err(Code::NOT_INITIALIZED);
        }
        if IN_HOST_FUNCTION.get() {
            return Err(Code::NOT_PERMITTED);
        }
        let first = driver::get().is_err();
        // The call is logged before it runs, so that a call that hangs is seen. `cuInit` reads the name of the log
        // and is logged after it ran.
        if !first {
            log(name);
            driver::get()?.captures.admit(name)?;
        }
        let result = body();
        if first {
            log(name);
        }
        result
    };
    match catch_unwind(AssertUnwindSafe(guarded)) {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code.0,
        Err(_) => Code::UNKNOWN.0,
    }
}

/// Declares one exported function.
macro_rules! export {
    ([$($attribute:tt)*] $name:ident ($($argument:ident: $type:ty),* $(,)?) $body:block) => {
        $($attribute)*
        #[doc = concat!("\n\n`", stringify!($name), "` of the driver's interface.\n\n# Safety\nPointers are as NVIDIA documents them for this function.")]
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, clippy::too_many_arguments)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> u32 {
            $crate::boundary::call(stringify!($name), move || $body)
        }
    };
}
pub(crate) use export;

/// Declares exported functions by the driver's names, each with another name at its end where there are two, and `table`,
/// their addresses for `cuGetProcAddress`.
macro_rules! exports {
    ($($(#[$attribute:meta])* fn $name:ident $arguments:tt $body:block $(= $alias:ident;)?)+) => {
        $(
            $crate::boundary::export!([$(#[$attribute])*] $name $arguments $body);
            $($crate::boundary::export!([#[doc = "The same under another name."]] $alias $arguments $body);)?
        )+

        /// The functions of this module by name.
        pub(crate) fn table() -> Vec<(&'static str, usize)> {
            vec![$(
                (stringify!($name), $name as *const () as usize),
                $((stringify!($alias), $alias as *const () as usize),)?
            )+]
        }
    };
}
pub(crate) use exports;
