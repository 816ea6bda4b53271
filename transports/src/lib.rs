//! How bytes travel between two processes (or two parts of one).
//!
//! Invariant: nothing here blocks, starts a thread or knows a rank, and what a peer sends is checked before it
//! touches memory. Deliberately absent: ranks, collectives, reduction, waiting, async runtimes.

pub mod abi;
mod adapter;
#[cfg(feature = "simnet")]
mod arrival;
mod closed;
#[cfg(feature = "conformance")]
pub mod conformance;
mod counters;
pub mod cuda_ipc;
pub mod device;
mod distance;
mod error;
mod fields;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod handover;
mod info;
mod lending;
mod library;
mod loopback;
mod mapped;
mod pidfd;
mod plugin;
mod ports;
mod proof;
mod reception;
mod segment;
mod shm;
#[cfg(feature = "simnet")]
pub mod simnet;
mod streams;
mod tcp;
mod transport;
mod verbs;

#[cfg(all(test, feature = "fuzzing"))]
#[global_allocator]
static ALLOCATOR: fuzzing::Counting = fuzzing::Counting;

pub use adapter::{AdapterTrouble, PortName};
pub use distance::round_trip;
pub use error::{FailedCompletion, FailedPlugin, Property, TransportError};
pub use handover::{Desk, MemoryLender};
pub use lending::{Fetch, Lent};
pub use loopback::Loopback;
pub use pidfd::PidFd;
pub use plugin::NetPlugin;
pub use ports::listen_within;
pub use proof::{PROOF_BYTES, prove, proves};
pub use shm::Shm;
pub use tcp::{Listener, Tcp};
pub use transport::{
    Address, Capabilities, Connecting, Connection, CounterKind, Endpoint, Flow, Layout, PeerState,
    RemoteRegion, Service, Transport, Way,
};
pub use verbs::{
    Addresses, DeviceLevel, MemoryUse, Near, PortFilter, RatedPort, RdmaOptions, RelaxedOrdering, Travel,
    Verbs,
};
