//! Memory of devices at the seam: connections whose adapter reads it where it is, and writes into the peer's.
//!
//! Invariant: what is exposed is written by peers of the same transport alone, and for as long as it is exposed. Absent: which way an
//! adapter reaches it, and collectives over it.

use consort_cuda::{Context, DeviceSpan};

use crate::TransportError;

/// How an adapter reaches memory of a device, the best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum DeviceWay {
    /// The driver exports it as a DMA buffer, which the adapter's driver maps.
    DmaBuf,
    /// A kernel module gives the adapter's driver the pages of its addresses.
    PeerMemory,
    /// It does not: bytes go through pinned memory of the host.
    Staged,
}

impl DeviceWay {
    /// In words.
    pub const fn text(self) -> &'static str {
        match self {
            DeviceWay::DmaBuf => "by DMA buffers",
            DeviceWay::PeerMemory => "by peer memory",
            DeviceWay::Staged => "through pinned memory of the host",
        }
    }
}

/// Why an adapter does not reach memory of a device in a better way.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Indirect {
    /// The driver has no DMA buffers of this device.
    #[error(
        "no DMA buffers, as CUDA's driver exports none of this GPU; NVIDIA's open kernel modules from 515 on do, on Linux 5.12 or newer"
    )]
    NoBuffers,
    /// The library cannot register them.
    #[error("no DMA buffers, as libibverbs has no ibv_reg_dmabuf_mr; install rdma-core 34 or newer")]
    OldLibrary,
    /// The driver refused one.
    #[error("no DMA buffers, as CUDA's driver gave none ({why})")]
    NoBufferGiven {
        /// What it says.
        why: String,
    },
    /// The adapter's driver refused one.
    #[error(
        "no DMA buffers, as the adapter's driver took none ({why}); it and the kernel may be older than DMA buffers of GPUs"
    )]
    BufferNotTaken {
        /// The system's reason.
        why: String,
    },
    /// No module joins the two drivers.
    #[error("no peer memory, as neither nvidia_peermem nor nv_peer_mem is loaded; `modprobe nvidia-peermem`")]
    NoModule,
    /// The device's memory is reached by no other.
    #[error("no peer memory, as CUDA's driver says that other devices do not reach this GPU's memory")]
    NotReachable,
    /// The module, or the adapter's driver, refused it.
    #[error("no peer memory, as the adapter's driver took none although {module} is loaded ({why})")]
    NotMapped {
        /// The module.
        module: &'static str,
        /// The system's reason.
        why: String,
    },
    /// They are forbidden.
    #[error("no DMA buffers, as NCCL_DMABUF_ENABLE is 0")]
    BuffersForbidden,
    /// It is farther away than memory is reached directly.
    #[error("nothing is reached directly, as NCCL_NET_GDR_LEVEL is {level} and {}", .distance.map_or("allows no way at all".to_owned(), |far| format!("the way between them is {far}")))]
    TooFar {
        /// What is set.
        level: &'static str,
        /// How far it is.
        distance: Option<&'static str>,
    },
    /// The adapter is not to read it.
    #[error("what is sent goes through pinned memory of the host, as NCCL_NET_GDR_READ is 0")]
    ReadsForbidden,
    /// The driver's copies might not be over when the adapter reads.
    #[error(
        "nothing is reached directly, as CUDA's driver does not have its copies end before they return (CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: {why})"
    )]
    NotSynchronous {
        /// What it says.
        why: String,
    },
    /// What the adapter writes may come after the device has looked.
    #[error(
        "nothing is written to it directly, as neither the platform nor CUDA's driver orders an adapter's writes before the GPU's work, \
         and a read by the adapter cannot either ({why})"
    )]
    NoFlush {
        /// What failed.
        why: String,
    },
}

/// Where exposed memory is, for the peer that writes there. It travels as bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceTarget {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    pub(crate) key: u32,
}

impl DeviceTarget {
    /// Length of its bytes.
    pub const BYTES: usize = 20;

    /// Its form on the wire.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.start.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[16..].copy_from_slice(&self.key.to_le_bytes());
        bytes
    }

    /// What a peer has sent; none where it ends at no address.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let key = u32::from_le_bytes(std::array::from_fn(|byte| bytes[16 + byte]));
        let target = DeviceTarget { start: number(0), bytes: number(8), key };
        target.start.checked_add(target.bytes).map(|_| target)
    }
}

/// Memory of a device that peers may write until this is dropped.
pub trait ExposedMemory: Send {
    /// Where it is.
    fn target(&self) -> DeviceTarget;

    /// How it is reached.
    fn way(&self) -> DeviceWay;

    /// What has arrived in a part of it, as the counter says, is there for the device's own work from now on.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Panics
    /// If the part is not inside.
    fn settle(&self, offset: usize, bytes: usize) -> Result<(), TransportError>;
}

/// Where bytes of a device go.
#[derive(Clone, Copy, Debug)]
pub enum DeviceDestination<'a> {
    /// The peer's mailbox.
    Mailbox,
    /// Memory that the peer has exposed.
    Exposed(&'a DeviceTarget),
}

/// A connection that carries memory of devices.
pub trait DeviceLink {
    /// Lets the peers of this transport's connections write to memory of a device. A peer's write there has arrived when its signal has.
    ///
    /// # Errors
    /// The driver's, or the system's.
    fn expose(&self, context: &Context, memory: DeviceSpan)
    -> Result<Box<dyn ExposedMemory>, TransportError>;

    /// Writes memory of a device to `offset` of where it goes, and signals [`crate::CounterKind::Ready`] behind it. The number of the
    /// source, for [`crate::Connection::is_free`]; until then nothing may write there. `done` is how much was handed over so far: 0
    /// at first; on `Pending` call again with the same arguments after [`crate::Connection::progress`].
    ///
    /// # Errors
    /// As of [`crate::Connection::fill`]; the driver's.
    fn write_device(
        &mut self,
        from: (&Context, DeviceSpan),
        to: (DeviceDestination<'_>, usize),
        signal: (u64, u64),
        done: &mut usize,
    ) -> Result<std::task::Poll<u64>, TransportError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_come_back_from_their_bytes_and_end_at_an_address() {
        let target = DeviceTarget { start: 1 << 40, bytes: 77, key: 0xfedc_ba98 };
        assert_eq!(DeviceTarget::decode(&target.encode()), Some(target));
        let endless = DeviceTarget { start: u64::MAX, bytes: 2, key: 1 };
        assert_eq!(DeviceTarget::decode(&endless.encode()), None);
    }
}
