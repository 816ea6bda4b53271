//! The floating-point control register of the calling thread.
//!
//! Invariant: between [`DefaultControls::enter`] and the guard's drop the thread rounds to nearest, honours
//! denormals and masks exceptions; afterwards the register is what it was. Reading it costs a few
//! nanoseconds; it is written only when it differs, because that drains the pipeline.
//!
//! Absent: the x87 control word, which no kernel uses; other architectures, where the guard does nothing.

/// Restores the caller's controls when dropped, also by a panic.
pub(crate) struct DefaultControls {
    restore: Option<Register>,
}

impl DefaultControls {
    /// Whether the controls are those that Rust assumes.
    #[inline(always)]
    pub(crate) fn are_set() -> bool {
        is_default(read())
    }

    /// Makes the controls those that Rust assumes, if they are not.
    #[inline]
    pub(crate) fn enter() -> Self {
        let found = read();
        if is_default(found) {
            return Self { restore: None };
        }
        write(DEFAULT);
        Self { restore: Some(found) }
    }
}

impl Drop for DefaultControls {
    #[inline]
    fn drop(&mut self) {
        if let Some(found) = self.restore {
            write(found);
        }
    }
}

// The blocks below are not `nomem`: loads and stores of the kernels must not move across them, and so neither does
// the arithmetic in between.
#[cfg(target_arch = "x86_64")]
mod register {
    use std::arch::asm;

    pub(super) type Register = u32;
    /// All exceptions masked, nearest even, no flush to zero, denormals honoured (Intel SDM volume 1, 10.2.3).
    pub(super) const DEFAULT: Register = 0x1f80;
    /// The low six bits only record exceptions.
    const FLAGS: Register = 0x3f;

    #[inline(always)]
    pub(super) fn is_default(controls: Register) -> bool {
        controls & !FLAGS == DEFAULT
    }

    #[inline(always)]
    pub(super) fn read() -> Register {
        let mut controls = std::mem::MaybeUninit::<Register>::uninit();
        // SAFETY: stores MXCSR into four bytes that are ours; SSE is part of x86-64.
        unsafe {
            asm!("stmxcsr [{}]", in(reg) controls.as_mut_ptr(), options(nostack, preserves_flags));
            controls.assume_init()
        }
    }

    #[inline(always)]
    pub(super) fn write(controls: Register) {
        // SAFETY: the value is the default or one that was read from MXCSR, so no reserved bit is set.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const controls, options(nostack, preserves_flags)) };
    }
}

#[cfg(target_arch = "aarch64")]
mod register {
    use std::arch::asm;

    pub(super) type Register = u64;
    /// Nearest even, no flush to zero, no traps (Arm ARM, FPCR).
    pub(super) const DEFAULT: Register = 0;

    #[inline(always)]
    pub(super) fn is_default(controls: Register) -> bool {
        controls == DEFAULT
    }

    #[inline(always)]
    pub(super) fn read() -> Register {
        let controls: Register;
        // SAFETY: FPCR may be read at every privilege.
        unsafe { asm!("mrs {}, fpcr", out(reg) controls, options(nostack, preserves_flags)) };
        controls
    }

    #[inline(always)]
    pub(super) fn write(controls: Register) {
        // SAFETY: FPCR may be written at every privilege; the value is the default or one that was read.
        unsafe { asm!("msr fpcr, {}", in(reg) controls, options(nostack, preserves_flags)) };
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod register {
    pub(super) type Register = ();
    pub(super) const DEFAULT: Register = ();

    pub(super) fn is_default(_: Register) -> bool {
        true
    }
    pub(super) fn read() -> Register {}
    pub(super) fn write(_: Register) {}
}

use register::{DEFAULT, Register, is_default, read, write};
