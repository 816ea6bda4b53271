//! A network plugin of NCCL's over this library's TCP streams: a user of NCCL has connections that go on over other sockets when one
//! breaks, and over all interfaces that `NCCL_SOCKET_IFNAME` names.
//!
//! ```text
//! tables   the functions of versions 8 to 12, by C's types        log      lines for NCCL's log
//! network  what a process listens at, and its one device           meeting  how two comms find each other
//! stream   messages on a connection: requests of both ends
//! ```
//!
//! Invariant: no panic crosses to C, nothing blocks, and there are no threads: what is under way moves when NCCL asks for it. Absent:
//! memory of devices, grouped receives of several senders at once, collectives in the network.

mod log;
mod meeting;
mod network;
mod stream;
mod tables;

pub use tables::{
    ncclNetPlugin_v8, ncclNetPlugin_v9, ncclNetPlugin_v10, ncclNetPlugin_v11, ncclNetPlugin_v12,
};
