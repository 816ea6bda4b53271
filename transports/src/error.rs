//! What can go wrong on the way.
//!
//! Invariant: every error says what happened, in which transport, and what to try; callers that decide by kind
//! match on variants, never on text. Absent: ranks (the engine knows whose connection it was).

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use consort_cuda::CudaError;
use consort_memory::MemoryError;

use crate::abi;
use crate::adapter::AdapterTrouble;

/// Why a transport could not do what it was asked to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// The memory for a connection cannot be had.
    #[error(
        "{transport}: no memory for a connection ({needed_bytes} bytes of {what}: {source}); lower the buffer \
         sizes or the number of channels, or raise the memory limit of the container or of the job"
    )]
    OutOfMemory {
        /// [`crate::Transport::name`].
        transport: &'static str,
        /// Bytes that were asked for.
        needed_bytes: usize,
        /// What they were for.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// A system call failed in a way that has no variant of its own.
    #[error("{transport}: {call} failed: {source}{}", advice(.source))]
    System {
        /// [`crate::Transport::name`].
        transport: &'static str,
        /// The call.
        call: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// No port of the range that the process may listen at is free.
    #[error(
        "{transport}: at {address} all {} ports of CONSORT_PORTS={first}-{last} are in use; widen CONSORT_PORTS: each \
         process takes one port for control and one for data, so a host takes about two for each of its ranks and one \
         for the meeting point", u32::from(*last) - u32::from(*first) + 1
    )]
    PortsInUse {
        /// [`crate::Transport::name`].
        transport: &'static str,
        /// Where the process would listen.
        address: IpAddr,
        /// The range's first port.
        first: u16,
        /// The range's last port.
        last: u16,
    },
    /// The address is not one of this transport's, or not one that can be connected to.
    #[error(
        "{transport}: the peer's address cannot be used: {reason}; do all processes run the same version?"
    )]
    BadAddress {
        /// [`crate::Transport::name`].
        transport: &'static str,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Nothing listens there as seen from here; another transport may reach the peer.
    #[error(
        "{transport}: the peer at {address} cannot be reached from here ({source}); it is gone, or in another \
         network namespace or behind a firewall: another transport may still reach it"
    )]
    Unreachable {
        /// [`crate::Transport::name`].
        transport: &'static str,
        /// Where it was looked for.
        address: String,
        /// The system's reason.
        source: io::Error,
    },
    /// Every way to the peer broke, and none has come back for too long.
    #[error(
        "{transport}: the connection to {address} has been cut for {seconds} s: {why}; {calling}; look at the network \
         between the two hosts, and at whether the peer's process is still there"
    )]
    Cut {
        /// [`crate::Transport::name`].
        transport: &'static str,
        /// Where the peer listens.
        address: String,
        /// How long there has been no way.
        seconds: u64,
        /// Why the last one broke, with what the kernel knows of it.
        why: String,
        /// What came of calling again.
        calling: String,
    },
    /// An adapter could not carry out what was asked of a queue pair.
    #[error("{transport}: {failed}")]
    Completion {
        /// [`crate::Transport::name`].
        transport: &'static str,
        /// What it says of that.
        failed: Box<FailedCompletion>,
    },
    /// RDMA cannot be used here, or not with this peer.
    #[error("{transport}: {trouble}")]
    Adapter {
        /// [`crate::Transport::name`].
        transport: &'static str,
        /// What is wrong, and what to do.
        trouble: Box<AdapterTrouble>,
    },
    /// There is no network plugin that can be used.
    #[error("{transport}: {what}; {remedy}")]
    NoPlugin {
        /// [`crate::Transport::name`].
        transport: &'static str,
        /// What is missing, and where.
        what: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A function of a network plugin failed.
    #[error("{transport}: {failed}")]
    Plugin {
        /// [`crate::Transport::name`].
        transport: &'static str,
        /// Which one, and how.
        failed: Box<FailedPlugin>,
    },
    /// The peer closed its side, or its process ended.
    #[error("{transport}: the peer closed the connection; look for the first error on its side")]
    PeerClosed {
        /// [`crate::Transport::name`].
        transport: &'static str,
    },
    /// A put that does not fit where it should go.
    #[error(
        "{transport}: {bytes} bytes at {offset} do not fit into the peer's mailbox of {mailbox_bytes} bytes"
    )]
    OutOfBounds {
        /// [`crate::Transport::name`].
        transport: &'static str,
        /// Where in the mailbox.
        offset: usize,
        /// How many bytes.
        bytes: usize,
        /// The mailbox's size.
        mailbox_bytes: usize,
    },
    /// Links of the transport have not what a plan needs.
    #[error(
        "{transport}: a plan needs {property}, which its links have not; choose another transport (CONSORT_TRANSPORT)"
    )]
    Lacks {
        /// [`crate::Transport::name`].
        transport: &'static str,
        /// What is missing.
        property: Property,
    },
    /// The peer sent what no version of this library sends; the connection is of no use any more.
    #[error(
        "{transport}: the peer broke the protocol: {what}; do all processes run the same version, and does \
         nothing else write into the connection?"
    )]
    Protocol {
        /// [`crate::Transport::name`].
        transport: &'static str,
        /// What it did.
        what: &'static str,
    },
    /// The process there could not prove to be the peer.
    #[error("{transport}: {what}; do all processes have the same secret and the same user?")]
    Unauthorised {
        /// [`crate::Transport::name`].
        transport: &'static str,
        /// What was missing.
        what: &'static str,
    },
    /// The driver of the devices refused.
    #[error("{transport}: {what}: {source}")]
    Driver {
        /// [`crate::Transport::name`].
        transport: &'static str,
        /// What was wanted.
        what: &'static str,
        /// The driver's words.
        source: Box<CudaError>,
    },
    /// One device cannot load from and store to the memory of another.
    #[error(
        "{transport}: the device {own} does not reach the memory of the device {peer}; another way between them is \
         slower and serves: look at `nvidia-smi topo -p2p rw`"
    )]
    NoPeerAccess {
        /// [`crate::Transport::name`].
        transport: &'static str,
        /// Unique id of the device that should reach the other, in hexadecimal.
        own: String,
        /// Unique id of the other.
        peer: String,
    },
    /// What a peer wrote is not what is found: the way does not work, although the driver says so.
    #[error(
        "{transport}: the self-test of peer access failed: at byte {at} there is {found:#04x} instead of \
         {expected:#04x}; look for access control of the bus (ACS) or an IOMMU that is on, and use another way"
    )]
    SelfTest {
        /// [`crate::Transport::name`].
        transport: &'static str,
        /// Where the first wrong byte is, in bytes from the start of what was tested.
        at: usize,
        /// What the peer wrote.
        expected: u8,
        /// What is there.
        found: u8,
    },
    /// A copy between devices does not end: the way does not work, although the driver says so.
    #[error(
        "{transport}: a copy of the self-test of peer access has not ended after {after:?}; look for access control of \
         the bus (ACS) or an IOMMU that is on, or set NCCL_P2P_DISABLE=1"
    )]
    SelfTestHangs {
        /// [`crate::Transport::name`].
        transport: &'static str,
        /// How long it was waited for.
        after: Duration,
    },
}

