//! The 64 bytes by which another process opens memory (`CUipcMemHandle`).
//!
//! Invariant: an open returns the very memory that was exported, as the file named in the handle carries the handle's
//! nonce. Absent: processes of other users, which the system does not let in.

use std::os::fd::OwnedFd;

use nix::fcntl::{OFlag, open as open_file};
use nix::sys::stat::Mode;

use super::store::{Store, adopt};
use crate::code::{Answer, Code};
use std::os::fd::AsRawFd;

/// `CUipcMemHandle`.
pub(crate) type Handle = [u8; 64];

const MAGIC: u64 = u64::from_le_bytes(*b"standin\0");

/// The handle of a store of this process.
pub(crate) fn export(store: &Store) -> Handle {
    let mut handle = [0; 64];
    let file = store.file.as_raw_fd() as u64;
    let words =
        [MAGIC, u64::from(std::process::id()), file, store.nonce, u64::from(store.device), store.bytes];
    for (place, word) in handle.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    handle
}

/// Opens another process's memory.
///
/// # Errors
/// `INVALID_CONTEXT` in the process that exported the memory, `INVALID_HANDLE` for other bytes, `MAP_FAILED` when the
/// memory is gone.
pub(crate) fn open(handle: &Handle) -> Answer<Store> {
    let mut words = [0u64; 8];
    for (word, place) in words.iter_mut().zip(handle.chunks_exact(8)) {
        *word = u64::from_le_bytes(place.try_into().unwrap_or_default());
    }
    let [magic, process, file, nonce, device, bytes, ..] = words;
    if magic != MAGIC {
        return Err(Code::INVALID_HANDLE);
    }
    if process == u64::from(std::process::id()) {
        return Err(Code::INVALID_CONTEXT);
    }
    let path = format!("/proc/{process}/fd/{file}");
    let file: OwnedFd = open_file(path.as_str(), OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty())
        .map_err(|_| Code::MAP_FAILED)?;
    let store = adopt(file).ok_or(Code::MAP_FAILED)?;
    let is_it = store.nonce == nonce && u64::from(store.device) == device && store.bytes == bytes;
    if is_it { Ok(store) } else { Err(Code::MAP_FAILED) }
}
