//! Memory of devices for network cards: DMA buffers, and the flush of what others have written.

use std::ffi::c_int;
use std::os::fd::IntoRawFd;

use crate::boundary::{Out, exports};
use crate::code::Code;
use crate::driver;

const PAGE: u64 = 4096;
const DMA_BUF: u32 = 1;

exports! {
    /// A new descriptor of the store of these pages. Only ranges that begin where the store does have one: a file has no window into
    /// another.
    fn cuMemGetHandleForAddressRange(place: Out<c_int>, address: u64, bytes: usize, kind: u32, flags: u64) {
        place.check()?;
        let bytes = bytes as u64;
        let is_whole = address.is_multiple_of(PAGE) && bytes.is_multiple_of(PAGE) && bytes > 0;
        if kind != DMA_BUF || flags != 0 || !is_whole {
            return Err(Code::INVALID_VALUE);
        }
        let region = driver::get()?.table.find(address).ok_or(Code::INVALID_VALUE)?;
        if bytes > (region.start + region.bytes - address).next_multiple_of(PAGE) {
            return Err(Code::INVALID_VALUE);
        }
        let (store, offset) = region.stored().ok_or(Code::NOT_SUPPORTED)?;
        if address != region.start || offset != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        place.put(store.file.try_clone().map_err(|_| Code::OPERATING_SYSTEM)?.into_raw_fd())
    }

    /// What others have written is there at once; the numbers are checked.
    fn cuFlushGPUDirectRDMAWrites(target: u32, scope: u32) {
        crate::context::working()?;
        if target == 0 && matches!(scope, 100 | 200) { Ok(()) } else { Err(Code::INVALID_VALUE) }
    }
}
