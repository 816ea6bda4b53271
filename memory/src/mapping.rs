//! Mapped memory: private to the process, or shared with peers through a sealed memory file.
//!
//! Invariant: the range stays mapped as long as the value lives, and touching it cannot fault: files are
//! allocated before another process sees the mapping, and cannot be shrunk by it. Deliberately absent: names in
//! the file system (nothing here outlives its processes), growing, remapping.

use std::ffi::CStr;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::ftruncate;

use crate::{MemoryError, SpanMut};

/// Requests from this size on are compared with what the machine and the control group have, before the
/// kernel starts to hand out page after page.
const LARGE_BYTES: usize = 16 << 20;

/// A mapped range; unmapped on drop.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    mapped: NonZeroUsize,
    file: Option<OwnedFd>,
    misplaced: Option<nix::Error>,
}

// SAFETY: an address range that this value owns; its bytes are reached through spans and counters only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Zeroed memory of this process. A forked child gets its own copy.
    ///
    /// # Errors
    /// [`MemoryError::OutOfMemory`].
    pub fn anonymous(bytes: usize) -> Result<Self, MemoryError> {
        Self::anonymous_on(bytes, None)
    }

    /// As [`Mapping::anonymous`], with pages from a memory node if that is possible: see [`Mapping::misplaced`].
    ///
    /// # Errors
    /// As [`Mapping::anonymous`].
    pub fn anonymous_on(bytes: usize, node: Option<u32>) -> Result<Self, MemoryError> {
        let mapped = mapped_bytes(bytes, "anonymous memory")?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new private mapping where the kernel likes; overlaps nothing.
        let start = unsafe { mmap_anonymous(None, mapped, protection, MapFlags::MAP_PRIVATE) }
            .map_err(|error| refused("mmap", "anonymous memory", bytes, error))?;
        let mut mapping = Self { start: start.cast(), bytes, mapped, file: None, misplaced: None };
        mapping.place(node);
        Ok(mapping)
    }

    /// Zeroed memory that can be shared by handing over [`Mapping::fd`]. `name` shows in `/proc/*/maps`.
    ///
    /// # Errors
    /// [`MemoryError::OutOfMemory`] when the pages cannot all be had now.
    pub fn memfd(name: &CStr, bytes: usize) -> Result<Self, MemoryError> {
        Self::memfd_on(name, bytes, None)
    }

    /// As [`Mapping::memfd`], with pages from a memory node if that is possible, whichever process maps and touches them: see
    /// [`Mapping::misplaced`].
    ///
    /// # Errors
    /// As [`Mapping::memfd`].
    pub fn memfd_on(name: &CStr, bytes: usize, node: Option<u32>) -> Result<Self, MemoryError> {
        const WHAT: &str = "shared memory";
        let mapped = mapped_bytes(bytes, WHAT)?;
        if bytes >= LARGE_BYTES {
            refuse_hopeless(bytes, WHAT)?;
        }
        // Beyond this limit the kernel ends the process with a signal instead of returning an error.
        if getrlimit(Resource::RLIMIT_FSIZE).is_ok_and(|(soft, _)| soft < mapped.get() as u64) {
            return Err(refused("ftruncate", WHAT, bytes, nix::Error::EFBIG));
        }
        let file = memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)
            .map_err(|error| refused("memfd_create", WHAT, bytes, error))?;
        let length =
            i64::try_from(mapped.get()).map_err(|_| refused("ftruncate", WHAT, bytes, nix::Error::EFBIG))?;
        ftruncate(&file, length).map_err(|error| refused("ftruncate", WHAT, bytes, error))?;
        let start = map_shared(file.as_fd(), 0, mapped, bytes)?;
        let mut mapping = Self { start, bytes, mapped, file: None, misplaced: None };
        // Before there are pages. Of a shared file the policy is the file's, and holds for all who map it.
        mapping.place(node);
        // Pages now or an error now: overcommitted shared memory is a SIGBUS later.
        allocate(&file, length).map_err(|error| refused("fallocate", WHAT, bytes, error))?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals))
            .map_err(|error| refused("fcntl(F_ADD_SEALS)", WHAT, bytes, error))?;
        mapping.file = Some(file);
        Ok(mapping)
    }

    /// Maps a memory file that a peer made by [`Mapping::memfd`]. The descriptor is not kept.
    ///
    /// # Errors
    /// [`MemoryError::NotSealed`] when the file is smaller than `bytes` or could be made so.
    pub fn from_fd(file: BorrowedFd<'_>, bytes: usize) -> Result<Self, MemoryError> {
        Self::from_fd_at(file, 0, bytes)
    }

    /// As [`Mapping::from_fd`], from `offset` bytes on, which must be whole pages.
    ///
    /// # Errors
    /// As [`Mapping::from_fd`]; [`MemoryError::System`] for an offset that is no page's.
    pub fn from_fd_at(file: BorrowedFd<'_>, offset: usize, bytes: usize) -> Result<Self, MemoryError> {
        let wrong = |reason| MemoryError::NotSealed { needed_bytes: bytes, reason };
        let mapped = mapped_bytes(bytes, "a peer's shared memory")?;
        let seals = fcntl(file, FcntlArg::F_GET_SEALS).map_err(|_| wrong("it cannot be sealed"))?;
        if !SealFlag::from_bits_truncate(seals).contains(SealFlag::F_SEAL_SHRINK) {
            return Err(wrong("it could be truncated"));
        }
        // After the seal was seen: from here on the size can only stay.
        let status = nix::sys::stat::fstat(file)
            .map_err(|error| MemoryError::System { call: "fstat", source: error.into() })?;
        let end = offset.checked_add(mapped.get()).ok_or_else(|| wrong("it is smaller"))?;
        if u64::try_from(status.st_size).unwrap_or(0) < end as u64 {
            return Err(wrong("it is smaller"));
        }
        let start = map_shared(file, offset, mapped, bytes)?;
        Ok(Self { start, bytes, mapped, file: None, misplaced: None })
    }

    /// Remembers why not, if the kernel refuses.
    fn place(&mut self, node: Option<u32>) {
        self.misplaced = node.and_then(|node| self.prefer_node(node).err());
    }

    /// Pages that are not there yet come from this memory node, as long as it has some.
    pub(crate) fn prefer_node(&mut self, node: u32) -> nix::Result<()> {
        // SAFETY: exactly what is mapped, which is whole pages and this value's own.
        unsafe { crate::node::prefer(self.start, self.mapped, node) }
    }

    /// Why the pages may lie elsewhere than was asked for: the kernel refuses (containers often do), or has no such node.
    /// The memory is as good as any.
    pub fn misplaced(&self) -> Option<io::Error> {
        self.misplaced.map(io::Error::from)
    }

    /// The memory file, as long as [`Mapping::take_fd`] was not called.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Gives the memory file away; the mapping stays.
    pub fn take_fd(&mut self) -> Option<OwnedFd> {
        self.file.take()
    }

    /// Bytes that were asked for.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// `bytes` bytes from `offset` on.
    ///
    /// # Panics
    /// If the range is not inside the mapping.
    pub fn span(&self, offset: usize, bytes: usize) -> SpanMut<'_> {
        // SAFETY: mapped readable and writable while `self` is borrowed; who else touches the bytes, and when,
        // is laid down by the plan (invariant of the spans).
        unsafe { SpanMut::from_raw(self.start.as_ptr(), self.bytes) }.slice(offset, bytes)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped, and nothing can refer to it: spans borrow `self`, counters hold it.
        let unmapped = unsafe { munmap(self.start.cast(), self.mapped.get()) };
        debug_assert!(unmapped.is_ok(), "munmap of an own mapping failed: {unmapped:?}");
    }
}

