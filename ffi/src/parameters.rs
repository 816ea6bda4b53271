//! NCCL's variables by name, for clients that ask.
//!
//! Invariant: a handle is a number of this library's table, never an address. A returned text lives as long as its
//! thread, or until that thread's next question of the same kind.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int, c_void};

use consort_nccl::parameters::{Parameter, dump_all, find, keys};
use consort_nccl::{Failure, Result};

use crate::boundary::{exported, give, plain, store, string};

/// Handles are multiples of this, which no address of a parameter is.
const HANDLE_BASE: usize = 0x0005_C003 << 44;

thread_local! {
    /// The text that was returned last, and the table of names with the memory that it points to.
    static TEXT: RefCell<CString> = RefCell::default();
    static NAMES: RefCell<(Vec<CString>, Vec<*const c_char>)> = RefCell::default();
}

fn by_name(key: *const c_char) -> Result<Parameter> {
    // SAFETY: the exported functions have the caller promise null or a string that ends with a zero.
    let key = unsafe { string(key) }
        .ok_or_else(|| Failure::argument("key is null", "pass a name such as NCCL_ALGO"))?;
    find(&key).ok_or_else(|| {
        Failure::argument(
            format!("there is no parameter {key:?}"),
            "ncclParamGetAllParameterKeys lists all that there are",
        )
    })
}

fn by_handle(handle: *mut c_void) -> Result<Parameter> {
    let index = handle.addr().checked_sub(HANDLE_BASE);
    index.and_then(|index| keys().get(index).copied()).and_then(find).ok_or_else(|| {
        Failure::argument("the parameter handle is null or foreign", "pass one that ncclParamBind wrote")
    })
}

/// Keeps a text for this thread and returns its address.
fn kept(text: &str) -> *const c_char {
    let text = CString::new(text).unwrap_or_default();
    TEXT.try_with(|last| {
        last.replace(text);
        last.borrow().as_ptr()
    })
    .unwrap_or(c"".as_ptr())
}

/// Defines the typed questions.
macro_rules! numbers {
    ($($name:ident = $twin:ident -> $type:ty;)*) => {exported! {$(
        /// Writes a parameter's number.
        ///
        /// # Safety
        /// `place` must be null or writable.
        fn $name = $twin(handle: *mut c_void, place: *mut $type) -> c_int {
            // SAFETY: this function's own contract.
            unsafe { give(stringify!($name), place, "out", || Ok(by_handle(handle)?.number::<$type>()?)) }
        }
    )*}};
}

numbers! {
    ncclParamGetI8 = pncclParamGetI8 -> i8;
    ncclParamGetI16 = pncclParamGetI16 -> i16;
    ncclParamGetI32 = pncclParamGetI32 -> i32;
    ncclParamGetI64 = pncclParamGetI64 -> i64;
    ncclParamGetU8 = pncclParamGetU8 -> u8;
    ncclParamGetU16 = pncclParamGetU16 -> u16;
    ncclParamGetU32 = pncclParamGetU32 -> u32;
    ncclParamGetU64 = pncclParamGetU64 -> u64;
}

