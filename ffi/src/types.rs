//! NCCL's types in their layout in C; the tests compare sizes and offsets with the header.
//!
//! Absent: structures that are only read by their bytes, where the client's version decides which fields they have
//! (`consort_nccl::config`).

use std::ffi::{c_int, c_uint, c_void};

use consort::UniqueId;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NcclUniqueId {
    pub(crate) internal: [u8; UniqueId::BYTES],
}

/// `ncclTeam_t`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NcclTeam {
    /// Ranks in the team.
    pub ranks: c_int,
    /// This rank within it.
    pub rank: c_int,
    /// Distance of its ranks in the communicator.
    pub stride: c_int,
}

/// `ncclSimInfo_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NcclSimInfo {
    /// Bytes of the caller's structure.
    pub size: usize,
    /// [`NcclSimInfo::MAGIC`].
    pub magic: c_uint,
    /// The caller's version.
    pub version: c_uint,
    /// Microseconds.
    pub estimated_time: f32,
}

impl NcclSimInfo {
    /// The value that its initializer sets.
    pub const MAGIC: c_uint = 0x7468_5283;
}

/// `ncclEncryptionConfig_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NcclEncryptionConfig {
    /// Bytes of the caller's structure.
    pub size: usize,
    /// [`API_MAGIC`].
    pub magic: c_uint,
    /// The caller's version.
    pub version: c_uint,
    /// `ncclEncryptionMode_t`.
    pub mode: c_int,
    /// The key that all ranks share.
    pub psk: *const std::ffi::c_char,
}

/// `NCCL_API_MAGIC`.
pub const API_MAGIC: c_uint = 0xcafe_beef;

/// An opaque place of the device interface, which this library does not have.
pub(crate) type Opaque = *mut c_void;
