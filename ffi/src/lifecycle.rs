//! Communicators: how they are made, what they report of themselves, how they end.
//!
//! Invariant: a handle is written once, when its communicator is ready or being joined; a handle that was freed is
//! never written again.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use consort::UniqueId;
use consort_nccl::{self, Code, Comm, Config, Deliver, Failure, Progress, Result, Shrink, group};

use crate::boundary::{ask, call_in_group, exported, give, plain, store};
use crate::configs;
use crate::handles::{self, COMMS};
use crate::types::NcclUniqueId;

/// A place that the caller promised to keep until the handle is written.
struct Place(*mut *mut c_void);

// SAFETY: an address; by NCCL's contract for calls that go on in the background the caller keeps it valid.
unsafe impl Send for Place {}

impl Place {
    /// A place for a new communicator, which holds null from now on.
    ///
    /// # Safety
    /// `place` must be null or writable until the communicator is ready.
    unsafe fn new(place: *mut *mut c_void) -> Result<Self> {
        // SAFETY: this function's own contract.
        unsafe { store(place, "newcomm", || Ok(std::ptr::null_mut()))? };
        Ok(Place(place))
    }

    fn write(&self, handle: *mut c_void) {
        // SAFETY: not null, as `new` found, and writable by its contract.
        unsafe { self.0.write_unaligned(handle) };
    }

    /// A function that writes a new communicator to the place.
    fn deliver(self) -> Deliver {
        Box::new(move |made| match made.map(|comm| COMMS.insert(comm)) {
            Some(Ok(handle)) => {
                self.write(handle);
                Ok(())
            }
            Some(Err(failure)) => Err(failure),
            None => Ok(()),
        })
    }
}

fn id(id: &NcclUniqueId) -> Result<UniqueId> {
    Ok(UniqueId::from_bytes(&id.internal)?)
}

/// Joins a communicator whose handle is written at once.
///
/// # Safety
/// `place` must be null or writable, until the communicator is ready if it does not block; `config` as in
/// [`configs::of_comm`].
unsafe fn join(
    name: &str,
    place: *mut *mut c_void,
    size: c_int,
    rank: c_int,
    config: *const c_void,
    ids: impl FnOnce() -> Result<Vec<UniqueId>>,
) -> c_int {
    call_in_group(name, std::ptr::null_mut(), || {
        // SAFETY: this function's own contract.
        let (place, config) = unsafe { (Place::new(place)?, configs::of_comm(config)?.unwrap_or_default()) };
        let ids = ids()?;
        consort_nccl::device::check_mode()?;
        let comm = Comm::new(config, 0, consort_nccl::device::current()?);
        let handle = COMMS.insert(comm.clone())?;
        place.write(handle);
        let handle = handle.expose_provenance();
        comm.join(
            rank,
            size,
            ids,
            Box::new(move || {
                drop(COMMS.remove(std::ptr::with_exposed_provenance_mut(handle)));
                place.write(std::ptr::null_mut());
            }),
        )
    })
}

/// The config of a new communicator; null for its parent's.
///
/// # Safety
/// As [`configs::of_comm`].
unsafe fn child(parent: &Comm, config: *const c_void) -> Result<Config> {
    // SAFETY: this function's own contract.
    let own = unsafe { configs::of_comm(config)? };
    Ok(parent.config().inherit(own))
}

/// Takes a communicator's handle from C; `None` for null, which is allowed.
fn take(comm: *mut c_void) -> Result<Option<Arc<Comm>>> {
    if comm.is_null() {
        return Ok(None);
    }
    handles::comm(comm)?;
    Ok(COMMS.remove(comm))
}

