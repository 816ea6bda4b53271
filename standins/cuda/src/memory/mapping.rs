//! Ranges of this process's addresses, unmapped when dropped.

use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::code::{Answer, Code};

/// A range of addresses of this process.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: NonZeroUsize,
}

// SAFETY: only an address and a length. Each access to the bytes has its own argument.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

fn length(bytes: u64) -> Answer<NonZeroUsize> {
    NonZeroUsize::new(bytes as usize).ok_or(Code::INVALID_VALUE)
}

impl Mapping {
    /// Addresses without memory: a touch of them crashes. `alignment` is a power of two.
    pub(crate) fn reserved(bytes: u64, alignment: u64) -> Answer<Self> {
        let wanted = length(bytes)?;
        let whole = length(bytes.checked_add(alignment).ok_or(Code::OUT_OF_MEMORY)?)?;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY: new addresses, chosen by the system.
        let found = unsafe { mmap_anonymous(None, whole, ProtFlags::PROT_NONE, flags) }
            .map_err(|_| Code::OUT_OF_MEMORY)?
            .cast::<u8>();
        let from = found.as_ptr() as u64;
        let start = from.next_multiple_of(alignment);
        let page = 4096;
        let (before, after) =
            (start - from, from + whole.get() as u64 - (start + bytes).next_multiple_of(page));
        for (at, bytes) in [(from, before), ((start + bytes).next_multiple_of(page), after)] {
            if let (Some(at), true) = (NonNull::new(at as *mut std::ffi::c_void), bytes > 0) {
                // SAFETY: part of the mapping made above; no other code has its address.
                let _ = unsafe { munmap(at, bytes as usize) };
            }
        }
        let start = NonNull::new(start as *mut u8).ok_or(Code::OUT_OF_MEMORY)?;
        Ok(Mapping { start, bytes: wanted })
    }

    /// Zeroed memory of the host.
    pub(crate) fn anonymous(bytes: u64) -> Answer<Self> {
        let bytes = length(bytes)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: new addresses, chosen by the system.
        let start = unsafe { mmap_anonymous(None, bytes, protection, MapFlags::MAP_PRIVATE) };
        let start = start.map_err(|_| Code::OUT_OF_MEMORY)?.cast();
        Ok(Mapping { start, bytes })
    }

    /// The bytes of a file.
    pub(crate) fn shared(file: impl AsFd, bytes: u64) -> Answer<Self> {
        let bytes = length(bytes)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: new addresses, chosen by the system.
        let start = unsafe { mmap(None, bytes, protection, MapFlags::MAP_SHARED, file, 0) };
        let start = start.map_err(|_| Code::MAP_FAILED)?.cast();
        Ok(Mapping { start, bytes })
    }

    /// The first address.
    pub(crate) fn start(&self) -> u64 {
        self.start.as_ptr() as u64
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by this value alone, and every user of the bytes holds the value.
        let _ = unsafe { munmap(self.start.cast(), self.bytes.get()) };
    }
}

/// Whether all pages of these addresses are mapped.
pub(crate) fn is_mapped(start: u64, bytes: u64) -> bool {
    let from = start & !4095;
    let Some(end) = start.checked_add(bytes) else { return false };
    let length = (end - from) as usize;
    let mut pages = vec![0u8; length.div_ceil(4096)];
    // SAFETY: asks the system about addresses, touches none of them, and has a byte for each page.
    unsafe { libc::mincore(from as *mut libc::c_void, length, pages.as_mut_ptr()) == 0 }
}
