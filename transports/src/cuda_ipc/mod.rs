//! Memory of a rank's device that its peers' devices reach: in this process by its address, in others by a handle or
//! a descriptor of the driver's.
//!
//! Invariant: what a peer opened stays mapped as long as its value lives, and in this process the memory itself stays;
//! an offer leads to one arena, and what it says is compared with what the driver says before anything is touched.
//! That both sides really see the same bytes is for the self-test to show ([`write_pattern`], [`check_pattern`]): there
//! are machines whose drivers say yes and whose buses lose what is written. Absent: what lies in an arena, waiting,
//! ranks, and connections (counters and mailboxes inside an arena are laid out by their user).
//!
//! So far this has run on the stand-in for a driver (`standins/cuda`) alone.

mod address;
mod opening;
mod probe;
#[cfg(test)]
mod tests;
mod words;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use consort_cuda::{Context, CudaError, DeviceMemory, DeviceSpan, SharedDeviceMemory};
use consort_memory::sync::{AtomicU64, Ordering};

use crate::handover::{Offer, Takers};
use crate::segment::{Nonce, nonce};
use crate::{MemoryLender, TransportError};
use address::{OfferedArena, Way};

pub use opening::{Opening, PeerArena};
pub use probe::{Probe, check_pattern, write_pattern};
pub use words::{OpeningWords, PeerWords, Words};

const NAME: &str = "cuda-ipc";

/// The driver cuts allocations smaller than this out of larger ones, and a handle would then lead to the neighbours
/// too.
const LEGACY_BYTES: usize = 2 << 20;

/// How other processes come to an arena.
#[derive(Clone, Copy, Debug)]
pub enum How<'s> {
    /// They do not: it is for the ranks of this process.
    Process,
    /// By a handle of 64 bytes (`cuIpcGetMemHandle`), which every driver has; not in every container.
    Legacy,
    /// By a descriptor (`cuMemCreate`, `cuMemExportToShareableHandle`) that they fetch at the desk of this transport,
    /// which must be served for that.
    Shareable(&'s dyn MemoryLender),
}

/// Memory of one rank's device that its peers reach, zeroed. Freed when it and all [`PeerArena`]s of this process
/// went; what other processes have of it then leads nowhere, so they are to hear of it before.
#[derive(Debug)]
pub struct Arena {
    memory: Arc<Memory>,
    /// For the ranks of this process.
    key: u64,
    offered: OfferedArena,
    /// The descriptor at the desk.
    _descriptor: Option<Offer>,
}

#[derive(Debug)]
enum Memory {
    Own(DeviceMemory),
    Shared(Context, SharedDeviceMemory),
}

fn refused(what: &'static str) -> impl FnOnce(CudaError) -> TransportError {
    move |error| TransportError::driver(NAME, what, error)
}

/// The arenas of this process, by the key that an offer names.
fn arenas() -> MutexGuard<'static, HashMap<u64, Weak<Memory>>> {
    static ARENAS: OnceLock<Mutex<HashMap<u64, Weak<Memory>>>> = OnceLock::new();
    ARENAS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// What tells this process from all others. A forked child has its parent's, and no driver.
fn process() -> Result<Nonce, TransportError> {
    static PROCESS: OnceLock<Nonce> = OnceLock::new();
    if let Some(process) = PROCESS.get() {
        return Ok(*process);
    }
    let fresh = nonce(NAME)?;
    Ok(*PROCESS.get_or_init(|| fresh))
}

impl Arena {
    /// An arena of `bytes` bytes of the context's device.
    ///
    /// # Errors
    /// [`TransportError::Driver`]: the memory cannot be had, or not be shared so; in the latter case another [`How`]
    /// may do (see [`TransportError::is_unsupported`]).
    pub fn new(context: &Context, bytes: usize, how: How<'_>) -> Result<Self, TransportError> {
        static KEYS: AtomicU64 = AtomicU64::new(0);
        let own = |bytes: usize| context.allocate(bytes).map_err(refused("an arena's memory"));
        let (memory, way, descriptor) = match how {
            How::Process => (Memory::Own(own(bytes)?), Way::Process, None),
            How::Legacy => {
                let memory = own(bytes.checked_next_multiple_of(LEGACY_BYTES).unwrap_or(usize::MAX))?;
                let handle = memory.export().map_err(refused("a handle for other processes"))?;
                (Memory::Own(memory), Way::Legacy(handle), None)
            }
            How::Shareable(shm) => {
                let memory = context.allocate_shareable(bytes).map_err(refused("an arena's memory"))?;
                let file = memory.export_fd().map_err(refused("a descriptor for other processes"))?;
                let offer = shm.desk().offer(file, Takers::Many)?;
                let way = Way::Shareable {
                    desk: *shm.desk().name(),
                    nonce: *offer.nonce(),
                    mapped_bytes: memory.mapped_bytes() as u64,
                };
                (Memory::Shared(context.clone(), memory), way, Some(offer))
            }
        };
        let offered = OfferedArena {
            process: process()?,
            process_id: std::process::id(),
            device: context.device().uuid,
            bytes: bytes as u64,
            // Relaxed: keys only have to differ.
            key: KEYS.fetch_add(1, Ordering::Relaxed),
            way,
        };
        let (memory, key) = (Arc::new(memory), offered.key);
        context.fill(memory.span(), 0).map_err(refused("clearing an arena"))?;
        arenas().insert(key, Arc::downgrade(&memory));
        Ok(Self { memory, key, offered, _descriptor: descriptor })
    }

    /// What peers open it with, 256 bytes at most. Good until the arena is dropped.
    pub fn offer(&self) -> Vec<u8> {
        self.offered.encode()
    }

    /// How many bytes it was made with.
    pub fn bytes(&self) -> usize {
        // It was a `usize` when the arena was made.
        self.offered.bytes as usize
    }

    /// Where it begins.
    pub fn address(&self) -> u64 {
        self.memory.span().address()
    }

    /// All of it, for this rank's streams and kernels.
    pub fn span(&self) -> DeviceSpan {
        self.memory.span().slice(0, self.bytes())
    }

    /// The context whose device it is on.
    pub fn context(&self) -> &Context {
        self.memory.context()
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        arenas().remove(&self.key);
    }
}

impl Memory {
    fn span(&self) -> DeviceSpan {
        match self {
            Memory::Own(memory) => memory.span(),
            Memory::Shared(_, memory) => memory.span(),
        }
    }

    fn context(&self) -> &Context {
        match self {
            Memory::Own(memory) => memory.context(),
            Memory::Shared(context, _) => context,
        }
    }
}
