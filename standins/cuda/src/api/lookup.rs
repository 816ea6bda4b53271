//! Starting the driver, its version, its errors' names, and its functions by name.

use std::ffi::{CStr, c_char, c_int};

use crate::boundary::{Out, Text, exports};
use crate::code::{Code, words};
use crate::driver;

/// The version of CUDA that is pretended.
const VERSION: i32 = 12080;

/// The address of the newest form of a function that a program for this version of CUDA knows.
fn find(name: &str, version: i32) -> Option<usize> {
    let tables = [
        table(),
        super::capture::table(),
        super::context::table(),
        super::copy::table(),
        super::device::table(),
        super::direct::table(),
        super::event::table(),
        super::ipc::table(),
        super::memory::table(),
        super::module::table(),
        super::pointer::table(),
        super::stream::table(),
        super::virtual_memory::table(),
    ];
    let exact =
        |wanted: &str| tables.iter().flatten().find(|(known, _)| *known == wanted).map(|found| found.1);
    // The forms that came when arguments changed. All other forms came before CUDA 11.
    let newest: &[&str] = match name {
        "cuCtxCreate" if version >= 12050 => &["_v4"],
        "cuCtxCreate" if version >= 11040 => &["_v3"],
        "cuStreamGetCaptureInfo" if version >= 12030 => &["_v3"],
        _ => &[],
    };
    let suffixes = newest.iter().chain(&["_v2", ""]);
    suffixes.into_iter().find_map(|suffix| exact(&format!("{name}{suffix}")))
}

fn proc_address(symbol: Text, place: Out<usize>, version: i32, status: Out<u32>) -> crate::code::Answer {
    let name = symbol.get()?.to_str().map_err(|_| Code::INVALID_VALUE)?;
    let found = find(name, version);
    place.put(found.unwrap_or(0))?;
    status.put_if_wanted(u32::from(found.is_none()));
    found.map(drop).ok_or(Code::NOT_FOUND)
}

fn text_of(
    error: u32,
    place: Out<*const c_char>,
    which: fn((&'static CStr, &'static CStr)) -> &'static CStr,
) -> crate::code::Answer {
    match words(error) {
        Some(both) => place.put(which(both).as_ptr()),
        None => {
            place.put(std::ptr::null())?;
            Err(Code::INVALID_VALUE)
        }
    }
}

exports! {
    /// Starts the driver, and prints once which stand-in it is.
    fn cuInit(flags: u32) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        driver::init()
    }

    /// 12.8.
    fn cuDriverGetVersion(version: Out<c_int>) {
        version.put(VERSION)
    }

    /// The name of a result.
    fn cuGetErrorName(error: u32, name: Out<*const c_char>) {
        text_of(error, name, |both| both.0)
    }

    /// The description of a result.
    fn cuGetErrorString(error: u32, text: Out<*const c_char>) {
        text_of(error, text, |both| both.1)
    }

    /// The address of a function.
    fn cuGetProcAddress(symbol: Text, function: Out<usize>, version: c_int, _flags: u64) {
        proc_address(symbol, function, version, Out::none())
    }

    /// The address of a function, and whether the function exists.
    fn cuGetProcAddress_v2(symbol: Text, function: Out<usize>, version: c_int, _flags: u64, status: Out<u32>) {
        proc_address(symbol, function, version, status)
    }
}
