//! Memory of pretend devices: where its bytes are, who may touch it, and how another process gets it.
//!
//! Invariant: an address that a program gets of a device is reserved and can not be touched by the host, as on a machine
//! with a GPU; the bytes lie elsewhere (the *view*), and all that the driver does goes there through the table of regions.
//! A region and its views stay mapped while anybody holds the region. Absent: arrays, textures, pools with settings.

mod exchange;
mod mapping;
mod region;
mod store;
mod table;

pub(crate) use exchange::{Handle, export, open};
pub(crate) use mapping::{Mapping, is_mapped};
pub(crate) use region::{Bytes, Intent, Kind, Place, Region};
pub(crate) use store::{Store, adopt};
pub(crate) use table::Table;

/// Bytes of a page of virtual memory management, and what its sizes and addresses are multiples of.
pub(crate) const GRANULARITY: u64 = 2 << 20;
