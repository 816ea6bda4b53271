//! What is wrong where RDMA cannot be used, or not between two ports: each trouble with its remedy.
//!
//! Absent: completions that failed ([`crate::FailedCompletion`]), and finding out what is wrong (`verbs`).

use std::fmt;

/// Why RDMA cannot be used here, or with this peer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdapterTrouble {
    /// The library of verbs is not installed, or is too old.
    #[error(
        "there is no libibverbs.so.1 that can be used ({why}); install it where the process runs, also inside of its container \
         (packages libibverbs1 and ibverbs-providers, or rdma-core)"
    )]
    NoLibrary {
        /// What the loader says.
        why: String,
    },
    /// The kernel lists no device.
    #[error(
        "the kernel lists no RDMA device in /sys/class/infiniband; load the driver of the adapter (mlx5_ib, bnxt_re, irdma, \
         ...), or give the container the adapter where `rdma system` says that namespaces have their own"
    )]
    NoDevice,
    /// The kernel lists devices whose nodes are not there.
    #[error(
        "the kernel lists RDMA devices ({devices}), but {node} is not there; mount the device nodes into the container (docker: \
         --device /dev/infiniband, Kubernetes: request the resource of the RDMA device plugin), or load the module ib_uverbs"
    )]
    NoNode {
        /// Names of the devices.
        devices: String,
        /// The file that is missing.
        node: String,
    },
    /// The library does not know the devices that the kernel lists.
    #[error(
        "the kernel lists RDMA devices ({devices}), but libibverbs has no provider for any; install the providers where the process \
         runs (package ibverbs-providers or rdma-core), as new as the driver"
    )]
    NoProvider {
        /// Names of the devices.
        devices: String,
    },
    /// The device's node may not be opened.
    #[error(
        "{node} of the RDMA device {device} may not be opened ({why}); give the process the right to it: the group that owns the \
         node, or the container the device (docker: --device {node})"
    )]
    NoPermission {
        /// Name of the device.
        device: String,
        /// The file.
        node: String,
        /// The system's reason.
        why: String,
    },
    /// No port carries traffic.
    #[error(
        "no port of an RDMA device is active: {ports}; look at the cable and the switch, at the subnet manager on InfiniBand \
         (`ibstat`), and at the interface on Ethernet (`ip link`)"
    )]
    NoActivePort {
        /// Each port with its state.
        ports: String,
    },
    /// `NCCL_IB_HCA` names none of the ports.
    #[error(
        "NCCL_IB_HCA={asked} leaves no port of the RDMA devices here ({devices}); name one of these, as in {example}"
    )]
    NoneAsked {
        /// The variable's text.
        asked: String,
        /// Names of the devices.
        devices: String,
        /// A device with its port, as the variable names it.
        example: String,
    },
    /// No address of a port can be used.
    #[error(
        "no address of {port} can be used ({entries}); let the process run in the network namespace of the port's interface (docker: \
         --network host) or bring that up with an address, or choose an entry by NCCL_IB_GID_INDEX"
    )]
    NoAddress {
        /// The port.
        port: PortName,
        /// Each entry of its table, with what is against it.
        entries: String,
    },
    /// The system does not let the process lock so much memory.
    #[error(
        "the adapter {device} cannot register {needed_bytes} bytes: the process may lock {limit_bytes} bytes (RLIMIT_MEMLOCK); raise that \
         limit where the process is started (ulimit -l unlimited; docker: --ulimit memlock=-1; systemd and Slurm's daemon: \
         LimitMEMLOCK=infinity)"
    )]
    LockedMemory {
        /// Name of the device.
        device: String,
        /// Bytes that were to be registered.
        needed_bytes: usize,
        /// Bytes that the process may lock.
        limit_bytes: u64,
    },
    /// One end is on InfiniBand and the other on Ethernet.
    #[error(
        "{port} is on {own} and the peer's port ({peer}) on {other}, and there is no way between them; let all ranks use ports of one kind \
         (NCCL_IB_HCA)"
    )]
    LinkLayers {
        /// The port here.
        port: PortName,
        /// Its link layer.
        own: &'static str,
        /// Where the peer's port is.
        peer: String,
        /// The peer's link layer.
        other: &'static str,
    },
    /// The ends are in different subnets of InfiniBand.
    #[error(
        "{port} is in the InfiniBand subnet {own} and the peer's port ({peer}) in {other}, and no router between subnets is known; \
         let all ranks use ports of one subnet (NCCL_IB_HCA), or give the subnets one prefix where they are one fabric"
    )]
    Subnets {
        /// The port here.
        port: PortName,
        /// Its subnet's prefix.
        own: String,
        /// Where the peer's port is.
        peer: String,
        /// The peer's subnet prefix.
        other: String,
    },
    /// The ends have addresses of different families.
    #[error(
        "{port} is reached by {own} and the peer's port by {peer}, and RoCE connects no IPv4 address with an IPv6 one; choose \
         addresses of one family on all ranks (NCCL_IB_ADDR_FAMILY, or NCCL_IB_GID_INDEX)"
    )]
    Families {
        /// The port here.
        port: PortName,
        /// Its address.
        own: String,
        /// The peer's.
        peer: String,
    },
    /// A forked child uses what its parent has connected.
    #[error(
        "this process is a forked child, and the connection over {device} is its parent's; make communicators in the process that \
         uses them"
    )]
    Forked {
        /// Name of the device.
        device: String,
    },
    /// The device has reported that it, or a queue pair of the connection, works no longer.
    #[error("{subject} has failed: the device {device} reported {event}; {remedy}")]
    Event {
        /// What of the device failed.
        subject: String,
        /// Name of the device.
        device: String,
        /// The event, as `verbs.h` names it.
        event: &'static str,
        /// What to look at.
        remedy: &'static str,
    },
}

/// A port of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortName {
    /// Name of the device.
    pub device: String,
    /// Counted from 1.
    pub number: u8,
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "port {} of {}", self.number, self.device)
    }
}
