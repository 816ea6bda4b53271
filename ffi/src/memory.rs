//! Memory that clients get from this library or register with it, operators, and calls that are always refused.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use consort::{DataType, Scalar};
use consort_nccl::operators::Scale;
use consort_nccl::{Comm, Failure, Result, allocations, buffers, group, log, version};

use consort::device::DeviceSpan;

use crate::boundary::{ask, exported, give, plain, store, string, unsupported};
use crate::collectives::data_type;
use crate::handles;
use crate::types::{API_MAGIC, NcclEncryptionConfig, NcclSimInfo};

/// The element at an address.
///
/// # Safety
/// An element of the type must be readable there.
unsafe fn element_at(address: usize, element: DataType) -> Scalar {
    let start = std::ptr::with_exposed_provenance::<u8>(address);
    // SAFETY: this function's own contract; bytes have no alignment.
    let bytes = unsafe { std::slice::from_raw_parts(start, element.size()) };
    Scalar::from_bytes(element, bytes).expect("as many bytes as an element has")
}

/// A structure that C passed. `Err` is its size, which stands first, where that is less than `T`'s.
///
/// # Safety
/// `start` must point to a structure of the size that it says.
unsafe fn structure<T: Copy>(start: *const T) -> std::result::Result<T, usize> {
    // SAFETY: this function's own contract.
    let size = unsafe { start.cast::<usize>().read_unaligned() };
    // SAFETY: it has that many bytes.
    if size < size_of::<T>() { Err(size) } else { Ok(unsafe { start.read_unaligned() }) }
}

/// Kept in the library's file, for tools that look for it there.
#[used]
static BANNER: &str = version::BANNER;

fn closes_group(info: *mut NcclSimInfo) -> Result<()> {
    let estimate = group::simulate_end()?;
    if info.is_null() {
        return Ok(());
    }
    let not_set_up =
        || Failure::argument("an ncclSimInfo_t that was not set up", "use NCCL_SIM_INFO_INITIALIZER");
    // SAFETY: the caller of `ncclGroupSimulateEnd` promises null or a structure whose size stands first.
    let passed = unsafe { structure(info) }.map_err(|_| not_set_up())?;
    if passed.magic != NcclSimInfo::MAGIC {
        return Err(not_set_up());
    }
    if let Some(microseconds) = estimate {
        let written = NcclSimInfo { estimated_time: microseconds as f32, ..passed };
        // SAFETY: as above.
        unsafe { info.write_unaligned(written) };
    }
    Ok(())
}