fn allocate(file: &OwnedFd, length: i64) -> nix::Result<()> {
    loop {
        // A signal interrupts it; what was allocated stays, so it gets further every time.
        match fallocate(file, FallocateFlags::empty(), 0, length) {
            Err(nix::Error::EINTR) => {}
            outcome => return outcome,
        }
    }
}

fn map_shared(
    file: BorrowedFd<'_>,
    offset: usize,
    mapped: NonZeroUsize,
    bytes: usize,
) -> Result<NonNull<u8>, MemoryError> {
    let offset =
        i64::try_from(offset).map_err(|_| refused("mmap", "shared memory", bytes, nix::Error::EOVERFLOW))?;
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    debug_assert!(file.as_raw_fd() >= 0);
    // SAFETY: a new mapping where the kernel likes; overlaps nothing.
    unsafe { mmap(None, mapped, protection, MapFlags::MAP_SHARED, file, offset) }
        .map(NonNull::cast)
        .map_err(|error| refused("mmap", "shared memory", bytes, error))
}

/// Whole pages, at least one.
fn mapped_bytes(bytes: usize, what: &'static str) -> Result<NonZeroUsize, MemoryError> {
    const PAGE: usize = 4096;
    bytes.max(1).checked_next_multiple_of(PAGE).and_then(NonZeroUsize::new).ok_or_else(|| {
        MemoryError::OutOfMemory {
            needed_bytes: bytes,
            what,
            source: io::Error::from_raw_os_error(libc::ENOMEM),
        }
    })
}

fn refused(call: &'static str, what: &'static str, needed_bytes: usize, error: nix::Error) -> MemoryError {
    match error {
        nix::Error::ENOMEM | nix::Error::ENOSPC | nix::Error::EFBIG | nix::Error::EOVERFLOW => {
            MemoryError::OutOfMemory { needed_bytes, what, source: error.into() }
        }
        _ => MemoryError::System { call, source: error.into() },
    }
}

/// A memory file has no size limit of its own: the kernel would hand out pages until something is killed.
fn refuse_hopeless(bytes: usize, what: &'static str) -> Result<(), MemoryError> {
    let available = available_bytes().unwrap_or(u64::MAX).min(control_group_bytes().unwrap_or(u64::MAX));
    if bytes as u64 > available {
        let source = io::Error::new(io::ErrorKind::OutOfMemory, format!("{available} bytes are available"));
        return Err(MemoryError::OutOfMemory { needed_bytes: bytes, what, source });
    }
    Ok(())
}

/// `MemAvailable` of the machine.
fn available_bytes() -> Option<u64> {
    let table = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = table.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The limit of this process's control group (v2), where there is one.
fn control_group_bytes() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    std::fs::read_to_string(format!("/sys/fs/cgroup/{group}/memory.max")).ok()?.trim().parse().ok()
}