exported! {
    /// Makes an id; its rendezvous lives in this process.
    ///
    /// # Safety
    /// `id` must be null or writable.
    fn ncclGetUniqueId = pncclGetUniqueId(id: *mut NcclUniqueId) -> c_int {
        let make = || Ok(NcclUniqueId { internal: consort_nccl::create_id()?.to_bytes() });
        // SAFETY: this function's own contract.
        unsafe { give("ncclGetUniqueId", id, "uniqueId", make) }
    }

    /// Joins a communicator.
    ///
    /// # Safety
    /// `comm` must be null or writable.
    fn ncclCommInitRank = pncclCommInitRank(
        comm: *mut *mut c_void, size: c_int, id: NcclUniqueId, rank: c_int
    ) -> c_int {
        // SAFETY: this function's own contract; there is no config.
        unsafe {
            join("ncclCommInitRank", comm, size, rank, std::ptr::null(), || Ok(vec![self::id(&id)?]))
        }
    }

    /// Joins a communicator, with a config.
    ///
    /// # Safety
    /// `comm` must be null or writable, until the communicator is ready if it does not block; `config` null
    /// or an `ncclConfig_t` of the size in it.
    fn ncclCommInitRankConfig = pncclCommInitRankConfig(
        comm: *mut *mut c_void, size: c_int, id: NcclUniqueId, rank: c_int, config: *const c_void
    ) -> c_int {
        // SAFETY: this function's own contract.
        unsafe { join("ncclCommInitRankConfig", comm, size, rank, config, || Ok(vec![self::id(&id)?])) }
    }

    /// Joins a communicator by several ids.
    ///
    /// # Safety
    /// As [`ncclCommInitRankConfig`]; `ids` must be null or `number` ids.
    fn ncclCommInitRankScalable = pncclCommInitRankScalable(
        comm: *mut *mut c_void, size: c_int, rank: c_int, number: c_int, ids: *const NcclUniqueId,
        config: *const c_void
    ) -> c_int {
        let read = || {
            if ids.is_null() || number < 1 || number > size {
                return Err(Failure::argument(
                    format!("{number} ids for {size} ranks{}", if ids.is_null() { ", at null" } else { "" }),
                    "pass from one id to as many as there are ranks",
                ));
            }
            // SAFETY: this function's own contract: there are `number` of them, which is positive.
            let ids = unsafe { std::slice::from_raw_parts(ids, number as usize) };
            ids.iter().map(self::id).collect()
        };
        // SAFETY: this function's own contract.
        unsafe { join("ncclCommInitRankScalable", comm, size, rank, config, read) }
    }

    /// Makes a communicator for each of `number` ranks of this process.
    ///
    /// # Safety
    /// `comms` must be null or have room for `number` handles, `devices` be null or have as many numbers.
    fn ncclCommInitAll = pncclCommInitAll(
        comms: *mut *mut c_void, number: c_int, devices: *const c_int
    ) -> c_int {
        plain("ncclCommInitAll", std::ptr::null_mut(), || {
            let most = handles::HANDLES_MAX as u32;
            let size = u32::try_from(number).ok().filter(|size| (1..=most).contains(size)).ok_or_else(|| {
                Failure::argument(format!("{number} ranks"), format!("pass the number of ranks, from 1 to {most}"))
            })?;
            if comms.is_null() {
                return Err(Failure::argument("comm is null", "pass room for as many handles as ranks"));
            }
            consort_nccl::device::check_mode()?;
            // SAFETY: this function's own contract.
            let devices = (!devices.is_null())
                .then(|| unsafe { std::slice::from_raw_parts(devices, size as usize) });
            if let Some(device) = devices.and_then(|devices| devices.iter().find(|device| **device < 0)) {
                return Err(Failure::argument(format!("device {device}"), "devices count from 0"));
            }
            let mut made: Vec<*mut c_void> = Vec::with_capacity(size as usize);
            for comm in Comm::local(size, devices)? {
                match COMMS.insert(comm) {
                    Ok(handle) => made.push(handle),
                    Err(failure) => {
                        made.into_iter().for_each(|handle| drop(COMMS.remove(handle)));
                        return Err(failure);
                    }
                }
            }
            // SAFETY: this function's own contract.
            unsafe { comms.copy_from_nonoverlapping(made.as_ptr(), made.len()) };
            Ok(())
        })
    }

    /// Divides a communicator by colour.
    ///
    /// # Safety
    /// `place` must be null or writable until the new communicator is ready; `config` as [`ncclCommInitRankConfig`].
    fn ncclCommSplit = pncclCommSplit(
        comm: *mut c_void, color: c_int, key: c_int, place: *mut *mut c_void, config: *const c_void
    ) -> c_int {
        call_in_group("ncclCommSplit", comm, || {
            let parent = handles::comm(comm)?;
            // SAFETY: this function's own contract.
            let (place, config) = unsafe { (Place::new(place)?, child(&parent, config)?) };
            parent.split(color, key, config, place.deliver())
        })
    }

    /// Makes a communicator of the ranks that are not excluded. The list is sorted in place.
    ///
    /// # Safety
    /// `excluded` must be null or have `number` writable ranks; otherwise as [`ncclCommSplit`].
    fn ncclCommShrink = pncclCommShrink(
        comm: *mut c_void, excluded: *mut c_int, number: c_int, place: *mut *mut c_void, config: *const c_void,
        flags: c_int
    ) -> c_int {
        call_in_group("ncclCommShrink", comm, || {
            let parent = handles::comm(comm)?;
            let how = match flags {
                0 => Shrink::Idle,
                1 => Shrink::Abort,
                _ => {
                    return Err(Failure::argument(
                        format!("shrink flags of {flags}"),
                        "pass NCCL_SHRINK_DEFAULT or NCCL_SHRINK_ABORT",
                    ));
                }
            };
            let length = usize::try_from(number).ok().filter(|length| *length > 0 && !excluded.is_null());
            let Some(length) = length else {
                return Err(Failure::argument(
                    format!("a list of {number} excluded ranks{}", if excluded.is_null() { " at null" } else { "" }),
                    "name at least one rank to exclude",
                ));
            };
            // SAFETY: this function's own contract.
            let (place, config, excluded) = unsafe {
                let excluded = std::slice::from_raw_parts_mut(excluded, length);
                (Place::new(place)?, child(&parent, config)?, excluded)
            };
            excluded.sort_unstable();
            parent.shrink(excluded, how, config, place.deliver())
        })
    }

    /// Makes the id by which new ranks join when the communicator grows.
    ///
    /// # Safety
    /// `id` must be null or writable.
    fn ncclCommGetUniqueId = pncclCommGetUniqueId(comm: *mut c_void, id: *mut NcclUniqueId) -> c_int {
        // SAFETY: this function's own contract.
        unsafe {
            ask("ncclCommGetUniqueId", comm, id, "uniqueId", |comm| {
                Ok(NcclUniqueId { internal: comm.growth_id()?.to_bytes() })
            })
        }
    }

    /// Makes a larger communicator: its old ranks pass the old one, new ones null and their rank.
    ///
    /// # Safety
    /// `id` must be null or an id; otherwise as [`ncclCommSplit`].
    fn ncclCommGrow = pncclCommGrow(
        comm: *mut c_void, size: c_int, id: *const NcclUniqueId, rank: c_int, place: *mut *mut c_void,
        config: *const c_void
    ) -> c_int {
        // SAFETY: checked for null; otherwise this function's own contract.
        let passed = (!id.is_null()).then(|| unsafe { id.read_unaligned() });
        if comm.is_null() {
            let ids = || match &passed {
                Some(id) => Ok(vec![self::id(id)?]),
                None => Err(Failure::argument(
                    "neither a communicator nor an id",
                    "pass the communicator on its ranks, the id of ncclCommGetUniqueId on new ones",
                )),
            };
            // SAFETY: this function's own contract.
            return unsafe { join("ncclCommGrow", place, size, rank, config, ids) };
        }
        call_in_group("ncclCommGrow", comm, || {
            let parent = handles::comm(comm)?;
            if rank != -1 && u32::try_from(rank).ok() != Some(parent.rank()?) {
                return Err(Failure::argument(
                    format!("rank {rank} for a rank that keeps its own"),
                    "pass -1 on the communicator's ranks",
                ));
            }
            let id = passed.as_ref().map(self::id).transpose()?;
            // SAFETY: this function's own contract.
            let (place, config) = unsafe { (Place::new(place)?, child(&parent, config)?) };
            parent.grow(size, id, config, place.deliver())
        })
    }

    /// Ends all operations on all ranks; the communicator can then be split, shrunk or closed.
    ///
    /// # Safety
    /// None is needed.
    fn ncclCommRevoke = pncclCommRevoke(comm: *mut c_void, flags: c_int) -> c_int {
        plain("ncclCommRevoke", comm, || handles::comm(comm)?.revoke(flags))
    }

    /// Waits for operations under way; after it only an end is allowed. Null is allowed.
    ///
    /// # Safety
    /// None is needed.
    fn ncclCommFinalize = pncclCommFinalize(comm: *mut c_void) -> c_int {
        call_in_group("ncclCommFinalize", comm, || {
            if comm.is_null() { Ok(Progress::Done) } else { handles::comm(comm)?.finalize() }
        })
    }

    /// Closes a communicator and frees its handle; null is allowed.
    ///
    /// # Safety
    /// None is needed.
    fn ncclCommDestroy = pncclCommDestroy(comm: *mut c_void) -> c_int {
        plain("ncclCommDestroy", comm, || take(comm)?.map_or(Ok(()), Comm::destroy))
    }

    /// Ends this rank's operations under way on a communicator, on all ranks, and frees its handle; null is allowed.
    /// A call under way on another thread returns an error. A rank that has nothing under way only leaves.
    ///
    /// # Safety
    /// None is needed.
    fn ncclCommAbort = pncclCommAbort(comm: *mut c_void) -> c_int {
        plain("ncclCommAbort", comm, || take(comm)?.map_or(Ok(()), Comm::abort))
    }

    /// Writes the state of a communicator in the background: success, in progress, or the failure that ended it.
    ///
    /// # Safety
    /// `result` must be null or writable.
    fn ncclCommGetAsyncError = pncclCommGetAsyncError(comm: *mut c_void, result: *mut c_int) -> c_int {
        // SAFETY: this function's own contract.
        unsafe {
            ask("ncclCommGetAsyncError", comm, result, "asyncError", |comm| Ok(comm.async_error().0 as c_int))
        }
    }

    /// Writes the number of ranks.
    ///
    /// # Safety
    /// `count` must be null or writable.
    fn ncclCommCount = pncclCommCount(comm: *mut c_void, count: *mut c_int) -> c_int {
        // SAFETY: this function's own contract.
        unsafe { ask("ncclCommCount", comm, count, "count", |comm| Ok(comm.size()? as c_int)) }
    }

    /// Writes the number of the device; for a communicator on host memory the one that `ncclCommInitAll` got, else 0.
    ///
    /// # Safety
    /// `device` must be null or writable.
    fn ncclCommCuDevice = pncclCommCuDevice(comm: *mut c_void, device: *mut c_int) -> c_int {
        // SAFETY: this function's own contract.
        unsafe {
            ask("ncclCommCuDevice", comm, device, "device", |comm| comm.rank().map(|_| comm.device()))
        }
    }

    /// Writes this rank.
    ///
    /// # Safety
    /// `rank` must be null or writable.
    fn ncclCommUserRank = pncclCommUserRank(comm: *mut c_void, rank: *mut c_int) -> c_int {
        // SAFETY: this function's own contract.
        unsafe { ask("ncclCommUserRank", comm, rank, "rank", |comm| Ok(comm.rank()? as c_int)) }
    }

    /// Suspends an idle communicator until [`ncclCommResume`]; all ranks must call it.
    ///
    /// # Safety
    /// None is needed.
    fn ncclCommSuspend = pncclCommSuspend(comm: *mut c_void, flags: c_int) -> c_int {
        call_in_group("ncclCommSuspend", comm, || handles::comm(comm)?.suspend(flags))
    }

    /// Resumes a suspended communicator.
    ///
    /// # Safety
    /// None is needed.
    fn ncclCommResume = pncclCommResume(comm: *mut c_void) -> c_int {
        plain("ncclCommResume", comm, || handles::comm(comm)?.resume())
    }

    /// Writes one of the memory counters, in bytes (for the counter of suspension 0 or 1).
    ///
    /// # Safety
    /// `value` must be null or writable.
    fn ncclCommMemStats = pncclCommMemStats(comm: *mut c_void, statistic: c_int, value: *mut u64) -> c_int {
        // SAFETY: this function's own contract.
        unsafe { ask("ncclCommMemStats", comm, value, "value", |comm| comm.memory_statistic(statistic)) }
    }

    /// Opens a group, or an inner one.
    ///
    /// # Safety
    /// None is needed.
    fn ncclGroupStart = pncclGroupStart() -> c_int {
        group::start();
        Code::Success as c_int
    }

    /// Closes a group; the outermost end issues its calls.
    ///
    /// # Safety
    /// The promises of the calls in the group must still hold.
    fn ncclGroupEnd = pncclGroupEnd() -> c_int {
        crate::boundary::call("ncclGroupEnd", std::ptr::null_mut(), group::end)
    }
}
