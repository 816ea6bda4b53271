//! What a plugin logs, as lines of this library's log.
//!
//! A plugin calls a function with as many values as its format has. Rust has no such functions of its own yet, so a few instructions
//! put what came in registers where C's `vsnprintf` finds it. Processors for which there are none see the format without its values.
//!
//! Invariant: no panic goes back to the plugin. Absent: NCCL's filter of subsystems.

use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};

use crate::abi::{Address, Code, LOG_INFO, LOG_WARN, Logger, SUCCESS};

/// The longest line, in bytes.
const LINE_BYTES: usize = 1024;

/// What a plugin gets to log by.
pub(super) fn logger() -> Logger {
    // SAFETY: it takes what a call of this type has put in registers and on the stack, as the platform's C does for
    // functions of this type, and changes no register that the caller keeps.
    unsafe { std::mem::transmute::<*const (), Logger>(entry as *const ()) }
}

/// A plugin may call it without looking whether it is there.
pub(super) unsafe extern "C" fn no_profiler(
    _: *mut Address,
    _: c_int,
    _: Address,
    _: i64,
    _: Address,
) -> Code {
    SUCCESS
}

/// The values behind the five named arguments as a `va_list` of the System V interface: two offsets into the saved registers, the
/// stack's arguments, and the saved registers. The general ones are 48 bytes, the vector ones behind them 128, which are saved
/// where the caller says by `al` that it used some.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
extern "C" fn entry() {
    std::arch::naked_asm!(
        "sub rsp, 216",
        "mov [rsp + 32], rdi",
        "mov [rsp + 40], rsi",
        "mov [rsp + 48], rdx",
        "mov [rsp + 56], rcx",
        "mov [rsp + 64], r8",
        "mov [rsp + 72], r9",
        "test al, al",
        "je 2f",
        "movaps [rsp + 80], xmm0",
        "movaps [rsp + 96], xmm1",
        "movaps [rsp + 112], xmm2",
        "movaps [rsp + 128], xmm3",
        "movaps [rsp + 144], xmm4",
        "movaps [rsp + 160], xmm5",
        "movaps [rsp + 176], xmm6",
        "movaps [rsp + 192], xmm7",
        "2:",
        "mov dword ptr [rsp], 40",
        "mov dword ptr [rsp + 4], 48",
        "lea rax, [rsp + 224]",
        "mov [rsp + 8], rax",
        "lea rax, [rsp + 32]",
        "mov [rsp + 16], rax",
        "mov r9, rsp",
        "call {log}",
        "add rsp, 216",
        "ret",
        log = sym log,
    )
}

/// Without the values.
#[cfg(not(target_arch = "x86_64"))]
unsafe extern "C" fn entry(
    level: c_int,
    subsystems: c_ulong,
    place: *const c_char,
    line: c_int,
    format: *const c_char,
) {
    // SAFETY: the caller's contract.
    unsafe { log(level, subsystems, place, line, format, std::ptr::null_mut()) }
}

unsafe extern "C" {
    /// `stdio.h`: writes at most this number of bytes, a zero at the end among them.
    fn vsnprintf(to: *mut c_char, bytes: usize, format: *const c_char, values: *mut c_void) -> c_int;
}

/// One line. `values` are a `va_list`, or null where there are none to be had.
unsafe extern "C" fn log(
    level: c_int,
    _subsystems: c_ulong,
    place: *const c_char,
    line: c_int,
    format: *const c_char,
    values: *mut c_void,
) {
    if format.is_null() {
        return;
    }
    let text = |text: *const c_char| {
        // SAFETY: not null, and ends with a zero, as a plugin's constants do.
        if text.is_null() { "".into() } else { unsafe { CStr::from_ptr(text) }.to_string_lossy() }
    };
    let mut said = [0u8; LINE_BYTES];
    let said = if values.is_null() {
        text(format)
    } else {
        // SAFETY: the format and its values are the caller's, and as many bytes are there.
        unsafe { vsnprintf(said.as_mut_ptr().cast(), LINE_BYTES, format, values) };
        CStr::from_bytes_until_nul(&said).map_or("".into(), CStr::to_string_lossy)
    };
    let place = text(place);
    // The subscriber is the program's.
    let _ = std::panic::catch_unwind(|| match level {
        ..=LOG_WARN => tracing::warn!(target: "plugin", "{place}:{line} {said}"),
        LOG_INFO => tracing::debug!(target: "plugin", "{place}:{line} {said}"),
        _ => tracing::trace!(target: "plugin", "{place}:{line} {said}"),
    });
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Keeps the lines of a thread.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<String>>>);

    impl tracing::Subscriber for Kept {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }
        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
        fn event(&self, event: &tracing::Event<'_>) {
            struct Text(String);
            impl tracing::field::Visit for Text {
                fn record_debug(&mut self, _: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                    self.0 += &format!("{value:?}");
                }
            }
            let mut text = Text(format!("{} ", event.metadata().level()));
            event.record(&mut text);
            self.0.lock().expect("a list").push(text.0);
        }
        fn enter(&self, _: &tracing::span::Id) {}
        fn exit(&self, _: &tracing::span::Id) {}
    }

    #[test]
    fn lines_of_a_plugin_have_their_values_and_a_level() {
        let kept = Kept::default();
        let log = logger();
        let file = c"net.c".as_ptr();
        let [text, long] = [c"efa0".as_ptr(), c"seventh".as_ptr()];
        tracing::subscriber::with_default(kept.clone(), || {
            // SAFETY: formats with the values that they name.
            unsafe {
                log(LOG_WARN, 16, file, 7, c"plain".as_ptr());
                log(LOG_INFO, 16, file, 8, c"%s has %d of %zu".as_ptr(), text, -3, 5usize);
                // More of both kinds than registers hold.
                log(
                    LOG_WARN,
                    16,
                    file,
                    9,
                    c"%d %.1f %d %.1f %d %.1f %d %.1f %s %.1f %.1f %.1f %.1f %.1f %d".as_ptr(),
                    1,
                    1.5f64,
                    2,
                    2.5f64,
                    3,
                    3.5f64,
                    4,
                    4.5f64,
                    long,
                    5.5f64,
                    6.5f64,
                    7.5f64,
                    8.5f64,
                    9.5f64,
                    10,
                );
                log(5, 16, file, 1, c"%2000d|".as_ptr(), 1);
                log(LOG_WARN, 16, std::ptr::null(), 1, std::ptr::null());
            }
        });
        let lines = kept.0.lock().expect("a list");
        if cfg!(target_arch = "x86_64") {
            let expected = [
                "WARN net.c:7 plain",
                "DEBUG net.c:8 efa0 has -3 of 5",
                "WARN net.c:9 1 1.5 2 2.5 3 3.5 4 4.5 seventh 5.5 6.5 7.5 8.5 9.5 10",
            ];
            assert_eq!(lines[..3], expected);
            assert!(lines[3].starts_with("TRACE net.c:1   ") && !lines[3].contains('|'));
        } else {
            assert_eq!(lines[1], "DEBUG net.c:8 %s has %d of %zu");
        }
        assert_eq!(lines.len(), 4);
    }
}
