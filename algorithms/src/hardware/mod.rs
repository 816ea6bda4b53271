//! What is in a machine: hosts, NUMA domains, PCIe, GPUs, NVLink, network adapters, and how they are joined.
//!
//! A [`Hardware`] is what files and probes say; a [`Topology`](crate::Topology) is what bounds, simulator and planner
//! compute with. [`Hardware::rank_graph`] makes the second of the first for the GPUs that a job has.
//!
//! Invariant: pure. What is not known stays unknown until [`assume`](Hardware::assume) or a probe fills it in, and is never
//! replaced by a slower link of another kind. Deliberately absent: files and devices.

mod assume;
mod check;
mod compose;
mod cpu_graph;
mod drawing;
pub mod exchange;
mod hazards;
mod identity;
mod known;
mod merge;
mod model;
mod paths;
mod rank_graph;
mod rates;
mod select;
mod summary;
#[cfg(test)]
mod tests;
mod titles;
mod warnings;

pub use assume::NoAssumption;
pub use check::Fault;
pub use compose::{Network, NoNetwork};
pub use drawing::Route;
pub use identity::{AMD, BusId, CpuSet, NVIDIA, NoBusId, NoCpuSet, Pci};
pub use known::{KnownGpu, known_gpu};
pub use merge::{GUESSED_PORTS, MergeFault, PROBED, UNSEEN_LINKS, merge, unseen_link};
pub use model::{
    Bridge, Cores, Gpu, GpuDirect, Hardware, Host, Iommu, Lanes, Link, LinkId, LinkKind, LinkLayer, Nic,
    Node, NodeId, NodeKind, Numa, Port, PortState, Processor,
};
pub use paths::{Path, PathKind, Paths};
pub use rank_graph::{NoRankGraph, RankGraph, Wires};
pub use rates::{LOCAL_BYTES_S, Rates, nvlink_generation};
pub use select::is_virtual_name;
pub use summary::{Summary, SummaryLink};
pub use titles::{Titles, counted};
pub use warnings::Warning;
