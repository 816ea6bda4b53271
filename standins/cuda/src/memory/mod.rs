//! Memory of pretend devices: where its bytes are, which devices may touch it, and how another process gets it.
//!
//! Invariant: the host cannot touch an address of device memory, as on a machine with a GPU. Such an address is only
//! reserved; the bytes lie elsewhere (the *view*), and the driver reaches them through the table of regions. A region
//! and its views stay mapped while any reference to the region is held. Absent: arrays, textures, pools with
//! settings.

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

/// Bytes of a page of virtual memory management. Its sizes and addresses are multiples of it.
pub(crate) const GRANULARITY: u64 = 2 << 20;
