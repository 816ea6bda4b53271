//! The configs of clients, as far as reading their bytes goes; `consort_nccl` decides what the bytes mean.
//!
//! Invariant: no byte behind the size in a config is read, and none of a null config.

use std::ffi::{c_char, c_int, c_void};

use consort::Call;
use consort_nccl::operation::How;
use consort_nccl::{CALL_BYTES, CONFIG_BYTES, CallConfig, Config, Failure, Result};

use crate::boundary::string;

/// Bytes of the head of every such structure: size, magic, version.
const HEAD_BYTES: usize = 16;
/// Offset of the list of vendors' options in a call's config.
const EXTENSIONS_AT: usize = 16;
/// The most options that are read from a list, which might be a ring.
const EXTENSIONS_MAX: usize = 1024;

/// The known bytes of a structure that begins with its size.
///
/// # Safety
/// `start` must point to a `size_t`, and as many bytes as it holds must be readable from there.
unsafe fn bytes_of(start: *const c_void, known: usize, what: &str) -> Result<Vec<u8>> {
    // SAFETY: this function's own contract.
    let size = unsafe { start.cast::<usize>().read_unaligned() };
    if size < HEAD_BYTES {
        return Err(Failure::argument(format!("{what} of {size} bytes"), "set it up with its initializer"));
    }
    let bytes = size.min(known);
    // SAFETY: this function's own contract.
    Ok(unsafe { std::slice::from_raw_parts(start.cast::<u8>(), bytes) }.to_vec())
}

/// The string at an address that a config names.
///
/// # Safety
/// The address must be null or that of a string that ends with a zero.
unsafe fn string_at(address: usize) -> Option<String> {
    // SAFETY: this function's own contract.
    unsafe { string(std::ptr::with_exposed_provenance::<c_char>(address)) }
}

/// The config of a communicator; `None` for null.
///
/// # Safety
/// `config` must be null or an `ncclConfig_t` of the size in it, its strings null or ended by zeros.
pub(crate) unsafe fn of_comm(config: *const c_void) -> Result<Option<Config>> {
    if config.is_null() {
        return Ok(None);
    }
    // SAFETY: this function's own contract.
    let bytes = unsafe { bytes_of(config, CONFIG_BYTES, "an ncclConfig_t")? };
    // SAFETY: this function's own contract: these are the addresses in it.
    Ok(Some(Config::decode(&bytes, &mut |address| unsafe { string_at(address) })?))
}

/// An entry of the list of options of a call.
#[repr(C)]
struct Extension {
    next: *const Extension,
    vendor: c_int,
    option: c_int,
    value: u64,
}

/// The options of a collective on `ranks` ranks; null for the defaults.
///
/// # Safety
/// `config` must be null or an `ncclCollConfig_t` of the size in it, its strings null or ended by zeros, its
/// list of options null or ended by null.
pub(crate) unsafe fn of_call(config: *const c_void, call: &Call, ranks: u32) -> Result<How> {
    if config.is_null() {
        return Ok(How::default());
    }
    // SAFETY: this function's own contract.
    let bytes = unsafe { bytes_of(config, CALL_BYTES, "an ncclCollConfig_t")? };
    let mut extensions = Vec::new();
    let first = bytes
        .get(EXTENSIONS_AT..EXTENSIONS_AT + size_of::<usize>())
        .and_then(|bytes| bytes.first_chunk())
        .copied()
        .map_or(0, usize::from_ne_bytes);
    let mut next = std::ptr::with_exposed_provenance::<Extension>(first);
    while !next.is_null() {
        if extensions.len() == EXTENSIONS_MAX {
            return Err(Failure::argument(
                format!("a list of more than {EXTENSIONS_MAX} options"),
                "end the list with a null pointer",
            ));
        }
        // SAFETY: this function's own contract.
        let entry = unsafe { next.read_unaligned() };
        extensions.push((entry.vendor, entry.option, entry.value));
        next = entry.next;
    }
    // SAFETY: this function's own contract: these are the addresses in it.
    let config = CallConfig::decode(&bytes, &extensions, &mut |address| unsafe { string_at(address) })?;
    Ok(How { timeout: config.timeout, algorithm: config.algorithm_for(call.collective(), ranks) })
}
