//! NCCL's functions as tests call them: handles, checked results, the config of a communicator that does not block.
#![expect(clippy::not_unsafe_ptr_arg_deref, reason = "handles are numbers; any may be passed")]

use std::ffi::{CStr, c_int, c_void};
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

use nccl::NcclUniqueId;

/// `ncclComm_t`.
pub type Comm = *mut c_void;

/// `ncclSuccess`.
pub const SUCCESS: c_int = 0;
/// `ncclInternalError`.
pub const INTERNAL: c_int = 3;
/// `ncclInvalidUsage`.
pub const INVALID_USAGE: c_int = 5;
/// `ncclInProgress`.
pub const IN_PROGRESS: c_int = 7;
/// `ncclInt32`.
pub const INT32: c_int = 2;
/// `ncclSum`.
pub const SUM: c_int = 0;

/// The bytes of an `ncclConfig_t` as NCCL 2.14 had it: `blocking` is 0.
pub const NON_BLOCKING: [u64; 3] = [24, 0xcafe_beef | 21_400 << 32, 0];

/// A communicator's handle, for threads that share it.
#[derive(Clone, Copy, Debug)]
pub struct Shared(pub usize);

impl Shared {
    /// The handle as a number.
    pub fn new(handle: Comm) -> Self {
        Shared(handle.expose_provenance())
    }

    /// The handle again.
    pub fn get(self) -> Comm {
        std::ptr::with_exposed_provenance_mut(self.0)
    }
}

/// This thread's last error.
pub fn last_error() -> String {
    // SAFETY: any handle; the text stays until this thread's next failing call.
    unsafe { CStr::from_ptr(nccl::ncclGetLastError(null_mut())) }.to_string_lossy().into_owned()
}

/// # Panics
/// Unless the call succeeded.
#[track_caller]
pub fn ok(result: c_int) {
    assert_eq!(result, SUCCESS, "{}", last_error());
}

/// # Panics
/// Unless there is one.
pub fn unique_id() -> NcclUniqueId {
    let mut id = std::mem::MaybeUninit::uninit();
    // SAFETY: the place is writable.
    ok(unsafe { nccl::ncclGetUniqueId(id.as_mut_ptr()) });
    // SAFETY: the call succeeded, so it is written.
    unsafe { id.assume_init() }
}

/// Both ranks of a communicator of one process.
///
/// # Panics
/// Unless they are made.
pub fn both() -> [Comm; 2] {
    let mut comms = [null_mut(); 2];
    // SAFETY: there is room for two handles.
    ok(unsafe { nccl::ncclCommInitAll(comms.as_mut_ptr(), 2, null()) });
    comms
}

/// Joins, and with `config` of [`NON_BLOCKING`] waits until that is done.
///
/// # Panics
/// Unless it is joined.
pub fn join(id: NcclUniqueId, rank: c_int, config: Option<&[u64; 3]>) -> Comm {
    join_by(&[id], rank, 2, config)
}

/// As [`join`], for a communicator of `size` ranks that has these ids.
///
/// # Panics
/// Unless it is joined.
pub fn join_by(ids: &[NcclUniqueId], rank: c_int, size: c_int, config: Option<&[u64; 3]>) -> Comm {
    let (result, comm) = try_join(ids, rank, size, config);
    if result != IN_PROGRESS {
        ok(result);
    }
    settled(comm);
    comm
}

/// As [`join_by`], unchecked: the result and the handle.
pub fn try_join(ids: &[NcclUniqueId], rank: c_int, size: c_int, config: Option<&[u64; 3]>) -> (c_int, Comm) {
    let mut comm = null_mut();
    let config = config.map_or(null(), |config| config.as_ptr().cast());
    // SAFETY: the place is writable until the end of this function, the ids are as many, the config says its size.
    let result = unsafe {
        match ids {
            [id] => nccl::ncclCommInitRankConfig(&mut comm, size, *id, rank, config),
            _ => nccl::ncclCommInitRankScalable(
                &mut comm,
                size,
                rank,
                ids.len() as c_int,
                ids.as_ptr(),
                config,
            ),
        }
    };
    (result, comm)
}

/// Waits until nothing is in progress.
///
/// # Panics
/// If it failed or takes longer than a minute.
pub fn settled(comm: Comm) {
    let until = Instant::now() + Duration::from_secs(60);
    let mut result = IN_PROGRESS;
    while result == IN_PROGRESS {
        assert!(Instant::now() < until, "in progress for a minute");
        std::thread::yield_now();
        // SAFETY: the place is writable.
        ok(unsafe { nccl::ncclCommGetAsyncError(comm, &mut result) });
    }
    // SAFETY: any handle; the text stays until this thread fails again.
    let why = unsafe { CStr::from_ptr(nccl::ncclGetLastError(comm)) };
    assert_eq!(result, SUCCESS, "{why:?}");
}

/// The sum of one number over the ranks, in a stream or none; the result of the call.
pub fn sum(number: &i32, total: &mut i32, comm: Comm, stream: *mut c_void) -> c_int {
    let (from, to) = (std::ptr::from_ref(number), std::ptr::from_mut(total));
    // SAFETY: both are one number; callers keep them until the operation is over.
    unsafe { nccl::ncclAllReduce(from.cast(), to.cast(), 1, INT32, SUM, comm, stream) }
}

/// Sums on both ranks from one thread, in a group.
///
/// # Panics
/// Unless both have the sum.
pub fn sum_in_group(comms: [Comm; 2], stream: *mut c_void) {
    let (numbers, mut totals) = ([1, 2], [0; 2]);
    group(|| {
        for ((number, total), comm) in numbers.iter().zip(&mut totals).zip(comms) {
            ok(sum(number, total, comm, stream));
        }
    });
    if stream.is_null() {
        comms.into_iter().for_each(settled);
    } else {
        ok(nccl::consortStreamSynchronize(stream));
    }
    assert_eq!(totals, [3, 3]);
}

/// Runs `calls` between the start and the end of a group.
///
/// # Panics
/// If the group fails.
pub fn group(calls: impl FnOnce()) {
    // SAFETY: nothing is asked.
    ok(unsafe { nccl::ncclGroupStart() });
    calls();
    // SAFETY: the calls keep their own promises.
    let result = unsafe { nccl::ncclGroupEnd() };
    assert!([SUCCESS, IN_PROGRESS].contains(&result), "{result}: {}", last_error());
}

/// Divides both ranks into one communicator like it.
///
/// # Panics
/// Unless it is made.
pub fn split(comms: [Comm; 2]) -> [Comm; 2] {
    let mut made = [null_mut(); 2];
    group(|| {
        for (comm, place) in comms.into_iter().zip(&mut made) {
            // SAFETY: the place is writable until the group is over; no config.
            ok(unsafe { nccl::ncclCommSplit(comm, 0, 0, place, null()) });
        }
    });
    assert!(made.iter().all(|comm| !comm.is_null()));
    made
}

/// # Panics
/// Unless it is destroyed.
pub fn destroy(comm: Comm) {
    // SAFETY: any handle.
    ok(unsafe { nccl::ncclCommDestroy(comm) });
}
