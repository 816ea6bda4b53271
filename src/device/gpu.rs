//! One device of this process: its context, its kernels, and what operations take from pools.
//!
//! Invariant: one value a context in a process, shared by all that use it. Absent: communicators.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use consort_cuda::{Context, DeviceMemory, DeviceSpan, Event};
use consort_kernels::cuda::{Kernels, Table};
use consort_memory::Held;

use super::flight::Flight;
use super::images;
use super::slots::Slots;

/// A device and what is kept for it.
pub(crate) struct Gpu {
    number: usize,
    pub(super) kernels: Kernels,
    pub(super) slots: Arc<Slots>,
    events: Arc<Mutex<Vec<Event>>>,
    tables: Arc<Mutex<Vec<Table>>>,
    /// Staging memory that no operation uses, by the logarithm of its length; memory of the device likewise, and long tables.
    staging: Classes<Staging>,
    scratch: Classes<DeviceMemory>,
    long_tables: Classes<Table>,
    /// What is under way on it.
    pub(super) flight: Flight,
}

/// A pool for each size class: what is freed may wait for the device, so nothing is before the device itself is left.
struct Classes<T>(Mutex<BTreeMap<u32, Arc<Mutex<Vec<T>>>>>);

impl<T> Classes<T> {
    fn new() -> Self {
        Classes(Mutex::default())
    }

    fn take(
        &self,
        bytes: usize,
        make: impl FnOnce(usize) -> consort_cuda::Result<T>,
    ) -> consort_cuda::Result<Pooled<T>> {
        let bytes = bytes.max(4096).next_power_of_two();
        let mut classes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let pool = classes.entry(bytes.ilog2()).or_default().clone();
        drop(classes);
        Pooled::take(&pool, || make(bytes))
    }
}

/// Pinned memory, for the host and for the device.
pub(super) type Staging = (Held, DeviceSpan);

/// Bytes of the tables that are kept: jobs of a group of many ranks.
const TABLE_BYTES: usize = 128 << 10;

/// What goes back to its pool when its last holder is gone.
pub(super) struct Pooled<T> {
    of: Arc<Mutex<Vec<T>>>,
    value: Option<T>,
}

impl<T> Pooled<T> {
    fn take(
        of: &Arc<Mutex<Vec<T>>>,
        make: impl FnOnce() -> consort_cuda::Result<T>,
    ) -> consort_cuda::Result<Self> {
        let known = of.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let value = known.map_or_else(make, Ok)?;
        Ok(Pooled { of: of.clone(), value: Some(value) })
    }
}

impl<T> Deref for Pooled<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // Only `drop` takes it.
        self.value.as_ref().expect("a pooled value is there as long as its holder lives")
    }
}

impl<T> Drop for Pooled<T> {
    fn drop(&mut self) {
        self.of.lock().unwrap_or_else(PoisonError::into_inner).extend(self.value.take());
    }
}

impl Gpu {
    /// The one of a context.
    pub(crate) fn of(context: &Context) -> Arc<Self> {
        static ALL: Mutex<Vec<Weak<Gpu>>> = Mutex::new(Vec::new());
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|gpu| gpu.strong_count() > 0);
        let known = all.iter().filter_map(Weak::upgrade).find(|gpu| gpu.context() == context);
        known.unwrap_or_else(|| {
            static NUMBERS: AtomicUsize = AtomicUsize::new(0);
            let gpu = Arc::new(Gpu {
                number: NUMBERS.fetch_add(1, Ordering::Relaxed),
                kernels: Kernels::new(context, images::log_loading),
                slots: Slots::new(context),
                events: Arc::default(),
                tables: Arc::default(),
                staging: Classes::new(),
                scratch: Classes::new(),
                long_tables: Classes::new(),
                flight: Flight::new(context.device().multiprocessors),
            });
            all.push(Arc::downgrade(&gpu));
            gpu
        })
    }

    /// Its number in this process, which no other has before or after.
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    pub(crate) fn context(&self) -> &Context {
        self.kernels.context()
    }

    /// An event. A stream that waits for it has said so to the driver before it goes back.
    pub(super) fn event(&self) -> consort_cuda::Result<Pooled<Event>> {
        Pooled::take(&self.events, || self.context().create_event())
    }

    /// Pinned memory of at least `bytes` bytes.
    pub(super) fn staging(&self, bytes: usize) -> consort_cuda::Result<Pooled<Staging>> {
        self.staging.take(bytes, |bytes| Ok(self.context().allocate_host(bytes)?.into_held()))
    }

    /// Memory of the device, of at least `bytes` bytes.
    pub(super) fn scratch(&self, bytes: usize) -> consort_cuda::Result<Pooled<DeviceMemory>> {
        self.scratch.take(bytes, |bytes| self.context().allocate(bytes))
    }

    /// A table of at least `bytes` bytes for a launch.
    pub(super) fn table(&self, bytes: usize) -> consort_cuda::Result<Pooled<Table>> {
        if bytes > TABLE_BYTES {
            return self.long_tables.take(bytes, |bytes| Table::new(self.context(), bytes));
        }
        Pooled::take(&self.tables, || Table::new(self.context(), TABLE_BYTES))
    }
}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gpu").field("device", self.context().device()).finish_non_exhaustive()
    }
}
