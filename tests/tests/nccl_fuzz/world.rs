//! The memory, handles and places of a program of calls.
//!
//! Invariant: the caller's promises in NCCL's contract are kept. Memory that a call may read or write is in the
//! arena, a part of its own for each call, and stays until everything is ended; so do places that are written in the
//! background.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::OnceLock;

use consort_tests::c_calls::{Comm, IN_PROGRESS};
use nccl::NcclUniqueId;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};

/// Calls of a program, at most.
pub(crate) const CALLS_MAX: usize = 48;
/// Bytes of memory that a data call has for itself, each way.
pub(crate) const REGION: usize = 16 << 10;
const REGIONS: usize = 2 * CALLS_MAX;
/// Deadlines of data calls in seconds, until the program sets others.
const DEADLINE: f64 = 0.02;

/// Where a communicator's handle will be written, once nothing of `parent` is in progress. A join in a group that fails
/// writes there once more, at the group's end.
struct Place {
    handle: Box<UnsafeCell<Comm>>,
    parent: Comm,
}

/// A sealed memory file that stays mapped as long as the process lives.
pub(crate) struct MappedFile {
    file: OwnedFd,
    /// Its address.
    pub(crate) start: usize,
}

impl MappedFile {
    /// Bytes of it.
    const BYTES: usize = 8 * 4096;

    /// The one of the process.
    pub(crate) fn get() -> &'static MappedFile {
        static FILE: OnceLock<MappedFile> = OnceLock::new();
        FILE.get_or_init(|| {
            let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
            let file = memfd_create(c"fuzzed", flags).expect("a file");
            nix::unistd::ftruncate(&file, Self::BYTES as i64).expect("pages");
            fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).expect("a seal");
            let bytes = NonZeroUsize::new(Self::BYTES).expect("some");
            let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
            // SAFETY: a new mapping where the kernel likes; it is never unmapped.
            let start = unsafe { mmap(None, bytes, access, MapFlags::MAP_SHARED, &file, 0) };
            MappedFile { file, start: start.expect("addresses").as_ptr().expose_provenance() }
        })
    }

    /// Its descriptor.
    pub(crate) fn fd(&self) -> c_int {
        self.file.as_raw_fd()
    }
}

/// The state of a program.
pub(crate) struct World {
    /// All handles so far, freed ones too.
    pub(crate) comms: Vec<Comm>,
    pub(crate) streams: Vec<*mut c_void>,
    pub(crate) ids: Vec<NcclUniqueId>,
    pub(crate) operators: Vec<c_int>,
    /// Memory of `ncclMemAlloc`.
    pub(crate) given: Vec<*mut c_void>,
    pub(crate) registered: Vec<*mut c_void>,
    /// Handles of `consortMemRegisterFd`.
    pub(crate) memories: Vec<*mut c_void>,
    pub(crate) parameters: Vec<*mut c_void>,
    places: Vec<Place>,
    /// Only touched through pointers.
    arena: Vec<UnsafeCell<[u8; REGION]>>,
    used: usize,
}

impl World {
    pub(crate) fn new() -> Self {
        // SAFETY: the previous value is not wanted.
        unsafe { nccl::extensions::consortThreadSetTimeout(DEADLINE, null_mut()) };
        World {
            comms: Vec::new(),
            streams: Vec::new(),
            ids: Vec::new(),
            operators: Vec::new(),
            given: Vec::new(),
            registered: Vec::new(),
            memories: Vec::new(),
            parameters: Vec::new(),
            places: Vec::new(),
            arena: (0..REGIONS).map(|_| UnsafeCell::new([0; REGION])).collect(),
            used: 0,
        }
    }

    /// Memory that no other call uses; null when there is no more.
    pub(crate) fn region(&mut self) -> *mut c_void {
        if self.used == REGIONS {
            return null_mut();
        }
        self.used += 1;
        self.arena[self.used - 1].get().cast()
    }

    /// A place for a communicator that is made of `parent`.
    pub(crate) fn place(&mut self, parent: Comm) -> *mut Comm {
        let place = Place { handle: Box::new(UnsafeCell::new(null_mut())), parent };
        let start = place.handle.get();
        self.places.push(place);
        start
    }

    /// Takes the handles that were written.
    pub(crate) fn harvest(&mut self) {
        let comms = &mut self.comms;
        for place in &self.places {
            let mut result = 0;
            // SAFETY: the place is writable.
            unsafe { nccl::ncclCommGetAsyncError(place.parent, &mut result) };
            // SAFETY: it is written in the background of the parent only, in which nothing is in progress.
            let handle = if result == IN_PROGRESS { null_mut() } else { unsafe { *place.handle.get() } };
            if !handle.is_null() && !comms.contains(&handle) {
                comms.push(handle);
            }
        }
    }

    /// Ends everything.
    pub(crate) fn end(&mut self) {
        // SAFETY: the memory of the calls in the group is still there.
        while unsafe { nccl::ncclGroupEnd() } != consort_tests::c_calls::INVALID_USAGE {}
        let mut ended = 0;
        loop {
            self.harvest();
            if ended == self.comms.len() {
                break;
            }
            for comm in &self.comms[ended..] {
                // SAFETY: any handle.
                unsafe { nccl::ncclCommAbort(*comm) };
            }
            ended = self.comms.len();
        }
        for memory in &self.memories {
            nccl::consortMemDeregister(*memory);
        }
        for stream in &self.streams {
            nccl::consortStreamDestroy(*stream);
        }
        for memory in &self.given {
            // SAFETY: no call uses it.
            unsafe { nccl::ncclMemFree(*memory) };
        }
    }
}
