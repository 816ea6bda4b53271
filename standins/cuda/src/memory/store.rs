//! The store of device memory: a file in memory, which another process can open.
//!
//! Invariant: the name of the file marks it as device memory and names the device, so that no other file is taken for
//! device memory. Absent: the memory's address in a program (a region).

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::fcntl::readlink;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::fstat;
use nix::unistd::ftruncate;

use super::mapping::Mapping;
use crate::code::{Answer, Code};

/// Fills the first [`POISONED`] bytes of new memory, as real memory is not zeroed.
const POISON: u8 = 0xa5;
const POISONED: u64 = 1 << 20;

/// Bytes of a device.
#[derive(Debug)]
pub(crate) struct Store {
    /// The file.
    pub(crate) file: OwnedFd,
    /// The mapping of the file in this process.
    pub(crate) view: Mapping,
    pub(crate) bytes: u64,
    /// The device that the memory is on.
    pub(crate) device: u32,
    /// Identifies this memory among all others.
    pub(crate) nonce: u64,
}

fn name(device: u32, nonce: u64) -> String {
    format!("consort-standin-{device}-{nonce:016x}")
}

fn nonce() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}

impl Store {
    /// New memory of a device.
    pub(crate) fn new(device: u32, bytes: u64) -> Answer<Self> {
        let nonce = nonce();
        let label = CString::new(name(device, nonce)).map_err(|_| Code::UNKNOWN)?;
        let file = memfd_create(label.as_c_str(), MFdFlags::MFD_CLOEXEC)?;
        ftruncate(&file, i64::try_from(bytes).map_err(|_| Code::OUT_OF_MEMORY)?)
            .map_err(|_| Code::OUT_OF_MEMORY)?;
        let view = Mapping::shared(&file, bytes)?;
        // SAFETY: mapped above for `bytes` bytes, and no other code has its address yet.
        unsafe { std::ptr::write_bytes(view.start() as *mut u8, POISON, bytes.min(POISONED) as usize) };
        Ok(Store { file, view, bytes, device, nonce })
    }

    /// Writes the store's first bytes, at most as many as it has.
    pub(crate) fn write(&self, bytes: &[u8]) {
        let count = bytes.len().min(self.bytes as usize);
        // SAFETY: the view is as long as the store and mapped while it is held. A race is the program's own.
        unsafe { std::ptr::copy(bytes.as_ptr(), self.view.start() as *mut u8, count) };
    }
}

/// Adopts memory that came as a file: another process's, or a duplicate of this one's.
///
/// # Errors
/// `None` for a file that is no store.
pub(crate) fn adopt(file: OwnedFd) -> Option<Store> {
    let link = readlink(format!("/proc/self/fd/{}", file.as_raw_fd()).as_str()).ok()?;
    let link = link.to_str()?.strip_prefix("/memfd:consort-standin-")?.to_owned();
    let (device, rest) = link.split_once('-')?;
    let (device, nonce) = (device.parse().ok()?, u64::from_str_radix(rest.get(..16)?, 16).ok()?);
    let bytes = u64::try_from(fstat(&file).ok()?.st_size).ok()?;
    let view = Mapping::shared(&file, bytes).ok()?;
    Some(Store { file, view, bytes, device, nonce })
}
