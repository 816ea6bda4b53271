//! Words that devices write when operations are over.
//!
//! Invariant: a slot has one user at a time, and its number is another for each, so a late write of an operation that
//! was given up says nothing about the next one. Absent: what operations are.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use consort_cuda::{Context, DeviceMemory, DeviceSpan, DeviceWord, Event};
use consort_kernels::cuda::End;

use super::gpu::{Gpu, Pooled};
use super::trouble::failed;
use crate::Rank;
use consort_types::error::Result;

/// Slots of one page.
const SLOTS: usize = 64;
/// Bytes between the words that devices write: each has a cache line.
const STRIDE: usize = 64;

/// All slots of a context.
pub(super) struct Slots {
    context: Context,
    pool: Mutex<Pool>,
}

#[derive(Default)]
struct Pool {
    free: Vec<Place>,
    pages: Vec<DeviceMemory>,
}

/// A word on the host and one on the device.
struct Place {
    done: DeviceWord,
    left: DeviceSpan,
    number: u64,
}

/// The question to the driver about an operation that takes long: whether the device is in an error.
pub(super) struct Health {
    gpu: Arc<Gpu>,
    rank: Rank,
    after: Arc<Pooled<Event>>,
    next: Instant,
}

/// The pause between two such questions.
const HEALTH_INTERVAL: Duration = Duration::from_millis(20);

impl Health {
    /// The health of an operation that is followed by the event `after`.
    pub(super) fn new(gpu: &Arc<Gpu>, rank: Rank, after: &Arc<Pooled<Event>>) -> Self {
        let (gpu, after) = (gpu.clone(), after.clone());
        Health { gpu, rank, after, next: Instant::now() + HEALTH_INTERVAL }
    }

    /// Asks the driver, if the pause is over. To be called in every poll.
    ///
    /// # Errors
    /// The device's error, after a fault of any kernel on it.
    pub(super) fn check(&mut self) -> Result<()> {
        let now = Instant::now();
        if now < self.next {
            return Ok(());
        }
        self.next = now + HEALTH_INTERVAL;
        let failed = |error| failed(self.rank, "an operation under way", error);
        let _entered = self.gpu.context().enter().map_err(failed)?;
        self.after.query().map(drop).map_err(failed)
    }
}

/// The word and the number that a device writes when one operation is over.
pub(super) struct Slot {
    place: Option<Place>,
    of: Arc<Slots>,
}

impl Slots {
    pub(super) fn new(context: &Context) -> Arc<Self> {
        Arc::new(Slots { context: context.clone(), pool: Mutex::default() })
    }

    /// Makes sure that `count` slots are free, as far as other threads leave them. Making slots waits for the device.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn reserve(&self, count: usize) -> consort_cuda::Result<()> {
        while self.pool().free.len() < count {
            self.grow()?;
        }
        Ok(())
    }

    /// A slot that no operation uses. The caller has entered the context.
    pub(super) fn take(self: &Arc<Self>) -> consort_cuda::Result<Slot> {
        loop {
            if let Some(place) = self.pool().free.pop() {
                let place = Some(Place { number: place.number + 1, ..place });
                return Ok(Slot { place, of: self.clone() });
            }
            self.grow()?;
        }
    }

    fn pool(&self) -> std::sync::MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn grow(&self) -> consort_cuda::Result<()> {
        let words = self.context.allocate_host(SLOTS * STRIDE)?;
        let counts = self.context.allocate(SLOTS * STRIDE)?;
        counts.fill(0)?;
        let mut pool = self.pool();
        for slot in 0..SLOTS {
            let done = words.word(slot * STRIDE);
            pool.free.push(Place { done, left: counts.span().slice(slot * STRIDE, 8), number: 0 });
        }
        pool.pages.push(counts);
        Ok(())
    }
}

impl Slot {
    fn place(&self) -> &Place {
        // Only `drop` takes it.
        self.place.as_ref().expect("a slot has a place as long as it lives")
    }

    /// The end of an operation, as a kernel gets it.
    pub(super) fn end(&self) -> End {
        let Place { done, left, number } = self.place();
        End { done: done.device_span(), left: *left, sequence: *number }
    }

    /// The word in which a stream or the host writes the number, where no kernel does.
    pub(super) fn word(&self) -> (DeviceSpan, u64) {
        let Place { done, number, .. } = self.place();
        (done.device_span(), *number)
    }

    /// Whether the device has said that the operation is over.
    pub(super) fn is_done(&self) -> bool {
        let Place { done, number, .. } = self.place();
        done.load_acquire() == *number
    }

    /// The host says that the operation is over.
    pub(super) fn finish(&self) {
        let Place { done, number, .. } = self.place();
        done.store_release(*number);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // The count on the device of an operation that is not over is not back at zero: the next user must not have it.
        if self.is_done()
            && let Some(place) = self.place.take()
        {
            self.of.pool().free.push(place);
        }
    }
}