exported! {
    /// Writes the handle of a parameter.
    ///
    /// # Safety
    /// `place` must be null or writable, `key` null or a string that ends with a zero.
    fn ncclParamBind = pncclParamBind(place: *mut *mut c_void, key: *const c_char) -> c_int {
        let bind = || {
            let parameter = by_name(key)?;
            let index = keys().iter().position(|key| *key == parameter.name).unwrap_or_default();
            Ok(std::ptr::without_provenance_mut(HANDLE_BASE + index))
        };
        // SAFETY: this function's own contract.
        unsafe { give("ncclParamBind", place, "out", bind) }
    }

    /// Writes the address of a parameter's text, which is valid until this thread asks for another.
    ///
    /// # Safety
    /// `place` must be null or writable.
    fn ncclParamGetStr = pncclParamGetStr(handle: *mut c_void, place: *mut *const c_char) -> c_int {
        // SAFETY: this function's own contract.
        unsafe { give("ncclParamGetStr", place, "out", || Ok(kept(&by_handle(handle)?.text().value))) }
    }

    /// Copies a parameter's text, without a zero at its end, as far as there is room.
    ///
    /// # Safety
    /// `place` must be null or have `room` writable bytes, `length` be null or writable.
    fn ncclParamGet = pncclParamGet(
        handle: *mut c_void, place: *mut c_void, room: c_int, length: *mut c_int
    ) -> c_int {
        plain("ncclParamGet", std::ptr::null_mut(), || {
            let text = by_handle(handle)?.text().value;
            let room = usize::try_from(room).unwrap_or(0);
            if place.is_null() || room < text.len() {
                return Err(Failure::argument(
                    format!("room for {room} bytes, and the text has {}", text.len()),
                    "pass a larger buffer",
                ));
            }
            // SAFETY: this function's own contract; there is room.
            unsafe { place.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len()) };
            // SAFETY: this function's own contract.
            unsafe { store(length, "len", || Ok(text.len() as c_int)) }
        })
    }

    /// Writes the address and the length of a parameter's text, which is valid until this thread asks for another.
    ///
    /// # Safety
    /// `key` must be null or a string that ends with a zero, `value` and `length` null or writable.
    fn ncclParamGetParameter = pncclParamGetParameter(
        key: *const c_char, value: *mut *const c_char, length: *mut c_int
    ) -> c_int {
        plain("ncclParamGetParameter", std::ptr::null_mut(), || {
            let text = by_name(key)?.text().value;
            // SAFETY: this function's own contract.
            unsafe {
                store(value, "value", || Ok(kept(&text)))?;
                if !length.is_null() {
                    length.write(text.len() as c_int);
                }
            }
            Ok(())
        })
    }

    /// Writes the address of the names of all parameters, for this thread, and their number.
    ///
    /// # Safety
    /// `table` and `length` must be null or writable.
    fn ncclParamGetAllParameterKeys = pncclParamGetAllParameterKeys(
        table: *mut *mut *const c_char, length: *mut c_int
    ) -> c_int {
        plain("ncclParamGetAllParameterKeys", std::ptr::null_mut(), || {
            let names: Vec<CString> = keys().into_iter().filter_map(|key| CString::new(key).ok()).collect();
            let number = names.len() as c_int;
            let made = NAMES.try_with(|kept| {
                let mut kept = kept.borrow_mut();
                if kept.0.is_empty() {
                    let places = names.iter().map(|name| name.as_ptr()).collect();
                    *kept = (names, places);
                }
                kept.1.as_mut_ptr()
            });
            let made = made.map_err(|_| Failure::usage("this thread is ending", "ask on another"))?;
            // SAFETY: this function's own contract.
            unsafe {
                store(table, "table", || Ok(made))?;
                store(length, "tableLen", || Ok(number))
            }
        })
    }

    /// Writes all parameters to the log.
    ///
    /// # Safety
    /// None is needed.
    fn ncclParamDumpAll = pncclParamDumpAll() {
        // A panic must not cross the boundary, and the function returns no result.
        let _ = std::panic::catch_unwind(dump_all);
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;
    use std::ptr::{null, null_mut};

    use super::*;

    #[test]
    fn a_parameter_is_found_by_its_name_and_read_by_its_type() {
        let (mut handle, mut number, mut small, mut text) = (null_mut(), 0i64, 0u8, null());
        // SAFETY: every place is writable, every string ends with a zero.
        unsafe {
            assert_eq!(ncclParamBind(&mut handle, c"NCCL_BUFFSIZE".as_ptr()), 0);
            assert_eq!(ncclParamGetI64(handle, &mut number), 0);
            assert_eq!(number, -2);
            assert_eq!(ncclParamGetU8(handle, &mut small), 4, "a negative number has no such type");
            assert_eq!(ncclParamGetStr(handle, &mut text), 0);
            assert_eq!(CStr::from_ptr(text), c"-2");
            let before = handle;
            assert_eq!(ncclParamBind(&mut handle, c"NCCL_NO_SUCH".as_ptr()), 4);
            assert_eq!(handle, before, "untouched");
            for wrong in [null_mut(), std::ptr::without_provenance_mut(1), before.wrapping_byte_add(4096)] {
                assert_eq!(ncclParamGetI64(wrong, &mut number), 4);
            }
            let (mut bytes, mut length) = ([0u8; 2], 0);
            assert_eq!(ncclParamGet(before, bytes.as_mut_ptr().cast(), 1, &mut length), 4);
            assert_eq!(ncclParamGet(before, bytes.as_mut_ptr().cast(), 2, &mut length), 0);
            assert_eq!((&bytes, length), (b"-2", 2));
            assert_eq!(ncclParamGetParameter(c"NCCL_BUFFSIZE".as_ptr(), &mut text, &mut length), 0);
            assert_eq!((CStr::from_ptr(text), length), (c"-2", 2));
            assert_eq!(ncclParamGetParameter(null(), &mut text, &mut length), 4);
        }
    }

    #[test]
    fn the_names_are_a_table() {
        let (mut table, mut length) = (null_mut(), 0);
        // SAFETY: every place is writable; the table has the number of names that it reports.
        let names: Vec<&CStr> = unsafe {
            assert_eq!(ncclParamGetAllParameterKeys(&mut table, &mut length), 0);
            assert_eq!(ncclParamGetAllParameterKeys(null_mut(), &mut length), 4);
            (0..length as usize).map(|index| CStr::from_ptr(*table.add(index))).collect()
        };
        assert!(names.len() > 100 && names.contains(&c"NCCL_ALGO"));
    }
}