/// A completion that says that something could not be done.
#[derive(Clone, Debug)]
pub struct FailedCompletion {
    /// The adapter here.
    pub device: String,
    /// Its port.
    pub port: u8,
    /// The number of the queue pair here.
    pub queue_pair: u32,
    /// Where the peer is.
    pub peer: String,
    /// What the completion says.
    pub status: String,
    /// What may be the reason, and what to look at.
    pub causes: &'static str,
}

impl std::fmt::Display for FailedCompletion {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { device, port, queue_pair, peer, status, causes } = self;
        write!(out, "queue pair {queue_pair} of {device} port {port}, to {peer}, failed: {status}; {causes}")
    }
}

/// A function of a network plugin that did not return success.
#[derive(Clone, Debug)]
pub struct FailedPlugin {
    /// The plugin's own name.
    pub plugin: String,
    /// Its shared object.
    pub file: String,
    /// The version of the interface.
    pub version: u32,
    /// The function, by NCCL's name.
    pub function: &'static str,
    /// The device; nothing before one was chosen.
    pub device: String,
    /// What it returned: an `ncclResult_t`.
    pub code: i32,
}

impl FailedPlugin {
    /// What to do.
    fn remedy(&self) -> &'static str {
        match self.code {
            1 => "the plugin was asked for host memory alone, so look at the CUDA driver it has opened",
            abi::INVALID_ARGUMENT | abi::INVALID_USAGE => {
                "look at the plugin's settings, which must be equal on all ranks, and at its own words in the log"
            }
            abi::REMOTE_ERROR => {
                "look for the first error on the peer's side, and at the network between the two"
            }
            abi::SYSTEM_ERROR => {
                "look at the network, at the limits of the process (locked memory, open files), and at the plugin's own \
                 words in the log"
            }
            _ => "look at the plugin's own words in the log, or choose another CONSORT_TRANSPORT",
        }
    }
}

