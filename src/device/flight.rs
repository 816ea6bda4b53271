//! The blocks on a device that may wait for peers: they all fit on it at once.
//!
//! A kernel that waits for a peer ends only when the peer's kernel runs. If the blocks of one held all places of a
//! device, another could not begin, and the peer might wait for that one. So as many blocks may be under way as the
//! device has multiprocessors: each of them has room for one, so the last block always finds a place. A launch that
//! would be beyond waits for the oldest ones, by events. That is right where all ranks launch what they have in common
//! in the same order, as NCCL demands of communicators that share a device.
//!
//! Invariant: the sum over all launches that may run side by side is at most the number of multiprocessors, as long as
//! none alone is more. Absent: kernels that wait for nothing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use consort_memory::driver::{CudaError, Event, StreamRef};

use super::gpu::Pooled;
use super::placement::Last;

/// What is under way on a device.
pub(super) struct Flight {
    blocks_max: u32,
    launches: Mutex<Vec<Launch>>,
}

/// A launch that may be under way, with those that it came after.
struct Launch {
    /// Of which communicators it was the last one.
    of: Vec<Weak<Last>>,
    /// The most blocks that it and what it waited for have at once.
    blocks: u32,
    after: Arc<Pooled<Event>>,
}

/// A launch that is about to be made. No other of the device is before it has been, or was given up.
pub(super) struct Admission<'a> {
    /// None for a launch that does not count.
    launches: Option<MutexGuard<'a, Vec<Launch>>>,
    /// How many of the first ones it comes after, beside those of its own communicators.
    waited: usize,
    of: Vec<Weak<Last>>,
    blocks: u32,
}

impl Flight {
    /// Of a device with `multiprocessors` multiprocessors.
    pub(super) fn new(multiprocessors: u32) -> Self {
        Flight { blocks_max: multiprocessors, launches: Mutex::default() }
    }

    /// Lets a stream wait until `blocks` blocks find room beside what is under way. The stream has waited for what
    /// these communicators did last.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn admit(
        &self,
        stream: &StreamRef,
        lasts: &[Arc<Last>],
        blocks: u32,
    ) -> Result<Admission<'_>, CudaError> {
        let of: Vec<Weak<Last>> = lasts.iter().map(Arc::downgrade).collect();
        if blocks == 0 {
            return Ok(Admission { launches: None, waited: 0, of, blocks });
        }
        let mut launches = self.launches.lock().unwrap_or_else(PoisonError::into_inner);
        let most = self.blocks_max.max(blocks);
        if launches.iter().map(|launch| launch.blocks).sum::<u32>() + blocks > most {
            let mut outcome = Ok(());
            launches.retain(|launch| match launch.after.query() {
                Ok(is_over) => !is_over,
                Err(error) => {
                    outcome = Err(error);
                    true
                }
            });
            outcome?;
        }
        let (mut before, mut beside) = (0, 0);
        for launch in launches.iter() {
            *(if launch.is_of(&of) { &mut before } else { &mut beside }) += launch.blocks;
        }
        let mut waited = 0;
        while beside + blocks.max(before) > most
            && let Some(oldest) = launches.get(waited)
        {
            waited += 1;
            if !oldest.is_of(&of) {
                stream.wait_event(&oldest.after)?;
                (before, beside) = (before + oldest.blocks, beside - oldest.blocks);
            }
        }
        Ok(Admission { launches: Some(launches), waited, of, blocks: blocks.max(before) })
    }
}

impl Launch {
    /// Whether one of these communicators had part in it.
    fn is_of(&self, communicators: &[Weak<Last>]) -> bool {
        self.of.iter().any(|one| communicators.iter().any(|other| other.ptr_eq(one)))
    }
}

impl Admission<'_> {
    /// The launch is made, and this event comes after it.
    pub(super) fn goes_until(self, after: &Arc<Pooled<Event>>) {
        let Admission { launches, waited, of, blocks } = self;
        let Some(mut launches) = launches else { return };
        // What it comes after is under way as long as it has not begun, and not beside it.
        let mut nth = 0;
        launches.retain(|launch| {
            nth += 1;
            nth > waited && !launch.is_of(&of)
        });
        launches.push(Launch { of, blocks, after: after.clone() });
    }
}
