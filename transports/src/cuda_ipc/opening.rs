//! Opening a peer's arena.
//!
//! Invariant: an opened arena has at least as many bytes as its offer says, and the device of the context that opened
//! it reaches them, as far as the driver knows. Absent: whether that is true (the self-test), and waiting: who opens
//! polls.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::task::Poll;

use consort_cuda::{Context, DeviceSpan, PeerMemory, SharedDeviceMemory};

use super::address::{OfferedArena, Way};
use super::{Memory, NAME, arenas, process, refused};
use crate::handover::{Desk, Fetching};
use crate::{MemoryLender, TransportError};

/// A peer's arena, mapped here.
#[derive(Debug)]
pub struct PeerArena {
    reach: Reach,
    bytes: usize,
    process_id: u32,
}

#[derive(Debug)]
enum Reach {
    /// Of this process.
    Same(Arc<Memory>),
    Opened(PeerMemory),
    Mapped(SharedDeviceMemory),
}

/// A peer's arena on its way here.
#[derive(Debug)]
pub struct Opening {
    context: Context,
    bytes: usize,
    process_id: u32,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Ready(Reach),
    /// Its descriptor is to be fetched at the peer's desk; ours is to be served meanwhile.
    Fetching {
        fetching: Fetching,
        mapped_bytes: usize,
        desk: Desk,
    },
    Done,
}

impl PeerArena {
    /// Begins to open what a peer's [`Arena::offer`](super::Arena::offer) leads to, for the device of `context`. The
    /// desk of `shm` is served while the peer's is asked, because the peer may be doing the same.
    ///
    /// # Errors
    /// [`TransportError::BadAddress`] for bytes that are no offer; [`TransportError::NoPeerAccess`] when the device
    /// does not reach the other; [`TransportError::PeerClosed`] when the arena is gone; [`TransportError::Driver`].
    pub fn open(context: &Context, offer: &[u8], shm: &dyn MemoryLender) -> Result<Opening, TransportError> {
        let offered = OfferedArena::decode(offer)?;
        let OfferedArena { process_id, key, device, .. } = offered;
        let bad = |reason| TransportError::BadAddress { transport: NAME, reason };
        let bytes = usize::try_from(offered.bytes).map_err(|_| bad("it names an impossible size"))?;
        let stage = if offered.process == process()? {
            let memory = arenas().get(&key).and_then(std::sync::Weak::upgrade);
            let memory = memory.ok_or(TransportError::PeerClosed { transport: NAME })?;
            if memory.span().len() < bytes {
                return Err(bad("it names more memory than there is"));
            }
            reach_here(context, &memory)?;
            Stage::Ready(Reach::Same(memory))
        } else {
            check_access(context, device)?;
            match offered.way {
                Way::Process => return Err(bad("its memory is for its own process alone")),
                Way::Legacy(handle) => {
                    let memory = context.open_ipc(&handle).map_err(refused("opening a peer's memory"))?;
                    if memory.bytes() < bytes {
                        return Err(TransportError::Protocol {
                            transport: NAME,
                            what: "its memory is smaller than it says",
                        });
                    }
                    Stage::Ready(Reach::Opened(memory))
                }
                Way::Shareable { desk, nonce, mapped_bytes } => {
                    let mapped_bytes = usize::try_from(mapped_bytes).ok().filter(|&mapped| mapped >= bytes);
                    Stage::Fetching {
                        fetching: Fetching::new(NAME, desk, nonce),
                        mapped_bytes: mapped_bytes.ok_or_else(|| bad("it names an impossible size"))?,
                        desk: shm.desk().clone(),
                    }
                }
            }
        };
        Ok(Opening { context: context.clone(), bytes, process_id, stage })
    }

    /// Where it begins in this process.
    pub fn address(&self) -> u64 {
        self.span().address()
    }

    /// How many bytes it was made with.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// All of it; see [`DeviceSpan`] for how long it may be used.
    pub fn span(&self) -> DeviceSpan {
        let span = match &self.reach {
            Reach::Same(memory) => memory.span(),
            Reach::Opened(memory) => memory.span(),
            Reach::Mapped(memory) => memory.span(),
        };
        span.slice(0, self.bytes)
    }

    /// Whether the arena is of this process.
    pub fn is_of_this_process(&self) -> bool {
        matches!(self.reach, Reach::Same(_))
    }

    /// The process that made it, as that process calls itself: for messages.
    pub fn process_id(&self) -> u32 {
        self.process_id
    }
}

impl Opening {
    /// Goes on as far as that is possible without waiting. Not to be called again after it was ready or failed.
    ///
    /// # Errors
    /// As [`PeerArena::open`]; [`TransportError::Unreachable`] when the peer's desk is empty.
    pub fn poll(&mut self) -> Result<Poll<PeerArena>, TransportError> {
        let reach = match std::mem::replace(&mut self.stage, Stage::Done) {
            Stage::Ready(reach) => reach,
            Stage::Fetching { mut fetching, mapped_bytes, desk } => {
                desk.serve();
                let Poll::Ready(file) = fetching.poll()? else {
                    self.stage = Stage::Fetching { fetching, mapped_bytes, desk };
                    return Ok(Poll::Pending);
                };
                let memory = self.context.import_fd(file.as_fd(), mapped_bytes);
                Reach::Mapped(memory.map_err(refused("mapping a peer's memory"))?)
            }
            Stage::Done => return Err(TransportError::PeerClosed { transport: NAME }),
        };
        Ok(Poll::Ready(PeerArena { reach, bytes: self.bytes, process_id: self.process_id }))
    }
}

/// Lets the context's device reach memory of this process.
fn reach_here(context: &Context, memory: &Memory) -> Result<(), TransportError> {
    let (own, peer) = (context.device(), memory.context().device());
    if own.uuid == peer.uuid {
        return Ok(());
    }
    check_access(context, peer.uuid)?;
    match memory {
        Memory::Own(memory) => context.enable_peer(memory.context()),
        Memory::Shared(_, memory) => memory.grant(own),
    }
    .map_err(refused("access to a peer's device"))
}

/// Whether the context's device reaches the memory of another, as the driver says. A device that this process does
/// not see (`CUDA_VISIBLE_DEVICES`) cannot be asked about: opening its memory says.
fn check_access(context: &Context, peer: [u8; 16]) -> Result<(), TransportError> {
    let (driver, own) = (context.driver(), context.device());
    let asked = refused("asking whether one device reaches another");
    let found = || -> consort_cuda::Result<bool> {
        for ordinal in 0..driver.devices() {
            let device = driver.device(ordinal)?;
            if device.uuid == peer {
                return own.can_access(&device);
            }
        }
        Ok(true)
    };
    if found().map_err(asked)? {
        return Ok(());
    }
    let text = |uuid: [u8; 16]| uuid.map(|byte| format!("{byte:02x}")).concat();
    Err(TransportError::NoPeerAccess { transport: NAME, own: text(own.uuid), peer: text(peer) })
}