exported! {
    /// Writes the version whose contract the library keeps; see `docs/NCCL.md`.
    ///
    /// # Safety
    /// `version` must be null or writable.
    fn ncclGetVersion = pncclGetVersion(version: *mut c_int) -> c_int {
        // SAFETY: this function's own contract.
        unsafe { give("ncclGetVersion", version, "version", version::reported) }
    }

    /// Reads the variables of the log again.
    ///
    /// # Safety
    /// None is needed.
    fn ncclResetDebugInit = pncclResetDebugInit() {
        log::reset();
    }

    /// Allocates memory of the device that is current on the calling thread; without one, host memory.
    ///
    /// # Safety
    /// `place` must be null or writable.
    fn ncclMemAlloc = pncclMemAlloc(place: *mut *mut c_void, size: usize) -> c_int {
        let make = || Ok(std::ptr::with_exposed_provenance_mut(allocations::allocate(size)?));
        // SAFETY: this function's own contract.
        unsafe { give("ncclMemAlloc", place, "ptr", make) }
    }

    /// Frees memory of [`ncclMemAlloc`]; null is allowed.
    ///
    /// # Safety
    /// No thread may use the memory any more.
    fn ncclMemFree = pncclMemFree(memory: *mut c_void) -> c_int {
        plain("ncclMemFree", std::ptr::null_mut(), || allocations::free(memory.expose_provenance()))
    }

    /// Registers a buffer, which the caller keeps allocated until it is deregistered: RDMA adapters read it where it is.
    ///
    /// # Safety
    /// `handle` must be null or writable.
    fn ncclCommRegister = pncclCommRegister(
        comm: *mut c_void, buffer: *mut c_void, size: usize, handle: *mut *mut c_void
    ) -> c_int {
        let noted = |comm: &Comm| {
            Ok(std::ptr::without_provenance_mut(comm.register(buffer.expose_provenance(), size)?))
        };
        // SAFETY: this function's own contract.
        unsafe { ask("ncclCommRegister", comm, handle, "handle", noted) }
    }

    /// Undoes [`ncclCommRegister`]; a null handle is allowed.
    ///
    /// # Safety
    /// None is needed.
    fn ncclCommDeregister = pncclCommDeregister(comm: *mut c_void, handle: *mut c_void) -> c_int {
        plain("ncclCommDeregister", comm, || handles::comm(comm)?.deregister(handle.addr()))
    }

    /// There are no windows on host memory: writes null, by which a client knows that it has to use its buffers
    /// directly.
    ///
    /// # Safety
    /// `window` must be null or writable.
    fn ncclCommWindowRegister = pncclCommWindowRegister(
        comm: *mut c_void, _buffer: *mut c_void, _size: usize, window: *mut *mut c_void, flags: c_int
    ) -> c_int {
        const KNOWN: c_int = 0x0f;
        plain("ncclCommWindowRegister", comm, || {
            handles::comm(comm)?.rank()?;
            if flags & !KNOWN != 0 {
                return Err(Failure::argument(format!("window flags of {flags:#x}"), "pass those of NCCL_WIN_*"));
            }
            // SAFETY: this function's own contract.
            unsafe { store(window, "win", || Ok(std::ptr::null_mut())) }
        })
    }

    /// Removes a window; only null is one.
    ///
    /// # Safety
    /// None is needed.
    fn ncclCommWindowDeregister = pncclCommWindowDeregister(comm: *mut c_void, window: *mut c_void) -> c_int {
        plain("ncclCommWindowDeregister", comm, || {
            handles::comm(comm)?;
            if window.is_null() { Ok(()) } else { Err(no_window()) }
        })
    }

    /// There are no windows.
    ///
    /// # Safety
    /// None is needed.
    fn ncclWinGetUserPtr = pncclWinGetUserPtr(
        comm: *mut c_void, _window: *mut c_void, _place: *mut *mut c_void
    ) -> c_int {
        plain("ncclWinGetUserPtr", comm, || {
            handles::comm(comm)?;
            Err(no_window())
        })
    }

    /// Writing into a window is not offered.
    ///
    /// # Safety
    /// None is needed.
    fn ncclPutSignal = pncclPutSignal(
        _buffer: *const c_void, _count: usize, _element: c_int, _peer: c_int, _window: *mut c_void, _offset: usize,
        _signal: c_int, _context: c_int, _flags: c_uint, comm: *mut c_void, _stream: *mut c_void
    ) -> c_int {
        one_sided("ncclPutSignal", comm)
    }

    /// Signals are not offered.
    ///
    /// # Safety
    /// None is needed.
    fn ncclSignal = pncclSignal(
        _peer: c_int, _signal: c_int, _context: c_int, _flags: c_uint, comm: *mut c_void, _stream: *mut c_void
    ) -> c_int {
        one_sided("ncclSignal", comm)
    }

    /// Signals are not offered.
    ///
    /// # Safety
    /// None is needed.
    fn ncclWaitSignal = pncclWaitSignal(
        _number: c_int, _waits: *mut c_void, comm: *mut c_void, _stream: *mut c_void
    ) -> c_int {
        one_sided("ncclWaitSignal", comm)
    }

    /// Makes an operator that multiplies contributions by `*scalar` before it sums them.
    ///
    /// # Safety
    /// `op` must be null or writable; `scalar` null or an element of the type, until the operator is destroyed if it is
    /// not read at once.
    fn ncclRedOpCreatePreMulSum = pncclRedOpCreatePreMulSum(
        op: *mut c_int, scalar: *mut c_void, element: c_int, residence: c_int, comm: *mut c_void
    ) -> c_int {
        const DEVICE: c_int = 0;
        const HOST_IMMEDIATE: c_int = 1;
        plain("ncclRedOpCreatePreMulSum", comm, || {
            let (asked, element) = (handles::comm(comm)?, data_type(element)?);
            if scalar.is_null() {
                return Err(Failure::argument("scalar is null", "pass the address of an element"));
            }
            let start = scalar.expose_provenance();
            let scale = match residence {
                DEVICE if !buffers::is_scalar_of_host(start)? => {
                    let comm = asked.clone();
                    // SAFETY: this function's own contract, kept until the operator is destroyed.
                    let span = unsafe { DeviceSpan::from_raw(start as u64, element.size()) };
                    Scale::Later(Arc::new(move || buffers::read_scalar(&comm, span, element)))
                }
                HOST_IMMEDIATE if !buffers::is_scalar_of_host(start)? => {
                    return Err(Failure::argument(
                        format!("the scalar at {start:#x} is device memory"),
                        "pass ncclScalarDevice for a scalar there",
                    ));
                }
                // SAFETY: this function's own contract.
                HOST_IMMEDIATE => Scale::Now(unsafe { element_at(start, element) }),
                // SAFETY: this function's own contract, kept until the operator is destroyed.
                DEVICE => Scale::Later(Arc::new(move || Ok(unsafe { element_at(start, element) }))),
                _ => {
                    return Err(Failure::argument(
                        format!("there is no residence {residence}"),
                        "pass ncclScalarDevice or ncclScalarHostImmediate",
                    ));
                }
            };
            // SAFETY: this function's own contract.
            unsafe { store(op, "op", || asked.create_operator(element, scale)) }
        })
    }

    /// Destroys an operator.
    ///
    /// # Safety
    /// None is needed.
    fn ncclRedOpDestroy = pncclRedOpDestroy(op: c_int, comm: *mut c_void) -> c_int {
        plain("ncclRedOpDestroy", comm, || handles::comm(comm)?.destroy_operator(op))
    }

    /// Closes a group without issuing it and writes the expected time of its data calls, in microseconds.
    ///
    /// # Safety
    /// `info` must be null or an `ncclSimInfo_t` of the size in it.
    fn ncclGroupSimulateEnd = pncclGroupSimulateEnd(info: *mut NcclSimInfo) -> c_int {
        plain("ncclGroupSimulateEnd", std::ptr::null_mut(), || closes_group(info))
    }

    /// Encryption of connections is not offered; the mode without encryption is allowed.
    ///
    /// # Safety
    /// `config` must be null or an `ncclEncryptionConfig_t` of the size in it.
    fn ncclSetEncryption = pncclSetEncryption(config: *const NcclEncryptionConfig) -> c_int {
        plain("ncclSetEncryption", std::ptr::null_mut(), || {
            if config.is_null() {
                return Err(Failure::argument("config is null", "pass an ncclEncryptionConfig_t"));
            }
            // SAFETY: checked for null; otherwise this function's own contract.
            let config = unsafe { structure(config) }.map_err(|size| {
                Failure::argument(
                    format!("an ncclEncryptionConfig_t of {size} bytes"),
                    "set it up with its initializer",
                )
            })?;
            // SAFETY: this function's own contract.
            let has_key = unsafe { string(config.psk) }.is_some();
            match config.mode {
                _ if config.magic != API_MAGIC => {
                    Err(Failure::argument("an ncclEncryptionConfig_t without its magic", "use its initializer"))
                }
                0 if !has_key => Ok(()),
                0 => Err(Failure::argument("a key and no encryption", "pass no key with NCCL_ENCRYPTION_MODE_NONE")),
                1 => Err(unsupported(
                    "encryption of connections",
                    "every rank proves that it knows the unique id, but bytes travel in clear: use a private network",
                )),
                mode => Err(Failure::argument(format!("there is no encryption mode {mode}"), "pass 0")),
            }
        })
    }
}

/// As [`ncclResetDebugInit`]; NCCL exports this name too, without a declaration in a header.
#[unsafe(no_mangle)]
pub extern "C" fn ncclResetDebugInitInternal() {
    log::reset();
}

fn no_window() -> Failure {
    Failure::usage(
        "the window is not one of this library's",
        "ncclCommWindowRegister writes null here: use the buffer itself",
    )
}

fn one_sided(name: &str, comm: *mut c_void) -> c_int {
    plain(name, comm, || {
        handles::comm(comm)?;
        Err(unsupported(
            "one-sided communication",
            "use ncclSend and ncclRecv; ncclCommQueryProperties says hostRmaSupport = false",
        ))
    })
}
