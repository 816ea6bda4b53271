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

/// A launch that is about to be made, and before which no other is.
pub(super) struct Admission<'a> {
    launches: MutexGuard<'a, Vec<Launch>>,
    of: Vec<Weak<Last>>,
    blocks: u32,
}

impl Flight {
    /// Of a device with so many multiprocessors.
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
        let mut launches = self.launches.lock().unwrap_or_else(PoisonError::into_inner);
        let of: Vec<Weak<Last>> = lasts.iter().map(Arc::downgrade).collect();
        if blocks == 0 {
            return Ok(Admission { launches, of, blocks });
        }
        let total = |launches: &[Launch]| launches.iter().map(|launch| launch.blocks).sum::<u32>();
        let most = self.blocks_max.max(blocks);
        if total(&launches) + blocks > most {
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
        let is_own = |launch: &mut Launch| launch.of.iter().any(|one| of.iter().any(|own| own.ptr_eq(one)));
        let mut before: u32 = launches.extract_if(.., is_own).map(|launch| launch.blocks).sum();
        while total(&launches) + blocks.max(before) > most && !launches.is_empty() {
            stream.wait_event(&launches[0].after)?;
            before += launches.remove(0).blocks;
        }
        Ok(Admission { launches, of, blocks: blocks.max(before) })
    }
}

impl Admission<'_> {
    /// The launch is made, and this event comes after it.
    pub(super) fn goes_until(mut self, after: &Arc<Pooled<Event>>) {
        if self.blocks > 0 {
            let (of, blocks) = (std::mem::take(&mut self.of), self.blocks);
            self.launches.push(Launch { of, blocks, after: after.clone() });
        }
    }
}
