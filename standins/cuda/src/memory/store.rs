//! Where the bytes of device memory are: a file in memory, which another process can open.
//!
//! Invariant: the name of the file says that it is one of these and of which device, so that nothing else is taken for
//! device memory. Absent: the memory's address as a program sees it (a region).

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::fcntl::readlink;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::fstat;
use nix::unistd::ftruncate;

use super::mapping::Mapping;
use crate::code::{Answer, Code};

/// What new memory is filled with up to [`POISONED`] bytes: real memory is not zeroed.
const POISON: u8 = 0xa5;
const POISONED: u64 = 1 << 20;

/// Bytes of a device.
#[derive(Debug)]
pub(crate) struct Store {
    /// The file.
    pub(crate) file: OwnedFd,
    /// Where this process sees it.
    pub(crate) view: Mapping,
    pub(crate) bytes: u64,
    /// The device whose memory it is.
    pub(crate) device: u32,
    /// Tells this memory from all other.
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
        // SAFETY: mapped just now for that many bytes, and nobody else's yet.
        unsafe { std::ptr::write_bytes(view.start() as *mut u8, POISON, bytes.min(POISONED) as usize) };
        Ok(Store { file, view, bytes, device, nonce })
    }

    /// Writes its first bytes; no more than it has.
    pub(crate) fn write(&self, bytes: &[u8]) {
        let count = bytes.len().min(self.bytes as usize);
        // SAFETY: the view is as long as the store and mapped while it is held; a race is what the program asked for.
        unsafe { std::ptr::copy(bytes.as_ptr(), self.view.start() as *mut u8, count) };
    }
}

/// Memory that came as a file: another's, or a duplicate of one's own.
///
/// # Errors
/// `None` if it is no such file.
pub(crate) fn adopt(file: OwnedFd) -> Option<Store> {
    let link = readlink(format!("/proc/self/fd/{}", file.as_raw_fd()).as_str()).ok()?;
    let link = link.to_str()?.strip_prefix("/memfd:consort-standin-")?.to_owned();
    let (device, rest) = link.split_once('-')?;
    let (device, nonce) = (device.parse().ok()?, u64::from_str_radix(rest.get(..16)?, 16).ok()?);
    let bytes = u64::try_from(fstat(&file).ok()?.st_size).ok()?;
    let view = Mapping::shared(&file, bytes).ok()?;
    Some(Store { file, view, bytes, device, nonce })
}
