//! What is asked of RDMA: which ports, by which addresses, and how their packets travel.
//!
//! Absent: where that comes from (the settings of a communicator).

use std::net::IpAddr;
use std::sync::Arc;

/// The ports that may be used, by the names of their devices and their numbers.
pub type PortFilter = Arc<dyn Fn(&str, u8) -> bool + Send + Sync>;

/// What is asked of RDMA.
#[derive(Clone)]
pub struct RdmaOptions {
    /// The ports that may be used.
    pub ports: PortFilter,
    /// The text that asked for these ports; empty for all.
    pub ports_asked: String,
    /// Which of a port's addresses is used.
    pub addresses: Addresses,
    /// How packets travel.
    pub travel: Travel,
    /// Queue pairs of a connection, from 1 on.
    pub queue_pairs: u16,
    /// How adapters use memory.
    pub memory: MemoryUse,
}

/// How adapters use memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryUse {
    /// Whether what an adapter writes may pass on the bus what it wrote before.
    pub relaxed_ordering: RelaxedOrdering,
    /// Whether memory of devices may be reached by DMA buffers.
    pub dma_buffers: bool,
    /// How far away a device may be whose memory is reached directly; any distance without it.
    pub device_level: Option<DeviceLevel>,
    /// Whether memory of devices is read directly, to be sent.
    pub reads_devices: bool,
}

/// How far a device is from a port, as NCCL counts it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum DeviceLevel {
    /// It is the same.
    Loc,
    /// One switch is between them.
    Pix,
    /// Several switches are.
    Pxb,
    /// They are in one memory node, at whichever ports of the processor.
    Phb,
    /// They are in different memory nodes.
    Sys,
}

impl DeviceLevel {
    /// All of them, by NCCL's old numbers.
    pub const ALL: [DeviceLevel; 5] =
        [DeviceLevel::Loc, DeviceLevel::Pix, DeviceLevel::Pxb, DeviceLevel::Phb, DeviceLevel::Sys];

    /// NCCL's name for it.
    pub const fn name(self) -> &'static str {
        match self {
            DeviceLevel::Loc => "LOC",
            DeviceLevel::Pix => "PIX",
            DeviceLevel::Pxb => "PXB",
            DeviceLevel::Phb => "PHB",
            DeviceLevel::Sys => "SYS",
        }
    }
}

/// Whether what an adapter writes may pass on the bus what it wrote before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RelaxedOrdering {
    /// It may not.
    Never,
    /// It may, and a library that cannot ask for that is worth a warning.
    Asked,
    /// It may where library and adapter have it.
    WherePossible,
}

impl Default for MemoryUse {
    fn default() -> Self {
        MemoryUse {
            relaxed_ordering: RelaxedOrdering::WherePossible,
            dma_buffers: true,
            device_level: None,
            reads_devices: true,
        }
    }
}

/// Which of a port's addresses is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Addresses {
    /// The entry of the port's table; without it the best.
    pub index: Option<u8>,
    /// Whether addresses are of IPv6; without it those of IPv4 are the better ones. RoCE alone, as what follows.
    pub is_ipv6: Option<bool>,
    /// The first bits that an address has, by an address and their number.
    pub range: Option<(IpAddr, u8)>,
    /// The version of RoCE, 1 or 2.
    pub version: u8,
}

impl Default for Addresses {
    fn default() -> Self {
        Addresses { index: None, is_ipv6: None, range: None, version: 2 }
    }
}

/// Timeouts as the interface counts them, of a queue pair that is alone in its connection, and of one beside others.
const TIMEOUT_ALONE: u8 = 18;
const TIMEOUT_BESIDE: u8 = 17;

/// How the packets of queue pairs travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Travel {
    /// The service level, 0 to 15.
    pub service_level: u8,
    /// The traffic class of packets with a global route, as those of RoCE.
    pub traffic_class: u8,
    /// The place of the partition's key in the port's table.
    pub partition: u16,
    /// How long a packet may go unanswered before it is sent again: 4.096 µs times two to this power, up to 31.
    /// Without it 0.54 s, or 1.07 where no other queue pair would carry on.
    pub timeout: Option<u8>,
    /// How often a packet is sent again before the queue pair fails, up to 7.
    pub retries: u8,
}

impl Default for Travel {
    /// Packets are sent again after 0.54 s, six times: after 3.8 s, or 15 where a device takes four times the timeout, the queue pair
    /// fails, and others of its connection carry on. A queue pair that is alone waits for twice as long, as nothing does: a switch that
    /// starts anew, or a port that is trained again, takes some, and an answer that packets came out of order may take one of the tries. Not seven times, with
    /// which some devices never give up.
    fn default() -> Self {
        Travel { service_level: 0, traffic_class: 0, partition: 0, timeout: None, retries: 6 }
    }
}

impl Travel {
    /// How long a packet of a queue pair may go unanswered, which is alone in its connection or not.
    pub(super) fn timeout(&self, is_alone: bool) -> u8 {
        self.timeout.unwrap_or(if is_alone { TIMEOUT_ALONE } else { TIMEOUT_BESIDE })
    }
}

impl Default for RdmaOptions {
    fn default() -> Self {
        RdmaOptions {
            ports: Arc::new(|_, _| true),
            ports_asked: String::new(),
            addresses: Addresses::default(),
            travel: Travel::default(),
            queue_pairs: 1,
            memory: MemoryUse::default(),
        }
    }
}

impl std::fmt::Debug for RdmaOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RdmaOptions")
            .field("ports_asked", &self.ports_asked)
            .field("addresses", &self.addresses)
            .field("travel", &self.travel)
            .field("queue_pairs", &self.queue_pairs)
            .field("memory", &self.memory)
            .finish_non_exhaustive()
    }
}