impl std::fmt::Display for FailedPlugin {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { plugin, file, version, function, device, code } = self;
        let on = if device.is_empty() { String::new() } else { format!(" on {device}") };
        let (name, remedy) = (abi::name_of(*code), self.remedy());
        write!(
            out,
            "{function} of the network plugin {plugin} ({file}, version {version}){on} returned {name} ({code}); {remedy}"
        )
    }
}

fn advice(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EMFILE) => "; raise the limit of open files (ulimit -n)",
        Some(libc::ENFILE) => "; the machine is out of file handles",
        Some(libc::EADDRNOTAVAIL) => "; is the interface's address right?",
        Some(libc::EPERM | libc::EACCES) => "; does the container's security profile forbid it?",
        _ => "",
    }
}

impl TransportError {
    /// [`crate::Transport::name`] of the transport that failed.
    pub fn transport(&self) -> &'static str {
        match self {
            Self::OutOfMemory { transport, .. }
            | Self::System { transport, .. }
            | Self::PortsInUse { transport, .. }
            | Self::BadAddress { transport, .. }
            | Self::Unreachable { transport, .. }
            | Self::PeerClosed { transport }
            | Self::OutOfBounds { transport, .. }
            | Self::Lacks { transport, .. }
            | Self::Protocol { transport, .. }
            | Self::Unauthorised { transport, .. }
            | Self::Driver { transport, .. }
            | Self::NoPeerAccess { transport, .. }
            | Self::SelfTest { transport, .. }
            | Self::Cut { transport, .. }
            | Self::Completion { transport, .. }
            | Self::Adapter { transport, .. }
            | Self::NoPlugin { transport, .. }
            | Self::Plugin { transport, .. }
            | Self::SelfTestHangs { transport, .. } => transport,
        }
    }

    /// Whether the driver or the device has not what was asked for, so that another way is to be taken.
    pub fn is_unsupported(&self) -> bool {
        match self {
            Self::Driver { source, .. } => source.is_unsupported(),
            Self::NoPeerAccess { .. } => true,
            _ => false,
        }
    }

    /// Whether the peer is gone, as far as the transport can say that.
    pub fn is_peers_end(&self) -> bool {
        match self {
            Self::PeerClosed { .. } => true,
            Self::Plugin { failed, .. } => failed.code == abi::REMOTE_ERROR,
            _ => false,
        }
    }

    pub(crate) fn driver(transport: &'static str, what: &'static str, source: CudaError) -> Self {
        Self::Driver { transport, what, source: Box::new(source) }
    }

    pub(crate) fn system(transport: &'static str, call: &'static str, source: impl Into<io::Error>) -> Self {
        Self::System { transport, call, source: source.into() }
    }

    pub(crate) fn adapter(transport: &'static str, trouble: AdapterTrouble) -> Self {
        Self::Adapter { transport, trouble: Box::new(trouble) }
    }

    pub(crate) fn memory(transport: &'static str, error: MemoryError) -> Self {
        match error {
            MemoryError::OutOfMemory { needed_bytes, what, source } => {
                Self::OutOfMemory { transport, needed_bytes, what, source }
            }
            MemoryError::System { call, source } => Self::System { transport, call, source },
            MemoryError::NotSealed { reason, .. } => Self::Protocol { transport, what: reason },
            other => Self::System { transport, call: "mapping memory", source: io::Error::other(other) },
        }
    }
}

/// A capability that a plan needs of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Property {
    /// [`Capabilities::load_store`](crate::Capabilities::load_store).
    LoadStore,
    /// [`Capabilities::put`](crate::Capabilities::put).
    Put,
    /// [`Capabilities::ordered`](crate::Capabilities::ordered).
    Ordered,
}

impl std::fmt::Display for Property {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Self::LoadStore => "loads and stores in the peer's memory",
            Self::Put => "puts into the peer's memory",
            Self::Ordered => "signals that arrive after the puts before them",
        })
    }
}
